"""When a message leaves: at once on an idle path, with others in a burst.

A gap between sends gives credits; a write spends one. Without credit a message waits as a *tail*
until enough octets are pending, its sender waits for something, or the helper finds it half a
millisecond old. Small messages leave once the plane's `flush_bytes` are pending. A write of long
ones costs by their number, not by their octets, so more of them join, up to a quarter of their
sender's account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urds.dataplane.reference.stream_path import StreamPath

_GAP_NS = 20_000  # a pause that makes the next two sends leave at once
_CREDITS = 2


def leaves_now(path: StreamPath, burst_bytes: int) -> bool:
    """Spend a credit of an idle path, or note a tail; return whether to write. Lock held.

    In a burst of long messages they leave once `burst_bytes` are pending, if that is more than the
    plane's own bound.
    """
    plane, outgoing = path.plane, path.core.outgoing
    if not path.core.attached:
        path.judge_full()
        path.want()
        path.settled = True
        return False
    enough_bytes = plane.flush_bytes
    if burst_bytes > enough_bytes and outgoing.is_long():
        enough_bytes = burst_bytes
    if outgoing.pending_bytes >= enough_bytes:
        path.judge_full()  # a stream that takes nothing more has no end of a write that would
        return True
    now_ns = plane.clock_ns()
    if now_ns - path.idle_since_ns > _GAP_NS:
        path.credits = _CREDITS
    path.idle_since_ns = now_ns
    if path.credits:
        path.credits -= 1
        return True
    path.judge_full()
    path.settled = True
    path.flush_bytes = enough_bytes
    path.tail_since_ns = now_ns
    plane.tails = True
    plane.mark_dirty(path)
    return False
