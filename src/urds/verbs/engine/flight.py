"""What a requester has sent and not seen answered: one entry per PSN, and what to retry.

Each transmission has an ordinal. A PSN whose last transmission is `REORDER_MAX` behind an
answered one, and older than a round trip, is lost: packets sent later have arrived. The age
keeps a link that reorders from being flooded with retries.

The window bounds the unanswered PSNs. It is halved when the peer or the timer makes the requester
go back, since the responder drops everything behind a loss, and widens with every answer.
"""

import heapq
from collections.abc import Iterator
from typing import Final

from urds.verbs.engine.packets import PacketKind
from urds.verbs.engine.requests import READ_PORTION_PACKETS, SendRequest

WINDOW_PACKETS: Final = 128  # PSNs that may wait for an answer
WINDOW_LEAST_PACKETS: Final = 4
REORDER_MAX: Final = 3  # transmissions by which an answer may be overtaken


class _PendingPsn:
    """A PSN that waits for its answer."""

    __slots__ = ("request", "sent_ns", "transmission")

    def __init__(self, request: SendRequest, transmission: int, sent_ns: int) -> None:
        self.request = request
        self.transmission = transmission
        self.sent_ns = sent_ns


class Flight:
    """PSNs that wait for answers, counted without wrapping; iteration yields the lowest first."""

    __slots__ = (
        "_answered_transmission",
        "_completed_count",
        "_entries",
        "_retry_set",
        "_transmissions",
        "_window",
        "retries",
    )  # fmt: skip

    def __init__(self) -> None:
        # New PSNs are the highest and repeats keep their place, so the dict stays sorted.
        self._entries: dict[int, _PendingPsn] = {}
        self._transmissions = 0
        self._answered_transmission = 0
        self.retries: list[int] = []  # a heap
        self._retry_set: dict[int, None] = {}  # an empty set takes three times as much
        self._window = WINDOW_PACKETS
        self._completed_count = 0  # since the window was widened

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, psn: int) -> bool:
        return psn in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def oldest(self, default: int) -> int:
        """Return the lowest PSN that waits, `default` if none does."""
        return next(iter(self._entries), default)

    def request_of(self, psn: int) -> SendRequest | None:
        """Return the request of a PSN, `None` if the PSN does not wait."""
        entry = self._entries.get(psn)
        return None if entry is None else entry.request

    def sent_ns(self, psn: int) -> int:
        """Return when a PSN that waits was sent last."""
        return self._entries[psn].sent_ns

    def has_room(self, psn: int, count: int) -> bool:
        """Return whether the window allows these PSNs now. It always allows the only ones."""
        oldest = self.oldest(psn)
        return oldest == psn or psn + count - oldest <= self._window

    def narrow(self) -> None:
        """Halve the window: the responder dropped what was sent behind a loss."""
        self._window = max(WINDOW_LEAST_PACKETS, self._window // 2)

    def note_sent(self, request: SendRequest, psn: int, count: int, now_ns: int) -> None:
        """Record that `count` PSNs of a request were sent, for the first time or again."""
        for number in range(psn, psn + count):
            self._transmissions += 1
            entry = self._entries.get(number)
            if entry is None:
                self._entries[number] = _PendingPsn(request, self._transmissions, now_ns)
            else:
                entry.transmission, entry.sent_ns = self._transmissions, now_ns

    def note_kept(self, psn: int) -> None:
        """Record that the peer holds a read or atomic and will answer it in order.

        Transmissions up to now say nothing about the loss of that answer.
        """
        self._entries[psn].transmission = self._transmissions

    def complete_psn(self, psn: int) -> SendRequest:
        """Remove a PSN that was answered; return its request."""
        entry = self._entries.pop(psn)
        self._completed_count += 1
        if self._completed_count * 4 >= self._window:
            self._completed_count, self._window = 0, min(self._window + 1, WINDOW_PACKETS)
        self._answered_transmission = max(self._answered_transmission, entry.transmission)
        return entry.request

    def acknowledged(self, up_to: int) -> list[int]:
        """Return the PSNs that an acknowledgement completes: none of reads and atomics."""
        found = []
        for psn, entry in self._entries.items():
            if psn > up_to:
                break
            if not entry.request.is_answered:
                found.append(psn)
        return found

    def drop(self, request: SendRequest) -> None:
        """Forget all PSNs of a request."""
        for psn in [psn for psn, entry in self._entries.items() if entry.request is request]:
            del self._entries[psn]

    def clear(self) -> None:
        """Forget all unacknowledged packets."""
        self._entries.clear()
        self.retries.clear()
        self._retry_set.clear()

    # -- retries

    def find_lost(self, now_ns: int, age_ns: int) -> int | None:
        """Plan retries of what was overtaken and is at least `age_ns` old.

        Returns when to check again, `None` for never: something was overtaken and is younger.
        """
        limit = self._answered_transmission - REORDER_MAX
        again_ns: int | None = None
        for psn, entry in self._entries.items():
            if entry.transmission > limit or psn in self._retry_set:
                continue
            due_ns = entry.sent_ns + age_ns
            if due_ns <= now_ns:
                self._plan(psn)
            elif again_ns is None or due_ns < again_ns:
                again_ns = due_ns
        return again_ns

    def retry_from(self, first: int) -> None:
        """Plan retries of every unanswered PSN from `first` on."""
        for psn in self._entries:
            if psn >= first:
                self._plan(psn)

    def next_retry(self) -> int | None:
        """Return the PSN to retry next, `None` without any."""
        while self.retries:
            if self.retries[0] in self._entries:
                return self.retries[0]
            self._take()
        return None

    def take_retry(self) -> tuple[SendRequest, int, int]:
        """Take the next retry: request, PSN, and how many PSNs one read request can cover."""
        psn = self._take()
        request = self._entries[psn].request
        count = 1
        if request.kind is PacketKind.READ_REQUEST:
            while (
                count < READ_PORTION_PACKETS
                and self.next_retry() == psn + count
                and self._entries[psn + count].request is request
            ):
                self._take()
                count += 1
        return request, psn, count

    def _plan(self, psn: int) -> None:
        if psn not in self._retry_set:
            self._retry_set[psn] = None
            heapq.heappush(self.retries, psn)

    def _take(self) -> int:
        psn = heapq.heappop(self.retries)
        del self._retry_set[psn]
        return psn
