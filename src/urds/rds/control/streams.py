"""Which stream is whose: the middle part of a connection.

A stream on the wrong path mixes the numbers of two, and messages are lost or doubled; but only the
handshake tells both sides which path a stream is for. Therefore the higher side

- takes a stream for path 0 until it knows how many paths there are, and parks those that come
  beside it meanwhile;
- sends nothing to a stranger before the handshake, except where it has one path only: then there
  is nothing to mix up;
- drops a stream that turns out to be on the wrong path, without an answer.

An accepted stream supersedes the one its path has. Source: rds.md 2.2, 2.4 (linux v6.12, v7.0
net/rds/tcp_listen.c); linux-peer-notes.md section 3 rules 1 and 11.

Not so if that one leads to an own node and is up: then it is asked first, by a probe, whether the
peer is still there. A peer that has lost its stream, or has begun a new life, cannot answer on it:
its system resets the stream, or nothing comes in `question_wait_ns`. One that answers did not ask
for another: that comes from a process which has taken the peer's address, and would be handed
the peer's messages. It is refused and counted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from urds.constants import PATHS_MAX
from urds.proto.events import Action, Attach, Detach, Hold, PeerKind, Reason, Refuse, Refused
from urds.proto.paths import Address
from urds.proto.peer import PeerFacts
from urds.proto.seeking import Seeker
from urds.proto.settings import ConnectionSettings, EndpointSettings
from urds.proto.state import Input, PathLife, State
from urds.proto.stats import Stats
from urds.proto.strangers import Strangers
from urds.proto.timers import TimerKey, TimerKind, Timers

if TYPE_CHECKING:
    from random import Random

_PARKED_MAX: Final = PATHS_MAX - 1
# So long an answer holds: whoever connects again and again must not use up what the peer allows us
# in control messages, or it would not answer any more.
_ANSWER_HOLDS_NS: Final = 100_000_000


class Streams(Seeker):
    """The streams of one connection, and how they come to their paths."""

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
        strangers: Strangers | None,
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
        self._strangers = Strangers(EndpointSettings(), timers) if strangers is None else strangers
        self._parked: dict[int, tuple[int, bool]] = {}  # stream to source port and `own`
        # By path, what waits until its stream has answered or ended: stream, source port, `own`.
        self._seconds: dict[int, tuple[int, int, bool]] = {}
        self._answered_ns: dict[int, int] = {}  # by path, when its stream answered last

    @property
    def npaths(self) -> int:
        """How many paths are in use."""
        return len(self._paths)

    def _place(self, stream: int, source_port: int, now_ns: int, *, own: bool) -> None:
        """Give an accepted stream to its path, park it, or refuse it."""
        unclear = self.facts.kind is PeerKind.UNKNOWN and self.settings.npaths > 1
        if unclear and self._paths[0].stream is not None:
            self._park(stream, source_port, now_ns, own=own)
            return
        path = self._path_of(source_port)
        if path is not None and self._is_to_be_asked(path):
            self._ask_first(path, stream, source_port, now_ns, own=own)
            return
        if path is not None:
            self._attach(path, stream, source_port, now_ns, own=own)
            return
        self.stats.refused_no_path += 1
        self._refuse(stream, Reason.NO_FREE_PATH)
        for path in self._paths:  # one of them is dead, or the peer would not ask
            self._poke(path)

    def _path_of(self, source_port: int) -> PathLife | None:
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

    def _is_to_be_asked(self, path: PathLife) -> bool:
        return path.state is State.UP and path.confirmed and self.facts.kind is PeerKind.URDS

    def _ask_first(
        self, path: PathLife, stream: int, source_port: int, now_ns: int, *, own: bool
    ) -> None:
        """Have a stream wait until the one that its path has answers, ends, or is silent."""
        before = self._seconds.pop(path.index, None)
        self._seconds[path.index] = stream, source_port, own
        if before is not None:
            self._replace_waiting(before[0])
            return  # the question is under way
        if now_ns - self._answered_ns.get(path.index, -_ANSWER_HOLDS_NS) < _ANSWER_HOLDS_NS:
            self._refuse_second(path)
            return
        self._ask(path)
        self._set(TimerKind.QUESTION, path, now_ns + self.settings.question_wait_ns)

    def _ask(self, path: PathLife) -> None:
        """Ask an own node something that it answers, on the stream that it has."""
        raise NotImplementedError

    def _answered(self, path: PathLife, now_ns: int) -> None:
        """Refuse the stream that waited, if one did: the peer is still there."""
        if path.index in self._seconds:
            self._answered_ns[path.index] = now_ns
            self._cancel(path, TimerKind.QUESTION)
            self._refuse_second(path)

    def _refuse_second(self, path: PathLife) -> None:
        self.stats.takeovers_refused += 1
        self._refuse(self._seconds.pop(path.index)[0], Reason.STILL_CONNECTED)

    def _refuse_older(self, path: PathLife) -> None:
        """Refuse the stream that waited, if one did: a newer one takes the path, or it closes."""
        second = self._seconds.pop(path.index, None)
        if second is not None:
            self._cancel(path, TimerKind.QUESTION)
            self._replace_waiting(second[0])

    def _replace_waiting(self, stream: int) -> None:
        """End a stream that waited: its peer has made a newer one, which is nothing to warn of."""
        self.stats.refused_no_path += 1
        self._strangers.forget(stream)
        self._emit(Refuse(self.peer, stream))

    def _take_second(self, path: PathLife, now_ns: int) -> bool:
        """Give the path the stream that waited, if one did."""
        second = self._seconds.pop(path.index, None)
        self._cancel(path, TimerKind.QUESTION)
        if second is None:
            return False
        stream, source_port, own = second
        self._attach(path, stream, source_port, now_ns, own=own)
        return True

    def _refuse(self, stream: int, reason: Reason) -> None:
        self._strangers.forget(stream)
        self._emit(Refuse(self.peer, stream))
        self._emit(Refused(self.peer, reason))

    def _attach(
        self, path: PathLife, stream: int, source_port: int, now_ns: int, *, own: bool
    ) -> None:
        if path.stream is not None:
            self.stats.superseded += 1
            self._strangers.forget(path.stream)
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
        """Tell that a stream came or went."""
        raise NotImplementedError

    def _greet(self, path: PathLife, now_ns: int) -> None:
        """Say the first word on a new stream."""
        raise NotImplementedError

    def _hold_of(self, path: PathLife) -> Hold:
        if path.acquainted:
            return Hold.RELEASE
        if self.lower:
            # A kernel's further paths do not always begin with a map: there, time ends the wait.
            return Hold.RELEASE if path.index else Hold.FIRST_FRAME
        if self.facts.kind is PeerKind.UNKNOWN and self.settings.npaths > 1:
            return Hold.RELEASE
        return Hold.NOTHING

    def _come_up(self, path: PathLife) -> None:
        self.stats.first_frames += 1
        self._strangers.forget(path.stream)
        path.move(Input.FRAME)
        self._end_outage(path)

    def _lose(self, path: PathLife, now_ns: int) -> None:
        """Look for another stream: this one is gone.

        Not for a stranger who is the lower side, if nothing waits here: he connects by himself, and
        who only opens connections and drops them is not to be called back each time.
        """
        self._strangers.forget(path.stream)
        self._cancel(path, TimerKind.ANSWER)
        path.end_stream()
        self._note_streams()
        self._answered_ns.pop(path.index, None)
        if self._take_second(path, now_ns):
            pass
        elif self.lower or path.wanted or self.facts.kind is not PeerKind.UNKNOWN:
            self._seek_again(path, now_ns)
        else:
            path.sought = False
        if not path.index:
            self._unpark(now_ns)

    def _drop(self, path: PathLife, now_ns: int) -> None:
        self._emit(Detach(self.peer, path.index))
        self._lose(path, now_ns)

    def _drop_misplaced(self, path: PathLife, now_ns: int) -> bool:
        """Drop streams that belong on other paths; tell whether `path` lost its own."""
        if self.lower or self.npaths == 1 or not self.facts.sport_index:
            return False
        for other in self._paths:
            if other.stream is not None and other.source_port % self.npaths != other.index:
                self.stats.misplaced += 1
                self._drop(other, now_ns)
        return path.stream is None

    def drop_stranger(self, stream: int, reason: Reason, now_ns: int) -> None:
        """Drop an accepted stream on which the peer said nothing."""
        self._strangers.forget(stream)
        if self._parked.pop(stream, None) is not None:
            self._refuse(stream, reason)
        for path in self._paths:
            if self._seconds.get(path.index, (None,))[0] == stream:
                del self._seconds[path.index]
                self._cancel(path, TimerKind.QUESTION)
                self._refuse(stream, reason)
        for path in self._paths:
            if path.stream == stream:
                self._drop(path, now_ns)
                self._emit(Refused(self.peer, reason))
