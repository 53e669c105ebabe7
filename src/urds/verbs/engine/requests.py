"""Send work requests: the checks at posting, the record that the requester keeps, and its packets.

The packets of a request have consecutive PSNs and each can be rebuilt from its PSN, so a retry
needs only the request itself and, of inline data, the bytes. Posting checks sizes; keys are
checked when the bytes are used, except those of inline data, which is copied while posting. What
depends on memory or on the peer fails with a completion.
"""

import errno
import operator
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from urds.common.types import BytesLike
from urds.verbs.engine.attributes import LinkTraits, QPAttr
from urds.verbs.engine.keys import KeyTable, WindowBinding
from urds.verbs.engine.numbers import (
    ATOMIC_BYTES,
    CELL_MASK,
    MESSAGE_BYTES_MAX,
    PSN_MASK,
    QPType,
    SendFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import (
    ANSWERED,
    ATOMICS,
    PACKET_FLAGS,
    Packet,
    PacketFlag,
    PacketKind,
)
from urds.verbs.engine.work import SendWR, check_count

ACK_EVERY_PACKETS: Final = 32  # of a long message; the last packet always asks for one
READ_PORTION_PACKETS: Final = 64  # answers that one READ_REQUEST asks for, on a lossy link

_FIRST: Final = int(PacketFlag.FIRST)
_LAST: Final = int(PacketFlag.LAST)
_ACK_REQUEST: Final = int(PacketFlag.ACK_REQUEST)
_WITH_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE | PacketFlag.INVALIDATE)
_SOLICITED: Final = int(SendFlag.SOLICITED)
_INLINE: Final = int(SendFlag.INLINE)
_MSN_MASK: Final = (1 << 32) - 1
_ADDRESS_MASK: Final = (1 << 64) - 1  # addresses wrap: the peer rejects invalid ones


class Opcode(NamedTuple):
    """What an opcode means: how it completes, its packets, and what they carry.

    kind: of its packets; `None`: it is carried out here, without any.  mark: of its last packet.
    operands: fields of an atomic operation that have to fit 64 bits.
    """

    wc_opcode: WCOpcode
    kind: PacketKind | None = None
    takes_receive: bool = False  # of the peer
    mark: int = 0
    operands: tuple[str, ...] = ()


_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE)
_INVALIDATE: Final = int(PacketFlag.INVALIDATE)
_SWAP: Final = ("compare_add", "swap")
_KEY_AND_IMMEDIATE: Final = ("rkey", "imm_data")
_KEY_AND_INVALIDATED: Final = ("rkey", "invalidate_rkey")
_DATAGRAM: Final = ("remote_qpn", "remote_qkey")
_BITS_32: Final = (1 << 32) - 1
OPCODES: Final = {
    WROpcode.SEND: Opcode(WCOpcode.SEND, PacketKind.SEND, True),
    WROpcode.SEND_WITH_IMM: Opcode(WCOpcode.SEND, PacketKind.SEND, True, _IMMEDIATE),
    WROpcode.SEND_WITH_INV: Opcode(WCOpcode.SEND, PacketKind.SEND, True, _INVALIDATE),
    WROpcode.RDMA_WRITE: Opcode(WCOpcode.RDMA_WRITE, PacketKind.WRITE),
    WROpcode.RDMA_WRITE_WITH_IMM: Opcode(WCOpcode.RDMA_WRITE, PacketKind.WRITE, True, _IMMEDIATE),
    WROpcode.RDMA_READ: Opcode(WCOpcode.RDMA_READ, PacketKind.READ_REQUEST),
    WROpcode.ATOMIC_CMP_AND_SWP: Opcode(WCOpcode.COMP_SWAP, PacketKind.ATOMIC_SWAP, operands=_SWAP),
    WROpcode.ATOMIC_FETCH_AND_ADD: Opcode(
        WCOpcode.FETCH_ADD, PacketKind.ATOMIC_ADD, operands=("compare_add",)
    ),
    WROpcode.MASKED_ATOMIC_CMP_AND_SWP: Opcode(
        WCOpcode.COMP_SWAP,
        PacketKind.MASKED_SWAP,
        operands=(*_SWAP, "compare_mask", "swap_mask"),
    ),
    WROpcode.MASKED_ATOMIC_FETCH_AND_ADD: Opcode(
        WCOpcode.FETCH_ADD, PacketKind.MASKED_ADD, operands=("compare_add", "boundary")
    ),
    WROpcode.BIND_MW: Opcode(WCOpcode.BIND_MW),
    WROpcode.LOCAL_INV: Opcode(WCOpcode.LOCAL_INV, mark=_INVALIDATE),
}
assert OPCODES.keys() == set(WROpcode), "each opcode has its meaning"
_CHANGES: Final = ATOMICS | {PacketKind.WRITE}
_CARRIES: Final = {PacketKind.SEND, PacketKind.WRITE}


