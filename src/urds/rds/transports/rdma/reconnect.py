"""Connecting to one peer: when an attempt is made, and when attempts stop.

Either side may connect, so neither waits for the other: a lost connection is tried for at once. A
failed attempt is made again after random times, up to a bound that doubles; where no message waits
here, it grows further. It begins anew once a connection lasted, or carried a message: Linux resets
it as soon as one is up, but then two nodes that do not understand each other would connect as fast
as they can. A protocol error puts the whole host into `quarantine`.

Source: docs/reference/rds.md 4.1 (linux v6.12 net/rds/ib_cm.c, net/rds/threads.c).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from urds.rds.control.backoff import Backoff
from urds.rds.control.timers import TimerKey, TimerKind, Timers
from urds.rds.transports.rdma.events import Abandon, Action, Connect, Detach, GiveUp, PeerKey
from urds.rds.transports.rdma.quarantine import Quarantine
from urds.rds.transports.rdma.settings import PeerSettings
from urds.rds.transports.rdma.state import (
    UNDER_WAY,
    WITHOUT_CONNECTION,
    PeerInput,
    PeerState,
    next_state,
)
from urds.rds.transports.rdma.stats import RdmaStats

if TYPE_CHECKING:
    from random import Random

_TOS_BITS: Final = 8
_TOS_MASK: Final = (1 << _TOS_BITS) - 1
_TIMERS: Final = (TimerKind.ATTEMPT, TimerKind.GIVE_UP, TimerKind.ANSWER)


def timer_key(key: PeerKey, kind: TimerKind) -> TimerKey:
    """Return the name of a peer's timer; `key_of` is the inverse."""
    return TimerKey(key.peer, kind, key.tos | key.passive << _TOS_BITS)


def key_of(timer: TimerKey) -> PeerKey:
    """Return the peer that a timer concerns."""
    return PeerKey(timer.peer, timer.number & _TOS_MASK, bool(timer.number >> _TOS_BITS))


