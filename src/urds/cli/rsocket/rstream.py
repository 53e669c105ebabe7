"""`urds rsocket rstream`: ping-pong and bandwidth of a stream socket, after rstream.

Without `-s` and `--serve` the server is a process of its own here; with `-s HOST` this is the
client of a server elsewhere, which has the same options. Two connections, one after another: one
for latency, with inline data, one for bandwidth, without.

A run is `iterations` times `transfers` messages from the client and as many back. Totals count
both directions; usec/xfer of one transfer per iteration is one way.
Source: docs/reference/rsocket.md 15.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final

from urds.cli.output import Exit, UsageError
from urds.cli.parser import Command, option
from urds.cli.processes import serve_child, tell_port
from urds.cli.rsocket.measure import (
    MeasureOptions,
    Row,
    heading,
    run_sides,
    size_text,
    tests_option,
)
from urds.cli.rsocket.sockets import (
    FORMATS,
    AnySocket,
    listening,
    local_address,
    new_memory,
    new_socket,
    resolved,
)

PORT: Final = 7471
SYNC_BYTES: Final = 16
SIZE_MAX: Final = 64 << 20
HEADING: Final = heading(without="lost")
STALLED_S: Final = 30.0  # without progress for so long: the other side hangs
_BUFFER_BYTES: Final = 512 << 10
_CUSTOM_SIZE: Final = 1000
_CUSTOM_TRANSFERS: Final = 1000
_PATTERN_BYTES: Final = 251  # a prime: the check sees a shift by any power of two
_SPINS_PER_LOOK: Final = 1 << 12  # a look at the clock now and then costs a spin nothing


class Manner(Enum):
    """How a side waits."""

    BLOCK = "b"
    POLL = "a"
    SPIN = "n"  # calls that would block are retried at once: rstream's only mode


class Stream:
    """One connected socket and its way of waiting."""

    def __init__(self, sock: AnySocket, manner: Manner) -> None:
        self.sock = sock
        self.manner = manner
        # No timeout with BLOCK: with one, Python itself waits, in poll, before each call.
        sock.setblocking(manner is Manner.BLOCK)
        # The descriptor of an rsocket has a cost from the first request for it on.
        self._fd = -1
        self._spins = 0  # since something moved
        self._poll = select.poll()
        if manner is Manner.POLL:
            self._fd = sock.fileno()
            self._poll.register(self._fd, 0)

    def send(self, data: memoryview) -> None:
        """Send all of it. Raises OSError, TimeoutError without progress."""
        if self.manner is Manner.BLOCK:
            self.sock.sendall(data)
            return
        while data:
            try:
                data = data[self.sock.send(data) :]
                self._spins = 0
            except BlockingIOError:
                self._wait(select.POLLOUT)

    def receive(self, place: memoryview) -> None:
        """Fill all of it. Raises OSError, ConnectionError at the end of the stream."""
        flags = socket.MSG_WAITALL if self.manner is Manner.BLOCK else 0
        while place:
            try:
                count = self.sock.recv_into(place, 0, flags)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            if not count:
                raise ConnectionError("the other side has closed the connection")
            place = place[count:]
            self._spins = 0

    def _wait(self, events: int) -> None:
        self._spins += 1
        if self.manner is Manner.POLL:
            self._poll.modify(self._fd, events)
            is_stalled = not self._poll.poll(STALLED_S * 1000)
        elif self._spins == _SPINS_PER_LOOK:
            self._stalled_s, is_stalled = time.monotonic() + STALLED_S, False
        else:
            is_look = self._spins % _SPINS_PER_LOOK == 0
            is_stalled = is_look and time.monotonic() > self._stalled_s
        if is_stalled:
            raise TimeoutError(f"nothing moved for {STALLED_S:g} s")


class Side:
    """One connected side: sends first, or second."""

    def __init__(
        self, stream: Stream, options: RstreamOptions, *, is_client: bool, size_bytes_max: int
    ) -> None:
        room = max(SYNC_BYTES, size_bytes_max)
        self._stream = stream
        self._is_client = is_client
        self._is_verified = options.has("v")
        self._pattern = (bytes(range(_PATTERN_BYTES)) * (room // _PATTERN_BYTES + 1))[:room]
        self._sent = memoryview(bytearray(self._pattern))
        self._got = new_memory(room, is_kernel=options.is_kernel)

    def measure(self, plan: Plan) -> Row:
        """Run a plan, from a moment that both sides share."""
        self._begin(plan)
        moves = (self._send, self._receive) if self._is_client else (self._receive, self._send)
        place = memoryview(bytearray(SYNC_BYTES))
        for is_first in (True, False):
            if is_first is self._is_client:
                self._stream.send(self._sent[:SYNC_BYTES])
            else:
                self._stream.receive(place)
        start_s = time.perf_counter()
        for _ in range(plan.iterations):
            for move in moves:
                move(plan.size_bytes, plan.transfers)
        return measured(plan, time.perf_counter() - start_s)

    def _begin(self, plan: Plan) -> None:
        """Get ready for a plan: the other side does nothing before this side's message."""

    def _send(self, size_bytes: int, count: int) -> None:
        data = self._sent[:size_bytes]
        for _ in range(count):
            self._stream.send(data)

    def _receive(self, size_bytes: int, count: int) -> None:
        place = self._got[:size_bytes]
        for _ in range(count):
            self._stream.receive(place)
            if self._is_verified:
                self._verify(place)

    def _verify(self, place: memoryview) -> None:
        """Compare with what the other side has sent, and make room. Raises OSError."""
        if place != self._pattern[: len(place)]:
            raise OSError(f"{len(place)} bytes are not those that were sent")
        place[:] = bytes(len(place))


