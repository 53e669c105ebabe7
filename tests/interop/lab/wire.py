"""A wire in user space between the host's tap device and the guest, that can cut and block.

It forwards Ethernet frames. For TCP of the RDS port it follows both directions of each connection
and, when told to, ends the connection with a reset after an exact number of payload bytes: the
segment is shortened there, and each end gets a reset with the sequence number it expects, so that
neither can doubt it. It can also drop everything of that port: a silent outage. Other traffic is
left alone. It can record what it lets through, for `message_log`. It runs as a process of its
own: `wire.py TAP QEMU_SOCKET WIRE_SOCKET CONTROL_DESCRIPTOR`.
"""

import fcntl
import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tests.support.checksum import internet_checksum

RDS_PORT = 16385
FRAME_BYTES_MAX = 65536
SOCKET_BUFFER_BYTES = 8 << 20
SEQUENCE_SPACE = 1 << 32

# Source: linux v6.1 include/uapi/linux/if_tun.h
TUNSETIFF = 0x400454CA
IFF_TAP_NO_PI = 0x1002

ETHERNET_BYTES = 14
IPV4_TYPE = b"\x08\x00"
FIN, SYN, RST, PUSH, ACK = 1, 2, 4, 8, 16

# Source: draft-ietf-opsawg-pcap, sections 4 and 5: nanoseconds, Ethernet, this machine's order.
PCAP_MAGIC, PCAP_ETHERNET = 0xA1B23C4D, 1
PCAP_HEADER = struct.Struct("=IHHIIII")
PCAP_FRAME = struct.Struct("=IIII")


class Direction(StrEnum):
    """Which way a frame goes."""

    TO_GUEST = "to_guest"
    TO_HOST = "to_host"

    @property
    def back(self) -> "Direction":
        """Return the opposite direction."""
        return Direction.TO_HOST if self is Direction.TO_GUEST else Direction.TO_GUEST


@dataclass(frozen=True, slots=True)
class Orders:
    """What the wire shall do from now on."""

    cut_bytes_min: int = 0  # payload bytes of one direction between two cuts, both zero: none
    cut_bytes_max: int = 0
    reset: tuple[str, ...] = ("to_guest", "to_host")  # who is told of a cut
    block: tuple[str, ...] = ()  # directions in which the RDS port is silent
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Segment:
    """A TCP segment with what stands before it in its frame."""

    ethernet: bytes
    ip: bytes
    source_port: int
    target_port: int
    sequence: int
    acknowledged: int
    flags: int
    window: int
    options: bytes
    payload: bytes

    @property
    def sequence_next(self) -> int:
        """Return the sequence number after this segment; SYN and FIN count one."""
        data = len(self.payload) + bool(self.flags & SYN) + bool(self.flags & FIN)
        return (self.sequence + data) % SEQUENCE_SPACE

    @classmethod
    def parse(cls, frame: bytes) -> "Segment | None":
        """Read a frame; None if it is not TCP over IPv4 from or to the RDS port."""
        if len(frame) < 54 or frame[12:14] != IPV4_TYPE or frame[23] != socket.IPPROTO_TCP:
            return None
        tcp_start = ETHERNET_BYTES + (frame[14] & 15) * 4
        ip_bytes = int.from_bytes(frame[16:18], "big")
        fixed = struct.unpack_from(">HHIIBBH", frame, tcp_start)
        source_port, target_port, sequence, acknowledged, offset, flags, window = fixed
        if RDS_PORT not in (source_port, target_port):
            return None
        payload_start = tcp_start + (offset >> 4) * 4
        return cls(
            ethernet=frame[:ETHERNET_BYTES],
            ip=frame[ETHERNET_BYTES:tcp_start],
            source_port=source_port,
            target_port=target_port,
            sequence=sequence,
            acknowledged=acknowledged,
            flags=flags,
            window=window,
            options=frame[tcp_start + 20 : payload_start],
            payload=frame[payload_start : ETHERNET_BYTES + ip_bytes],
        )

    def emit(self) -> bytes:
        """Return the frame, with lengths and checksums made anew."""
        tcp_bytes = 20 + len(self.options)
        total_bytes = len(self.ip) + tcp_bytes + len(self.payload)
        ip = bytearray(self.ip)
        ip[2:4] = total_bytes.to_bytes(2, "big")
        ip[10:12] = bytes(2)
        ip[10:12] = internet_checksum(ip).to_bytes(2, "big")
        ports = (self.source_port, self.target_port, self.sequence, self.acknowledged)
        tcp = bytearray(
            struct.pack(">HHIIBBHHH", *ports, tcp_bytes << 2, self.flags, self.window, 0, 0)
        )
        tcp += self.options + self.payload
        pseudo_header = ip[12:20] + struct.pack(">HH", socket.IPPROTO_TCP, len(tcp))
        tcp[16:18] = internet_checksum(pseudo_header + tcp).to_bytes(2, "big")
        return self.ethernet + bytes(ip) + bytes(tcp)


