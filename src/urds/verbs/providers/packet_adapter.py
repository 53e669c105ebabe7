"""Adapters of the providers that carry packets: queue pairs, batches, packets, timers, connections.

A provider adds a clock, `_transmit`, names for addresses (`_resolve`, `_claim`, `_release`), and
calls `_receive` and `_run_timers` in a batch (`with flushing, batch`). If its path can be full,
`_has_room` reports that and `_resume` is called when there is room again. Where the link itself
detects that a peer is gone, the provider tells `cm`.

Owners and sinks may post and call `progress_qp`: within a batch such a call only marks the queue
pair, and `flush`, at the end of the batch, sends everything. A batch is one pass of the engine, or
several: one ends where a receive queue runs dry, since a sink may fill it again.

Messages of the connection manager travel as datagrams of queue pair `CM_QPN`, as in InfiniBand, so
all bytes on the path are packets. All methods need `lock` held, except where stated.
"""

import errno
import random
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from urds.common.errors import WireError
from urds.common.forks import renewed
from urds.common.timers import Deadlines, Timer
from urds.common.types import BytesLike, HostPort
from urds.verbs.cm.core import CmCore, check_private_data
from urds.verbs.cm.messages import CM_QKEY, CM_QPN, READS_MAX, Offer
from urds.verbs.cm.records import CmListener, CmSettings
from urds.verbs.engine.completions import Outbox
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import PSN_MASK, QPState, QPType
from urds.verbs.engine.packets import (
    Packet,
    PacketFlag,
    PacketKind,
    Syndrome,
    emit_packet,
    parse_packet,
)
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import (
    Adapter,
    ConnectionEventKind,
    ConnectParameters,
    DeviceAttributes,
    Listener,
    LoopAdapter,
    OnConnectionEvent,
    PortSpace,
    VerbsConnection,
)
from urds.verbs.providers.blocked import Blocked
from urds.verbs.providers.packet_connection import PacketConnection, PacketListener, QueuePairEntry

BACKLOG_DEFAULT: Final = 1024  # of `listen` with 0. Source: docs/reference/verbs-and-roce.md 14.3
QPN_FIRST: Final = 16  # Source: docs/reference/verbs-and-roce.md 13
QPN_LAST: Final = 0xFF_FFFE
_WAITING_MAX: Final = 1024  # messages of the manager that wait for room; it repeats lost ones
_ACK: Final = int(Syndrome.ACK)
_WORDS: Final = {ConnectionEventKind.REFUSED: "no listener there"}


@dataclass(slots=True)
class PacketStats:
    """Packets since the device was opened, and why some were dropped."""

    sent: int = 0
    received: int = 0
    dropped_malformed: int = 0
    dropped_unknown: int = 0  # no such queue pair
    dropped_source: int = 0  # from another place than the queue pair's peer
    dropped_manager: int = 0  # to queue pair 1, but no message of a manager


class PacketForm:
    """Packets as bytes, in the layout of `engine.packets`; a provider may have another."""

    has_checksum: ClassVar[bool] = False  # whether packets carry a CRC-32 of their own

    def _emit(self, packet: Packet) -> Sequence[BytesLike]:
        """Return the bytes of a packet in parts."""
        return emit_packet(packet, checksum=self.has_checksum)

    def _transmit(self, destination: AddressVector, parts: Sequence[BytesLike]) -> None:
        """Send one packet. Its parts are the engine's memory, not used after return.

        Given by a provider whose packets are bytes; another gives `_transmit_packet`.
        """
        raise NotImplementedError

    def _parse(self, data: BytesLike) -> Packet:
        """Read the bytes of a packet. Raises WireError."""
        return parse_packet(data, checksum=self.has_checksum)


