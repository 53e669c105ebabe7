"""Ancillary data of sendmsg and recvmsg: control messages to records and back.

Sending: `read` checks the list as Linux does and returns what is asked. It reads and checks the
RDMA and atomic kinds; the caller knows whether the transport can do them. Receiving: `fit` puts
control messages into the caller's buffer, with the truncation rules of Linux's put_cmsg. All values
are in host order with natural alignment.
Source: linux v6.12 net/rds/send.c (rds_rm_size, rds_cmsg_send), net/rds/recv.c, net/core/scm.c;
docs/reference/rds.md 3.3; golden bytes of linux v6.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from urds.common.errors import ErrorReason, os_error
from urds.rds.constants import (
    MSG_CTRUNC,
    RDS_MSG_RX_DGRAM_TRACE_MAX,
    SCM_TIMESTAMP,
    SOL_RDS,
    SOL_SOCKET,
    Cmsg,
    ExtensionType,
)

Ancillary = tuple[int, int, bytes]

SCM_TIMESTAMP_NEW: Final = 63

_HEADER_BYTES: Final = 16  # struct cmsghdr on a 64-bit machine
_ALIGNMENT: Final = 8
_NS: Final = 1_000_000_000
_U32_MAX: Final = (1 << 32) - 1
RDMA_STATUS_BYTES: Final = 32  # what one takes of a control buffer, header and padding included

_RDMA_ARGS: Final = Struct("=QQQQQQQ")
_COOKIE: Final = Struct("=Q")
_GET_MR: Final = Struct("=QQQQ")
_ATOMIC: Final = Struct("=QQQ4QQQ")
_ZCOPY_COOKIE: Final = Struct("=I")
_CONG_UPDATE: Final = Struct("=Q")
_STATUS: Final = Struct("=Qi4x")
_LATENCY: Final = Struct("=B3B4x3Q")
_TIMEVAL: Final = Struct("=qq")

_ATOMIC_KINDS: Final = frozenset(
    {Cmsg.ATOMIC_FADD, Cmsg.ATOMIC_CSWP, Cmsg.MASKED_ATOMIC_FADD, Cmsg.MASKED_ATOMIC_CSWP}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaArgs:
    """RDMA_ARGS: move bytes between local memory and a region of the peer."""

    cookie: int
    remote_address: int
    remote_bytes: int
    local_vector_address: int
    local_count: int
    flags: int
    user_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaMap:
    """RDMA_MAP: make a region and send its key along."""

    address: int
    region_bytes: int
    cookie_address: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Atomic:
    """One of four atomic operations on eight bytes of the peer."""

    kind: Cmsg
    cookie: int
    local_address: int
    remote_address: int
    operands: tuple[int, int, int, int]  # add and no-carry mask, or compare, swap and their masks
    flags: int
    user_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """What the control messages of one sendmsg ask for; each at most once."""

    rdma: RdmaArgs | None = None
    region: RdmaMap | None = None
    destination_cookie: int | None = None
    atomic: Atomic | None = None
    zerocopy_cookie: int | None = None


def rdma_bytes(ancillary: Iterable[tuple[int, int, bytes]]) -> int:
    """Return how many bytes of the peer the RDMA_ARGS name; looked at before anything else.

    Raises OSError (EINVAL) for a short one.
    """
    return sum(
        _unpack(_RDMA_ARGS, kind, bytes(data))[2]
        for level, kind, data in ancillary
        if level == SOL_RDS and kind == Cmsg.RDMA_ARGS
    )


def read(ancillary: Iterable[tuple[int, int, bytes]]) -> SendRequest:
    """Return what a sendmsg asks for; other levels are ignored.

    Raises OSError (EINVAL) for an unknown RDS kind, a short one, a second of its kind, or a
    combination that Linux refuses: an operation together with a cookie or a region, or a cookie
    with a region, which has its own.
    """
    found: dict[str, RdmaArgs | RdmaMap | Atomic | int] = {}
    for level, kind, data in ancillary:
        if level != SOL_RDS:
            continue
        field, record = _read_one(kind, bytes(data))
        if field in found:
            raise os_error(ErrorReason.BAD_CMSG, f"a second control message of kind {kind}")
        found[field] = record
    operations = found.keys() & {"rdma", "atomic"}
    companions = found.keys() - operations
    if (operations and companions) or found.keys() >= {"region", "destination_cookie"}:
        raise os_error(ErrorReason.BAD_CMSG, f"{'+'.join(sorted(found))} do not go together")
    return SendRequest(**found)  # type: ignore[arg-type]  # field and record come in pairs


def congestion_update(groups: int) -> Ancillary:
    """Return the control message that names port groups whose congestion changed."""
    return SOL_RDS, Cmsg.CONG_UPDATE, _CONG_UPDATE.pack(groups)


def rdma_status(user_token: int, status: int) -> Ancillary:
    """Return the control message of an RDMA or atomic operation's end."""
    return SOL_RDS, Cmsg.RDMA_STATUS, _STATUS.pack(user_token, status)


