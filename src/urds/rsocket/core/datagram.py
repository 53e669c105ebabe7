"""Datagrams of one socket as a value machine: calls, bytes and `now_ns` in; bytes and events out.

    we                                        the peer
    first datagram by UDP, with our number -> delivers it
    learn its number and devices           <- CONTROL, by UDP
    look-up at one of its devices         <-> answers with queue pair and vector
    all later ones by queue pair           -> delivers them

Nothing is sent twice; what is lost is lost. A queue pair only ever replaces UDP, so whatever
fails before there is one costs no datagram that UDP would have carried.

**A peer that was started anew** has another queue pair number or, since numbers may repeat,
another bind id. When a message over UDP says so, we forget the queue pair and look it up again.
librdmacm learns of it only when the peer sends; here each destination gets a datagram over UDP now
and then although a queue pair is known, and the answer to it tells. There is no timer: what is due
is done by the next datagram. Each call makes at most one thing to send, and returns it.

**Who may say what.** A control message counts only from where we sent to, and a look-up goes only
to the host it came from and asks for the bind id it named; the queue pair number is compared,
never used. So a forged one costs a look-up and, while that lasts, the detour over UDP.

**Destinations.** One entry per address that was sent to, in a table with a bound. Only sending
makes an entry. A sender that we never sent to costs no memory, and cannot push out entries.

Source: rdma-core 691953d8 librdmacm/rsocket.c (docs/reference/rsocket.md 10).
"""

import errno
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from ipaddress import ip_address
from typing import Any, Final

from urds.common.errors import LocalProtocolError, WireError
from urds.common.types import BytesLike, HostPort
from urds.rsocket.wire import datagram as wire

# Of one message at the receiver, header included. Source: docs/reference/rsocket.md 10.
SLOT_BYTES: Final = 2048
_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatagramSettings:
    """Limits and times of one socket.

    receive_slots: datagrams that wait for the application, and receives of each queue pair; the
    default is librdmacm's 128 KiB in slots.
    """

    receive_slots: int = 64
    send_slots: int = 64  # of each queue pair
    destinations_max: int = 1024  # the least recently used goes
    look_ups_max: int = 64  # under way at one time
    udp_again_ns: int = _S  # so often a datagram goes over UDP though a queue pair is known
    answer_pause_ns: int = _S // 20  # between two answers that say the same to a known peer
    look_up_ns: int = 2 * _S  # one look-up; librdmacm's limit
    look_up_pause_ns: int = _S  # after a look-up that failed, doubling
    look_up_pause_max_ns: int = 60 * _S


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """One of our devices, as a socket uses it. Its index among all of them names it."""

    provider: str  # its kind: a peer that has the same kind may be reached over it
    port: int  # at which our look-ups are answered
    qpn: int
    mtu_bytes: int


@dataclass(frozen=True, slots=True)
class QueuePairAddress:
    """The address of a peer's queue pair."""

    device: int
    vector: Any  # where it is, as the device has it
    qpn: int
    qkey: int


@dataclass(frozen=True, slots=True)
class ByUdp:
    """Bytes for the real UDP socket."""

    data: bytes
    target: HostPort
    local_host: str = ""  # leave from this address of ours; empty: as the socket does
    is_data: bool = True


