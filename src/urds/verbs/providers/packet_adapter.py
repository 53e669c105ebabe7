"""Connections of the providers that carry packets; `packet_mover` moves the packets.

A provider adds a clock, `_transmit`, names for addresses (`_resolve`, `_claim`, `_release`), and
calls `_receive` and `_run_timers` inside a `_batch`. If its path can be full, `_has_room` reports
that and `_resume` is called when there is room again. Where the link itself detects that a peer is
gone, `_lose_route` is called.

Messages of the connection manager travel as datagrams of queue pair `CM_QPN`, as in InfiniBand, so
all bytes on the path are packets. All methods need `lock` held, except where stated.
"""

import errno
import random
import threading
from abc import abstractmethod
from collections import deque
from typing import Final

from urds.common.timers import Deadlines
from urds.common.types import HostPort
from urds.verbs.cm.core import CmCore, check_private_data
from urds.verbs.cm.messages import CM_QKEY, CM_QPN, READS_MAX, CmMessage, CmMessageKind, Offer
from urds.verbs.cm.records import CmEvent, CmListener, CmSettings
from urds.verbs.engine.numbers import PSN_MASK, QPState
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    DeviceAttributes,
    Listener,
    OnConnectionEvent,
    PortSpace,
    VerbsConnection,
)
from urds.verbs.providers.packet_connection import PacketConnection, PacketListener, packed
from urds.verbs.providers.packet_mover import PacketMover

BACKLOG_DEFAULT: Final = 1024  # of `listen` with 0. Source: docs/reference/verbs-and-roce.md 14.3
_WAITING_MAX: Final = 1024  # messages of the manager that wait for room; it repeats lost ones


class PacketAdapter(PacketMover):
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
        super().__init__(attributes, gid=gid, rng=rng, lock=lock)
        self.cm = CmCore(random=rng, settings=settings)
        self._waiting: deque[tuple[AddressVector, bytes]] = deque(maxlen=_WAITING_MAX)
        self._later: deque[tuple[PacketConnection, ConnectionEventKind]] = deque()
        self._is_connecting = False  # no event may come before `connect` has returned

    # -- what a provider gives

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
            self.post_event(connection, ConnectionEventKind.REFUSED)
            self._request_batch()
            return connection
        offer = Offer()
        if bound is not None:
            offer = self.offer(bound, parameters, route)
            self.bind(bound, connection)
        self._ask(connection, route, offer, parameters, timeout_ns)
        self._is_connecting = True
        try:
            self.flush()
        finally:
            self._is_connecting = False
        return connection

    def _ask(
        self,
        connection: PacketConnection,
        route: AddressVector,
        offer: Offer,
        parameters: ConnectParameters,
        timeout_ns: int | None,
    ) -> None:
        now_ns = self.now_ns()
        own, peer = connection.local, connection.peer
        try:
            connection.record = self.cm.connect(
                route=route,
                space=connection.space,
                local=own,
                peer=peer,
                request=self._request(own, peer, offer, parameters),
                now_ns=now_ns,
                give_up_ns=None if timeout_ns is None else now_ns + timeout_ns,
                owner=connection,
            )
        except OSError:
            if connection.qp is not None:
                self.unbind(connection.qp, connection)
            raise

    # -- calls of connections and listeners

    def offer(self, qp: QueuePair, parameters: ConnectParameters, route: AddressVector) -> Offer:
        """Return a queue pair's parameters for a connection on a route. Raises OSError EINVAL."""
        entry = self._entries.get(qp.qpn)
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
            acceptance=qp.acceptance,
            qkey=parameters.qkey or qp.attr.qkey,
        )

    def bind(self, qp: QueuePair, connection: PacketConnection) -> None:
        """Assign a queue pair to a connection. Raises OSError EINVAL if it has another."""
        entry = self._entries[qp.qpn]
        if entry.connection not in (None, connection):
            raise OSError(errno.EINVAL, f"queue pair {qp.qpn} has a connection")
        entry.connection = connection

    def unbind(self, qp: QueuePair, connection: PacketConnection) -> None:
        """Release the queue pair for another connection."""
        entry = self._entries.get(qp.qpn)
        if entry is not None and entry.connection is connection:
            entry.connection = None

    def unlisten(self, listener: PacketListener, record: CmListener) -> None:
        """Stop listening."""
        self.cm.unlisten(record)
        self._release(listener.local, listener.space)

    def post_event(self, connection: PacketConnection, kind: ConnectionEventKind) -> None:
        """Emit an event at the next `flush`: its owner may not have the connection yet."""
        self._later.append((connection, kind))

    # -- messages, events, timers

    def _flush_connections(self) -> None:
        while self._later or self.cm.has_news:
            while self._later:
                connection, kind = self._later.popleft()
                connection.tell(kind, reason=_WORDS.get(kind, ""))
            event = self.cm.poll_event()
            if event is not None:
                self._handle_event(event)
                continue
            while (message := self.cm.poll_transmit()) is not None:
                route, data = message
                assert isinstance(route, AddressVector)
                self._send_message(route, data)

    def _handle_event(self, event: CmEvent) -> None:
        owner = event.connection.owner
        if isinstance(owner, PacketListener | PacketConnection):
            owner.handle_cm_event(event)

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

    def _resume(self, destination: AddressVector) -> None:
        for _ in range(len(self._waiting)):
            route, data = self._waiting.popleft()
            self._send_message(route, data)
        super()._resume(destination)

    def _receive_message(
        self, packet: Packet, source: AddressVector, local: HostPort | None, peer: HostPort | None
    ) -> None:
        if packet.kind is not PacketKind.DATAGRAM or packet.qkey != CM_QKEY:
            self.packets.dropped_manager += 1
            return
        self.cm.receive_data(
            bytes(packet.payload), source=source, local=local, peer=peer, now_ns=self.now_ns()
        )
        # Events are delivered before the next packet is processed: data right behind a reply
        # must find its queue pair ready.
        self._flush_connections()

    def _lose_route(self, route: AddressVector) -> None:
        """End all connections with a peer after the link detected that it is gone."""
        with self._batch():
            self.cm.handle_route_lost(route)

    def _run_timers(self, now_ns: int) -> None:
        super()._run_timers(now_ns)
        self.cm.handle_timeout(now_ns)

    def _deadline(self) -> int | None:
        first_ns, second_ns = super()._deadline(), self.cm.poll_timeout()
        if first_ns is None or (second_ns is not None and second_ns < first_ns):
            return second_ns
        return first_ns

    def _request(
        self, own: HostPort, peer: HostPort, offer: Offer, parameters: ConnectParameters
    ) -> CmMessage:
        return CmMessage(
            kind=CmMessageKind.REQ,
            context_guid=self.cm.context_guid,
            source=packed(own[0]),
            source_port=own[1],
            target=packed(peer[0]),
            target_port=peer[1],
            offer=offer,
            private_data=parameters.private_data,
        )

    def _check_open(self) -> None:
        if self.is_closed:
            raise OSError(errno.ENODEV, f"{self.attributes.name} is closed")

    def _disconnect_all(self) -> None:
        """Send each peer a DREQ, and forget all connections and queue pairs."""
        self.is_closed = True
        self.cm.close()
        self._flush_connections()
        self._entries.clear()
        self._dirty.clear()
        self._deadlines = Deadlines()


_WORDS: Final = {ConnectionEventKind.REFUSED: "no listener there"}
