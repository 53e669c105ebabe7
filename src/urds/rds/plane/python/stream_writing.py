"""Writing to a path's stream: when a message leaves, timed work, the end of the local direction.

*When a message leaves:* at once on an idle path, in a batch in a burst. A gap between sends gives
credits; a write spends one. Without credit a message waits in a *batch* until enough bytes are
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
from socket import MSG_NOSIGNAL
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Buffer, Release, Stream

if TYPE_CHECKING:
    from urds.rds.plane.python.stream_path import StreamPath

_GAP_NS = 20_000  # a pause that makes the next two sends leave at once
_CREDITS = 2
TAIL_NS = 500_000  # age at which the progress thread sends a batch
ACK_POLL_NS = 1_000_000
_ACK_POLL_MAX_NS = 16_000_000


def leaves_now(path: StreamPath, burst_bytes: int) -> bool:
    """Spend a credit of an idle path, or open a batch; return whether to write. Lock held.

    In a burst long messages leave once `burst_bytes` are pending, if that exceeds the plane's own
    limit.
    """
    plane, outgoing = path.plane, path.core.outgoing
    if not path.core.attached:
        path.check_full()
        path.want()
        path.is_batching = True
        return False
    enough_bytes = plane.flush_bytes
    if burst_bytes > enough_bytes and outgoing.is_long():
        enough_bytes = burst_bytes
    if outgoing.pending_bytes >= enough_bytes:
        path.check_full()  # a blocked stream has no end of a write that would
        return True
    now_ns = plane.clock_ns()
    if now_ns - path.idle_since_ns > _GAP_NS:
        path.credits = _CREDITS
    path.idle_since_ns = now_ns
    if path.credits:
        path.credits -= 1
        return True
    path.check_full()
    path.is_batching = True
    path.flush_bytes = enough_bytes
    path.tail_since_ns = now_ns
    plane.batches = True
    plane.mark_dirty(path)
    return False


def write(stream: Stream, buffers: Sequence[Buffer]) -> tuple[int, OSError | None]:
    """Write once; return the bytes taken and why the stream takes no more. No lock held."""
    try:
        return stream.sendmsg(buffers, (), MSG_NOSIGNAL), None
    except BlockingIOError as failure:
        return 0, failure
    except OSError as failure:
        end_direction(stream)  # after any failure the stream comes to its end and is read to it
        return 0, failure


def write_all(path: StreamPath, stream: Stream | None, buffers: list[Buffer]) -> None:
    """Write, as the only writer, until nothing is left or the stream takes no more."""
    while buffers:
        assert stream is not None, "nothing is left to write without a stream"
        taken, failure = write(stream, buffers)
        with path.plane.lock:
            buffers = path.advance(stream, taken, failure)
            stream = path.stream
    if path.blocked:
        path.plane.poll_set.update(path)
    path.plane.deliver()


def end_direction(stream: Stream) -> None:
    """End the local direction; data that the peer sent before is still read."""
    with suppress(OSError):
        stream.shutdown(socket.SHUT_WR)


def look_for_acknowledgements(path: StreamPath) -> None:
    """Free acknowledged messages: read the peer's acks, or query the local TCP."""
    path.plane.driven = True  # a sender that reads them itself needs no progress thread
    if path.core.outgoing.release is Release.PEER_ACKNOWLEDGED:
        path.read()
    else:
        _ask_stream(path)
    path.plane.finish_pass()
    path.idle_since_ns = path.plane.clock_ns()  # this check is no pause of the sender


def due_ns(path: StreamPath) -> int | None:
    """Return when `serve` has something to do. Lock held."""
    core = path.core
    if path.stream is None:
        return None
    due: int | None = None
    if not path.blocked and not path.broken:  # else the stream itself says when to continue
        if core.incoming.acknowledgement_due:
            return 0
        due = core.poll_timeout()
        if path.tail_since_ns is not None:
            tail_ns = path.tail_since_ns + TAIL_NS
            due = tail_ns if due is None else min(due, tail_ns)
    if core.outgoing.unacked and core.outgoing.release is Release.STREAM_ACKNOWLEDGED:
        due = path.ack_poll_ns if due is None else min(due, path.ack_poll_ns)
    return due


def serve(path: StreamPath, now_ns: int) -> None:
    """Do due work: the batch, an acknowledgement, a query of TCP. No lock held."""
    with path.plane.lock:
        path.core.handle_timeout(now_ns)
        outgoing = path.core.outgoing
        ask = outgoing.release is Release.STREAM_ACKNOWLEDGED and bool(outgoing.unacked)
        ask = ask and now_ns >= path.ack_poll_ns
        path.tail_since_ns = None
    if ask:
        before = len(outgoing.unacked)
        _ask_stream(path)
        if len(outgoing.unacked) == before:
            path.ack_poll_delay_ns = min(2 * path.ack_poll_delay_ns, _ACK_POLL_MAX_NS)
        path.ack_poll_ns = now_ns + path.ack_poll_delay_ns
    path.flush()


def _ask_stream(path: StreamPath) -> None:
    """Free messages that the local TCP reports acknowledged by the peer's TCP.

    Under the lock, so that no thread closes the descriptor in between; bytes that another thread is
    writing count as not acknowledged.
    """
    core = path.core
    with path.plane.lock, suppress(OSError):
        if path.stream is not None:
            core.handle_stream_acknowledged(core.bytes_written - path.stream.unacknowledged())
            path.finish_freed()
