"""Public service points: they listen at a connection qualifier until they are freed.

Source: dat.md sections 3, 8 and 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from urds.dat.addresses import port_of
from urds.dat.errors import dat_error, from_os_error
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.handles import DatObject, live
from urds.dat.numbers import EpState, HandleType, PspFlag
from urds.dat.records import PspParam
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.providers.base import ConnectionEventKind, PortSpace

if TYPE_CHECKING:
    from urds.dat.ep import Endpoint
    from urds.dat.ia import InterfaceAdapter
    from urds.verbs.providers.base import Connection, ConnectionEvent


class PublicServicePoint(DatObject):
    """A listener. Requests that were queued stay valid when it is freed."""

    handle_type: ClassVar[HandleType] = HandleType.PSP
    invalid_subtype: ClassVar[Subtype] = Subtype.INVALID_HANDLE_PSP

    def __init__(
        self,
        ia: InterfaceAdapter,
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
            ia.demand_own(evd)
            port = 0 if conn_qual is None else port_of(conn_qual, argument=2)
            super().__init__(ia)
            self.evd = evd
            self.flags = PspFlag.PROVIDER if provider_ep else PspFlag.CONSUMER
            evd.attach(Role.CR, self)
            try:
                self._listener = ia.adapter.listen(
                    (ia.address, port),
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
            self.enlist()

    def query(self) -> PspParam:
        """Return what the service point is."""
        with self.lock:
            self.demand_live()
            return PspParam(self.ia, self.conn_qual, self.evd, self.flags)

    def take(self, connection: Connection, private_data: bytes) -> bool:
        """Queue a request; False if the dispatcher is full. Lock held."""
        from urds.dat.cr import ConnectionRequest

        ep = self._tentative_ep() if self.flags is PspFlag.PROVIDER else None
        request = ConnectionRequest(self.ia, connection, private_data, ep)
        queued = self.evd.post_request(self, self.ia.address, self.conn_qual, request)
        if not queued:
            request.withdraw()
        return queued

    def _handle_event(self, event: ConnectionEvent) -> None:
        if event.kind is not ConnectionEventKind.REQUEST:
            return
        if not self.take(event.connection, event.parameters.private_data):
            event.connection.close()

    def _tentative_ep(self) -> Endpoint:
        from urds.dat.ep import Endpoint

        ep = Endpoint(self.ia, None)
        ep.state = EpState.TENTATIVE_CONNECTION_PENDING
        return ep

    def _dispose(self) -> None:
        self._listener.close()
