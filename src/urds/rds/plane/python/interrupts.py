"""What the exception of a signal handler cuts off, and who puts it right.

A handler may raise wherever the interpreter looks for signals: after a call has returned, where a
function begins, where a loop turns back; also in whatever would clean up after the first one.
Source: CPython 3.11 to 3.13, Python/ceval.c (CHECK_EVAL_BREAKER). Three rules follow.

A change that must be whole is stores, and then one call that is made of C alone: nothing comes in
between. So a message enters its queue in the step that counts it and gives it its number.

Who is interrupted cleans up nothing. It notes here what it has left, by a store, and rings for the
helper, by one call: an `except` clause that begins so cannot be cut. What it was doing stays marked
as being done, so nobody goes on with it.

The helper's thread runs no handlers. It ends what was left: a stream of which octets may be lost on
their way from or to us, and its peer repeats them; a wait. Then it looks at everything else, for
somebody may not have been told.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from urds.dataplane.reference import stream_reading

if TYPE_CHECKING:
    from urds.dataplane.base import Stream
    from urds.dataplane.reference.plane import Plane
    from urds.dataplane.reference.stream_path import StreamPath
    from urds.dataplane.reference.waiting import Waiter, Waiters


class Interrupts:
    """What interrupted calls left; each table is stored to without a lock."""

    __slots__ = ("_lock", "_plane", "reads", "seen", "waits", "writes")

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self.seen = False  # set last, before the helper is rung for
        self.reads: dict[StreamPath, Stream] = {}
        self.writes: dict[StreamPath, int] = {}  # and the number of the write
        self.waits: dict[Waiter, Waiters] = {}

    def settle(self) -> None:
        """Put right what was left, if anything was. No lock held."""
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
                    plane.maps_due.update(host.carried)
                plane.poll_set.watch_again()
                paths = [path for host in hosts for path in host.paths]
                for path in paths:
                    path.settle_freed()
                    if path.core.outgoing.holds():
                        path.want()
        for path in paths:
            plane.poll_set.update(path)
            if path.core.wants_to_write():
                path.flush()
        plane.settle()
        plane.desk.deliver()

    def abandon_in_child(self) -> None:
        """Forget after a fork what the parent's threads left."""
        self._lock = threading.Lock()
        self.seen = False
        self.reads, self.writes, self.waits = {}, {}, {}
