"""Timed work of a path: a batch, an acknowledgement, a query of TCP's acknowledgements.

Linux does not notify that TCP has acknowledged bytes; it is queried, first after a millisecond,
then half as often each time without result. A sender whose account fills queries by itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Release

if TYPE_CHECKING:
    from urds.rds.plane.python.stream_path import StreamPath

TAIL_NS = 500_000  # age at which the progress thread sends a batch
ACK_POLL_NS = 1_000_000
_ACK_POLL_MAX_NS = 16_000_000


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
