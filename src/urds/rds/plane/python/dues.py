"""What time makes due in a plane.

Tails and acknowledgements of paths with streams, whatever paths of other transports asked for,
second looks at mailboxes over their buffer, lingers that are over. A leader serves it between two
polls, else whoever pumps or the helper.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from urds.dataplane.base import LingerOver
from urds.dataplane.reference.waiting import Doing

if TYPE_CHECKING:
    from urds.dataplane.carriage import CarriedPath
    from urds.dataplane.reference.mailbox import Mailbox
    from urds.dataplane.reference.plane import Plane
    from urds.dataplane.reference.stream_path import StreamPath


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
    owed = islice(plane.owing.values(), 1)
    missing = islice(plane.missing.values(), 1)
    for at_ns in (*owed, *missing, *looks, *plane.lingering.values(), *plane.carried_dues.values()):
        if at_ns is not None and (earliest is None or at_ns < earliest):
            earliest = at_ns
    return earliest


def note_owed(plane: Plane, path: StreamPath, at_ns: int) -> None:
    """Have a path acknowledge at a time, unless what it owes leaves before. Lock held."""
    if plane.owing.get(path) != at_ns:  # an earlier time is of what leaves in a write just now
        plane.owing.pop(path, None)
        plane.owing[path] = at_ns
        leader = plane.desk.leader
        if leader is None or leader.doing is Doing.IN_POLL:
            plane.helper.want()


def serve(plane: Plane) -> None:
    """Do what is due. No lock held."""
    with plane.lock:
        now_ns = plane.clock_ns()
        due = [*_due(plane, now_ns), *_take_owing(plane, now_ns)]
        _note_absent(plane, now_ns)
        carried = _take_carried(plane, now_ns) if plane.carried_dues else ()
        looks, plane.looks = plane.looks, set()
        plane.touched |= looks
        for mailbox in tuple(one for one, at_ns in plane.lingering.items() if at_ns <= now_ns):
            del plane.lingering[mailbox]
            for path in mailbox.paths():
                _end_linger(plane, path, mailbox)
    for path in due:
        path.serve(now_ns)
    for other in carried:
        other.serve()
    plane.settle()


def _due(plane: Plane, now_ns: int) -> list[StreamPath]:
    due = ((path, path.due_ns()) for path in plane._dirty)
    return [path for path, at_ns in due if at_ns is not None and at_ns <= now_ns]


def _end_linger(plane: Plane, path: StreamPath | CarriedPath, mailbox: Mailbox) -> None:
    """Cancel what a closed mailbox had its time for, and tell it."""
    unsent, unacknowledged = path.counts(mailbox)
    count = path.cancel(mailbox, None)
    plane.counters.send_linger_over += count
    if count:
        plane.emit(LingerOver(path, unsent, unacknowledged))


def _take_owing(plane: Plane, now_ns: int) -> list[StreamPath]:
    """Take the paths whose acknowledgement is due: one pass over as many, however many owe."""
    paths: list[StreamPath] = []
    for path, at_ns in plane.owing.items():
        if at_ns > now_ns:
            break
        paths.append(path)
    for path in paths:
        del plane.owing[path]
    return paths


def _note_absent(plane: Plane, now_ns: int) -> None:
    """Have peers count as absent for which messages have waited long. Lock held."""
    while plane.missing:
        path, at_ns = next(iter(plane.missing.items()))
        if at_ns > now_ns:
            break
        del plane.missing[path]
        path.absent = True
        host = plane.hosts[path.local]
        if any(other.peer == path.peer and other.stream is not None for other in host.paths):
            continue  # it is reached by another connection
        for mailbox in list(host.inboxes.values()):
            destination = mailbox.accounts.known(path.peer)
            if destination is not None:
                mailbox.note_absent(destination)


def flush_tails(plane: Plane) -> None:
    """Send what was left to coalesce. No lock held."""
    plane.tails = False
    if not plane._dirty:
        return
    with plane.lock:
        paths = tuple(path for path in plane._dirty if path.core.wants_to_write())
    for path in paths:
        path.flush()


def _take_carried(plane: Plane, now_ns: int) -> Sequence[CarriedPath]:
    paths = [path for path, at_ns in plane.carried_dues.items() if at_ns <= now_ns]
    for path in paths:
        del plane.carried_dues[path]
    return paths
