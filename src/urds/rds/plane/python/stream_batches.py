"""When a message leaves: at once on an idle path, in a batch in a burst.

A gap between sends gives credits; a write spends one. Without credit a message waits in a *batch*
until enough bytes are pending, its sender waits for something, or the progress thread finds it half
a millisecond old. Small messages leave once the plane's `flush_bytes` are pending. The number of
long messages, not their bytes, is the cost of a write, so more of them join, up to a quarter of
their sender's account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urds.rds.plane.python.stream_path import StreamPath

_GAP_NS = 20_000  # a pause that makes the next two sends leave at once
_CREDITS = 2


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
