"""Who connects and when: one half of a connection.

The lower address connects for data. The higher one *knocks*: it opens a connection that carries
nothing, which the lower side refuses and takes as a request to connect. A lost path is tried for
again by both sides, at once and then with back-off. Linux leaves that to the lower side, and a
higher one knocks with its next message only; we are more patient, since the message before it may
wait for a peer that restarted and knows nothing of us. Where nothing waits here, the back-off
grows further: a server need not call departed clients every second.

Paths 1 and up are opened by the lower side, and only while path 0 is *confirmed*: the peer showed
on its stream that it knows our handshake. So a peer that restarted meets path 0 first.

Source: rds.md 2.1, 2.5 (linux v6.12 net/rds/tcp_listen.c, threads.c); linux-peer-notes.md section 3
rules 2 and 10 (observed with linux v6.1, v6.12, v7.2).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from urds.proto.backoff import Backoff
from urds.proto.events import Action, Connect, GiveUp, Knock, Poke
from urds.proto.paths import Address, SourcePortRule, address_octets
from urds.proto.settings import ConnectionSettings
from urds.proto.state import Input, PathLife, State
from urds.proto.stats import Stats
from urds.proto.timers import TimerKey, TimerKind, Timers

if TYPE_CHECKING:
    from random import Random

_ATTEMPT_GAP_NS: Final = 10_000_000  # knocks and wishes hasten one attempt in this time
_CALL_BACK_NS: Final = 20_000_000  # what the lower side has at least, before we knock again


class Seeker:
    """The paths of one connection, and the search for a stream for each."""

    def __init__(
        self,
        *,
        local: Address,
        peer: Address,
        settings: ConnectionSettings,
        random: Random,
        stats: Stats,
        actions: deque[Action],
        timers: Timers,
    ) -> None:
        assert address_octets(local) != address_octets(peer), f"{local} to itself"
        self.local = local
        self.peer = peer
        self.lower = address_octets(local) < address_octets(peer)
        self.settings = settings
        self.stats = stats
        self._random = random
        self._actions = actions
        self._timers = timers
        self._paths = [self._new_path(0)]
        self._knocked_ns = -_ATTEMPT_GAP_NS

    def _new_path(self, index: int) -> PathLife:
        backoff = Backoff(min_ns=self.settings.reconnect_delay_min_ns, random=self._random)
        return PathLife(index, backoff)

    def _path(self, index: int) -> PathLife | None:
        """Return a path; None if a fan-in has closed it meanwhile."""
        return self._paths[index] if index < len(self._paths) else None

    def _emit(self, action: Action) -> None:
        self._actions.append(action)

    def _set(self, kind: TimerKind, path: PathLife, deadline_ns: int) -> None:
        self._timers.set(TimerKey(self.peer, kind, path.index), deadline_ns)

    def _cancel(self, path: PathLife, *kinds: TimerKind) -> None:
        for kind in kinds:
            self._timers.cancel(TimerKey(self.peer, kind, path.index))

    def _want(self, path: PathLife, now_ns: int) -> None:
        """Look for a stream because messages wait."""
        if not path.wanted:
            path.wanted = path.sought = True
            self._start_outage(path, now_ns)
            self._hasten(path, now_ns)

    def _start_outage(self, path: PathLife, now_ns: int) -> None:
        path.down_ns = now_ns
        if self.settings.reconnect_give_up_ns:
            self._set(TimerKind.GIVE_UP, path, now_ns + self.settings.reconnect_give_up_ns)

    def _end_outage(self, path: PathLife) -> None:
        path.wanted = False
        path.down_ns = None
        path.backoff.reset()
        self._cancel(path, TimerKind.GIVE_UP)

    def _seek(self, path: PathLife, delay_ns: int, now_ns: int) -> None:
        """Look for a stream, now or after a delay."""
        delay_ns = max(delay_ns, path.rest_until_ns - now_ns)
        path.move(Input.SEEK)
        path.sought = True
        if path.down_ns is None:
            self._start_outage(path, now_ns)
        if delay_ns > 0:
            self._set(TimerKind.ATTEMPT, path, now_ns + delay_ns)
        else:
            self._attempt(path, now_ns)

    def _rest(self, path: PathLife, now_ns: int) -> None:
        """Let the next attempt wait, by chance up to the longest delay."""
        rest_ns = self._random.randrange(self.settings.reconnect_delay_max_ns)
        path.rest_until_ns = now_ns + rest_ns

    def _seek_again(self, path: PathLife, now_ns: int) -> None:
        """Look for a stream after the back-off's delay."""
        settings = self.settings
        delay_ns = path.backoff.next_ns(
            max_ns=settings.reconnect_delay_max_ns
            if path.wanted
            else settings.reconnect_delay_idle_max_ns
        )
        if not self.lower:
            delay_ns += _CALL_BACK_NS
        self._seek(path, delay_ns, now_ns)

    def _hasten(self, path: PathLife, now_ns: int) -> None:
        """Look for a stream without back-off, unless an attempt is under way."""
        if path.state not in (State.DOWN, State.WAITING):
            return
        earliest_ns = now_ns
        if path.attempted_ns is not None:
            earliest_ns = path.attempted_ns + _ATTEMPT_GAP_NS
        self._seek(path, earliest_ns - now_ns, now_ns)

    def _attempt(self, path: PathLife, now_ns: int) -> None:
        self._cancel(path, TimerKind.ATTEMPT)
        if not self.lower:
            self._knock(path, now_ns)
        elif not path.index or self._paths[0].confirmed:
            self._connect(path, now_ns)
        elif self._paths[0].state is State.DOWN:
            # This path stays WAITING without a timer, until path 0 is confirmed.
            self._seek(self._paths[0], 0, now_ns)

    def _connect(self, path: PathLife, now_ns: int) -> None:
        path.move(Input.CONNECT)
        path.attempted_ns = now_ns
        path.attempts += 1
        self.stats.connects += 1
        rule = SourcePortRule(path.index, path.attempts)
        self._emit(Connect(self.peer, path.index, rule))

    def _knock(self, path: PathLife, now_ns: int) -> None:
        """Ask the peer to connect; one knock serves all paths."""
        knocking = any(other.state is State.KNOCKING for other in self._paths)
        path.move(Input.KNOCK)
        path.attempted_ns = now_ns
        if not knocking:
            self.stats.knocks += 1
            self._emit(Knock(self.peer))

    def _end_knock(self, now_ns: int) -> None:
        for path in self._paths:
            if path.state is State.KNOCKING:
                path.move(Input.ANSWERED)
                self._seek_again(path, now_ns)

    def _end_connect(self, path: PathLife, now_ns: int) -> None:
        """Note an attempt without a stream. The path may have been given up meanwhile."""
        path.move(Input.ANSWERED)
        if path.sought:
            self._seek_again(path, now_ns)

    def _handle_knock(self, now_ns: int) -> None:
        """Connect what is down, and poke what seems up.

        A peer that knocks has no stream. Ours is then dead at its end, and would seem up until
        keepalive ends it.
        """
        self.stats.knocks_received += 1
        if now_ns < self._knocked_ns + _ATTEMPT_GAP_NS:
            return
        self._knocked_ns = now_ns
        for path in self._paths:
            if path.stream is None:
                path.backoff.reset(span_ns=_ATTEMPT_GAP_NS)
                self._hasten(path, now_ns)
            else:
                self._poke(path)

    def _poke(self, path: PathLife) -> None:
        self.stats.pokes += 1
        self._emit(Poke(self.peer, path.index))

    def _open_paths(self, now_ns: int) -> None:
        """Let the others connect: path 0 is confirmed."""
        for path in self._paths[1:]:
            if path.state in (State.DOWN, State.WAITING):
                self._hasten(path, now_ns)

    def _give_up(self, path: PathLife, now_ns: int) -> None:
        """Stop looking; the next message starts anew."""
        assert path.down_ns is not None, "the timer runs during an outage only"
        self.stats.gave_up += 1
        self._emit(GiveUp(self.peer, path.index, now_ns - path.down_ns))
        path.move(Input.GIVE_UP)
        path.sought = False
        self._end_outage(path)
        self._cancel(path, TimerKind.ATTEMPT)
