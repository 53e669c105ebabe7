"""Timed work of a plane.

Batches and acknowledgements of paths with streams, timers of message transports, second checks of
mailboxes over their buffer, expired lingers. A leader does it between two polls, else the thread
that calls `progress`, or the progress thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from urds.rds.plane.contract import LingerOver
from urds.rds.plane.python.waiting import Doing

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane
    from urds.rds.plane.python.stream_path import StreamPath


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
    ack_pending = islice(plane.ack_deadlines.values(), 1)
    missing = islice(plane.missing.values(), 1)
    for at_ns in (
        *ack_pending,
        *missing,
        *looks,
        *plane.lingering.values(),
        *plane.message_transport_dues.values(),
    ):
        if at_ns is not None and (earliest is None or at_ns < earliest):
            earliest = at_ns
    return earliest


def note_ack_pending(plane: Plane, path: StreamPath, at_ns: int) -> None:
    """Have a path acknowledge at a time, unless a message carries it before. Lock held."""
    if (
        plane.ack_deadlines.get(path) != at_ns
    ):  # an earlier time belongs to acknowledgements in a write under way
        plane.ack_deadlines.pop(path, None)
        plane.ack_deadlines[path] = at_ns
        leader = plane.wait_queue.leader
        if leader is None or leader.doing is Doing.IN_POLL:
            plane.progress_thread.want()


def serve(plane: Plane) -> None:
    """Do the due work. No lock held."""
    with plane.lock:
        now_ns = plane.clock_ns()
        due = [*_due(plane, now_ns), *_take_ack_deadlines(plane, now_ns)]
        _note_absent(plane, now_ns)
        transports = _take_from_transport(plane, now_ns) if plane.message_transport_dues else ()
        looks, plane.looks = plane.looks, set()
        plane.touched |= looks
        for mailbox in tuple(one for one, at_ns in plane.lingering.items() if at_ns <= now_ns):
            del plane.lingering[mailbox]
            for path in mailbox.paths():
                _end_linger(plane, path, mailbox)
    for path in due:
        path.serve(now_ns)
    for other in transports:
        other.serve()
    plane.finish_pass()


def _due(plane: Plane, now_ns: int) -> list[StreamPath]:
    due = ((path, path.due_ns()) for path in plane._dirty)
    return [path for path, at_ns in due if at_ns is not None and at_ns <= now_ns]


def _end_linger(plane: Plane, path: StreamPath | MessageTransport, mailbox: Mailbox) -> None:
    """Cancel a closed mailbox's messages on a path after its linger time; report it."""
    unsent, unacknowledged = path.counts(mailbox)
    count = path.cancel(mailbox, None)
    plane.counters.send_linger_over += count
    if count:
        plane.emit(LingerOver(path, unsent, unacknowledged))


def _take_ack_deadlines(plane: Plane, now_ns: int) -> list[StreamPath]:
    """Take the paths whose acknowledgement is due: one pass over those only."""
    paths: list[StreamPath] = []
    for path, at_ns in plane.ack_deadlines.items():
        if at_ns > now_ns:
            break
        paths.append(path)
    for path in paths:
        del plane.ack_deadlines[path]
    return paths


def _note_absent(plane: Plane, now_ns: int) -> None:
    """Mark peers absent for which messages have waited long. Lock held."""
    while plane.missing:
        path, at_ns = next(iter(plane.missing.items()))
        if at_ns > now_ns:
            break
        del plane.missing[path]
        path.absent = True
        host = plane.hosts[path.local]
        if any(other.peer == path.peer and other.stream is not None for other in host.paths):
            continue  # another connection reaches it
        for mailbox in list(host.inboxes.values()):
            destination = mailbox.accounts.known(path.peer)
            if destination is not None:
                mailbox.note_absent(destination)


def flush_batches(plane: Plane) -> None:
    """Send open batches. No lock held."""
    plane.batches = False
    if not plane._dirty:
        return
    with plane.lock:
        paths = tuple(path for path in plane._dirty if path.core.wants_to_write())
    for path in paths:
        path.flush()


def _take_from_transport(plane: Plane, now_ns: int) -> Sequence[MessageTransport]:
    paths = [path for path, at_ns in plane.message_transport_dues.items() if at_ns <= now_ns]
    for path in paths:
        del plane.message_transport_dues[path]
    return paths
