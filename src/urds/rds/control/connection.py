"""One peer of one local address: who it is, how many paths there are, which stream is whose.

Who connects and when stands in `seeking`, which stream is for which path in `streams`, and how a
handshake changes what is known in `peer`.

A handshake (probe, hello, and their answers) tells who the peer is. Until then path 0 alone is used
and nothing sent is forgotten. Towards an own node that is known already, every new stream is held
until the *hellos* are exchanged: generation and highest received number. The lower side counts the
paths once the peer has answered it, the higher one with the first handshake it sees: the peer
connects after our answer, and must be understood then.

A value machine: no I/O, no clock, no chance of its own. Reports cross with actions, so one for a
path or a stream that is gone is ignored: `attachment` counts the streams that `Attach` gave the
path, here and in the plane. Source: rds.md 1.8 (linux v6.12, v7.0);
linux-peer-notes.md sections 1 and 3 (observed with linux v6.1, v6.12, v7.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from urds.constants import PING_PORT, PORT_FIRST, PROBE_PORT
from urds.proto.events import (
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
from urds.proto.paths import Address
from urds.proto.peer import (
    PeerFacts,
    emit_ours,
    is_new_life,
    learn,
    restarted,
    taken_for_linux,
)
from urds.proto.settings import ConnectionSettings
from urds.proto.state import Input, PathLife, State
from urds.proto.stats import Stats
from urds.proto.strangers import Strangers
from urds.proto.streams import Streams
from urds.proto.timers import TimerKind, Timers
from urds.wire.exthdr import Handshake, parse_handshake

if TYPE_CHECKING:
    from random import Random

_NO_EXTENSION: Final = bytes(16)


class Connection(Streams):
    """The control state of one (local, peer) pair; the two addresses differ.

    An endpoint hands in what its connections share; alone, a connection has its own of each.
    """

    def __init__(
        self,
        *,
        local: Address,
        peer: Address,
        settings: ConnectionSettings,
        random: Random,
        stats: Stats | None = None,
        actions: deque[Action] | None = None,
        timers: Timers | None = None,
        strangers: Strangers | None = None,
        on_streams: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        super().__init__(
            local=local,
            peer=peer,
            settings=settings,
            random=random,
            stats=Stats() if stats is None else stats,
            actions=deque() if actions is None else actions,
            timers=Timers() if timers is None else timers,
            strangers=strangers,
        )
        self._on_streams = on_streams  # a stream came or went
        self._announced = False  # SPORT_IDX was sent to this life of the peer
        self._untold = False  # the plane may have missed what it was told of the peer
        self.used_ns = 0  # when something happened last, for eviction

    @property
    def is_idle(self) -> bool:
        """Whether no stream is here or on its way, and no message waits for one."""
        resting = (State.DOWN, State.WAITING)
        return all(path.state in resting and not path.wanted for path in self._paths)

    def close(self) -> None:
        """Forget all timers: the connection is evicted. Its streams end with its paths."""
        for path in self._paths:
            self._strangers.forget(path.stream)
            self._cancel(path, *TimerKind)
            path.stream = None
        self._note_streams()

    @property
    def has_stream(self) -> bool:
        """Whether any path has a stream."""
        return any(path.stream is not None for path in self._paths)

    @property
    def may_disconnect(self) -> bool:
        """Whether no message waits for a stream, no stream for a path, and no attempt for an end.

        An attempt's answer would come to the connection that is made for the peer next.
        """
        trying = (State.CONNECTING, State.KNOCKING)
        busy = any(path.wanted or path.state in trying for path in self._paths)
        return not (busy or self._parked or self._seconds)

    def _note_streams(self) -> None:
        self._on_streams(self)

    # -- reports of the driver and the plane

    def handle_wanted(self, index: int, now_ns: int) -> None:
        """Look for a stream: the first message was queued for a path that has none."""
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
        """Try again later: a `Connect`, or for path 0 a `Knock`, failed with `errno`."""
        self.stats.connect_failures += 1
        path = self._path(index)
        if not self.lower:
            self._end_knock(now_ns)
        elif path is not None and path.state is State.CONNECTING:
            self._end_connect(path, now_ns)

    def handle_knocked(self, now_ns: int) -> None:
        """Wait for the peer to connect: a `Knock` stands."""
        self._end_knock(now_ns)

    def handle_accepted(
        self, stream: int, source_port: int, now_ns: int, *, own: bool = False
    ) -> None:
        """Answer a knock, or give the peer's stream its path. The source port is the peer's."""
        self.used_ns = now_ns
        if self.lower:
            self._emit(Refuse(self.peer, stream))
            self._handle_knock(now_ns)
        else:
            self.stats.accepts += 1
            self._place(stream, source_port, now_ns, own=own)

    def handle_first_frame(self, index: int, attachment: int, now_ns: int) -> None:
        """Count the path as up: the peer's first whole header arrived on its stream."""
        path = self._current(index, attachment)
        if path is None or path.state is not State.ATTACHED:
            return
        self.used_ns = now_ns
        self._come_up(path)
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
        self, index: int, attachment: int, frames: int, now_ns: int, *, breach: bool = False
    ) -> None:
        """Look for another stream: the path's ended by itself, after `frames` frames.

        After a breach of the protocol not at once: the next stream will hardly be better.
        """
        path = self._current(index, attachment)
        if path is not None:
            self.used_ns = now_ns
            if breach:
                self._rest(path, now_ns)
            self.stats.downs += 1
            self.stats.refused_by_peer += not frames
            self._lose(path, now_ns)

    def handle_dead(self, index: int, now_ns: int) -> None:
        """Drop a stream on which the peer's host does not answer, and look for another."""
        path = self._path(index)
        if path is not None and path.stream is not None:
            self.stats.dead += 1
            self._drop(path, now_ns)

    def handle_fault(self, attachments: Sequence[int], now_ns: int) -> None:
        """Take all streams down and look for others, after a rest: a mistake of ours was met.

        Any action may have been lost with it. `attachments` are the plane's count of each path's
        streams; what else the plane may not know is told again with the next stream.
        """
        self._untold = True
        for stream in self._parked:  # the driver closes every stream that no path has
            self._strangers.forget(stream)
        self._parked.clear()
        for stream, _, _ in self._seconds.values():
            self._strangers.forget(stream)
        self._seconds.clear()
        for path in self._paths:
            self._cancel(path, TimerKind.QUESTION)
            path.attachment = attachments[path.index] if path.index < len(attachments) else 0
            self._rest(path, now_ns)
            if path.stream is not None:
                self._drop(path, now_ns)
                if path.sought:
                    continue
            else:
                path.move(Input.ANSWERED)  # should an attempt be under way, it may never end
            self._seek_again(path, now_ns)  # messages may wait, of which no report comes

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
        """Answer a ping, learn from a handshake. Raises WireError if 16 octets are not 16."""
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
        """Count what a kernel says next afresh: the plane saw that it began a new life."""
        self.stats.peer_restarts += 1
        self._emit(PeerStartedAnew(self.peer, self.facts.generation, None))
        self.facts = restarted(self.facts)
        self._announced = False
        path = self._paths[0]
        if self.settings.npaths > 1 and path.state is State.UP:
            # It forgot how many paths we have, and that our source ports carry the index.
            path.confirmed = path.probe_sent = False
            self._probe(path)
            self._set(TimerKind.ANSWER, path, now_ns + self.settings.handshake_wait_ns)

    def handle_timer(self, kind: TimerKind, number: int, now_ns: int) -> None:
        """Do what one timer asks for."""
        if kind is TimerKind.STRANGER:
            self.stats.strangers_silent += 1
            self.drop_stranger(number, Reason.SILENT, now_ns)
            return
        path = self._path(number)
        assert path is not None, "a closed path has no timers"
        if kind is TimerKind.ATTEMPT:
            self._attempt(path, now_ns)
        elif kind is TimerKind.GIVE_UP:
            self._give_up(path, now_ns)
        elif kind is TimerKind.QUESTION:
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

    def _current(self, index: int, attachment: int) -> PathLife | None:
        """Return a path with a stream, if the report is about that stream."""
        path = self._path(index)
        if path is None or path.stream is None or path.attachment != attachment:
            return None
        return path

    # -- acquaintance

    def _greet(self, path: PathLife, now_ns: int) -> None:
        if path.acquainted:
            self.stats.hellos += 1
            path.hello_sent = True
            extension = self._handshake(generation=True)
            self._send(path, PROBE_PORT, PING_PORT, extension, hello=True)
        elif self.facts.kind is PeerKind.UNKNOWN and not self.lower:
            self._probe(path)
        elif path.held:
            self._set(TimerKind.ANSWER, path, now_ns + self.settings.handshake_wait_ns)

    def _ask(self, path: PathLife) -> None:
        # As a hello it is not repeated on a later stream, and goes out at once; without our
        # generation the peer answers it whatever it has said before.
        extension = self._handshake(generation=False)
        self._send(path, PROBE_PORT, PING_PORT, extension, hello=True)

    def _send(
        self, path: PathLife, source_port: int, target_port: int, extension: bytes, *, hello: bool
    ) -> None:
        self._emit(SendControl(self.peer, path.index, source_port, target_port, extension, hello))

    def _handshake(self, *, generation: bool) -> bytes:
        """Return our handshake. SPORT_IDX only answers a peer's own: older kernels log it.

        Source: linux v6.1, v6.12 (observed): "ignoring unknown exthdr type 0x8".
        """
        announced = self.settings.npaths > 1 and self.facts.sport_index
        self._announced |= announced
        return emit_ours(self.settings, generation=generation, sport_index=announced)

    def _must_announce(self) -> bool:
        """Tell whether a kernel must hear that our source ports carry the index, before fan-out."""
        facts = self.facts
        told = self._announced or self.settings.npaths == 1
        return self.lower and facts.kind is PeerKind.LINUX and facts.sport_index and not told

    def _probe(self, path: PathLife) -> None:
        """Ask who the peer is, once per stream."""
        if path.probe_sent:
            return
        path.probe_sent = True
        self.stats.probes += 1
        # On a held path only a hello gets through. To a kernel its number 0 does no harm here:
        # held so far, we have sent nothing that could be repeated and taken twice.
        extension = self._handshake(generation=False)
        self._send(path, PROBE_PORT, PING_PORT, extension, hello=path.held)

    def _learn(self, path: PathLife, handshake: Handshake, now_ns: int) -> None:
        """Take in who the peer is. What a restart drops is dropped before anything is released."""
        before = self.facts
        self.facts = learn(before, handshake, self.settings)
        if is_new_life(before, handshake):
            self.stats.peer_restarts += 1
            self._emit(RestartPeer(self.peer))
            self._emit(PeerStartedAnew(self.peer, before.generation, handshake.generation))
            for other in self._paths:
                if other is not path and other.confirmed:
                    self._drop(other, now_ns)  # it leads to the old life
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
        """Tell all that is known of the peer; what was carried out before is not done twice."""
        self._untold = False
        self._emit(FanOut(self.peer, self.npaths))
        self._emit(FanIn(self.peer, self.npaths))
        self._tell(PeerFacts())

    def _react(
        self,
        path: PathLife,
        handshake: Handshake,
        is_ping: bool,
        acknowledgement: int,
        now_ns: int,
    ) -> None:
        """Answer a handshake, and let the path send if it shows that the peer knows us."""
        own = handshake.mark is not None
        introduced = own and handshake.generation is not None
        # Two hellos that cross answer each other.
        if is_ping and not (introduced and path.hello_sent):
            answer = self._handshake(generation=own)
            self._send(path, PING_PORT, PROBE_PORT, answer, hello=own)
        if introduced or not own:
            self._release(path, acknowledgement or None if own else None)
        # A hello was sent for us only if the peer knew us; to a stranger we ask, its answer tells.
        if (introduced and path.acquainted) or not is_ping:
            self._confirm(path, now_ns)

    def _release(self, path: PathLife, received_by_peer: int | None) -> None:
        if path.held:
            path.held = False
            self._emit(Release(self.peer, path.index, received_by_peer))

    def _confirm(self, path: PathLife, now_ns: int) -> None:
        """Note that the peer knows our handshake on this stream; path 0 opens the others."""
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
                self._strangers.forget(path.stream)
                self._cancel(path, *TimerKind)
                self._refuse_older(path)
            del self._paths[count:]
            self._note_streams()
            self._emit(FanIn(self.peer, count))

    def _handle_silence(self, path: PathLife, now_ns: int) -> None:
        """Go on without an answer to our handshake.

        An own node that is silent on path 0 counts as Linux, for another host may have its address
        now; on another path, and where no other host can be, the stream is to blame.
        """
        on_another = self.facts.kind is PeerKind.URDS and path.index
        if path.held and (path.own or on_another):
            self._drop(path, now_ns)
            return
        if self.facts.kind is PeerKind.LINUX:
            if path.state is State.ATTACHED:
                self._come_up(path)
            self._release(path, None)
            self._confirm(path, now_ns)
        elif self.facts.kind is PeerKind.UNKNOWN or path.held:
            self.stats.handshake_timeouts += 1
            before, self.facts = self.facts, taken_for_linux(self.facts)
            self._tell(before)
            self._unpark(now_ns)
            for held in self._paths:
                self._release(held, None)
            self._confirm(path, now_ns)
