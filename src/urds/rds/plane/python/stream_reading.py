"""Reading of a path's stream: one thread at a time, to its end.

Reading does not stop because a mailbox is over its buffer, since acknowledgements and maps travel
in the same stream; far over it, the path pauses. At any end of a stream all data that the peer's
TCP had acknowledged is read first. After an interrupt in between, bytes from the stream may be
lost: then the stream ends, and its peer retransmits them.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from os import eventfd_write
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Control, DownReason, FirstFrame, PeerRestarted, Stream
from urds.rds.plane.python.background import note_ack_pending
from urds.rds.plane.python.receive_side import pause

if TYPE_CHECKING:
    from urds.rds.plane.python.stream_path import StreamPath

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
_COUNTER_OF_PROTOCOL_ERROR = {
    DownReason.TOO_LONG: "recv_drop_too_long",
    DownReason.BAD_MAP: "recv_drop_bad_map",
    DownReason.BAD_CHECKSUM: "recv_drop_bad_checksum",
    DownReason.BAD_ACKNOWLEDGEMENT: "recv_drop_bad_ack",
}


def read(path: StreamPath, *, others: bool = False) -> bool:
    """Read available bytes, a bounded number of times; return whether any came.

    The limit is lower if `others` are ready, too.
    """
    bytes_max = _SHARED_PASS_BYTES if others else _PASS_BYTES
    stream: Stream | None = None  # until this thread is the reader
    reads = byte_count = 0
    more = True
    try:
        with path.plane.lock:
            if path.stream is None or path.reading or path.paused:
                path.plane.driven = path.plane.driven or path.reading
                return False
            stream, path.reading = path.stream, True
        while more and reads < _READS_PER_PASS and byte_count < bytes_max:
            bytes_read, more = _read_once(path, stream)
            byte_count += bytes_read
            reads += 1
            more = more and not path.last_read_was_empty and _has_come(path, stream)
        expect(path, stream)
        path.reading = False
    except BaseException:
        if stream is not None:
            path.plane.interrupts.reads[path] = stream
            path.plane.interrupts.seen = True
            eventfd_write(path.plane.progress_thread.wake_descriptor, 1)
        raise
    finish(path)
    return byte_count > 0


def finish(path: StreamPath) -> None:
    """Do the work that follows a read, once no thread reads: pause, answer. No lock held."""
    if path.paused:
        path.plane.poll_set.update(path)
    if path.core.wants_to_write():
        path.flush()


def drain(path: StreamPath, stream: Stream) -> None:
    """Read everything available without waiting, up to any end of the stream."""
    plane = path.plane
    with suppress(OSError):
        for _ in range(_DRAIN_READS):
            data = stream.recv(path.core.incoming.bytes_wanted())
            with plane.lock:
                if not data or path.stream is not stream:
                    return
                reason = path.core.receive_data(data, plane.clock_ns())
                _report(path)
                if reason is not None:
                    _count_protocol_error(path, reason)
                    return


def abort(path: StreamPath, stream: Stream) -> None:
    """End a stream whose reader was interrupted: received bytes may be lost.

    For the progress thread, which no handler interrupts.
    """
    with path.plane.lock:
        if path.stream is stream:
            _report(path)  # notify waiters for what did arrive
            path.end(DownReason.ERROR, errno.EINTR)
        path.reading = False


def _has_come(path: StreamPath, stream: Stream) -> bool:
    """Return whether to read on: not while most of a long payload is still in transit.

    A payload read whole is what the system call returns; read in pieces it is copied once more, and
    each piece costs a wake-up.
    """
    expected = path.core.incoming.bytes_expected()
    return expected < _EXPECT_BYTES or stream.waiting() >= expected


def expect(path: StreamPath, stream: Stream) -> None:
    """Sleep through the pieces of a long payload: one wake-up, and one read, for most of it.

    For the thread that reads: its request must not outlive what the next reader finds.
    """
    expected = path.core.incoming.bytes_expected()
    if expected < _EXPECT_BYTES:
        expected = 1
    if expected != path.expected_bytes and path.stream is stream:
        path.expected_bytes = expected
        stream.expect(expected)


def _read_once(path: StreamPath, stream: Stream) -> tuple[int, bool]:
    """Read once and process the bytes; return how many, and whether to read on."""
    bytes_max = path.core.incoming.bytes_wanted()
    if path.last_read_was_empty:
        bytes_max = min(bytes_max, _EMPTY_READ_BYTES)
    data, error = b"", 0
    try:
        data = stream.recv(bytes_max)
    except BlockingIOError:
        return 0, False
    except OSError as failure:
        error = failure.errno or 0
    with path.plane.lock:
        if path.stream is not stream:
            return 0, False
        return len(data), digest(path, data, error) and len(data) == bytes_max


def digest(path: StreamPath, data: bytes, error: int) -> bool:
    """Process the bytes of a read, none at the end or after an error; return whether all is well.

    Lock held.
    """
    if not data:
        path.end(DownReason.ERROR if error else DownReason.END_OF_STREAM, error)
        return False
    reason = path.core.receive_data(data, path.plane.clock_ns())
    _report(path)
    if reason is not None:
        _count_protocol_error(path, reason)
        path.end(reason, 0)
    return reason is None


def _report(path: StreamPath) -> None:
    """Report the results of a read: arrivals, room, control messages, maps. Lock held."""
    plane, incoming = path.plane, path.core.incoming
    path.last_read_was_empty = not (
        incoming.touched or path.core.outgoing.freed or incoming.remaining()[1]
    )
    for inbox, messages in incoming.touched.items():
        plane.note_arrival(inbox, messages)
        too_full = inbox.may_be_too_full() and plane.is_over_hard_bound(inbox)
        if too_full and not (path.paused and path in inbox.pausing):
            path.paused = True
            pause(plane, path, inbox)
    incoming.touched.clear()
    if path.core.outgoing.freed or path.full or path.room_wanted or path.dependents:
        path.finish_freed()
    if incoming.frames and not path.first_frame_told:
        path.first_frame_told = True
        plane.emit(FirstFrame(path, path.attachment))
    while incoming.controls:
        plane.emit(Control(path, *incoming.controls.popleft(), path.attachment))
    if incoming.restarted:
        plane.emit(PeerRestarted(path))
        incoming.restarted = False
        plane.counters.peer_restarted += 1
    if incoming.peer_map is not None:
        data, incoming.peer_map = incoming.peer_map, None
        plane.note_peer_map(path.host, path.peer, data)
    ack_pending_ns = path.core.poll_timeout()
    if ack_pending_ns is not None:
        note_ack_pending(plane, path, ack_pending_ns)


def _count_protocol_error(path: StreamPath, reason: DownReason) -> None:
    """Count the reason for which a peer's stream is cut. Lock held."""
    name = _COUNTER_OF_PROTOCOL_ERROR[reason]
    counters = path.plane.counters
    setattr(counters, name, getattr(counters, name) + 1)
