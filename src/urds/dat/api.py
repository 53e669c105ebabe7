"""The calls of DAT with their C names.

Inputs stand in the order of C without the output pointers; handles are the objects, `None` is
DAT_HANDLE_NULL. No call raises for what DAT has a return value for. A call without outputs returns
`ret`; one with outputs returns `(ret, first, second, ...)` in the order of the C call, each `None`
when `ret` is not SUCCESS. Source: docs/reference/dat.md 4, 5, 8 to 14, 20.1.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from urds.dat.arguments import (
    IaAddress,
    bytes_of,
    choice,
    demand_bool,
    ns_of_us,
    or_unknown,
    segments_of,
)
from urds.dat.constants import (
    DAT_THREADSAFE,
    DAT_VERSION_MAJOR,
    DAT_VERSION_MINOR,
    DAT_WATERMARK_INFINITE,
    AsyncEvdHandle,
    CloseFlag,
    CnoField,
    CrField,
    EpField,
    EpState,
    EvdField,
    HandleType,
    LmrField,
    PspField,
    PspFlag,
    PzField,
    RmrField,
    RspField,
    SrqField,
)
from urds.dat.endpoint import Endpoint, EpParam
from urds.dat.errors import (
    SUCCESS,
    DatError,
    bad_argument,
    dat_error,
    demand_bits,
    no_output,
    one_output,
    three_outputs,
    two_outputs,
)
from urds.dat.evd import (
    CnoParam,
    EvdParam,
    Event,
    EventDispatcher,
    NotificationPoint,
    ProxyAgent,
    SoftwareEvent,
)
from urds.dat.evd_streams import Role
from urds.dat.handles import DatObject, live
from urds.dat.ia import InterfaceAdapter, open_ia
from urds.dat.memory import LmrParam, LocalMemory, ProtectionZone, PzParam, RemoteMemory, RmrParam
from urds.dat.records import (
    EpAttr,
    IaAttr,
    LmrTriplet,
    ProviderAttr,
    ProviderInfo,
    RmrTriplet,
    SrqAttr,
)
from urds.dat.registry import REGISTRY, Provider
from urds.dat.returns import DatReturn, ReturnType, Subtype, names_of
from urds.dat.service_points import (
    ConnectionRequest,
    CrParam,
    PspParam,
    PublicServicePoint,
    ReservedServicePoint,
    RspParam,
)
from urds.dat.srq import SharedReceiveQueue, SrqParam

ObjectT = TypeVar("ObjectT", bound=DatObject)
Record = TypeVar("Record")
AsyncEvd = EventDispatcher | AsyncEvdHandle
Iov = Sequence[LmrTriplet] | None
LmrOutputs = tuple[
    DatReturn, LocalMemory | None, int | None, int | None, int | None, int | None
]  # ret, lmr, lmr_context, rmr_context, registered_size, registered_address

_NS_PER_S: Final = 1e9
_QUEUE_EMPTY: Final = DatReturn.error(ReturnType.QUEUE_EMPTY)

# Mask bits whose field is not named after them.
_FIELD_OF: Final = {
    EpField.EP_ATTR_NUM_TRANSPORT_ATTR: "ep_transport_specific_count",
    EpField.EP_ATTR_TRANSPORT_SPECIFIC_ATTR: "ep_transport_specific",
    EpField.EP_ATTR_NUM_PROVIDER_ATTR: "ep_provider_specific_count",
    EpField.EP_ATTR_PROVIDER_SPECIFIC_ATTR: "ep_provider_specific",
}

# -- adapters, handles, the registry and return values


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
    return _queried(psp, PublicServicePoint, PublicServicePoint.query, mask, PspField.ALL)


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
    return _queried(rsp, ReservedServicePoint, ReservedServicePoint.query, mask, RspField.ALL)


@no_output
def dat_rsp_free(rsp: object) -> None:
    """Stop listening; the endpoint is unconnected again."""
    live(rsp, ReservedServicePoint).free()


def dat_cr_query(cr: object, mask: int) -> tuple[DatReturn, CrParam | None]:
    """Ask what a connection request says; `ret, param`."""
    return _queried(cr, ConnectionRequest, ConnectionRequest.query, mask, CrField.ALL)


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


# -- endpoints and transfers


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
    return _queried(ep, Endpoint, Endpoint.query, mask, EpField.ALL)


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


def dat_ep_recv_query(
    ep: object, *, want_nbufs: bool = True, want_span: bool = True
) -> tuple[DatReturn, int | None, int | None]:
    """Ask for the receive buffers at an endpoint; `ret, nbufs_allocated, bufs_alloc_span`.

    An output that is not wanted (a NULL pointer in C) is `None`; one that the provider does not
    support is DAT_VALUE_UNKNOWN. Both are of one set of buffers, with a shared receive queue those
    taken from it for this endpoint: `verbs.engine.receives`. Takes no lock, so it never waits.
    Source: docs/reference/dat.md 13.
    """
    try:
        found = ep if type(ep) is Endpoint and ep.live else live(ep, Endpoint)
        if want_nbufs is not True:
            demand_bool(want_nbufs, argument=2)
        if want_span is not True:
            demand_bool(want_span, argument=3)
        count, span = found.recv_counts()
    except DatError as error:
        return error.ret, None, None
    if count is None or span is None:
        count, span = or_unknown(count), or_unknown(span)
    return SUCCESS, count if want_nbufs else None, span if want_span else None


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


# -- notification points and event dispatchers


@one_output
def dat_cno_create(ia: object, agent: ProxyAgent | None) -> NotificationPoint:
    """Make a notification point; `ret, cno`."""
    return live(ia, InterfaceAdapter).create_cno(agent)


@no_output
def dat_cno_modify_agent(cno: object, agent: ProxyAgent | None) -> None:
    """Set the agent that the next trigger calls; `None` is none."""
    live(cno, NotificationPoint).agent = agent


def dat_cno_query(cno: object, mask: int) -> tuple[DatReturn, CnoParam | None]:
    """Ask what a notification point is; `ret, param`."""
    return _queried(cno, NotificationPoint, NotificationPoint.query, mask, CnoField.ALL)


@one_output
def dat_cno_wait(cno: object, timeout_us: int) -> EventDispatcher | None:
    """Wait for a trigger; `ret, evd`. Nothing in time is QUEUE_EMPTY, not TIMEOUT_EXPIRED."""
    return live(cno, NotificationPoint).wait_ns(ns_of_us(timeout_us, argument=2))


@no_output
def dat_cno_free(cno: object) -> None:
    """Free a notification point."""
    live(cno, NotificationPoint).free()


@one_output
def dat_evd_create(
    ia: object, evd_min_qlen: int, cno: NotificationPoint | None, evd_flags: int
) -> EventDispatcher:
    """Make an event dispatcher; `ret, evd`."""
    return live(ia, InterfaceAdapter).create_evd(evd_min_qlen, evd_flags, cno)


def dat_evd_query(evd: object, mask: int) -> tuple[DatReturn, EvdParam | None]:
    """Ask what a dispatcher is; `ret, param`."""
    return _queried(evd, EventDispatcher, EventDispatcher.query, mask, EvdField.ALL)


@no_output
def dat_evd_modify_cno(evd: object, cno: NotificationPoint | None) -> None:
    """Attach another notification point; `None` detaches."""
    live(evd, EventDispatcher).cno = cno


@no_output
def dat_evd_enable(evd: object) -> None:
    """Let events trigger the notification point."""
    live(evd, EventDispatcher).enable()


@no_output
def dat_evd_disable(evd: object) -> None:
    """Let events not trigger the notification point."""
    live(evd, EventDispatcher).disable()


@no_output
def dat_evd_set_unwaitable(evd: object) -> None:
    """Forbid waiting; a thread that waits gets INVALID_STATE."""
    live(evd, EventDispatcher).waitable = False


@no_output
def dat_evd_clear_unwaitable(evd: object) -> None:
    """Allow to wait again."""
    live(evd, EventDispatcher).waitable = True


def dat_evd_wait(
    evd: object, timeout_us: int, threshold: int
) -> tuple[DatReturn, Event | None, int | None]:
    """Wait for `threshold` events; `ret, event, nmore`. The last is true on TIMEOUT_EXPIRED too."""
    ret, event = _wait(evd, timeout_us, threshold)
    is_counted = ret.is_success or ret.type == ReturnType.TIMEOUT_EXPIRED
    nmore = evd.nmore if is_counted and isinstance(evd, EventDispatcher) else None
    return ret, event, nmore


@one_output
def _wait(evd: object, timeout_us: int, threshold: int) -> Event:
    return live(evd, EventDispatcher).wait_ns(ns_of_us(timeout_us, argument=2), threshold)


def dat_evd_dequeue(evd: object) -> tuple[DatReturn, Event | None]:
    """Take the oldest event; `ret, event`."""
    ret, event = _dequeue(evd)
    return (_QUEUE_EMPTY, None) if event is None and ret is SUCCESS else (ret, event)


@one_output
def _dequeue(evd: object) -> Event | None:
    return live(evd, EventDispatcher).dequeue()


@no_output
def dat_evd_post_se(evd: object, event: object) -> None:
    """Post a software event: a `SoftwareEvent`, of which only the pointer is taken."""
    found = live(evd, EventDispatcher)
    if not isinstance(event, SoftwareEvent):
        raise bad_argument(2, f"{event!r} is no software event")
    found.post(event.pointer)


@no_output
def dat_evd_resize(evd: object, evd_min_qlen: int) -> None:
    """Change the length of a dispatcher."""
    live(evd, EventDispatcher).resize(evd_min_qlen)


@no_output
def dat_evd_free(evd: object) -> None:
    """Free a dispatcher; its queued events are lost."""
    live(evd, EventDispatcher).free()


# -- protection zones and memory


@one_output
def dat_pz_create(ia: object) -> ProtectionZone:
    """Make a protection zone; `ret, pz`."""
    return live(ia, InterfaceAdapter).create_pz()


def dat_pz_query(pz: object, mask: int) -> tuple[DatReturn, PzParam | None]:
    """Ask what a zone is; `ret, param`."""
    return _queried(pz, ProtectionZone, ProtectionZone.query, mask, PzField.ALL)


@no_output
def dat_pz_free(pz: object) -> None:
    """Free a zone that nothing uses."""
    live(pz, ProtectionZone).free()


def dat_lmr_create(
    ia: object,
    mem_type: int,
    region_description: Any,
    length_bytes: int,
    pz: object,
    mem_privileges: int,
) -> LmrOutputs:
    """Register memory: `length_bytes` of a buffer, or with DAT_MEM_TYPE_LMR all of a region.

    Gives `ret, lmr, lmr_context, rmr_context, registered_size, registered_address`.
    """

    @one_output
    def call() -> LocalMemory:
        adapter = live(ia, InterfaceAdapter)
        zone = live(pz, ProtectionZone)
        adapter.device.demand_own(zone)
        return LocalMemory(zone, region_description, mem_privileges, mem_type, length_bytes)

    ret, lmr = call()
    if lmr is None:
        return ret, None, None, None, None, None
    return ret, lmr, lmr.lmr_context, lmr.rmr_context, lmr.size, lmr.address


def dat_lmr_query(lmr: object, mask: int) -> tuple[DatReturn, LmrParam | None]:
    """Ask what a region is; `ret, param`."""
    return _queried(lmr, LocalMemory, LocalMemory.query, mask, LmrField.ALL)


@no_output
def dat_lmr_free(lmr: object) -> None:
    """Free a region that no window is bound to."""
    live(lmr, LocalMemory).free()


@no_output
def dat_lmr_sync_rdma_read(ia: object, local_segments: Iov, num_segments: int) -> None:
    """Make local memory ready for reads of peers; here it always is."""
    live(ia, InterfaceAdapter).sync_rdma_read(segments_of(num_segments, local_segments))


@no_output
def dat_lmr_sync_rdma_write(ia: object, local_segments: Iov, num_segments: int) -> None:
    """Make writes of peers visible in local memory; here they always are."""
    live(ia, InterfaceAdapter).sync_rdma_write(segments_of(num_segments, local_segments))


@one_output
def dat_rmr_create(pz: object) -> RemoteMemory:
    """Make an unbound window; `ret, rmr`."""
    return live(pz, ProtectionZone).create_rmr()


@one_output
def dat_rmr_bind(
    rmr: object,
    lmr_triplet: LmrTriplet,
    mem_privileges: int,
    ep: object,
    user_cookie: Any,
    completion_flags: int,
) -> int:
    """Bind a window to a part of a region; `ret, rmr_context`, good once the bind completes."""
    window, endpoint = live(rmr, RemoteMemory), live(ep, Endpoint)
    return window.bind(endpoint, lmr_triplet, mem_privileges, user_cookie, completion_flags)


def dat_rmr_query(rmr: object, mask: int) -> tuple[DatReturn, RmrParam | None]:
    """Ask what a window is bound to; `ret, param`."""
    return _queried(rmr, RemoteMemory, RemoteMemory.query, mask, RmrField.ALL)


@no_output
def dat_rmr_free(rmr: object) -> None:
    """Free a window, unbinding it first."""
    live(rmr, RemoteMemory).free()


# -- shared receive queues


@one_output
def dat_srq_create(ia: object, pz: object, srq_attr: SrqAttr) -> SharedReceiveQueue:
    """Make a shared receive queue; `ret, srq`."""
    adapter, zone = live(ia, InterfaceAdapter), live(pz, ProtectionZone)
    adapter.device.demand_own(zone)
    if not isinstance(srq_attr, SrqAttr):
        raise bad_argument(3, f"{srq_attr!r} is no SrqAttr")
    return SharedReceiveQueue(zone, srq_attr)


@no_output
def dat_srq_post_recv(srq: object, num_segments: int, local_iov: Iov, user_cookie: Any) -> None:
    """Give a buffer to a shared receive queue."""
    live(srq, SharedReceiveQueue).post_recv(segments_of(num_segments, local_iov), user_cookie)


def dat_srq_query(srq: object, mask: int) -> tuple[DatReturn, SrqParam | None]:
    """Ask what a shared receive queue is; `ret, param`."""
    return _queried(srq, SharedReceiveQueue, _srq_param, mask, SrqField.ALL)


@no_output
def dat_srq_resize(srq: object, max_recv_dto: int) -> None:
    """Change how many receives may be outstanding."""
    live(srq, SharedReceiveQueue).resize(max_recv_dto)


@no_output
def dat_srq_set_lw(srq: object, low_watermark: int) -> None:
    """Ask for one event when fewer buffers than this are available."""
    live(srq, SharedReceiveQueue).set_low_watermark(low_watermark)


@no_output
def dat_srq_free(srq: object) -> None:
    """Free a shared receive queue that no endpoint uses; buffers on it are dropped."""
    live(srq, SharedReceiveQueue).free()


def _srq_param(srq: SharedReceiveQueue) -> SrqParam:
    param = srq.query()
    return replace(
        param,
        available_dto_count=or_unknown(param.available_dto_count),
        outstanding_dto_count=or_unknown(param.outstanding_dto_count),
    )


@one_output
def _queried(
    handle: object, kind: type[ObjectT], query: Callable[[ObjectT], Record], mask: int, known: int
) -> Record:
    """Return the record of a handle: all of its fields, whatever the mask says.

    Raises DatInvalidHandle, DatInvalidParameter: the mask has an unknown bit.
    """
    found = live(handle, kind)
    demand_bits("mask", mask, known, argument=2)
    return query(found)


__all__ = [name for name in globals() if name.startswith("dat_") and name != "dat_error"]
