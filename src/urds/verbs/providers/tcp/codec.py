"""The engine's packets as FPDUs and back: both directions of a stream, without the stream.

Packet numbers are not sent: both ends count request packets. Where the engine goes back, a RESUME
tells a `urds` peer. Towards another iWARP peer nothing private is sent: ACKs are dropped, a NAK
becomes the TERMINATE that ends the stream, and a request counts as acknowledged when its bytes
have been passed to TCP (`confirm`). docs/adr/0007.

Every violation of the stream's rules is rejected by the decoder with the code of a TERMINATE; the
engine checks the requests (keys, bounds, rights). Payloads are views of the buffer that was parsed.
"""

from dataclasses import dataclass
from typing import Final

from urds.common.types import BytesLike
from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.providers.tcp import fpdu
from urds.verbs.providers.tcp.fpdu import (
    Fpdu,
    FpduMark,
    Opcode,
    Queue,
    StreamBroken,
    TerminateCode,
    header_of,
    parse_fpdu,
    tagged_header,
    trailer,
    untagged_header,
)

JOINED_BYTES_MAX: Final = 4096  # a payload up to here is copied behind its header: one piece less
_STAG_FIRST: Final = 0x100
_MASK_32: Final = 0xFFFF_FFFF
_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF
# Flags as plain integers, and each combination once: building or combining those of an enum costs
# as much as packing a header, and more than parsing one.
_FLAGS: Final = tuple(PacketFlag(bits) for bits in range(int(sum(PacketFlag)) + 1))
_FIRST: Final = int(PacketFlag.FIRST)
_LAST: Final = int(PacketFlag.LAST)
_SOLICITED: Final = int(PacketFlag.SOLICITED)
_ACK_REQUEST: Final = int(PacketFlag.ACK_REQUEST)
_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE)
_INVALIDATE: Final = int(PacketFlag.INVALIDATE)
_ONLY: Final = _FIRST | _LAST
_HAS_WORD: Final = _IMMEDIATE | _INVALIDATE
_SEND_KIND: Final = _HAS_WORD | _SOLICITED
_MARK_ACK_REQUEST: Final = int(FpduMark.ACK_REQUEST)
_MARK_IMMEDIATE_FOLLOWS: Final = int(FpduMark.IMMEDIATE_FOLLOWS)
_MESSAGE_OF_SENDS: Final = 1
_MESSAGE_OF_WRITES: Final = 2

# The opcode of each kind of SEND, and back: what it adds to the last packet of its message.
_SEND_OPCODE: Final = {
    0: int(Opcode.SEND),
    _INVALIDATE: int(Opcode.SEND_INVALIDATE),
    _SOLICITED: int(Opcode.SEND_SOLICITED),
    _SOLICITED | _INVALIDATE: int(Opcode.SEND_SOLICITED_INVALIDATE),
    _IMMEDIATE: int(Opcode.SEND_WITH_IMMEDIATE),
    _SOLICITED | _IMMEDIATE: int(Opcode.SEND_SOLICITED_WITH_IMMEDIATE),
}
_SEND_FLAGS: Final = {opcode: bits for bits, opcode in _SEND_OPCODE.items()}
# Kinds of an atomic operation whose masks make no difference, and of one whose masks do.
_SWAPS: Final = (PacketKind.ATOMIC_SWAP, PacketKind.MASKED_SWAP)
_ADDS: Final = (PacketKind.ATOMIC_ADD, PacketKind.MASKED_ADD)
_URDS_ONLY: Final = frozenset(range(Opcode.IMMEDIATE, Opcode.NOTICE + 1))
_RNR_NAK: Final = int(Syndrome.RNR_NAK)
_NAKS: Final = 0x60  # bits that a positive answer lacks

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


# -- reads and atomics in flight


@dataclass(slots=True)
class OutboundRead:
    """A read of ours: its response comes under a unique STag."""

    psn: int
    read_bytes: int
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class InboundRead:
    """A read of the peer: where our response goes."""

    sink_stag: int
    sink_offset: int


def is_before(psn: int, other: int) -> bool:
    """Return whether a packet number lies before another, in 24 bits."""
    return bool((psn - other) & (PSN_MASK + 1) >> 1)


