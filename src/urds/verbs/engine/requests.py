"""Send work requests: the checks at posting, the record that the requester keeps, and its packets.

The packets of a request have consecutive PSNs and each can be rebuilt from its PSN, so a retry
needs only the request itself and, of inline data, the bytes. Posting checks sizes; keys are
checked when the bytes are used, except those of inline data, which is copied while posting. What
depends on memory or on the peer fails with a completion.
"""

import errno
from collections.abc import Callable
from typing import Final

from urds.common.types import BytesLike
from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.keys import KeyTable, WindowBinding
from urds.verbs.engine.numbers import (
    CELL_MASK,
    MESSAGE_BYTES_MAX,
    PSN_MASK,
    QPType,
    SendFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.packets import ANSWERED, ATOMICS, Packet, PacketFlag, PacketKind
from urds.verbs.engine.work import SendWR, total_bytes

ACK_EVERY_PACKETS: Final = 32  # of a long message; the last packet always asks for one
READ_PORTION_PACKETS: Final = 64  # answers that one READ_REQUEST asks for, on a lossy link

_FIRST: Final = int(PacketFlag.FIRST)
_LAST: Final = int(PacketFlag.LAST)
_ACK_REQUEST: Final = int(PacketFlag.ACK_REQUEST)
_WITH_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE | PacketFlag.INVALIDATE)
_SOLICITED: Final = int(SendFlag.SOLICITED)
_INLINE: Final = int(SendFlag.INLINE)
_FLAGS: Final = tuple(PacketFlag(bits) for bits in range(int(sum(PacketFlag)) + 1))
_MSN_MASK: Final = (1 << 32) - 1
_ADDRESS_MASK: Final = (1 << 64) - 1  # addresses wrap: the peer rejects invalid ones

_KIND: Final = {
    WROpcode.SEND: PacketKind.SEND,
    WROpcode.SEND_WITH_IMM: PacketKind.SEND,
    WROpcode.SEND_WITH_INV: PacketKind.SEND,
    WROpcode.RDMA_WRITE: PacketKind.WRITE,
    WROpcode.RDMA_WRITE_WITH_IMM: PacketKind.WRITE,
    WROpcode.RDMA_READ: PacketKind.READ_REQUEST,
    WROpcode.ATOMIC_CMP_AND_SWP: PacketKind.ATOMIC_SWAP,
    WROpcode.ATOMIC_FETCH_AND_ADD: PacketKind.ATOMIC_ADD,
    WROpcode.MASKED_ATOMIC_CMP_AND_SWP: PacketKind.MASKED_SWAP,
    WROpcode.MASKED_ATOMIC_FETCH_AND_ADD: PacketKind.MASKED_ADD,
}
WC_OPCODE: Final = {
    WROpcode.SEND: WCOpcode.SEND,
    WROpcode.SEND_WITH_IMM: WCOpcode.SEND,
    WROpcode.SEND_WITH_INV: WCOpcode.SEND,
    WROpcode.RDMA_WRITE: WCOpcode.RDMA_WRITE,
    WROpcode.RDMA_WRITE_WITH_IMM: WCOpcode.RDMA_WRITE,
    WROpcode.RDMA_READ: WCOpcode.RDMA_READ,
    WROpcode.ATOMIC_CMP_AND_SWP: WCOpcode.COMP_SWAP,
    WROpcode.ATOMIC_FETCH_AND_ADD: WCOpcode.FETCH_ADD,
    WROpcode.MASKED_ATOMIC_CMP_AND_SWP: WCOpcode.COMP_SWAP,
    WROpcode.MASKED_ATOMIC_FETCH_AND_ADD: WCOpcode.FETCH_ADD,
    WROpcode.BIND_MW: WCOpcode.BIND_MW,
    WROpcode.LOCAL_INV: WCOpcode.LOCAL_INV,
}
# Marks that the last packet of a message carries.
_LAST_MARKS: Final = {
    WROpcode.SEND_WITH_IMM: int(PacketFlag.IMMEDIATE),
    WROpcode.RDMA_WRITE_WITH_IMM: int(PacketFlag.IMMEDIATE),
    WROpcode.SEND_WITH_INV: int(PacketFlag.INVALIDATE),
}
_INVALIDATES: Final = {WROpcode.SEND_WITH_INV, WROpcode.LOCAL_INV}
_TAKES_RECEIVE: Final = {
    WROpcode.SEND, WROpcode.SEND_WITH_IMM, WROpcode.SEND_WITH_INV, WROpcode.RDMA_WRITE_WITH_IMM,
}  # fmt: skip
_CHANGES: Final = ATOMICS | {PacketKind.WRITE}


