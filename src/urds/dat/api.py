"""Calls for adapters, endpoints and connections, with their C names; the others: `api_resources`.

Inputs stand in the order of C without the output pointers; handles are the objects, `None` is
DAT_HANDLE_NULL. No call raises for what DAT has a return value for. A call without outputs returns
`ret`; one with outputs returns `(ret, first, second, ...)` in the order of the C call, each `None`
when `ret` is not SUCCESS. Source: docs/reference/dat.md 4, 8, 9, 10, 13, 14, 20.1.
"""

from collections.abc import Sequence
from typing import Any, Final

from urds.dat.arguments import IaAddress
from urds.dat.calling import (
    SUCCESS,
    bytes_of,
    choice,
    no_output,
    one_output,
    or_unknown,
    queried,
    segments_of,
    three_outputs,
    two_outputs,
)
from urds.dat.constants import (
    DAT_THREADSAFE,
    DAT_VERSION_MAJOR,
    DAT_VERSION_MINOR,
    DAT_WATERMARK_INFINITE,
    AsyncEvdHandle,
    CloseFlag,
    CrField,
    EpField,
    EpState,
    HandleType,
    PspField,
    PspFlag,
    RspField,
)
from urds.dat.endpoint import Endpoint, EpParam
from urds.dat.errors import DatError, bad_argument, dat_error, demand_bits
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.handles import DatObject, live
from urds.dat.ia import InterfaceAdapter, open_ia
from urds.dat.psp import PspParam, PublicServicePoint
from urds.dat.pz import ProtectionZone
from urds.dat.records import (
    EpAttr,
    IaAttr,
    LmrTriplet,
    ProviderAttr,
    ProviderInfo,
    RmrTriplet,
)
from urds.dat.registry import REGISTRY, Provider
from urds.dat.returns import DatReturn, ReturnType, Subtype, names_of
from urds.dat.rsp import ReservedServicePoint, RspParam
from urds.dat.service_points import ConnectionRequest, CrParam
from urds.dat.srq import SharedReceiveQueue
from urds.dat.timeouts import ns_of_us

# -- adapters, handles, the registry and return values


AsyncEvd = EventDispatcher | AsyncEvdHandle


def dat_ia_open(
    name: str, async_evd_min_qlen: int, async_evd_handle: AsyncEvd | None
) -> tuple[DatReturn, AsyncEvd | None, InterfaceAdapter | None]:
    """Open an adapter; `ret, async_evd, ia`. Without a dispatcher one is made."""
    return dat_ia_openv(
        name,
        async_evd_min_qlen,
        async_evd_handle,
        DAT_VERSION_MAJOR,
        DAT_VERSION_MINOR,
        DAT_THREADSAFE,
    )


@two_outputs
def dat_ia_openv(
    name: str,
    async_evd_min_qlen: int,
    async_evd_handle: AsyncEvd | None,
    dat_major: int,
    dat_minor: int,
    thread_safety: bool,
) -> tuple[AsyncEvd, InterfaceAdapter]:
    """Open an adapter of this version and thread safety; `ret, async_evd, ia`."""
    ia = open_ia(
        name,
        async_evd_min_qlen,
        async_evd_handle,
        major=dat_major,
        minor=dat_minor,
        is_thread_safe=thread_safety,
    )
    return ia.async_evd, ia


@three_outputs
def dat_ia_query(
    ia: object, ia_attr_mask: int, provider_attr_mask: int
) -> tuple[AsyncEvd, IaAttr, ProviderAttr]:
    """Ask for attributes; `ret, async_evd, ia_attr, provider_attr`, all fields filled."""
    found = live(ia, InterfaceAdapter)
    return (found.async_evd, *found.query(ia_attr_mask, provider_attr_mask))


@no_output
def dat_ia_close(ia: object, close_flags: int) -> None:
    """Close an adapter; DAT_CLOSE_ABRUPT_FLAG frees all of its objects."""
    found = live(ia, InterfaceAdapter)
    found.close(choice(CloseFlag, close_flags, argument=2) is CloseFlag.GRACEFUL)


@no_output
def dat_set_consumer_context(handle: object, context: Any) -> None:
    """Keep a 64-bit number or an object of the program beside a handle."""
    live(handle, DatObject, Subtype.NO_SUBTYPE).context = context


@one_output
def dat_get_consumer_context(handle: object) -> Any:
    """Return what the program keeps beside a handle, `None` if nothing; `ret, context`."""
    return live(handle, DatObject, Subtype.NO_SUBTYPE).context


