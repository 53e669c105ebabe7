"""Reading of a path's stream: one thread at a time, to its end.

Reading does not stop because a mailbox is over its buffer, since acknowledgements and maps travel
in the same stream; far over it, the path pauses. At any end of a stream all data that the peer's
TCP had acknowledged is read first. After an interrupt in between, bytes from the stream may be
lost: then the stream ends, and its peer retransmits them.
"""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from os import eventfd_write
from typing import TYPE_CHECKING, Protocol

from urds.rds.plane.contract import DownReason, Stream
from urds.rds.plane.python.stream_writer import StreamOwner

if TYPE_CHECKING:
    from urds.rds.plane.python.progress import Progress
    from urds.rds.plane.python.state import State

_READS_PER_PASS = 8
_PASS_BYTES = 4 << 20  # then other paths are served
# The same if others are known to wait: a peer that sends without end gets no more of a socket than
# its neighbours. A single read may bring more, of a long payload.
_SHARED_PASS_BYTES = 256 << 10
# For a stream whose last read brought nothing for any socket here. Measured with
# `tests.rds.transports.tcp.siege`, load 20: the 99th percentile of a neighbour's round trips beside
# a flood of unroutable messages, pings, or maps took 147, 358, 92 ms with 8 reads of 64 KiB in a
# pass, 36, 80, 48 ms with one, 11, 20, 4 ms so.
_EMPTY_READ_BYTES = 16384
_EXPECT_BYTES = 131072
_DRAIN_READS = 1024
_LEAVING_POLL_S = 0.0002
_COUNTER_OF_PROTOCOL_ERROR = {
    DownReason.TOO_LONG: "recv_drop_too_long",
    DownReason.BAD_MAP: "recv_drop_bad_map",
    DownReason.BAD_CHECKSUM: "recv_drop_bad_checksum",
    DownReason.BAD_ACKNOWLEDGEMENT: "recv_drop_bad_ack",
}


class ReadPath(StreamOwner, Protocol):
    """The path of a reader."""

    def report(self) -> bool:
        """Report the results of a read; return whether it brought anything. Lock held."""

    def end(self, reason: DownReason, error: int) -> None:
        """End the stream. Lock held."""

    def finish_read(self) -> None:
        """Do the work that follows a read. No lock held."""


class StreamReader:
    """The reading half of a path; the lock guards all attributes."""

    def __init__(self, path: ReadPath, state: State, progress: Progress) -> None:
        self._path = path
        self._core = path.core
        self._partial = path.core.receiver.partial
        self._state = state
        self._progress = progress
        self.reading = False
        self.paused = False  # a mailbox is over its hard bound
        self._last_was_empty = False  # the last read brought nothing for any socket here
        self._expected_bytes = 1

    # -- lock held

    def begin_stream(self) -> None:
        """Reset the state of a stream."""
        self.paused = False
        self._expected_bytes = 1

    def _count_protocol_error(self, reason: DownReason) -> None:
        name = _COUNTER_OF_PROTOCOL_ERROR[reason]
        counters = self._state.counters
        setattr(counters, name, getattr(counters, name) + 1)

    # -- no lock held

    def read(self, *, others: bool = False) -> bool:
        """Read available bytes, a bounded number of times; return whether any came.

        The limit is lower if `others` are ready, too.
        """
        bytes_max = _SHARED_PASS_BYTES if others else _PASS_BYTES
        path, state, interrupts = self._path, self._state, self._state.interrupts
        stream: Stream | None = None  # until this thread is the reader
        reads = byte_count = 0
        more = True
        try:
            with state.lock:
                if path.stream is None or self.reading or self.paused:
                    state.driven = state.driven or self.reading
                    return False
                stream, self.reading = path.stream, True
            while more and reads < _READS_PER_PASS and byte_count < bytes_max:
                bytes_read, more = self._read_once(stream)
                byte_count += bytes_read
                reads += 1
                more = more and not self._last_was_empty and self._has_come(stream)
            if self._partial.is_very_long or self._expected_bytes != 1:
                self._expect(stream)
            self.reading = False
        except BaseException:
            if stream is not None:
                interrupts.reads[self] = stream
                interrupts.seen = True
                eventfd_write(interrupts.wake_descriptor, 1)
            raise
        path.finish_read()
        return byte_count > 0

    def _read_once(self, stream: Stream) -> tuple[int, bool]:
        """Read once and process the bytes; return how many, and whether to read on."""
        bytes_max = self._partial.bytes_wanted()
        if self._last_was_empty:
            bytes_max = min(bytes_max, _EMPTY_READ_BYTES)
        data, error = b"", 0
        try:
            data = stream.recv(bytes_max)
        except BlockingIOError:
            return 0, False
        except OSError as failure:
            error = failure.errno or 0
        path = self._path
        with self._state.lock:
            if path.stream is not stream:
                return 0, False
            if not data:
                path.end(DownReason.ERROR if error else DownReason.END_OF_STREAM, error)
                return 0, False
            reason = self._core.receive_data(data, self._state.clock_ns())
            self._last_was_empty = not path.report()
            if reason is not None:
                self._count_protocol_error(reason)
                path.end(reason, 0)
                return len(data), False
        return len(data), len(data) == bytes_max

    def _has_come(self, stream: Stream) -> bool:
        """Return whether to read on: not while most of a long payload is still in transit.

        A payload read whole is what the system call returns; read in pieces it is copied once more,
        and each piece costs a wake-up.
        """
        expected = self._partial.bytes_expected()
        return expected < _EXPECT_BYTES or stream.waiting() >= expected

    def _expect(self, stream: Stream) -> None:
        """Sleep through the pieces of a long payload: one wake-up, and one read, for most of it.

        For the thread that reads: its request must not outlive what the next reader finds.
        """
        expected = self._partial.bytes_expected()
        if expected < _EXPECT_BYTES:
            expected = 1
        if expected != self._expected_bytes and self._path.stream is stream:
            self._expected_bytes = expected
            stream.expect(expected)

    def take_over(self) -> Stream | None:
        """Wait for the present reader to leave, and take its place; None without a stream."""
        while True:
            with self._state.lock:
                if self._path.stream is None:
                    return None
                if not self.reading:
                    self.reading = True
                    return self._path.stream
            self._progress.recover()
            time.sleep(_LEAVING_POLL_S)  # another thread is reading it: a matter of microseconds

    def drain(self, stream: Stream) -> None:
        """Read everything available without waiting, up to any end of the stream."""
        with suppress(OSError):
            for _ in range(_DRAIN_READS):
                data = stream.recv(self._partial.bytes_wanted())
                with self._state.lock:
                    if not data or self._path.stream is not stream:
                        return
                    reason = self._core.receive_data(data, self._state.clock_ns())
                    self._path.report()
                    if reason is not None:
                        self._count_protocol_error(reason)
                        return

    def abort(self, stream: Stream) -> None:
        """End a stream whose reader was interrupted: received bytes may be lost.

        For the progress thread, which no handler interrupts.
        """
        with self._state.lock:
            if self._path.stream is stream:
                self._path.report()  # notify waiters for what did arrive
                self._path.end(DownReason.ERROR, errno.EINTR)
            self.reading = False

    def resume(self) -> None:
        """Read again: the mailbox that paused the path is at half."""
        with self._state.lock:
            self.paused = False
        self._progress.poll_set.update(self._path)
