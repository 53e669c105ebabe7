"""Connections in the form of rdma_cm: identifiers, their events, and one call for each step.

An identifier made from an `AddrInfo` is synchronous: `connect`, `accept`, `get_request` and
`disconnect` wait and raise; each has an `_async` variant for asyncio. One made from a
`CMEventChannel` returns at once and reports everything by events.

    listener = CMID(AddrInfo("127.0.0.1", 7000, flags=RAI_PASSIVE), QPInitAttr())
    listener.listen()
    server = listener.get_request()
    server.accept()

The identifier takes the queue pair through its states; receives may be posted before `accept` and
`connect`. Private data have one limit in both directions, the device's `max_private_data`, where
InfiniBand's differ (56 bytes of a connect). There is no TIMEWAIT: numbers of queue pairs are
not used again soon. Source: docs/reference/verbs-and-roce.md 14.3 and 18.
"""

from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from typing import ClassVar, Final

from urds.common.types import HostPort
from urds.verbs.cm_events import TYPES, CMError, CMEvent, CMEventChannel, CMEventType, EventRecord
from urds.verbs.cm_parameters import UD_QKEY, AddrInfo, ConnParam
from urds.verbs.context import AH, PD, Context, weak_call
from urds.verbs.cq import CQ
from urds.verbs.engine.attributes import QPAttr
from urds.verbs.engine.numbers import PEER_ACCESS, AccessFlag, QPType, SendFlag, WROpcode
from urds.verbs.engine.work import AddressVector
from urds.verbs.errors import VerbsArgumentError, demand_kind, demand_waiting_time
from urds.verbs.mr import MR
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    Listener,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)
from urds.verbs.qp import QP, QPInitAttr
from urds.verbs.records import SGE, WC, RecvWR, SendWR
from urds.verbs.resource import Resource

BACKLOG: Final = 128
LEAVE_S: Final = 10.0  # how long a synchronous disconnect waits for the peer
_NS: Final = 1_000_000_000


class IdentifierState(IntEnum):
    """States of an identifier."""

    IDLE = 0
    BOUND = 1
    ADDR_RESOLVED = 2
    ROUTE_RESOLVED = 3
    LISTENING = 4
    CONNECTING = 5
    REQUESTED = 6
    ACCEPTED = 7
    CONNECTED = 8
    OVER = 9


_STATE_AFTER: Final = {
    ConnectionEventKind.ESTABLISHED: IdentifierState.CONNECTED,
    # What was never connected may be tried again.
    ConnectionEventKind.REJECTED: IdentifierState.ROUTE_RESOLVED,
    ConnectionEventKind.REFUSED: IdentifierState.ROUTE_RESOLVED,
    ConnectionEventKind.UNREACHABLE: IdentifierState.ROUTE_RESOLVED,
    ConnectionEventKind.ERROR: IdentifierState.OVER,
    ConnectionEventKind.DISCONNECTED: IdentifierState.OVER,
    ConnectionEventKind.BROKEN: IdentifierState.OVER,
}


