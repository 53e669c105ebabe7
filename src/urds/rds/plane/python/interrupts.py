"""Recovery of work that a signal handler's exception interrupted.

A handler may raise wherever the interpreter checks for signals: after a call has returned, where a
function begins, where a loop jumps back; also in the cleanup after a first exception. Source:
CPython 3.11 to 3.13, Python/ceval.c (CHECK_EVAL_BREAKER). Three rules follow.

An atomic change is stores, and then one call that is made of C alone: no handler runs in between.
So a message enters its queue in the step that counts it and gives it its number.

An interrupted thread cleans up nothing. It notes here the work it has left, by a store, and wakes
the progress thread, by one call: an `except` clause that begins so cannot be cut. The work stays
marked as in progress, so no other thread continues it.

The progress thread runs no handlers. It ends the interrupted work: a stream that may have lost
bytes in either direction, which its peer retransmits; a wait. Then it checks everything else, since
a notification may be missing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from urds.rds.plane.python import stream_reading

if TYPE_CHECKING:
    from urds.rds.plane.contract import Stream
    from urds.rds.plane.python.plane import Plane
    from urds.rds.plane.python.stream_path import StreamPath
    from urds.rds.plane.python.waiting import Waiter, Waiters


class Interrupts:
    """Work left by interrupted calls; each table is stored to without a lock."""

    __slots__ = ("_lock", "_plane", "reads", "seen", "waits", "writes")

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self.seen = False  # set last, before the progress thread is woken
        self.reads: dict[StreamPath, Stream] = {}
        self.writes: dict[StreamPath, int] = {}  # and the number of the write
        self.waits: dict[Waiter, Waiters] = {}

    def finish_pass(self) -> None:
        """Recover interrupted work, if there is any. No lock held."""
        if not self.seen:
            return
        plane = self._plane
        with self._lock:
            self.seen = False
            while self.writes:
                path, number = self.writes.popitem()
                path.abort_write(number)
            while self.reads:
                path, stream = self.reads.popitem()
                stream_reading.abort(path, stream)
            while self.waits:
                waiter, waiters = self.waits.popitem()
                with plane.lock:
                    plane.leave(waiter, waiters, used=False)
            with plane.lock:
                hosts = list(plane.hosts.values())
                for host in hosts:
                    plane.touched.update(host.inboxes.values())
                    plane.maps_due.update(host.transports)
                plane.poll_set.watch_again()
                paths = [path for host in hosts for path in host.paths]
                for path in paths:
                    path.finish_freed()
                    if path.core.outgoing.holds():
                        path.want()
        for path in paths:
            plane.poll_set.update(path)
            if path.core.wants_to_write():
                path.flush()
        plane.finish_pass()
        plane.wait_queue.deliver()

    def abandon_in_child(self) -> None:
        """Forget after a fork the work of the parent's threads."""
        self._lock = threading.Lock()
        self.seen = False
        self.reads, self.writes, self.waits = {}, {}, {}
