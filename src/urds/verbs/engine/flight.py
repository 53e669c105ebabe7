"""What a requester has sent and not seen answered: one entry per PSN, and what to retry.

Each transmission has an ordinal. A PSN whose last transmission is `REORDER_MAX` behind an
answered one, and older than a round trip, is lost: packets sent later have arrived. The age
keeps a link that reorders from being flooded with retries.

The window bounds the unanswered PSNs. It is halved when the peer or the timer makes the requester
go back, since the responder drops everything behind a loss, and widens with every answer.

The attribute `timeout` of a queue pair is often seconds, so that a lost last packet would stall
the connection for as long. The retry timer follows the measured round trip instead (as RFC 6298
does, with 1 ms as the least) and doubles with each expiry up to that attribute. The attribute
keeps its meaning for giving up: `retry_cnt` retries, one `timeout` apart, must all have failed,
so the requester gives up after (retry_cnt + 1) timeouts without any progress.
Source: docs/reference/verbs-and-roce.md 8, which allows local timers.

A link without loss still drops what is sent to a queue pair that does not exist, or not yet. There
the timer does not learn: a late answer means that the peer is busy, not that a packet is lost. It
retries once per `timeout`, as hardware does, at least 20 ms apart, and with `timeout` 0 it does
not run at all.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from urds.verbs.engine.packets import PacketKind
from urds.verbs.engine.requests import READ_PORTION_PACKETS, SendRequest

WINDOW_PACKETS: Final = 128  # PSNs that may wait for an answer
WINDOW_LEAST_PACKETS: Final = 4
REORDER_MAX: Final = 3  # transmissions by which an answer may be overtaken
MS: Final = 1_000_000
LEAST_NS: Final = MS
FIRST_NS: Final = 20 * MS  # before anything was measured
MOST_NS: Final = 2_000 * MS  # between repeats, when the attribute sets no bound
TIMEOUT_UNIT_NS: Final = 4096


@dataclass(slots=True, eq=False)
class _PendingPsn:
    """A PSN that waits for its answer."""

    request: SendRequest
    transmission: int
    sent_ns: int


@dataclass(slots=True, eq=False)
class Flight:
    """PSNs that wait for answers, counted without wrapping; iteration yields the lowest first."""

    # New PSNs are the highest and repeats keep their place, so the dict stays sorted.
    _entries: dict[int, _PendingPsn] = field(default_factory=dict)
    _transmissions: int = 0
    _answered_transmission: int = 0
    retries: list[int] = field(default_factory=list)  # a heap
    _retry_set: dict[int, None] = field(default_factory=dict)  # an empty set takes three times more
    _window: int = WINDOW_PACKETS
    _completed_count: int = 0  # since the window was widened

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
        """Take the next retry: request, PSN, and how many PSNs one read request can cover.

        Never more than the rest of one portion: rxe, which remembers requests as they came first,
        drops for ever a repeat that lies in two (Linux 6.1 and 7.3).
        """
        psn = self._take()
        request = self._entries[psn].request
        count = 1
        if request.kind is PacketKind.READ_REQUEST:
            end = psn + READ_PORTION_PACKETS - (psn - request.psn) % READ_PORTION_PACKETS
            while (
                psn + count < end
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


def timeout_ns(code: int) -> int | None:
    """Return the duration of a code of the attribute `timeout`; `None` for 0, no timeout."""
    return TIMEOUT_UNIT_NS << code if code else None


@dataclass(slots=True, eq=False)
class LossTimer:
    """One timer for all unanswered packets.

    `deadline_ns` is `None` while there are none, and when it was stopped until the next is sent.
    """

    deadline_ns: int | None = None
    is_used: bool = True  # false: nothing is to be noted, the timer never runs
    _learns: bool = True
    _most_ns: int = MOST_NS
    _patience_ns: int | None = None
    _smooth_ns: int | None = None
    _variation_ns: int = 0
    _wait_ns: int = FIRST_NS
    _backoff: int = 0
    _since_ns: int = 0  # the last progress
    _probe: tuple[int, int] | None = None  # a PSN, and when it was sent for the first time

    def configure(self, period_ns: int | None, retry_count: int, *, lossless: bool) -> None:
        """Set the longest wait, `None` for no bound, and how many retries must fail."""
        self._learns = not lossless
        self.is_used = self._learns or period_ns is not None
        least_ns = LEAST_NS if self._learns else FIRST_NS
        self._most_ns = MOST_NS if period_ns is None else max(least_ns, period_ns)
        self._patience_ns = None if period_ns is None else self._most_ns * (retry_count + 1)
        if lossless:
            self._wait_ns = self._most_ns
        if not self.is_used:
            self.deadline_ns = None

    @property
    def round_trip_ns(self) -> int:
        """Return the smoothed round trip, 0 before it was measured."""
        return self._smooth_ns or 0

    @property
    def overdue_ns(self) -> int:
        """Return the age from which an overtaken answer counts as lost."""
        return self.round_trip_ns + 2 * self._variation_ns

    def note_sent(self, psn: int, now_ns: int, *, is_retry: bool) -> None:
        """Record a sent packet; the timer runs from the first one on."""
        if is_retry:
            # An answer may be to either transmission (Karn's rule).
            if self._probe is not None and self._probe[0] >= psn:
                self._probe = None
        elif self._probe is None and self._learns:
            self._probe = (psn, now_ns)
        if self.deadline_ns is None:
            self._since_ns = now_ns
            self._arm(now_ns)

    def note_answered(self, psn: int, now_ns: int) -> None:
        """Record that a PSN was answered."""
        if self._probe is not None and psn >= self._probe[0]:
            sample_ns = now_ns - self._probe[1]
            self._probe = None
            self._measure(sample_ns)

    def note_progress(self, now_ns: int, *, is_idle: bool) -> None:
        """Restart after progress; stop when nothing is unanswered."""
        self._backoff = 0
        self._since_ns = now_ns
        if is_idle:
            self.deadline_ns = None
        else:
            self._arm(now_ns)

    def expire(self, now_ns: int) -> bool:
        """Handle an expiry; return whether to give up."""
        # A late timer is a delay of this side: the peer's answer may wait to be read.
        self._since_ns += max(0, now_ns - (self.deadline_ns or now_ns))
        if self._patience_ns is not None and now_ns - self._since_ns >= self._patience_ns:
            self.deadline_ns = None
            return True
        self._backoff += 1
        self._probe = None
        self._arm(now_ns)
        return False

    def _arm(self, now_ns: int) -> None:
        deadline_ns = now_ns + min(self._wait_ns << min(self._backoff, 16), self._most_ns)
        if self._patience_ns is not None:
            deadline_ns = min(deadline_ns, self._since_ns + self._patience_ns)
        self.deadline_ns = deadline_ns

    def _measure(self, sample_ns: int) -> None:
        if self._smooth_ns is None:
            self._smooth_ns, self._variation_ns = sample_ns, sample_ns // 2
        else:
            deviation = abs(self._smooth_ns - sample_ns)
            self._variation_ns = (3 * self._variation_ns + deviation) // 4
            self._smooth_ns = (7 * self._smooth_ns + sample_ns) // 8
        wait_ns = self._smooth_ns + 4 * self._variation_ns
        self._wait_ns = max(LEAST_NS, wait_ns)
