"""The counts of one life of a host, in memory that outlives it.

Host and judge map one file. The host alone writes, a count per cell of 64 bits, each as soon as it
is true: what a killed process had sent and taken is known to the last message.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.messages import MessageLog

LIVES_MAX: Final = 16  # of one peer
_CELL_BYTES: Final = 8
_SENT_CELLS: Final = 3
_TAKEN_CELLS: Final = 6
_PEER_CELLS: Final = _SENT_CELLS + LIVES_MAX * _TAKEN_CELLS


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent to one peer."""

    accepted: int = 0  # messages that the socket took
    full: int = 0  # sends refused with EAGAIN: our own send queue
    congested: int = 0  # sends refused with ENOBUFS: the peer's receive queue


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken from one life of one peer; see `messages.MessageLog`."""

    first: int
    next: int
    delivered: int
    duplicated: int
    reordered: int
    damaged: int

    @property
    def missing(self) -> int:
        """Return how many did not come of those that lie before one that came."""
        return self.next - self.first - self.delivered if self.first >= 0 else 0


class Board:
    """The file `place` with the counts for `peers`."""

    def __init__(self, place: Path, peers: Sequence[str]) -> None:
        data = _CELL_BYTES * _PEER_CELLS * max(1, len(peers))
        with place.open("a+b") as file:
            file.truncate(data)
            self._memory = mmap.mmap(file.fileno(), data)
        self._cells = memoryview(self._memory).cast("q")
        self._starts = {peer: index * _PEER_CELLS for index, peer in enumerate(peers)}

    def note_sent(self, peer: str, sent: Sent) -> None:
        """Write what was sent to a peer."""
        start = self._starts[peer]
        cells = array("q", (sent.accepted, sent.full, sent.congested))
        self._cells[start : start + _SENT_CELLS] = cells

    def note_taken(self, peer: str, life: int, log: MessageLog, damaged: int) -> None:
        """Write what was taken from a life of a peer."""
        start = self._taken_start(peer, life)
        cells = (log.first + 1, log.next, log.delivered, log.duplicated)
        self._cells[start : start + _TAKEN_CELLS] = array("q", (*cells, log.reordered, damaged))

    def sent(self, peer: str) -> Sent:
        """Return what was sent to a peer."""
        start = self._starts[peer]
        return Sent(*self._cells[start : start + _SENT_CELLS])

    def taken(self, peer: str, life: int) -> Taken:
        """Return what was taken from a life of a peer."""
        start = self._taken_start(peer, life)
        first_plus_1, *others = self._cells[start : start + _TAKEN_CELLS]
        return Taken(first_plus_1 - 1, *others)

    def close(self) -> None:
        """Unmap the file; the counts are gone for this reader."""
        self._cells.release()
        self._memory.close()

    def _taken_start(self, peer: str, life: int) -> int:
        assert 0 <= life < LIVES_MAX, f"life {life}, not 0 to {LIVES_MAX - 1}"
        return self._starts[peer] + _SENT_CELLS + life * _TAKEN_CELLS
