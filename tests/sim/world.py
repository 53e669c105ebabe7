"""Virtual time, and TCP as a program meets it: bytes, windows, acknowledgements, resets.

One heap of due calls drives everything; nothing runs beside it and nothing waits. A stream carries
bytes in order with latency. What arrived is acknowledged, whether a program read it or not: that
is why "TCP has it" is not "the peer has it". A stream can be made to break when a chosen byte
arrives. Then what is on its way is gone; what arrived before can still be read, as on Linux; and
each end learns it in its own time, a silent one only when it writes, or by keepalive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random

US = 1_000
MS = 1_000_000
SECOND = 1_000 * MS
KEEPALIVE_NS = 5 * SECOND
RETRANSMISSION_NS = 300 * MS
SEGMENTS_BYTES = (1, 48, 500, 1448, 1448, 9000, 9000, 9000)
STEPS_MAX = 400_000  # of one simulation; more means that it spins

Call = Callable[[], None]


class World:
    """The clock, the chance, and what is due."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ns = SECOND
        self.sockets: list[Socket] = []  # connecting ends of all streams made so far
        self._due: list[tuple[int, int, Call]] = []
        self._count = 0
        self.steps = 0

    def after(self, delay_ns: int, call: Call) -> None:
        """Have `call` made later; equal times keep their order."""
        self._count += 1
        heappush(self._due, (self.now_ns + delay_ns, self._count, call))

    def some(self, span_ns: int) -> int:
        """Return a random time below `span_ns`."""
        return self.random.randrange(span_ns)

    def run(self, span_ns: int) -> None:
        """Let time pass."""
        end_ns = self.now_ns + span_ns
        while self._due and self._due[0][0] <= end_ns:
            self.now_ns, _, call = heappop(self._due)
            self.steps += 1
            assert self.steps < STEPS_MAX, f"seed {self.seed}: it spins at {self.now_ns}"
            call()
        self.now_ns = end_ns


class Socket:
    """One end of a stream.

    `on_change` is called when there may be something to read or room to write.
    """

    def __init__(self, world: World, *, latency_ns: int, window_bytes: int) -> None:
        self.world = world
        self.latency_ns = latency_ns
        self.window_bytes = window_bytes
        self.twin: Socket = self
        self.on_change: Call = lambda: None
        self.closed = False
        self.written = 0
        self.acknowledged = 0  # of what we wrote, as far as we know
        self.received = 0  # bytes that arrived here
        self.break_at: int | None = None  # the stream breaks when so many have arrived here
        self.broken = False  # nothing arrives any more, in either direction
        self._unread = bytearray()
        self._ended = False  # the peer closed in order
        self._failed = False  # an error is here, behind what can still be read
        self._arrival_ns = 0

    def sendmsg(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Take what fits the window; 0 if none does. Raises OSError on a failed stream."""
        if self._failed or self.closed:
            raise ConnectionResetError
        data = b"".join(buffers)
        room = self.window_bytes - (self.written - self.acknowledged)
        if room < min(len(data), self.window_bytes // 2):
            return 0  # else bytes would trickle one by one
        data = data[:room]
        taken = len(data)
        self.written += taken
        world, twin = self.world, self.twin
        if self.broken:
            world.after(2 * self.latency_ns, self._fail)  # no host is there: a reset comes back
            return taken
        while data:  # segments
            size = min(len(data), world.random.choice(SEGMENTS_BYTES))
            piece, data = data[:size], data[size:]
            self._later(lambda piece=piece: twin._arrive(piece))
        return taken

    def _later(self, call: Call) -> None:
        """Do something at the other end, behind everything before."""
        world = self.world
        jitter_ns = world.some(self.latency_ns // 4 + 1)
        self._arrival_ns = max(self._arrival_ns, world.now_ns + self.latency_ns + jitter_ns)
        world.after(self._arrival_ns - world.now_ns, call)

    def _arrive(self, piece: bytes) -> None:
        if self.broken:
            return
        if self.break_at is not None and self.received + len(piece) > self.break_at:
            piece = piece[: self.break_at - self.received]
            self._take(piece)
            self.break_stream()
            return
        if self.closed:
            self.break_stream()  # bytes for a closed end are answered with a reset
            return
        self._take(piece)

    def _take(self, piece: bytes) -> None:
        self._unread += piece
        self.received += len(piece)
        received, twin = self.received, self.twin
        self.world.after(self.latency_ns, lambda: twin._hear_acknowledgement(received))
        self.on_change()

    def _hear_acknowledgement(self, byte_count: int) -> None:
        if not self.broken and byte_count > self.acknowledged:
            self.acknowledged = byte_count
            self.on_change()

    def recv(self, bytes_max: int) -> bytes | None:
        """Return bytes, b"" at the end, None if there is nothing yet. Raises OSError."""
        if self._unread:
            data = bytes(self._unread[:bytes_max])
            del self._unread[:bytes_max]
            return data
        if self._failed:
            raise ConnectionResetError
        return b"" if self._ended else None

    def unacknowledged(self) -> int:
        """Return how many bytes the peer's TCP did not acknowledge to us; true after a reset."""
        return self.written - self.acknowledged

    def close(self) -> None:
        """End the stream in order; what was written still arrives."""
        if self.closed:
            return
        self.closed = True
        self.on_change = lambda: None
        if not self.broken:
            self._later(self.twin._hear_end)

    def reset(self) -> None:
        """End the stream with a reset; what was not read here is gone."""
        self.closed = True
        self.on_change = lambda: None
        self.break_stream()

    def abandon(self) -> None:
        """End the stream as a process does that dies, or as a host that does: without a word."""
        self.closed = True
        self.on_change = lambda: None
        self.break_stream(silent=self.world.random.choice([None, self.twin]))

    def _hear_end(self) -> None:
        if not self.broken:
            self._ended = True
            self.on_change()

    def _fail(self) -> None:
        self._failed = True
        self.on_change()

    def break_stream(self, *, silent: Socket | None = None) -> None:
        """Break it now; an end that is `silent` learns it by writing, or by keepalive."""
        for end in (self, self.twin):
            if end.broken:
                continue
            end.broken = True
            delay_ns = self.world.some(2 * self.latency_ns + 1)
            if end is silent:  # what it has sent is sent again, and answered with a reset
                delay_ns = RETRANSMISSION_NS if end.unacknowledged() else KEEPALIVE_NS
            self.world.after(delay_ns, end._fail)


def stream_pair(world: World) -> tuple[Socket, Socket]:
    """Return the two ends of a new stream, with a latency and windows of its own."""
    random = world.random
    latency_ns = random.choice([20 * US, 200 * US, 2 * MS])
    ends = [
        Socket(
            world, latency_ns=latency_ns, window_bytes=random.choice([500, 5_000, 65_536, 1 << 20])
        )
        for _ in range(2)
    ]
    ends[0].twin, ends[1].twin = ends[1], ends[0]
    world.sockets.append(ends[0])
    return ends[0], ends[1]
