"""Public service points: they listen at a connection qualifier until they are freed.

Source: docs/reference/dat.md 3, 8, 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from urds.dat.arguments import port_of
from urds.dat.constants import EpState, HandleType, PspFlag
from urds.dat.endpoint import Endpoint
from urds.dat.errors import dat_error, from_os_error
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.handles import DatObject, IaHandle, live
from urds.dat.returns import ReturnType, Subtype
from urds.dat.service_points import ConnectionRequest
from urds.verbs.providers.base import ConnectionEventKind, PortSpace

if TYPE_CHECKING:
    from urds.verbs.providers.base import VerbsConnection, VerbsConnectionEvent


@dataclass(frozen=True, slots=True)
class PspParam:
    """What a public service point is. Mask bits: `PspField`."""

    ia_handle: IaHandle
    conn_qual: int
    evd_handle: EventDispatcher
    psp_flags: PspFlag


class PublicServicePoint(DatObject):
    """A listener. Requests that were queued stay valid when it is freed."""

    handle_type: ClassVar[HandleType] = HandleType.PSP
    invalid_subtype: ClassVar[Subtype] = Subtype.INVALID_HANDLE_PSP

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
            self.enlist()

    def query(self) -> PspParam:
        """Return what the service point is."""
        with self.lock:
            self.demand_live()
            return PspParam(self.ia, self.conn_qual, self.evd, self.flags)

    def take(self, connection: VerbsConnection, private_data: bytes) -> bool:
        """Queue a request; False if the dispatcher is full. Lock held."""
        ep = self._tentative_ep() if self.flags is PspFlag.PROVIDER else None
        request = ConnectionRequest(self.ia, connection, private_data, ep)
        return request.announce(self.evd, self, self.conn_qual)

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.kind is not ConnectionEventKind.REQUEST:
            return
        if not self.take(event.connection, event.parameters.private_data):
            event.connection.close()

    def _tentative_ep(self) -> Endpoint:
        ep = Endpoint(self.ia, None)
        ep.state = EpState.TENTATIVE_CONNECTION_PENDING
        return ep

    def _dispose(self) -> None:
        del self.device.takers[self.conn_qual]
        self._listener.close()
