"""The engine's packets as FPDUs: the sending direction of a stream, without the stream.

Packet numbers are not sent: both ends count request packets. Where the engine goes back, a RESUME
tells a `urds` peer. Towards another iWARP peer nothing private is sent: ACKs are dropped, a NAK
becomes the TERMINATE that ends the stream, and a request counts as acknowledged when its bytes
have been passed to TCP (`confirm`). docs/adr/0007.
"""

from typing import Final

from urds.common.types import BytesLike
from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.providers.tcp import payloads
from urds.verbs.providers.tcp.fpdu import (
    FpduMark,
    Opcode,
    Queue,
    TerminateCode,
    tagged_header,
    trailer,
    untagged_header,
)
from urds.verbs.providers.tcp.outstanding_reads import OutstandingReads, is_before

JOINED_BYTES_MAX: Final = 4096  # a payload up to here is copied behind its header: one piece less
_MASK_32: Final = 0xFFFF_FFFF
_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF
# Flags as plain integers: combining those of an enum costs as much as packing a header.
_LAST: Final = int(PacketFlag.LAST)
_SOLICITED: Final = int(PacketFlag.SOLICITED)
_ACK_REQUEST: Final = int(PacketFlag.ACK_REQUEST)
_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE)
_INVALIDATE: Final = int(PacketFlag.INVALIDATE)
_HAS_WORD: Final = _IMMEDIATE | _INVALIDATE
_SEND_KIND: Final = _HAS_WORD | _SOLICITED
_SEND_OPCODE: Final = {
    0: int(Opcode.SEND),
    _INVALIDATE: int(Opcode.SEND_INVALIDATE),
    _SOLICITED: int(Opcode.SEND_SOLICITED),
    _SOLICITED | _INVALIDATE: int(Opcode.SEND_SOLICITED_INVALIDATE),
    _IMMEDIATE: int(Opcode.SEND_WITH_IMMEDIATE),
    _SOLICITED | _IMMEDIATE: int(Opcode.SEND_SOLICITED_WITH_IMMEDIATE),
}
_ASKS_FOR_ACK: Final = int(FpduMark.ACK_REQUEST)
_IMMEDIATE_FOLLOWS: Final = int(FpduMark.IMMEDIATE_FOLLOWS)
_RNR_NAK: Final = int(Syndrome.RNR_NAK)
_NAKS: Final = 0x60  # bits that a positive answer lacks
_SWAPS: Final = {PacketKind.ATOMIC_SWAP, PacketKind.MASKED_SWAP}

# The TERMINATE for a NAK of our responder, to a peer that knows no NAKs.
_TERMINATE_OF: Final = {
    (Syndrome.NAK_REMOTE_ACCESS, True): TerminateCode.TAGGED_BASE_BOUNDS,
    (Syndrome.NAK_REMOTE_ACCESS, False): TerminateCode.REMOTE_PROTECTION,
    (Syndrome.NAK_INVALID_REQUEST, True): TerminateCode.TAGGED_BASE_BOUNDS,
    (Syndrome.NAK_INVALID_REQUEST, False): TerminateCode.UNTAGGED_TOO_LONG,
}


class Notice:
    """Kinds of NOTICE, in RDMAP's word."""

    RESUME: Final = 1
    FAREWELL: Final = 2