class SendRequest:
    """One posted send work request, copied: the caller may reuse its record.

    PSNs and message numbers are counted without wrapping.
    """

    __slots__ = (
        "ah", "bind", "boundary", "compare_add", "compare_mask", "failed", "flags", "immediate",
        "inline", "is_answered", "is_placed", "kind", "length", "msn", "on_detach", "opcode",
        "portions_left", "psn", "psn_count", "received", "remote_addr", "remote_qkey",
        "remote_qpn", "rkey", "sent", "sg", "signalled", "swap", "swap_mask", "unanswered",
        "window", "wr_id",
    )  # fmt: skip

    def __init__(
        self,
        wr: SendWR,
        *,
        signalled: bool,
        inline: bytes | memoryview | None,
        on_detach: Callable[[], None] | None = None,
    ) -> None:
        self.wr_id = wr.wr_id
        self.opcode = wr.opcode
        self.flags = int(wr.send_flags)
        self.sg = tuple(wr.sg)
        self.immediate = wr.invalidate_rkey if wr.opcode in _INVALIDATES else wr.imm_data
        self.remote_addr, self.rkey = wr.remote_addr, wr.rkey
        self.compare_add, self.swap = wr.compare_add, wr.swap
        self.compare_mask, self.swap_mask = wr.compare_mask, wr.swap_mask
        self.boundary = wr.boundary
        self.ah, self.remote_qpn, self.remote_qkey = wr.ah, wr.remote_qpn, wr.remote_qkey
        self.window, self.bind = wr.window, wr.bind
        self.kind = _KIND.get(wr.opcode)  # None: carried out here, without packets
        self.length = wr.message_bytes
        self.signalled = signalled
        self.inline = inline  # bytes that no key stands for: a copy, or the caller's own
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
    def takes_receive(self) -> bool:
        """Return whether it consumes a receive of the peer."""
        return self.opcode in _TAKES_RECEIVE

    @property
    def is_overtakable(self) -> bool:
        """Return whether bytes that a provider places itself could land before its own."""
        return self.kind in _CHANGES and not self.is_placed and self.length > 0

    def start(self, psn: int, msn: int, psn_count: int) -> None:
        """Assign its numbers; it is in flight from here on."""
        self.psn, self.msn, self.psn_count = psn, msn, psn_count
        self.unanswered = psn_count

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


def copy_inline(wr: SendWR, keys: KeyTable, pd: object) -> bytes | memoryview | None:
    """Return what a request carries outside its pieces: a copy with INLINE. Raises AccessError.

    Without the flag, the request's own data is used as it is. `None`: the bytes stay in the
    pieces until they are sent.
    """
    if wr.data is not None:
        return bytes(wr.data) if int(wr.send_flags) & _INLINE else wr.data
    if not int(wr.send_flags) & _INLINE:
        return None
    return bytes(keys.gather(pd, wr.sg, 0, total_bytes(wr.sg)))


