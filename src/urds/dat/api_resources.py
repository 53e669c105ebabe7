"""Calls for what endpoints use: dispatchers, notification points, zones, memory, shared queues.

Inputs and outputs as in `urds.dat.api`. Source: docs/reference/dat.md 5, 8, 11, 12, 20.1.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from urds.dat.calling import (
    no_output,
    one_output,
    or_unknown,
    queried,
    queue_is_empty,
    segments_of,
)
from urds.dat.constants import (
    CnoField,
    EvdField,
    LmrField,
    PzField,
    RmrField,
    SrqField,
)
from urds.dat.endpoint import Endpoint
from urds.dat.errors import bad_argument
from urds.dat.evd import (
    CnoParam,
    EvdParam,
    Event,
    EventDispatcher,
    NotificationPoint,
    ProxyAgent,
    SoftwareEvent,
)
from urds.dat.handles import live
from urds.dat.ia import InterfaceAdapter
from urds.dat.memory import LmrParam, LocalMemory, RemoteMemory, RmrParam
from urds.dat.pz import ProtectionZone, PzParam
from urds.dat.records import LmrTriplet, SrqAttr
from urds.dat.returns import DatReturn, ReturnType
from urds.dat.srq import SharedReceiveQueue, SrqParam
from urds.dat.timeouts import ns_of_us

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
    return queried(cno, NotificationPoint, NotificationPoint.query, mask, CnoField.ALL)


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
    return queried(evd, EventDispatcher, EventDispatcher.query, mask, EvdField.ALL)


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


@one_output
def dat_evd_dequeue(evd: object) -> Event:
    """Take the oldest event; `ret, event`."""
    event = live(evd, EventDispatcher).dequeue()
    if event is None:
        raise queue_is_empty()
    return event


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


LmrOutputs = tuple[
    DatReturn, LocalMemory | None, int | None, int | None, int | None, int | None
]  # ret, lmr, lmr_context, rmr_context, registered_size, registered_address


@one_output
def dat_pz_create(ia: object) -> ProtectionZone:
    """Make a protection zone; `ret, pz`."""
    return live(ia, InterfaceAdapter).create_pz()


def dat_pz_query(pz: object, mask: int) -> tuple[DatReturn, PzParam | None]:
    """Ask what a zone is; `ret, param`."""
    return queried(pz, ProtectionZone, ProtectionZone.query, mask, PzField.ALL)


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
    return queried(lmr, LocalMemory, LocalMemory.query, mask, LmrField.ALL)


@no_output
def dat_lmr_free(lmr: object) -> None:
    """Free a region that no window is bound to."""
    live(lmr, LocalMemory).free()


@no_output
def dat_lmr_sync_rdma_read(
    ia: object, local_segments: Sequence[LmrTriplet] | None, num_segments: int
) -> None:
    """Make local memory ready for reads of peers; here it always is."""
    live(ia, InterfaceAdapter).sync_rdma_read(segments_of(num_segments, local_segments))


@no_output
def dat_lmr_sync_rdma_write(
    ia: object, local_segments: Sequence[LmrTriplet] | None, num_segments: int
) -> None:
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
    return queried(rmr, RemoteMemory, RemoteMemory.query, mask, RmrField.ALL)


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
def dat_srq_post_recv(
    srq: object, num_segments: int, local_iov: Sequence[LmrTriplet] | None, user_cookie: Any
) -> None:
    """Give a buffer to a shared receive queue."""
    live(srq, SharedReceiveQueue).post_recv(segments_of(num_segments, local_iov), user_cookie)


def dat_srq_query(srq: object, mask: int) -> tuple[DatReturn, SrqParam | None]:
    """Ask what a shared receive queue is; `ret, param`."""
    return queried(srq, SharedReceiveQueue, _srq_param, mask, SrqField.ALL)


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


__all__ = [name for name in globals() if name.startswith("dat_") and name != "dat_error"]
