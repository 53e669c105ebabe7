"""The completion queue: a bounded queue of work completions with a one-shot notification.

Queue pairs push, the application polls. `arm` requests one event for the next completion that
qualifies; the race rule is: poll, arm, poll again. A completion that finds no room is lost and
`on_overflow` is called once: the owner then moves the queue pairs that use the queue to ERR.
Source: docs/reference/verbs-and-roce.md 12.

The queue takes no lock; its adapter's lock guards it and the callbacks run with it held.
"""

import errno
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from urds.verbs.engine.numbers import WCStatus
from urds.verbs.engine.work import WC


class _Armed(Enum):
    NO = auto()
    SOLICITED = auto()
    ANY = auto()


def _nothing() -> None:
    """Stand in for a callback that is not set."""


class CompletionQueue:
    """Up to `capacity` completions, in the order in which they were pushed.

    `on_event` is called once per `arm`. `on_push` may take a completion away before it is queued
    by returning True: DAT's event dispatcher does. `on_overflow` is called at the first loss.
    """

    def __init__(self, capacity: int) -> None:
        """Make an empty queue. Raises OSError: EINVAL for a capacity below 1."""
        if capacity < 1:
            raise OSError(errno.EINVAL, f"completion queue of {capacity} entries, at least 1")
        self.capacity = capacity
        self.overrun = False
        self.lost_count = 0
        self.on_event: Callable[[], None] | None = None
        self.on_push: Callable[[WC, bool], bool] | None = None
        self.on_overflow: Callable[[], None] = _nothing
        self._entries: deque[WC] = deque()
        self._armed = _Armed.NO

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, wc: WC, *, solicited: bool = False) -> None:
        """Queue a completion and fire the notification that waits for it.

        A failure counts as solicited. Without room the completion is lost: see `overrun`.
        """
        solicited = solicited or wc.status is not WCStatus.SUCCESS
        if self.on_push is not None and self.on_push(wc, solicited):
            return
        if len(self._entries) >= self.capacity:
            self._lose()
            return
        self._entries.append(wc)
        if self._armed is _Armed.ANY or (solicited and self._armed is _Armed.SOLICITED):
            self._armed = _Armed.NO
            if self.on_event is not None:
                self.on_event()

    def poll(self, count: int) -> list[WC]:
        """Take up to `count` completions, oldest first."""
        entries = self._entries
        return [entries.popleft() for _ in range(min(count, len(entries)))]

    def discard(self, qpn: int) -> None:
        """Drop the completions of a queue pair that starts over or is gone.

        It may be connected anew, with requests that have the same wr_id. mlx5 does so at RESET and
        destroy, rxe leaves the completions. Source: rdma-core v44 providers/mlx5/verbs.c
        (mlx5_modify_qp, mlx5_destroy_qp), linux 02827b670851 drivers/infiniband/sw/rxe/rxe_qp.c
        (rxe_qp_reset).
        """
        kept = [wc for wc in self._entries if wc.qp_num != qpn]
        if len(kept) < len(self._entries):
            self._entries = deque(kept)

    def arm(self, solicited_only: bool = False) -> None:
        """Request one event for the next completion, or for the next solicited one.

        If both are requested before either came, any completion fires. Entries that are queued
        already fire nothing.
        """
        if not solicited_only:
            self._armed = _Armed.ANY
        elif self._armed is _Armed.NO:
            self._armed = _Armed.SOLICITED

    def resize(self, capacity: int) -> None:
        """Change the capacity. Raises OSError: EINVAL below 1 or below what is queued."""
        if capacity < max(1, len(self._entries)):
            raise OSError(
                errno.EINVAL,
                f"completion queue of {capacity} entries, at least 1 and the "
                f"{len(self._entries)} that are queued",
            )
        self.capacity = capacity

    def _lose(self) -> None:
        self.lost_count += 1
        if not self.overrun:
            self.overrun = True
            self.on_overflow()