@one_output
def dat_get_handle_type(handle: object) -> HandleType:
    """Return what kind of object a handle is; `ret, type`."""
    return live(handle, DatObject, Subtype.NO_SUBTYPE).handle_type


def dat_registry_list_providers(
    max_to_return: int,
) -> tuple[DatReturn, int | None, list[ProviderInfo] | None]:
    """List the adapters that can be opened; `ret, count, list`.

    More than `max_to_return` are INVALID_PARAMETER, and the count tells how many there are.
    """
    try:
        found = REGISTRY.list_providers()
        if not max_to_return or max_to_return < len(found):
            ret = DatReturn.error(ReturnType.INVALID_PARAMETER, Subtype.INVALID_ARG1)
            return ret, len(found), None
    except DatError as error:
        return error.ret, None, None
    return SUCCESS, len(found), found


@no_output
def dat_registry_add_provider(provider: object, info: object) -> None:
    """Add a `Provider` under a name and version; the call of a provider's library."""
    if not isinstance(provider, Provider):
        raise bad_argument(1, f"{provider!r} is no provider")
    if not isinstance(info, ProviderInfo):
        raise bad_argument(2, f"{info!r} names no provider")
    REGISTRY.add(provider, info)


@no_output
def dat_registry_remove_provider(provider: object, info: object) -> None:
    """Remove a provider; `provider` is not looked at, `info` names it."""
    if not isinstance(info, ProviderInfo):
        raise bad_argument(2, f"{info!r} names no provider")
    REGISTRY.remove(info)


@two_outputs
def dat_strerror(value: int) -> tuple[str, str]:
    """Return the names of a return value's type and subtype; `ret, major, minor`."""
    try:
        return names_of(value)
    except LookupError as error:
        raise dat_error(ReturnType.INVALID_PARAMETER, detail=str(error)) from error


# -- service points, requests and connections


_NS_PER_S = 1e9


@one_output
def dat_psp_create(ia: object, conn_qual: int, evd: object, psp_flags: int) -> PublicServicePoint:
    """Listen at a connection qualifier; `ret, psp`."""
    return _listen(ia, conn_qual, evd, choice(PspFlag, psp_flags, argument=4))


@two_outputs
def dat_psp_create_any(ia: object, evd: object, psp_flags: int) -> tuple[int, PublicServicePoint]:
    """Listen at a qualifier that is free; `ret, conn_qual, psp`."""
    psp = _listen(ia, None, evd, choice(PspFlag, psp_flags, argument=4))
    return psp.conn_qual, psp


def dat_psp_query(psp: object, mask: int) -> tuple[DatReturn, PspParam | None]:
    """Ask what a public service point is; `ret, param`."""
    return queried(psp, PublicServicePoint, PublicServicePoint.query, mask, PspField.ALL)


@no_output
def dat_psp_free(psp: object) -> None:
    """Stop listening; requests that are queued stay valid."""
    live(psp, PublicServicePoint).free()


@one_output
def dat_rsp_create(ia: object, conn_qual: int, ep: object, evd: object) -> ReservedServicePoint:
    """Listen once for an endpoint; `ret, rsp`."""
    adapter, endpoint = live(ia, InterfaceAdapter), live(ep, Endpoint)
    dispatcher = live(evd, EventDispatcher, Role.CR.subtype)
    return ReservedServicePoint(adapter, conn_qual, endpoint, dispatcher)


def dat_rsp_query(rsp: object, mask: int) -> tuple[DatReturn, RspParam | None]:
    """Ask what a reserved service point is; `ret, param`."""
    return queried(rsp, ReservedServicePoint, ReservedServicePoint.query, mask, RspField.ALL)


@no_output
def dat_rsp_free(rsp: object) -> None:
    """Stop listening; the endpoint is unconnected again."""
    live(rsp, ReservedServicePoint).free()


def dat_cr_query(cr: object, mask: int) -> tuple[DatReturn, CrParam | None]:
    """Ask what a connection request says; `ret, param`."""
    return queried(cr, ConnectionRequest, ConnectionRequest.query, mask, CrField.ALL)


@no_output
def dat_cr_accept(
    cr: object, ep: object, private_data_size: int, private_data: bytes | None
) -> None:
    """Accept a request with an endpoint, or `None` if it names its own; consumes the request."""
    found = live(cr, ConnectionRequest)
    endpoint = None if ep is None else live(ep, Endpoint)
    found.accept(endpoint, bytes_of(private_data_size, private_data, argument=3))