class PacketAdapter(PacketForm, Adapter):
    """An adapter that moves packets and makes connections; abstract in what carries them."""

    def __init__(
        self,
        attributes: DeviceAttributes,
        *,
        gid: bytes,
        rng: random.Random,
        settings: CmSettings | None = None,
        lock: "threading.RLock | None" = None,
    ) -> None:
        self.attributes = attributes
        self.gid = gid
        self.keys = KeyTable(rng=rng)
        self.lock = lock or renewed(threading.RLock())
        self.outbox = Outbox()
        self.packets = PacketStats()
        self.is_closed = False
        self._rng = rng
        self.entries: dict[int, QueuePairEntry] = {}
        self._deadlines: Deadlines[int] = Deadlines()
        self._dirty: dict[int, QueuePairEntry] = {}
        self._blocked = Blocked()
        self._soon: deque[Callable[[], None]] = deque()
        self.batch = renewed(threading.RLock())  # held within one, by a thread that holds the lock
        self.flushing = _Flushing(self)
        self._is_lossless = attributes.link.lossless
        self._moment_ns = 0  # of the current batch, once it was read; else 0
        self._qpn_next = rng.randrange(QPN_FIRST, QPN_LAST)
        self.cm = CmCore(random=rng, settings=settings)
        self._waiting: deque[tuple[AddressVector, bytes]] = deque(maxlen=_WAITING_MAX)
        # Events for the next flush: their owner may not have the connection yet.
        self.later: deque[tuple[PacketConnection, ConnectionEventKind]] = deque()
        self._is_connecting = False  # no event may come before `connect` has returned

    # -- what a provider gives

    def _has_room(self, destination: AddressVector) -> bool:
        """Return whether one packet of any size can go to `destination` now."""
        return True

    def _is_from(self, peer: AddressVector, source: AddressVector) -> bool:
        """Return whether a packet from `source` is from a queue pair's `peer`."""
        return peer == source

    def _batch_done(self) -> None:
        """Handle the end of a batch: wake waiters that are ready."""

    def _request_batch(self) -> None:
        """Make sure that a batch comes soon. Nothing to do in virtual time."""

    def notify(self) -> None:
        """Wake waiters; within a batch its end does."""
        if not self.is_in_batch:
            self._batch_done()

    @abstractmethod
    def _resolve(
        self, peer: HostPort, local: HostPort | None, space: PortSpace
    ) -> tuple[AddressVector | None, HostPort]:
        """Return the route to `peer` (None: no listener there) and our address on it.

        Raises OSError: EINVAL, EADDRNOTAVAIL.
        """

    def _mtu_bytes(self, route: AddressVector) -> int:
        """Return the maximum payload of a packet on this route, in bytes."""
        return self.attributes.link.mtu_bytes

    @abstractmethod
    def _claim(self, local: HostPort, space: PortSpace) -> HostPort:
        """Reserve an address to listen at; port 0: a free one. Raises OSError as `listen`."""

    @abstractmethod
    def _release(self, local: HostPort, space: PortSpace) -> None:
        """Release an address that `_claim` reserved."""

    # -- queue pairs

    def new_qpn(self) -> int:
        """Return the next number: all others come before one is used again."""
        while True:  # ends: `max_qp` is far below the count of numbers
            number = self._qpn_next
            self._qpn_next = number + 1 if number < QPN_LAST else QPN_FIRST
            if number not in self.entries:
                return number

    def add(self, qp: QueuePair) -> None:
        """Register a queue pair with this adapter."""
        self._check_open()
        assert qp.qpn not in self.entries, f"queue pair {qp.qpn} is there already"
        self.entries[qp.qpn] = QueuePairEntry(qp)

    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair."""
        entry = self.entries.get(qp.qpn)
        if entry is None or entry.qp is not qp:
            return
        if entry.connection is not None:
            entry.connection.forget_queue_pair()
        del self.entries[qp.qpn]
        self._dirty.pop(qp.qpn, None)
        self._deadlines.cancel(qp.qpn)
        self._blocked.forget(qp.qpn)

    def progress_qp(self, qp: QueuePair) -> None:
        """Send what the queue pair has to send, now or at the end of the batch."""
        entry = self.entries.get(qp.qpn)
        if entry is not None:
            self._dirty[qp.qpn] = entry
            self.flush()

    # -- batches

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` in the next `flush`, which the current call ends with, or soon."""
        self._soon.append(action)
        # Within a batch its end runs it; a finaliser may call from outside, without the lock.
        if not self.is_in_batch:
            self._request_batch()

    @property
    def is_in_batch(self) -> bool:
        """Return whether this thread sends later, at the end of `with flushing, batch`."""
        return bool(self.batch._is_owned())  # type: ignore[attr-defined]  # as Condition asks

    def flush(self) -> None:
        """Send everything that waits, unless a batch will do so."""
        if self.is_in_batch:
            return
        self._moment_ns, outbox = 0, self.outbox
        with self.batch:
            while True:
                self._flush_connections()
                if outbox.fed or outbox.events:
                    self.finish_pass()  # before sending: what sinks post leaves with the answers
                if self._dirty:
                    self._progress_entry(self._dirty.popitem()[1])
                elif self._soon and not self._is_connecting:  # else a batch is due at once
                    self._soon.popleft()()
                elif not (self.later or self.cm.has_news):
                    break
        self._batch_done()

    def _progress_entry(self, entry: QueuePairEntry) -> None:
        qp, now_ns = entry.qp, self._about_ns()
        entry.begin(now_ns)  # until what left it is sent
        while self._may_transmit(entry) and (packet := qp.poll_transmit(now_ns)) is not None:
            destination = packet.destination or qp.peer
            if destination is not None:
                entry.has_sent = True
                self._transmit_packet(packet, destination)
        entry.is_torn = False
        entry.break_if_in(QPState.ERR, QPState.RESET)
        # A later deadline is set when the planned one comes: most timers are moved, not run.
        deadline_ns = qp.poll_timeout()
        planned_ns = self._deadlines.get(qp.qpn)
        if deadline_ns is not None and (planned_ns is None or deadline_ns < planned_ns):
            self._deadlines.set(qp.qpn, deadline_ns)

    def _about_ns(self) -> int:
        """Return the time; without loss, where it ends pauses alone, it is read once per batch."""
        if not self._is_lossless:
            return self.now_ns()
        if not self._moment_ns:
            self._moment_ns = self.now_ns()
        return self._moment_ns

    def _may_transmit(self, entry: QueuePairEntry) -> bool:
        """Return whether the path to the peer has room; if not, record the queue pair as blocked.

        A datagram's path is unknown before it is taken: it may be lost.
        """
        peer = entry.qp.peer
        if peer is None or entry.qp.qp_type is not QPType.RC or self._has_room(peer):
            return True
        self._blocked.add(peer, entry)
        return False

    def _resume(self, destination: AddressVector) -> None:
        """Send the messages and serve the queue pairs that waited for room."""
        for _ in range(len(self._waiting)):
            route, data = self._waiting.popleft()
            self._send_message(route, data)
        self._dirty |= self._blocked.take(destination)  # `flush` serves the last one first
        self.flush()

    def _transmit_packet(self, packet: Packet, destination: AddressVector) -> None:
        self.packets.sent += 1
        self._transmit(destination, self._emit(packet))

    # -- packets that arrive, timers

    def _receive(
        self,
        data: BytesLike,
        source: AddressVector,
        *,
        local: HostPort | None = None,
        peer: HostPort | None = None,
    ) -> None:
        """Process the bytes of one packet, within a batch.

        `local` and `peer` are the addresses it went to and came from, if the provider has them:
        they identify the listener of a connection request.
        """
        try:
            packet = self._parse(data)
        except WireError:
            self.packets.dropped_malformed += 1
            return
        self._receive_packet(packet, source, local, peer)

    def _receive_packet(
        self, packet: Packet, source: AddressVector, local: HostPort | None, peer: HostPort | None
    ) -> None:
        """Process one packet, within a batch; its payload is not used after the return."""
        self.packets.received += 1
        if packet.target_qpn == CM_QPN:
            self._receive_message(packet, source, local, peer)
            return
        entry = self.entries.get(packet.target_qpn)
        if entry is None:
            self.packets.dropped_unknown += 1
            return
        qp = entry.qp
        if qp.qp_type is QPType.RC and (qp.peer is None or not self._is_from(qp.peer, source)):
            self.packets.dropped_source += 1
            return
        # The owner learns that it is connected before the data does anything.
        connection = entry.connection
        if connection is not None and connection.wants_data and connection.handle_data():
            self._flush_connections()
        # A NAK may start a pause, whose length counts.
        is_nak = packet.syndrome > _ACK
        entry.receive_packet(packet, self.now_ns() if is_nak else self._about_ns(), source)
        self._dirty[qp.qpn] = entry
        if self.outbox.fed and not qp.receives:
            self.finish_pass()

    def _run_timers(self, now_ns: int) -> None:
        """Run the timers that are due, within a batch."""
        while (qpn := self._deadlines.pop_due(now_ns)) is not None:
            entry = self.entries[qpn]
            deadline_ns = entry.qp.poll_timeout()
            if deadline_ns is not None and deadline_ns <= now_ns:
                entry.handle_timeout(now_ns)
                self._dirty[qpn] = entry
            elif deadline_ns is not None:
                self._deadlines.set(qpn, deadline_ns)
        self.cm.handle_timeout(now_ns)

    def deadline_ns(self) -> int | None:
        """Return when a batch with `_run_timers` is due, None if never; 0 is at once."""
        first_ns = 0 if self._soon else self._deadlines.next_ns()
        second_ns = self.cm.poll_timeout()
        if first_ns is None or (second_ns is not None and second_ns < first_ns):
            return second_ns
        return first_ns

    # -- connections

    def listen(
        self, local: HostPort, space: PortSpace, *, backlog: int, on_event: OnConnectionEvent
    ) -> Listener:
        """Listen at an address of this adapter; `backlog` 0 is the default."""
        self._check_open()
        local = self._claim(local, space)
        listener = PacketListener(self, local, space, on_event)
        try:
            listener.record = self.cm.listen(
                local=local, space=space, backlog=backlog or BACKLOG_DEFAULT, owner=listener
            )
        except OSError:
            self._release(local, space)
            raise
        return listener

    def connect(
        self,
        qp: QueuePair | None,
        peer: HostPort,
        space: PortSpace,
        parameters: ConnectParameters,
        *,
        on_event: OnConnectionEvent,
        local: HostPort | None = None,
        timeout_ns: int | None = None,
    ) -> VerbsConnection:
        """Request a connection. See `Adapter.connect`."""
        self._check_open()
        check_private_data(parameters.private_data)
        is_datagram = space is PortSpace.UDP
        if not is_datagram and (qp is None or qp.state not in (QPState.RESET, QPState.INIT)):
            state = "no queue pair" if qp is None else f"a queue pair in {qp.state.name}"
            raise OSError(errno.EINVAL, f"connect of {state}, not in RESET or INIT")
        route, own = self._resolve(peer, local, space)
        # A look-up leaves the queue pair alone: it may serve many.
        bound = None if is_datagram else qp
        connection = PacketConnection(
            self, space=space, local=own, peer=peer, on_event=on_event, qp=bound
        )
        if route is None:
            # Not before this call has returned: its caller does not know the connection yet.
            self.later.append((connection, ConnectionEventKind.REFUSED))
            self._request_batch()
            return connection
        connection.request(route, parameters, timeout_ns)
        was_connecting, self._is_connecting = self._is_connecting, True  # its caller may be one
        try:
            self.flush()
        finally:
            self._is_connecting = was_connecting
        return connection

    # -- calls of connections and listeners

    def offer(self, qp: QueuePair, parameters: ConnectParameters, route: AddressVector) -> Offer:
        """Return a queue pair's parameters for a connection on a route. Raises OSError EINVAL."""
        entry = self.entries.get(qp.qpn)
        if entry is None or entry.qp is not qp:
            raise OSError(errno.EINVAL, f"queue pair {qp.qpn} belongs to another adapter")
        if max(parameters.responder_resources, parameters.initiator_depth) > READS_MAX:
            raise OSError(errno.EINVAL, f"{parameters} has more than {READS_MAX} reads")
        return Offer(
            qpn=qp.qpn,
            sequence_start=self._rng.getrandbits(24) & PSN_MASK,
            mtu_bytes=self._mtu_bytes(route),
            responder_resources=parameters.responder_resources,
            initiator_depth=parameters.initiator_depth,
            retry_count=parameters.retry_count,
            rnr_retry_count=parameters.rnr_retry_count,
            receive_order=qp.receive_order,
            qkey=parameters.qkey or qp.attr.qkey,
        )

    def unlisten(self, listener: PacketListener, record: CmListener) -> None:
        """Stop listening."""
        self.cm.unlisten(record)
        self._release(listener.local, listener.space)

    # -- messages, events, timers

    def _flush_connections(self) -> None:
        while self.later or self.cm.has_news:
            while self.later:
                connection, kind = self.later.popleft()
                connection.tell(kind, reason=_WORDS.get(kind, ""))
            if (event := self.cm.poll_event()) is not None:
                owner = event.connection.owner
                if isinstance(owner, PacketListener | PacketConnection):
                    owner.handle_cm_event(event)
                continue
            while (message := self.cm.poll_transmit()) is not None:
                route, data = message
                assert isinstance(route, AddressVector)
                self._send_message(route, data)

    def _send_message(self, route: AddressVector, data: bytes) -> None:
        if not self._has_room(route):
            self._waiting.append((route, data))
            return
        packet = Packet(
            PacketKind.DATAGRAM,
            CM_QPN,
            flags=PacketFlag.FIRST | PacketFlag.LAST,
            source_qpn=CM_QPN,
            qkey=CM_QKEY,
            payload=data,
        )
        self._transmit_packet(packet, route)

    def _receive_message(
        self, packet: Packet, source: AddressVector, local: HostPort | None, peer: HostPort | None
    ) -> None:
        if packet.kind is not PacketKind.DATAGRAM or packet.qkey != CM_QKEY:
            self.packets.dropped_manager += 1
            return
        for entry in self._dirty.values():  # what a peer refused comes before its disconnect
            entry.break_if_in(QPState.ERR)
        self.cm.receive_data(
            bytes(packet.payload), source=source, local=local, peer=peer, now_ns=self.now_ns()
        )
        # Events are delivered before the next packet is processed: data right behind a reply
        # must find its queue pair ready.
        self._flush_connections()

    def _check_open(self) -> None:
        if self.is_closed:
            raise OSError(errno.ENODEV, f"{self.attributes.name} is closed")

    def _disconnect_all(self) -> None:
        """Send each peer a DREQ, and forget all connections and queue pairs."""
        self.is_closed = True
        self.cm.close()
        self._flush_connections()
        self.entries.clear()
        self._dirty.clear()
        self._deadlines = Deadlines()


