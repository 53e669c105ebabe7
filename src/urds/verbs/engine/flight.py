"""What a requester has sent and not seen answered: one entry per PSN, and what to send again.

Each transmission has an ordinal. A PSN whose last transmission is `REORDER_MAX` behind an
answered one, and older than a round trip takes, is lost: packets sent later have arrived. The age
keeps a link that reorders from being flooded with repeats.

The window is what may wait at most. It narrows when the peer or the timer sends the requester
back, since then everything behind the loss was sent in vain, and widens with every answer.
"""

import heapq
from collections.abc import Iterator
from typing import Final

from urds.verbs.engine.packets import PacketKind
from urds.verbs.engine.requests import READ_PORTION_PACKETS, Request

WINDOW_PACKETS: Final = 128  # PSNs that may wait for an answer
WINDOW_LEAST_PACKETS: Final = 4
REORDER_MAX: Final = 3  # transmissions by which an answer may be overtaken


class _Entry:
    """A PSN that waits for its answer."""

    __slots__ = ("request", "sent_ns", "transmission")

    def __init__(self, request: Request, transmission: int, sent_ns: int) -> None:
        self.request = request
        self.transmission = transmission
        self.sent_ns = sent_ns


class Flight:
    """PSNs that wait, counted without wrapping; iterating gives them lowest first."""

    __slots__ = (
        "_answered_transmission", "_entries", "_repeat_set", "_settled",
        "_transmissions", "_window", "repeats",
    )  # fmt: skip

    def __init__(self) -> None:
        # New PSNs are the highest and repeats keep their place, so the dict stays sorted.
        self._entries: dict[int, _Entry] = {}
        self._transmissions = 0
        self._answered_transmission = 0
        self.repeats: list[int] = []  # a heap
        self._repeat_set: dict[int, None] = {}  # an empty set takes three times as much
        self._window = WINDOW_PACKETS
        self._settled = 0  # since the window was widened

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, psn: int) -> bool:
        return psn in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def oldest(self, default: int) -> int:
        """Return the lowest PSN that waits, `default` if none does."""
        return next(iter(self._entries), default)

    def request_of(self, psn: int) -> Request | None:
        """Return whose PSN this is, `None` if it does not wait."""
        entry = self._entries.get(psn)
        return None if entry is None else entry.request

    def sent_ns(self, psn: int) -> int:
        """Return when a PSN that waits was sent last."""
        return self._entries[psn].sent_ns

    def has_room(self, psn: int, count: int) -> bool:
        """Return whether the window allows to send these PSNs now. Anything may be sent alone."""
        oldest = self.oldest(psn)
        return oldest == psn or psn + count - oldest <= self._window

    def narrow(self) -> None:
        """Halve the window: what was sent behind a loss was in vain."""
        self._window = max(WINDOW_LEAST_PACKETS, self._window // 2)

    def note_sent(self, request: Request, psn: int, count: int, now_ns: int) -> None:
        """Take note that `count` PSNs of a request were sent, for the first time or again."""
        for number in range(psn, psn + count):
            self._transmissions += 1
            entry = self._entries.get(number)
            if entry is None:
                self._entries[number] = _Entry(request, self._transmissions, now_ns)
            else:
                entry.transmission, entry.sent_ns = self._transmissions, now_ns

    def note_kept(self, psn: int) -> None:
        """Take note that the peer has a read or atomic and will answer it when it is its turn.

        What was sent until now tells nothing about the loss of that answer.
        """
        self._entries[psn].transmission = self._transmissions

    def settle(self, psn: int) -> Request:
        """Take out a PSN that was answered."""
        entry = self._entries.pop(psn)
        self._settled += 1
        if self._settled * 4 >= self._window:
            self._settled, self._window = 0, min(self._window + 1, WINDOW_PACKETS)
        self._answered_transmission = max(self._answered_transmission, entry.transmission)
        return entry.request

    def acknowledged(self, up_to: int) -> list[int]:
        """Return the PSNs up to one that an acknowledgement settles: not of reads and atomics."""
        found = []
        for psn, entry in self._entries.items():
            if psn > up_to:
                break
            if not entry.request.is_answered:
                found.append(psn)
        return found

    def drop(self, request: Request) -> None:
        """Let no PSN of a request wait any more."""
        for psn in [psn for psn, entry in self._entries.items() if entry.request is request]:
            del self._entries[psn]

    def clear(self) -> None:
        """Let nothing wait any more."""
        self._entries.clear()
        self.repeats.clear()
        self._repeat_set.clear()

    # -- repeats

    def find_lost(self, now_ns: int, age_ns: int) -> int | None:
        """Plan repeats of what was overtaken and is as old as `age_ns`.

        Returns when to look again: something was overtaken and is younger. `None`: never.
        """
        limit = self._answered_transmission - REORDER_MAX
        again_ns: int | None = None
        for psn, entry in self._entries.items():
            if entry.transmission > limit or psn in self._repeat_set:
                continue
            due_ns = entry.sent_ns + age_ns
            if due_ns <= now_ns:
                self._plan(psn)
            elif again_ns is None or due_ns < again_ns:
                again_ns = due_ns
        return again_ns

    def repeat_from(self, first: int) -> None:
        """Plan repeats of everything that waits from a PSN on."""
        for psn in self._entries:
            if psn >= first:
                self._plan(psn)

    def next_repeat(self) -> int | None:
        """Return the PSN that is to be repeated next, `None` without any."""
        while self.repeats:
            if self.repeats[0] in self._entries:
                return self.repeats[0]
            self._take()
        return None

    def take_repeat(self) -> tuple[Request, int, int]:
        """Take the next repeat: whose, the PSN, and how many PSNs one read can ask for with it."""
        psn = self._take()
        request = self._entries[psn].request
        count = 1
        if request.kind is PacketKind.READ_REQUEST:
            while (
                count < READ_PORTION_PACKETS
                and self.next_repeat() == psn + count
                and self._entries[psn + count].request is request
            ):
                self._take()
                count += 1
        return request, psn, count

    def _plan(self, psn: int) -> None:
        if psn not in self._repeat_set:
            self._repeat_set[psn] = None
            heapq.heappush(self.repeats, psn)

    def _take(self) -> int:
        psn = heapq.heappop(self.repeats)
        del self._repeat_set[psn]
        return psn