@no_output
def dat_cr_reject(cr: object) -> None:
    """Reject a request; consumes it."""
    live(cr, ConnectionRequest).reject()


@no_output
def dat_cr_handoff(cr: object, conn_qual: int) -> None:
    """Pass a request to another service point of the adapter; consumes it."""
    live(cr, ConnectionRequest).handoff(conn_qual)


@no_output
def dat_ep_connect(
    ep: object,
    remote_ia_address: IaAddress,
    remote_conn_qual: int,
    timeout_us: int,
    private_data_size: int,
    private_data: bytes | None,
    quality_of_service: int,
    connect_flags: int,
) -> None:
    """Ask for a connection; an event on the connect dispatcher tells how it went."""
    live(ep, Endpoint).connect(
        remote_ia_address,
        remote_conn_qual,
        timeout_s=_seconds(timeout_us, argument=4),
        private_data=bytes_of(private_data_size, private_data, argument=5),
        qos=quality_of_service,
        flags=connect_flags,
    )


@no_output
def dat_ep_dup_connect(
    ep: object,
    dup_ep: object,
    timeout_us: int,
    private_data_size: int,
    private_data: bytes | None,
    quality_of_service: int,
) -> None:
    """Ask for a connection to where another endpoint is connected."""
    live(ep, Endpoint).dup_connect(
        live(dup_ep, Endpoint),
        timeout_s=_seconds(timeout_us, argument=3),
        private_data=bytes_of(private_data_size, private_data, argument=4),
        qos=quality_of_service,
    )


@no_output
def dat_ep_disconnect(ep: object, close_flags: int) -> None:
    """End a connection, or an attempt at one."""
    found = live(ep, Endpoint)
    flag = choice(CloseFlag, close_flags, argument=2)
    found.disconnect(graceful=flag is CloseFlag.GRACEFUL)


def _listen(ia: object, conn_qual: int | None, evd: object, flag: PspFlag) -> PublicServicePoint:
    adapter = live(ia, InterfaceAdapter)
    dispatcher = live(evd, EventDispatcher, Role.CR.subtype)
    return adapter.listen(conn_qual, evd=dispatcher, provider_ep=flag is PspFlag.PROVIDER)


def _seconds(timeout_us: int, *, argument: int) -> float | None:
    timeout_ns = ns_of_us(timeout_us, argument=argument)
    return None if timeout_ns is None else timeout_ns / _NS_PER_S


# -- endpoints, transfers and shared receive queues


Iov = Sequence[LmrTriplet] | None

# Mask bits whose field is not named after them.
_FIELD_OF: Final = {
    EpField.EP_ATTR_NUM_TRANSPORT_ATTR: "ep_transport_specific_count",
    EpField.EP_ATTR_TRANSPORT_SPECIFIC_ATTR: "ep_transport_specific",
    EpField.EP_ATTR_NUM_PROVIDER_ATTR: "ep_provider_specific_count",
    EpField.EP_ATTR_PROVIDER_SPECIFIC_ATTR: "ep_provider_specific",
}


@one_output
def dat_ep_create(
    ia: object,
    pz: object,
    recv_evd: EventDispatcher | None,
    request_evd: EventDispatcher | None,
    connect_evd: EventDispatcher | None,
    ep_attributes: EpAttr | None,
) -> Endpoint:
    """Make an endpoint; `ret, ep`. Without attributes the provider's defaults count."""
    adapter, zone = live(ia, InterfaceAdapter), live(pz, ProtectionZone)
    return Endpoint(adapter, zone, recv_evd, request_evd, connect_evd, ep_attributes)


@one_output
def dat_ep_create_with_srq(
    ia: object,
    pz: object,
    recv_evd: EventDispatcher | None,
    request_evd: EventDispatcher | None,
    connect_evd: EventDispatcher | None,
    srq: object,
    ep_attributes: EpAttr | None,
) -> Endpoint:
    """Make an endpoint that receives from a shared queue; `ret, ep`. Attributes are required."""
    adapter, zone = live(ia, InterfaceAdapter), live(pz, ProtectionZone)
    queue = live(srq, SharedReceiveQueue)
    return Endpoint(adapter, zone, recv_evd, request_evd, connect_evd, ep_attributes, queue)


