"""Work requests of one connection between their posting and their completion.

A value machine: no I/O, no clock, no lock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from urds.rds.transports.rdma.frames import Task


class PostedWork:
    """What was posted and has not completed, in the order of its numbers.

    The core asks for its length before it posts: the ring bounds it.
    """

    __slots__ = ("_ack_wr_id", "_works", "frames", "wr_id_next")

    def __init__(self) -> None:
        self.wr_id_next = 1  # never reused: a completion of an older connection finds nothing
        self.frames = 0  # of messages
        self._works: deque[tuple[int, Task | None]] = deque()  # whose piece it is; None: a frame
        self._ack_wr_id = 0  # of the acknowledgement of its own that is on its way, 0 without one

    def __len__(self) -> int:
        return len(self._works)

    @property
    def has_acknowledgement(self) -> bool:
        """Whether an acknowledgement of its own is on its way."""
        return self._ack_wr_id != 0

    def note_piece(self, task: Task) -> None:
        """Note that a piece of an operation is posted, under the next number."""
        self._note(task)

    def note_frame(self) -> None:
        """Note that a frame of messages is posted, under the next number."""
        self.frames += 1
        self._note(None)

    def note_acknowledgement(self) -> None:
        """Note that a frame is posted that only acknowledges, under the next number."""
        self._ack_wr_id = self.wr_id_next
        self._note(None)

    def _note(self, task: Task | None) -> None:
        self._works.append((self.wr_id_next, task))
        self.wr_id_next += 1

    def complete(self, wr_id: int) -> Iterator[tuple[Task, bool]]:
        """Forget what is done: a request that was reported, and earlier ones that were not.

        Yields whose pieces they were, and whether that is the piece that was reported.
        """
        works = self._works
        if not works or wr_id > works[-1][0]:
            return
        while works and works[0][0] <= wr_id:
            number, task = works.popleft()
            if task is not None:
                yield task, number == wr_id
            elif number == self._ack_wr_id:
                self._ack_wr_id = 0
            else:
                self.frames -= 1

    def end_connection(self) -> None:
        """Forget all; the numbers go on."""
        self._works.clear()
        self.frames = self._ack_wr_id = 0

    # -- for a courier

    def hand_over(self) -> tuple[int, list[tuple[int, bool]]] | None:
        """Return the next number, and frames with whether they only acknowledge.

        None if a piece of an operation is under way.
        """
        if any(task is not None for _, task in self._works):
            return None
        return self.wr_id_next, [(number, number == self._ack_wr_id) for number, _ in self._works]

    def take_back(self, wr_id_next: int, frames: Sequence[tuple[int, bool]]) -> None:
        """Go on from what `hand_over` would return."""
        self.wr_id_next = wr_id_next
        self._works = deque((number, None) for number, _ in frames)
        self._ack_wr_id = next((number for number, is_ack in frames if is_ack), 0)
        self.frames = sum(not is_ack for _, is_ack in frames)
