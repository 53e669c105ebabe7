"""A plane beside the driver's own, for RDMA: it has a thread that runs its `help`.

The driver's plane is compiled then and carries no RDMA. This one has the sockets over RDMA and
their paths, and no streams. Its thread is a second control thread: it takes the control lock for
what concerns RDMA, as the first does for all else, and sleeps in a plane of its own. Messages from
one of the two planes to the other go over `crossings`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Event, LingerOver, Plane, Snapshot
from urds.rds.runtime.undelivered import tell_linger_over

if TYPE_CHECKING:
    from urds.rds.runtime.control_thread import Driver


class PlaneBeside:
    """The plane and its thread; calls come with the control lock held unless they say otherwise."""

    def __init__(self, driver: Driver, make_plane: Callable[..., Plane]) -> None:
        from urds.rds.runtime.control_thread import limits_of

        self._driver = driver
        self.plane = make_plane(
            limits=limits_of(driver.settings), resolve=driver.resolve, generation=driver.generation
        )
        self._thread = threading.Thread(
            target=driver.guard.run, args=[self._run], name="urds-rdma", daemon=True
        )

    def start(self) -> None:
        """Begin to serve: the node that takes the events exists."""
        self._thread.start()

    def _run(self) -> None:
        driver = self._driver
        deadline_ns: int | None = None
        while True:
            events = self.plane.help(deadline_ns)
            with driver.lock:
                if driver.stopping:
                    driver.report_last(events)
                    return
                deadline_ns = self._serve(events)

    def _serve(self, events: list[Event]) -> int | None:
        """Report what came and do what is due; return the next deadline."""
        rdma, now = self._driver.rdma, now_ns()
        for event in events:
            if isinstance(event, LingerOver):
                tell_linger_over(self._driver, event)
            else:
                rdma.take(event)
        deadlines = (rdma.progress(now), rdma.progress_crossings(now))
        return min((at_ns for at_ns in deadlines if at_ns is not None), default=None)

    # -- ends; without the control lock

    def end_thread(self) -> None:
        """Have the thread end because the driver stops."""
        self.plane.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)

    def close(self, *, at_exit: bool = False) -> None:
        """Close the plane; it was drained, and its thread was told to end."""
        if at_exit:
            self.plane.end_streams()
            return
        self.plane.close(0)
        if not self._thread.is_alive():
            self.plane.release()


def both(one: Snapshot, other: Snapshot) -> Snapshot:
    """Return counters and tables of two planes of a process as those of one."""
    return Snapshot(
        counters=_sums(one.counters, other.counters),
        mailboxes=[*one.mailboxes, *other.mailboxes],
        paths=[*one.paths, *other.paths],
        send_queue=[*one.send_queue, *other.send_queue],
        retransmit_queue=[*one.retransmit_queue, *other.retransmit_queue],
        receive_queue=[*one.receive_queue, *other.receive_queue],
    )


def _sums(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}