class LoopPacketAdapter(LoopAdapter, PacketAdapter):
    """An adapter whose batches and timers are run by its loop."""

    _timer: Timer | None = None

    def progress_qp(self, qp: QueuePair) -> None:
        """See `PacketAdapter.progress_qp`."""
        try:
            super().progress_qp(qp)
        except BaseException:
            self.loop.call_soon(self.go_on)
            raise

    def go_on(self) -> None:
        """See `LoopAdapter.go_on`; queue pairs that an exception left half done go to ERR."""
        super().go_on()
        now_ns = self.now_ns()
        for entry in self.entries.values():
            if entry.is_torn:
                entry.fail(now_ns)
                self._dirty[entry.qp.qpn] = entry
        self.flush()

    def _batch_done(self) -> None:
        self._timer = self.loop.replan(self._timer, self.deadline_ns(), self._handle_timer)
        self.loop.tell()

    def _request_batch(self) -> None:
        self.loop.call_soon(self.flush)

    def _handle_timer(self) -> None:
        self._timer = None
        with self.flushing, self.batch:
            self._run_timers(self.now_ns())


class _Flushing:
    """Context that sends at its end. After an exception inside, what waits is left to the next.

    What ends the batch is a lock: a signal handler may raise where a Python `__exit__` begins.
    """

    __slots__ = ("_adapter",)

    def __init__(self, adapter: PacketAdapter) -> None:
        self._adapter = adapter

    def __enter__(self) -> None:
        self._adapter._moment_ns = 0

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is None:
            self._adapter.flush()
