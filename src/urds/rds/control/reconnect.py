"""When a connection is tried for: at once, after a back-off or a quarantine, or no longer.

One `Reconnector` serves one path over TCP, or one peer over RDMA. It is a value: it sets timers in
its owner's heap and draws from its owner's random numbers, but the attempts are the owner's, which
knows what an attempt is and in which state one may be made.

The first attempt is immediate; then delays are random in [0, d), where d doubles from its minimum
to its maximum. What resets them is the owner's as well. Source: linux v6.12 net/rds/threads.c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from urds.common.types import IPAddress
from urds.rds.control.settings import ReconnectSettings
from urds.rds.control.state import ConnectionReport, ConnectionState
from urds.rds.control.timers import OwnTimers, TimerKind

if TYPE_CHECKING:
    from random import Random

ATTEMPT_GAP_NS: Final = 10_000_000  # one attempt in this time, whatever asks for it


class Backoff:
    """Delays between attempts: each at random below a span that doubles.

    The span begins at 0, then goes from `min_ns` to the `max_ns` of the call. Both bounds, and what
    reaches them from the tunables, are in `settings.ReconnectSettings`.
    """

    __slots__ = ("_min_ns", "_random", "_span_ns")

    def __init__(self, *, min_ns: int, random: Random) -> None:
        self._min_ns = min_ns
        self._random = random
        self._span_ns = 0

    def reset(self, *, span_ns: int = 0) -> None:
        """Make the next attempt immediate, or random in [0, `span_ns`)."""
        self._span_ns = span_ns

    def next_ns(self, *, max_ns: int) -> int:
        """Return the delay before the next attempt; the one after may wait twice as long."""
        span_ns = min(self._span_ns, max_ns)
        self._span_ns = min(max(2 * span_ns, self._min_ns), max_ns)
        return self._random.randrange(span_ns) if span_ns else 0


class Quarantine:
    """Hosts that broke the protocol: until when no connection to them is tried for.

    A host has up to 8 connections to an address over TCP, and up to 256 over RDMA, one for each
    type of service. It may break the protocol on all of them at once: each protocol error makes the
    quarantine longer. So attempts of a host, such as guesses of keys, have a rate that does not
    depend on its number of connections.

    The longest quarantine after one protocol error is `reconnect_delay_max_ns`, its length is
    drawn; after any number of them it is `reconnect_delay_idle_max_ns`. Beyond `hosts_max` the host
    whose quarantine ends first is forgotten.
    """

    def __init__(self, settings: ReconnectSettings, *, hosts_max: int, random: Random) -> None:
        self._each_max_ns = settings.reconnect_delay_max_ns
        self._all_max_ns = settings.reconnect_delay_idle_max_ns
        self._hosts_max = hosts_max
        self._random = random
        self._until_ns: dict[IPAddress, int] = {}

    def until_ns(self, host: IPAddress) -> int:
        """Return when a host may connect again; 0 or a time that is over: now."""
        return self._until_ns.get(host, 0)

    def extend(self, host: IPAddress, now_ns: int) -> None:
        """Begin or extend the quarantine of a host."""
        quarantine_ns = self._random.randrange(self._each_max_ns)
        began_ns = max(now_ns, self._until_ns.pop(host, 0))
        if len(self._until_ns) >= self._hosts_max:
            self._make_room(now_ns)
        self._until_ns[host] = min(began_ns + quarantine_ns, now_ns + self._all_max_ns)

    def __len__(self) -> int:
        return len(self._until_ns)

    def _make_room(self, now_ns: int) -> None:
        over = [host for host, until_ns in self._until_ns.items() if until_ns <= now_ns]
        for host in over or [min(self._until_ns, key=self._until_ns.__getitem__)]:
            del self._until_ns[host]


class Reconnector:
    """The attempts of one connection: whether they go on, and when the next one is due.

    The methods `retry_...` return true if the attempt is due at once; otherwise the timer ATTEMPT
    is set, and `is_due` tells whether it counts. An attempt begins with `begin_attempt`.
    """

    __slots__ = (
        "_attempted_ns", "_backoff", "_host", "_not_before_ns", "_quarantine", "_settings",
        "_timers", "attempts", "down_ns", "is_active", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        settings: ReconnectSettings,
        host: IPAddress,
        *,
        timers: OwnTimers,
        quarantine: Quarantine,
        random: Random,
    ) -> None:
        self.wanted = False  # messages wait
        self.is_active = False  # attempts go on until there is a connection, or the limit
        self.attempts = 0  # of the present outage
        self.down_ns: int | None = None  # since when there is none, while it is tried for
        self._settings = settings
        self._host = host
        self._timers = timers
        self._quarantine = quarantine
        self._backoff = Backoff(min_ns=settings.reconnect_delay_min_ns, random=random)
        self._attempted_ns: int | None = None  # the last attempt
        self._not_before_ns = 0  # the peer is about to connect

    # -- outages

    def want(self, now_ns: int) -> bool:
        """Note that messages wait, which have the whole time until giving up; false if known."""
        if self.wanted:
            return False
        self.wanted = True
        self.down_ns = None
        self.begin_outage(now_ns)
        return True

    def begin_outage(self, now_ns: int) -> None:
        """Note that there is no connection, and that one is tried for."""
        self.is_active = True
        if self.down_ns is None:
            self.down_ns = now_ns
            if self._settings.reconnect_give_up_ns:
                deadline_ns = now_ns + self._settings.reconnect_give_up_ns
                self._timers.set(TimerKind.GIVE_UP, deadline_ns)

    def end_outage(self) -> None:
        """Note that there is a connection, or that none is tried for any more."""
        self.wanted = self.is_active = False
        self.attempts = 0
        self.down_ns = None
        self._timers.cancel(TimerKind.GIVE_UP)

    def give_up(self, now_ns: int) -> int:
        """End the attempts; return for how long there was no connection."""
        assert self.down_ns is not None, "the timer runs during an outage only"
        down_ns = now_ns - self.down_ns
        self.end_outage()
        self.cancel()
        self.reset_backoff()
        return down_ns

    def report(self, state: ConnectionState, since_ns: int | None) -> ConnectionReport:
        """Tell how the connection is; during an outage, since when that lasts."""
        if self.down_ns is not None and state in (ConnectionState.DOWN, ConnectionState.CONNECTING):
            state, since_ns = ConnectionState.CONNECTING, self.down_ns
        attempt_at_ns = self._timers.get(TimerKind.ATTEMPT)
        return ConnectionReport(state, since_ns, self.attempts, attempt_at_ns)

    # -- attempts

    def retry_now(self, now_ns: int) -> bool:
        """Try again without back-off, though only once in 10 ms."""
        last_ns = self._attempted_ns
        return self._schedule(now_ns if last_ns is None else last_ns + ATTEMPT_GAP_NS, now_ns)

    def retry_soon(self, now_ns: int) -> bool:
        """Try again after the back-off's delay since the last attempt; idle delays end."""
        delay_ns = self._backoff.next_ns(max_ns=self._settings.delay_max_ns(wanted=True))
        last_ns = now_ns if self._attempted_ns is None else self._attempted_ns
        return self._schedule(last_ns + delay_ns, now_ns)

    def retry_later(self, now_ns: int, *, extra_ns: int = 0) -> bool:
        """Try again after the back-off's delay, and `extra_ns`."""
        delay_ns = self._backoff.next_ns(max_ns=self._settings.delay_max_ns(wanted=self.wanted))
        return self._schedule(now_ns + delay_ns + extra_ns, now_ns)

    def _schedule(self, at_ns: int, now_ns: int) -> bool:
        at_ns = max(at_ns, self._quarantine.until_ns(self._host), self._not_before_ns)
        self.begin_outage(now_ns)
        if at_ns > now_ns:
            self._timers.set(TimerKind.ATTEMPT, at_ns)
            return False
        self.cancel()
        return True

    def is_due(self, now_ns: int) -> bool:
        """Tell whether the attempt of the timer may be made; if not, the timer is set anew.

        The host may have broken the protocol since, on another connection.
        """
        until_ns = self._quarantine.until_ns(self._host)
        if until_ns > now_ns:
            self._timers.set(TimerKind.ATTEMPT, until_ns)
        return until_ns <= now_ns

    def begin_attempt(self, now_ns: int) -> None:
        """Count an attempt that is made now."""
        self._attempted_ns = now_ns
        self.attempts += 1

    def cancel(self) -> None:
        """Make no further attempt for now: one is under way, or the peer connects."""
        self._timers.cancel(TimerKind.ATTEMPT)

    def reset_backoff(self, *, span_ns: int = 0) -> None:
        """Have the delays begin anew: a connection lasted, or the peer is about to be there."""
        self._backoff.reset(span_ns=span_ns)

    def yield_until(self, until_ns: int) -> None:
        """Make no attempt before: the peer makes one."""
        self._not_before_ns = until_ns

    def quarantine(self, now_ns: int) -> None:
        """Make no attempt to the host for a while: the next one will hardly be better."""
        self._quarantine.extend(self._host, now_ns)
