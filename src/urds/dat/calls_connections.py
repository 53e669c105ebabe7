"""Calls that make and end connections. Source: dat.md sections 8, 9 and 20.1."""

from urds.dat.addresses import IaAddress
from urds.dat.calling import choice, no_output, octets_of, one_output, queried, two_outputs
from urds.dat.cr import ConnectionRequest
from urds.dat.ep import Endpoint
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.handles import live
from urds.dat.ia import InterfaceAdapter
from urds.dat.masks import CrField, PspField, RspField
from urds.dat.numbers import CloseFlag, PspFlag
from urds.dat.psp import PublicServicePoint
from urds.dat.records import CrParam, PspParam, RspParam
from urds.dat.returns import DatReturn
from urds.dat.rsp import ReservedServicePoint
from urds.dat.timeouts import ns_of_us

__all__ = [
    "dat_cr_accept", "dat_cr_handoff", "dat_cr_query", "dat_cr_reject", "dat_ep_connect",
    "dat_ep_disconnect", "dat_ep_dup_connect", "dat_psp_create", "dat_psp_create_any",
    "dat_psp_free", "dat_psp_query", "dat_rsp_create", "dat_rsp_free", "dat_rsp_query",
]  # fmt: skip

_NS_PER_S = 1e9


def dat_psp_create(
    ia: object, conn_qual: int, evd: object, psp_flags: int
) -> tuple[DatReturn, PublicServicePoint | None]:
    """Listen at a connection qualifier; `ret, psp`."""

    def call() -> PublicServicePoint:
        return _listen(ia, conn_qual, evd, choice(PspFlag, psp_flags, argument=4))

    return one_output(call)


def dat_psp_create_any(
    ia: object, evd: object, psp_flags: int
) -> tuple[DatReturn, int | None, PublicServicePoint | None]:
    """Listen at a qualifier that is free; `ret, conn_qual, psp`."""

    def call() -> tuple[int, PublicServicePoint]:
        psp = _listen(ia, None, evd, choice(PspFlag, psp_flags, argument=4))
        return psp.conn_qual, psp

    return two_outputs(call)


def dat_psp_query(psp: object, mask: int) -> tuple[DatReturn, PspParam | None]:
    """Ask what a public service point is; `ret, param`."""
    return queried(psp, PublicServicePoint, PublicServicePoint.query, mask, PspField.ALL)


def dat_psp_free(psp: object) -> DatReturn:
    """Stop listening; requests that are queued stay valid."""
    return no_output(lambda: live(psp, PublicServicePoint).free())


def dat_rsp_create(
    ia: object, conn_qual: int, ep: object, evd: object
) -> tuple[DatReturn, ReservedServicePoint | None]:
    """Listen once for an endpoint; `ret, rsp`."""

    def call() -> ReservedServicePoint:
        adapter, endpoint = live(ia, InterfaceAdapter), live(ep, Endpoint)
        dispatcher = live(evd, EventDispatcher, Role.CR.subtype)
        return ReservedServicePoint(adapter, conn_qual, endpoint, dispatcher)

    return one_output(call)


def dat_rsp_query(rsp: object, mask: int) -> tuple[DatReturn, RspParam | None]:
    """Ask what a reserved service point is; `ret, param`."""
    return queried(rsp, ReservedServicePoint, ReservedServicePoint.query, mask, RspField.ALL)


def dat_rsp_free(rsp: object) -> DatReturn:
    """Stop listening; the endpoint is unconnected again."""
    return no_output(lambda: live(rsp, ReservedServicePoint).free())


def dat_cr_query(cr: object, mask: int) -> tuple[DatReturn, CrParam | None]:
    """Ask what a connection request says; `ret, param`."""
    return queried(cr, ConnectionRequest, ConnectionRequest.query, mask, CrField.ALL)


def dat_cr_accept(
    cr: object, ep: object, private_data_size: int, private_data: bytes | None
) -> DatReturn:
    """Accept a request with an endpoint, or `None` if it names its own; consumes the request."""

    def call() -> None:
        found = live(cr, ConnectionRequest)
        endpoint = None if ep is None else live(ep, Endpoint)
        found.accept(endpoint, octets_of(private_data_size, private_data, argument=3))

    return no_output(call)


def dat_cr_reject(cr: object) -> DatReturn:
    """Reject a request; consumes it."""
    return no_output(lambda: live(cr, ConnectionRequest).reject())


def dat_cr_handoff(cr: object, conn_qual: int) -> DatReturn:
    """Pass a request to another service point of the adapter; consumes it."""
    return no_output(lambda: live(cr, ConnectionRequest).handoff(conn_qual))


def dat_ep_connect(
    ep: object,
    remote_ia_address: IaAddress,
    remote_conn_qual: int,
    timeout_us: int,
    private_data_size: int,
    private_data: bytes | None,
    quality_of_service: int,
    connect_flags: int,
) -> DatReturn:
    """Ask for a connection; an event on the connect dispatcher tells how it went."""

    def call() -> None:
        live(ep, Endpoint).connect(
            remote_ia_address,
            remote_conn_qual,
            timeout_s=_seconds(timeout_us, argument=4),
            private_data=octets_of(private_data_size, private_data, argument=5),
            qos=quality_of_service,
            flags=connect_flags,
        )

    return no_output(call)


def dat_ep_dup_connect(
    ep: object,
    dup_ep: object,
    timeout_us: int,
    private_data_size: int,
    private_data: bytes | None,
    quality_of_service: int,
) -> DatReturn:
    """Ask for a connection to where another endpoint is connected."""

    def call() -> None:
        live(ep, Endpoint).dup_connect(
            live(dup_ep, Endpoint),
            timeout_s=_seconds(timeout_us, argument=3),
            private_data=octets_of(private_data_size, private_data, argument=4),
            qos=quality_of_service,
        )

    return no_output(call)


def dat_ep_disconnect(ep: object, close_flags: int) -> DatReturn:
    """End a connection, or an attempt at one."""

    def call() -> None:
        found = live(ep, Endpoint)
        flag = choice(CloseFlag, close_flags, argument=2)
        found.disconnect(graceful=flag is CloseFlag.GRACEFUL)

    return no_output(call)


def _listen(ia: object, conn_qual: int | None, evd: object, flag: PspFlag) -> PublicServicePoint:
    adapter = live(ia, InterfaceAdapter)
    dispatcher = live(evd, EventDispatcher, Role.CR.subtype)
    return adapter.listen(conn_qual, evd=dispatcher, provider_ep=flag is PspFlag.PROVIDER)


def _seconds(timeout_us: int, *, argument: int) -> float | None:
    timeout_ns = ns_of_us(timeout_us, argument=argument)
    return None if timeout_ns is None else timeout_ns / _NS_PER_S