@dataclass(frozen=True, slots=True)
class ByQueuePair:
    """Bytes for a queue pair."""

    data: bytes
    target: HostPort
    qp_address: QueuePairAddress


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask over a device, at the peer's port for look-ups, which queue pair a bind id has there.

    Answer with `handle_found` or `handle_not_found`, and the token.
    """

    token: int
    device: int
    peer: HostPort
    bind_id: bytes


@dataclass(frozen=True, slots=True)
class CancelLookUp:
    """The answer to a look-up is not wanted any more."""

    token: int


class DestinationState(Enum):
    """How a destination is reached."""

    BY_UDP = auto()  # no queue pair is known
    LOOKING_UP = auto()  # by UDP, while a device is asked
    BY_QUEUE_PAIR = auto()


@dataclass(slots=True)
class DatagramStats:
    """Counts since the socket was bound; one per reason of a drop."""

    sent_by_udp: int = 0
    sent_by_queue_pair: int = 0
    sent_by_udp_again: int = 0  # of those by UDP: to learn whether the peer was started anew
    received_by_udp: int = 0
    received_by_queue_pair: int = 0
    controls_sent: int = 0
    controls_received: int = 0
    controls_stray: int = 0  # from where we never sent to
    look_ups: int = 0
    look_ups_failed: int = 0
    queue_pairs_found: int = 0
    queue_pairs_lost: int = 0  # changed queue pair, peer started anew, device gone
    destinations_evicted: int = 0
    dropped_malformed: int = 0
    dropped_too_long: int = 0  # longer than a slot
    dropped_queue_full: int = 0  # the application did not take them in time
    dropped_not_from_peer: int = 0  # the socket is connected, and not with the sender
    dropped_unsent: int = 0  # the kernel or the queue pair had no room
    dropped_failed: int = 0  # receives that a device completed with an error


@dataclass(slots=True, eq=False)
class DatagramDestination:
    """One address that was sent to, and how it is reached."""

    target: HostPort
    udp_header: bytes  # of data over UDP
    qp_header: bytes  # of data over a queue pair: they name us, and never change
    may_look_up: bool = True
    state: DestinationState = DestinationState.BY_UDP
    qp_address: QueuePairAddress | None = None
    # What the peer said of itself last.
    peer_qpn: int | None = None
    peer_bind_id: bytes | None = None
    # The look-up under way: its number, and devices with ports that were not tried yet.
    token: int = 0
    candidates: list[tuple[int, int]] = field(default_factory=list)
    look_ups_failed: int = 0
    look_up_not_before_ns: int = 0
    udp_sent_ns: int = 0  # data, not answers
    answered_ns: int | None = None


class DatagramDestinations:
    """The table, and which look-up belongs to which entry."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_target: OrderedDict[HostPort, DatagramDestination] = OrderedDict()
        self._by_token: dict[int, DatagramDestination] = {}
        self._token_last = 0

    def __len__(self) -> int:
        return len(self._by_target)

    def __iter__(self) -> Iterator[DatagramDestination]:
        return iter(self._by_target.values())

    @property
    def look_ups(self) -> int:
        """Return how many look-ups are under way."""
        return len(self._by_token)

    def find(self, target: HostPort) -> DatagramDestination | None:
        """Return an entry, which this does not make more recent."""
        return self._by_target.get(target)

    def use(self, target: HostPort) -> DatagramDestination | None:
        """Return an entry as the most recently used one."""
        found = self._by_target.get(target)
        if found is not None:
            self._by_target.move_to_end(target)
        return found

    def add(self, destination: DatagramDestination) -> DatagramDestination | None:
        """Take an entry in; return the least recently used one if that had to go."""
        self._by_target[destination.target] = destination
        if len(self._by_target) <= self.limit:
            return None
        return self._by_target.popitem(last=False)[1]

    def begin_look_up(self, destination: DatagramDestination) -> int:
        """Return a number for a look-up, under which the entry is found from here on."""
        self._token_last += 1
        destination.token = self._token_last
        self._by_token[destination.token] = destination
        return destination.token

    def end_look_up(self, token: int) -> DatagramDestination | None:
        """Return the destination of a look-up, None if none waits for it."""
        found = self._by_token.pop(token, None)
        if found is not None:
            found.token = 0
        return found


_SOURCES_MAX: Final = 256  # headers whose reading is remembered


