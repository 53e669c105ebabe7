"""What time makes due on a path: a tail, an acknowledgement, a question to TCP about the peer's.

Towards Linux nothing tells us that its TCP has acknowledged; it is asked, first after a
millisecond, then half as often each time in vain. A sender whose account fills asks by itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from urds.dataplane.base import Release

if TYPE_CHECKING:
    from urds.dataplane.reference.stream_path import StreamPath

TAIL_NS = 500_000  # age at which the helper sends a tail
ACK_POLL_NS = 1_000_000
_ACK_POLL_MAX_NS = 16_000_000


def look_for_acknowledgements(path: StreamPath) -> None:
    """Free what the peer has: read its acknowledgements, or ask our TCP what its TCP has."""
    path.plane.driven = True  # a sender that reads them itself needs no helper
    if path.core.outgoing.release is Release.PEER_ACKNOWLEDGED:
        path.read()
    else:
        _ask_stream(path)
    path.plane.settle()
    path.idle_since_ns = path.plane.clock_ns()  # looking is no pause of the sender


def due_ns(path: StreamPath) -> int | None:
    """Return when `serve` has something to do. Lock held."""
    core = path.core
    if path.stream is None:
        return None
    due: int | None = None
    if not path.blocked and not path.broken:  # else the stream itself says when to go on
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
    """Do what is due: the tail, an acknowledgement, a question to TCP. No lock held."""
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
    """Free what our TCP says the peer's TCP has.

    Under the lock, so that nobody closes the descriptor in between; what another thread is
    just writing is not counted yet, and counts as not acknowledged.
    """
    core = path.core
    with path.plane.lock, suppress(OSError):
        if path.stream is not None:
            core.handle_stream_acknowledged(core.octets_written - path.stream.unacknowledged())
            path.settle_freed()