@dataclass(slots=True)
class Stream:
    """One direction of a connection as it was forwarded."""

    byte_count: int = 0
    sequence_next: int | None = None
    cut_at_bytes: int | None = None
    last: Segment | None = None
    ended: bool = False  # a FIN or RST went by

    def new_bytes(self, segment: Segment) -> int:
        """Return how many bytes at the end of `segment` were not seen before."""
        if self.sequence_next is None:
            return len(segment.payload)
        ahead = (segment.sequence_next - self.sequence_next) % SEQUENCE_SPACE
        return min(ahead, len(segment.payload)) if ahead < SEQUENCE_SPACE // 2 else 0


@dataclass(slots=True)
class Connection:
    """Both directions of one TCP connection."""

    streams: dict[Direction, Stream] = field(
        default_factory=lambda: {direction: Stream() for direction in Direction}
    )
    cut: bool = False


class Wire:
    """Decide what becomes of each frame. Knows no devices: frames in, frames out."""

    def __init__(self) -> None:
        self._orders = Orders()
        self._random = random.Random(self._orders.seed)
        self._connections: dict[tuple[object, ...], Connection] = {}
        self.cuts = 0
        self.blocked = 0

    def order(self, orders: Orders) -> None:
        """Follow `orders` from now on; cut positions count from here."""
        self._orders = orders
        self._random = random.Random(orders.seed)
        for connection in self._connections.values():
            self._plan_cuts(connection)

    def cut_all(self) -> Iterator[tuple[Direction, bytes]]:
        """Reset every connection now; yield the frames that do it.

        One that is not answered yet is left alone: who waits for the answer could not be told.
        """
        for connection in self._connections.values():
            streams = connection.streams.values()
            alive = all(s.sequence_next is not None and not s.ended for s in streams)
            if alive and not connection.cut:
                yield from self._cut(connection)

    def forward(self, direction: Direction, frame: bytes) -> Iterator[tuple[Direction, bytes]]:
        """Yield what goes out when `frame` comes in: mostly itself."""
        segment = Segment.parse(frame)
        if segment is None:
            yield direction, frame
            return
        if direction in self._orders.block:
            self.blocked += 1
            return
        connection = self._connection_of(direction, segment)
        if connection.cut:
            # Who was not told of the cut shall learn it from the end that was.
            if len(self._orders.reset) < len(Direction):
                yield direction, frame
            return
        stream = connection.streams[direction]
        stream.last = segment
        fresh = stream.new_bytes(segment)
        if stream.cut_at_bytes is not None and stream.byte_count + fresh > stream.cut_at_bytes:
            yield from self._shorten_and_cut(direction, connection, segment, fresh)
            return
        stream.byte_count += fresh
        if stream.sequence_next is None or fresh or segment.flags & (SYN | FIN):
            stream.sequence_next = segment.sequence_next
        stream.ended |= bool(segment.flags & (FIN | RST))
        yield direction, frame

    def _connection_of(self, direction: Direction, segment: Segment) -> Connection:
        ends = (segment.ip[12:16], segment.source_port), (segment.ip[16:20], segment.target_port)
        key = ends if direction is Direction.TO_GUEST else ends[::-1]
        connection = self._connections.get(key)
        if connection is None or _opens_anew(segment, connection.streams[direction]):
            connection = self._connections[key] = Connection()
            self._plan_cuts(connection)
        return connection

    def _plan_cuts(self, connection: Connection) -> None:
        low, high = self._orders.cut_bytes_min, self._orders.cut_bytes_max
        for stream in connection.streams.values():
            distance = self._random.randint(low, high) if high else None
            stream.cut_at_bytes = None if distance is None else stream.byte_count + distance

    def _shorten_and_cut(
        self, direction: Direction, connection: Connection, segment: Segment, fresh: int
    ) -> Iterator[tuple[Direction, bytes]]:
        """Forward `segment` up to the byte where its stream is to be cut, then cut."""
        stream = connection.streams[direction]
        assert stream.cut_at_bytes is not None
        kept = len(segment.payload) - fresh + max(0, stream.cut_at_bytes - stream.byte_count)
        flags = (segment.flags | PUSH) & ~FIN
        short = replace(segment, payload=segment.payload[:kept], flags=flags)
        stream.sequence_next = short.sequence_next
        if kept:
            yield direction, short.emit()
        yield from self._cut(connection)

    def _cut(self, connection: Connection) -> Iterator[tuple[Direction, bytes]]:
        connection.cut = True
        self.cuts += 1
        for direction, stream in connection.streams.items():
            if stream.last is None or stream.sequence_next is None:
                continue
            if direction not in self._orders.reset:
                continue
            answered = connection.streams[direction.back].sequence_next or 0
            yield (
                direction,
                replace(
                    stream.last,
                    sequence=stream.sequence_next,
                    acknowledged=answered,
                    flags=RST | ACK,
                    options=b"",
                    payload=b"",
                ).emit(),
            )


