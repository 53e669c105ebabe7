"""Whole transfers over a stream socket, in the modes of rstream, and the figures of its table.

Source: docs/reference/rsocket.md 15. A run is `iterations` times `transfers` messages from the
client and as many back. Totals count both directions; usec/xfer of one transfer per iteration is
one way.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from urds.cli.rsocket.sockets import AnySocket, new_memory

SYNC_BYTES: Final = 16
SIZE_MAX: Final = 64 << 20
_STALLED_S: Final = 30.0  # without progress for so long: the other side hangs
_PATTERN_BYTES: Final = 251  # a prime: the check sees a shift by any power of two
_MARKS: Final = 250  # of a last byte, from 1
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
        self._poll = select.poll()
        if manner is Manner.POLL:
            self._fd = sock.fileno()
            self._poll.register(self._fd, 0)

    def send(self, data: memoryview) -> None:
        """Send all of it. Raises OSError, TimeoutError without progress."""
        if self.manner is Manner.BLOCK:
            self.sock.sendall(data)
            return
        spins = 0
        while data:
            try:
                data = data[self.sock.send(data) :]
                spins = 0
            except BlockingIOError:
                spins += 1
                self._wait(select.POLLOUT, spins)

    def receive(self, place: memoryview) -> None:
        """Fill all of it. Raises OSError, ConnectionError at the end of the stream."""
        flags = socket.MSG_WAITALL if self.manner is Manner.BLOCK else 0
        spins = 0
        while place:
            try:
                count = self.sock.recv_into(place, 0, flags)
            except BlockingIOError:
                spins += 1
                self._wait(select.POLLIN, spins)
                continue
            if not count:
                raise ConnectionError("the other side has closed the connection")
            place = place[count:]
            spins = 0

    def _wait(self, events: int, spins: int) -> None:
        if self.manner is Manner.POLL:
            self._poll.modify(self._fd, events)
            if not self._poll.poll(_STALLED_S * 1000):
                raise TimeoutError(f"nothing moved for {_STALLED_S:g} s")
        elif spins % _SPINS_PER_LOOK == 0:
            self._look(spins)

    def _look(self, spins: int) -> None:
        now_s = time.monotonic()
        if spins == _SPINS_PER_LOOK:
            self._stalled_s = now_s + _STALLED_S
        elif now_s > self._stalled_s:
            raise TimeoutError(f"nothing moved for {_STALLED_S:g} s")


@dataclass(frozen=True, slots=True)
class Plan:
    """One row that is to be measured."""

    name: str
    size_bytes: int
    transfers: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Row:
    """One row as measured."""

    name: str
    size_bytes: int
    transfers: int
    iterations: int
    total_bytes: int
    seconds: float
    gb_per_s: float
    usec_per_transfer: float


def measured(plan: Plan, seconds: float) -> Row:
    """Return the row of a plan that took so long. Source: docs/reference/rsocket.md 15."""
    total_bytes = 2 * plan.size_bytes * plan.transfers * plan.iterations
    return Row(
        plan.name,
        plan.size_bytes,
        plan.transfers,
        plan.iterations,
        total_bytes,
        seconds,
        total_bytes * 8 / seconds / 1e9,
        seconds * 1e6 / plan.iterations / (2 * plan.transfers),
    )


# -- sizes and counts of rstream

_ALWAYS: Final = (64, 4 << 10, 64 << 10, 1 << 20)
_ALL: Final = (64, *(step for power in range(7, 23) for step in (1 << power, 3 << (power - 1))))


def sizes(*, is_all: bool) -> tuple[int, ...]:
    """Return the sizes of a run: four, or the 33 of `-S all`."""
    return _ALL if is_all else _ALWAYS


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


# -- the table

HEADING: Final = (
    f"{'name':<10}{'bytes':<8}{'xfers':<8}{'iters':<8}{'total':<8}"
    f"{'time':>9}{'Gb/sec':>10}{'usec/xfer':>12}"
)


def line(row: Row) -> str:
    """Return a row under `HEADING`."""
    return (
        f"{row.name:<10}{size_text(row.size_bytes):<8}{number(row.transfers):<8}"
        f"{number(row.iterations):<8}{size_text(row.total_bytes):<8}{row.seconds:>8.2f}s"
        f"{row.gb_per_s:>10.2f}{row.usec_per_transfer:>12.2f}"
    )


def size_text(count: int) -> str:
    """Return a count of bytes as rstream writes it: 64, 4k, 1m; a half is kept, totals are cut."""
    for unit, shift in (("g", 30), ("m", 20), ("k", 10)):
        if count >= 1 << shift:
            if count % (1 << shift) == 1 << (shift - 1):
                return f"{count >> shift}.5{unit}"
            return f"{count >> shift}{unit}"
    return str(count)


def number(count: int) -> str:
    """Return a count of transfers as rstream writes it: 100k."""
    for unit, thousands in (("g", 10**9), ("m", 10**6), ("k", 1000)):
        if count >= thousands and count % thousands == 0:
            return f"{count // thousands}{unit}"
    return str(count)


# -- the sides


class Side:
    """One connected side: sends first, or second."""

    def __init__(
        self,
        stream: Stream,
        *,
        is_client: bool,
        is_verified: bool,
        is_kernel: bool,
        size_bytes_max: int,
    ) -> None:
        room = max(SYNC_BYTES, size_bytes_max)
        self._stream = stream
        self._is_client = is_client
        self._is_verified = is_verified
        self._pattern = (bytes(range(_PATTERN_BYTES)) * (room // _PATTERN_BYTES + 1))[:room]
        self._sent = memoryview(bytearray(self._pattern))
        self._got = new_memory(room, is_kernel=is_kernel)

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


class MappedSide(Side):
    """A side that writes into the other's mapped buffer, and waits for the last byte of its own.

    Of a burst the last write alone carries a new mark there. No completion reports a mapped write,
    so the receiver looks at the memory after each progress of the device.
    """

    def __init__(self, stream: Stream, **details: Any) -> None:
        super().__init__(stream, **details)
        self._marks = 0
        socket: Any = stream.sock  # an rsocket: the kernel's map nothing
        self._context = socket.link.context
        self._write = socket.write_mapped
        socket.map_buffer(self._got, 0)

    def _begin(self, plan: Plan) -> None:
        self._got[plan.size_bytes - 1] = 0

    def _mark(self) -> int:
        """Return the mark of the next transfer: both sides count them alike."""
        self._marks += 1
        return 1 + self._marks % _MARKS

    def _send(self, size_bytes: int, count: int) -> None:
        data = self._sent[:size_bytes]
        data[-1] = 0
        for _ in range(count - 1):
            self._write_all(data)
        data[-1] = self._mark()
        self._write_all(data)

    def _write_all(self, data: memoryview) -> None:
        written = 0
        while written < len(data):
            try:
                count = self._write(data[written:], written)
            except BlockingIOError:
                self._context.adapter.progress()
                continue
            if not count:
                raise OSError("the other side has mapped no buffer")
            written += count

    def _receive(self, size_bytes: int, count: int) -> None:
        place, mark = self._got[:size_bytes], self._mark()
        if self._stream.manner is Manner.SPIN:
            progress = self._context.adapter.progress
            while place[-1] != mark:
                progress()
        else:
            self._wait(partial(_is_marked, place, mark))
        if self._is_verified:
            place[-1] = self._pattern[size_bytes - 1]
            self._verify(place)

    def _wait(self, is_ready: Any) -> None:
        from urds.rsocket.link import devices

        if not devices.wait((self._context,), is_ready, _STALLED_S):
            raise TimeoutError(f"nothing was written for {_STALLED_S:g} s")


def _is_marked(place: memoryview, mark: int) -> bool:
    return place[-1] == mark
