"""A Linux kernel's RDS/TCP with one path, as far as a peer can see it. A model, not a copy.

Numbers start at 1, are given when a message is queued, and are repeated with the flag. A message is
done when TCP acknowledged its last byte. The lower side reconnects, the higher one requests a
call-back when it has something to send. Until 6.19 a connection that finds the path busy is reset,
since 7.0 it is parked. Source: docs/reference/rds.md 1.6-1.9, 2.1-2.5 (linux v6.12, v7.0),
golden/behaviour_api.json.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

from tests.sim.flows import Flows, payload_of
from tests.sim.network import Network
from tests.sim.world import MS, SECOND, Socket, World
from urds.rds.constants import HeaderFlag
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.extensions import Handshake, emit_handshake, parse_handshake
from urds.rds.wire.header import HEADER, HEADER_BYTES

RETRANSMITTED, MAP = int(HeaderFlag.RETRANSMITTED), int(HeaderFlag.CONG_BITMAP)
QUEUE_MAX = 40  # messages a kernel's senders leave unacknowledged here


@dataclass(eq=False, slots=True)
class _Message:
    sequence: int
    source_port: int
    target_port: int
    payload: bytes
    extension: bytes = bytes(16)
    start: int = 0  # in the stream
    end: int = 0
    repeated: bool = False


class KernelNode:
    """One life of a kernel module at one address."""

    def __init__(
        self,
        network: Network,
        flows: Flows,
        local: IPv4Address,
        peer: IPv4Address,
        *,
        release: int,
        generation: int,
    ) -> None:
        self.network = network
        self.world: World = network.world
        self.flows = flows
        self.local, self.peer = local, peer
        self.life = flows.new_life(local)
        self.release = release
        self.generation = generation
        self.lower = local < peer
        self.alive = True
        self.asleep = self.receivers_stopped = False  # a kernel is neither
        self.inbox: dict[int, deque[tuple[bytes, tuple[str, int]]]] = {
            port: deque() for port in flows.ports
        }
        self.peer_congested: set[int] = set()
        self.handshaken = False
        self.duplicates_dropped = 0
        self._socket: Socket | None = None
        self._parked: Socket | None = None
        self._next_tx = 1
        self._next_rx = 0
        self._unsent: deque[_Message] = deque()
        self._sent: deque[_Message] = deque()
        self._out = bytearray()
        self._written = 0
        self._framed = 0
        self._data = bytearray()
        self._connecting = False
        self._delay_ns = 0
        network.join(local, self)

    # -- the application

    def send(self, source_port: int, target_port: int) -> bool:
        if self.left() >= QUEUE_MAX or target_port in self.peer_congested:
            return False
        if not self.handshaken or (self.release >= 7 and self._socket is None):
            self._probe()
        payload = payload_of(self.flows.next_sent(self.life, source_port, target_port))
        self._queue(source_port, target_port, payload)
        if self._socket is None:
            self._reconnect()
        return True

    def receive(self, port: int, count: int) -> None:
        queue = self.inbox[port]
        for _ in range(min(count, len(queue))):
            payload, source = queue.popleft()
            self.flows.check(payload, source, receiver=self.life, target_port=port)

    def left(self) -> int:
        return sum(message.source_port > 1 for message in (*self._unsent, *self._sent))

    def queued(self) -> int:
        return sum(map(len, self.inbox.values()))

    def crash(self) -> None:
        self.alive = False
        for socket in (self._socket, self._parked):
            if socket is not None:
                socket.abandon()

    # -- sending

    def _queue(
        self, source_port: int, target_port: int, payload: bytes = b"", extension: bytes = bytes(16)
    ) -> None:
        self._unsent.append(_Message(self._next_tx, source_port, target_port, payload, extension))
        self._next_tx += 1
        self._flush()

    def _handshake(self) -> bytes:
        if self.release >= 7:
            handshake = Handshake(npaths=8, generation=self.generation, sport_index=True)
        else:
            handshake = Handshake(npaths=8)
        return emit_handshake(handshake)

    def _probe(self) -> None:
        if not any(message.source_port == 1 for message in (*self._unsent, *self._sent)):
            self._queue(1, 0, extension=self._handshake())

    def _frame(self, message: _Message) -> None:
        message.start = self._framed
        flags = RETRANSMITTED if message.repeated else 0
        high = int.from_bytes(message.extension[:8], "big")
        low = int.from_bytes(message.extension[8:], "big")
        self._out += HEADER.pack(
            message.sequence, 0, len(message.payload), message.source_port, message.target_port,
            flags, 0, 0, 0, high, low,
        )  # fmt: skip
        self._out += message.payload
        self._framed += HEADER_BYTES + len(message.payload)
        message.end = self._framed

    def _flush(self) -> None:
        socket = self._socket
        if socket is None or not self.alive:
            return
        while self._unsent:
            message = self._unsent.popleft()
            self._frame(message)
            self._sent.append(message)
        while self._out:
            try:
                taken = socket.sendmsg([bytes(self._out)])
            except OSError:
                return
            if not taken:
                return
            self._written += taken
            del self._out[:taken]

    # -- streams

    def _reconnect(self) -> None:
        """Connect or request a call-back, once at a time."""
        if self._connecting or not self.alive:
            return
        self._connecting = True
        done: Callable[[Socket | None], None] = (
            self._connected if self.lower else self._call_back_requested
        )
        self.network.connect(self.local, self.peer, 50_001, done)

    def _call_back_requested(self, socket: Socket | None) -> None:
        self._connecting = False
        if socket is not None:
            socket.reset()

    def _connected(self, socket: Socket | None) -> None:
        self._connecting = False
        if not self.alive:
            if socket is not None:
                socket.reset()
        elif socket is None:
            self._seek_later()
        else:
            self._attach(socket)

    def _seek_later(self) -> None:
        delay_ns = self.world.some(self._delay_ns) if self._delay_ns else 0
        self._delay_ns = min(max(MS, 2 * self._delay_ns), SECOND)
        self.world.after(delay_ns, lambda: None if self._socket else self._reconnect())

    def handle_accepted(self, socket: Socket, source_port: int) -> None:
        if self.lower:
            socket.reset()
            if self._socket is None:
                self._reconnect()
        elif self._socket is None:
            self._attach(socket)
        elif self.release >= 7 and self._parked is None:
            self._parked = socket
        else:
            socket.reset()

    def _attach(self, socket: Socket) -> None:
        self._socket = socket
        self._delay_ns = 0
        self._out = bytearray(HEADER.pack(0, 0, 8192, 0, 0, MAP, 0, 0, 0, 0, 0) + bytes(8192))
        self._framed, self._written = len(self._out), 0
        self._data.clear()
        socket.on_change = lambda: self._changed(socket)
        if not self.lower and not self.handshaken:
            self._probe()
        self._flush()
        self._changed(socket)

    def _changed(self, socket: Socket) -> None:
        """React at once: a kernel does not wait for a thread."""
        while socket is self._socket and self.alive:
            self._free(socket)
            self._flush()
            try:
                data = socket.recv(65536)
            except OSError:
                data = b""
            if data is None:
                return
            if not data:
                self._down(socket)
                return
            self._data += data
            self._parse()

    def _free(self, socket: Socket) -> None:
        while self._sent and self._sent[0].end <= socket.acknowledged:
            self._sent.popleft()

    def _down(self, socket: Socket) -> None:
        self._free(socket)
        self._socket = None
        socket.close()
        for message in self._sent:
            message.repeated = message.repeated or message.start < self._written
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        if self.release >= 7:
            self._probe()
        if self._parked is not None:
            parked, self._parked = self._parked, None
            self._attach(parked)
        elif self.lower:
            self._seek_later()

    # -- receiving

    def _parse(self) -> None:
        while len(self._data) >= HEADER_BYTES:
            fields = HEADER.unpack_from(self._data)
            end = HEADER_BYTES + fields[2]
            if len(self._data) < end:
                return
            payload = bytes(self._data[HEADER_BYTES:end])
            del self._data[:end]
            extension = (fields[9] << 64 | fields[10]).to_bytes(16, "big")
            self._take(fields[0], fields[3], fields[4], fields[5], payload, extension)

    def _take(
        self,
        sequence: int,
        source_port: int,
        target_port: int,
        flags: int,
        payload: bytes,
        extension: bytes,
    ) -> None:
        if flags == MAP:
            self.peer_congested = set(CongestionMap.parse(payload))
            return
        if sequence < self._next_rx and flags & RETRANSMITTED:
            self.duplicates_dropped += 1
            return
        self._next_rx = sequence + 1
        if target_port == 0:
            if source_port == 1:
                self.handshaken = parse_handshake(extension).npaths is not None
                self._queue(0, 1, extension=self._handshake())
            elif source_port:
                self._queue(0, source_port)
        elif source_port == 0 and target_port == 1:
            self.handshaken = True
        else:
            self.inbox[target_port].append((payload, (str(self.peer), source_port)))
