"""FPDUs as the engine's packets: the receiving direction of a stream, without the stream.

Every violation of the stream's rules is rejected here with the code of a TERMINATE; the engine
checks the requests (keys, bounds, rights). Payloads are views of the buffer that was parsed.
docs/adr/0007 lists what is private to `urds` peers.
"""

from dataclasses import dataclass
from typing import Final

from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.providers.tcp import payloads
from urds.verbs.providers.tcp.encoder import Notice
from urds.verbs.providers.tcp.fpdu import (
    Fpdu,
    FpduMark,
    Opcode,
    Queue,
    StreamBroken,
    TerminateCode,
    header_of,
    parse_fpdu,
)
from urds.verbs.providers.tcp.outstanding_reads import InboundRead, OutstandingReads

# Flags as plain integers, and each combination once: building those of an enum costs more than
# parsing a frame.
_FLAGS: Final = tuple(PacketFlag(bits) for bits in range(int(sum(PacketFlag)) + 1))
_FIRST: Final = int(PacketFlag.FIRST)
_LAST: Final = int(PacketFlag.LAST)
_SOLICITED: Final = int(PacketFlag.SOLICITED)
_ACK_REQUEST: Final = int(PacketFlag.ACK_REQUEST)
_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE)
_INVALIDATE: Final = int(PacketFlag.INVALIDATE)
_ONLY: Final = _FIRST | _LAST
_MARK_ACK_REQUEST: Final = int(FpduMark.ACK_REQUEST)
_MARK_IMMEDIATE_FOLLOWS: Final = int(FpduMark.IMMEDIATE_FOLLOWS)
_MASK_32: Final = 0xFFFF_FFFF
_MESSAGE_OF_SENDS: Final = 1
_MESSAGE_OF_WRITES: Final = 2

# What each kind of SEND adds to the last packet of its message, and who speaks it.
_SEND_FLAGS: Final = {
    int(Opcode.SEND): 0,
    int(Opcode.SEND_INVALIDATE): _INVALIDATE,
    int(Opcode.SEND_SOLICITED): _SOLICITED,
    int(Opcode.SEND_SOLICITED_INVALIDATE): _SOLICITED | _INVALIDATE,
    int(Opcode.SEND_WITH_IMMEDIATE): _IMMEDIATE,
    int(Opcode.SEND_SOLICITED_WITH_IMMEDIATE): _SOLICITED | _IMMEDIATE,
}
# Kinds of an atomic operation whose masks make no difference, and of one whose masks do.
_SWAPS: Final = (PacketKind.ATOMIC_SWAP, PacketKind.MASKED_SWAP)
_ADDS: Final = (PacketKind.ATOMIC_ADD, PacketKind.MASKED_ADD)
_URDS_ONLY: Final = frozenset(range(Opcode.IMMEDIATE, Opcode.NOTICE + 1))


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
            return Terminated(payloads.parse_terminate(frame.payload))
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
        packet.msn, packet.immediate = frame.msn, payloads.parse_immediate(frame.payload)

    def _read_request(self, frame: Fpdu) -> Packet:
        request = payloads.parse_read_request(frame.payload)
        packet = self._whole_request(PacketKind.READ_REQUEST, frame)
        self._reads.reserve_inbound(packet.psn)
        self._reads.inbound[packet.psn] = InboundRead(request.sink_stag, request.sink_offset)
        packet.length, packet.rkey = request.read_bytes, request.source_stag
        packet.address = request.source_offset
        return packet

    def _atomic_request(self, frame: Fpdu) -> Packet:
        request = payloads.parse_atomic_request(frame.payload)
        is_swap = request.operation == payloads.COMPARE_SWAP
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
        identifier, value = payloads.parse_atomic_response(frame.payload)
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
            msn=payloads.parse_answer(frame.payload),
        )

    def _notice(self, frame: Fpdu) -> Farewell | None:
        if frame.word == Notice.FAREWELL:
            return Farewell()
        if frame.word != Notice.RESUME:
            raise StreamBroken(TerminateCode.REMOTE_OPERATION, f"notice {frame.word}")
        psn, offset = payloads.parse_resume(frame.payload)
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
