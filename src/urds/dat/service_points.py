"""Service points, which listen, and the connection requests that reach them.

A public service point listens at a connection qualifier until it is freed, a reserved one for one
request, which is for one endpoint. A request is made when a peer asks, and gone when it is
accepted, rejected or passed on. Source: docs/reference/dat.md 3, 4.3, 8, 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from urds.dat.arguments import port_of
from urds.dat.constants import EpState, EventNumber, HandleType, PspFlag
from urds.dat.endpoint import Endpoint
from urds.dat.ep_state import Input, next_state
from urds.dat.errors import bad_argument, dat_error, from_os_error
from urds.dat.evd import Event, EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.handles import DatObject, live, while_live
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.providers.base import ConnectionEventKind, PortSpace

if TYPE_CHECKING:
    from urds.verbs.providers.base import VerbsConnection, VerbsConnectionEvent


@dataclass(frozen=True, slots=True)
class PspParam:
    """What a public service point is. Mask bits: `PspField`."""

    ia_handle: DatObject
    conn_qual: int
    evd_handle: EventDispatcher
    psp_flags: PspFlag


class PublicServicePoint(DatObject, kind=HandleType.PSP):
    """A listener. Requests that were queued stay valid when it is freed."""

    def __init__(
        self,
        ia: DatObject,
        conn_qual: int | None,
        evd: EventDispatcher,
        *,
        provider_ep: bool = False,
    ) -> None:
        """Listen at `conn_qual`, at a free one with `None`; as many may wait as `evd` is long.

        With `provider_ep` each request brings an endpoint that has neither zone nor dispatchers.
        Raises DatConnQualInUse, DatConnQualUnavailable, DatInvalidHandle, DatInvalidParameter.
        """
        with ia.lock:
            ia.demand_live()
            live(evd, EventDispatcher, Role.CR.subtype)
            ia.device.demand_own(evd)
            port = 0 if conn_qual is None else port_of(conn_qual, argument=2)
            super().__init__(ia)
            self.evd = evd
            self.flags = PspFlag.PROVIDER if provider_ep else PspFlag.CONSUMER
            evd.attach(Role.CR, self)
            try:
                self._listener = ia.device.adapter.listen(
                    (ia.device.address, port),
                    PortSpace.TCP,
                    backlog=evd.qlen,
                    on_event=self._handle_event,
                )
            except OSError as error:
                evd.detach(Role.CR, self)
                if conn_qual is None:
                    kind = ReturnType.CONN_QUAL_UNAVAILABLE
                    raise dat_error(kind, detail=str(error)) from error
                raise from_os_error(error) from error
            self.conn_qual = self._listener.local[1] if conn_qual is None else conn_qual
            self.device.takers[self.conn_qual] = self.take
            self.device.add(self)

    @while_live
    def query(self) -> PspParam:
        """Return what the service point is."""
        return PspParam(self.ia, self.conn_qual, self.evd, self.flags)

    def take(self, connection: VerbsConnection, private_data: bytes) -> bool:
        """Queue a request; False if the dispatcher is full. Lock held."""
        ep = None
        if self.flags is PspFlag.PROVIDER:
            ep = Endpoint(self.ia, None)
            ep.state = EpState.TENTATIVE_CONNECTION_PENDING
        request = ConnectionRequest(self.ia, connection, private_data, ep)
        return request.announce(self.evd, self, self.conn_qual)

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.kind is not ConnectionEventKind.REQUEST:
            return
        if not self.take(event.connection, event.parameters.private_data):
            event.connection.close()

    def _dispose(self) -> None:
        del self.device.takers[self.conn_qual]
        self._listener.close()


@dataclass(frozen=True, slots=True)
class RspParam:
    """What a reserved service point is. Mask bits: `RspField`."""

    ia_handle: DatObject
    conn_qual: int
    evd_handle: EventDispatcher
    ep_handle: Endpoint


class ReservedServicePoint(DatObject, kind=HandleType.RSP):
    """A listener that its first request ends; freed before, its endpoint is unconnected again."""

    def __init__(self, ia: DatObject, conn_qual: int, ep: Endpoint, evd: EventDispatcher) -> None:
        """Listen at `conn_qual` for `ep`, which must be UNCONNECTED.

        Raises DatConnQualInUse, DatInvalidHandle, DatInvalidParameter, DatInvalidState.
        """
        with ia.lock:
            ia.demand_live()
            port = port_of(conn_qual, argument=2)
            live(ep, Endpoint)
            live(evd, EventDispatcher, Role.CR.subtype)
            ia.device.demand_own(ep, evd)
            reserved = next_state(ep.state, Input.RESERVE)
            super().__init__(ia)
            self.conn_qual, self.ep, self.evd = conn_qual, ep, evd
            self._is_met = False
            evd.attach(Role.CR, self)
            try:
                self._listener = ia.device.adapter.listen(
                    (ia.device.address, port), PortSpace.TCP, backlog=1, on_event=self._handle_event
                )
            except OSError as error:
                evd.detach(Role.CR, self)
                raise from_os_error(error) from error
            ep.state = reserved
            self.hold(ep)
            self.device.add(self)

    @while_live
    def query(self) -> RspParam:
        """Return what the service point is."""
        return RspParam(self.ia, self.conn_qual, self.evd, self.ep)

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.kind is not ConnectionEventKind.REQUEST:
            return
        if not self.live:
            event.connection.close()
            return
        connection = event.connection
        self.ep.connection.meet(Input.REQUEST, connection)
        data = event.parameters.private_data
        request = ConnectionRequest(self.ia, connection, data, self.ep)
        if not request.announce(self.evd, None, self.conn_qual):
            connection.close()
        self._is_met = True
        self.end()

    def _dispose(self) -> None:
        if self.ep.live and self.ep.state is EpState.RESERVED:
            self.ep.move(Input.UNRESERVE)
        if self._is_met:
            self.device.adapter.call_soon(self._listener.close)  # it is the one that calls
        else:
            self._listener.close()


@dataclass(frozen=True, slots=True)
class CrParam:
    """What a connection request says. Mask bits: `CrField`."""

    remote_ia_address_ptr: str
    remote_port_qual: int
    private_data_size: int
    private_data: bytes
    local_ep_handle: Endpoint | None


@dataclass(frozen=True, slots=True)
class ConnectionRequestEvent(Event):
    """A peer asks for a connection. `sp_handle` is `None` if a reserved service point was met."""

    sp_handle: DatObject | None
    local_ia_address_ptr: str
    conn_qual: int
    cr_handle: ConnectionRequest

    @property
    def cr(self) -> ConnectionRequest:
        """Return the request: query it, then accept or reject it."""
        return self.cr_handle


class ConnectionRequest(DatObject, kind=HandleType.CR):
    """One pending request. A peer that gives up meanwhile is told of after the accept."""

    def __init__(
        self,
        ia: DatObject,
        connection: VerbsConnection,
        private_data: bytes,
        local_ep: Endpoint | None = None,
    ) -> None:
        super().__init__(ia)
        self.local_ep = local_ep  # of a reserved service point, or made by the provider
        self.private_data = private_data
        self.remote_address, self.remote_port_qual = connection.peer[:2]
        self._connection: VerbsConnection | None = connection
        self._is_gone = False
        connection.on_event = self._note_end
        self.device.add(self)

    @while_live
    def query(self) -> CrParam:
        """Return what the request says."""
        return CrParam(
            remote_ia_address_ptr=self.remote_address,
            remote_port_qual=self.remote_port_qual,
            private_data_size=len(self.private_data),
            private_data=self.private_data,
            local_ep_handle=self.local_ep,
        )

    @while_live
    def accept(self, ep: Endpoint | None = None, private_data: bytes = b"") -> None:
        """Accept with an unconnected endpoint, or with `None` if the request names its own.

        An event on the endpoint's connect dispatcher tells how it went. Raises DatInvalidHandle:
        the wrong endpoint, or one without zone and connect dispatcher. DatInvalidParameter:
        private data too long. Then nothing has changed.
        """
        chosen = self._choose(ep)
        self.device.demand_private_data(private_data, argument=3)
        if chosen.pz is None or chosen.connect_evd is None:
            raise _bad_endpoint(chosen, "it lacks a zone or a connect dispatcher")
        connection, state = self._connection, chosen.state
        assert connection is not None, "a live request has its connection"
        chosen.connection.meet(Input.ACCEPT, connection)
        try:
            if not self._is_gone:
                chosen.connection.accept(connection, bytes(private_data))
        except OSError as error:
            chosen.undo_accept(state)
            raise from_os_error(error) from error
        if self._is_gone:
            chosen.connection.break_soon()
        self._connection = self.local_ep = None
        self.end()

    @while_live
    def reject(self) -> None:
        """Reject the request; the peer learns that."""
        connection, self._connection = self._connection, None
        if connection is not None and not self._is_gone:
            connection.reject()
        self._return_endpoint()
        self.end()

    @while_live
    def handoff(self, conn_qual: int) -> None:
        """Pass the request to the public service point at another qualifier of this adapter.

        Raises DatInvalidParameter: there is none, or its dispatcher is full.
        """
        port_of(conn_qual, argument=2)
        take = self.device.takers.get(conn_qual)
        if take is None:
            raise bad_argument(2, f"no service point at {conn_qual}")
        connection = self._connection
        assert connection is not None, "a live request has its connection"
        if not take(connection, self.private_data):
            connection.on_event = self._note_end
            raise bad_argument(2, f"the dispatcher of the service point at {conn_qual} is full")
        self._connection = None
        self._return_endpoint()
        self.end()

    def announce(self, evd: EventDispatcher, sp: DatObject | None, conn_qual: int) -> bool:
        """Queue the event of the request; False, and nothing is left of it, if it was lost."""
        number, address = EventNumber.CONNECTION_REQUEST, self.device.address
        queued = evd.queue(ConnectionRequestEvent(number, evd, sp, address, conn_qual, self))
        if not queued:
            self._connection = None  # which stays
            self._return_endpoint()
            self.end()
        return queued

    # -- inside

    def _choose(self, ep: Endpoint | None) -> Endpoint:
        if self.local_ep is not None:
            if ep is not None:
                raise _bad_endpoint(ep, "the request names its own endpoint")
            return self.local_ep
        chosen = live(ep, Endpoint)
        self.device.demand_own(chosen)
        if chosen.state is not EpState.UNCONNECTED:
            raise _bad_endpoint(chosen, f"it is {chosen.state.name}")
        return chosen

    def _return_endpoint(self) -> None:
        ep, self.local_ep = self.local_ep, None
        if ep is None or not ep.live:
            return
        if ep.state is EpState.TENTATIVE_CONNECTION_PENDING:
            ep.end()
        else:
            ep.move(Input.REJECT)

    def _note_end(self, _event: VerbsConnectionEvent) -> None:
        self._is_gone = True

    def _dispose(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._return_endpoint()


def _bad_endpoint(ep: object, detail: str) -> Exception:
    return dat_error(ReturnType.INVALID_HANDLE, Subtype.INVALID_HANDLE_EP, f"{ep!r}: {detail}")
