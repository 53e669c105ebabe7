"""What the providers that carry packets share: queue pairs, their timers, the connection manager.

A provider on top gives a clock, a way to `_transmit` octets, names for addresses (`_resolve`,
`_claim`, `_release`), and calls `_receive` and `_run_timers` inside a `_batch`. If its way out can
be full, `_has_room` says so and `_resume` tells when there is room again. Where the link itself
knows that a peer is gone, `_lose_route` tells.

Messages of the connection manager travel as datagrams of queue pair `CM_QPN`, as in InfiniBand:
there is one kind of octets on the way. All methods need `lock` held, but for those that say
otherwise.
"""

import errno
import random
import threading
from abc import abstractmethod
from collections import deque
from typing import Final

from urds.verbs.cm.core import CmCore
from urds.verbs.cm.deadlines import Deadlines
from urds.verbs.cm.exchange import check_private_data
from urds.verbs.cm.messages import CM_QKEY, CM_QPN, READS_MAX, Message, MessageKind, Offer
from urds.verbs.cm.records import CmEvent, CmListener, CmSettings
from urds.verbs.engine.numbers import PSN_MASK, QPState
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import (
    Address,
    Connection,
    ConnectionEventKind,
    ConnectParameters,
    DeviceAttributes,
    Listener,
    OnConnectionEvent,
    PortSpace,
)
from urds.verbs.providers.packet_connection import PacketConnection, PacketListener, packed
from urds.verbs.providers.packet_mover import PacketMover

BACKLOG_DEFAULT: Final = 1024  # of `listen` with 0. Source: verbs-and-roce.md 14.3
_WAITING_MAX: Final = 1024  # messages of the manager that wait for room; it repeats lost ones


