"""Calls for endpoints, their transfers and shared receive queues.

Source: dat.md sections 4, 8, 10, 12 to 14 and 20.1.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from urds.dat.calling import (
    no_output,
    one_output,
    queried,
    segments_of,
    three_outputs,
    two_outputs,
)
from urds.dat.ep import Endpoint
from urds.dat.errors import bad_argument, demand_bits
from urds.dat.evd import EventDispatcher
from urds.dat.handles import live
from urds.dat.ia import InterfaceAdapter
from urds.dat.masks import EpField, SrqField
from urds.dat.numbers import DAT_VALUE_UNKNOWN, DAT_WATERMARK_INFINITE, EpState
from urds.dat.pz import ProtectionZone
from urds.dat.records import EpAttr, EpParam, LmrTriplet, RmrTriplet, SrqAttr, SrqParam
from urds.dat.returns import DatReturn
from urds.dat.srq import SharedReceiveQueue

__all__ = [
    "dat_ep_create", "dat_ep_create_with_srq", "dat_ep_free", "dat_ep_get_status",
    "dat_ep_modify", "dat_ep_post_rdma_read", "dat_ep_post_rdma_write", "dat_ep_post_recv",
    "dat_ep_post_send", "dat_ep_query", "dat_ep_recv_query", "dat_ep_reset",
    "dat_ep_set_watermark", "dat_srq_create", "dat_srq_free", "dat_srq_post_recv",
    "dat_srq_query", "dat_srq_resize", "dat_srq_set_lw",
]  # fmt: skip

Iov = Sequence[LmrTriplet] | None

# Mask bits whose field is not named after them.
_FIELD_OF: Final = {
    EpField.EP_ATTR_NUM_TRANSPORT_ATTR: "ep_transport_specific_count",
    EpField.EP_ATTR_TRANSPORT_SPECIFIC_ATTR: "ep_transport_specific",
    EpField.EP_ATTR_NUM_PROVIDER_ATTR: "ep_provider_specific_count",
    EpField.EP_ATTR_PROVIDER_SPECIFIC_ATTR: "ep_provider_specific",
}


def dat_ep_create(
    ia: object,
    pz: object,
    recv_evd: EventDispatcher | None,
    request_evd: EventDispatcher | None,
    connect_evd: EventDispatcher | None,
    ep_attributes: EpAttr | None,
) -> tuple[DatReturn, Endpoint | None]:
    """Make an endpoint; `ret, ep`. Without attributes the provider's defaults count."""

    def call() -> Endpoint:
        adapter, zone = live(ia, InterfaceAdapter), live(pz, ProtectionZone)
        return Endpoint(adapter, zone, recv_evd, request_evd, connect_evd, ep_attributes)

    return one_output(call)


def dat_ep_create_with_srq(
    ia: object,
    pz: object,
    recv_evd: EventDispatcher | None,
    request_evd: EventDispatcher | None,
    connect_evd: EventDispatcher | None,
    srq: object,
    ep_attributes: EpAttr | None,
) -> tuple[DatReturn, Endpoint | None]:
    """Make an endpoint that receives from a shared queue; `ret, ep`. Attributes are required."""

    def call() -> Endpoint:
        adapter, zone = live(ia, InterfaceAdapter), live(pz, ProtectionZone)
        queue = live(srq, SharedReceiveQueue)
        return Endpoint(adapter, zone, recv_evd, request_evd, connect_evd, ep_attributes, queue)

    return one_output(call)


def dat_ep_query(ep: object, mask: int) -> tuple[DatReturn, EpParam | None]:
    """Ask what an endpoint is; `ret, param`."""
    return queried(ep, Endpoint, Endpoint.query, mask, EpField.ALL)


def dat_ep_modify(ep: object, mask: int, param: EpParam) -> DatReturn:
    """Change the fields that the mask names to those of `param`; all of them or none."""

    def call() -> None:
        found = live(ep, Endpoint)
        demand_bits("mask", mask, EpField.ALL, argument=2)
        if not isinstance(param, EpParam):
            raise bad_argument(3, f"{param!r} is no EpParam")
        found.modify(**dict(_field(param, bit) for bit in EpField(mask)))

    return no_output(call)


def dat_ep_get_status(
    ep: object,
) -> tuple[DatReturn, EpState | None, bool | None, bool | None]:
    """Ask for state and idleness; `ret, state, recv_idle, request_idle`. True is idle."""

    def call() -> tuple[EpState, bool, bool]:
        status = live(ep, Endpoint).get_status()
        return status.state, status.recv_idle, status.request_idle

    return three_outputs(call)


def dat_ep_reset(ep: object) -> DatReturn:
    """Make a disconnected endpoint unconnected, ready for another connection."""
    return no_output(lambda: live(ep, Endpoint).reset())


def dat_ep_free(ep: object) -> DatReturn:
    """Free an endpoint; its connection ends."""
    return no_output(lambda: live(ep, Endpoint).free())


# -- receive buffers