def dat_ep_query(ep: object, mask: int) -> tuple[DatReturn, EpParam | None]:
    """Ask what an endpoint is; `ret, param`."""
    return queried(ep, Endpoint, Endpoint.query, mask, EpField.ALL)


@no_output
def dat_ep_modify(ep: object, mask: int, param: EpParam) -> None:
    """Change the fields that the mask names to those of `param`; all of them or none."""
    found = live(ep, Endpoint)
    demand_bits("mask", mask, EpField.ALL, argument=2)
    if not isinstance(param, EpParam):
        raise bad_argument(3, f"{param!r} is no EpParam")
    found.modify(**dict(_field(param, bit) for bit in EpField(mask)))


@three_outputs
def dat_ep_get_status(ep: object) -> tuple[EpState, bool, bool]:
    """Ask for state and idleness; `ret, state, recv_idle, request_idle`. True is idle."""
    status = live(ep, Endpoint).get_status()
    return status.state, status.recv_idle, status.request_idle


@no_output
def dat_ep_reset(ep: object) -> None:
    """Make a disconnected endpoint unconnected, ready for another connection."""
    live(ep, Endpoint).reset()


@no_output
def dat_ep_free(ep: object) -> None:
    """Free an endpoint; its connection ends."""
    live(ep, Endpoint).free()


@two_outputs
def dat_ep_recv_query(
    ep: object, *, want_nbufs: bool = True, want_span: bool = True
) -> tuple[int | None, int | None]:
    """Ask for the receive buffers at an endpoint; `ret, nbufs_allocated, bufs_alloc_span`.

    An output that is not wanted (a NULL pointer in C) is `None`; one that the provider does not
    support is DAT_VALUE_UNKNOWN. Both are of one set of buffers. Source: docs/reference/dat.md 13.
    """
    endpoint = live(ep, Endpoint)
    for argument, wanted in ((2, want_nbufs), (3, want_span)):
        if not isinstance(wanted, bool):
            raise bad_argument(argument, f"{wanted!r} says neither wanted nor not")
    found = endpoint.recv_query()
    count = or_unknown(found.nbufs_allocated) if want_nbufs else None
    return count, or_unknown(found.bufs_alloc_span) if want_span else None


@no_output
def dat_ep_set_watermark(ep: object, soft_high_watermark: int, hard_high_watermark: int) -> None:
    """Set both high watermarks and arm them; DAT_WATERMARK_INFINITE is none."""
    live(ep, Endpoint).set_watermark(_mark(soft_high_watermark), _mark(hard_high_watermark))


@no_output
def dat_ep_post_recv(
    ep: object, num_segments: int, local_iov: Iov, user_cookie: Any, completion_flags: int
) -> None:
    """Post a receive; INVALID_STATE on an endpoint with a shared receive queue."""
    live(ep, Endpoint).post_recv(
        segments_of(num_segments, local_iov), user_cookie, completion_flags
    )


@no_output
def dat_ep_post_send(
    ep: object, num_segments: int, local_iov: Iov, user_cookie: Any, completion_flags: int
) -> None:
    """Send a message; no segments are an empty one."""
    live(ep, Endpoint).post_send(
        segments_of(num_segments, local_iov), user_cookie, completion_flags
    )


@no_output
def dat_ep_post_rdma_write(
    ep: object,
    num_segments: int,
    local_iov: Iov,
    user_cookie: Any,
    remote_iov: RmrTriplet,
    completion_flags: int,
) -> None:
    """Write local segments to a peer's memory."""
    live(ep, Endpoint).post_rdma_write(
        segments_of(num_segments, local_iov), remote_iov, user_cookie, completion_flags
    )


@no_output
def dat_ep_post_rdma_read(
    ep: object,
    num_segments: int,
    local_iov: Iov,
    user_cookie: Any,
    remote_iov: RmrTriplet,
    completion_flags: int,
) -> None:
    """Read a peer's memory into local segments."""
    live(ep, Endpoint).post_rdma_read(
        segments_of(num_segments, local_iov), remote_iov, user_cookie, completion_flags
    )


def _mark(value: int) -> int | None:
    return None if value == DAT_WATERMARK_INFINITE else value


def _field(param: EpParam, bit: EpField) -> tuple[str, Any]:
    name = _FIELD_OF.get(bit) or (bit.name or "").lower().removeprefix("ep_attr_")
    return name, getattr(param if bit < EpField.EP_ATTR_SERVICE_TYPE else param.ep_attr, name)


__all__ = [name for name in globals() if name.startswith("dat_") and name != "dat_error"]