class SendRequest:
    """One posted send work request, copied: the caller may reuse its record.

    PSNs and message numbers are counted without wrapping.
    """

    __slots__ = (
        "ah", "bind", "boundary", "compare_add", "compare_mask", "failed", "flags", "immediate",
        "inline", "is_answered", "is_placed", "kind", "length", "mark", "msn", "on_detach",
        "opcode", "portions_left", "psn", "psn_count", "received", "remote_addr", "remote_qkey",
        "remote_qpn", "rkey", "sent", "sg", "signalled", "swap", "swap_mask", "takes_receive",
        "unanswered", "wc_opcode", "window", "wr_id",
    )  # fmt: skip

    def __init__(
        self,
        wr: SendWR,
        keys: KeyTable,
        pd: object,
        *,
        signalled: bool,
        on_detach: Callable[[], None] | None = None,
    ) -> None:
        """Copy what INLINE asks for. Raises AccessError."""
        self.wr_id = wr.wr_id
        self.opcode = wr.opcode
        self.wc_opcode, self.kind, self.takes_receive, self.mark, _ = OPCODES[wr.opcode]
        self.flags = int(wr.send_flags)
        self.sg = tuple(wr.sg)
        self.immediate = wr.invalidate_rkey if self.mark == _INVALIDATE else wr.imm_data
        self.remote_addr, self.rkey = wr.remote_addr, wr.rkey
        self.compare_add, self.swap = wr.compare_add, wr.swap
        self.compare_mask, self.swap_mask = wr.compare_mask, wr.swap_mask
        self.boundary = wr.boundary
        self.ah, self.remote_qpn, self.remote_qkey = wr.ah, wr.remote_qpn, wr.remote_qkey
        self.window, self.bind = wr.window, wr.bind
        self.length = wr.message_bytes
        self.signalled = signalled
        # Bytes that no key stands for: a copy, or the caller's own.
        self.inline = wr.data
        if self.flags & _INLINE:
            self.inline = bytes(
                keys.gather(pd, wr.sg, 0, self.length) if wr.data is None else wr.data
            )
        self.on_detach = on_detach  # of a provider that keeps views of payloads: it copies them
        self.is_answered = self.kind in ANSWERED  # by data that it brings back
        self.is_placed = False  # by the provider itself, into shared memory
        self.failed: WCStatus | None = None
        self.psn = self.psn_count = 0  # known when it is started
        self.msn = 0
        self.sent = 0  # PSNs that were sent at least once
        self.unanswered = 0
        self.received = 0  # bytes of a read, on a link without loss
        self.portions_left: dict[int, int] = {}  # of a read: answers that are missing, by portion

    @property
    def is_overtakable(self) -> bool:
        """Return whether bytes that a provider places itself could land before its own."""
        return self.kind in _CHANGES and not self.is_placed and self.length > 0

    def start(self, psn: int, msn: int, link: LinkTraits, mtu_bytes: int) -> None:
        """Assign its numbers; it is in flight from here on.

        It takes one PSN per packet, a read one per response.
        """
        is_one = self.is_placed or self.kind in ATOMICS
        if is_one or (self.kind is PacketKind.READ_REQUEST and link.lossless):
            self.psn_count = 1
        else:
            self.psn_count = max(1, -(-self.length // mtu_bytes))
        self.psn, self.msn, self.unanswered = psn, msn, self.psn_count

    def detach(self) -> int:
        """Stop using the caller's memory; return how many bytes were copied for that.

        For a request with `SendWR.data`: on return the caller owns it again, over every provider.
        Nothing is copied of what is answered, or was placed by the provider. Call it with the
        adapter's lock held, after the `progress_qp` that sends what can be sent at once.
        """
        inline = self.inline
        if not isinstance(inline, memoryview) or self.is_placed:
            return 0
        is_answered = self.psn_count and not self.unanswered
        self.inline = b"" if is_answered else bytes(inline)
        if self.on_detach is not None:
            self.on_detach()
        return len(self.inline)

    def data(self, keys: KeyTable, pd: object, offset: int, length: int) -> BytesLike:
        """Return bytes of the message. Raises AccessError."""
        if self.inline is not None:
            return memoryview(self.inline)[offset : offset + length]
        return keys.gather(pd, self.sg, offset, length)

    # -- packets

    def build_data(self, psn: int, payload: BytesLike, target_qpn: int, mtu_bytes: int) -> Packet:
        """Return the packet of a SEND or WRITE that has the given PSN."""
        index = psn - self.psn
        offset = index * mtu_bytes
        bits = 0 if index else _FIRST
        if (is_last := index == self.psn_count - 1) or (index + 1) % ACK_EVERY_PACKETS == 0:
            bits |= _ACK_REQUEST
        packet = Packet(PacketKind.SEND, target_qpn, psn & PSN_MASK, offset=offset, payload=payload)
        if self.kind is PacketKind.WRITE:
            packet.kind = PacketKind.WRITE
            packet.address = self.remote_addr + offset & _ADDRESS_MASK
            packet.rkey = self.rkey
            if not index:
                packet.length = self.length
        if self.takes_receive:
            packet.msn = self.msn & _MSN_MASK
        marks = self.mark
        # SendFlag and PacketFlag name the same mark by different bits.
        if self.flags & _SOLICITED:
            marks |= int(PacketFlag.SOLICITED)
        if is_last:
            bits |= _LAST | marks
        elif self.kind is PacketKind.SEND:
            packet.announced = PACKET_FLAGS[marks]
        if (bits | int(packet.announced)) & _WITH_IMMEDIATE:
            packet.immediate = self.immediate
        if self.is_placed:
            bits |= int(PacketFlag.PLACED)
        packet.flags = PACKET_FLAGS[bits]
        return packet

    def build_read(self, psn: int, count: int, target_qpn: int, mtu_bytes: int) -> Packet:
        """Return a READ_REQUEST for the bytes of `count` PSNs, the whole rest if that is all."""
        offset = (psn - self.psn) * mtu_bytes
        is_rest = psn + count == self.psn + self.psn_count
        return Packet(
            PacketKind.READ_REQUEST,
            target_qpn,
            psn & PSN_MASK,
            PACKET_FLAGS[_FIRST | _LAST | _ACK_REQUEST],
            length=self.length - offset if is_rest else count * mtu_bytes,
            address=self.remote_addr + offset & _ADDRESS_MASK,
            rkey=self.rkey,
        )

    def build_atomic(self, target_qpn: int) -> Packet:
        """Return the packet of an atomic operation."""
        kind = self.kind
        assert kind is not None
        packet = Packet(
            kind,
            target_qpn,
            self.psn & PSN_MASK,
            PACKET_FLAGS[_FIRST | _LAST | _ACK_REQUEST],
            address=self.remote_addr & _ADDRESS_MASK,
            rkey=self.rkey,
            compare_add=self.compare_add,
        )
        # What the opcode does not use is ignored, whatever its request says.
        if kind is PacketKind.MASKED_ADD:
            packet.boundary = self.boundary
        elif kind is not PacketKind.ATOMIC_ADD:
            packet.swap = self.swap
        if kind is PacketKind.MASKED_SWAP:
            packet.compare_mask, packet.swap_mask = self.compare_mask, self.swap_mask
        return packet


def overtakes(request: SendRequest, others: Iterable[SendRequest]) -> bool:
    """Return whether bytes placed now could land before those of others that belong below them.

    Addresses are compared under one key only: another may name the same memory otherwise.
    """
    start, rkey = request.remote_addr, request.rkey
    end = start + request.length
    return any(
        other.rkey != rkey or (other.remote_addr < end and start < other.remote_addr + other.length)
        for other in others
    )


def check_numbers(wr: SendWR) -> None:
    """Check the numbers that packets carry in 32 bits. Raises OverflowError; TypeError.

    A wrong one would otherwise fail where the packet is written: amid other requests.
    """
    if (opcode := OPCODES.get(wr.opcode)) is None:
        return
    names = _KEY_AND_IMMEDIATE if opcode.mark != _INVALIDATE else _KEY_AND_INVALIDATED
    for name in names if wr.ah is None else (*names, *_DATAGRAM):
        if operator.index(value := getattr(wr, name)) >> 32:
            raise OverflowError(f"{name} {value}, from 0 to {_BITS_32}")


def check_send(wr: SendWR, qp_type: QPType, attr: QPAttr, link: LinkTraits) -> None:
    """Check a send work request. Raises OSError: EINVAL."""
    if (opcode := OPCODES.get(wr.opcode)) is None:
        raise _invalid(f"opcode {wr.opcode!r}")
    if wr.data is not None:
        if opcode.kind not in _CARRIES:
            raise _invalid(f"{wr.opcode.name} with data of its own")
        _check_bytes(wr.data)
    length, cap = wr.message_bytes, attr.cap
    if wr.num_sge is not None:
        check_count(wr.num_sge, wr.sg)
    if len(wr.sg) > cap.max_send_sge:
        raise _invalid(f"send of {len(wr.sg)} pieces, limit {cap.max_send_sge} (max_send_sge)")
    for piece in wr.sg:
        if piece.length < 0:
            raise _invalid("a piece of negative length")
    if length > MESSAGE_BYTES_MAX:
        raise _invalid(f"message of {length} bytes, limit {MESSAGE_BYTES_MAX}")
    if int(wr.send_flags) & _INLINE:
        if opcode.kind in ANSWERED:
            raise _invalid(f"{wr.opcode.name} cannot be inline")
        if length > cap.max_inline_data:
            raise _invalid(f"{length} bytes inline, limit {cap.max_inline_data} (max_inline_data)")
    if qp_type is QPType.UD:
        _check_datagram(wr, opcode, length, link)
    else:
        _check_connected(wr, opcode, length, attr)


def _check_bytes(data: object) -> None:
    """Check data that a request brings itself: plain bytes."""
    if isinstance(data, memoryview):
        if data.format != "B" or data.ndim != 1 or not data.contiguous:
            raise _invalid(
                f"bytes of format {data.format!r}, {data.ndim} dimensions: not plain bytes"
            )
    elif not isinstance(data, bytes):
        raise _invalid(f"bytes of type {type(data).__name__}, neither bytes nor memoryview")


def _check_datagram(wr: SendWR, opcode: Opcode, length: int, link: LinkTraits) -> None:
    if opcode.kind is not PacketKind.SEND or opcode.mark == _INVALIDATE:
        raise _invalid(f"{wr.opcode.name} on a datagram queue pair")
    if wr.ah is None:
        raise _invalid("datagram without an address handle")
    if length > link.mtu_bytes:
        raise _invalid(f"datagram of {length} bytes, limit {link.mtu_bytes} (mtu)")


def _check_connected(wr: SendWR, opcode: Opcode, length: int, attr: QPAttr) -> None:
    if opcode.kind in ANSWERED and not attr.max_rd_atomic:
        raise _invalid(f"{wr.opcode.name} with max_rd_atomic 0")
    if opcode.operands and length != ATOMIC_BYTES:
        raise _invalid(f"room of {length} bytes for an atomic result of {ATOMIC_BYTES}")
    for name in opcode.operands:
        if not 0 <= (value := getattr(wr, name)) <= CELL_MASK:
            raise _invalid(f"{name} {value:#x} of {wr.opcode.name} outside 64 bits")
    if wr.opcode is WROpcode.BIND_MW and not (
        wr.window is not None and isinstance(wr.bind, WindowBinding)
    ):
        raise _invalid("BIND_MW without a window and its WindowBinding")


def _invalid(message: str) -> OSError:
    return OSError(errno.EINVAL, message)
