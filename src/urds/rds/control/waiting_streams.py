"""Accepted streams that have no path yet, on the higher side.

A *parked* stream came before it was known how many paths there are, while path 0 had one already.

A *second* stream is one for a path whose stream leads to an own node and is up. It does not
supersede that at once: a probe first asks whether the peer is still there. A peer that has lost its
stream, or has restarted, cannot answer on it: its system resets the stream, or nothing comes in
`liveness_wait_ns`. A peer that answers did not open the new stream: that comes from a process which
has taken the peer's address, and would be handed the peer's messages. It is refused and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from urds.rds.constants import PATHS_MAX
from urds.rds.control.events import Reason, Refuse
from urds.rds.control.tcp_path import PeerContext, TcpPath
from urds.rds.control.timers import TimerKind

_PARKED_MAX: Final = PATHS_MAX - 1
# An answer holds for this long: a peer that connects again and again must not use up the control
# messages that the other side allows, or that side would answer no more.
_ANSWER_HOLDS_NS: Final = 100_000_000


class AcceptedStream(NamedTuple):
    """A stream of the peer, by the driver's number."""

    number: int
    source_port: int  # the peer's
    own: bool  # only an own node has such a stream


class WaitingStreams:
    """The streams of one peer that wait for a path."""

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
            path.timers.set(TimerKind.ANSWER, now_ns + self._context.settings.handshake_wait_ns)

    def take_parked(self) -> Iterable[AcceptedStream]:
        """Return the parked streams, which are parked no more."""
        parked, self.parked = self.parked, {}
        return parked.values()

    # -- second streams

    def has_to_ask(self, path: TcpPath, stream: AcceptedStream, now_ns: int) -> bool:
        """Have a stream wait until the one of its path has answered, ends, or is silent.

        True: the path's stream has to be probed. One that has just answered need not be.
        """
        before = self.seconds.pop(path.index, None)
        self.seconds[path.index] = stream
        if before is not None:
            self._replace(before)
            return False  # the probe is under way
        if now_ns - self._answered_ns.get(path.index, -_ANSWER_HOLDS_NS) < _ANSWER_HOLDS_NS:
            self._refuse_second(path)
            return False
        path.timers.set(TimerKind.LIVENESS, now_ns + self._context.settings.liveness_wait_ns)
        return True

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
            self._replace(second)

    def _replace(self, stream: AcceptedStream) -> None:
        """Refuse a waiting stream, replaced by a newer one of its peer, which is no fault."""
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