def psn_count(request: SendRequest, link: LinkTraits, mtu_bytes: int) -> int:
    """Return how many PSNs a request takes: one per packet, of a read one per response."""
    if request.is_placed or request.kind in ATOMICS:
        return 1
    if request.kind is PacketKind.READ_REQUEST and link.lossless:
        return 1
    return max(1, -(-request.length // mtu_bytes))


def build_data(
    request: SendRequest, psn: int, payload: BytesLike, *, target_qpn: int, mtu_bytes: int
) -> Packet:
    """Return the packet of a SEND or WRITE that has the given PSN."""
    index = psn - request.psn
    offset = index * mtu_bytes
    bits = 0 if index else _FIRST
    if (is_last := index == request.psn_count - 1) or (index + 1) % ACK_EVERY_PACKETS == 0:
        bits |= _ACK_REQUEST
    packet = Packet(PacketKind.SEND, target_qpn, psn & PSN_MASK, offset=offset, payload=payload)
    if request.kind is PacketKind.WRITE:
        packet.kind = PacketKind.WRITE
        packet.address = request.remote_addr + offset & _ADDRESS_MASK
        packet.rkey = request.rkey
    if request.takes_receive:
        packet.msn = request.msn & _MSN_MASK
    marks = _LAST_MARKS.get(request.opcode, 0)
    # SendFlag and PacketFlag name the same mark by different bits.
    if request.flags & _SOLICITED:
        marks |= int(PacketFlag.SOLICITED)
    if is_last:
        bits |= _LAST | marks
    elif request.kind is PacketKind.SEND:
        packet.announced = _FLAGS[marks]
    if (bits | int(packet.announced)) & _WITH_IMMEDIATE:
        packet.immediate = request.immediate
    if request.is_placed:
        bits |= int(PacketFlag.PLACED)
        packet.length = request.length
    packet.flags = _FLAGS[bits]
    return packet


def build_read(
    request: SendRequest, psn: int, count: int, *, target_qpn: int, mtu_bytes: int
) -> Packet:
    """Return a READ_REQUEST for the bytes of `count` PSNs, the whole rest if that is all."""
    offset = (psn - request.psn) * mtu_bytes
    is_rest = psn + count == request.psn + request.psn_count
    return Packet(
        PacketKind.READ_REQUEST,
        target_qpn,
        psn & PSN_MASK,
        _FLAGS[_FIRST | _LAST | _ACK_REQUEST],
        length=request.length - offset if is_rest else count * mtu_bytes,
        address=request.remote_addr + offset & _ADDRESS_MASK,
        rkey=request.rkey,
    )


def build_atomic(request: SendRequest, *, target_qpn: int) -> Packet:
    """Return the packet of an atomic operation."""
    kind = request.kind
    assert kind is not None
    packet = Packet(
        kind,
        target_qpn,
        request.psn & PSN_MASK,
        _FLAGS[_FIRST | _LAST | _ACK_REQUEST],
        address=request.remote_addr,
        rkey=request.rkey,
        compare_add=request.compare_add,
    )
    # What the opcode does not use is ignored, whatever its request says.
    if kind is PacketKind.MASKED_ADD:
        packet.boundary = request.boundary
    elif kind is not PacketKind.ATOMIC_ADD:
        packet.swap = request.swap
    if kind is PacketKind.MASKED_SWAP:
        packet.compare_mask, packet.swap_mask = request.compare_mask, request.swap_mask
    return packet


ATOMIC_BYTES = 8

_OPCODES = frozenset(WROpcode)
_DATAGRAM = {WROpcode.SEND, WROpcode.SEND_WITH_IMM}
_OPERANDS = {
    WROpcode.ATOMIC_CMP_AND_SWP: ("compare_add", "swap"),
    WROpcode.ATOMIC_FETCH_AND_ADD: ("compare_add",),
    WROpcode.MASKED_ATOMIC_CMP_AND_SWP: ("compare_add", "swap", "compare_mask", "swap_mask"),
    WROpcode.MASKED_ATOMIC_FETCH_AND_ADD: ("compare_add", "boundary"),
}
_CARRIES = frozenset(
    {
        WROpcode.SEND,
        WROpcode.SEND_WITH_IMM,
        WROpcode.SEND_WITH_INV,
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_WRITE_WITH_IMM,
    }
)
_BRINGS_DATA = {*_OPERANDS, WROpcode.RDMA_READ}


def check_send(wr: SendWR, qp_type: QPType, cap: QPCap, attr: QPAttr, link: LinkTraits) -> None:
    """Check a send work request. Raises OSError: EINVAL."""
    if wr.opcode not in _OPCODES:
        raise _invalid(f"opcode {wr.opcode!r}")
    if wr.data is not None:
        _check_bytes(wr)
    length = wr.message_bytes
    if len(wr.sg) > cap.max_send_sge:
        raise _invalid(f"send of {len(wr.sg)} pieces, limit {cap.max_send_sge} (max_send_sge)")
    for piece in wr.sg:
        if piece.length < 0:
            raise _invalid("a piece of negative length")
    if length > MESSAGE_BYTES_MAX:
        raise _invalid(f"message of {length} bytes, limit {MESSAGE_BYTES_MAX}")
    if int(wr.send_flags) & _INLINE:
        if wr.opcode in _BRINGS_DATA:
            raise _invalid(f"{wr.opcode.name} cannot be inline")
        if length > cap.max_inline_data:
            raise _invalid(f"{length} bytes inline, limit {cap.max_inline_data} (max_inline_data)")
    if qp_type is QPType.UD:
        _check_datagram(wr, length, link)
    else:
        _check_connected(wr, length, attr)


def _check_bytes(wr: SendWR) -> None:
    """Check data that a request brings itself: of a SEND or WRITE, and plain bytes."""
    if wr.opcode not in _CARRIES:
        raise _invalid(f"{wr.opcode.name} with data of its own")
    data = wr.data
    if isinstance(data, memoryview):
        if data.format != "B" or data.ndim != 1 or not data.contiguous:
            raise _invalid(
                f"bytes of format {data.format!r}, {data.ndim} dimensions: not plain bytes"
            )
    elif not isinstance(data, bytes):
        raise _invalid(f"bytes of type {type(data).__name__}, neither bytes nor memoryview")


def _check_datagram(wr: SendWR, length: int, link: LinkTraits) -> None:
    if wr.opcode not in _DATAGRAM:
        raise _invalid(f"{wr.opcode.name} on a datagram queue pair")
    if wr.ah is None:
        raise _invalid("datagram without an address handle")
    if length > link.mtu_bytes:
        raise _invalid(f"datagram of {length} bytes, limit {link.mtu_bytes} (mtu)")


def _check_connected(wr: SendWR, length: int, attr: QPAttr) -> None:
    if wr.opcode in _BRINGS_DATA and not attr.max_rd_atomic:
        raise _invalid(f"{wr.opcode.name} with max_rd_atomic 0")
    if (operands := _OPERANDS.get(wr.opcode)) is not None:
        _check_atomic(wr, length, operands)
    if wr.opcode is WROpcode.BIND_MW and not (
        wr.window is not None and isinstance(wr.bind, WindowBinding)
    ):
        raise _invalid("BIND_MW without a window and its WindowBinding")


def _check_atomic(wr: SendWR, length: int, operands: tuple[str, ...]) -> None:
    if length != ATOMIC_BYTES:
        raise _invalid(f"room of {length} bytes for an atomic result of {ATOMIC_BYTES}")
    for name in operands:
        if not 0 <= (value := getattr(wr, name)) <= CELL_MASK:
            raise _invalid(f"{name} {value:#x} of {wr.opcode.name} outside 64 bits")


def _invalid(message: str) -> OSError:
    return OSError(errno.EINVAL, message)
