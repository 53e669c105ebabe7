"""Whole transfers over a stream socket, in the manners of rstream, and the figures of its table.

Source: rsocket.md section 15. A run is `iterations` times `transfers` messages from the client and
as many back. Totals count both directions; usec/xfer of one transfer per iteration is one way.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass
from enum import Enum
from typing import Final

from urds.cli.rsocket_ways import AnySocket

SYNC_BYTES: Final = 16
SIZE_MAX: Final = 64 << 20
_STALLED_S: Final = 30.0  # nothing moves for so long: the other side hangs
_SPINS_PER_LOOK: Final = 1 << 12  # a look at the clock now and then costs a spin nothing


class Manner(Enum):
    """How a side waits."""

    BLOCK = "b"
    POLL = "a"
    SPIN = "n"  # calls that would block are repeated at once: what rstream does by itself


class Stream:
    """One connected socket and its manner to wait."""

    def __init__(self, sock: AnySocket, manner: Manner) -> None:
        self.sock = sock
        self.manner = manner
        # No timeout with BLOCK: with one, Python itself waits, in poll, before each call.
        sock.setblocking(manner is Manner.BLOCK)
        # The descriptor of an rsocket costs something from the moment on that it is asked for.
        self._fd = -1
        self._poll = select.poll()
        if manner is Manner.POLL:
            self._fd = sock.fileno()
            self._poll.register(self._fd, 0)

    def send(self, data: memoryview) -> None:
        """Send all of it. Raises OSError, TimeoutError where nothing moves."""
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
    """Return the row of a plan that took so long. Source: rsocket.md section 15."""
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
    return Plan(f"{octets(size_bytes)}_lat", size_bytes, 1, count_of(size_bytes))


def bandwidth_plan(size_bytes: int) -> Plan:
    """Return the stream of a size."""
    return Plan(f"{octets(size_bytes)}_bw", size_bytes, count_of(size_bytes), 1)


# -- the table

HEADING: Final = (
    f"{'name':<10}{'bytes':<8}{'xfers':<8}{'iters':<8}{'total':<8}"
    f"{'time':>9}{'Gb/sec':>10}{'usec/xfer':>12}"
)


def line(row: Row) -> str:
    """Return a row under `HEADING`."""
    return (
        f"{row.name:<10}{octets(row.size_bytes):<8}{number(row.transfers):<8}"
        f"{number(row.iterations):<8}{octets(row.total_bytes):<8}{row.seconds:>8.2f}s"
        f"{row.gb_per_s:>10.2f}{row.usec_per_transfer:>12.2f}"
    )


def octets(count: int) -> str:
    """Return a count of octets as rstream writes it: 64, 4k, 1m; a half is kept, totals are cut."""
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
