"""Which stream belongs to which path of one peer.

A stream on the wrong path mixes the numbers of two, and messages are lost or doubled; but only the
handshake tells both sides which path a stream is for. Therefore the higher side

- takes a stream for path 0 until it knows how many paths there are, and parks further streams
  meanwhile;
- sends nothing to a pending connection before the handshake, except where it has one path only;
- sends nothing to a pending connection before its first frame if the port is not that of path 0:
  of a urds node it is the stream of a path that is not here, where this side restarted with fewer;
- drops a stream that turns out to be on the wrong path, without an answer.

A stream that only a urds node has needs no handshake for that: its source port tells the path. Only
its place may be missing, where this side is new and the peer had a stream left; then it is refused,
and comes again after that of path 0, whose handshake tells the count.

An accepted stream supersedes the one its path has, except a *second* stream: one for a path whose
stream leads to a urds node, as its first map tells, and is up. A probe first asks whether the peer
is still there. A peer that has lost its stream, or has restarted, cannot answer on it: its system
resets the stream, or nothing comes in `liveness_wait_ns`. A peer that answers did not open the new
stream: that comes from a process which has taken the peer's address, and would be handed the peer's
messages. It is refused and counted.

Source: docs/reference/rds.md 2.1, 2.2, 2.4, 2.5 (linux v6.12, v7.0
net/rds/tcp_listen.c, threads.c); docs/reference/linux-peer-notes.md 3 rules 10 and 11 (observed
with linux v6.1, v6.12, v7.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from urds.rds.constants import PATHS_MAX
from urds.rds.control.connector import Connector
from urds.rds.control.events import (
    Attach,
    Detach,
    LossCause,
    PathLost,
    PathUp,
    PeerKind,
    Reason,
    Refuse,
)
from urds.rds.control.handshake import Handshakes
from urds.rds.control.state import PathInput, PathState
from urds.rds.control.tcp_path import PeerContext, TcpPath
from urds.rds.control.timers import TimerKind
from urds.rds.types import Hold

_PARKED_MAX: Final = PATHS_MAX - 1
# An answer holds for this long: a peer that connects again and again must not use up the control
# messages that the other side allows, or that side would answer no more.
_ANSWER_HOLDS_NS: Final = 100_000_000


class AcceptedStream(NamedTuple):
    """A stream of the peer, by the driver's number."""

    number: int
    source_port: int  # the peer's
    is_urds: bool  # only a urds node has such a stream


