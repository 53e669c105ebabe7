"""Writing to a path's stream: which thread writes, and when a message leaves.

*Which thread.* A thread that finds `writing` set leaves; the writer checks again before it clears
it, so no message stays. A write error does not end the stream: data that the peer sent before is
acknowledged to it already and must be read first.

*When a message leaves:* at once on an idle path, in a batch in a burst. A gap between sends gives
a budget; a write spends one of it. Without any a message waits in a *batch* until enough bytes are
pending, its sender waits for something, or the progress thread finds it half a millisecond old.
Small messages leave once the plane's `flush_bytes` are pending. The number of long messages, not
their bytes, is the cost of a write, so more of them join, up to a quarter of their sender's
account.

*Acknowledgements.* Linux does not notify that TCP has acknowledged bytes; it is queried, first
after a millisecond, then half as often each time without result. A sender whose account fills
queries by itself.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from os import eventfd_write
from typing import TYPE_CHECKING, Protocol

from urds.rds.plane.contract import (
    Buffer,
    Stream,
)
from urds.rds.plane.python.poll_set import Polled
from urds.rds.types import AckMode

if TYPE_CHECKING:
    from urds.rds.plane.python.path import PathCore
    from urds.rds.plane.python.progress import Progress
    from urds.rds.plane.python.state import State

_GAP_NS = 20_000  # a pause that gives the whole budget
_BURST_BUDGET = 2
_BATCH_NS = 500_000  # age at which the progress thread sends a batch
_ACK_POLL_NS = 1_000_000
_ACK_POLL_MAX_NS = 16_000_000
_BUFFERS_MAX = 1024  # of one sendmsg. Source: linux v6.12 include/uapi/linux/uio.h (UIO_MAXIOV)


class StreamOwner(Polled, Protocol):
    """The path of a writer and a reader."""

    core: PathCore
    full: bool  # at its limit of messages

    def check_full(self) -> None:
        """Compare the queue with its limit of messages. Lock held."""

    def finish_freed(self) -> None:
        """Notify of freed messages. Lock held."""

    def want(self) -> None:
        """Request a stream if there is none. Lock held."""


class StreamWriter:
    """The writing half of a path; the lock guards all attributes."""

    def __init__(self, path: StreamOwner, state: State, progress: Progress) -> None:
        self._path = path
        self._core = path.core
        self._sender = path.core.sender
        self._state = state
        self._progress = progress
        self.writing = False
        self._writes_alone = False  # a single message, and no other thread came with one
        self.writes = 0  # number of writes begun, and of the last one
        self.blocked = False  # the stream took less than was written: wait for POLLOUT
        self.broken = False  # writing failed; data from the peer is still read
        # Nothing is decided before so many bytes are pending: a batch is open, or no stream exists.
        self.batch_bytes = 0
        self._last_batch_bytes = state.limits.flush_bytes  # more after a burst of long messages
        self._burst_budget = 0  # writes at once before batches open
        self._idle_since_ns = 0
        self.batch_since_ns: int | None = None
        self._ack_poll_ns = 0
        self._ack_poll_delay_ns = _ACK_POLL_NS
        self._streams_to_close: list[Stream] = []  # closed once no thread writes to them

    # -- lock held

    def sends_alone(self) -> bool:
        """Return whether a message would leave alone: none is queued, and none is in flight."""
        sender = self._sender
        if sender.unacked or sender.unsent or self.writing or self.blocked or self.broken:
            return False
        return self._core.is_plain()

    def should_flush(self, burst_bytes: int) -> bool:
        """Spend the budget of an idle path, or open a batch; return whether to write.

        In a burst long messages leave once `burst_bytes` are pending, if that exceeds the plane's
        own limit.
        """
        state, sender = self._state, self._sender
        if not self._core.attached:
            self._path.check_full()
            self._path.want()
            self.batch_bytes = self._last_batch_bytes
            return False
        enough_bytes = state.limits.flush_bytes
        if burst_bytes > enough_bytes and sender.is_long():
            enough_bytes = burst_bytes
        if sender.pending_bytes >= enough_bytes:
            self._path.check_full()  # a blocked stream has no end of a write that would
            return True
        now_ns = state.clock_ns()
        if now_ns - self._idle_since_ns > _GAP_NS:
            self._burst_budget = _BURST_BUDGET
        self._idle_since_ns = now_ns
        if self._burst_budget:
            self._burst_budget -= 1
            return True
        self._path.check_full()
        self.batch_bytes = self._last_batch_bytes = enough_bytes
        self.batch_since_ns = now_ns
        state.batches = True
        state.mark_dirty(self._path)
        return False

    def flush_soon(self) -> None:
        """Have the next timed pass flush the path first."""
        if self._core.wants_to_write():
            self.batch_since_ns = self._state.clock_ns() - _BATCH_NS
            self._state.mark_dirty(self._path)

    def end_batch(self) -> None:
        """Have the next send decide anew whether it leaves, and request a stream if none is."""
        self.batch_bytes = 0
        self.batch_since_ns = None

    def begin_stream(self) -> None:
        """Reset the state of a stream."""
        self.blocked = self.broken = False
        self.batch_bytes = 0

    def dispose(self, stream: Stream) -> None:
        """Close a stream; if a thread writes to it, that thread does."""
        if self.writing:
            self._streams_to_close.append(stream)
        else:
            stream.close()

    def due_ns(self) -> int | None:
        """Return when `serve_due` has something to do."""
        core = self._core
        if self._path.stream is None:
            return None
        due: int | None = None
        if not self.blocked and not self.broken:  # else the stream itself says when to continue
            if core.receiver.ack_due:
                return 0
            due = core.ack_at_ns
            if self.batch_since_ns is not None:
                batch_ns = self.batch_since_ns + _BATCH_NS
                due = batch_ns if due is None else min(due, batch_ns)
        if core.sender.unacked and core.sender.ack_mode is AckMode.STREAM_ACKNOWLEDGED:
            due = self._ack_poll_ns if due is None else min(due, self._ack_poll_ns)
        return due

    def _poll_transmit(self) -> list[Buffer]:
        """Return the next buffers to write; with nothing left, stop writing.

        The last check and the clearing of `writing` share a critical section: a message queued in
        between would find a writer that has checked already. The result is a copy: the core goes on
        with its own list, and a writer that has stopped must not see a later one's bytes.
        """
        buffers = self._core.poll_transmit()[:_BUFFERS_MAX]
        if not buffers:
            self._finish_write()
        return buffers

    def advance(self, stream: Stream, taken: int, failure: OSError | None) -> list[Buffer]:
        """Count the bytes that the stream took; return the next to write."""
        if self._path.stream is None or not self._core.attached:  # an interrupt may cut its end
            self._finish_write()
            return []
        if self._path.stream is stream:  # else superseded meanwhile; its core began anew
            if not self._core.transmitted(taken) or failure is not None:
                self._writes_alone = False
            if failure is not None:
                self.blocked = isinstance(failure, BlockingIOError)
                self.broken = not self.blocked
                self._state.counters.tcp_sndbuf_full += self.blocked
                self._finish_write()
                return []
        return self._poll_transmit()

    def _finish_write(self) -> None:
        """Finish a write: close the batch, expect acknowledgements."""
        self.writing = False
        if self._core.ack_at_ns is None:
            self._state.ack_deadlines.pop(self._path, None)  # pending acknowledgements have left
        self.end_batch()  # also without a stream: the next send must request one
        was_alone, self._writes_alone = self._writes_alone, False
        if not was_alone:
            self._note_end_of_write()
        while self._streams_to_close:
            self._streams_to_close.pop().close()

    def _note_end_of_write(self) -> None:
        self._idle_since_ns = self._state.clock_ns()
        self._path.check_full()
        sender = self._sender
        if sender.unacked and sender.ack_mode is not AckMode.PEER_ACKNOWLEDGED:
            self._ack_poll_delay_ns = _ACK_POLL_NS
            self._ack_poll_ns = self._idle_since_ns + _ACK_POLL_NS
            self._state.mark_dirty(self._path)

    # -- no lock held

    def flush(self, burst_bytes: int | None = None) -> None:
        """Write until nothing is left or the stream takes no more; never blocks.

        With `burst_bytes` only if `should_flush` agrees, or for a message that leaves alone: then
        nothing is in flight to wait for.
        """
        path, interrupts, sender = self._path, self._state.interrupts, self._sender
        stream: Stream | None = None
        write_number = 0
        try:
            with self._state.lock:
                buffers: list[Buffer] = []
                leaves = burst_bytes is None or sender.lone or self.should_flush(burst_bytes)
                stream = path.stream
                if leaves and stream and not (self.writing or self.blocked or self.broken):
                    write_number = self.writes = self.writes + 1  # first: a handler may raise
                    self.writing, self._writes_alone = True, sender.lone
                    if self._writes_alone:
                        self._state.dirty.pop(self._path, None)  # it leaves nothing behind
                    buffers = self._poll_transmit()
                elif leaves:
                    self._writes_alone = False
                sender.lone = False
            while buffers:
                assert stream is not None, "nothing is left to write without a stream"
                taken, failure = write(stream, buffers)
                with self._state.lock:
                    buffers = self.advance(stream, taken, failure)
                    stream = path.stream
            if write_number and self.blocked:
                self._progress.poll_set.update(path)
            if self._state.wait_queue.due:
                self._progress.deliver()
        except BaseException:
            if write_number:
                interrupts.writes[self] = write_number
                interrupts.seen = True
                eventfd_write(interrupts.wake_descriptor, 1)
            raise

    def abort(self, write_number: int) -> None:
        """End the local direction after an interrupt: the bytes that the stream took are unknown.

        For the progress thread, which no handler interrupts.
        """
        with self._state.lock:
            if not self.writing or self.writes != write_number:
                return  # it was over, and the present write is another's
            stream = self._path.stream  # perhaps a later one than the writer began with
            self.broken = stream is not None
            self._finish_write()
        if stream is not None:
            _end_direction(stream)

    def unblock(self) -> None:
        """Write again: the stream takes bytes."""
        with self._state.lock:
            self.blocked = False
            self._state.counters.tcp_write_space_calls += 1
            self._state.mark_dirty(self._path)  # an acknowledgement may be pending since
        self._progress.poll_set.update(self._path)
        self.flush()

    def note_active(self) -> None:
        """Note that the sender did something else: no pause of it."""
        self._idle_since_ns = self._state.clock_ns()

    def serve_due(self, now_ns: int) -> None:
        """Do due work: the batch, an acknowledgement, a query of TCP."""
        sender = self._sender
        with self._state.lock:
            self._core.handle_timeout(now_ns)
            query = sender.ack_mode is AckMode.STREAM_ACKNOWLEDGED and bool(sender.unacked)
            query = query and now_ns >= self._ack_poll_ns
            self.batch_since_ns = None
        if query:
            before = len(sender.unacked)
            self.query_stream()
            if len(sender.unacked) == before:
                self._ack_poll_delay_ns = min(2 * self._ack_poll_delay_ns, _ACK_POLL_MAX_NS)
            self._ack_poll_ns = now_ns + self._ack_poll_delay_ns
        self.flush()

    def query_stream(self) -> None:
        """Free messages that the local TCP reports acknowledged by the peer's TCP.

        Under the lock, so that no thread closes the descriptor in between; bytes that another
        thread is writing count as not acknowledged.
        """
        core, path = self._core, self._path
        with self._state.lock, suppress(OSError):
            if path.stream is not None:
                core.handle_stream_acknowledged(core.bytes_written - path.stream.unacknowledged())
                path.finish_freed()


def write(stream: Stream, buffers: Sequence[Buffer]) -> tuple[int, OSError | None]:
    """Write once; return the bytes taken and why the stream takes no more. No lock held."""
    try:
        return stream.sendmsg(buffers, (), socket.MSG_NOSIGNAL), None
    except BlockingIOError as failure:
        return 0, failure
    except OSError as failure:
        _end_direction(stream)  # after any failure the stream comes to its end and is read to it
        return 0, failure


def _end_direction(stream: Stream) -> None:
    """End the local direction; data that the peer sent before is still read."""
    with suppress(OSError):
        stream.shutdown(socket.SHUT_WR)
