"""Reserved service points: they listen for one request, which is for one endpoint.

Source: docs/reference/dat.md 3, 4.3, 8, 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from urds.dat.arguments import port_of
from urds.dat.constants import EpState, HandleType
from urds.dat.endpoint import Endpoint
from urds.dat.ep_state import Input, next_state
from urds.dat.errors import from_os_error
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.handles import DatObject, IaHandle, live
from urds.dat.returns import Subtype
from urds.dat.service_points import ConnectionRequest
from urds.verbs.providers.base import ConnectionEventKind, PortSpace

if TYPE_CHECKING:
    from urds.verbs.providers.base import VerbsConnectionEvent


@dataclass(frozen=True, slots=True)
class RspParam:
    """What a reserved service point is. Mask bits: `RspField`."""

    ia_handle: IaHandle
    conn_qual: int
    evd_handle: EventDispatcher
    ep_handle: Endpoint


class ReservedServicePoint(DatObject):
    """A listener that its first request ends; freed before, its endpoint is unconnected again."""

    handle_type: ClassVar[HandleType] = HandleType.RSP
    invalid_subtype: ClassVar[Subtype] = Subtype.INVALID_HANDLE_RSP

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
            self.enlist()

    def query(self) -> RspParam:
        """Return what the service point is."""
        with self.lock:
            self.demand_live()
            return RspParam(self.ia, self.conn_qual, self.evd, self.ep)

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.kind is not ConnectionEventKind.REQUEST:
            return
        if not self.live:
            event.connection.close()
            return
        connection = event.connection
        self.ep.meet(Input.REQUEST, connection.peer[:2], connection.local[:2])
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