class WaitingStreams:
    """The streams of one peer that wait for a path."""

    __slots__ = ("_answered_ns", "_context", "parked", "seconds")

    def __init__(self, context: PeerContext) -> None:
        self._context = context
        self.parked: dict[int, AcceptedStream] = {}  # by number, the oldest first
        self.seconds: dict[int, AcceptedStream] = {}  # by the path's index
        self._answered_ns: dict[int, int] = {}  # by path, when its stream answered last

    def __len__(self) -> int:
        return len(self.parked) + len(self.seconds)

    def refuse(self, stream: int, reason: Reason) -> None:
        """Close a stream, and tell why."""
        self._close(stream)
        self._context.refused(reason)

    def _close(self, stream: int) -> None:
        self._context.pending.forget(stream)
        self._context.emit(Refuse(self._context.peer, stream))

    # -- parked

    def park(self, stream: AcceptedStream, path: TcpPath, now_ns: int) -> None:
        """Keep a stream until the peer is known, or does not answer on `path`."""
        if len(self.parked) >= _PARKED_MAX:
            oldest = next(iter(self.parked))
            del self.parked[oldest]
            self.refuse(oldest, Reason.NO_FREE_PATH)
        self._context.stats.parked += 1
        self.parked[stream.number] = stream
        if path.timers.get(TimerKind.ANSWER) is None:
            path.await_answer(self._context.settings.handshake_wait_ns, now_ns)

    def take_parked(self) -> Iterable[AcceptedStream]:
        """Return the parked streams, which are parked no more."""
        parked, self.parked = self.parked, {}
        return parked.values()

    # -- second streams

    def has_to_ask(self, path: TcpPath, stream: AcceptedStream, now_ns: int) -> bool:
        """Have a stream wait until the one of its path has answered, ends, or is silent.

        True: the path's stream has to be probed, once it is confirmed. One that has just answered
        need not be.
        """
        before = self.seconds.pop(path.index, None)
        self.seconds[path.index] = stream
        if before is not None:
            self.refuse_quietly(before)
            return False  # the probe is under way
        if now_ns - self._answered_ns.get(path.index, -_ANSWER_HOLDS_NS) < _ANSWER_HOLDS_NS:
            self._refuse_second(path)
            return False
        self.await_answer(path, now_ns)
        return True

    def await_answer(self, path: TcpPath, now_ns: int) -> None:
        """Set when the peer counts as gone from the path."""
        path.timers.set(TimerKind.LIVENESS, now_ns + self._context.settings.liveness_wait_ns)

    def handle_answer(self, path: TcpPath, now_ns: int) -> None:
        """Refuse the stream that waited, if one did: the peer is still there."""
        if path.index in self.seconds:
            self._answered_ns[path.index] = now_ns
            path.timers.cancel(TimerKind.LIVENESS)
            self._refuse_second(path)

    def _refuse_second(self, path: TcpPath) -> None:
        self.refuse(self.seconds.pop(path.index).number, Reason.STILL_CONNECTED)

    def refuse_older(self, path: TcpPath) -> None:
        """Refuse the stream that waited, if one did: a newer one takes the path, or it closes."""
        second = self.take_second(path)
        if second is not None:
            self.refuse_quietly(second)

    def refuse_quietly(self, stream: AcceptedStream) -> None:
        """Refuse a stream that its peer has replaced or will open again, which is no fault."""
        self._context.stats.refused_no_path += 1
        self._close(stream.number)

    def take_second(self, path: TcpPath) -> AcceptedStream | None:
        """Return the stream that waited for the path, which is to get it."""
        path.timers.cancel(TimerKind.LIVENESS)
        return self.seconds.pop(path.index, None)

    def forget_answer(self, path: TcpPath) -> None:
        """Forget when the path's stream answered: it is gone."""
        self._answered_ns.pop(path.index, None)

    # -- both

    def drop(self, stream: int, paths: Iterable[TcpPath], reason: Reason) -> None:
        """Refuse a stream on which the peer sent nothing, if it waits."""
        if self.parked.pop(stream, None) is not None:
            self.refuse(stream, reason)
        for path in paths:
            second = self.seconds.get(path.index)
            if second is not None and second.number == stream:
                self.take_second(path)
                self.refuse(stream, reason)

    def forget(self) -> None:
        """Forget all of them after a fault: the driver closes every stream without a path."""
        for stream in (*self.parked.values(), *self.seconds.values()):
            self._context.pending.forget(stream.number)
        self.parked.clear()
        self.seconds.clear()