class PacketAdapter(PacketMover):
    """An adapter that moves packets and makes connections; abstract in what carries them."""

    def __init__(
        self,
        attributes: DeviceAttributes,
        *,
        gid: bytes,
        chance: random.Random,
        settings: CmSettings | None = None,
        lock: "threading.RLock | None" = None,
    ) -> None:
        super().__init__(attributes, gid=gid, chance=chance, lock=lock)
        self.cm = CmCore(random=chance, settings=settings)
        self._waiting: deque[tuple[AddressVector, bytes]] = deque(maxlen=_WAITING_MAX)
        self._later: deque[tuple[PacketConnection, ConnectionEventKind]] = deque()
        self._is_connecting = False  # no event may come before `connect` has returned

    # -- what a provider gives

    @abstractmethod
    def _resolve(
        self, peer: Address, local: Address | None, space: PortSpace
    ) -> tuple[AddressVector | None, Address]:
        """Return the way to `peer` (None: nobody is there) and our address on it.

        Raises OSError: EINVAL, EADDRNOTAVAIL.
        """

    def _mtu_bytes(self, route: AddressVector) -> int:
        """Return how many octets of payload a packet on this route may have."""
        return self.attributes.link.mtu_bytes

    @abstractmethod
    def _claim(self, local: Address, space: PortSpace) -> Address:
        """Take an address to listen at; port 0: a free one. Raises OSError as `listen`."""

    @abstractmethod
    def _release(self, local: Address, space: PortSpace) -> None:
        """Give an address back that `_claim` took."""

    # -- connections

    def listen(
        self, local: Address, space: PortSpace, *, backlog: int, on_event: OnConnectionEvent
    ) -> Listener:
        """Listen at an address of this adapter; `backlog` 0 is the usual one."""
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
        peer: Address,
        space: PortSpace,
        parameters: ConnectParameters,
        *,
        on_event: OnConnectionEvent,
        local: Address | None = None,
        timeout_ns: int | None = None,
    ) -> Connection:
        """Ask for a connection. See `Adapter.connect`."""
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
            self.tell_later(connection, ConnectionEventKind.REFUSED)
            self._nudge()
            return connection
        offer = Offer()
        if bound is not None:
            offer = self.offer(bound, parameters, route)
            self.bind(bound, connection)
        self._ask(connection, route, offer, parameters, timeout_ns)
        self._is_connecting = True
        try:
            self.settle()
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
        """Say what a queue pair brings to a connection on a route. Raises OSError EINVAL."""
        entry = self._entries.get(qp.qpn)
        if entry is None or entry.qp is not qp:
            raise OSError(errno.EINVAL, f"queue pair {qp.qpn} belongs to another adapter")
        if max(parameters.responder_resources, parameters.initiator_depth) > READS_MAX:
            raise OSError(errno.EINVAL, f"{parameters} has more than {READS_MAX} reads")
        return Offer(
            qpn=qp.qpn,
            sequence_start=self._chance.getrandbits(24) & PSN_MASK,
            mtu_bytes=self._mtu_bytes(route),
            responder_resources=parameters.responder_resources,
            initiator_depth=parameters.initiator_depth,
            retry_count=parameters.retry_count,
            rnr_retry_count=parameters.rnr_retry_count,
            acceptance=qp.acceptance,
            qkey=parameters.qkey or qp.attr.qkey,
        )

    def bind(self, qp: QueuePair, connection: PacketConnection) -> None:
        """Note whose queue pair it is. Raises OSError EINVAL if it has a connection."""
        entry = self._entries[qp.qpn]
        if entry.connection not in (None, connection):
            raise OSError(errno.EINVAL, f"queue pair {qp.qpn} has a connection")
        entry.connection = connection

    def unbind(self, qp: QueuePair, connection: PacketConnection) -> None:
        """Let the queue pair be connected again."""
        entry = self._entries.get(qp.qpn)
        if entry is not None and entry.connection is connection:
            entry.connection = None

    def unlisten(self, listener: PacketListener, record: CmListener) -> None:
        """Stop listening."""
        self.cm.unlisten(record)
        self._release(listener.local, listener.space)

    def tell_later(self, connection: PacketConnection, kind: ConnectionEventKind) -> None:
        """Give an event at the next `settle`, for its owner may not have the connection yet."""
        self._later.append((connection, kind))

    # -- messages, events, timers

    def _settle_connections(self) -> None:
        while self._later or self.cm.has_news:
            while self._later:
                connection, kind = self._later.popleft()
                connection.tell(kind, reason=_WORDS.get(kind, ""))
            event = self.cm.poll_event()
            if event is not None:
                self._handle_event(event)
                continue
            while (message := self.cm.poll_transmit()) is not None:
                route, octets = message
                assert isinstance(route, AddressVector)
                self._send_message(route, octets)

    def _handle_event(self, event: CmEvent) -> None:
        owner = event.connection.owner
        if isinstance(owner, PacketListener | PacketConnection):
            owner.handle_cm_event(event)

    def _send_message(self, route: AddressVector, octets: bytes) -> None:
        if not self._has_room(route):
            self._waiting.append((route, octets))
            return
        packet = Packet(
            PacketKind.DATAGRAM,
            CM_QPN,
            flags=PacketFlag.FIRST | PacketFlag.LAST,
            source_qpn=CM_QPN,
            qkey=CM_QKEY,
            payload=octets,
        )
        self._carry(packet, route)

    def _resume(self, destination: AddressVector) -> None:
        for _ in range(len(self._waiting)):
            route, octets = self._waiting.popleft()
            self._send_message(route, octets)
        super()._resume(destination)

    def _receive_message(
        self, packet: Packet, source: AddressVector, local: Address | None, peer: Address | None
    ) -> None:
        if packet.kind is not PacketKind.DATAGRAM or packet.qkey != CM_QKEY:
            self.packets.dropped_manager += 1
            return
        self.cm.receive_data(
            bytes(packet.payload), source=source, local=local, peer=peer, now_ns=self.now_ns()
        )
        # What the message changed is told before the next packet is looked at: data right behind
        # a reply must find its queue pair ready.
        self._settle_connections()

    def _lose_route(self, route: AddressVector) -> None:
        """End all connections with a peer of which the link knows that it is gone."""
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
        self, own: Address, peer: Address, offer: Offer, parameters: ConnectParameters
    ) -> Message:
        return Message(
            kind=MessageKind.REQ,
            opening=self.cm.opening,
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

    def _say_goodbye(self) -> None:
        """Tell every peer once, and forget all connections and queue pairs."""
        self.is_closed = True
        self.cm.close()
        self._settle_connections()
        self._entries.clear()
        self._dirty.clear()
        self._deadlines = Deadlines()


_WORDS: Final = {ConnectionEventKind.REFUSED: "nobody is there"}