class OutstandingReads:
    """Reads and atomics in flight on one stream, shared by both directions.

    Our requests wait for responses of the peer (`outbound`), the peer's for ours (`inbound`). iWARP
    names a response by the STag that its request gave; the engine names it by the request's packet
    number. This table maps the two, and it is bounded: by the engine's limit for ours, by the
    negotiated number of reads (IRD) for the peer's.
    """

    def __init__(self, *, inbound_max: int) -> None:
        self._inbound_max = inbound_max
        self._stag_next = _STAG_FIRST
        self.outbound: dict[int, OutboundRead] = {}  # by sink STag, oldest first
        self.outbound_atomics: set[int] = set()  # packet numbers, which are their identifiers
        self.inbound: dict[int, InboundRead] = {}  # by packet number
        self.inbound_atomics: dict[int, int] = {}  # packet number: identifier

    def ask(self, psn: int, read_bytes: int) -> int:
        """Record a read of ours; return the STag for its response, a new one each time."""
        stag = self._stag_next
        self._stag_next = _STAG_FIRST if stag == _MASK_32 else stag + 1
        self.outbound[stag] = OutboundRead(psn, read_bytes)
        return stag

    def oldest_outbound(self) -> int | None:
        """Return the packet number of our oldest incomplete read."""
        return next((read.psn for read in self.outbound.values()), None)

    def reserve_inbound(self, psn: int) -> None:
        """Check for room for one more request of the peer. Raises StreamBroken beyond the limit."""
        if psn in self.inbound or psn in self.inbound_atomics:
            return
        if len(self.inbound) + len(self.inbound_atomics) >= self._inbound_max:
            raise StreamBroken(
                TerminateCode.UNTAGGED_NO_BUFFER, f"more than {self._inbound_max} reads at once"
            )

    def rewind_outbound(self, psn: int) -> None:
        """Forget our requests from `psn` on, before they are sent again."""
        self.outbound = {
            stag: read for stag, read in self.outbound.items() if is_before(read.psn, psn)
        }
        self.outbound_atomics = {asked for asked in self.outbound_atomics if is_before(asked, psn)}

    def rewind_inbound(self, psn: int) -> None:
        """Forget the peer's requests from `psn` on: it sends them again."""
        self.inbound = {key: read for key, read in self.inbound.items() if is_before(key, psn)}
        self.inbound_atomics = {
            key: identifier
            for key, identifier in self.inbound_atomics.items()
            if is_before(key, psn)
        }