class Encoder:
    """Turns packets into FPDUs, in the order of their emission."""

    def __init__(
        self,
        reads: OutstandingReads,
        *,
        urds_peer: bool,
        crc: bool,
        payload_bytes_max: int,
        psn: int = 0,
    ) -> None:
        self._reads = reads
        self._urds_peer = urds_peer
        self._crc = crc
        self._payload_bytes_max = payload_bytes_max
        self._psn = psn  # of the next request packet
        self._counts = [0] * len(Queue)  # messages emitted per untagged queue; SEND: by the engine
        self._handed: list[tuple[int, int]] = []  # (bytes emitted by then, packet number)
        self.bytes_emitted = 0
        self.is_terminated = False  # a TERMINATE is among what was emitted
        self.peer_wrote_last = False  # the rejected request of a plain peer was tagged

    def emit(self, packet: Packet, out: list[BytesLike]) -> Packet | None:
        """Append the FPDUs of a packet to `out`.

        Payloads beyond 4 KiB stay views of the packet's payload. A request that the peer cannot
        understand is not sent; the NAK for the engine is returned instead.
        """
        kind = packet.kind
        if kind <= PacketKind.MASKED_ADD:
            if not self._urds_peer and (
                kind >= PacketKind.ATOMIC_SWAP or int(packet.flags) & _IMMEDIATE
            ):
                return self._nak(packet)
            self._count_request(packet, out)
        if kind == PacketKind.SEND:
            self._emit_send(packet, out)
        elif kind == PacketKind.WRITE:
            self._emit_write(packet, out)
        elif kind == PacketKind.READ_REQUEST:
            self._emit_read_request(packet, out)
        elif kind == PacketKind.READ_RESPONSE:
            self._emit_read_response(packet, out)
        elif kind == PacketKind.ACK:
            self._emit_answer(packet, out)
        elif kind == PacketKind.ATOMIC_RESPONSE:
            self._emit_atomic_response(packet, out)
        else:
            self._emit_atomic_request(packet, out)
        if not self._urds_peer and kind < PacketKind.READ_REQUEST:
            self._handed.append((self.bytes_emitted, packet.psn))
        return None

    def emit_terminate(self, code: int, header: bytes, out: list[BytesLike]) -> None:
        """Append a TERMINATE."""
        self.is_terminated = True
        payload = payloads.emit_terminate(code, header)
        self._untagged(Opcode.TERMINATE, Queue.TERMINATE, payload, out)

    def emit_farewell(self, out: list[BytesLike]) -> None:
        """Append the notice of a disconnect; only for `urds` peers."""
        if self._urds_peer:
            self._untagged(Opcode.NOTICE, Queue.PRIVATE, b"", out, word=Notice.FAREWELL)

    def emit_empty_write(self, out: list[BytesLike]) -> None:
        """Append an empty write: the first frame that lets a plain responder send."""
        self._append(tagged_header(Opcode.WRITE, 0, 0, 0, is_last=True), b"", out)

    def oldest_outbound(self) -> int | None:
        """Return the packet number of our oldest read without its whole answer."""
        return self._reads.oldest_outbound()

    def confirm(self, bytes_sent: int) -> Packet | None:
        """Return the acknowledgement that a plain peer never sends, once TCP has the bytes.

        It stops before our oldest read: what is behind completes after the read has.
        """
        psn = None
        limit = self._reads.oldest_outbound()
        while self._handed and self._handed[0][0] <= bytes_sent:
            if limit is not None and not is_before(self._handed[0][1], limit):
                break
            psn = self._handed.pop(0)[1]
        if psn is None:
            return None
        return Packet(PacketKind.ACK, 0, psn=psn, syndrome=Syndrome.ACK)

    # -- requests

    def _nak(self, packet: Packet) -> Packet:
        return Packet(PacketKind.ACK, 0, psn=packet.psn, syndrome=Syndrome.NAK_INVALID_REQUEST)

    def _count_request(self, packet: Packet, out: list[BytesLike]) -> None:
        if packet.psn != self._psn:
            assert self._urds_peer, "an engine without negative answers never goes back"
            self._reads.rewind_outbound(packet.psn)
            payload = payloads.emit_resume(packet.psn, packet.offset)
            self._untagged(Opcode.NOTICE, Queue.PRIVATE, payload, out, word=Notice.RESUME)
        self._psn = packet.psn + 1 & PSN_MASK

    def _marks(self, bits: int) -> int:
        return _ASKS_FOR_ACK if self._urds_peer and bits & _ACK_REQUEST else 0

    def _emit_send(self, packet: Packet, out: list[BytesLike]) -> None:
        bits, word = int(packet.flags), 0
        # Every segment names the kind of its message: linux v6.12 siw rejects one that changes.
        kind = bits | int(packet.announced)
        opcode = _SEND_OPCODE[kind & _SEND_KIND]
        if kind & _HAS_WORD:
            word = packet.immediate
        is_end, marks = bool(bits & _LAST), self._marks(bits)
        for offset, payload, is_final in self._pieces(packet.payload):
            header = untagged_header(
                opcode,
                Queue.SEND,
                packet.msn,
                packet.offset + offset & _MASK_32,
                len(payload),
                word=word,
                is_last=is_end and is_final,
                marks=marks,
            )
            self._append(header, payload, out)

    def _emit_write(self, packet: Packet, out: list[BytesLike]) -> None:
        bits = int(packet.flags)
        is_end, marks = bool(bits & _LAST), self._marks(bits)
        has_immediate = bool(bits & _IMMEDIATE)
        # A write of nothing but immediate data is the immediate data alone.
        if packet.payload or packet.offset or not has_immediate:
            if has_immediate:
                marks |= _IMMEDIATE_FOLLOWS
            for offset, payload, is_final in self._pieces(packet.payload):
                to = packet.address + offset & _MASK_64
                header = tagged_header(
                    Opcode.WRITE,
                    packet.rkey,
                    to,
                    len(payload),
                    is_last=is_end and is_final,
                    marks=marks,
                )
                self._append(header, payload, out)
        if has_immediate:
            opcode = 9 if bits & _SOLICITED else 8
            data = payloads.emit_immediate(packet.immediate)
            header = untagged_header(
                opcode, Queue.SEND, packet.msn, 0, len(data), marks=self._marks(bits)
            )
            self._append(header, data, out)

    def _emit_read_request(self, packet: Packet, out: list[BytesLike]) -> None:
        stag = self._reads.ask(packet.psn, packet.length)
        request = payloads.ReadRequest(stag, 0, packet.length, packet.rkey, packet.address)
        self._untagged(Opcode.READ_REQUEST, Queue.REQUEST, request.emit(), out)

    def _emit_atomic_request(self, packet: Packet, out: list[BytesLike]) -> None:
        self._reads.outbound_atomics.add(packet.psn)
        is_swap = packet.kind in _SWAPS
        request = payloads.AtomicRequest(
            payloads.COMPARE_SWAP if is_swap else payloads.FETCH_ADD,
            packet.psn,
            packet.rkey,
            packet.address,
            packet.swap if is_swap else packet.compare_add,
            packet.swap_mask if is_swap else packet.boundary,
            packet.compare_add if is_swap else 0,
            packet.compare_mask if is_swap else 0,
        )
        self._untagged(Opcode.ATOMIC_REQUEST, Queue.REQUEST, request.emit(), out)

    # -- answers

    def _emit_read_response(self, packet: Packet, out: list[BytesLike]) -> None:
        inbound = self._reads.inbound.get(packet.psn)
        if inbound is None:
            return  # the peer has gone back before it: the response is not needed
        is_end = bool(int(packet.flags) & _LAST)
        for offset, payload, is_final in self._pieces(packet.payload):
            to = inbound.sink_offset + packet.offset + offset & _MASK_64
            header = tagged_header(
                Opcode.READ_RESPONSE,
                inbound.sink_stag,
                to,
                len(payload),
                is_last=is_end and is_final,
            )
            self._append(header, payload, out)
        if is_end:
            del self._reads.inbound[packet.psn]

    def _emit_atomic_response(self, packet: Packet, out: list[BytesLike]) -> None:
        identifier = self._reads.inbound_atomics.pop(packet.psn, None)
        if identifier is None:
            return  # as above
        payload = payloads.emit_atomic_response(identifier, packet.compare_add)
        self._untagged(Opcode.ATOMIC_RESPONSE, Queue.ATOMIC_RESPONSE, payload, out)

    def _emit_answer(self, packet: Packet, out: list[BytesLike]) -> None:
        if self._urds_peer:
            word = packet.syndrome << 24 | packet.psn
            payload = payloads.emit_answer(packet.msn)
            self._untagged(Opcode.ANSWER, Queue.PRIVATE, payload, out, word=word)
        elif packet.syndrome & _NAKS == _RNR_NAK:
            self.emit_terminate(TerminateCode.UNTAGGED_NO_BUFFER, b"", out)
        elif packet.syndrome & _NAKS:
            key = (Syndrome(packet.syndrome), self.peer_wrote_last)
            self.emit_terminate(_TERMINATE_OF.get(key, TerminateCode.REMOTE_OPERATION), b"", out)

    # -- bytes

    def _pieces(self, payload: BytesLike) -> list[tuple[int, BytesLike, bool]]:
        """Split a payload to what one FPDU may carry: (offset, bytes, is the last)."""
        total, step = len(payload), self._payload_bytes_max
        if total <= step:
            return [(0, payload, True)]
        assert not self._urds_peer, (
            "between own nodes a packet is one segment, for both count packets"
        )
        view = memoryview(payload)
        return [
            (start, view[start : start + step], start + step >= total)
            for start in range(0, total, step)
        ]

    def _untagged(
        self, opcode: int, queue: int, payload: bytes, out: list[BytesLike], *, word: int = 0
    ) -> None:
        self._counts[queue] += 1
        msn = self._counts[queue] & _MASK_32
        self._append(untagged_header(opcode, queue, msn, 0, len(payload), word=word), payload, out)

    def _append(self, header: bytes, payload: BytesLike, out: list[BytesLike]) -> None:
        end = trailer(header, payload, crc=self._crc)
        self.bytes_emitted += len(header) + len(payload) + len(end)
        if len(payload) <= JOINED_BYTES_MAX:
            out.append(b"".join((header, payload, end)))
        else:
            out += (header, payload, end)
