"""One peer over TCP: what the reports of driver and plane mean for its paths and streams.

`connector` says when to connect, `tcp_streams` which stream belongs to which path, `handshake` what
both sides tell each other.

A handshake (probe, hello, and their answers) identifies the peer. Until then only path 0 is used,
and the peer's messages are kept until it has answered. Where an earlier process with this one's
generation had several paths, all of them are there from the beginning: messages with their numbers
may be left, and what follows must not overtake them. The peer goes by that count as well, so it is
announced to it even if the setting has become less. The lower side counts the paths when the
peer has answered it, the higher one at the first handshake it sees: the peer connects after that
answer, and the paths must be known then.

A peer is a value machine: no I/O, no clock, no random numbers of its own. Reports cross with
actions, so a report for a path or a stream that is gone is ignored: `attachment` counts the streams
that `Attach` gave the path, here and in the plane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from urds.common.records import replace
from urds.common.types import IPAddress
from urds.rds.constants import PING_PORT, PORT_FIRST, PROBE_PORT
from urds.rds.control.connector import Connector
from urds.rds.control.events import (
    FanIn,
    FanOut,
    PeerAction,
    PeerKind,
    PeerStartedAnew,
    Reason,
    Refuse,
    RestartPeer,
)
from urds.rds.control.handshake import Handshakes, PeerFacts
from urds.rds.control.paths import address_bytes
from urds.rds.control.pending import PendingConnections
from urds.rds.control.reconnect import Quarantine
from urds.rds.control.settings import ConnectionSettings
from urds.rds.control.state import ConnectionReport, PathInput, PathState
from urds.rds.control.stats import Stats
from urds.rds.control.tcp_path import PeerContext, TcpPath
from urds.rds.control.tcp_streams import AcceptedStream, TcpStreams
from urds.rds.control.timers import TimerKind, Timers
from urds.rds.wire.extensions import Handshake, parse_handshake

if TYPE_CHECKING:
    from random import Random


class TcpPeer:
    """The control state of one (local, peer) pair; the two addresses differ.

    A local address passes in what its peers share, and drives their timers and actions.
    """

    def __init__(
        self,
        *,
        local: IPAddress,
        peer: IPAddress,
        settings: ConnectionSettings,
        random: Random,
        stats: Stats,
        actions: deque[PeerAction],
        timers: Timers,
        pending: PendingConnections,
        quarantine: Quarantine,
        on_streams: Callable[[TcpPeer], None],
        npaths_before: int = 1,
    ) -> None:
        """Make it; `npaths_before` is how many paths an earlier process of this generation had."""
        assert address_bytes(local) != address_bytes(peer), f"{local} to itself"
        if npaths_before > settings.npaths:
            settings = replace(settings, npaths=npaths_before)
        self.local = local
        self.peer = peer
        self.lower = address_bytes(local) < address_bytes(peer)
        self.settings = settings
        self.stats = stats
        self.used_ns = 0  # when something happened last, for eviction
        self._pending = pending
        self._on_streams = on_streams  # of this peer: one was attached or ended
        self._context = PeerContext(
            peer=peer,
            lower=self.lower,
            settings=settings,
            stats=self.stats,
            actions=actions,
            timers=timers,
            pending=self._pending,
            quarantine=quarantine,
            random=random,
        )
        self._paths = [self._context.new_path(index) for index in range(npaths_before)]
        self._connector = Connector(self._context, self._paths)
        self._handshakes = Handshakes(self._context, npaths_before)
        self._streams = TcpStreams(
            self._context, self._paths, self._connector, self._handshakes, self._note_streams
        )
        self._untold = False  # the plane may have missed a report of the peer
        if npaths_before > 1:
            self._context.emit(FanOut(peer, npaths_before))

    def _note_streams(self) -> None:
        self._on_streams(self)

    @property
    def facts(self) -> PeerFacts:
        """What is known of the peer."""
        return self._handshakes.facts

    @property
    def npaths(self) -> int:
        """How many paths are in use."""
        return len(self._paths)

    @property
    def is_idle(self) -> bool:
        """Whether no stream is here or on its way, and no message waits for one."""
        idle_states = (PathState.DOWN, PathState.WAITING)
        return all(path.state in idle_states and not path.search.wanted for path in self._paths)

    def close(self) -> None:
        """Forget all timers: the peer is evicted. Its streams end with its paths."""
        for path in self._paths:
            self._pending.forget(path.stream)
            path.timers.cancel(*TimerKind)
            path.stream = None
        self._note_streams()

    @property
    def has_stream(self) -> bool:
        """Whether any path has a stream."""
        return any(path.stream is not None for path in self._paths)

    @property
    def may_disconnect(self) -> bool:
        """Whether no message waits for a stream, no stream for a path, no attempt for its answer.

        An attempt's answer would come to the state that is made for the peer next.
        """
        trying = (PathState.CONNECTING, PathState.CALL_BACK_REQUESTED)
        busy = any(path.search.wanted or path.state in trying for path in self._paths)
        return not (busy or self._streams.waiting)

    def drop_pending(self, stream: int, reason: Reason, now_ns: int) -> None:
        """Drop an accepted stream on which the peer sent nothing."""
        self._streams.drop_pending(stream, reason, now_ns)

    def report(self, index: int) -> ConnectionReport | None:
        """Tell how a path is, for tables; None for one that is gone."""
        path = self._path(index)
        return None if path is None else path.report()

    def _path(self, index: int) -> TcpPath | None:
        """Return a path; None if a fan-in has closed it meanwhile."""
        return self._paths[index] if index < len(self._paths) else None

    def _current(self, index: int, attachment: int) -> TcpPath | None:
        """Return a path with a stream, if the report is about that stream."""
        path = self._path(index)
        if path is None or path.stream is None or path.attachment != attachment:
            return None
        return path

    # -- reports of the driver and the plane

    def handle_wanted(self, index: int, now_ns: int) -> None:
        """Connect: the first message was queued for a path that has no stream."""
        path = self._path(index)
        if path is not None and path.stream is None:
            self.used_ns = now_ns
            self._connector.want(path, now_ns)

    def handle_was_connected(self, now_ns: int) -> None:
        """Connect: an earlier process with this one's generation was connected to the peer."""
        self.used_ns = now_ns
        self._connector.retry_now(self._paths[0], now_ns)

    def handle_connected(
        self, index: int, stream: int, now_ns: int, *, is_urds: bool = False
    ) -> None:
        """Take the stream that a `Connect` brought; `is_urds` if only a urds node has such."""
        path = self._path(index)
        if path is None:
            self._context.emit(Refuse(self.peer, stream))
        else:
            self._streams.attach(path, AcceptedStream(stream, 0, is_urds), now_ns)

    def handle_connect_failed(self, index: int, now_ns: int) -> None:
        """Try again later: a `Connect`, or for path 0 a `RequestCallBack`, failed."""
        self.stats.connect_failures += 1
        self._connector.end_attempt(self._path(index), now_ns)

    def handle_call_back_requested(self, now_ns: int) -> None:
        """Wait for the peer to connect: a `RequestCallBack` was established."""
        self._connector.end_call_back_request(now_ns)

    def handle_accepted(
        self, stream: int, source_port: int, now_ns: int, *, is_urds: bool = False
    ) -> None:
        """Answer a call-back request, or place the stream. The source port is the peer's."""
        self.used_ns = now_ns
        if self.lower:
            self._context.emit(Refuse(self.peer, stream))
            self._connector.handle_call_back_request(now_ns)
        else:
            self.stats.accepts += 1
            self._streams.place(AcceptedStream(stream, source_port, is_urds), now_ns)

    def handle_first_frame(
        self, index: int, attachment: int, now_ns: int, *, generation: int | None = None
    ) -> None:
        """Count the path as up: the peer's first whole frame arrived on its stream.

        `generation`: of the peer, told by a map, as only a urds node's does.
        """
        path = self._current(index, attachment)
        if path is None or path.state is not PathState.ATTACHED:
            return
        self.used_ns = now_ns
        path.generation_told = generation is not None
        if generation is not None:
            self._handshakes.note_map(generation)
        self._streams.come_up(path, now_ns)
        if self._untold:
            self._tell_again()
        if path.is_urds or self.facts.kind is PeerKind.URDS:
            if path.held:
                path.timers.set(TimerKind.ANSWER, now_ns + self.settings.hello_wait_ns)
        elif self.facts.kind is PeerKind.UNKNOWN:
            if self.settings.npaths == 1 and generation is None:
                self._handshakes.release(path)  # of a kernel: its ports tell no path
            self._handshakes.await_answer(path, now_ns)
        else:
            self._handshakes.release(path)
            self._confirm(path, now_ns)

    def handle_down(
        self, index: int, attachment: int, frames: int, now_ns: int, *, protocol_error: bool = False
    ) -> None:
        """Reconnect: the path's stream ended by itself, after `frames` frames.

        A protocol error delays that: the next stream will hardly be better.
        """
        path = self._current(index, attachment)
        if path is not None:
            self.used_ns = now_ns
            if protocol_error:
                path.search.quarantine(now_ns)
            self.stats.downs += 1
            self.stats.refused_by_peer += not frames
            self._streams.lose(path, now_ns)

    def handle_dead(self, index: int, now_ns: int) -> None:
        """Drop a stream on which the peer's host does not answer, and reconnect."""
        path = self._path(index)
        if path is not None and path.stream is not None:
            self.stats.dead += 1
            self._streams.drop(path, now_ns)

    def handle_fault(self, attachments: Sequence[int], now_ns: int) -> None:
        """Detach all streams and reconnect after a quarantine: a fault of this node was met.

        Any action may have been lost with it. `attachments` are the plane's count of each path's
        streams; other state that the plane may miss is reported again with the next stream.
        """
        self._untold = True
        self._streams.waiting.forget()
        self._paths[0].search.quarantine(now_ns)  # which counts for the host
        for path in self._paths:
            path.timers.cancel(TimerKind.LIVENESS)
            path.attachment = attachments[path.index] if path.index < len(attachments) else 0
            if path.stream is not None:
                self._streams.drop(path, now_ns)
                if path.search.is_active:
                    continue
            else:
                path.move(PathInput.ANSWERED)  # an attempt under way may never be answered
            # Messages may wait, of which no report comes.
            self._connector.retry_later(path, now_ns)

    def handle_control(
        self,
        index: int,
        attachment: int,
        *,
        acknowledgement: int,
        source_port: int,
        target_port: int,
        extension: bytes,
        now_ns: int,
    ) -> None:
        """Answer a ping, learn from a handshake. Raises WireError if 16 bytes are not 16."""
        path = self._current(index, attachment)
        if path is None:
            return
        self.used_ns = now_ns
        is_ping = target_port == PING_PORT
        if (source_port if is_ping else target_port) == PROBE_PORT:
            self.stats.handshakes += 1
            handshake = parse_handshake(extension)
            if not is_ping:
                self._streams.handle_answer(path, now_ns)
            self._learn(path, handshake, now_ns)
            if not self._streams.drop_misplaced(path, handshake.npaths, now_ns):
                self._react(path, handshake, is_ping, acknowledgement, now_ns)
        elif is_ping and source_port >= PORT_FIRST:
            self.stats.pings += 1
            self._handshakes.answer_ping(path, source_port)

    def handle_peer_restarted(self, now_ns: int) -> None:
        """Count the kernel's next handshake afresh: the plane saw that it restarted."""
        self.stats.peer_restarts += 1
        self._handshakes.handle_restart()
        path = self._paths[0]
        if self.settings.npaths > 1 and path.state is PathState.UP:
            # It forgot the number of paths, and that source ports here carry the index.
            self._handshakes.probe_again(path, now_ns)

    def handle_timer(self, kind: TimerKind, number: int, now_ns: int) -> None:
        """Do what one timer asks for."""
        if kind is TimerKind.PENDING:
            self._streams.drop_pending(number, Reason.SILENT, now_ns)
            return
        path = self._path(number)
        assert path is not None, "a closed path has no timers"
        if kind is TimerKind.ATTEMPT:
            self._connector.handle_due(path, now_ns)
        elif kind is TimerKind.GIVE_UP:
            self._connector.give_up(path, now_ns)
        elif kind is TimerKind.LIVENESS:
            self._streams.attach_second(path, now_ns)
        else:
            self._handle_silence(path, now_ns)

    # -- handshakes

    def _learn(self, path: TcpPath, handshake: Handshake, now_ns: int) -> None:
        """Note the peer's identity. What a restart drops is dropped before anything is released."""
        before = self._handshakes.learn(handshake)
        if before.has_restarted(handshake):
            self.stats.peer_restarts += 1
            self._context.emit(RestartPeer(self.peer))
            self._context.emit(PeerStartedAnew(self.peer))
            for other in self._paths:
                if other is not path and other.confirmed:
                    self._streams.drop(other, now_ns)  # it leads to the old generation
        self._handshakes.tell_news(before)
        if not self.lower:
            self._set_npaths()
        if before.kind is PeerKind.UNKNOWN:
            self._streams.place_parked(now_ns)

    def _tell_again(self) -> None:
        """Report all that is known of the peer; what has been done before is not done twice."""
        self._untold = False
        # The routes that a `FanOut` sets would be ahead of what a `FanIn` has still to move.
        self._context.emit(FanIn(self.peer, self.npaths))
        self._context.emit(FanOut(self.peer, self.npaths))
        self._handshakes.tell_news(PeerFacts())

    def _react(
        self,
        path: TcpPath,
        handshake: Handshake,
        is_ping: bool,
        acknowledgement: int,
        now_ns: int,
    ) -> None:
        """Answer a handshake, and let the path send if it shows that the peer knows this node."""
        is_urds = handshake.mark is not None
        introduced = is_urds and handshake.generation is not None
        # Two crossing hellos answer each other.
        if is_ping and not (introduced and path.hello_sent):
            self._handshakes.answer(path, is_urds=is_urds)
        if introduced or not is_urds:
            self._handshakes.release(path, acknowledgement or None if is_urds else None)
        # The peer sends a hello only if it knows this node; a pending connection gets a probe,
        # whose answer tells.
        if (introduced and path.acquainted) or not is_ping:
            self._confirm(path, now_ns)

    def _confirm(self, path: TcpPath, now_ns: int) -> None:
        """Note that the peer knows this node on this stream; path 0 opens the others."""
        if path.confirmed:
            return
        if self._handshakes.has_to_announce():
            path.probe_sent = False
            self._handshakes.probe(path)
            return
        path.confirmed = True
        path.end_wait()
        self._streams.ask_about_second(path, now_ns)
        if self.lower and not path.index:
            self._set_npaths()
            self._connector.open_paths(now_ns)

    def _set_npaths(self) -> None:
        """Make or close paths, so that there are as many as both sides can use."""
        count = self.facts.npaths
        if count > self.npaths:
            self.stats.fan_outs += 1
            self._paths += [self._context.new_path(index) for index in range(self.npaths, count)]
            self._context.emit(FanOut(self.peer, count))
            self._handshakes.tell_new_paths()
        elif count < self.npaths:
            self.stats.fan_ins += 1
            for path in self._paths[count:]:
                self._pending.forget(path.stream)
                path.timers.cancel(*TimerKind)
                self._streams.waiting.refuse_older(path)
            del self._paths[count:]
            self._note_streams()
            self._context.emit(FanIn(self.peer, count))

    def _handle_silence(self, path: TcpPath, now_ns: int) -> None:
        """Go on without an answer to the handshake.

        A urds node that is silent on path 0 counts as Linux, for another host may have its address
        now; on another path, and where no other host can be, the fault is the stream's.
        """
        path.end_wait()
        on_another = self.facts.kind is PeerKind.URDS and path.index
        if path.held and (path.is_urds or on_another):
            self._streams.drop(path, now_ns)
            return
        if self.facts.kind is PeerKind.LINUX:
            if path.state is PathState.ATTACHED:
                self._streams.come_up(path, now_ns)
            self._handshakes.release(path)
            self._confirm(path, now_ns)
        elif self.facts.kind is PeerKind.UNKNOWN or path.held:
            self.stats.handshake_timeouts += 1
            self._handshakes.take_for_linux()
            self._streams.place_parked(now_ns)
            for held in self._paths:
                self._handshakes.release(held)
            self._confirm(path, now_ns)