# -- sending


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
        self.reads = reads
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
                syndrome = Syndrome.NAK_INVALID_REQUEST
                return Packet(PacketKind.ACK, 0, psn=packet.psn, syndrome=syndrome)
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
        payload = fpdu.emit_terminate(code, header)
        self._untagged(Opcode.TERMINATE, Queue.TERMINATE, payload, out)

    def emit_farewell(self, out: list[BytesLike]) -> None:
        """Append the notice of a disconnect; only for `urds` peers."""
        if self._urds_peer:
            self._untagged(Opcode.NOTICE, Queue.PRIVATE, b"", out, word=Notice.FAREWELL)

    def emit_empty_write(self, out: list[BytesLike]) -> None:
        """Append an empty write: the first frame that lets a plain responder send."""
        self._append(tagged_header(Opcode.WRITE, 0, 0, 0, is_last=True), b"", out)

    def confirm(self, bytes_sent: int) -> Packet | None:
        """Return the acknowledgement that a plain peer never sends, once TCP has the bytes.

        It stops before our oldest read: what is behind completes after the read has.
        """
        psn = None
        limit = self.reads.oldest_outbound()
        while self._handed and self._handed[0][0] <= bytes_sent:
            if limit is not None and not is_before(self._handed[0][1], limit):
                break
            psn = self._handed.pop(0)[1]
        if psn is None:
            return None
        return Packet(PacketKind.ACK, 0, psn=psn, syndrome=Syndrome.ACK)

    # -- requests

    def _count_request(self, packet: Packet, out: list[BytesLike]) -> None:
        if packet.psn != self._psn:
            assert self._urds_peer, "an engine without negative answers never goes back"
            self.reads.rewind_outbound(packet.psn)
            payload = fpdu.emit_resume(packet.psn, packet.offset)
            self._untagged(Opcode.NOTICE, Queue.PRIVATE, payload, out, word=Notice.RESUME)
        self._psn = packet.psn + 1 & PSN_MASK

    def _marks(self, bits: int) -> int:
        return _MARK_ACK_REQUEST if self._urds_peer and bits & _ACK_REQUEST else 0

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
                marks |= _MARK_IMMEDIATE_FOLLOWS
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
            data = fpdu.IMMEDIATE.pack(packet.immediate)
            header = untagged_header(
                opcode, Queue.SEND, packet.msn, 0, len(data), marks=self._marks(bits)
            )
            self._append(header, data, out)

    def _emit_read_request(self, packet: Packet, out: list[BytesLike]) -> None:
        stag = self.reads.ask(packet.psn, packet.length)
        request = fpdu.ReadRequest(stag, 0, packet.length, packet.rkey, packet.address)
        self._untagged(Opcode.READ_REQUEST, Queue.REQUEST, request.emit(), out)

    def _emit_atomic_request(self, packet: Packet, out: list[BytesLike]) -> None:
        self.reads.outbound_atomics.add(packet.psn)
        is_swap = packet.kind in _SWAPS
        request = fpdu.AtomicRequest(
            fpdu.COMPARE_SWAP if is_swap else fpdu.FETCH_ADD,
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
        inbound = self.reads.inbound.get(packet.psn)
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
            del self.reads.inbound[packet.psn]

    def _emit_atomic_response(self, packet: Packet, out: list[BytesLike]) -> None:
        identifier = self.reads.inbound_atomics.pop(packet.psn, None)
        if identifier is None:
            return  # as above
        payload = fpdu.ATOMIC_RESPONSE.pack(identifier, packet.compare_add)
        self._untagged(Opcode.ATOMIC_RESPONSE, Queue.ATOMIC_RESPONSE, payload, out)

    def _emit_answer(self, packet: Packet, out: list[BytesLike]) -> None:
        if self._urds_peer:
            word = packet.syndrome << 24 | packet.psn
            payload = fpdu.ANSWER.pack(packet.msn)
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
            "between urds nodes a packet is one segment, for both count packets"
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


# -- receiving


@dataclass(frozen=True, slots=True)
class Terminated:
    """The peer terminated the stream: layer, type and code."""

    code: int


@dataclass(frozen=True, slots=True)
class Farewell:
    """The peer disconnects; the end of the stream follows."""


Taken = Packet | Terminated | Farewell | None


class Decoder:
    """Turns FPDUs into packets, in the order of their arrival."""

    def __init__(
        self, reads: OutstandingReads, *, target_qpn: int, urds_peer: bool, crc: bool, psn: int = 0
    ) -> None:
        self._reads = reads
        self._qpn = target_qpn
        self._urds_peer = urds_peer
        self._crc = crc
        self._psn = psn  # of the next request packet
        self._message = 0  # which kind of message is under way; 0: between two
        self._offset = 0  # bytes of that message so far
        self._msn: int | None = 1  # of the message under way or next; None: the next one tells
        self._counts = [0] * len(Queue)
        self.wrote_last = False  # the last request was a write: names a TERMINATE's layer

    def take(self, data: memoryview) -> tuple[Taken, int]:
        """Read one packet from the front; return it and its length, 0 while bytes are missing.

        Frames that carry no packet return `None` and their length. Raises StreamBroken.
        """
        found = parse_fpdu(data, crc=self._crc)
        if found is None:
            return None, 0
        frame, frame_bytes = found
        try:
            if (
                frame.marks & _MARK_IMMEDIATE_FOLLOWS
                and self._urds_peer
                and frame.opcode == Opcode.WRITE
            ):
                return self._take_pair(frame, data, frame_bytes)
            return self._handle(frame), frame_bytes
        except StreamBroken as broken:
            broken.header = broken.header or header_of(data)
            raise

    def _take_pair(self, frame: Fpdu, data: memoryview, frame_bytes: int) -> tuple[Taken, int]:
        """Read a write and its immediate data as one packet of the engine."""
        found = parse_fpdu(data[frame_bytes:], crc=self._crc)
        if found is None:
            return None, 0
        second, second_bytes = found
        if second.opcode not in (Opcode.IMMEDIATE, Opcode.IMMEDIATE_SOLICITED):
            raise StreamBroken(
                TerminateCode.REMOTE_OPCODE, f"opcode {second.opcode}, not immediate data"
            )
        packet = self._write(frame)
        self._add_immediate(packet, second)
        return packet, frame_bytes + second_bytes

    def _handle(self, frame: Fpdu) -> Taken:
        opcode = frame.opcode
        if opcode in _URDS_ONLY and not self._urds_peer:
            raise StreamBroken(TerminateCode.REMOTE_OPCODE, f"opcode {opcode}, not negotiated")
        if opcode == Opcode.WRITE:
            return self._write(frame)
        if opcode == Opcode.READ_RESPONSE:
            return self._read_response(frame)
        if opcode in _SEND_FLAGS:
            return self._send(frame)
        if opcode in (Opcode.IMMEDIATE, Opcode.IMMEDIATE_SOLICITED):
            return self._immediate(frame)
        if opcode < 0:
            return None
        if opcode == Opcode.TERMINATE:
            return Terminated(fpdu.parse_terminate(frame.payload))
        self._check_single(frame)
        return self._handle_single(frame)

    def _handle_single(self, frame: Fpdu) -> Taken:
        opcode = frame.opcode
        if opcode == Opcode.ANSWER:
            return self._answer(frame)
        if opcode == Opcode.READ_REQUEST:
            return self._read_request(frame)
        if opcode == Opcode.ATOMIC_REQUEST:
            return self._atomic_request(frame)
        if opcode == Opcode.ATOMIC_RESPONSE:
            return self._atomic_response(frame)
        return self._notice(frame)

    # -- requests

    def _request(self, kind: PacketKind, frame: Fpdu, bits: int) -> Packet:
        """Return a request packet with the next number."""
        psn = self._psn
        self._psn = psn + 1 & PSN_MASK
        if self._urds_peer and frame.marks & _MARK_ACK_REQUEST:
            bits |= _ACK_REQUEST
        return Packet(kind, self._qpn, psn, _FLAGS[bits], payload=frame.payload)

    def _segment(self, frame: Fpdu, message: int) -> tuple[int, int]:
        """Track the messages of requests; return the segment's flags and place in its message."""
        if self._message not in (0, message):
            raise StreamBroken(
                TerminateCode.REMOTE_OPCODE, f"opcode {frame.opcode} inside another message"
            )
        offset = self._offset
        bits = 0 if offset or self._message else _FIRST
        if frame.is_last:
            bits |= _LAST
            self._message = self._offset = 0
        else:
            self._message = message
            self._offset = offset + len(frame.payload)
            if self._offset > _MASK_32:
                raise StreamBroken(TerminateCode.UNTAGGED_TOO_LONG, "message beyond 4 GiB")
        return bits, offset

    def _number(self, frame: Fpdu) -> None:
        """Check the message numbers of the SEND queue."""
        if self._msn is not None and frame.msn != self._msn:
            raise StreamBroken(
                TerminateCode.UNTAGGED_SEQUENCE, f"message {frame.msn}, not {self._msn}"
            )
        self._msn = frame.msn + 1 & _MASK_32 if frame.is_last else frame.msn

    def _send(self, frame: Fpdu) -> Packet:
        self._number(frame)
        bits, offset = self._segment(frame, _MESSAGE_OF_SENDS)
        if frame.offset != offset:
            raise StreamBroken(
                TerminateCode.UNTAGGED_OFFSET, f"message offset {frame.offset}, not {offset}"
            )
        if frame.is_last:
            bits |= _SEND_FLAGS[frame.opcode]
        self.wrote_last = False
        packet = self._request(PacketKind.SEND, frame, bits)
        packet.msn, packet.offset, packet.immediate = frame.msn, offset, frame.word
        return packet

    def _write(self, frame: Fpdu) -> Packet:
        bits, offset = self._segment(frame, _MESSAGE_OF_WRITES)
        self.wrote_last = True
        packet = self._request(PacketKind.WRITE, frame, bits)
        packet.offset, packet.rkey, packet.address = offset, frame.word, frame.offset
        return packet

    def _immediate(self, frame: Fpdu) -> Packet:
        """Read immediate data that came alone: of a write without bytes."""
        bits, _ = self._segment(frame, _MESSAGE_OF_WRITES)
        packet = self._request(PacketKind.WRITE, frame, bits)
        self._add_immediate(packet, frame)
        packet.payload = b""
        return packet

    def _add_immediate(self, packet: Packet, frame: Fpdu) -> None:
        self._check_single(frame, counted=False)
        bits = int(packet.flags) | _IMMEDIATE
        if frame.opcode == Opcode.IMMEDIATE_SOLICITED:
            bits |= _SOLICITED
        if not bits & _LAST:
            raise StreamBroken(TerminateCode.REMOTE_OPCODE, "immediate data inside a write")
        self._number(frame)
        packet.flags = _FLAGS[bits]
        packet.msn, packet.immediate = frame.msn, fpdu.parse_immediate(frame.payload)

    def _read_request(self, frame: Fpdu) -> Packet:
        request = fpdu.parse_read_request(frame.payload)
        packet = self._whole_request(PacketKind.READ_REQUEST, frame)
        self._reads.reserve_inbound(packet.psn)
        self._reads.inbound[packet.psn] = InboundRead(request.sink_stag, request.sink_offset)
        packet.length, packet.rkey = request.read_bytes, request.source_stag
        packet.address = request.source_offset
        return packet

    def _atomic_request(self, frame: Fpdu) -> Packet:
        request = fpdu.parse_atomic_request(frame.payload)
        is_swap = request.operation == fpdu.COMPARE_SWAP
        plain, masked = _SWAPS if is_swap else _ADDS
        packet = self._whole_request(plain if request.is_plain else masked, frame)
        self._reads.reserve_inbound(packet.psn)
        self._reads.inbound_atomics[packet.psn] = request.identifier
        packet.rkey, packet.address = request.stag, request.offset
        if is_swap:
            packet.compare_add, packet.swap = request.compare, request.operand
            packet.compare_mask, packet.swap_mask = request.compare_mask, request.mask
        else:
            packet.compare_add, packet.boundary = request.operand, request.mask
        return packet

    def _whole_request(self, kind: PacketKind, frame: Fpdu) -> Packet:
        if self._message:
            raise StreamBroken(
                TerminateCode.REMOTE_OPCODE, f"opcode {frame.opcode} inside another message"
            )
        self.wrote_last = False
        packet = self._request(kind, frame, _ONLY)
        packet.payload = b""
        return packet

    # -- answers

    def _read_response(self, frame: Fpdu) -> Packet:
        read = self._reads.outbound.get(frame.word)
        if read is None:
            raise StreamBroken(
                TerminateCode.TAGGED_INVALID_STAG, f"no read waits under STag {frame.word:#x}"
            )
        offset, payload_bytes = read.received_bytes, len(frame.payload)
        end = offset + payload_bytes
        if frame.offset != offset or end > read.read_bytes:
            raise StreamBroken(
                TerminateCode.TAGGED_BASE_BOUNDS,
                f"bytes {frame.offset} to {frame.offset + payload_bytes} of a read of"
                f" {read.read_bytes}, {offset} here",
            )
        if frame.is_last != (end == read.read_bytes):
            raise StreamBroken(
                TerminateCode.TAGGED_BASE_BOUNDS, f"{end} of {read.read_bytes} bytes, last or not"
            )
        bits = 0 if offset else _FIRST
        if frame.is_last:
            bits |= _LAST
            del self._reads.outbound[frame.word]
        read.received_bytes = end
        return Packet(
            PacketKind.READ_RESPONSE,
            self._qpn,
            psn=read.psn,
            flags=_FLAGS[bits],
            offset=offset,
            payload=frame.payload,
        )

    def _atomic_response(self, frame: Fpdu) -> Packet:
        identifier, value = fpdu.parse_atomic_response(frame.payload)
        if identifier not in self._reads.outbound_atomics:
            raise StreamBroken(
                TerminateCode.REMOTE_OPERATION, f"no atomic operation {identifier} waits"
            )
        self._reads.outbound_atomics.discard(identifier)
        return Packet(
            PacketKind.ATOMIC_RESPONSE,
            self._qpn,
            psn=identifier,
            flags=_FLAGS[_ONLY],
            compare_add=value,
        )

    def _answer(self, frame: Fpdu) -> Packet:
        return Packet(
            PacketKind.ACK,
            self._qpn,
            psn=frame.word & PSN_MASK,
            syndrome=frame.word >> 24,
            msn=fpdu.parse_answer(frame.payload),
        )

    def _notice(self, frame: Fpdu) -> Farewell | None:
        if frame.word == Notice.FAREWELL:
            return Farewell()
        if frame.word != Notice.RESUME:
            raise StreamBroken(TerminateCode.REMOTE_OPERATION, f"notice {frame.word}")
        psn, offset = fpdu.parse_resume(frame.payload)
        self._reads.rewind_inbound(psn)
        self._psn, self._offset, self._message, self._msn = psn, offset, 0, None
        return None

    def _check_single(self, frame: Fpdu, *, counted: bool = True) -> None:
        """Check a message that always is one segment, and its number on its queue."""
        if not frame.is_last or frame.offset:
            raise StreamBroken(
                TerminateCode.UNTAGGED_OFFSET, f"opcode {frame.opcode} in more than one segment"
            )
        if counted:
            self._counts[frame.queue] += 1
            if frame.msn != self._counts[frame.queue] & _MASK_32:
                raise StreamBroken(
                    TerminateCode.UNTAGGED_SEQUENCE,
                    f"message {frame.msn} of queue {frame.queue}, not {self._counts[frame.queue]}",
                )
