"""A node of ours: the real control core and the real path cores, under a simulated shell.

The shell does what `rds.plane.python.stream_path` and `rds.runtime` do with threads and sockets: it
reads and writes streams, keeps events for a control thread that looks late, carries actions out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

from tests.sim.flows import Flows, Number, number_of, payload_of
from tests.sim.network import Network
from tests.sim.world import MS, Socket, World
from urds.rds.control import events
from urds.rds.control.local_address import LocalAddress
from urds.rds.control.paths import path_of_port
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.plane import contract as base
from urds.rds.plane.contract import DownReason, Limits
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.queued_messages import Fence
from urds.rds.types import AckMode
from urds.rds.wire.congestion_map import CongestionMap

SEND_BYTES_MAX = 60_000
RECEIVE_BYTES = 20_000


@dataclass(eq=False, slots=True)
class Account:
    """What a path asks of a sender."""

    port: int
    send_queued_bytes: int = 0
    given_up: int = 0


@dataclass(eq=False, slots=True)
class Path:
    """One path: its core and its stream."""

    index: int
    core: PathCore
    socket: Socket | None = None
    attachment: int = 0
    first_frame_told: bool = False
    wanted: bool = False
    read_due: bool = False


class OwnNode:
    """One life of one address."""

    def __init__(
        self,
        network: Network,
        flows: Flows,
        local: IPv4Address,
        peer: IPv4Address,
        *,
        npaths: int,
        generation: int,
        clock_ahead_ms: int = 0,
        **settings: int,
    ) -> None:
        self.network = network
        self.world: World = network.world
        self.flows = flows
        self.local, self.peer = local, peer
        self.life = flows.new_life(local)
        self.generation = generation
        self.clock_ahead_ms = clock_ahead_ms
        self.alive = True
        self.asleep = False  # the process gets no CPU
        self.receivers_stopped = False
        self.counters = Counters()
        self.limits = Limits(acknowledge_delay_ns=MS)
        self.inboxes = {port: Inbox(port=port, buffer_bytes=RECEIVE_BYTES) for port in flows.ports}
        self.accounts = {port: Account(port) for port in flows.ports}
        self.congested: set[int] = set()
        self.congestions = 0
        self.peer_congested: set[int] = set()
        self.paths: list[Path] = [self._new_path(0)]
        self.npaths = 1
        self.restarts_seen = 0
        self._agreed: tuple[AckMode, bool] | None = None
        self._streams: dict[int, Socket] = {}
        self._next_stream = 0
        self._reports: deque[Callable[[TcpPeer], None]] = deque()
        self._turn_due = False
        self._timer_ns: int | None = None
        self.endpoint = LocalAddress(
            local=local,
            settings=LocalAddressSettings(),
            connection_settings=ConnectionSettings(
                generation=generation, npaths=npaths, **settings
            ),
            random=self.world.random,
        )
        network.join(local, self)

    # -- the application

    def send(self, source_port: int, target_port: int) -> bool:
        """Queue the flow's next message; false where a socket would say EAGAIN or ENOBUFS."""
        account = self.accounts[source_port]
        if account.send_queued_bytes >= SEND_BYTES_MAX or target_port in self.peer_congested:
            return False
        path = self.paths[path_of_port(source_port, self.npaths)]
        payload = payload_of(self.flows.next_sent(self.life, source_port, target_port))
        path.core.send(account, source_port, target_port, payload)
        if path.socket is None:
            self._want(path)
        else:
            self._flush(path)
        return True

    def receive(self, port: int, count: int) -> None:
        """Take at most `count` messages and have them judged."""
        inbox = self.inboxes[port]
        for _ in range(min(count, len(inbox.queue))):
            item = inbox.queue.popleft()
            inbox.receive_queued_bytes -= len(item[0])
            self.flows.check(item[0], item[1], receiver=self.life, target_port=port)
        self._judge(inbox)

    def left(self) -> int:
        """Return how many messages wait to be sent or acknowledged."""
        return sum(path.core.sender.message_count() for path in self.paths)

    def queued(self) -> int:
        """Return how many messages wait for receivers."""
        return sum(len(inbox.queue) for inbox in self.inboxes.values())

    def crash(self) -> None:
        """End the process or its host: the streams break, the memory is gone."""
        self.alive = False
        for socket in (*self._streams.values(), *(path.socket for path in self.paths)):
            if socket is not None:
                socket.abandon()

    # -- the shell of the paths

    def _new_path(self, index: int) -> Path:
        wall_ms = 1_700_000_000_000 + self.world.now_ns // MS + self.clock_ahead_ms
        core = PathCore(
            self.limits,
            self.counters,
            sequence_first=wall_ms << 20,
            generation=self.generation,
            inboxes=self.inboxes,
            source_of=lambda port: (str(self.peer), port),
            map_bytes=lambda: CongestionMap(self.congested).emit(),
        )
        return Path(index, core)

    def _want(self, path: Path) -> None:
        if not path.wanted:
            path.wanted = True
            index = path.index
            self._report(lambda core: core.handle_wanted(index, self.world.now_ns))

    def _flush(self, path: Path) -> None:
        socket = path.socket
        while socket is not None and self.alive and (buffers := path.core.poll_transmit()):
            try:
                taken = socket.sendmsg(buffers)
            except OSError:
                break  # what the peer sent is still to be read: the end shows there
            if not taken:
                break
            path.core.transmitted(taken)

    def _changed(self, path: Path, socket: Socket) -> None:
        """Look at a stream soon: how soon is chance."""
        if path.read_due or path.socket is not socket:
            return
        path.read_due = True

        def look() -> None:
            if self.asleep and self.alive:
                self.world.after(MS, look)
                return
            path.read_due = False
            if self.alive and path.socket is not None:
                self._read(path, path.socket)
                self._ask(path)

        self.world.after(self.world.some(MS // 4), look)

    def _ask(self, path: Path) -> None:
        """Free what TCP has, as the shell asks for it now and then."""
        if path.socket is not None:
            data = path.core.bytes_written - path.socket.unacknowledged()
            path.core.handle_stream_acknowledged(data)

    def _read(self, path: Path, socket: Socket) -> None:
        reason = self._drain(path, socket)
        if reason is not None:
            self._end(path)
            return
        for each in self.paths:  # a fence may have opened
            self._flush(each)
        self._schedule_acknowledgement(path)

    def _drain(self, path: Path, socket: Socket) -> DownReason | None:
        """Read until there is nothing; return why the stream must end."""
        while True:
            try:
                data = socket.recv(self.world.random.choice([1, 47, 100, 1000, 65536]))
            except OSError:
                return DownReason.ERROR
            if data is None:
                return None
            if not data:
                return DownReason.END_OF_STREAM
            reason = path.core.receive_data(data, self.world.now_ns)
            self._settle(path)
            if reason is not None:
                assert self.flows.protocol_errors_allowed, f"seed {self.world.seed}: {reason}"
                return reason

    def _settle(self, path: Path) -> None:
        incoming, index, attachment = path.core.receiver, path.index, path.attachment
        for inbox in incoming.touched:
            self._judge(inbox)
        incoming.touched.clear()
        path.core.sender.freed.clear()
        if incoming.frames and not path.first_frame_told:
            path.first_frame_told = True
            told = incoming.generations.map_generation
            self._report(
                lambda core: core.handle_first_frame(
                    index, attachment, self.world.now_ns, generation=told
                )
            )
        while incoming.controls:
            message = incoming.controls.popleft()
            self._report(
                lambda core, message=message: core.handle_control(
                    index,
                    attachment,
                    acknowledgement=message.acknowledgement,
                    source_port=message.source_port,
                    target_port=message.target_port,
                    extension=message.extension,
                    now_ns=self.world.now_ns,
                )
            )
        if incoming.restarted:
            incoming.restarted = False
            self.restarts_seen += 1
            self._report(lambda core: core.handle_peer_restarted(self.world.now_ns))
        if incoming.peer_map is not None:
            self.peer_congested = set(CongestionMap.parse(incoming.peer_map))
            incoming.peer_map = None

    def _judge(self, inbox: Inbox) -> None:
        state = inbox.check_congestion(self.world.now_ns)
        if state is not None:
            self.congestions += state
            (self.congested.add if state else self.congested.discard)(inbox.port)
            for path in self.paths:
                path.core.map_due = path.core.attached
                self._flush(path)
        if (at_ns := inbox.look_again_ns()) is not None:
            self.world.after(max(0, at_ns - self.world.now_ns), lambda: self._judge(inbox))

    def _schedule_acknowledgement(self, path: Path) -> None:
        due_ns = path.core.ack_at_ns
        if due_ns is None:
            return

        def acknowledge() -> None:
            if self.alive:
                path.core.handle_timeout(self.world.now_ns)
                self._flush(path)

        self.world.after(max(0, due_ns - self.world.now_ns), acknowledge)

    def _end(self, path: Path) -> None:
        """Report that the stream ended by itself, and keep the queue."""
        socket = path.socket
        assert socket is not None
        self._ask(path)
        index, attachment, frames = path.index, path.attachment, path.core.receiver.frames
        self._release_stream(path)
        socket.close()
        self._report(lambda core: core.handle_down(index, attachment, frames, self.world.now_ns))
        if path.core.sender.message_count():
            self._want(path)

    def _release_stream(self, path: Path) -> None:
        path.socket = None
        path.wanted = path.first_frame_told = False
        path.core.detach()

    def _detach(self, path: Path) -> None:
        """Read a stream until it would block, then close it; no report follows."""
        socket = path.socket
        if socket is not None:
            self._drain(path, socket)
            self._ask(path)
            self._release_stream(path)
            socket.close()

    # -- the control thread

    def _report(self, call: Callable[[TcpPeer], None]) -> None:
        self._reports.append(call)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.world.after(self.world.some(MS // 2), self._turn)

    def _turn(self) -> None:
        """Hand over what was reported, then carry out what the core wants."""
        if not self.alive:
            return
        if self.asleep:
            self.world.after(MS, self._turn)
            return
        self._turn_due = False
        while self._reports:
            self._reports.popleft()(self.endpoint.connection(self.peer, self.world.now_ns))
        self.endpoint.handle_timeout(self.world.now_ns)
        while (action := self.endpoint.poll_event()) is not None:
            self._do(action)
        due_ns = self.endpoint.poll_timeout()
        if due_ns is not None and (self._timer_ns is None or due_ns < self._timer_ns):
            self._timer_ns = due_ns
            self.world.after(max(0, due_ns - self.world.now_ns), self._timer)

    def _timer(self) -> None:
        self._timer_ns = None
        self._turn_soon()

    def handle_accepted(self, socket: Socket, source_port: int) -> None:
        """Take a connection from the network."""
        number = self._keep(socket)
        self._report(
            lambda _: self.endpoint.handle_accepted(
                number, self.peer, source_port, self.world.now_ns
            )
        )

    def _keep(self, socket: Socket) -> int:
        self._next_stream += 1
        self._streams[self._next_stream] = socket
        return self._next_stream

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Connect(_, index, rule):
                port = next(rule.ports(range_low=32768, range_high=60999))
                self.network.connect(
                    self.local, self.peer, port, lambda socket: self._connected(index, socket)
                )
            case events.RequestCallBack():
                self.network.connect(self.local, self.peer, 40_001, self._call_back_requested)
            case events.Attach(_, index, stream, hold, probe):
                self._attach(self.paths[index], self._streams.pop(stream), hold, probe)
            case events.Refuse(_, stream):
                self._streams.pop(stream).reset()
            case events.Detach(_, index):
                self._detach(self.paths[index])
            case events.GiveUp(_, index):
                self.paths[index].core.sender.drop_all()
            case _:
                self._do_to_paths(action)

    def _do_to_paths(self, action: events.Action) -> None:
        match action:
            case events.SendControl(_, index, source_port, target_port, extension, hello):
                if self.paths[index].core.attached:
                    self.paths[index].core.control(
                        source_port=source_port,
                        target_port=target_port,
                        extension=extension,
                        hello=hello,
                    )
                    self._flush(self.paths[index])
            case events.Release(_, index, received_by_peer):
                self.paths[index].core.end_hold(received_by_peer)
                self._flush(self.paths[index])
            case events.ProbeDeadStream(_, index):
                self.paths[index].core.map_due = self.paths[index].core.attached
                self._flush(self.paths[index])
            case events.Agree(_, ack_mode, checksum):
                self._agreed = (ack_mode, checksum)
                for path in self.paths:
                    path.core.agree(ack_mode=self._agreed[0], checksum=checksum)
                    self._ask(path)
                    self._flush(path)
            case events.RestartPeer():
                self.restarts_seen += 1
                for path in self.paths:
                    path.core.restart_peer()
                self.flows.note_unsent(self.life, self._unsent())
            case events.RememberHandshake(_, generation):
                for path in self.paths:
                    path.core.receiver.generations.generation = generation
            case events.FanOut(_, count):
                self._fan_out(count)
            case events.FanIn(_, count):
                self._fan_in(count)

    def _unsent(self) -> list[Number]:
        """Return the messages of sockets that were never sent."""
        items = [item for path in self.paths for item in path.core.sender.unsent]
        messages = [item for item in items if not isinstance(item, Fence) and item[0] is not None]
        return [number_of(bytes(message[3])) for message in messages]

    def _fan_out(self, count: int) -> None:
        before = len(self.paths)
        for index in range(before, count):
            path = self._new_path(index)
            path.core.hold_behind(self.paths[index & (before - 1)].core.sender.fence())
            self.paths.append(path)
            if self._agreed is not None:
                path.core.agree(ack_mode=self._agreed[0], checksum=self._agreed[1])
        self.npaths = max(self.npaths, count)

    def _fan_in(self, count: int) -> None:
        closed, self.paths[count:] = self.paths[count:], []
        self.npaths = min(self.npaths, count)
        for path in closed:
            other = self.paths[path.index & (count - 1)]
            if path.core.sender.move_unsent(other.core.sender) and other.socket is None:
                self._want(other)
            path.core.sender.drop_all()
            if path.socket is not None:
                socket = path.socket
                self._release_stream(path)
                socket.close()
        for path in self.paths:
            self._flush(path)

    def _attach(self, path: Path, socket: Socket, hold: events.Hold, probe: bytes | None) -> None:
        self._detach(path)
        path.socket = socket
        path.attachment += 1
        socket.on_change = lambda: self._changed(path, socket)
        path.core.attach(base.Hold[hold.name])
        if probe is not None:
            path.core.control(source_port=1, target_port=0, extension=probe, hello=False)
        self._flush(path)
        self._changed(path, socket)

    def _connected(self, index: int, socket: Socket | None) -> None:
        if not self.alive:
            if socket is not None:
                socket.reset()
        elif socket is None:
            self._report(lambda core: core.handle_connect_failed(index, self.world.now_ns))
        else:
            stream = self._keep(socket)
            self._report(lambda core: core.handle_connected(index, stream, self.world.now_ns))

    def _call_back_requested(self, socket: Socket | None) -> None:
        if socket is None:
            self._report(lambda core: core.handle_connect_failed(0, self.world.now_ns))
            return
        self._report(lambda core: core.handle_call_back_requested(self.world.now_ns))
        self.world.after(1000 * MS, socket.reset)
