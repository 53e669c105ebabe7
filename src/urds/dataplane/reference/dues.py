"""What time makes due in a plane.

Tails and acknowledgements of paths with streams, whatever paths of other transports asked for,
second looks at mailboxes over their buffer, lingers that are over. A leader serves it between two
polls, else whoever pumps or the helper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urds.dataplane.carriage import CarriedPath
    from urds.dataplane.reference.plane import Plane


def next_ns(plane: Plane) -> int | None:
    """Return the earliest time at which `serve` has work. Lock held."""
    earliest: int | None = None
    for path in list(plane._dirty):
        due_ns = path.due_ns()
        if due_ns is None:
            del plane._dirty[path]
        elif earliest is None or due_ns < earliest:
            earliest = due_ns
    looks = (mailbox.look_again_ns() for mailbox in plane.looks)
    for at_ns in (*looks, *plane.lingering.values(), *plane.carried_dues.values()):
        if at_ns is not None and (earliest is None or at_ns < earliest):
            earliest = at_ns
    return earliest


def serve(plane: Plane) -> None:
    """Do what is due. No lock held."""
    with plane.lock:
        now_ns = plane.clock_ns()
        due = [
            path
            for path in plane._dirty
            if (at_ns := path.due_ns()) is not None and at_ns <= now_ns
        ]
        carried = _take_carried(plane, now_ns) if plane.carried_dues else ()
        looks, plane.looks = plane.looks, set()
        plane.touched |= looks
        for mailbox in [m for m, at_ns in plane.lingering.items() if at_ns <= now_ns]:
            del plane.lingering[mailbox]
            for path in mailbox.paths():
                plane.counters.send_linger_over += path.cancel(mailbox, None)
    for path in due:
        path.serve(now_ns)
    for other in carried:
        other.serve()
    plane.settle()


def _take_carried(plane: Plane, now_ns: int) -> Sequence[CarriedPath]:
    paths = [path for path, at_ns in plane.carried_dues.items() if at_ns <= now_ns]
    for path in paths:
        del plane.carried_dues[path]
    return paths