class DatagramCore:
    """One bound datagram socket without its I/O. Not safe for threads: its shell has a lock."""

    def __init__(
        self,
        settings: DatagramSettings,
        *,
        local: HostPort,
        devices: Sequence[LocalDevice],
        bind_id: bytes,
    ) -> None:
        """Begin at a bound address; `bind_id` is 8 bytes that no other bind has had."""
        self.settings = settings
        self.local = local
        self.peer: HostPort | None = None  # of a connected socket: datagrams of others are dropped
        self.stats = DatagramStats()
        self._version = ip_address(local[0]).version
        self._devices: list[LocalDevice | None] = list(devices)
        self._qpn = devices[0].qpn if devices else 0
        device_ports = tuple(
            wire.DatagramDevicePort(device.provider, device.port) for device in devices
        )
        self._device_ports = wire.DatagramDevices(bind_id, device_ports).emit()
        self._qp_header_bytes = (
            wire.QP_HEADER_V4_BYTES if self._version == 4 else wire.QP_HEADER_V6_BYTES
        )
        # One limit for UDP and queue pairs: it must not depend on how far a look-up is.
        path_mtu_bytes = min((device.mtu_bytes for device in devices), default=SLOT_BYTES)
        self.payload_bytes_max = min(SLOT_BYTES, path_mtu_bytes) - self._qp_header_bytes
        self._destinations = DatagramDestinations(settings.destinations_max)
        self._received: deque[tuple[bytes, HostPort]] = deque()
        self._events: deque[LookUp | CancelLookUp] = deque()
        self._sources: dict[bytes, HostPort] = {}

    # -- the application's side

    def knows(self, target: HostPort) -> bool:
        """Tell whether `send` can go to `target`, or `add_destination` has to come first."""
        return self._destinations.find(target) is not None

    def add_destination(self, target: HostPort, local_host: str) -> None:
        """Make an entry; `local_host` is our address towards it, which the peer will see."""
        host = ip_address(local_host.partition("%")[0])
        if host.version != self._version:
            raise LocalProtocolError(f"{local_host} on the way from {self.local}")
        destination = DatagramDestination(
            target,
            wire.UdpHeader(wire.DatagramOp.DATA, self._qpn, host).emit(),
            wire.QpHeader(self.local[1], host).emit(),
            # The header of a queue pair has no room for a scope: such peers stay with UDP.
            may_look_up="%" not in target[0],
        )
        evicted = self._destinations.add(destination)
        if evicted is not None:
            self.stats.destinations_evicted += 1
            self._give_up_look_up(evicted)

    def check_size(self, payload_bytes: int) -> None:
        """Raise OSError (EMSGSIZE) for a datagram that a peer's slot does not take."""
        if payload_bytes > self.payload_bytes_max:
            raise OSError(
                errno.EMSGSIZE,
                f"datagram of {payload_bytes} bytes, limit {self.payload_bytes_max}",
            )

    def send(self, payload: BytesLike, target: HostPort, now_ns: int) -> ByUdp | ByQueuePair:
        """Return a copy of `payload` with its header and the way to a known destination.

        Raises OSError (EMSGSIZE).
        """
        self.check_size(len(payload))
        destination = self._destinations.use(target)
        if destination is None:
            raise LocalProtocolError(f"{target} was not added")
        qp_address = destination.qp_address
        is_due = now_ns - destination.udp_sent_ns >= self.settings.udp_again_ns
        if qp_address is not None and not is_due:
            self.stats.sent_by_queue_pair += 1
            return ByQueuePair(destination.qp_header + payload, target, qp_address)
        destination.udp_sent_ns = now_ns
        self.stats.sent_by_udp += 1
        self.stats.sent_by_udp_again += qp_address is not None
        return ByUdp(destination.udp_header + payload, target)

    def send_instead(self, what: ByQueuePair, now_ns: int) -> ByUdp | ByQueuePair | None:
        """Return how to send what a queue pair did not take; None: the destination is not known."""
        self.stats.sent_by_queue_pair -= 1
        if not self.knows(what.target):
            return None
        return self.send(what.data[self._qp_header_bytes :], what.target, now_ns)

    def receive(self) -> tuple[bytes, HostPort] | None:
        """Take the oldest datagram and its sender, None if there is none."""
        return self._received.popleft() if self._received else None

    def peek(self) -> tuple[bytes, HostPort] | None:
        """Return the oldest datagram and leave it."""
        return self._received[0] if self._received else None

    @property
    def is_readable(self) -> bool:
        """Return whether a datagram waits."""
        return bool(self._received)

    def state_of(self, target: HostPort) -> DestinationState | None:
        """Return how far the way to a destination is known, None if nothing was sent there."""
        found = self._destinations.find(target)
        return None if found is None else found.state

    # -- what arrives

    def receive_udp(
        self, data: BytesLike, source: HostPort, now_ns: int, *, local_host: str = ""
    ) -> ByUdp | None:
        """Take what the UDP socket received and return the answer, if there is one.

        `local_host` is our address that it went to, if that is known. What is no message of a
        socket like ours is dropped and counted.
        """
        try:
            header, rest = wire.UdpHeader.parse(data)
            if header.address.version != self._version:
                raise WireError(f"IPv{header.address.version} header between IPv{self._version}")
            if header.op is wire.DatagramOp.CONTROL:
                self._receive_control(header, rest, source, now_ns)
                return None
        except WireError:
            self.stats.dropped_malformed += 1
            return None
        self.stats.received_by_udp += 1
        destination = self._destinations.find(source)
        if destination is not None and self._note_qpn(destination, header.qpn):
            self._forget_queue_pair(destination)
        self._deliver(rest, source)
        return self._answer(destination, source, local_host, now_ns)

    def receive_queue_pair(self, data: BytesLike) -> None:
        """Take what a queue pair received, without its GRH; malformed bytes are dropped."""
        header_bytes = bytes(data[: self._qp_header_bytes])
        source = self._sources.get(header_bytes)
        if source is None:
            try:
                source = self._read_source(data)
            except WireError:
                self.stats.dropped_malformed += 1
                return
            if len(self._sources) >= _SOURCES_MAX:
                self._sources.clear()
            self._sources[header_bytes] = source
        self.stats.received_by_queue_pair += 1
        self._deliver(memoryview(data)[self._qp_header_bytes :], source)

    def handle_found(self, token: int, qp_address: QueuePairAddress) -> None:
        """Use what a look-up found."""
        destination = self._destinations.end_look_up(token)
        if destination is not None:
            destination.state, destination.qp_address = DestinationState.BY_QUEUE_PAIR, qp_address
            self.stats.queue_pairs_found += 1

    def handle_not_found(self, token: int, now_ns: int) -> None:
        """Try the next device of a peer, or leave it at UDP for a while."""
        destination = self._destinations.end_look_up(token)
        if destination is not None:
            self._look_up_next(destination, now_ns)

    def handle_device_lost(self, index: int) -> None:
        """Send nothing over a device any more."""
        self._devices[index] = None
        for destination in self._destinations:
            # An answer may never come from there; the next control message begins anew.
            is_asking = destination.token != 0
            if is_asking or (
                destination.qp_address is not None and destination.qp_address.device == index
            ):
                self._forget_queue_pair(destination)

    # -- what the devices are to do

    @property
    def has_events(self) -> bool:
        """Return whether `poll_event` has something."""
        return bool(self._events)

    def poll_event(self) -> LookUp | CancelLookUp | None:
        """Return the next wish to the devices."""
        return self._events.popleft() if self._events else None

    # -- messages over UDP

    def _receive_control(
        self, header: wire.UdpHeader, rest: memoryview, source: HostPort, now_ns: int
    ) -> None:
        device_ports = wire.DatagramDevices.parse(rest) if rest else None
        self.stats.controls_received += 1
        destination = self._destinations.find(source)
        if destination is None:
            self.stats.controls_stray += 1
            return
        bind_id = None if device_ports is None else device_ports.bind_id
        has_changed = self._note_qpn(destination, header.qpn)
        if destination.peer_bind_id not in (None, bind_id):
            has_changed = True
        destination.peer_bind_id = bind_id
        if has_changed:
            self._forget_queue_pair(destination)
        # librdmacm says nothing more than its number, and is on none of our devices.
        if destination.state is DestinationState.BY_UDP and device_ports is not None:
            self._begin_look_up(destination, device_ports, now_ns)

    def _note_qpn(self, destination: DatagramDestination, qpn: int) -> bool:
        """Keep the peer's number; return whether it was another one before."""
        has_changed = destination.peer_qpn not in (None, qpn)
        destination.peer_qpn = qpn
        return has_changed

    def _answer(
        self,
        destination: DatagramDestination | None,
        source: HostPort,
        local_host: str,
        now_ns: int,
    ) -> ByUdp | None:
        """Tell a sender our number and devices.

        One we know is not told twice in a row: until its look-up is over it may send many.
        """
        if destination is not None:
            last_ns = destination.answered_ns
            if last_ns is not None and now_ns - last_ns < self.settings.answer_pause_ns:
                return None
            destination.answered_ns = now_ns
        host = ip_address((local_host or self.local[0]).partition("%")[0])
        header = wire.UdpHeader(wire.DatagramOp.CONTROL, self._qpn, host).emit()
        self.stats.controls_sent += 1
        return ByUdp(header + self._device_ports, source, local_host, is_data=False)

    # -- look-ups

    def _begin_look_up(
        self, destination: DatagramDestination, device_ports: wire.DatagramDevices, now_ns: int
    ) -> None:
        """Ask over the devices that both have, in our order."""
        if not destination.may_look_up or now_ns < destination.look_up_not_before_ns:
            return
        ports = {qp_address.provider: qp_address.port for qp_address in device_ports.device_ports}
        destination.candidates = [
            (index, ports[device.provider])
            for index, device in enumerate(self._devices)
            if device is not None and device.provider in ports
        ]
        if destination.candidates:
            self._look_up_next(destination, now_ns)

    def _look_up_next(self, destination: DatagramDestination, now_ns: int) -> None:
        destination.state = DestinationState.BY_UDP
        if self._destinations.look_ups >= self.settings.look_ups_max:
            return  # the next control message tries again
        if destination.candidates:
            device, port = destination.candidates.pop(0)
            destination.state = DestinationState.LOOKING_UP
            token = self._destinations.begin_look_up(destination)
            peer = (destination.target[0], port)
            self._events.append(LookUp(token, device, peer, destination.peer_bind_id or b""))
            self.stats.look_ups += 1
            return
        pause_ns = self.settings.look_up_pause_ns << min(destination.look_ups_failed, 16)
        destination.look_ups_failed += 1
        destination.look_up_not_before_ns = now_ns + min(
            pause_ns, self.settings.look_up_pause_max_ns
        )
        self.stats.look_ups_failed += 1

    def _forget_queue_pair(self, destination: DatagramDestination) -> None:
        """Forget the queue pair of a peer that has changed, and all that failed before."""
        self._give_up_look_up(destination)
        self.stats.queue_pairs_lost += destination.qp_address is not None
        destination.state, destination.qp_address = DestinationState.BY_UDP, None
        destination.look_ups_failed, destination.look_up_not_before_ns = 0, 0
        destination.answered_ns = None

    def _give_up_look_up(self, destination: DatagramDestination) -> None:
        if destination.token:
            self._events.append(CancelLookUp(destination.token))
            self._destinations.end_look_up(destination.token)

    # -- leaves

    def _deliver(self, payload: memoryview, source: HostPort) -> None:
        """Copy a datagram for the application, unless it is to be dropped."""
        if len(payload) > SLOT_BYTES - self._qp_header_bytes:
            self.stats.dropped_too_long += 1
        elif self.peer is not None and source != self.peer:
            self.stats.dropped_not_from_peer += 1
        elif len(self._received) >= self.settings.receive_slots:
            self.stats.dropped_queue_full += 1
        else:
            self._received.append((bytes(payload), source))

    def _read_source(self, data: BytesLike) -> HostPort:
        header, _ = wire.QpHeader.parse(data)
        if header.address.version != self._version or not header.port:
            raise WireError(f"sender {header.address} port {header.port} of IPv{self._version}")
        return str(header.address), header.port
