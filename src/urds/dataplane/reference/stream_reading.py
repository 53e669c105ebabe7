"""How a path reads its stream: one thread at a time, to its end, and what a read brings.

Reading does not stop because a mailbox is over its buffer, for acknowledgements and maps travel in
the same stream; far over it, the path pauses. Whatever ends a stream, all that the peer's TCP was
told to be here is taken in first. After an interrupt in between, octets may be lost on their way
from the stream to us: then the stream ends, and its peer repeats them.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING

from urds.dataplane.base import (
    Control,
    DownReason,
    FirstFrame,
    Limit,
    LimitHit,
    PeerRestarted,
    Stream,
)
from urds.dataplane.reference.inbox import Inbox

if TYPE_CHECKING:
    from urds.dataplane.reference.stream_path import StreamPath

_READS_PER_PASS = 8
_EXPECT_BYTES = 131072
_DRAIN_READS = 1024
_COUNTER_OF_BREACH = {
    DownReason.TOO_LONG: "recv_drop_too_long",
    DownReason.BAD_MAP: "recv_drop_bad_map",
    DownReason.BAD_CHECKSUM: "recv_drop_bad_checksum",
    DownReason.BAD_ACKNOWLEDGEMENT: "recv_drop_bad_ack",
}


def read(path: StreamPath) -> bool:
    """Read what is there, a bounded number of times; return whether anything came."""
    plane = path.plane
    with plane.lock:
        stream = path.stream
        if stream is None or path.reading or path.paused:
            plane.driven = plane.driven or path.reading
            return False
        path.reading = True
    read = 0
    try:
        while read < _READS_PER_PASS and _read_once(path, stream):
            read += 1
        if path.core.incoming.octets_expected() or path.expected_octets != 1:
            _expect(path, stream)
    except BaseException:
        _abort(path, stream)
        raise
    finally:
        path.reading = False
    if path.paused:
        plane.poll_set.update(path)
    if path.core.wants_to_write():
        path.flush()
    return read > 0


def drain(path: StreamPath, stream: Stream) -> None:
    """Take in everything that can be read without waiting, whatever ends it."""
    plane = path.plane
    with suppress(OSError):
        for _ in range(_DRAIN_READS):
            data = stream.recv(path.core.incoming.octets_wanted())
            with plane.lock:
                if not data or path.stream is not stream:
                    return
                reason = path.core.receive_data(data, plane.clock_ns())
                _settle(path)
                if reason is not None:
                    _count_breach(path, reason)
                    return


def _abort(path: StreamPath, stream: Stream) -> None:
    """End the stream after an interrupt: octets may be lost on their way from it to us."""
    with path.plane.lock:
        if path.stream is stream:
            _settle(path)  # what did arrive has its waiters, too
            path.end(DownReason.ERROR, errno.EINTR)


def _expect(path: StreamPath, stream: Stream) -> None:
    """Sleep through the pieces of a long payload: one wake-up, and one read, for most of it."""
    expected = path.core.incoming.octets_expected()
    if expected < _EXPECT_BYTES:
        expected = 1
    if expected != path.expected_octets and path.stream is stream:
        path.expected_octets = expected
        stream.expect(expected)


def _read_once(path: StreamPath, stream: Stream) -> bool:
    """Read once and take the octets in; return whether there may be more."""
    plane, core = path.plane, path.core
    octets_max = core.incoming.octets_wanted()
    error = 0
    try:
        data = stream.recv(octets_max)
    except BlockingIOError:
        return False
    except OSError as failure:
        data, error = b"", failure.errno or 0
    with plane.lock:
        if path.stream is not stream:
            return False
        if not data:
            path.end(DownReason.ERROR if error else DownReason.END_OF_STREAM, error)
            return False
        reason = core.receive_data(data, plane.clock_ns())
        _settle(path)
        if reason is not None:
            _count_breach(path, reason)
            path.end(reason, 0)
            return False
    return len(data) == octets_max


def _settle(path: StreamPath) -> None:
    """Report what a read brought: arrivals, room, control messages, maps. Lock held."""
    plane, incoming = path.plane, path.core.incoming
    for inbox, messages in incoming.touched:
        plane.note_arrival(inbox, messages)
        if inbox.may_be_too_full() and plane.is_over_hard_bound(inbox):
            _pause(path, inbox)
    incoming.touched.clear()
    if path.core.outgoing.freed or path.full or path.room_wanted or path.dependents:
        path.settle_freed()
    if incoming.frames and not path.first_frame_told:
        path.first_frame_told = True
        plane.emit(FirstFrame(path, path.attachment))
    if incoming.controls or incoming.controls_dropped:
        _settle_controls(path)
    if incoming.restarted:
        incoming.restarted = False
        plane.counters.peer_restarted += 1
        plane.emit(PeerRestarted(path))
    if incoming.peer_map is not None:
        octets, incoming.peer_map = incoming.peer_map, None
        plane.note_peer_map(path.host, path.peer, octets)
    if path.core.poll_timeout() is not None:
        plane.mark_dirty(path)


def _count_breach(path: StreamPath, reason: DownReason) -> None:
    """Count why a peer's stream is cut. Lock held."""
    name = _COUNTER_OF_BREACH[reason]
    counters = path.plane.counters
    setattr(counters, name, getattr(counters, name) + 1)


def _settle_controls(path: StreamPath) -> None:
    """Report pings, pongs and probes, up to the bound of what lies unfetched. Lock held."""
    plane, incoming = path.plane, path.core.incoming
    dropped, incoming.controls_dropped = incoming.controls_dropped, 0
    while incoming.controls:
        message = incoming.controls.popleft()
        if not message.target_port:
            plane.counters.recv_ping += 1
        if path.controls_unfetched >= plane.limits.control_events_max:
            dropped += 1
            continue
        path.controls_unfetched += 1
        plane.emit(Control(path, *message, path.attachment))
    path.controls_dropped += dropped
    plane.counters.recv_drop_control_full += dropped


def _pause(path: StreamPath, inbox: Inbox) -> None:
    """Stop reading until the mailbox is at half of its hard bound. Lock held."""
    if path.paused and path in inbox.pausing:
        return
    path.paused = True
    inbox.pausing.add(path)
    inbox.special = True
    path.plane.counters.recv_paused += 1
    path.plane.emit(LimitHit(Limit.RECEIVE_HARD, path, inbox.port, 0))
