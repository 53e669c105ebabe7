"""The sides of rstream and riostream: what one does of a plan, by sends or by mapped writes.

One side is first in every iteration: it moves its transfers, then the other moves as many back.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from urds.cli.rsocket_transfers import SYNC_BYTES, Manner, Plan, Row, Stream, measured
from urds.cli.rsocket_ways import new_memory

_PATTERN_BYTES: Final = 251  # a prime: a shift by any power of two is seen
_STALLED_S: Final = 30.0
_MARKS: Final = 250  # of a last octet, from 1


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
        """Do what a plan says, from a moment that both sides share."""
        self._begin(plan)
        turns = (self._send, self._receive) if self._is_client else (self._receive, self._send)
        place = memoryview(bytearray(SYNC_BYTES))
        for is_first in (True, False):
            if is_first is self._is_client:
                self._stream.send(self._sent[:SYNC_BYTES])
            else:
                self._stream.receive(place)
        start_s = time.perf_counter()
        for _ in range(plan.iterations):
            for turn in turns:
                turn(plan.size_bytes, plan.transfers)
        return measured(plan, time.perf_counter() - start_s)

    def _begin(self, plan: Plan) -> None:
        """Get ready for a plan: the other side does nothing before it has heard from here."""

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
            raise OSError(f"{len(place)} octets are not those that were sent")
        place[:] = bytes(len(place))


class MappedSide(Side):
    """A side that writes into the other's mapped buffer, and waits for the last octet of its own.

    Of a burst the last write alone carries a new mark there. Nothing tells of a mapped write, so
    whoever waits looks at the memory after each turn of the device.
    """

    def __init__(self, stream: Stream, **details: Any) -> None:
        super().__init__(stream, **details)
        self._turns = 0
        socket: Any = stream.sock  # an rsocket: the kernel's map nothing
        self._opening = socket.link.opening
        self._write = socket.write_mapped
        socket.map_buffer(self._got, 0)

    def _begin(self, plan: Plan) -> None:
        self._got[plan.size_bytes - 1] = 0

    def _mark(self) -> int:
        """Return the mark of the next turn: both sides count them alike."""
        self._turns += 1
        return 1 + self._turns % _MARKS

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
                self._opening.adapter.progress()
                continue
            if not count:
                raise OSError("the other side has mapped no buffer")
            written += count

    def _receive(self, size_bytes: int, count: int) -> None:
        place, mark = self._got[:size_bytes], self._mark()
        if self._stream.manner is Manner.SPIN:
            progress = self._opening.adapter.progress
            while place[-1] != mark:
                progress()
        else:
            self._wait(partial(_is_marked, place, mark))
        if self._is_verified:
            place[-1] = self._pattern[size_bytes - 1]
            self._verify(place)

    def _wait(self, is_ready: Any) -> None:
        from urds.rsocket import devices

        if not devices.wait((self._opening,), is_ready, _STALLED_S):
            raise TimeoutError(f"nothing was written for {_STALLED_S:g} s")


def _is_marked(place: memoryview, mark: int) -> bool:
    return place[-1] == mark