def rdma_destination(cookie: int) -> Ancillary:
    """Return the control message with the region key that came with a message."""
    return SOL_RDS, Cmsg.RDMA_DEST, _COOKIE.pack(cookie)


def timestamp(time_ns: int, *, new: bool = False) -> Ancillary:
    """Return the arrival time as a timeval, even for SO_TIMESTAMPNS: kernel parity."""
    kind = SCM_TIMESTAMP_NEW if new else SCM_TIMESTAMP
    return SOL_SOCKET, kind, _TIMEVAL.pack(time_ns // _NS, time_ns % _NS // 1000)


def latency(trace: tuple[tuple[int, int], ...]) -> Ancillary:
    """Return RDS_CMSG_RXPATH_LATENCY: up to three (receive-path position, nanoseconds) pairs."""
    unused = ((0, 0),) * (RDS_MSG_RX_DGRAM_TRACE_MAX - len(trace))
    positions, durations = zip(*trace, *unused, strict=True)
    return SOL_RDS, Cmsg.RXPATH_LATENCY, _LATENCY.pack(len(trace), *positions, *durations)


def destination_extension(cookie: int) -> bytes:
    """Return the extension headers of a message that brings a region's cookie."""
    from urds.rds.wire import extensions as exthdr

    values = (cookie & _U32_MAX, cookie >> 32)
    return exthdr.emit([exthdr.Extension(ExtensionType.RDMA_DEST, values)])


def destination_cookie(extension: bytes) -> int | None:
    """Return the region key in a message's extension headers, if it carries one.

    The cookie has the offset in its upper half and the key in its lower.
    Source: linux v6.12 net/rds/rdma.c (rds_rdma_make_cookie).
    """
    from urds.rds.wire import extensions as exthdr

    for item in exthdr.parse(extension) if extension else ():
        if item.type == ExtensionType.RDMA_DEST:
            key, offset = item.values
            return offset << 32 | key
    return None


def fit(messages: list[Ancillary], buffer_bytes: int) -> tuple[list[Ancillary], int]:
    """Return what of `messages` a control buffer holds, and MSG_CTRUNC if that is not all.

    A message that fits in part is cut. Source: linux v6.12 net/core/scm.c (put_cmsg).
    """
    laid: list[Ancillary] = []
    left = buffer_bytes
    flags = 0
    for level, kind, data in messages:
        if left < _HEADER_BYTES:
            return laid, int(MSG_CTRUNC)
        wanted = _HEADER_BYTES + len(data)
        if left < wanted:
            flags = int(MSG_CTRUNC)
            wanted = left
        laid.append((level, int(kind), data[: wanted - _HEADER_BYTES]))
        left -= min(left, -(-wanted // _ALIGNMENT) * _ALIGNMENT)
    return laid, flags


def _read_one(kind: int, data: bytes) -> tuple[str, RdmaArgs | RdmaMap | Atomic | int]:
    layout = _SENT.get(kind)
    if layout is None:
        raise os_error(ErrorReason.BAD_CMSG, f"kind {kind} cannot be sent")
    values = _unpack(layout, kind, data)
    if kind == Cmsg.RDMA_ARGS:
        return "rdma", RdmaArgs(**dict(zip(RdmaArgs.__slots__, values, strict=True)))
    if kind == Cmsg.RDMA_MAP:
        return "region", RdmaMap(**dict(zip(RdmaMap.__slots__, values, strict=True)))
    if kind in _ATOMIC_KINDS:
        cookie, local, remote, *operands, flags, token = values
        return "atomic", Atomic(
            kind=Cmsg(kind),
            cookie=cookie,
            local_address=local,
            remote_address=remote,
            operands=(operands[0], operands[1], operands[2], operands[3]),
            flags=flags,
            user_token=token,
        )
    return ("destination_cookie" if kind == Cmsg.RDMA_DEST else "zerocopy_cookie"), values[0]


def _unpack(layout: Struct, kind: int, data: bytes) -> tuple[int, ...]:
    if len(data) < layout.size:
        detail = f"kind {kind} of {len(data)} bytes, not {layout.size}"
        raise os_error(ErrorReason.BAD_CMSG, detail)
    return layout.unpack_from(data)


_SENT: Final[dict[int, Struct]] = {
    Cmsg.RDMA_ARGS: _RDMA_ARGS,
    Cmsg.RDMA_DEST: _COOKIE,
    Cmsg.RDMA_MAP: _GET_MR,
    **dict.fromkeys(_ATOMIC_KINDS, _ATOMIC),
    Cmsg.ZCOPY_COOKIE: _ZCOPY_COOKIE,
}