class CMID(Resource):
    """One identifier: a listener, or one side of a connection.

    creator: an `AddrInfo` (synchronous), a `CMEventChannel` (by events), or the `CMEvent` of a
    CONNECT_REQUEST (the new side).  qp_init_attr: make a queue pair with it, and of a listener
    for each request that `get_request` returns; missing completion queues are made.  pd: domain of
    the queue pair and of `reg_*`.  context: the device; the default one is opened without it.

    `event` is the last event that a call waited for: after `connect` its `private_data` are those
    of the peer's accept, of an identifier from `get_request` those of the peer's request.
    """

    context: Context
    port_space: PortSpace
    is_synchronous: bool
    close_rank: ClassVar[int] = -2

    def __init__(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent | None = None,
        qp_init_attr: QPInitAttr | None = None,
        pd: PD | None = None,
        port_space: int = PortSpace.TCP,
        listen_id: "CMID | None" = None,
        *,
        context: Context | None = None,
    ) -> None:
        """Make an identifier.

        Raises VerbsArgumentError, VerbsError; TypeError: an argument of another kind.
        """
        for name, value, kind in (
            ("creator", creator, (AddrInfo, CMEventChannel, CMEvent)),
            ("qp_init_attr", qp_init_attr, QPInitAttr),
            ("pd", pd, PD),
            ("listen_id", listen_id, CMID),
            ("context", context, Context),
        ):
            if value is not None:
                demand_kind(value, kind, f"CMID(): {name}")
        if isinstance(creator, CMEvent):
            listen_id = listen_id or creator.id
        if listen_id is not None:
            context, port_space, pd = listen_id.context, listen_id.port_space, pd or listen_id.pd
        elif context is None and pd is not None:
            context = pd.context
        # The channel of the creator or listener; without one, a private one to wait at.
        self._own_channel: CMEventChannel | None = None
        if isinstance(creator, CMEventChannel):
            self.event_channel = creator
        elif listen_id is not None and not listen_id.is_synchronous:
            self.event_channel = listen_id.event_channel
        else:
            self.event_channel = self._own_channel = CMEventChannel(context)
        self.is_synchronous = self._own_channel is not None
        self.context = self.event_channel.context
        self.port_space = PortSpace(port_space)
        self.qp: QP | None = None
        # The last one waited for, with the peer's private data: rdma_cm's `id->event`.
        self.event: CMEvent | None = creator if isinstance(creator, CMEvent) else None
        self.state = IdentifierState.IDLE
        self._init = qp_init_attr
        self._pd = pd
        self._local: HostPort | None = None
        self._target: HostPort | None = None
        self._connection: VerbsConnection | None = None
        self._listener: Listener | None = None
        super().__init__(self.context.adapter.lock, self.event_channel)
        self._begin(creator)

    # -- what it is

    @property
    def pd(self) -> PD:
        """Return the domain of the queue pair and of `reg_*`, made when it is first needed."""
        if self._pd is None:
            self._pd = PD(self.context)
        return self._pd

    @property
    def local_addr(self) -> HostPort | None:
        """Return the local address, None while there is none."""
        return self._connection.local if self._connection is not None else self._local

    @property
    def peer_addr(self) -> HostPort | None:
        """Return the peer's address, None while there is none."""
        return self._connection.peer if self._connection is not None else self._target

    def create_qp(self, qp_init_attr: QPInitAttr) -> QP:
        """Make the queue pair: in INIT, or of datagrams in RTS with the key of rdma_cm.

        Completion queues that are missing are made. Raises VerbsError.
        """
        demand_kind(qp_init_attr, QPInitAttr, "create_qp(): qp_init_attr")
        if self.qp is not None:
            raise VerbsArgumentError("the identifier has a queue pair")
        is_datagram = self.port_space is PortSpace.UDP
        cap, scq, rcq = qp_init_attr.cap, qp_init_attr.scq, qp_init_attr.rcq
        init = replace(
            qp_init_attr,
            qp_type=QPType.UD if is_datagram else QPType.RC,
            scq=CQ(self.context, max(1, cap.max_send_wr)) if scq is None else scq,
            rcq=CQ(self.context, max(1, cap.max_recv_wr)) if rcq is None else rcq,
        )
        attributes = QPAttr(qkey=UD_QKEY) if is_datagram else QPAttr(qp_access_flags=PEER_ACCESS)
        self.qp = QP(self.pd, init, attributes)
        return self.qp

    # -- addresses

    def bind_addr(self, source: AddrInfo | HostPort) -> None:
        """Set the local address, to listen at or to connect from."""
        self._demand(IdentifierState.IDLE)
        self._local = _address(source.src if isinstance(source, AddrInfo) else source)
        self.state = IdentifierState.BOUND

    def resolve_addr(self, target: AddrInfo | HostPort, timeout_ms: int = 2000) -> None:
        """Set the peer's address; ADDR_RESOLVED follows. There is nothing to wait for."""
        self._demand(IdentifierState.IDLE, IdentifierState.BOUND)
        if isinstance(target, AddrInfo):
            self._target, self._local = target.dst, target.src or self._local
        else:
            self._target = target
        if self._target is None:
            raise VerbsArgumentError(f"no address to connect to in {target}")
        _address(self._target)
        self._pass(IdentifierState.ADDR_RESOLVED, CMEventType.ADDR_RESOLVED)

    def resolve_route(self, timeout_ms: int = 2000) -> None:
        """Find the route to the peer; ROUTE_RESOLVED follows. There is nothing to wait for."""
        self._demand(IdentifierState.ADDR_RESOLVED)
        self._pass(IdentifierState.ROUTE_RESOLVED, CMEventType.ROUTE_RESOLVED)

    # -- the active side

    def connect(self, param: ConnParam | None = None, timeout_s: float | None = None) -> None:
        """Connect the queue pair, or look up the peer's datagram queue pair.

        Synchronous: wait for it. `timeout_s` bounds the tries beside their own limit. Raises
        VerbsArgumentError; CMError (its errno: ECONNREFUSED, ETIMEDOUT, ECONNABORTED).
        """
        self._connect(param, timeout_s)
        if self.is_synchronous:
            self._wait(CMEventType.ESTABLISHED)

    async def connect_async(
        self, param: ConnParam | None = None, timeout_s: float | None = None
    ) -> CMEvent:
        """Connect and wait in asyncio; return the event, with the peer's private data."""
        self._demand_own_events()
        self._connect(param, timeout_s)
        return await self._wait_async(CMEventType.ESTABLISHED)

    # -- the passive side

    def listen(self, backlog: int = BACKLOG) -> None:
        """Listen at the bound address, and at no other; `backlog` requests may wait.

        Raises VerbsArgumentError without an address; VerbsError: EADDRINUSE, EADDRNOTAVAIL, EACCES.
        """
        self._demand(IdentifierState.BOUND)
        assert self._local is not None, "a bound identifier has an address"
        with self._calling():
            self._listener = self.context.adapter.listen(
                self._local,
                self.port_space,
                backlog=backlog,
                on_event=weak_call(self, CMID._take_request),
            )
            self._local, self.state = self._listener.local, IdentifierState.LISTENING

    def get_request(self, timeout_s: float | None = None) -> "CMID":
        """Wait for a request; return a new identifier, with a queue pair if it has an init.

        Raises VerbsTimeoutError.
        """
        self._demand(IdentifierState.LISTENING)
        self._demand_own_events()
        return CMID(self._wait(CMEventType.CONNECT_REQUEST, timeout_s), self._init)

    async def get_request_async(self) -> "CMID":
        """Wait for a request in asyncio."""
        self._demand(IdentifierState.LISTENING)
        self._demand_own_events()
        return CMID(await self._wait_async(CMEventType.CONNECT_REQUEST), self._init)

    def accept(self, param: ConnParam | None = None) -> None:
        """Accept a request. Synchronous: wait until the peer has confirmed. Raises CMError."""
        self._accept(param)
        if self.is_synchronous:
            self._wait(CMEventType.ESTABLISHED)

    async def accept_async(self, param: ConnParam | None = None) -> CMEvent:
        """Accept a request and wait in asyncio until the peer has confirmed."""
        self._demand_own_events()
        self._accept(param)
        return await self._wait_async(CMEventType.ESTABLISHED)

    def reject(self, private_data: bytes = b"") -> None:
        """Reject a request. The identifier cannot be used again."""
        self._demand(IdentifierState.REQUESTED)
        parameters = self._parameters(ConnParam(private_data=private_data))
        with self._calling():
            assert self._connection is not None
            self._connection.reject(parameters.private_data)
            self.state = IdentifierState.OVER

    # -- both sides

    def establish(self) -> None:
        """Do nothing, unlike rdma_establish: the connection moves the queue pair to RTR and RTS."""

    def disconnect(self) -> None:
        """End the connection; what is posted is flushed. Synchronous: wait for the peer."""
        if self._leave() and self.is_synchronous:
            with suppress(TimeoutError):  # the peer is gone: the connection is over all the same
                self._wait(CMEventType.DISCONNECTED, LEAVE_S)

    async def disconnect_async(self) -> None:
        """End the connection and wait in asyncio for the peer."""
        self._demand_own_events()
        if self._leave():
            await self._wait_async(CMEventType.DISCONNECTED)

    # -- work

    def reg_msgs(self, length: int) -> MR:
        """Register memory for messages."""
        return MR(self.pd, length, AccessFlag.LOCAL_WRITE)

    def reg_read(self, length: int) -> MR:
        """Register memory that the peer may read."""
        return MR(self.pd, length, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ)

    def reg_write(self, length: int) -> MR:
        """Register memory that the peer may write."""
        return MR(self.pd, length, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE)

    def post_recv(self, mr: MR, length: int | None = None, offset: int = 0, wr_id: int = 0) -> None:
        """Post a receive into a piece of a region."""
        self._queue_pair().post_recv(RecvWR(wr_id, [_piece(mr, offset, length)]))

    def post_send(
        self,
        mr: MR,
        flags: SendFlag = SendFlag.SIGNALED,
        length: int | None = None,
        offset: int = 0,
        wr_id: int = 0,
    ) -> None:
        """Send a piece of a region as one message."""
        piece = _piece(mr, offset, length)
        self._queue_pair().post_send(SendWR(wr_id, WROpcode.SEND, [piece], flags))

    def post_ud_send(
        self,
        mr: MR,
        ah: AH | AddressVector,
        rqpn: int,
        flags: SendFlag = SendFlag.SIGNALED,
        length: int | None = None,
        *,
        qkey: int = UD_QKEY,
        wr_id: int = 0,
    ) -> None:
        """Send a piece of a region as a datagram."""
        request = SendWR(wr_id, WROpcode.SEND, [_piece(mr, 0, length)], flags)
        request.set_wr_ud(ah, rqpn, qkey)
        self._queue_pair().post_send(request)

    def post_read(
        self,
        mr: MR,
        length: int,
        remote_addr: int,
        rkey: int,
        flags: SendFlag = SendFlag.SIGNALED,
        offset: int = 0,
    ) -> None:
        """Read the peer's memory into a piece of a region."""
        piece = _piece(mr, offset, length)
        self._queue_pair().post_send(
            SendWR(0, WROpcode.RDMA_READ, [piece], flags, remote_addr=remote_addr, rkey=rkey)
        )

    def post_write(
        self,
        mr: MR,
        length: int,
        remote_addr: int,
        rkey: int,
        flags: SendFlag = SendFlag.SIGNALED,
        offset: int = 0,
    ) -> None:
        """Write a piece of a region into the peer's memory."""
        piece = _piece(mr, offset, length)
        self._queue_pair().post_send(
            SendWR(0, WROpcode.RDMA_WRITE, [piece], flags, remote_addr=remote_addr, rkey=rkey)
        )

    def get_send_comp(self, timeout_s: float | None = None) -> WC:
        """Wait for the next completion of a send. Raises VerbsTimeoutError."""
        queue = self._queue_pair().init_attr.scq
        assert queue is not None
        return queue.wait_for(1, timeout_s)[0]

    def get_recv_comp(self, timeout_s: float | None = None) -> WC:
        """Wait for the next completion of a receive. Raises VerbsTimeoutError."""
        queue = self._queue_pair().init_attr.rcq
        assert queue is not None
        return queue.wait_for(1, timeout_s)[0]

    # -- inside

    def _connect(self, param: ConnParam | None, timeout_s: float | None) -> None:
        self._demand(IdentifierState.ROUTE_RESOLVED)
        parameters = self._parameters(param)
        timeout_s = demand_waiting_time(timeout_s)
        assert self._target is not None, "a resolved route has a target"
        if self.port_space is PortSpace.TCP:
            self._queue_pair()
        with self._calling():
            self.state = IdentifierState.CONNECTING
            try:
                self._connection = self.context.adapter.connect(
                    None if self.qp is None else self.qp.engine,
                    self._target,
                    self.port_space,
                    parameters,
                    on_event=weak_call(self, CMID._take_event),
                    local=self._local,
                    timeout_ns=None if timeout_s is None else int(timeout_s * _NS),
                )
            except OSError:
                self.state = IdentifierState.ROUTE_RESOLVED
                raise

    def _accept(self, param: ConnParam | None) -> None:
        self._demand(IdentifierState.REQUESTED)
        parameters = self._parameters(param)
        qp = self._queue_pair()
        with self._calling():
            assert self._connection is not None, "a request has a connection"
            self.state = IdentifierState.ACCEPTED
            try:
                self._connection.accept(qp.engine, parameters)
            except OSError:
                self.state = IdentifierState.REQUESTED
                raise

    def _leave(self) -> bool:
        """End the connection; return whether DISCONNECTED follows."""
        self._demand(IdentifierState.CONNECTED, IdentifierState.OVER)
        with self._calling():
            if self.state is IdentifierState.OVER or self._connection is None:
                return False
            self._connection.disconnect()
            return True

    def _wait(self, wanted: CMEventType, timeout_s: float | None = None) -> CMEvent:
        return self._expect(CMEvent.of(self.event_channel.wait(timeout_s)), wanted)

    async def _wait_async(self, wanted: CMEventType) -> CMEvent:
        return self._expect(await self.event_channel.event(), wanted)

    def _expect(self, event: CMEvent, wanted: CMEventType) -> CMEvent:
        self.event = event
        if event.event_type is not wanted:
            raise CMError(event)
        return event

    def _demand(self, *states: IdentifierState) -> None:
        self._demand_open()
        if self.state not in states:
            wanted = " or ".join(state.name for state in states)
            raise VerbsArgumentError(f"identifier is {self.state.name}, not {wanted}")

    def _demand_own_events(self) -> None:
        """Raise VerbsArgumentError where a wait would take the events of other identifiers."""
        if not self.is_synchronous:
            raise VerbsArgumentError(
                "identifier of an event channel: call, then wait for the channel's event()"
            )

    def _queue_pair(self) -> QP:
        if self.qp is None:
            raise VerbsArgumentError("the identifier has no queue pair: create_qp first")
        return self.qp

    def _parameters(self, param: ConnParam | None) -> ConnectParameters:
        if param is not None:
            demand_kind(param, ConnParam, "param")
        return (param or ConnParam()).parameters(self.context.attributes.max_private_data)

    # -- events

    def _pass(self, state: IdentifierState, event_type: CMEventType) -> None:
        """Enter a state without waiting; a channel gets the event."""
        with self._calling():
            self.state = state
            if not self.is_synchronous:
                self.event_channel.post(EventRecord(event_type, self))

    def _take_event(self, told: VerbsConnectionEvent) -> None:
        """Handle an event of the connection. Lock held."""
        self.state = _STATE_AFTER.get(told.kind, self.state)
        event_type, status = TYPES[told.kind]
        self.event_channel.post(EventRecord(event_type, self, status, told))

    def _take_request(self, told: VerbsConnectionEvent) -> None:
        """Handle a request for the listener. Lock held. Other events concern an abandoned one."""
        if told.kind is ConnectionEventKind.REQUEST:
            self.event_channel.post(EventRecord(CMEventType.CONNECT_REQUEST, self, 0, told))

    # -- beginning and end

    def _begin(self, creator: AddrInfo | CMEventChannel | CMEvent | None) -> None:
        """Take the steps that the creator implies."""
        if isinstance(creator, CMEvent):
            if creator.event_type is not CMEventType.CONNECT_REQUEST or creator.connection is None:
                raise VerbsArgumentError(f"{creator} is no request for a connection")
            with self._lock:
                self._connection = creator.connection
                self._connection.on_event = weak_call(self, CMID._take_event)
                self.state = IdentifierState.REQUESTED
        elif isinstance(creator, AddrInfo):
            self.port_space = creator.port_space
            if creator.is_passive:
                self.bind_addr(creator)
                return  # the queue pairs are those of its requests
            self.resolve_addr(creator)
            self.resolve_route()
        if self._init is not None:
            self.create_qp(self._init)

    def _close(self, *, forced: bool) -> None:
        super()._close(forced=forced)
        own, self._own_channel = self._own_channel, None
        if own is not None and not forced:
            # Without the lock: it may close the device. Forced, its parents see to that.
            own.close()

    def _release(self, *, forced: bool) -> None:
        if self._listener is not None:
            self._listener.close()
        for record in self.event_channel.forget(self):
            if record.event_type is CMEventType.CONNECT_REQUEST and record.told is not None:
                record.told.connection.close()  # it stays unanswered
        if self._connection is not None:
            self._connection.close()
        if self.qp is not None:
            self.qp._close(forced=True)


def _piece(mr: MR, offset: int, length: int | None) -> SGE:
    demand_kind(mr, MR, "mr")
    return mr.sge(offset, length)


def _address(given: HostPort | None) -> HostPort:
    """Return a host and port. Raises TypeError: it is none."""
    match given:
        case (str(), int()):
            return given
    raise TypeError(f"address must be AddrInfo or a pair (host, port), not {given!r}")