class PeerReconnector:
    """The one connection to a peer, and the attempts for it."""

    def __init__(
        self,
        *,
        key: PeerKey,
        settings: PeerSettings,
        random: Random,
        stats: RdmaStats,
        quarantine: Quarantine,
        actions: deque[Action],
        timers: Timers,
        next_number: Callable[[], int],
    ) -> None:
        self.key = key
        self.state = PeerState.DOWN
        self.number: int | None = None  # of what is under way or up
        self.wanted = False  # messages wait
        self._settings = settings
        self._stats = stats
        self._quarantine = quarantine
        self._random = random
        self._actions = actions
        self._timers = timers
        self._next_number = next_number
        self._backoff = Backoff(min_ns=settings.reconnect_delay_min_ns, random=random)
        self._wants_connection = False  # attempts go on until a connection is up, or the limit
        self._attempted_ns: int | None = None  # the last attempt of this side
        self._since_ns = 0  # when what is under way began, or came up
        self._yield_until_ns = 0  # no attempt of this side before: the peer is about to ask
        self._down_ns: int | None = None  # since when there is none, while it is tried for

    @property
    def is_idle(self) -> bool:
        """Whether no connection is here or on its way, and no message waits for one."""
        return self.state in WITHOUT_CONNECTION and not self.wanted

    def close(self) -> None:
        """Forget all timers: the peer is evicted."""
        self._cancel(*_TIMERS)

    def handle_timer(self, kind: TimerKind, now_ns: int) -> None:
        """Do what one timer asks for."""
        if kind is TimerKind.ATTEMPT:
            # The host may have broken the protocol since, on a connection of another service.
            quarantined_until_ns = self._quarantine.until_ns(self.key.peer)
            if quarantined_until_ns > now_ns:
                self._set(TimerKind.ATTEMPT, quarantined_until_ns)
            else:
                self._connect(now_ns)
        elif kind is TimerKind.GIVE_UP:
            self._give_up(now_ns)
        else:
            self._stats.silent += 1
            self._fail(now_ns)

    # -- attempts

    def _want(self, now_ns: int) -> None:
        """Connect because messages wait.

        An attempt comes after the back-off's delay since the last one, but idle delays end.
        """
        self.wanted = self._wants_connection = True
        self._start_outage(now_ns)
        if self.state in WITHOUT_CONNECTION:
            delay_ns = self._backoff.next_ns(max_ns=self._settings.reconnect_delay_max_ns)
            last_ns = now_ns if self._attempted_ns is None else self._attempted_ns
            self._reconnect(last_ns + delay_ns - now_ns, now_ns)

    def _reconnect_later(self, now_ns: int) -> None:
        """Connect after the back-off's delay."""
        settings = self._settings
        delay_ns = self._backoff.next_ns(
            max_ns=settings.reconnect_delay_max_ns
            if self.wanted
            else settings.reconnect_delay_idle_max_ns
        )
        self._reconnect(delay_ns, now_ns)

    def _reconnect(self, delay_ns: int, now_ns: int) -> None:
        """Connect, now or after a delay. The passive end waits for the other one."""
        quarantined_until_ns = self._quarantine.until_ns(self.key.peer)
        delay_ns = max(delay_ns, max(quarantined_until_ns, self._yield_until_ns) - now_ns)
        self._move(PeerInput.RECONNECT)
        self._wants_connection = True
        self._start_outage(now_ns)
        if self.key.passive:
            return
        if delay_ns > 0:
            self._set(TimerKind.ATTEMPT, now_ns + delay_ns)
        else:
            self._connect(now_ns)

    def _connect(self, now_ns: int) -> None:
        self._stats.connects += 1
        self._attempted_ns = now_ns
        self._begin(PeerInput.CONNECT, self._next_number(), now_ns)
        assert self.number is not None
        self._emit(Connect(self.key, self.number))

    def _start_outage(self, now_ns: int) -> None:
        if self._down_ns is not None:
            return
        self._down_ns = now_ns
        if self._settings.reconnect_give_up_ns:
            self._set(TimerKind.GIVE_UP, now_ns + self._settings.reconnect_give_up_ns)

    def _give_up(self, now_ns: int) -> None:
        """Stop the attempts; the next message starts anew."""
        assert self._down_ns is not None, "the timer runs during an outage only"
        self._stats.gave_up += 1
        self._emit(GiveUp(self.key, now_ns - self._down_ns))
        self._move(PeerInput.GIVE_UP)
        self.wanted = self._wants_connection = False
        self._down_ns = None
        self._cancel(TimerKind.ATTEMPT)

    # -- the connection

    def _begin(self, event: PeerInput, number: int, now_ns: int) -> None:
        """Enter CONNECTING or ACCEPTING."""
        self._cancel(TimerKind.ATTEMPT)
        self._move(event)
        self.number, self._since_ns = number, now_ns
        self._set(TimerKind.ANSWER, now_ns + self._settings.answer_wait_ns)

    def _abandon(self) -> None:
        """End what is under way."""
        assert self.number is not None, "what is under way has a number"
        self._cancel(TimerKind.ANSWER)
        self._move(PeerInput.FAIL)
        self._emit(Abandon(self.key, self.number))
        self.number = None

    def _fail(self, now_ns: int) -> None:
        """Note that what was under way has failed, and try again if a message waits."""
        if self.state is PeerState.CONNECTING:
            self._stats.connect_failures += 1
        else:
            self._stats.accept_failures += 1
        self._abandon()
        if self._wants_connection:
            self._reconnect_later(now_ns)

    def _come_up(self, now_ns: int) -> None:
        """Note that what was under way is established."""
        self._stats.ups += 1
        self._cancel(TimerKind.ANSWER, TimerKind.GIVE_UP)
        self._move(PeerInput.ESTABLISH)
        self.wanted = self._wants_connection = False
        self._down_ns, self._since_ns = None, now_ns

    def _lose(self, now_ns: int) -> None:
        """End the connection that is up; another one is tried for, whatever comes between."""
        assert self.number is not None, "a connection that is up has a number"
        self._stats.downs += 1
        if now_ns >= self._since_ns + self._settings.reconnect_delay_max_ns:
            self._backoff.reset()
        self._move(PeerInput.LOSE)
        self._emit(Detach(self.key, self.number))
        self.number = None
        self._wants_connection = True
        self._start_outage(now_ns)

    def _start_over(self, now_ns: int) -> None:
        """End what there is, and reconnect if a connection was up or is wanted."""
        if self.state is PeerState.UP:
            self._lose(now_ns)
            self._reconnect_later(now_ns)
        elif self.state in UNDER_WAY:
            self._fail(now_ns)
        elif self._wants_connection:
            self._reconnect_later(now_ns)

    # -- small things

    def _move(self, event: PeerInput) -> None:
        self.state = next_state(self.state, event)

    def _emit(self, action: Action) -> None:
        self._actions.append(action)

    def _set(self, kind: TimerKind, deadline_ns: int) -> None:
        self._timers.set(timer_key(self.key, kind), deadline_ns)

    def _cancel(self, *kinds: TimerKind) -> None:
        for kind in kinds:
            self._timers.cancel(timer_key(self.key, kind))
