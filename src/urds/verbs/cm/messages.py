"""Messages of the connection manager: bytes <-> frozen records; pure.

They correspond to InfiniBand's connection management (docs/reference/verbs-and-roce.md 14) and keep
its numbers for kinds and reasons, in a layout of their own: a header that names both ends of a
connection and the sender's device context, the fields of the kind, private data. Packet providers
carry them as datagrams of the queue pair `CM_QPN`, as InfiniBand does.

A parsed record is a valid one: sizes and ranges are checked; reserved bytes are sent as zeros and
ignored. Integers are big-endian.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final, Self

from urds.common.errors import WireError
from urds.common.struct_layout import Layout

CM_QPN: Final = 1  # Source: docs/reference/verbs-and-roce.md 14.1
CM_QKEY: Final = 0x8001_0000
PRIVATE_DATA_BYTES_MAX: Final = 196
CONTEXT_GUID_BYTES: Final = 8
READS_MAX: Final = 128  # outstanding reads and atomics, either way
QPN_MAX: Final = (1 << 24) - 2  # 0xFFFFFF means multicast in InfiniBand
MTU_BYTES_MIN: Final = 256

_MAGIC: Final = b"uCM\x01"  # the last byte is the version


class CmMessageKind(IntEnum):
    """Kinds of message. The gap at 0x19 are alternate paths, which are not supported."""

    REQ = 0x10
    MRA = 0x11  # "message received": the application has the request
    REJ = 0x12
    REP = 0x13
    RTU = 0x14  # "ready to use": the requester has seen the REP
    DREQ = 0x15
    DREP = 0x16
    SIDR_REQ = 0x17  # the pair that looks up a datagram queue pair
    SIDR_REP = 0x18
    ALIVE = 0x40  # ours: is this device context still open?
    ALIVE_ANSWER = 0x41


# Those that name the sender's device context in InfiniBand too, and ours, which do anywhere.
# Source: docs/reference/verbs-and-roce.md 14.2.
NAMES_CONTEXT: Final = frozenset(
    {CmMessageKind.REQ, CmMessageKind.REP, CmMessageKind.ALIVE, CmMessageKind.ALIVE_ANSWER}
)


class RejectReason(IntEnum):
    """Why a message rejects or ends a connection. Source: docs/reference/verbs-and-roce.md 14.2."""

    NONE = 0
    NO_RESOURCES = 3  # the backlog is full
    TIMEOUT = 4  # the requester gave up
    INVALID_COMM_ID = 6
    INVALID_SERVICE = 8  # no listener
    CONSUMER = 28  # the application rejected it
    BROKEN = 0x100  # ours, in a DREQ: a queue pair failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The parameters of one side of a connection: in REQ, SIDR_REQ, REP and SIDR_REP."""

    qpn: int = 0
    sequence_start: int = 0  # the first PSN that this side will send
    mtu_bytes: int = MTU_BYTES_MIN
    responder_resources: int = 0
    initiator_depth: int = 0
    retry_count: int = 0
    rnr_retry_count: int = 0
    receive_order: int = 0
    qkey: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CmMessage:
    """One message. Fields that its kind does not carry keep their defaults.

    `context_guid` is the sender's device context, empty where the sender did not say it.
    `local_id` is the sender's number of the connection, `remote_id` the receiver's (0: not known
    yet). Addresses are 16 bytes, IPv4 mapped into IPv6; they and the ports are the requester's
    view, used only by a provider without addresses of its own.
    """

    kind: CmMessageKind
    context_guid: bytes
    local_id: int = 0
    remote_id: int = 0
    private_data: bytes = b""
    offer: Offer = field(default_factory=Offer)
    space: int = 0
    source: bytes = bytes(16)
    source_port: int = 0
    target: bytes = bytes(16)
    target_port: int = 0
    reason: RejectReason = RejectReason.NONE

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read one message that fills `data`. Raises WireError if it is not one."""
        magic, kind, private_bytes, local_id, remote_id, context_guid = _HEADER.unpack(
            data[: _HEADER.size_bytes]
        )
        if magic != _MAGIC:
            raise WireError(f"connection message begins with {magic!r}, not {_MAGIC!r}")
        if kind not in _BODIES:
            raise WireError(f"connection message of unknown kind {kind:#x}")
        layout, parse_body, _ = _BODIES[CmMessageKind(kind)]
        private_at = _HEADER.size_bytes + layout.size_bytes
        if len(data) != private_at + private_bytes:
            raise WireError(
                f"{CmMessageKind(kind).name} of {len(data)} bytes, not {private_at}"
                f" and {private_bytes} of private data"
            )
        if private_bytes > PRIVATE_DATA_BYTES_MAX:
            raise WireError(
                f"private data of {private_bytes} bytes, limit {PRIVATE_DATA_BYTES_MAX}"
            )
        return cls(
            kind=CmMessageKind(kind),
            context_guid=context_guid,
            local_id=local_id,
            remote_id=remote_id,
            private_data=data[private_at:],
            **parse_body(*layout.unpack(data[_HEADER.size_bytes : private_at])),
        )

    def emit(self) -> bytes:
        """Write the bytes. Raises WireError if a field does not fit."""
        if len(self.private_data) > PRIVATE_DATA_BYTES_MAX:
            raise WireError(
                f"private data of {len(self.private_data)} bytes, limit {PRIVATE_DATA_BYTES_MAX}"
            )
        layout, _, fields_of = _BODIES[self.kind]
        header = _HEADER.pack(
            _MAGIC,
            self.kind,
            len(self.private_data),
            self.local_id,
            self.remote_id,
            self.context_guid,
        )
        return header + layout.pack(*fields_of(self)) + self.private_data


_OFFER_FIELDS: Final = tuple(each.name for each in fields(Offer))
_REQUEST_FIELDS: Final = ("space", "source_port", "target_port", "source", "target")
_offer_values: Final = attrgetter(*_OFFER_FIELDS)
_request_values: Final = attrgetter(*_REQUEST_FIELDS)


def _offer(*values: int) -> Offer:
    offer = Offer(**dict(zip(_OFFER_FIELDS, values, strict=True)))
    if offer.qpn > QPN_MAX:
        raise WireError(f"queue pair {offer.qpn:#x}, limit {QPN_MAX:#x}")
    if offer.sequence_start >> 24:
        raise WireError(f"starting sequence {offer.sequence_start:#x} has more than 24 bits")
    if offer.mtu_bytes < MTU_BYTES_MIN:
        raise WireError(f"mtu of {offer.mtu_bytes} bytes, at least {MTU_BYTES_MIN}")
    if (reads := max(offer.responder_resources, offer.initiator_depth)) > READS_MAX:
        raise WireError(f"{reads} outstanding reads, limit {READS_MAX}")
    if (retries := max(offer.retry_count, offer.rnr_retry_count)) > 7:
        raise WireError(f"retry count {retries}, limit 7")
    if offer.receive_order > 2:
        raise WireError(f"receive_order {offer.receive_order} is unknown")
    return offer


def _parse_request(*values: Any) -> dict[str, Any]:
    offer = _offer(*values[len(_REQUEST_FIELDS) :])
    return {**dict(zip(_REQUEST_FIELDS, values, strict=False)), "offer": offer}


def _parse_reason(reason: int) -> dict[str, Any]:
    try:
        return {"reason": RejectReason(reason)}
    except ValueError:
        raise WireError(f"reason {reason} is unknown") from None


# magic kind (1 reserved) private_bytes local_id remote_id context
_HEADER: Final = Layout("connection message", ">4sBxHII8s", size_bytes=24)
# qpn sequence_start mtu_bytes responder initiator retries rnr receive_order (3 reserved) qkey
_OFFER_FORMAT: Final = "IIIBBBBB3xI"
# space source_port target_port (2 reserved) source target, offer
_REQUEST: Final = Layout("request", ">HHH2x16s16s" + _OFFER_FORMAT, size_bytes=64)
_REPLY: Final = Layout("reply", ">" + _OFFER_FORMAT, size_bytes=24)
_REASON: Final = Layout("reason", ">H2x", size_bytes=4)
_NOTHING: Final = Layout("nothing", ">", size_bytes=0)

_Body = tuple[Layout, Callable[..., dict[str, Any]], Callable[[CmMessage], tuple[object, ...]]]
_REQUEST_BODY: Final[_Body] = (
    _REQUEST,
    _parse_request,
    lambda message: (*_request_values(message), *_offer_values(message.offer)),
)
_REPLY_BODY: Final[_Body] = (
    _REPLY,
    lambda *values: {"offer": _offer(*values)},
    lambda message: _offer_values(message.offer),
)
_REASON_BODY: Final[_Body] = (_REASON, _parse_reason, lambda message: (message.reason,))
_NO_BODY: Final[_Body] = (_NOTHING, dict, lambda _message: ())

_BODIES: Final[dict[CmMessageKind, _Body]] = {
    CmMessageKind.REQ: _REQUEST_BODY,
    CmMessageKind.MRA: _NO_BODY,
    CmMessageKind.REJ: _REASON_BODY,
    CmMessageKind.REP: _REPLY_BODY,
    CmMessageKind.RTU: _NO_BODY,
    CmMessageKind.DREQ: _REASON_BODY,
    CmMessageKind.DREP: _NO_BODY,
    CmMessageKind.SIDR_REQ: _REQUEST_BODY,
    CmMessageKind.SIDR_REP: _REPLY_BODY,
    CmMessageKind.ALIVE: _NO_BODY,
    CmMessageKind.ALIVE_ANSWER: _NO_BODY,
}
assert _BODIES.keys() == set(CmMessageKind), "each kind has its layout"

MESSAGE_BYTES_MAX: Final = _HEADER.size_bytes + _REQUEST.size_bytes + PRIVATE_DATA_BYTES_MAX
