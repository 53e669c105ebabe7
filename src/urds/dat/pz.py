"""Protection zones: what may be used together. Objects of another zone are an error.

Source: docs/reference/dat.md 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from urds.dat.constants import HandleType, MemPriv, MemType
from urds.dat.endpoint import Endpoint
from urds.dat.evd import EventDispatcher
from urds.dat.handles import DatObject, IaHandle
from urds.dat.memory import LocalMemory, RemoteMemory
from urds.dat.records import EpAttr, SrqAttr
from urds.dat.returns import Subtype
from urds.dat.srq import SharedReceiveQueue

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(frozen=True, slots=True)
class PzParam:
    """What a protection zone is. Mask bits: `PzField`."""

    ia_handle: IaHandle


class ProtectionZone(DatObject):
    """A protection zone; to the keys of the adapter it is a protection domain."""

    handle_type: ClassVar[HandleType] = HandleType.PZ
    invalid_subtype: ClassVar[Subtype] = Subtype.INVALID_HANDLE_PZ
    in_use_subtype: ClassVar[Subtype] = Subtype.INVALID_STATE_PZ_IN_USE

    def __init__(self, ia: DatObject) -> None:
        """Make a zone of `ia`. Raises DatInsufficientResources."""
        super().__init__(ia)
        self.enlist()

    def query(self) -> PzParam:
        """Return what the zone is."""
        with self.lock:
            self.demand_live()
            return PzParam(self.ia)

    def register(
        self,
        buffer: ReadableBuffer | LocalMemory,
        privileges: int = MemPriv.ALL,
        mem_type: int = MemType.VIRTUAL,
    ) -> LocalMemory:
        """Register a writable buffer, or with MemType.LMR the memory of another region.

        Raises DatInvalidParameter, DatModelNotSupported, DatInsufficientResources.
        """
        return LocalMemory(self, buffer, privileges, mem_type)

    def create_rmr(self) -> RemoteMemory:
        """Make a window that can be bound to a part of a region."""
        return RemoteMemory(self)

    def create_ep(
        self,
        recv_evd: EventDispatcher | None = None,
        request_evd: EventDispatcher | None = None,
        connect_evd: EventDispatcher | None = None,
        attr: EpAttr | None = None,
        srq: SharedReceiveQueue | None = None,
    ) -> Endpoint:
        """Make an endpoint; see `urds.dat.endpoint`."""
        return Endpoint(self.ia, self, recv_evd, request_evd, connect_evd, attr, srq)

    def create_srq(self, max_recv_dtos: int, max_recv_iov: int = 1) -> SharedReceiveQueue:
        """Make a shared receive queue; see `urds.dat.srq`."""
        return SharedReceiveQueue(self, SrqAttr(max_recv_dtos, max_recv_iov))

    def _dispose(self) -> None:
        self.device.forget_zone(self)
