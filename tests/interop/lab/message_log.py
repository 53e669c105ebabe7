"""Every message that crossed the wire, and how far: the evidence of `judge`.

Reads a recording of the wire, puts each direction of each TCP connection together again and splits
it into RDS frames. What a host got is what was forwarded to it before a reset was; what its TCP
acknowledged is taken from its own segments. Shares no line with `urds`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .agent import GUEST_ADDRESS
from .wire import ACK, PCAP_FRAME, PCAP_HEADER, RST, SEQUENCE_SPACE, SYN, Direction, Segment

# sequence, ack, length, source port, target port, flags; source: linux v6.12 net/rds/rds.h
HEADER = struct.Struct(">QQIHHB23x")
MAP_FLAGS, REPEATED = 0x01, 0x04
WINDOW_BYTES = 8 << 20  # more than a host lets be on its way
NUMBER = struct.Struct(">I")  # the first bytes of a message of the workload
GUEST_BYTES = bytes(map(int, GUEST_ADDRESS.split(".")))


@dataclass(slots=True)
class Transmission:
    """One message, map or ping as it began to cross the wire on one connection."""

    direction: Direction
    connection: int  # connections count from 0 in the order of their first segments
    sequence: int
    flags: int
    target_port: int
    payload_bytes: int
    end_bytes: int  # position in its stream where it ends, or would end
    welcome: bool  # a frame of its receiver had come on this connection when it began
    crossed_bytes: int = 0  # payload bytes that crossed
    number: int | None = None  # of the workload; None where too little crossed
    place: int | None = None  # among all that crossed whole; None if it did not
    acknowledged: bool = False  # whole, by the receiver's TCP

    @property
    def whole(self) -> bool:
        """Say whether all bytes crossed."""
        return self.place is not None

    @property
    def repeated(self) -> bool:
        """Say whether it is flagged as sent before."""
        return bool(self.flags & REPEATED)

    def __str__(self) -> str:
        state = "whole" if self.whole else f"{self.crossed_bytes} of {self.payload_bytes} bytes"
        said = " repeated" * self.repeated + " acknowledged" * self.acknowledged
        return f"connection {self.connection}: sequence {self.sequence} {state}{said}"


@dataclass(slots=True)
class _Half:
    """One direction of a connection: its bytes in order, and the frames in them."""

    base: int  # TCP's sequence number of the first byte
    byte_count: int = 0  # in order until here
    acknowledged_bytes: int = 0
    early: dict[int, bytes] = field(default_factory=dict)  # by position, behind a gap
    header: bytearray = field(default_factory=bytearray)
    current: Transmission | None = None
    frames: list[Transmission] = field(default_factory=list)

    def position(self, sequence: int) -> int:
        """Return where in the stream a TCP sequence number stands, near what was seen."""
        ahead = (sequence - self.base - self.byte_count) % SEQUENCE_SPACE
        near = ahead if ahead < SEQUENCE_SPACE // 2 else ahead - SEQUENCE_SPACE
        return self.byte_count + near

    def is_near(self, sequence: int) -> bool:
        """Say whether a sequence number is one of this stream, not of one before it."""
        position = self.position(sequence)
        return 0 <= position <= self.byte_count + WINDOW_BYTES

    def take(self, segment: Segment) -> bytes:
        """Return the bytes that continue the stream, those that came early among them."""
        self.early[self.position(segment.sequence)] = segment.payload
        fresh = bytearray()
        for start in sorted(self.early):
            reached = self.byte_count + len(fresh)
            if start > reached:
                break
            fresh += self.early.pop(start)[reached - start :]
        return bytes(fresh)


class MessageLog:
    """All transmissions of one recording, in the order in which they began."""

    def __init__(self) -> None:
        self.transmissions: list[Transmission] = []
        self._open: dict[tuple[bytes, int, int], dict[Direction, _Half]] = {}
        self._connections: dict[tuple[bytes, int, int], int] = {}
        self._count = 0
        self._whole = 0

    @classmethod
    def read(cls, recording: Path) -> "MessageLog":
        """Read a capture file of the wire."""
        log = cls()
        for frame in _frames(recording.read_bytes()):
            if segment := Segment.parse(frame):
                log.add(segment)
        return log

    def add(self, segment: Segment) -> None:
        """Enter one segment that was forwarded."""
        to_guest = segment.ip[16:20] == GUEST_BYTES
        direction = Direction.TO_GUEST if to_guest else Direction.TO_HOST
        ports = segment.source_port, segment.target_port
        host = segment.ip[12:16] if to_guest else segment.ip[16:20]
        key = (host, *(ports if to_guest else ports[::-1]))
        if segment.flags & SYN:
            self._begin(key, direction, segment)
            return
        halves = self._open.get(key, {})
        if segment.flags & RST:
            # It is read no more; its acknowledgement may be the wire's invention. Not so where
            # it answers a late segment of an earlier connection with the same ports.
            if (half := halves.get(direction)) and half.is_near(segment.sequence):
                del self._open[key]
            return
        if (back := halves.get(direction.back)) and segment.flags & ACK:
            _acknowledge(back, segment.acknowledged)
        if (half := halves.get(direction)) and segment.payload:
            self._read(half, half.take(segment), direction, self._connections[key], back)

    def _begin(self, key: tuple[bytes, int, int], direction: Direction, segment: Segment) -> None:
        """Open the half that a SYN announces; the first SYN of two makes the connection."""
        base = (segment.sequence + 1) % SEQUENCE_SPACE
        halves = self._open.get(key, {})
        if not segment.flags & ACK and (direction not in halves or halves[direction].base != base):
            halves = self._open[key] = {}
            self._connections[key] = self._count
            self._count += 1
        halves.setdefault(direction, _Half(base))

    def _read(
        self, half: _Half, data: bytes, direction: Direction, connection: int, back: _Half | None
    ) -> None:
        """Split bytes that continue the stream into frames."""
        start = 0
        while start < len(data) or (half.current and not _missing(half.current)):
            frame = half.current
            if frame is None:
                part = data[start : start + HEADER.size - len(half.header)]
                half.header += part
                start += len(part)
                half.byte_count += len(part)
                if len(half.header) == HEADER.size:
                    half.current = self._frame(half, direction, connection, back)
                continue
            part = data[start : start + _missing(frame)]
            if frame.crossed_bytes < NUMBER.size <= frame.crossed_bytes + len(part):
                # The number may come in two pieces; the header's buffer holds the first.
                first = bytes(half.header) + part
                frame.number = NUMBER.unpack_from(first)[0]
            elif frame.crossed_bytes < NUMBER.size:
                half.header += part
            frame.crossed_bytes += len(part)
            start += len(part)
            half.byte_count += len(part)
            if not _missing(frame):
                frame.place = self._whole
                self._whole += 1
                half.current = None
                half.header.clear()

    def _frame(
        self, half: _Half, direction: Direction, connection: int, back: _Half | None
    ) -> Transmission:
        sequence, _, payload_bytes, _, target_port, flags = HEADER.unpack(half.header)
        half.header.clear()
        frame = Transmission(
            direction=direction,
            connection=connection,
            sequence=sequence,
            flags=flags,
            target_port=target_port,
            payload_bytes=payload_bytes,
            end_bytes=half.byte_count + payload_bytes,
            welcome=back is not None and any(sent.whole for sent in back.frames[:1]),
        )
        half.frames.append(frame)
        if flags != MAP_FLAGS:
            self.transmissions.append(frame)
        return frame


def _missing(frame: Transmission) -> int:
    return frame.payload_bytes - frame.crossed_bytes


def _acknowledge(half: _Half, sequence: int) -> None:
    """Mark the frames of `half` that an acknowledgement covers."""
    reached = half.position(sequence)
    if reached <= half.acknowledged_bytes or reached > half.byte_count:
        return
    half.acknowledged_bytes = reached
    for frame in reversed(half.frames):
        if frame.acknowledged:
            break
        frame.acknowledged = frame.whole and frame.end_bytes <= reached


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield the frames of a capture file; a last one that is not whole is left out."""
    start = PCAP_HEADER.size
    while start + PCAP_FRAME.size <= len(data):
        *_, frame_bytes, _ = PCAP_FRAME.unpack_from(data, start)
        start += PCAP_FRAME.size
        if start + frame_bytes <= len(data):
            yield data[start : start + frame_bytes]
        start += frame_bytes
