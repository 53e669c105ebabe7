"""Calls for protection zones and memory. Source: dat.md sections 8, 11 and 20.1."""

from collections.abc import Sequence
from typing import Any

from urds.dat.calling import no_output, one_output, queried, segments_of
from urds.dat.ep import Endpoint
from urds.dat.handles import live
from urds.dat.ia import InterfaceAdapter
from urds.dat.masks import LmrField, PzField, RmrField
from urds.dat.memory import LocalMemory, RemoteMemory
from urds.dat.pz import ProtectionZone
from urds.dat.records import LmrParam, LmrTriplet, PzParam, RmrParam
from urds.dat.returns import DatReturn

__all__ = [
    "dat_lmr_create", "dat_lmr_free", "dat_lmr_query", "dat_lmr_sync_rdma_read",
    "dat_lmr_sync_rdma_write", "dat_pz_create", "dat_pz_free", "dat_pz_query", "dat_rmr_bind",
    "dat_rmr_create", "dat_rmr_free", "dat_rmr_query",
]  # fmt: skip

LmrOutputs = tuple[
    DatReturn, LocalMemory | None, int | None, int | None, int | None, int | None
]  # ret, lmr, lmr_context, rmr_context, registered_size, registered_address


def dat_pz_create(ia: object) -> tuple[DatReturn, ProtectionZone | None]:
    """Make a protection zone; `ret, pz`."""
    return one_output(lambda: live(ia, InterfaceAdapter).create_pz())


def dat_pz_query(pz: object, mask: int) -> tuple[DatReturn, PzParam | None]:
    """Ask what a zone is; `ret, param`."""
    return queried(pz, ProtectionZone, ProtectionZone.query, mask, PzField.ALL)


def dat_pz_free(pz: object) -> DatReturn:
    """Free a zone that nothing uses."""
    return no_output(lambda: live(pz, ProtectionZone).free())


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

    def call() -> LocalMemory:
        adapter = live(ia, InterfaceAdapter)
        zone = live(pz, ProtectionZone)
        adapter.demand_own(zone)
        return LocalMemory(zone, region_description, mem_privileges, mem_type, length_bytes)

    ret, lmr = one_output(call)
    if lmr is None:
        return ret, None, None, None, None, None
    return ret, lmr, lmr.lmr_context, lmr.rmr_context, lmr.size, lmr.address


def dat_lmr_query(lmr: object, mask: int) -> tuple[DatReturn, LmrParam | None]:
    """Ask what a region is; `ret, param`."""
    return queried(lmr, LocalMemory, LocalMemory.query, mask, LmrField.ALL)


def dat_lmr_free(lmr: object) -> DatReturn:
    """Free a region that no window is bound to."""
    return no_output(lambda: live(lmr, LocalMemory).free())


def dat_lmr_sync_rdma_read(
    ia: object, local_segments: Sequence[LmrTriplet] | None, num_segments: int
) -> DatReturn:
    """Make local memory ready for reads of peers; here it always is."""
    return no_output(
        lambda: live(ia, InterfaceAdapter).sync_rdma_read(segments_of(num_segments, local_segments))
    )


def dat_lmr_sync_rdma_write(
    ia: object, local_segments: Sequence[LmrTriplet] | None, num_segments: int
) -> DatReturn:
    """Make writes of peers visible in local memory; here they always are."""
    return no_output(
        lambda: live(ia, InterfaceAdapter).sync_rdma_write(
            segments_of(num_segments, local_segments)
        )
    )


def dat_rmr_create(pz: object) -> tuple[DatReturn, RemoteMemory | None]:
    """Make an unbound window; `ret, rmr`."""
    return one_output(lambda: live(pz, ProtectionZone).create_rmr())


def dat_rmr_bind(
    rmr: object,
    lmr_triplet: LmrTriplet,
    mem_privileges: int,
    ep: object,
    user_cookie: Any,
    completion_flags: int,
) -> tuple[DatReturn, int | None]:
    """Bind a window to a part of a region; `ret, rmr_context`, good once the bind completes."""

    def call() -> int:
        window, endpoint = live(rmr, RemoteMemory), live(ep, Endpoint)
        return window.bind(endpoint, lmr_triplet, mem_privileges, user_cookie, completion_flags)

    return one_output(call)


def dat_rmr_query(rmr: object, mask: int) -> tuple[DatReturn, RmrParam | None]:
    """Ask what a window is bound to; `ret, param`."""
    return queried(rmr, RemoteMemory, RemoteMemory.query, mask, RmrField.ALL)


def dat_rmr_free(rmr: object) -> DatReturn:
    """Free a window, unbinding it first."""
    return no_output(lambda: live(rmr, RemoteMemory).free())