def dat_ep_recv_query(
    ep: object, *, want_nbufs: bool = True, want_span: bool = True
) -> tuple[DatReturn, int | None, int | None]:
    """Ask for the receive buffers at an endpoint; `ret, nbufs_allocated, bufs_alloc_span`.

    An output that is not wanted (a NULL pointer in C) is `None`; one that the provider does not
    support is DAT_VALUE_UNKNOWN. Both are of one set of buffers. Source: dat.md section 13.
    """

    def call() -> tuple[int | None, int | None]:
        endpoint = live(ep, Endpoint)
        for argument, wanted in ((2, want_nbufs), (3, want_span)):
            if not isinstance(wanted, bool):
                raise bad_argument(argument, f"{wanted!r} says neither wanted nor not")
        found = endpoint.recv_query()
        count = _or_unknown(found.nbufs_allocated) if want_nbufs else None
        return count, _or_unknown(found.bufs_alloc_span) if want_span else None

    return two_outputs(call)


def dat_ep_set_watermark(
    ep: object, soft_high_watermark: int, hard_high_watermark: int
) -> DatReturn:
    """Set both high watermarks and arm them; DAT_WATERMARK_INFINITE is none."""
    return no_output(
        lambda: live(ep, Endpoint).set_watermark(
            _mark(soft_high_watermark), _mark(hard_high_watermark)
        )
    )


# -- transfers


def dat_ep_post_recv(
    ep: object, num_segments: int, local_iov: Iov, user_cookie: Any, completion_flags: int
) -> DatReturn:
    """Post a receive; refused on an endpoint with a shared receive queue."""
    return no_output(
        lambda: live(ep, Endpoint).post_recv(
            segments_of(num_segments, local_iov), user_cookie, completion_flags
        )
    )


def dat_ep_post_send(
    ep: object, num_segments: int, local_iov: Iov, user_cookie: Any, completion_flags: int
) -> DatReturn:
    """Send a message; no segments are an empty one."""
    return no_output(
        lambda: live(ep, Endpoint).post_send(
            segments_of(num_segments, local_iov), user_cookie, completion_flags
        )
    )


def dat_ep_post_rdma_write(
    ep: object,
    num_segments: int,
    local_iov: Iov,
    user_cookie: Any,
    remote_iov: RmrTriplet,
    completion_flags: int,
) -> DatReturn:
    """Write local segments to a peer's memory."""
    return no_output(
        lambda: live(ep, Endpoint).post_rdma_write(
            segments_of(num_segments, local_iov), remote_iov, user_cookie, completion_flags
        )
    )


def dat_ep_post_rdma_read(
    ep: object,
    num_segments: int,
    local_iov: Iov,
    user_cookie: Any,
    remote_iov: RmrTriplet,
    completion_flags: int,
) -> DatReturn:
    """Read a peer's memory into local segments."""
    return no_output(
        lambda: live(ep, Endpoint).post_rdma_read(
            segments_of(num_segments, local_iov), remote_iov, user_cookie, completion_flags
        )
    )


# -- shared receive queues


def dat_srq_create(
    ia: object, pz: object, srq_attr: SrqAttr
) -> tuple[DatReturn, SharedReceiveQueue | None]:
    """Make a shared receive queue; `ret, srq`."""

    def call() -> SharedReceiveQueue:
        adapter, zone = live(ia, InterfaceAdapter), live(pz, ProtectionZone)
        adapter.demand_own(zone)
        if not isinstance(srq_attr, SrqAttr):
            raise bad_argument(3, f"{srq_attr!r} is no SrqAttr")
        return SharedReceiveQueue(zone, srq_attr)

    return one_output(call)


def dat_srq_post_recv(
    srq: object, num_segments: int, local_iov: Iov, user_cookie: Any
) -> DatReturn:
    """Give a buffer to a shared receive queue."""
    return no_output(
        lambda: live(srq, SharedReceiveQueue).post_recv(
            segments_of(num_segments, local_iov), user_cookie
        )
    )


def dat_srq_query(srq: object, mask: int) -> tuple[DatReturn, SrqParam | None]:
    """Ask what a shared receive queue is; `ret, param`."""
    return queried(srq, SharedReceiveQueue, _srq_param, mask, SrqField.ALL)


def dat_srq_resize(srq: object, max_recv_dto: int) -> DatReturn:
    """Change how many receives may be outstanding."""
    return no_output(lambda: live(srq, SharedReceiveQueue).resize(max_recv_dto))


def dat_srq_set_lw(srq: object, low_watermark: int) -> DatReturn:
    """Ask for one event when fewer buffers than this are available."""
    return no_output(lambda: live(srq, SharedReceiveQueue).set_low_watermark(low_watermark))


def dat_srq_free(srq: object) -> DatReturn:
    """Free a shared receive queue that no endpoint uses; buffers on it are dropped."""
    return no_output(lambda: live(srq, SharedReceiveQueue).free())


def _srq_param(srq: SharedReceiveQueue) -> SrqParam:
    param = srq.query()
    return replace(
        param,
        available_dto_count=_or_unknown(param.available_dto_count),
        outstanding_dto_count=_or_unknown(param.outstanding_dto_count),
    )


def _or_unknown(count: int | None) -> int:
    return DAT_VALUE_UNKNOWN if count is None else count


def _mark(value: int) -> int | None:
    return None if value == DAT_WATERMARK_INFINITE else value


def _field(param: EpParam, bit: EpField) -> tuple[str, Any]:
    name = _FIELD_OF.get(bit) or (bit.name or "").lower().removeprefix("ep_attr_")
    return name, getattr(param if bit < EpField.EP_ATTR_SERVICE_TYPE else param.ep_attr, name)
