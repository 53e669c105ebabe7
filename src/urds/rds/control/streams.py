"""The paths of one connection: when each is connected, and which stream belongs to which.

The lower address connects for data. The higher one *requests a call-back*: it opens a connection
that carries nothing, which the lower side rejects and takes as a request to connect. Both sides
reconnect a lost path, at once and then with back-off. Linux leaves that to the lower side, and a
higher one requests a call-back with its next message only; here it does so without one, since the
message before may wait for a peer that restarted and knows nothing of this node. Where no message
waits, the back-off grows further: a server need not call departed clients every second.

The lower side opens paths 1 and up, and only while path 0 is *confirmed*: the peer showed on its
stream that it knows this node. So a peer that restarted sees path 0 first.

A stream on the wrong path mixes the numbers of two, and messages are lost or doubled; but only the
handshake tells both sides which path a stream is for. Therefore the higher side

- takes a stream for path 0 until it knows how many paths there are, and parks further streams
  meanwhile;
- sends nothing to a pending connection before the handshake, except where it has one path only:
  then there is nothing to mix up;
- drops a stream that turns out to be on the wrong path, without an answer.

An accepted stream supersedes the one its path has. Source: docs/reference/rds.md 2.1, 2.2, 2.4, 2.5
(linux v6.12, v7.0 net/rds/tcp_listen.c, threads.c); docs/reference/linux-peer-notes.md 3 rules 1,
2, 10 and 11 (observed with linux v6.1, v6.12, v7.2).

A stream that leads to an own node and is up is not superseded at once: a probe on it first asks
whether the peer is still there. A peer that has lost its stream, or has restarted, cannot answer on
it: its system resets the stream, or nothing comes in `liveness_wait_ns`. A peer that answers did
not open the new stream: that comes from a process which has taken the peer's address, and would be
handed the peer's messages. It is refused and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from urds.common.types import IPAddress
from urds.rds.constants import PATHS_MAX
from urds.rds.control.events import (
    Action,
    Attach,
    Connect,
    Detach,
    GiveUp,
    Hold,
    LossCause,
    PathLost,
    PathUp,
    PeerKind,
    ProbeDeadStream,
    Reason,
    Refuse,
    Refused,
    RequestCallBack,
)
from urds.rds.control.paths import SourcePortRule, address_bytes
from urds.rds.control.peer import PeerFacts
from urds.rds.control.pending import PendingConnections
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.state import ConnectionReport, PathInput, PathRecord, PathState
from urds.rds.control.stats import Stats
from urds.rds.control.timers import Backoff, TimerKey, TimerKind, Timers

if TYPE_CHECKING:
    from random import Random

_ATTEMPT_GAP_NS: Final = 10_000_000  # one attempt in this time, whatever asks for it
_CALL_BACK_NS: Final = 20_000_000  # the lower side has this time before the next call-back request
_PARKED_MAX: Final = PATHS_MAX - 1
# An answer holds for this long: a peer that connects again and again must not use up the control
# messages that the other side allows, or that side would answer no more.
_ANSWER_HOLDS_NS: Final = 100_000_000


class Streams:
    """The paths of one connection, the attempts to get a stream for each, and the streams.

    A local address passes in what its connections share; without one a connection has its own.
    """

    def __init__(
        self,
        *,
        local: IPAddress,
        peer: IPAddress,
        settings: ConnectionSettings,
        random: Random,
        stats: Stats | None = None,
        actions: deque[Action] | None = None,
        timers: Timers | None = None,
        pending: PendingConnections | None = None,
        on_streams: Callable[[Any], None] = lambda connection: None,
    ) -> None:
        assert address_bytes(local) != address_bytes(peer), f"{local} to itself"
        self.local = local
        self.peer = peer
        self.lower = address_bytes(local) < address_bytes(peer)
        self.settings = settings
        self.stats = Stats() if stats is None else stats
        self.facts = PeerFacts()
        self._random = random
        self._actions: deque[Action] = deque() if actions is None else actions
        self._timers = Timers() if timers is None else timers
        self._pending = pending or PendingConnections(LocalAddressSettings(), self._timers)
        self._on_streams = on_streams  # of this connection: one was attached or ended
        self._paths = [self._new_path(0)]
        self._call_back_requested_ns = -_ATTEMPT_GAP_NS
        self._parked: dict[int, tuple[int, bool]] = {}  # stream to source port and `own`
        # By path, what waits until its stream has answered or ended: stream, source port, `own`.
        self._seconds: dict[int, tuple[int, int, bool]] = {}
        self._answered_ns: dict[int, int] = {}  # by path, when its stream answered last

    @property
    def npaths(self) -> int:
        """How many paths are in use."""
        return len(self._paths)

    def _new_path(self, index: int) -> PathRecord:
        backoff = Backoff(min_ns=self.settings.reconnect_delay_min_ns, random=self._random)
        return PathRecord(index, backoff)

    def _path(self, index: int) -> PathRecord | None:
        """Return a path; None if a fan-in has closed it meanwhile."""
        return self._paths[index] if index < len(self._paths) else None

    def _emit(self, action: Action) -> None:
        self._actions.append(action)

    def report(self, index: int) -> ConnectionReport | None:
        """Tell how a path is, for tables; None for one that is gone."""
        path = self._path(index)
        if path is None:
            return None
        return path.report(self._timers.get(TimerKey(self.peer, TimerKind.ATTEMPT, index)))

    def _set(self, kind: TimerKind, path: PathRecord, deadline_ns: int) -> None:
        self._timers.set(TimerKey(self.peer, kind, path.index), deadline_ns)

    def _cancel(self, path: PathRecord, *kinds: TimerKind) -> None:
        for kind in kinds:
            self._timers.cancel(TimerKey(self.peer, kind, path.index))

    # -- attempts

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
        path.tries = 0
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
        delay_max_ns = self.settings.delay_max_ns(wanted=path.wanted)
        delay_ns = path.backoff.next_ns(max_ns=delay_max_ns)
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
        path.tries += 1
        self.stats.connects += 1
        rule = SourcePortRule(path.index, path.attempts)
        self._emit(Connect(self.peer, path.index, rule))

    def _request_call_back(self, path: PathRecord, now_ns: int) -> None:
        """Ask the peer to connect; one call-back request serves all paths."""
        requested = any(other.state is PathState.CALL_BACK_REQUESTED for other in self._paths)
        path.move(PathInput.REQUEST_CALL_BACK)
        path.attempted_ns = now_ns
        path.tries += 1
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

    # -- streams

    def _place(self, stream: int, source_port: int, now_ns: int, *, own: bool) -> None:
        """Attach an accepted stream to its path, park it, or refuse it."""
        unclear = self.facts.kind is PeerKind.UNKNOWN and self.settings.npaths > 1
        if unclear and self._paths[0].stream is not None:
            self._park(stream, source_port, now_ns, own=own)
            return
        path = self._path_of(source_port)
        if path is not None and self._needs_liveness_check(path):
            self._check_liveness(path, stream, source_port, now_ns, own=own)
            return
        if path is not None:
            self._attach(path, stream, source_port, now_ns, own=own)
            return
        self.stats.refused_no_path += 1
        self._refuse(stream, Reason.NO_FREE_PATH)
        for path in self._paths:  # one of them is dead, or the peer would not reconnect
            self._probe_dead_stream(path)

    def _path_of(self, source_port: int) -> PathRecord | None:
        """Return the path of an accepted stream; it may have a stream, then superseded."""
        if self.npaths == 1 or self.facts.sport_index:
            return self._paths[source_port % self.npaths]
        return next((path for path in self._paths if path.stream is None), None)

    def _park(self, stream: int, source_port: int, now_ns: int, *, own: bool) -> None:
        if len(self._parked) >= _PARKED_MAX:
            oldest = next(iter(self._parked))
            del self._parked[oldest]
            self._refuse(oldest, Reason.NO_FREE_PATH)
        self.stats.parked += 1
        self._parked[stream] = source_port, own
        key = TimerKey(self.peer, TimerKind.ANSWER, 0)
        if not self._timers.is_set(key):
            self._timers.set(key, now_ns + self.settings.handshake_wait_ns)

    def _unpark(self, now_ns: int) -> None:
        """Place the parked streams; where there is one path, the newest supersedes the others."""
        parked, self._parked = self._parked, {}
        for stream, (source_port, own) in parked.items():
            self._place(stream, source_port, now_ns, own=own)

    def _needs_liveness_check(self, path: PathRecord) -> bool:
        return path.state is PathState.UP and path.confirmed and self.facts.kind is PeerKind.URDS

    def _check_liveness(
        self, path: PathRecord, stream: int, source_port: int, now_ns: int, *, own: bool
    ) -> None:
        """Have a stream wait until the one that its path has answers, ends, or is silent."""
        before = self._seconds.pop(path.index, None)
        self._seconds[path.index] = stream, source_port, own
        if before is not None:
            self._replace_waiting(before[0])
            return  # the probe is under way
        if now_ns - self._answered_ns.get(path.index, -_ANSWER_HOLDS_NS) < _ANSWER_HOLDS_NS:
            self._refuse_second(path)
            return
        self._probe_liveness(path)
        self._set(TimerKind.LIVENESS, path, now_ns + self.settings.liveness_wait_ns)

    def _probe_liveness(self, path: PathRecord) -> None:
        """Probe an own node, on the stream that it has."""
        raise NotImplementedError

    def _answered(self, path: PathRecord, now_ns: int) -> None:
        """Refuse the stream that waited, if one did: the peer is still there."""
        if path.index in self._seconds:
            self._answered_ns[path.index] = now_ns
            self._cancel(path, TimerKind.LIVENESS)
            self._refuse_second(path)

    def _refuse_second(self, path: PathRecord) -> None:
        self.stats.takeovers_refused += 1
        self._refuse(self._seconds.pop(path.index)[0], Reason.STILL_CONNECTED)

    def _refuse_older(self, path: PathRecord) -> None:
        """Refuse the stream that waited, if one did: a newer one takes the path, or it closes."""
        second = self._seconds.pop(path.index, None)
        if second is not None:
            self._cancel(path, TimerKind.LIVENESS)
            self._replace_waiting(second[0])

    def _replace_waiting(self, stream: int) -> None:
        """Refuse a waiting stream, replaced by a newer one of its peer, which is no fault."""
        self.stats.refused_no_path += 1
        self._pending.forget(stream)
        self._emit(Refuse(self.peer, stream))

    def _take_second(self, path: PathRecord, now_ns: int) -> bool:
        """Attach the stream that waited to its path, if one did."""
        second = self._seconds.pop(path.index, None)
        self._cancel(path, TimerKind.LIVENESS)
        if second is None:
            return False
        stream, source_port, own = second
        self._attach(path, stream, source_port, now_ns, own=own)
        return True

    def _refuse(self, stream: int, reason: Reason) -> None:
        self._pending.forget(stream)
        self._emit(Refuse(self.peer, stream))
        self._emit(Refused(self.peer, reason))

    def _attach(
        self, path: PathRecord, stream: int, source_port: int, now_ns: int, *, own: bool
    ) -> None:
        if path.stream is not None:
            self.stats.superseded += 1
            self._note_lost(path, LossCause.SUPERSEDED)
            self._pending.forget(path.stream)
        self._refuse_older(path)
        self._cancel(path, TimerKind.ATTEMPT, TimerKind.ANSWER)
        path.begin_stream(stream, source_port, own=own)
        path.since_ns = now_ns
        self._note_streams()
        path.acquainted = own or self.facts.kind is PeerKind.URDS
        hold = self._hold_of(path)
        path.held = hold is Hold.RELEASE
        self._emit(Attach(self.peer, path.index, stream, hold))
        self._greet(path, now_ns)

    def _note_streams(self) -> None:
        """Report that a stream was attached or ended."""
        self._on_streams(self)

    def _greet(self, path: PathRecord, now_ns: int) -> None:
        """Send the first frame on a new stream."""
        raise NotImplementedError

    def _hold_of(self, path: PathRecord) -> Hold:
        if path.acquainted:
            return Hold.RELEASE
        if self.lower:
            # A kernel's further paths do not always begin with a map: there, time ends the wait.
            return Hold.RELEASE if path.index else Hold.FIRST_FRAME
        if self.facts.kind is PeerKind.UNKNOWN and self.settings.npaths > 1:
            return Hold.RELEASE
        return Hold.NOTHING

    def _come_up(self, path: PathRecord, now_ns: int) -> None:
        self.stats.first_frames += 1
        self._pending.forget(path.stream)
        path.move(PathInput.FRAME)
        path.since_ns = now_ns
        self._end_outage(path)
        self._emit(PathUp(self.peer, path.index))

    def _note_lost(self, path: PathRecord, cause: LossCause) -> None:
        """Report the end of a path's stream, if the path was up."""
        if path.state is PathState.UP:
            self._emit(PathLost(self.peer, path.index, cause))

    def _lose(self, path: PathRecord, now_ns: int, cause: LossCause = LossCause.ENDED) -> None:
        """Reconnect a path whose stream is gone.

        A pending connection that is the lower side is left alone if nothing waits here: it connects
        by itself, and a peer that only opens and drops connections is not called back each time.
        """
        self._pending.forget(path.stream)
        self._cancel(path, TimerKind.ANSWER)
        self._note_lost(path, cause)
        path.end_stream()
        path.since_ns = now_ns
        self._note_streams()
        self._answered_ns.pop(path.index, None)
        if self._take_second(path, now_ns):
            pass
        elif self.lower or path.wanted or self.facts.kind is not PeerKind.UNKNOWN:
            self._reconnect_later(path, now_ns)
        else:
            path.wants_connection = False
        if not path.index:
            self._unpark(now_ns)

    def _drop(self, path: PathRecord, now_ns: int) -> None:
        self._emit(Detach(self.peer, path.index))
        self._lose(path, now_ns, LossCause.DROPPED)

    def _drop_misplaced(self, path: PathRecord, now_ns: int) -> bool:
        """Drop streams that belong on other paths; tell whether `path` lost its own."""
        if self.lower or self.npaths == 1 or not self.facts.sport_index:
            return False
        for other in self._paths:
            if other.stream is not None and other.source_port % self.npaths != other.index:
                self.stats.misplaced += 1
                self._drop(other, now_ns)
        return path.stream is None

    def drop_pending(self, stream: int, reason: Reason, now_ns: int) -> None:
        """Drop an accepted stream on which the peer sent nothing."""
        self._pending.forget(stream)
        if self._parked.pop(stream, None) is not None:
            self._refuse(stream, reason)
        for path in self._paths:
            if self._seconds.get(path.index, (None,))[0] == stream:
                del self._seconds[path.index]
                self._cancel(path, TimerKind.LIVENESS)
                self._refuse(stream, reason)
        for path in self._paths:
            if path.stream == stream:
                self._drop(path, now_ns)
                self._emit(Refused(self.peer, reason))
