"""One peer of one local address: its identity, its number of paths, the stream of each path.

The module `streams` says when to connect and which stream belongs to which path, `peer` how a
handshake changes what is known.

A handshake (probe, hello, and their answers) identifies the peer. Until then only path 0 is used,
and the connection keeps everything it has sent. Towards a known own node, every new stream is held
until both sides have exchanged *hellos*: generation and highest received number. The lower side
counts the paths when the peer has answered it, the higher one at the first handshake it sees: the
peer connects after that answer, and the paths must be known then.

The connection is a value machine: no I/O, no clock, no random numbers of its own. Reports cross
with actions, so a report for a path or a stream that is gone is ignored: `attachment` counts the
streams that `Attach` gave the path, here and in the plane. Source: docs/reference/rds.md 1.8 (linux
v6.12, v7.0); docs/reference/linux-peer-notes.md 1, 3 (observed with linux v6.1, v6.12, v7.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from urds.rds.constants import PING_PORT, PORT_FIRST, PROBE_PORT
from urds.rds.control.events import (
    Action,
    Agree,
    FanIn,
    FanOut,
    PeerKind,
    PeerKnown,
    PeerStartedAnew,
    Reason,
    Refuse,
    Release,
    RememberHandshake,
    RestartPeer,
    SendControl,
)
from urds.rds.control.peer import PeerFacts, emit_ours
from urds.rds.control.state import PathInput, PathRecord, PathState
from urds.rds.control.streams import Streams
from urds.rds.control.timers import TimerKind
from urds.rds.wire.extensions import Handshake, parse_handshake

if TYPE_CHECKING:
    pass

_NO_EXTENSION: Final = bytes(16)


class Connection(Streams):
    """The control state of one (local, peer) pair; the two addresses differ."""

    used_ns = 0  # when something happened last, for eviction
    _announced = False  # SPORT_IDX was sent to this generation of the peer
    _untold = False  # the plane may have missed a report of the peer

    @property
    def is_idle(self) -> bool:
        """Whether no stream is here or on its way, and no message waits for one."""
        idle_states = (PathState.DOWN, PathState.WAITING)
        return all(path.state in idle_states and not path.wanted for path in self._paths)

    def close(self) -> None:
        """Forget all timers: the connection is evicted. Its streams end with its paths."""
        for path in self._paths:
            self._pending.forget(path.stream)
            self._cancel(path, *TimerKind)
            path.stream = None
        self._note_streams()

    @property
    def has_stream(self) -> bool:
        """Whether any path has a stream."""
        return any(path.stream is not None for path in self._paths)

    @property
    def may_disconnect(self) -> bool:
        """Whether no message waits for a stream, no stream for a path, no attempt for its answer.

        An attempt's answer would come to the connection that is made for the peer next.
        """
        trying = (PathState.CONNECTING, PathState.CALL_BACK_REQUESTED)
        busy = any(path.wanted or path.state in trying for path in self._paths)
        return not (busy or self._parked or self._seconds)

    # -- reports of the driver and the plane

    def handle_wanted(self, index: int, now_ns: int) -> None:
        """Connect: the first message was queued for a path that has no stream."""
        path = self._path(index)
        if path is not None and path.stream is None:
            self.used_ns = now_ns
            self._want(path, now_ns)

    def handle_connected(self, index: int, stream: int, now_ns: int, *, own: bool = False) -> None:
        """Take the stream that a `Connect` brought; `own` if only an own node has such."""
        path = self._path(index)
        if path is None:
            self._emit(Refuse(self.peer, stream))
        else:
            self._attach(path, stream, 0, now_ns, own=own)

    def handle_connect_failed(self, index: int, errno: int, now_ns: int) -> None:
        """Try again later: a `Connect`, or for path 0 a `RequestCallBack`, failed with `errno`."""
        self.stats.connect_failures += 1
        path = self._path(index)
        if not self.lower:
            self._end_call_back_request(now_ns)
        elif path is not None and path.state is PathState.CONNECTING:
            self._end_connect(path, now_ns)

    def handle_call_back_requested(self, now_ns: int) -> None:
        """Wait for the peer to connect: a `RequestCallBack` was established."""
        self._end_call_back_request(now_ns)

    def handle_accepted(
        self, stream: int, source_port: int, now_ns: int, *, own: bool = False
    ) -> None:
        """Answer a call-back request, or place the stream. The source port is the peer's."""
        self.used_ns = now_ns
        if self.lower:
            self._emit(Refuse(self.peer, stream))
            self._handle_call_back_request(now_ns)
        else:
            self.stats.accepts += 1
            self._place(stream, source_port, now_ns, own=own)

    def handle_first_frame(self, index: int, attachment: int, now_ns: int) -> None:
        """Count the path as up: the peer's first whole header arrived on its stream."""
        path = self._current(index, attachment)
        if path is None or path.state is not PathState.ATTACHED:
            return
        self.used_ns = now_ns
        self._come_up(path, now_ns)
        if self._untold:
            self._tell_again()
        if path.own or self.facts.kind is PeerKind.URDS:
            if path.held:
                self._set(TimerKind.ANSWER, path, now_ns + self.settings.hello_wait_ns)
        elif self.facts.kind is PeerKind.UNKNOWN:
            if self.lower:
                self._probe(path)
            self._set(TimerKind.ANSWER, path, now_ns + self.settings.handshake_wait_ns)
        else:
            self._release(path, None)
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
                self._quarantine(path, now_ns)
            self.stats.downs += 1
            self.stats.refused_by_peer += not frames
            self._lose(path, now_ns)

    def handle_dead(self, index: int, now_ns: int) -> None:
        """Drop a stream on which the peer's host does not answer, and reconnect."""
        path = self._path(index)
        if path is not None and path.stream is not None:
            self.stats.dead += 1
            self._drop(path, now_ns)

    def handle_fault(self, attachments: Sequence[int], now_ns: int) -> None:
        """Detach all streams and reconnect after a quarantine: a fault of this node was met.

        Any action may have been lost with it. `attachments` are the plane's count of each path's
        streams; other state that the plane may miss is reported again with the next stream.
        """
        self._untold = True
        for stream in self._parked:  # the driver closes every stream without a path
            self._pending.forget(stream)
        self._parked.clear()
        for stream, _, _ in self._seconds.values():
            self._pending.forget(stream)
        self._seconds.clear()
        for path in self._paths:
            self._cancel(path, TimerKind.LIVENESS)
            path.attachment = attachments[path.index] if path.index < len(attachments) else 0
            self._quarantine(path, now_ns)
            if path.stream is not None:
                self._drop(path, now_ns)
                if path.wants_connection:
                    continue
            else:
                path.move(PathInput.ANSWERED)  # an attempt under way may never be answered
            self._reconnect_later(path, now_ns)  # messages may wait, of which no report comes

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
                self._answered(path, now_ns)
            self._learn(path, handshake, now_ns)
            if not self._drop_misplaced(path, now_ns):
                self._react(path, handshake, is_ping, acknowledgement, now_ns)
        elif is_ping and source_port >= PORT_FIRST:
            self.stats.pings += 1
            self._send(path, PING_PORT, source_port, _NO_EXTENSION, hello=False)

    def handle_peer_restarted(self, index: int, now_ns: int) -> None:
        """Count the kernel's next handshake afresh: the plane saw that it restarted."""
        self.stats.peer_restarts += 1
        self._emit(PeerStartedAnew(self.peer, self.facts.generation, None))
        self.facts = self.facts.restarted()
        self._announced = False
        path = self._paths[0]
        if self.settings.npaths > 1 and path.state is PathState.UP:
            # It forgot the number of paths, and that source ports here carry the index.
            path.confirmed = path.probe_sent = False
            self._probe(path)
            self._set(TimerKind.ANSWER, path, now_ns + self.settings.handshake_wait_ns)

    def handle_timer(self, kind: TimerKind, number: int, now_ns: int) -> None:
        """Do what one timer asks for."""
        if kind is TimerKind.PENDING:
            self.stats.pending_silent += 1
            self.drop_pending(number, Reason.SILENT, now_ns)
            return
        path = self._path(number)
        assert path is not None, "a closed path has no timers"
        if kind is TimerKind.ATTEMPT:
            self._attempt(path, now_ns)
        elif kind is TimerKind.GIVE_UP:
            self._give_up(path, now_ns)
        elif kind is TimerKind.LIVENESS:
            self._take_second(path, now_ns)
        else:
            self._handle_silence(path, now_ns)

    def handle_timeout(self, now_ns: int) -> None:
        """Do what is due, where the timers are not shared."""
        while (key := self._timers.pop_due(now_ns)) is not None:
            self.handle_timer(key.kind, key.number, now_ns)

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due next, None for never."""
        return self._timers.next_ns()

    def poll_event(self) -> Action | None:
        """Return the next action or notice."""
        return self._actions.popleft() if self._actions else None

    def _current(self, index: int, attachment: int) -> PathRecord | None:
        """Return a path with a stream, if the report is about that stream."""
        path = self._path(index)
        if path is None or path.stream is None or path.attachment != attachment:
            return None
        return path

    # -- handshake

    def _greet(self, path: PathRecord, now_ns: int) -> None:
        if path.acquainted:
            self.stats.hellos += 1
            path.hello_sent = True
            extension = self._handshake(generation=True)
            self._send(path, PROBE_PORT, PING_PORT, extension, hello=True)
        elif self.facts.kind is PeerKind.UNKNOWN and not self.lower:
            self._probe(path)
        elif path.held:
            self._set(TimerKind.ANSWER, path, now_ns + self.settings.handshake_wait_ns)

    def _probe_liveness(self, path: PathRecord) -> None:
        # A hello is not sent again on a later stream, and it goes out at once; one without a
        # generation is answered whatever the peer has sent before.
        extension = self._handshake(generation=False)
        self._send(path, PROBE_PORT, PING_PORT, extension, hello=True)

    def _send(
        self, path: PathRecord, source_port: int, target_port: int, extension: bytes, *, hello: bool
    ) -> None:
        self._emit(SendControl(self.peer, path.index, source_port, target_port, extension, hello))

    def _handshake(self, *, generation: bool) -> bytes:
        """Return this node's handshake. SPORT_IDX only answers a peer's own: older kernels log it.

        Source: linux v6.1, v6.12 (observed): "ignoring unknown exthdr type 0x8".
        """
        announced = self.settings.npaths > 1 and self.facts.sport_index
        self._announced |= announced
        return emit_ours(self.settings, generation=generation, sport_index=announced)

    def _must_announce(self) -> bool:
        """Tell whether a kernel must learn, before fan-out, that source ports carry the index."""
        facts = self.facts
        told = self._announced or self.settings.npaths == 1
        return self.lower and facts.kind is PeerKind.LINUX and facts.sport_index and not told

    def _probe(self, path: PathRecord) -> None:
        """Send a probe for the peer's identity, once per stream."""
        if path.probe_sent:
            return
        path.probe_sent = True
        self.stats.probes += 1
        # A held path takes only a hello. Its number 0 does no harm to a kernel peer: a path that
        # was held until now has sent nothing that could be retransmitted and delivered twice.
        extension = self._handshake(generation=False)
        self._send(path, PROBE_PORT, PING_PORT, extension, hello=path.held)

    def _learn(self, path: PathRecord, handshake: Handshake, now_ns: int) -> None:
        """Note the peer's identity. What a restart drops is dropped before anything is released."""
        before = self.facts
        self.facts = before.learn(handshake, self.settings)
        if before.has_restarted(handshake):
            self.stats.peer_restarts += 1
            self._emit(RestartPeer(self.peer))
            self._emit(PeerStartedAnew(self.peer, before.generation, handshake.generation))
            for other in self._paths:
                if other is not path and other.confirmed:
                    self._drop(other, now_ns)  # it leads to the old generation
        self._tell(before)
        if not self.lower:
            self._set_npaths(now_ns)
        if before.kind is PeerKind.UNKNOWN:
            self._unpark(now_ns)

    def _tell(self, before: PeerFacts) -> None:
        """Report what is new about the peer."""
        facts = self.facts
        if facts.agreement != before.agreement:
            self._emit(Agree(self.peer, *facts.agreement))
        if facts.kind is PeerKind.LINUX and (
            before.kind is not PeerKind.LINUX or before.generation != facts.generation
        ):
            self._emit(RememberHandshake(self.peer, facts.generation))
        if (facts.kind, facts.npaths, facts.capabilities) != (
            before.kind, before.npaths, before.capabilities,
        ):  # fmt: skip
            self._emit(PeerKnown(self.peer, facts.kind, facts.npaths, facts.capabilities))

    def _tell_again(self) -> None:
        """Report all that is known of the peer; what has been done before is not done twice."""
        self._untold = False
        self._emit(FanOut(self.peer, self.npaths))
        self._emit(FanIn(self.peer, self.npaths))
        self._tell(PeerFacts())

    def _react(
        self,
        path: PathRecord,
        handshake: Handshake,
        is_ping: bool,
        acknowledgement: int,
        now_ns: int,
    ) -> None:
        """Answer a handshake, and let the path send if it shows that the peer knows this node."""
        own = handshake.mark is not None
        introduced = own and handshake.generation is not None
        # Two crossing hellos answer each other.
        if is_ping and not (introduced and path.hello_sent):
            answer = self._handshake(generation=own)
            self._send(path, PING_PORT, PROBE_PORT, answer, hello=own)
        if introduced or not own:
            self._release(path, acknowledgement or None if own else None)
        # The peer sends a hello only if it knows this node; a pending connection gets a probe,
        # whose answer tells.
        if (introduced and path.acquainted) or not is_ping:
            self._confirm(path, now_ns)

    def _release(self, path: PathRecord, received_by_peer: int | None) -> None:
        if path.held:
            path.held = False
            self._emit(Release(self.peer, path.index, received_by_peer))

    def _confirm(self, path: PathRecord, now_ns: int) -> None:
        """Note that the peer knows this node on this stream; path 0 opens the others."""
        if path.confirmed:
            return
        if self._must_announce():
            path.probe_sent = False
            self._probe(path)
            return
        path.confirmed = True
        self._cancel(path, TimerKind.ANSWER)
        if self.lower and not path.index:
            self._set_npaths(now_ns)
            self._open_paths(now_ns)

    def _set_npaths(self, now_ns: int) -> None:
        """Make or close paths, so that there are as many as both sides can use."""
        count = self.facts.npaths
        if count > self.npaths:
            self.stats.fan_outs += 1
            self._paths += [self._new_path(index) for index in range(self.npaths, count)]
            self._emit(FanOut(self.peer, count))
            self._emit(Agree(self.peer, *self.facts.agreement))
            if self.facts.kind is PeerKind.LINUX:
                self._emit(RememberHandshake(self.peer, self.facts.generation))
        elif count < self.npaths:
            self.stats.fan_ins += 1
            for path in self._paths[count:]:
                self._pending.forget(path.stream)
                self._cancel(path, *TimerKind)
                self._refuse_older(path)
            del self._paths[count:]
            self._note_streams()
            self._emit(FanIn(self.peer, count))

    def _handle_silence(self, path: PathRecord, now_ns: int) -> None:
        """Go on without an answer to the handshake.

        An own node that is silent on path 0 counts as Linux, for another host may have its address
        now; on another path, and where no other host can be, the fault is the stream's.
        """
        on_another = self.facts.kind is PeerKind.URDS and path.index
        if path.held and (path.own or on_another):
            self._drop(path, now_ns)
            return
        if self.facts.kind is PeerKind.LINUX:
            if path.state is PathState.ATTACHED:
                self._come_up(path, now_ns)
            self._release(path, None)
            self._confirm(path, now_ns)
        elif self.facts.kind is PeerKind.UNKNOWN or path.held:
            self.stats.handshake_timeouts += 1
            before, self.facts = self.facts, self.facts.taken_for_linux()
            self._tell(before)
            self._unpark(now_ns)
            for held in self._paths:
                self._release(held, None)
            self._confirm(path, now_ns)
