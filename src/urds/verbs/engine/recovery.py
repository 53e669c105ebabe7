"""The retry timer of a requester: it learns the round trip.

The attribute `timeout` of a queue pair is often seconds, so that a lost last packet would stall
the connection for as long. This timer follows the measured round trip instead (as RFC 6298
does, with 1 ms as the least) and doubles with each expiry up to that attribute. The attribute
keeps its meaning for giving up: `retry_cnt` retries, one `timeout` apart, must all have failed,
so the requester gives up after (retry_cnt + 1) timeouts without any progress.
Source: docs/reference/verbs-and-roce.md 8, which allows local timers.

A link without loss still drops what is sent to a queue pair that does not exist, or not yet. There
the timer does not learn: a late answer means that the peer is busy, not that a packet is lost. It
retries once per `timeout`, as hardware does, at least 20 ms apart, and with `timeout` 0 it does
not run at all.
"""

from typing import Final

MS: Final = 1_000_000
LEAST_NS: Final = MS
FIRST_NS: Final = 20 * MS  # before anything was measured
MOST_NS: Final = 2_000 * MS  # between repeats, when the attribute sets no bound
TIMEOUT_UNIT_NS: Final = 4096


def timeout_ns(code: int) -> int | None:
    """Return the duration of a code of the attribute `timeout`; `None` for 0, no timeout."""
    return TIMEOUT_UNIT_NS << code if code else None


class LossTimer:
    """One timer for all unanswered packets. `deadline_ns` is `None` while there are none."""

    __slots__ = (
        "_backoff", "_learns", "_most_ns", "_patience_ns", "_probe", "_since_ns", "_smooth_ns",
        "_variation_ns", "_wait_ns", "deadline_ns", "is_used",
    )  # fmt: skip

    def __init__(self) -> None:
        self.deadline_ns: int | None = None
        self.is_used = True  # false: nothing is to be noted, the timer never runs
        self._learns = True
        self._most_ns = MOST_NS
        self._patience_ns: int | None = None
        self._smooth_ns: int | None = None
        self._variation_ns = 0
        self._wait_ns = FIRST_NS
        self._backoff = 0
        self._since_ns = 0  # the last progress
        self._probe: tuple[int, int] | None = None  # a PSN, and when it was sent for the first time

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

    def stop(self) -> None:
        """Stop until the next packet is sent."""
        self.deadline_ns = None

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
