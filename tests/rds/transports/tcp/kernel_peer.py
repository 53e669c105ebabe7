"""A peer that behaves as Linux's RDS/TCP does on the wire, driven step by step by a test.

One thread, one `select`: nothing happens outside `step`. What is modelled, for kernels up to 6.19
(`Release.V6`) and from 7.0 on (`Release.V7`):

- the lower address connects, the higher one requests a call-back and drops the call once;
- the map comes first, then repeats with 0x04 in old order, then what is new;
- a message is delivered when TCP acknowledged its last byte, and never sent again then;
- a repeat below the expected number is dropped, every other number is taken;
- probe and pong carry NPATHS, from 7.0 on GEN_NUM and SPORT_IDX too, and 7.0 probes on every
  connection, behind the repeats; a new GEN_NUM of the peer resets all numbers and drops what is
  in flight;
- from 7.0 on a connection's source port carries the index of its path;
- a connection that finds no free path is reset by 6.x and parked by 7.x, after its TCP has
  acknowledged what was sent;
- what was received and not read dies with a connection.

Source: docs/reference/rds.md 1.6-1.9, 2 (linux v6.12, v7.0);
docs/reference/linux-peer-notes.md 1-4.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from ipaddress import ip_address

from tests.rds.transports.tcp.faults import make_deaf, reset, unacknowledged
from tests.rds.transports.tcp.frames import NO_EXTENSION, Frame, FrameReader, emit_frame, emit_map
from tests.support.places import Inside, family_of
from urds.rds.constants import RDS_TCP_PORT
from urds.rds.wire.extensions import Handshake, emit_handshake, parse_handshake

REPEATED = 0x04
_PATHS_MAX = 8
_PORT_GROUPS_FROM, _PORT_GROUPS_TO = 32768 // _PATHS_MAX, 61000 // _PATHS_MAX
_READ_BYTES = 1 << 18
_STEP_S = 0.002
_RECONNECT_S = 0.02  # Linux: a random time up to 1 s; short here, for tests


class Release(Enum):
    """Which kernel to be."""

    V6 = auto()
    V7 = auto()


@dataclass(frozen=True, slots=True)
class Message:
    """A message with its number."""

    sequence: int
    source_port: int
    target_port: int
    payload: bytes
    extension: bytes = NO_EXTENSION
    flags: int = 0


@dataclass(slots=True)
class KernelPath:
    """One path of the kernel: numbers and queues outlive its connections."""

    index: int
    next_tx: int = 1
    next_rx: int = 0
    queue: deque[Message] = field(default_factory=deque)
    in_flight: deque[tuple[int, Message]] = field(default_factory=deque)
    connection: socket.socket | None = None
    reader: FrameReader = field(default_factory=FrameReader)
    out: bytearray = field(default_factory=bytearray)
    made_bytes: int = 0
    written_bytes: int = 0
    connect_at_s: float | None = None

    def number(self, message: Message) -> None:
        """Queue a message under the next number."""
        self.queue.append(replace(message, sequence=self.next_tx))
        self.next_tx += 1

    def begin(self, connection: socket.socket) -> None:
        """Take a connection: the map, then repeats, then the rest of the queue."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection, self.connect_at_s = connection, None
        self.reader, self.out = FrameReader(), bytearray(emit_map())
        self.made_bytes, self.written_bytes = len(self.out), 0

    def fill(self) -> None:
        """Turn queued messages into bytes."""
        while self.queue and len(self.out) < 1 << 16:
            message = self.queue.popleft()
            data = emit_frame(
                message.payload,
                sequence=message.sequence,
                source_port=message.source_port,
                target_port=message.target_port,
                flags=message.flags,
                extension=message.extension,
            )
            self.out += data
            self.made_bytes += len(data)
            self.in_flight.append((self.made_bytes, message))

    def free(self) -> None:
        """Forget what TCP acknowledged: for a kernel that is delivered."""
        assert self.connection is not None
        acknowledged = self.written_bytes - unacknowledged(self.connection)
        while self.in_flight and self.in_flight[0][0] <= acknowledged:
            self.in_flight.popleft()

    def end(self) -> None:
        """Lose the connection: what is in flight goes to the head of the queue, flagged."""
        if self.connection is None:
            return
        with suppress(OSError):
            self.free()
        repeats = [replace(message, flags=REPEATED) for _, message in self.in_flight]
        self.in_flight.clear()
        self.queue.extendleft(reversed(repeats))
        reset(self.connection)
        self.connection = None