def _opens_anew(segment: Segment, stream: Stream) -> bool:
    """Say whether `segment` opens a connection, and not once more the one of `stream`."""
    opens = segment.flags & (SYN | ACK) == SYN
    return opens and segment.sequence_next != stream.sequence_next


class Recording:
    """A capture file of the frames that the wire let through."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._file.write(PCAP_HEADER.pack(PCAP_MAGIC, 2, 4, 0, 0, FRAME_BYTES_MAX, PCAP_ETHERNET))

    def add(self, frame: bytes) -> None:
        """Write one frame with the time."""
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        self._file.write(PCAP_FRAME.pack(seconds, nanoseconds, len(frame), len(frame)) + frame)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._file.close()


class Ports:
    """The two ends of the wire and the control socket; all input and output is here."""

    def __init__(self, tap: str, guest_path: str, wire_path: str, control: socket.socket) -> None:
        self._tap = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(self._tap, TUNSETIFF, struct.pack("16sH22x", tap.encode(), IFF_TAP_NO_PI))
        self._guest = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._guest.bind(wire_path)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._guest.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._guest_path = guest_path
        self._control = control
        self._wire = Wire()
        self._recording: Recording | None = None
        self.lost = 0

    def run(self) -> None:
        """Forward until the control socket closes."""
        tap, guest, control = self._tap, self._guest.fileno(), self._control.fileno()
        while True:
            ready, _, _ = select.select([tap, guest, control], [], [])
            if tap in ready:
                frame = os.read(tap, FRAME_BYTES_MAX)
                self._send(self._wire.forward(Direction.TO_GUEST, frame))
            if guest in ready:
                frame = self._guest.recv(FRAME_BYTES_MAX)
                self._send(self._wire.forward(Direction.TO_HOST, frame))
            if control in ready and not self._obey():
                return

    def _send(self, frames: Iterator[tuple[Direction, bytes]]) -> None:
        for direction, frame in frames:
            try:
                if direction is Direction.TO_GUEST:
                    self._guest.sendto(frame, self._guest_path)
                else:
                    os.write(self._tap, frame)
            except OSError:  # the guest or the tap is not up yet: a wire without a host
                self.lost += 1
            else:
                if self._recording:
                    self._recording.add(frame)

    def _obey(self) -> bool:
        """Take one request from the control socket; False at its end."""
        request = self._control.recv(FRAME_BYTES_MAX)
        if not request:
            return False
        body = json.loads(request)
        if body.pop("cut_now", False):
            self._send(self._wire.cut_all())
        elif "record" in body:
            self._record(body["record"])
        elif body:
            lists = {name: tuple(body[name]) for name in ("reset", "block")}
            self._wire.order(Orders(**{**body, **lists}))
        counts = {"cuts": self._wire.cuts, "blocked": self._wire.blocked, "lost": self.lost}
        self._control.send(json.dumps(counts).encode())
        return True

    def _record(self, path: str | None) -> None:
        """End the recording there may be; begin another if a path is given."""
        if self._recording:
            self._recording.close()
        self._recording = Recording(path) if path else None


if __name__ == "__main__":
    _tap, _guest_path, _wire_path, _control = sys.argv[1:]
    Ports(_tap, _guest_path, _wire_path, socket.socket(fileno=int(_control))).run()
