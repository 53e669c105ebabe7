"""Which stream belongs to which path: the middle part of a connection.

A stream on the wrong path mixes the numbers of two, and messages are lost or doubled; but only the
handshake tells both sides which path a stream is for. Therefore the higher side

- takes a stream for path 0 until it knows how many paths there are, and parks further streams
  meanwhile;
- sends nothing to a pending connection before the handshake, except where it has one path only:
  then there is nothing to mix up;
- drops a stream that turns out to be on the wrong path, without an answer.

An accepted stream supersedes the one its path has. Source: docs/reference/rds.md 2.2, 2.4 (linux
v6.12, v7.0 net/rds/tcp_listen.c); docs/reference/linux-peer-notes.md 3 rules 1 and 11.

A stream that leads to an own node and is up is not superseded at once: a probe on it first asks
whether the peer is still there. A peer that has lost its stream, or has restarted, cannot answer on
it: its system resets the stream, or nothing comes in `liveness_wait_ns`. A peer that answers did
not open the new stream: that comes from a process which has taken the peer's address, and would be
handed the peer's messages. It is refused and counted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from urds.common.types import IPAddress
from urds.rds.constants import PATHS_MAX
from urds.rds.control.events import Action, Attach, Detach, Hold, PeerKind, Reason, Refuse, Refused
from urds.rds.control.peer import PeerFacts
from urds.rds.control.pending import PendingConnections
from urds.rds.control.reconnect import Reconnector
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.state import PathInput, PathRecord, PathState
from urds.rds.control.stats import Stats
from urds.rds.control.timers import TimerKey, TimerKind, Timers

if TYPE_CHECKING:
    from random import Random

_PARKED_MAX: Final = PATHS_MAX - 1
# An answer holds for this long: a peer that connects again and again must not use up the control
# messages that the other side allows, or that side would answer no more.
_ANSWER_HOLDS_NS: Final = 100_000_000


class Streams(Reconnector):
    """The streams of one connection, and how they are attached to their paths."""

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
        pending: PendingConnections | None,
    ) -> None:
        super().__init__(
            local=local,
            peer=peer,
            settings=settings,
            random=random,
            stats=stats,
            actions=actions,
            timers=timers,
        )
        self.facts = PeerFacts()
        self._pending = (
            PendingConnections(LocalAddressSettings(), timers) if pending is None else pending
        )
        self._parked: dict[int, tuple[int, bool]] = {}  # stream to source port and `own`
        # By path, what waits until its stream has answered or ended: stream, source port, `own`.
        self._seconds: dict[int, tuple[int, int, bool]] = {}
        self._answered_ns: dict[int, int] = {}  # by path, when its stream answered last

    @property
    def npaths(self) -> int:
        """How many paths are in use."""
        return len(self._paths)

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
            self._pending.forget(path.stream)
        self._refuse_older(path)
        self._cancel(path, TimerKind.ATTEMPT, TimerKind.ANSWER)
        path.begin_stream(stream, source_port, own=own)
        self._note_streams()
        path.acquainted = own or self.facts.kind is PeerKind.URDS
        hold = self._hold_of(path)
        path.held = hold is Hold.RELEASE
        self._emit(Attach(self.peer, path.index, stream, hold))
        self._greet(path, now_ns)

    def _note_streams(self) -> None:
        """Report that a stream was attached or ended."""
        raise NotImplementedError

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

    def _come_up(self, path: PathRecord) -> None:
        self.stats.first_frames += 1
        self._pending.forget(path.stream)
        path.move(PathInput.FRAME)
        self._end_outage(path)

    def _lose(self, path: PathRecord, now_ns: int) -> None:
        """Reconnect a path whose stream is gone.

        A pending connection that is the lower side is left alone if nothing waits here: it connects
        by itself, and a peer that only opens and drops connections is not called back each time.
        """
        self._pending.forget(path.stream)
        self._cancel(path, TimerKind.ANSWER)
        path.end_stream()
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
        self._lose(path, now_ns)

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