class KernelPeer:
    """A kernel at `address` that talks with one node at `node`."""

    def __init__(
        self,
        address: str,
        node: str,
        *,
        release: Release = Release.V6,
        npaths: int = 1,
        probes: bool = True,
        inside: Inside = lambda _address: nullcontext(),
    ) -> None:
        self._inside = inside
        self.address, self.node = address, node
        self.release, self.npaths_max, self.probes = release, npaths, probes
        self.lower = ip_address(address).packed < ip_address(node).packed
        self.family = family_of(address)
        with inside(address):
            self.listener = socket.create_server(
                (address, RDS_TCP_PORT), family=self.family, backlog=64
            )
        self.listener.setblocking(False)
        self.handshake: bytes | None = None  # to say in place of a kernel's
        self.reading = True  # false: bytes stay in TCP's buffer, and die with the connection
        self.connects = self.accepts = self.rejects = 0
        self._boot()

    def _boot(self) -> None:
        self.generation = random.randrange(1, 1 << 32)
        self.paths = [KernelPath(index) for index in range(_PATHS_MAX)]
        self.npaths = 0  # 0: no handshake yet
        self.node_generation: int | None = None
        self.node_sport_index = False
        self.probe_is_out = False
        self.parked: list[tuple[socket.socket, int]] = []
        self.received: list[Message] = []
        self.frames: list[Frame] = []  # as they came, of all connections
        self.dropped_as_old: list[int] = []
        self.node_ports: list[int] = []  # TCP source ports of connections taken

    # -- what a test does

    def send(self, payload: bytes, *, source_port: int, target_port: int) -> None:
        """Queue a message on path 0; a higher kernel without a connection requests a call-back."""
        path = self.paths[0]
        if self.probes and (not self.npaths or self._probes_again()):
            self._probe()
        path.number(Message(0, source_port, target_port, payload))
        if path.connection is None:
            self.seek()

    def seek(self) -> None:
        """Connect if lower, request a call-back if higher."""
        if self.lower:
            path = self.paths[0]
            if path.connection is None and path.connect_at_s is None:
                path.connect_at_s = time.monotonic()
        else:
            self.call_back_request()

    def call_back_request(self) -> None:
        """Open a connection that carries nothing and drop it once it stands."""
        with suppress(OSError):
            self._connect_socket().close()

    def step(self, wait_s: float = _STEP_S) -> None:
        """Wait for at most `wait_s`, then do everything that can be done."""
        readers: list[socket.socket] = [self.listener]
        writers = []
        for path in self.paths:
            if path.connection is not None:
                path.fill()
                if self.reading:
                    readers.append(path.connection)
                if path.out:
                    writers.append(path.connection)
        ready, writable, _ = select.select(readers, writers, [], wait_s)
        if self.listener in ready:
            self._accept()
        for path in self.paths:
            if path.connection in writable:
                self._write(path)
            if path.connection is not None and path.connection in ready:
                self._read(path)
            if path.connection is not None:
                path.free()
            elif path.connect_at_s is not None and time.monotonic() >= path.connect_at_s:
                self._connect(path)
        self._unpark()

    def run_until(self, condition: Callable[[], bool], *, wait_s: float = 5.0) -> None:
        """Step until the condition holds. Raises AssertionError after `wait_s`."""
        assert self.runs_until(condition, wait_s=wait_s), f"not within {wait_s} s"

    def runs_until(self, condition: Callable[[], bool], *, wait_s: float) -> bool:
        """Step until the condition holds; tell whether it did within `wait_s`."""
        deadline_s = time.monotonic() + wait_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            self.step()
        return True

    def run_for(self, wait_s: float) -> None:
        """Step for a while."""
        self.runs_until(lambda: False, wait_s=wait_s)

    def break_connection(self, index: int = 0) -> None:
        """Reset the path's connection, as `ss -K` does on the kernel's host.

        A kernel takes bytes as they arrive, so what TCP has is read first, unless `reading` is
        off, and nothing is acknowledged after that.
        """
        path = self.paths[index]
        if path.connection is None:
            return
        make_deaf(path.connection)
        if self.reading:
            self._read(path)
        if path.connection is not None:
            path.end()
            self._lost(path)

    def cut(self, byte_count: int) -> None:
        """Write so much of what is to be sent on path 0, then reset the connection."""
        path = self.paths[0]
        assert path.connection is not None
        path.fill()
        path.written_bytes += path.connection.send(path.out[:byte_count])
        self.break_connection()

    def forget_connection(self) -> None:
        """Lose path 0 as a power cut would; the caller makes the node deaf, so it hears nothing."""
        self.paths[0].end()

    def reboot(self) -> None:
        """Lose everything that is not on a disk."""
        for path in self.paths:
            path.end()
        for connection, _ in self.parked:
            reset(connection)
        self._boot()

    def close(self) -> None:
        """End."""
        self.reboot()
        self.listener.close()

    @property
    def payloads(self) -> list[bytes]:
        """Return what was delivered, in order of delivery."""
        return [message.payload for message in self.received]

    @property
    def up(self) -> bool:
        """Tell whether path 0 has a connection."""
        return self.paths[0].connection is not None

    @property
    def connection(self) -> socket.socket:
        """Return the connection of path 0."""
        connection = self.paths[0].connection
        assert connection is not None
        return connection

    @property
    def undelivered(self) -> int:
        """Return how many messages of ours the node's TCP does not have."""
        return sum(len(path.queue) + len(path.in_flight) for path in self.paths)

    # -- connections

    def _connect_socket(self, port: int = 0) -> socket.socket:
        with self._inside(self.address):
            connection = socket.socket(self.family)
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.bind((self.address, port))
            connection.settimeout(2.0)
            connection.connect((self.node, RDS_TCP_PORT))
        except OSError:
            connection.close()
            raise
        return connection

    def _connect(self, path: KernelPath) -> None:
        self.connects += 1
        try:
            connection = self._connect_socket(self._source_port(path))
        except OSError:
            path.connect_at_s = time.monotonic() + _RECONNECT_S
        else:
            self._begin(path, connection)

    def _source_port(self, path: KernelPath) -> int:
        """Return any port, or from 7.0 on one that carries the path's index."""
        if self.release is Release.V6:
            return 0
        return random.randrange(_PORT_GROUPS_FROM, _PORT_GROUPS_TO) * _PATHS_MAX + path.index

    def _accept(self) -> None:
        while True:
            try:
                connection, name = self.listener.accept()
            except OSError:
                return
            self.accepts += 1
            if self.lower:  # a call-back request
                reset(connection)
                self.seek()
                continue
            port = name[1]
            path = self._free_path(port)
            if path is not None:
                self.node_ports.append(port)
                self._begin(path, connection)
            elif self.release is Release.V6:
                self.rejects += 1
                reset(connection)
            else:
                self.parked.append((connection, port))

    def _free_path(self, port: int) -> KernelPath | None:
        paths = self.paths[: max(1, self.npaths)]
        if self.release is Release.V7 and self.node_sport_index:
            paths = [self.paths[port % max(1, self.npaths)]]
        return next((path for path in paths if path.connection is None), None)

    def _unpark(self) -> None:
        for connection, port in list(self.parked):
            path = self._free_path(port)
            if path is not None:
                self.parked.remove((connection, port))
                self._begin(path, connection)

    def _begin(self, path: KernelPath, connection: socket.socket) -> None:
        path.begin(connection)
        if path.index or not self.probes:
            return
        if (not self.npaths and not self.lower) or self._probes_again():
            self._probe()

    def _lost(self, path: KernelPath) -> None:
        """React to the end of a connection: only the lower side reconnects by itself."""
        self.probe_is_out &= self.release is Release.V6
        if self.lower:
            path.connect_at_s = time.monotonic()

    # -- bytes

    def _write(self, path: KernelPath) -> None:
        assert path.connection is not None
        try:
            count = path.connection.send(path.out[: 1 << 16])
        except BlockingIOError:
            return
        except OSError:
            self._read(path)  # what came before the end is read first
            if path.connection is not None:
                path.end()
                self._lost(path)
            return
        del path.out[:count]
        path.written_bytes += count

    def _read(self, path: KernelPath) -> None:
        while path.connection is not None:
            try:
                data = path.connection.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                path.end()
                self._lost(path)
                return
            for frame in path.reader.feed(data):
                self.frames.append(frame)
                self._receive(path, frame)

    def _receive(self, path: KernelPath, frame: Frame) -> None:
        header = frame.header
        if frame.is_map:
            return
        if header.flags & REPEATED and header.sequence < path.next_rx:
            self.dropped_as_old.append(header.sequence)
            return
        path.next_rx = header.sequence + 1
        source_port, target_port = frame.ports
        if not target_port:
            if source_port:
                extension = self._handshake() if source_port == 1 else NO_EXTENSION
                path.number(Message(0, 0, source_port, b"", extension))
        elif source_port or target_port != 1:
            self.received.append(
                Message(header.sequence, source_port, target_port, frame.payload, b"", header.flags)
            )
        if (source_port, target_port) in ((1, 0), (0, 1)):
            self._learn(parse_handshake(header.extension))

    # -- handshake

    def _handshake(self) -> bytes:
        if self.handshake is not None:
            return self.handshake
        if self.release is Release.V6:
            return emit_handshake(Handshake(npaths=self.npaths_max))
        return emit_handshake(
            Handshake(npaths=self.npaths_max, generation=self.generation, sport_index=True)
        )

    def _probes_again(self) -> bool:
        return self.release is Release.V7 and self.paths[0].connection is None

    def _probe(self) -> None:
        if not self.probe_is_out:
            self.probe_is_out = True
            self.paths[0].number(Message(0, 1, 0, b"", self._handshake()))

    def _learn(self, handshake: Handshake) -> None:
        self.npaths = min(self.npaths_max, handshake.npaths or max(1, self.npaths))
        generation = handshake.generation
        if generation is not None:
            if self.node_generation not in (None, generation):
                for path in self.paths:
                    path.next_tx, path.next_rx = 1, 0
                    path.in_flight.clear()
                    path.queue = deque(one for one in path.queue if not one.flags & REPEATED)
            self.node_generation = generation
        self.node_sport_index = handshake.sport_index
        self.probe_is_out = False
        if self.lower:
            for path in self.paths[: self.npaths]:
                if path.connection is None and path.connect_at_s is None:
                    path.connect_at_s = time.monotonic()