class TcpStreams:
    """The streams of one peer, each on its path or waiting for one.

    paths: how many there are is the peer's decision.  note_streams: called when a stream was
    attached or ended.
    """

    __slots__ = ("_connector", "_context", "_handshakes", "_note_streams", "_paths", "waiting")

    def __init__(
        self,
        context: PeerContext,
        paths: Sequence[TcpPath],
        connector: Connector,
        handshakes: Handshakes,
        note_streams: Callable[[], None],
    ) -> None:
        self._paths = paths
        self.waiting = WaitingStreams(context)
        self._context = context
        self._connector = connector
        self._handshakes = handshakes
        self._note_streams = note_streams

    @property
    def _peer_kind(self) -> PeerKind:
        return self._handshakes.facts.kind

    def place(self, stream: AcceptedStream, now_ns: int) -> None:
        """Attach an accepted stream to its path, have it wait, or refuse it."""
        unclear = self._peer_kind is PeerKind.UNKNOWN and self._context.settings.npaths > 1
        path = self._path_of(stream)
        is_placed = stream.is_urds and path is not None
        if unclear and not is_placed and self._paths[0].stream is not None:
            self.waiting.park(stream, self._paths[0], now_ns)
        elif path is None and (stream.is_urds or self._peer_kind is PeerKind.URDS):
            self.waiting.refuse_quietly(stream)
            if not stream.is_urds:  # it may be of a kernel, or of a new start: is path 0 dead?
                self._connector.probe_dead_stream(self._paths[0])
        elif path is None:
            self.waiting.refuse(stream.number, Reason.NO_FREE_PATH)
            for other in self._paths:  # one of them is dead, or the peer would not reconnect
                self._connector.probe_dead_stream(other)
        elif self._needs_liveness_check(path):
            if self.waiting.has_to_ask(path, stream, now_ns) and path.confirmed:
                self.ask(path, now_ns)
        else:
            self.attach(path, stream, now_ns)

    def _path_of(self, stream: AcceptedStream) -> TcpPath | None:
        """Return the path of an accepted stream; it may have a stream, then superseded."""
        index = stream.source_port % PATHS_MAX
        if stream.is_urds or self._peer_kind is PeerKind.URDS:
            if index < len(self._paths):
                return self._paths[index]
            # Of a peer that counts more paths, or of a kernel that has the address of a node now.
            is_free = not stream.is_urds and self._paths[0].stream is None
            return self._paths[0] if is_free else None
        if len(self._paths) == 1 or self._handshakes.facts.sport_index:
            return self._paths[stream.source_port % len(self._paths)]
        return next((path for path in self._paths if path.stream is None), None)

    def _needs_liveness_check(self, path: TcpPath) -> bool:
        is_urds = self._peer_kind is PeerKind.URDS
        # Messages go over a path before its handshake ends: by its first map it is a urds node's.
        may_be_urds = self._peer_kind is PeerKind.UNKNOWN and path.generation_told
        return path.state is PathState.UP and (is_urds or may_be_urds)

    def ask_about_second(self, path: TcpPath, now_ns: int) -> None:
        """Ask what a stream waits for, after an answer that may be older than that stream.

        The peer was there a moment ago, so it has the whole time again, once.
        """
        if path.index in self.waiting.seconds:
            self.ask(path, now_ns)

    def ask(self, path: TcpPath, now_ns: int) -> None:
        """Ask the peer whether it is still there: it answers, or its stream ends in time."""
        self.waiting.await_answer(path, now_ns)
        self._handshakes.probe_liveness(path)

    def handle_answer(self, path: TcpPath, now_ns: int) -> None:
        """Count an answer of the peer; the first on a stream may be to what greeted it there.

        That does not tell: the peer may have lost the stream since it sent that.
        """
        is_first, path.answered = not path.answered, True
        if path.confirmed and is_first:
            self.ask_about_second(path, now_ns)
        elif path.confirmed:
            self.waiting.handle_answer(path, now_ns)

    def place_parked(self, now_ns: int) -> None:
        """Place the parked streams; where there is one path, the newest supersedes the others."""
        for stream in self.waiting.take_parked():
            self.place(stream, now_ns)

    def attach_second(self, path: TcpPath, now_ns: int) -> bool:
        """Attach the stream that waited to its path, if one did."""
        second = self.waiting.take_second(path)
        if second is not None:
            self.attach(path, second, now_ns)
        return second is not None

    def attach(self, path: TcpPath, stream: AcceptedStream, now_ns: int) -> None:
        """Give a stream to its path, and greet the peer on it."""
        if path.stream is not None:
            self._context.stats.superseded += 1
            self._note_lost(path, LossCause.SUPERSEDED)
            self._context.pending.forget(path.stream)
        self.waiting.refuse_older(path)
        path.search.cancel()
        path.suspend_wait(now_ns)
        path.begin_stream(stream.number, stream.source_port, is_urds=stream.is_urds, now_ns=now_ns)
        self._note_streams()
        is_urds = self._peer_kind is PeerKind.URDS
        path.acquainted = stream.is_urds or (is_urds and self._is_placed(path))
        hold = self._hold_of(path)
        path.held = hold is Hold.HELLO
        probe = self._handshakes.leading_probe(path)
        self._context.emit(Attach(self._context.peer, path.index, stream.number, hold, probe))
        self._handshakes.greet(path, now_ns)

    def _hold_of(self, path: TcpPath) -> Hold:
        if path.acquainted or self._handshakes.facts.has_only_map:
            return Hold.HELLO  # it may have restarted, and be handed again what it was handed
        if self._context.lower:
            # A kernel's further paths do not always begin with a map: there, time ends the wait.
            return Hold.HELLO if path.index else Hold.FIRST_FRAME
        if self._peer_kind is PeerKind.LINUX:
            return Hold.NOTHING
        may_mix = self._context.settings.npaths > 1 or not self._is_placed(path)
        return Hold.HELLO if may_mix else Hold.NOTHING

    def _is_placed(self, path: TcpPath) -> bool:
        """Tell whether the path is that of its stream, if the peer is a urds node."""
        return self._context.lower or path.source_port % PATHS_MAX == path.index

    def come_up(self, path: TcpPath, now_ns: int) -> None:
        """Note the first frame on a path's stream."""
        self._context.stats.first_frames += 1
        self._context.pending.forget(path.stream)
        path.move(PathInput.FRAME)
        path.since_ns = now_ns
        path.search.end_outage()
        path.search.reset_backoff()
        self._context.emit(PathUp(self._context.peer, path.index))

    def _note_lost(self, path: TcpPath, cause: LossCause) -> None:
        """Report the end of a path's stream, if the path was up."""
        if path.state is PathState.UP:
            self._context.emit(PathLost(self._context.peer, path.index, cause))

    def lose(self, path: TcpPath, now_ns: int, cause: LossCause = LossCause.ENDED) -> None:
        """Reconnect a path whose stream is gone.

        A pending connection that is the lower side is left alone if nothing waits here: it connects
        by itself, and a peer that only opens and drops connections is not called back each time.
        """
        self._context.pending.forget(path.stream)
        path.suspend_wait(now_ns)
        self._note_lost(path, cause)
        path.end_stream(now_ns)
        self._note_streams()
        self.waiting.forget_answer(path)
        if self.attach_second(path, now_ns):
            pass
        elif self._context.lower or path.search.wanted or self._peer_kind is not PeerKind.UNKNOWN:
            self._connector.retry_later(path, now_ns)
        else:
            path.search.is_active = False
        if not path.index:
            self.place_parked(now_ns)

    def drop(self, path: TcpPath, now_ns: int) -> None:
        """End a path's stream, and reconnect."""
        self._context.emit(Detach(self._context.peer, path.index))
        self.lose(path, now_ns, LossCause.DROPPED)

    def drop_misplaced(self, path: TcpPath, npaths_of_peer: int | None, now_ns: int) -> bool:
        """Drop streams that belong on other paths; tell whether `path` lost its own.

        A peer that has one path alone has no stream of another, from whichever port it comes.
        """
        is_told = self._handshakes.facts.sport_index and npaths_of_peer != 1
        if self._context.lower or not is_told:
            return False
        stream = path.stream
        count = PATHS_MAX if self._peer_kind is PeerKind.URDS else len(self._paths)
        for other in self._paths:
            if other.stream is not None and other.source_port % count != other.index:
                self._context.stats.misplaced += 1
                self.drop(other, now_ns)
                # Before the peer connects it again: its path 0 may be dead without its knowledge.
                self._connector.retry_now(other, now_ns)
        return path.stream != stream  # another one may have waited for its place

    def drop_pending(self, stream: int, reason: Reason, now_ns: int) -> None:
        """Drop an accepted stream on which the peer sent nothing."""
        self._context.pending.forget(stream)
        self.waiting.drop(stream, self._paths, reason)
        for path in self._paths:
            if path.stream == stream:
                self.drop(path, now_ns)
                self._context.refused(reason)