@dataclass(frozen=True, slots=True, kw_only=True)
class RstreamOptions(MeasureOptions):
    """Options of `urds rsocket rstream`."""

    TESTS: ClassVar[dict[str, str]] = {
        "s": "socket", "a": "async", "b": "blocking", "f": "fork", "n": "nonblocking",
        "r": "resolve", "v": "verify",
    }  # fmt: skip
    SIZE_LIMITS: ClassVar[tuple[int, int]] = (1, SIZE_MAX)
    PORT: ClassVar[int] = PORT
    SIDE: ClassVar[type[Side]] = Side
    IOMAP_SLOTS: ClassVar[int] = 0

    address_format: str = option(
        "-f", metavar="FORMAT", default="name", help="The host is a name, ip, or ipv6."
    )
    inline_bytes: int | None = option(
        "-i", metavar="BYTES", low=0, high=65_534, help="Inline data; 64 and 0 without it."
    )
    iterations: int | None = option("-I", low=1, high=10_000_000, help="Iterations of each row.")
    keepalive_s: int | None = option(
        "-k", metavar="SECONDS", low=1, high=32_767, help="Send keepalives after so much silence."
    )
    tests: Sequence[str] = tests_option(
        "s kernel sockets, a poll, b blocking (the default), n non-blocking, f forked server"
        " (implies s), r resolve by verbs, v verify."
    )

    @property
    def is_kernel(self) -> bool:
        """Tell whether sockets are the kernel's; a forked server can have no others."""
        return self.has("s") or self.has("f")

    @property
    def manner(self) -> Manner:
        """Return how both sides wait."""
        if self.has("a"):
            return Manner.POLL
        return Manner.SPIN if self.has("n") else Manner.BLOCK

    def check(self) -> None:
        """Raise UsageError for wrong options."""
        if self.address_format not in FORMATS:
            raise UsageError(f"-f {self.address_format}: must be one of {', '.join(FORMATS)}")
        # In full: a class with slots is made anew, and `super()` would mean the first one.
        MeasureOptions.check(self)


def run(options: RstreamOptions) -> Exit:
    """Measure and print the table, or serve one client."""
    return run_sides(options, serve, _rows, HEADING)


# -- what is measured


@dataclass(frozen=True, slots=True)
class Plan:
    """One row that is to be measured."""

    name: str
    size_bytes: int
    transfers: int
    iterations: int


def measured(plan: Plan, seconds: float) -> Row:
    """Return the row of a plan that took so long. Source: docs/reference/rsocket.md 15."""
    total_bytes = 2 * plan.size_bytes * plan.transfers * plan.iterations
    return Row(
        **asdict(plan),
        total_bytes=total_bytes,
        seconds=seconds,
        gb_per_s=total_bytes * 8 / seconds / 1e9,
        usec_per_transfer=seconds * 1e6 / plan.iterations / (2 * plan.transfers),
    )


SIZES: Final = (64, 4 << 10, 64 << 10, 1 << 20)
SIZES_ALL: Final = (
    64, *(step for power in range(7, 23) for step in (1 << power, 3 << (power - 1))),
)  # fmt: skip


def count_of(size_bytes: int) -> int:
    """Return how many transfers of a size rstream does."""
    for limit_bytes, count in ((1 << 10, 100_000), (64 << 10, 10_000), (1 << 20, 1000)):
        if size_bytes < limit_bytes:
            return count
    return 100


def latency_plan(size_bytes: int) -> Plan:
    """Return the ping-pong of a size."""
    return Plan(f"{size_text(size_bytes)}_lat", size_bytes, 1, count_of(size_bytes))


def bandwidth_plan(size_bytes: int) -> Plan:
    """Return the stream of a size."""
    return Plan(f"{size_text(size_bytes)}_bw", size_bytes, count_of(size_bytes), 1)


def plans(options: RstreamOptions) -> tuple[list[Plan], list[Plan]]:
    """Return the measurements of the latency connection, and of the bandwidth connection."""
    if options.size in (None, "all") and options.iterations is options.transfers is None:
        chosen = SIZES_ALL if options.size == "all" else SIZES
        return [latency_plan(size) for size in chosen], [bandwidth_plan(size) for size in chosen]
    chosen = SIZES_ALL if options.size == "all" else (int(options.size or _CUSTOM_SIZE),)
    transfers = options.transfers or _CUSTOM_TRANSFERS
    custom = [Plan("custom", size, transfers, options.iterations or 1) for size in chosen]
    return ([], custom) if transfers > 1 else (custom, [])


