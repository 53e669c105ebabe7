"""Which side connects, and when: one half of a connection.

The lower address connects for data. The higher one *requests a call-back*: it opens a connection
that carries nothing, which the lower side rejects and takes as a request to connect. Both sides
reconnect a lost path, at once and then with back-off. Linux leaves that to the lower side, and a
higher one requests a call-back with its next message only; here it does so without one, since the
message before may wait for a peer that restarted and knows nothing of this node. Where no message
waits, the back-off grows further: a server need not call departed clients every second.

The lower side opens paths 1 and up, and only while path 0 is *confirmed*: the peer showed on its
stream that it knows this node. So a peer that restarted sees path 0 first.

Source: docs/reference/rds.md 2.1, 2.5 (linux v6.12 net/rds/tcp_listen.c, threads.c);
docs/reference/linux-peer-notes.md 3 rules 2 and 10 (observed with linux v6.1, v6.12, v7.2).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from urds.common.types import IPAddress
from urds.rds.control.backoff import Backoff
from urds.rds.control.events import Action, Connect, GiveUp, ProbeDeadStream, RequestCallBack
from urds.rds.control.paths import SourcePortRule, address_bytes
from urds.rds.control.settings import ConnectionSettings
from urds.rds.control.state import PathInput, PathRecord, PathState
from urds.rds.control.stats import Stats
from urds.rds.control.timers import TimerKey, TimerKind, Timers

if TYPE_CHECKING:
    from random import Random

_ATTEMPT_GAP_NS: Final = 10_000_000  # one attempt in this time, whatever asks for it
_CALL_BACK_NS: Final = 20_000_000  # the lower side has this time before the next call-back request


class Reconnector:
    """The paths of one connection, and the attempts to get a stream for each."""

    def __init__(
        self,
        *,
        local: IPAddress,
        peer: IPAddress,
        settings: ConnectionSettings,
        random: Random,
        stats: Stats,
        actions: deque[Action],
        timers: Timers,
    ) -> None:
        assert address_bytes(local) != address_bytes(peer), f"{local} to itself"
        self.local = local
        self.peer = peer
        self.lower = address_bytes(local) < address_bytes(peer)
        self.settings = settings
        self.stats = stats
        self._random = random
        self._actions = actions
        self._timers = timers
        self._paths = [self._new_path(0)]
        self._call_back_requested_ns = -_ATTEMPT_GAP_NS

    def _new_path(self, index: int) -> PathRecord:
        backoff = Backoff(min_ns=self.settings.reconnect_delay_min_ns, random=self._random)
        return PathRecord(index, backoff)

    def _path(self, index: int) -> PathRecord | None:
        """Return a path; None if a fan-in has closed it meanwhile."""
        return self._paths[index] if index < len(self._paths) else None

    def _emit(self, action: Action) -> None:
        self._actions.append(action)

    def _set(self, kind: TimerKind, path: PathRecord, deadline_ns: int) -> None:
        self._timers.set(TimerKey(self.peer, kind, path.index), deadline_ns)

    def _cancel(self, path: PathRecord, *kinds: TimerKind) -> None:
        for kind in kinds:
            self._timers.cancel(TimerKey(self.peer, kind, path.index))

    def _want(self, path: PathRecord, now_ns: int) -> None:
        """Connect because messages wait."""
        if not path.wanted:
            path.wanted = path.wants_connection = True
            self._start_outage(path, now_ns)
            self._retry_now(path, now_ns)

    def _start_outage(self, path: PathRecord, now_ns: int) -> None:
        path.down_ns = now_ns
        if self.settings.reconnect_give_up_ns:
            self._set(TimerKind.GIVE_UP, path, now_ns + self.settings.reconnect_give_up_ns)

    def _end_outage(self, path: PathRecord) -> None:
        path.wanted = False
        path.down_ns = None
        path.backoff.reset()
        self._cancel(path, TimerKind.GIVE_UP)

    def _reconnect(self, path: PathRecord, delay_ns: int, now_ns: int) -> None:
        """Connect, now or after a delay."""
        delay_ns = max(delay_ns, path.quarantined_until_ns - now_ns)
        path.move(PathInput.RECONNECT)
        path.wants_connection = True
        if path.down_ns is None:
            self._start_outage(path, now_ns)
        if delay_ns > 0:
            self._set(TimerKind.ATTEMPT, path, now_ns + delay_ns)
        else:
            self._attempt(path, now_ns)

    def _quarantine(self, path: PathRecord, now_ns: int) -> None:
        """Delay the next attempt, at random up to the longest delay."""
        quarantine_ns = self._random.randrange(self.settings.reconnect_delay_max_ns)
        path.quarantined_until_ns = now_ns + quarantine_ns

    def _reconnect_later(self, path: PathRecord, now_ns: int) -> None:
        """Connect after the back-off's delay."""
        settings = self.settings
        delay_ns = path.backoff.next_ns(
            max_ns=settings.reconnect_delay_max_ns
            if path.wanted
            else settings.reconnect_delay_idle_max_ns
        )
        if not self.lower:
            delay_ns += _CALL_BACK_NS
        self._reconnect(path, delay_ns, now_ns)

    def _retry_now(self, path: PathRecord, now_ns: int) -> None:
        """Connect without back-off, unless an attempt is under way."""
        if path.state not in (PathState.DOWN, PathState.WAITING):
            return
        earliest_ns = now_ns
        if path.attempted_ns is not None:
            earliest_ns = path.attempted_ns + _ATTEMPT_GAP_NS
        self._reconnect(path, earliest_ns - now_ns, now_ns)

    def _attempt(self, path: PathRecord, now_ns: int) -> None:
        self._cancel(path, TimerKind.ATTEMPT)
        if not self.lower:
            self._request_call_back(path, now_ns)
        elif not path.index or self._paths[0].confirmed:
            self._connect(path, now_ns)
        elif self._paths[0].state is PathState.DOWN:
            # This path stays WAITING without a timer, until path 0 is confirmed.
            self._reconnect(self._paths[0], 0, now_ns)

    def _connect(self, path: PathRecord, now_ns: int) -> None:
        path.move(PathInput.CONNECT)
        path.attempted_ns = now_ns
        path.attempts += 1
        self.stats.connects += 1
        rule = SourcePortRule(path.index, path.attempts)
        self._emit(Connect(self.peer, path.index, rule))

    def _request_call_back(self, path: PathRecord, now_ns: int) -> None:
        """Ask the peer to connect; one call-back request serves all paths."""
        requested = any(other.state is PathState.CALL_BACK_REQUESTED for other in self._paths)
        path.move(PathInput.REQUEST_CALL_BACK)
        path.attempted_ns = now_ns
        if not requested:
            self.stats.call_back_requests += 1
            self._emit(RequestCallBack(self.peer))

    def _end_call_back_request(self, now_ns: int) -> None:
        for path in self._paths:
            if path.state is PathState.CALL_BACK_REQUESTED:
                path.move(PathInput.ANSWERED)
                self._reconnect_later(path, now_ns)

    def _end_connect(self, path: PathRecord, now_ns: int) -> None:
        """Note an attempt without a stream. The path may have been given up meanwhile."""
        path.move(PathInput.ANSWERED)
        if path.wants_connection:
            self._reconnect_later(path, now_ns)

    def _handle_call_back_request(self, now_ns: int) -> None:
        """Connect what is down, and probe what seems up.

        A peer that requests a call-back has no stream. The stream here is then dead at the other
        end, and would seem up until keepalive ends it.
        """
        self.stats.call_back_requests_received += 1
        if now_ns < self._call_back_requested_ns + _ATTEMPT_GAP_NS:
            return
        self._call_back_requested_ns = now_ns
        for path in self._paths:
            if path.stream is None:
                path.backoff.reset(span_ns=_ATTEMPT_GAP_NS)
                self._retry_now(path, now_ns)
            else:
                self._probe_dead_stream(path)

    def _probe_dead_stream(self, path: PathRecord) -> None:
        self.stats.dead_stream_probes += 1
        self._emit(ProbeDeadStream(self.peer, path.index))

    def _open_paths(self, now_ns: int) -> None:
        """Let the other paths connect: path 0 is confirmed."""
        for path in self._paths[1:]:
            if path.state in (PathState.DOWN, PathState.WAITING):
                self._retry_now(path, now_ns)

    def _give_up(self, path: PathRecord, now_ns: int) -> None:
        """Stop the attempts; the next message starts anew."""
        assert path.down_ns is not None, "the timer runs during an outage only"
        self.stats.gave_up += 1
        self._emit(GiveUp(self.peer, path.index, now_ns - path.down_ns))
        path.move(PathInput.GIVE_UP)
        path.wants_connection = False
        self._end_outage(path)
        self._cancel(path, TimerKind.ATTEMPT)
