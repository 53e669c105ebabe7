"""The state of a connection identifier: its objects and addresses; `cmid` has the calls."""

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from urds.common.types import HostPort
from urds.verbs.cm_events import (
    TYPES,
    CMError,
    CMEvent,
    CMEventChannel,
    CMEventType,
    EventRecord,
)
from urds.verbs.cm_parameters import UD_QKEY, AddrInfo, ConnParam
from urds.verbs.context import PD, Context, weak_call
from urds.verbs.cq import CQ
from urds.verbs.engine.numbers import AccessFlag, QPType
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.errors import VerbsArgumentError
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    Listener,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)
from urds.verbs.qp import QP, QPInitAttr
from urds.verbs.resource import Resource

if TYPE_CHECKING:
    from urds.verbs.cmid import CMID

_NS: Final = 1_000_000_000
_ALL_ACCESS: Final = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)


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


class Identifier(Resource):
    """One side of a connection, or a listener: its objects, addresses and state."""

    context: Context
    port_space: PortSpace

    close_rank: ClassVar[int] = -2

    def __init__(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent | None = None,
        qp_init_attr: QPInitAttr | None = None,
        pd: PD | None = None,
        port_space: int = PortSpace.TCP,
        listen_id: "Identifier | None" = None,
        *,
        context: Context | None = None,
    ) -> None:
        """Make an identifier. Raises VerbsArgumentError, VerbsError."""
        if isinstance(creator, CMEvent):
            listen_id = listen_id or creator.id
        if listen_id is not None:
            context, port_space, pd = listen_id.context, listen_id.port_space, pd or listen_id.pd
        elif context is None and pd is not None:
            context = pd.context
        self.is_synchronous = True
        self._own_channel: CMEventChannel | None = None
        self.event_channel = self._channel_for(creator, listen_id, context)
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
        attributes = QPAttr(qkey=UD_QKEY) if is_datagram else QPAttr(qp_access_flags=_ALL_ACCESS)
        self.qp = QP(self.pd, init, attributes)
        return self.qp

    # -- addresses

    def bind_addr(self, source: AddrInfo | HostPort) -> None:
        """Set the local address, to listen at or to connect from."""
        self._demand(IdentifierState.IDLE)
        self._local = source.src if isinstance(source, AddrInfo) else source
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
        self._pass(IdentifierState.ADDR_RESOLVED, CMEventType.ADDR_RESOLVED)

    def resolve_route(self, timeout_ms: int = 2000) -> None:
        """Find the route to the peer; ROUTE_RESOLVED follows. There is nothing to wait for."""
        self._demand(IdentifierState.ADDR_RESOLVED)
        self._pass(IdentifierState.ROUTE_RESOLVED, CMEventType.ROUTE_RESOLVED)

    # -- for the calls above

    def _connect(self, param: ConnParam | None, timeout_s: float | None) -> None:
        self._demand(IdentifierState.ROUTE_RESOLVED)
        parameters = self._parameters(param)
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
                    on_event=weak_call(self, Identifier._take_event),
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
        return (param or ConnParam()).parameters(self.context.attributes.max_private_data)

    # -- events

    def _pass(self, state: IdentifierState, event_type: CMEventType) -> None:
        """Enter a state without waiting; a channel gets the event."""
        with self._calling():
            self.state = state
            if not self.is_synchronous:
                self._post(EventRecord(event_type, self._as_cmid()))

    def _take_event(self, told: VerbsConnectionEvent) -> None:
        """Handle an event of the connection. Lock held."""
        self.state = _STATE_AFTER.get(told.kind, self.state)
        event_type, status = TYPES[told.kind]
        self._post(EventRecord(event_type, self._as_cmid(), status, told))

    def _take_request(self, told: VerbsConnectionEvent) -> None:
        """Handle a request for the listener. Lock held. Other events concern an abandoned one."""
        if told.kind is ConnectionEventKind.REQUEST:
            self._post(EventRecord(CMEventType.CONNECT_REQUEST, self._as_cmid(), 0, told))

    def _post(self, record: EventRecord) -> None:
        self.event_channel.post(record)

    def _as_cmid(self) -> "CMID":
        raise NotImplementedError

    # -- beginning and end

    def _channel_for(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent | None,
        listen_id: "Identifier | None",
        context: Context | None,
    ) -> CMEventChannel:
        """Return the channel of the creator or listener; without one, a private one to wait at."""
        if isinstance(creator, CMEventChannel):
            self.is_synchronous = False
            return creator
        if listen_id is not None and not listen_id.is_synchronous:
            self.is_synchronous = False
            return listen_id.event_channel
        self._own_channel = CMEventChannel(context)
        return self._own_channel

    def _begin(self, creator: AddrInfo | CMEventChannel | CMEvent | None) -> None:
        """Take the steps that the creator implies."""
        if isinstance(creator, CMEvent):
            self._adopt(creator)
        elif isinstance(creator, AddrInfo):
            self.port_space = creator.port_space
            if creator.is_passive:
                self.bind_addr(creator)
                return  # the queue pairs are those of its requests
            self.resolve_addr(creator)
            self.resolve_route()
        if self._init is not None:
            self.create_qp(self._init)

    def _adopt(self, event: CMEvent) -> None:
        if event.event_type is not CMEventType.CONNECT_REQUEST or event.connection is None:
            raise VerbsArgumentError(f"{event} is no request for a connection")
        with self._lock:
            self._connection = event.connection
            self._connection.on_event = weak_call(self, Identifier._take_event)
            self.state = IdentifierState.REQUESTED

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