def _phases(options: RstreamOptions) -> Iterator[tuple[bool, list[Plan], int]]:
    """Yield for each connection: is it for latency, its plans, the largest size among them."""
    for is_latency, wanted in zip((True, False), plans(options), strict=True):
        if wanted:
            yield is_latency, wanted, max(plan.size_bytes for plan in wanted)


# -- the sides


def prepare(sock: AnySocket, options: RstreamOptions, *, is_latency: bool) -> None:
    """Set the options of a socket; those of RDMA take effect before it connects or listens only."""
    space_bytes = options.buffer_bytes or _BUFFER_BYTES
    for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, name, space_bytes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.keepalive_s is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, options.keepalive_s)
    if not options.is_kernel:
        from urds import rsocket

        inline_bytes = 64 if is_latency else 0
        if options.inline_bytes is not None:
            inline_bytes = options.inline_bytes
        sock.setsockopt(rsocket.SOL_RDMA, rsocket.RDMA_INLINE, inline_bytes)
        if options.IOMAP_SLOTS:
            sock.setsockopt(rsocket.SOL_RDMA, rsocket.RDMA_IOMAPSIZE, options.IOMAP_SLOTS)


# -- the client


def _rows(options: RstreamOptions, host: str, port: int) -> Iterator[Row]:
    target = resolved(host, port, options.address_format, by_verbs=options.has("r"))
    for is_latency, wanted, size_bytes_max in _phases(options):
        with _connected(options, target, is_latency=is_latency) as stream:
            side = options.SIDE(stream, options, is_client=True, size_bytes_max=size_bytes_max)
            yield from map(side.measure, wanted)


@contextmanager
def _connected(
    options: RstreamOptions, target: tuple[int, Any], *, is_latency: bool
) -> Iterator[Stream]:
    family, address = target
    with new_socket(is_kernel=options.is_kernel, family=family) as sock:
        prepare(sock, options, is_latency=is_latency)
        if options.bind is not None:
            sock.bind(local_address(options.bind, 0, family)[1])
        sock.connect(address)
        yield Stream(sock, options.manner)
        sock.shutdown(socket.SHUT_RDWR)


# -- the server


def serve(options: RstreamOptions, *, wait_s: float | None = None) -> None:
    """Listen, and serve one client's connections; the figures stay with the client.

    With a `wait_s`, a client that comes in time, at a free port where no other is wanted.
    """
    port = options.port or (PORT if wait_s is None else 0)
    family, address = local_address(options.bind or "", port, None)
    listener = new_socket(is_kernel=options.is_kernel, family=family)
    prepare(listener, options, is_latency=True)
    with listening(listener, address) as listener:
        tell_port(listener.getsockname()[1], json_wanted=options.json_wanted)
        listener.settimeout(wait_s)
        for _, wanted, size_bytes_max in _phases(options):
            with listener.accept()[0] as sock:
                serve_one = partial(_serve_connection, sock, wanted, size_bytes_max, options)
                if options.has("f"):
                    _in_child(serve_one)
                else:
                    serve_one()


def _serve_connection(
    sock: AnySocket, wanted: list[Plan], size_bytes_max: int, options: RstreamOptions
) -> None:
    stream = Stream(sock, options.manner)
    side = options.SIDE(stream, options, is_client=False, size_bytes_max=size_bytes_max)
    for plan in wanted:
        side.measure(plan)
    # The client ends first: what it still reads must not meet a reset.
    with suppress(ConnectionError, TimeoutError):
        stream.receive(memoryview(bytearray(1)))


def _in_child(serve_one: Callable[[], None]) -> None:
    """Serve a connection in a forked child. Raises OSError: it failed."""
    child = os.fork()
    if child == 0:
        code = Exit.FAILED
        try:
            serve_one()
            code = Exit.OK
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(f"the forked server ended with exit code {status}")


COMMAND: Final = Command(
    about="""
    Total counts both directions; usec/xfer of a latency row is one way. Without -s and --serve the
    server is a process of its own on this host. Both sides need the same options. Calls wait; with
    -T n those that would wait are repeated at once, which rstream does by itself and which needs a
    processor for each side. With -T s the same program measures the kernel's TCP.
    """,
    examples=(
        ("urds rsocket rstream", "rsockets over shared memory, about a minute"),
        ("urds rsocket rstream -T s", "the same by the kernel's TCP"),
        ("urds rsocket rstream --device tcp -T b -S 65536 -C 100", "one size over TCP, blocking"),
        ("urds rsocket rstream --device tcp --serve -b 10.0.0.2", "a server, for one client"),
        ("urds rsocket rstream --device tcp -s 10.0.0.2", "its client"),
    ),
    options=RstreamOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(serve_child("urds rsocket rstream", RstreamOptions, serve))
