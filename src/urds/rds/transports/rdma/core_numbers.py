"""The numbers of a connection core, as a courier goes on from them and gives them back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from urds.rds.transports.rdma.credits import Credits
    from urds.rds.transports.rdma.frames import Task

# A work request that has not completed: its number, and whose piece it is; None: a frame.
Posted = tuple[int, "Task | None"]


class CoreNumbers:
    """The part of a `ConnectionCore` that compiled code has at times; see `courier`."""

    outgoing: Any  # `sending.Outgoing`
    incoming: Any  # `receiving.Incoming`
    map_due: bool
    _is_packed: bool
    _credits: Credits
    _posted: deque[Posted]
    _wr_id_next: int
    _ack_wr_id: int
    _told: int
    _frames_under_way: int
    _was_acknowledged: bool

    def hand_over(self) -> tuple[Any, ...] | None:
        """Return the numbers, for a courier to go on from; None while it could not."""
        outgoing, incoming = self.outgoing, self.incoming
        if not self._is_packed or self._credits.is_on or self.map_due or incoming.is_partial:
            return None
        if any(task is not None for _, task in self._posted):
            return None
        messages = outgoing.hand_over_messages(outgoing.sequence_next)
        if messages is None:
            return None
        return (
            messages,
            outgoing.sequence_next,
            outgoing.budget.left(),
            self._wr_id_next,
            [(number, number == self._ack_wr_id) for number, _ in self._posted],
            (
                incoming.sequence_expected,
                incoming.acknowledgement,
                incoming.acknowledgement_asked,
                self._told,
            ),
        )

    def take_back(
        self,
        frame_next: int,
        posted: Sequence[tuple[int, bool]],
        received: tuple[int, int, bool, int],
        *,
        acknowledged: int,
    ) -> None:
        """Go on from the numbers of a courier."""
        incoming = self.incoming
        self._wr_id_next = frame_next
        self._posted = deque((number, None) for number, _ in posted)
        self._ack_wr_id = next((number for number, is_ack in posted if is_ack), 0)
        self._frames_under_way = sum(not is_ack for _, is_ack in posted)
        incoming.sequence_expected, incoming.acknowledgement = received[:2]
        incoming.acknowledgement_asked, self._told = received[2:]
        self._was_acknowledged |= acknowledged > 0
