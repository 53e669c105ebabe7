"""Protection zones: what may be used together. Objects of other zones are refused.

Source: dat.md section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from urds.dat.handles import DatObject
from urds.dat.numbers import HandleType, MemPriv, MemType
from urds.dat.records import EpAttr, PzParam, SrqAttr
from urds.dat.returns import Subtype
from urds.verbs.engine.numbers import AccessFlag

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from urds.dat.ep import Endpoint
    from urds.dat.evd import EventDispatcher
    from urds.dat.ia import InterfaceAdapter
    from urds.dat.memory import LocalMemory, RemoteMemory
    from urds.dat.srq import SharedReceiveQueue
    from urds.verbs.engine.keys import Region


class ProtectionZone(DatObject):
    """A protection zone; to the keys of the adapter it is a protection domain."""

    handle_type: ClassVar[HandleType] = HandleType.PZ
    invalid_subtype: ClassVar[Subtype] = Subtype.INVALID_HANDLE_PZ
    in_use_subtype: ClassVar[Subtype] = Subtype.INVALID_STATE_PZ_IN_USE

    def __init__(self, ia: InterfaceAdapter) -> None:
        """Make a zone of `ia`. Raises DatInsufficientResources."""
        super().__init__(ia)
        self._unbinding: Region | None = None
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
        from urds.dat.memory import LocalMemory

        return LocalMemory(self, buffer, privileges, mem_type)

    def create_rmr(self) -> RemoteMemory:
        """Make a window that can be bound to a part of a region."""
        from urds.dat.memory import RemoteMemory

        return RemoteMemory(self)

    def create_ep(
        self,
        recv_evd: EventDispatcher | None = None,
        request_evd: EventDispatcher | None = None,
        connect_evd: EventDispatcher | None = None,
        attr: EpAttr | None = None,
        srq: SharedReceiveQueue | None = None,
    ) -> Endpoint:
        """Make an endpoint; see `urds.dat.ep`."""
        from urds.dat.ep import Endpoint

        return Endpoint(self.ia, self, recv_evd, request_evd, connect_evd, attr, srq)

    def create_srq(self, max_recv_dtos: int, max_recv_iov: int = 1) -> SharedReceiveQueue:
        """Make a shared receive queue; see `urds.dat.srq`."""
        from urds.dat.srq import SharedReceiveQueue

        return SharedReceiveQueue(self, SrqAttr(max_recv_dtos, max_recv_iov))

    # -- inside

    def unbinding_region(self) -> Region:
        """Return the region that a bind of no octets names: it must name one. Lock held."""
        if self._unbinding is None:
            view = memoryview(bytearray(1))
            self._unbinding = self.ia.adapter.keys.register(self, view, 0, AccessFlag.MW_BIND)
        return self._unbinding

    def _dispose(self) -> None:
        if self._unbinding is not None:
            self.ia.adapter.keys.deregister(self._unbinding)
