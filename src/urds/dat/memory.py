"""Protection zones; local memory, registered for transfers; remote memory, windows on parts of it.

Objects of different zones cannot be used together. A region has a context for local pieces and, if
its privileges let a peer in, one for peers; below they are the keys of the adapter, which check
every access; what can be told when a request is posted is told then, by `OpenDevice.pieces`.
Reading locally is always granted. Addresses are those of the buffer in this process; nothing
follows one, they only count bytes within a region.
Source: docs/reference/dat.md 3, 11.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from urds.common.buffers import address_of, bytes_of
from urds.dat.constants import CompletionFlag, DtoStatus, EventNumber, HandleType, MemPriv, MemType
from urds.dat.endpoint import Endpoint
from urds.dat.errors import DatError, bad_argument, dat_error, demand_bits, from_os_error, raise_for
from urds.dat.evd import Event, EventDispatcher
from urds.dat.handles import DatObject, OpenDevice, live, while_live
from urds.dat.records import EpAttr, LmrTriplet, RmrTriplet, SrqAttr
from urds.dat.returns import ReturnType, Subtype
from urds.dat.srq import SharedReceiveQueue
from urds.verbs.engine.keys import MemoryWindow, WindowBinding, next_variant
from urds.verbs.engine.numbers import AccessFlag, WROpcode
from urds.verbs.records import SendWR

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_REMOTE: Final = MemPriv.REMOTE_READ | MemPriv.REMOTE_WRITE


@dataclass(frozen=True, slots=True)
class PzParam:
    """What a protection zone is. Mask bits: `PzField`."""

    ia_handle: DatObject


@dataclass(frozen=True, slots=True)
class LmrParam:
    """What a local memory region is. Mask bits: `LmrField`.

    `region_desc` is the registered buffer, or the region that this one was made of.
    """

    ia_handle: DatObject
    mem_type: MemType
    region_desc: memoryview | LocalMemory
    length: int
    pz_handle: DatObject
    mem_priv: MemPriv
    lmr_context: int
    rmr_context: int
    registered_size: int
    registered_address: int


@dataclass(frozen=True, slots=True)
class RmrParam:
    """What a remote memory region is bound to; `None` while it is not. Mask bits: `RmrField`."""

    ia_handle: DatObject
    pz_handle: DatObject
    lmr_triplet: LmrTriplet | None
    mem_priv: MemPriv
    rmr_context: int


@dataclass(frozen=True, slots=True)
class RmrBindCompletionEvent(Event):
    """A bind is over."""

    rmr_handle: RemoteMemory
    user_cookie: Any
    status: DtoStatus

    def raise_for_status(self) -> None:
        """Raise DatCompletionError if the bind did not succeed."""
        raise_for(self.status, f"bind of cookie {self.user_cookie!r}")


class ProtectionZone(DatObject, kind=HandleType.PZ):
    """A protection zone; to the keys of the adapter it is a protection domain."""

    def __init__(self, ia: DatObject) -> None:
        """Make a zone of `ia`. Raises DatInsufficientResources."""
        super().__init__(ia)
        self.device.add(self)

    @while_live
    def query(self) -> PzParam:
        """Return what the zone is."""
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


class LocalMemory(DatObject, kind=HandleType.LMR):
    """A registered buffer; the buffer stays alive and exported until the region is freed.

    `address` is that of its first byte, `size` how many bytes are registered, 0 once freed.
    """

    def __init__(
        self,
        pz: DatObject,
        source: ReadableBuffer | LocalMemory,
        privileges: int = MemPriv.ALL,
        mem_type: int = MemType.VIRTUAL,
        length_bytes: int | None = None,
    ) -> None:
        """Register `length_bytes` of a writable buffer, or all that another region covers.

        `pz` is of the adapter that the other region is of, not needfully its zone. Raises
        DatInvalidParameter: buffer, length, privileges; DatModelNotSupported: SHARED_VIRTUAL;
        DatInsufficientResources.
        """
        ia = pz.ia
        with ia.lock:
            pz.demand_live()
            super().__init__(ia)
            demand_bits("privileges", privileges, MemPriv.ALL, argument=6)
            self.privileges = MemPriv(privileges)
            view, address = self._memory_of(source, mem_type, length_bytes)
            try:
                access = _access(self.privileges)
                self.region = self.device.adapter.register(pz, view, address, access)
            except OSError as error:
                raise from_os_error(error) from error
            self.pz: DatObject = pz
            self._origin = source if isinstance(source, LocalMemory) else None
            self._view = view
            self.address, self.size = self.region.address, self.region.length
            self.is_writable = AccessFlag.LOCAL_WRITE in access
            self.hold(pz)
            self.device.add(self)
            self.device.memories[self.lmr_context] = self

    # -- what it is

    @property
    def lmr_context(self) -> int:
        """Return the context for local pieces."""
        return self.region.lkey

    @property
    def rmr_context(self) -> int:
        """Return the context for peers, 0 if the privileges let none in."""
        return self.region.rkey if self.privileges & _REMOTE else 0

    @property
    @while_live
    def view(self) -> memoryview:
        """Return the memory as bytes; not a copy."""
        return self._view

    @while_live
    def query(self) -> LmrParam:
        """Return what the region is."""
        return LmrParam(
            ia_handle=self.ia,
            mem_type=self.mem_type,
            region_desc=self._origin or self._view,
            length=self.size,
            pz_handle=self.pz,
            mem_priv=self.privileges,
            lmr_context=self.lmr_context,
            rmr_context=self.rmr_context,
            registered_size=self.size,
            registered_address=self.address,
        )

    # -- pieces of it

    def triplet(self, offset_bytes: int = 0, length_bytes: int | None = None) -> LmrTriplet:
        """Return a piece for a local list, to the end unless told. Raises DatInvalidParameter."""
        return LmrTriplet(self.lmr_context, *self._extent(offset_bytes, length_bytes))

    def remote_triplet(self, offset_bytes: int = 0, length_bytes: int | None = None) -> RmrTriplet:
        """Return a piece to tell a peer, to the end unless told.

        Raises DatInvalidParameter; DatPrivilegesViolation if no peer is let in.
        """
        if not self.rmr_context:
            detail = f"{self!r} was registered with {self.privileges!r}"
            raise dat_error(ReturnType.PRIVILEGES_VIOLATION, detail=detail)
        return RmrTriplet(self.rmr_context, *self._extent(offset_bytes, length_bytes))

    # -- inside

    @while_live
    def _extent(self, offset_bytes: int, length_bytes: int | None) -> tuple[int, int]:
        count = self.size - offset_bytes if length_bytes is None else length_bytes
        if not (0 <= offset_bytes <= self.size and 0 <= count <= self.size - offset_bytes):
            detail = f"{count} bytes at offset {offset_bytes} of {self.size}"
            raise dat_error(ReturnType.INVALID_PARAMETER, detail=detail)
        return self.address + offset_bytes, count

    def _memory_of(
        self, source: ReadableBuffer | LocalMemory, mem_type: int, length_bytes: int | None
    ) -> tuple[memoryview, int]:
        if mem_type == MemType.LMR:
            self.mem_type = MemType.LMR
            other = live(source, LocalMemory)
            self.device.demand_own(other)
            return memoryview(other.region.view), other.address
        if mem_type == MemType.SHARED_VIRTUAL:
            raise dat_error(ReturnType.MODEL_NOT_SUPPORTED, detail="memory type SHARED_VIRTUAL")
        if mem_type != MemType.VIRTUAL:
            raise bad_argument(2, f"memory type {mem_type}")
        self.mem_type = MemType.VIRTUAL
        view = _bytes(source)
        count = view.nbytes if length_bytes is None else length_bytes
        limit = min(view.nbytes, self.device.attr.max_lmr_block_size)
        if not 1 <= count <= limit:
            raise bad_argument(4, f"{count} bytes, from 1 to {limit}")
        return view[:count], address_of(view)

    def _dispose(self) -> None:
        del self.device.memories[self.lmr_context]
        self.device.adapter.deregister(self.region)
        self.size = 0
        self._origin = None
        # A slice that a program holds keeps the buffer exported; that is its own affair.
        with suppress(BufferError):
            self._view.release()


@dataclass(frozen=True, slots=True)
class _Binding:
    """What a bind asked for, or what holds now."""

    lmr: LocalMemory | None = None
    triplet: LmrTriplet | None = None
    privileges: MemPriv = MemPriv.NONE

    def is_of(self, window: MemoryWindow) -> bool:
        """Return whether this is what the window stands for now."""
        if self.lmr is None or self.triplet is None:
            return window.region is None
        place = (self.triplet.virtual_address, self.triplet.segment_length)
        return window.region is self.lmr.region and place == (window.address, window.length)


class RemoteMemory(DatObject, kind=HandleType.RMR):
    """A window: a context for peers that stands for a part of a region while it is bound to it.

    Its region cannot be freed from the post of the bind until it is bound elsewhere or freed.
    """

    def __init__(self, pz: DatObject) -> None:
        """Make an unbound window. Raises DatInsufficientResources, DatModelNotSupported."""
        ia = pz.ia
        with ia.lock:
            pz.demand_live()
            super().__init__(ia)
            if not ia.device.adapter.attributes.memory_windows:
                raise dat_error(ReturnType.MODEL_NOT_SUPPORTED, detail="memory windows")
            try:
                self.window = ia.device.adapter.window(pz, 1)
            except OSError as error:
                raise from_os_error(error) from error
            self.pz: DatObject = pz
            self._bound = _Binding()
            # By the request's record: endpoints complete their binds in any order.
            self._pending: list[tuple[WindowBinding, _Binding]] = []
            self.rmr_context = self.window.rkey  # as of the bind that was posted last
            self.hold(pz)
            self.device.add(self)

    @while_live
    def bind(
        self,
        ep: Endpoint,
        triplet: LmrTriplet,
        privileges: int,
        cookie: Any = None,
        flags: int = CompletionFlag.DEFAULT,
    ) -> int:
        """Post a bind on an endpoint and return the context that holds once it has completed.

        Requests posted later on that endpoint wait for it. A piece of length 0 unbinds. Raises
        DatInvalidParameter: piece, privileges, flags; DatProtectionViolation: endpoint, region
        and window must be of one zone; DatPrivilegesViolation: REMOTE_WRITE needs LOCAL_WRITE;
        DatInvalidState, DatInsufficientResources as any request of the endpoint.
        """
        live(ep, Endpoint)
        self.device.demand_own(ep)
        binding = self._checked_binding(ep, triplet, privileges)
        region = binding.lmr.region if binding.lmr else self.device.unbinding_region(self.pz)
        asked = WindowBinding(
            region,
            triplet.virtual_address if binding.lmr else region.address,
            triplet.segment_length,
            _access(binding.privileges & _REMOTE) & ~(AccessFlag.LOCAL_WRITE),
        )
        request = SendWR(opcode=WROpcode.BIND_MW, window=self.window, bind=asked)
        # Before the post: where nothing has to be waited for, the bind completes within it.
        self.hold(binding.lmr)
        self._pending.append((asked, binding))
        context = self.rmr_context = next_variant(self.rmr_context)
        try:
            ep.transfers.post_bind(
                request, cookie, flags, self._bind_event, partial(self._note_bound, asked)
            )
        except DatError:
            self._pending.pop()
            self.drop(binding.lmr)
            self._foretell_context()
            raise
        return context

    @while_live
    def query(self) -> RmrParam:
        """Return what the window stands for."""
        bound = self._bound
        return RmrParam(self.ia, self.pz, bound.triplet, bound.privileges, self.rmr_context)

    def _note_bound(self, asked: WindowBinding) -> None:
        """Note that a bind has completed; its endpoint tells. Lock held.

        The window says what holds now: a bind that was carried out behind requests that had yet
        to complete may be flushed with them, and a later one may have taken its place.
        """
        if not self.live:
            return
        place = next(i for i, (each, _) in enumerate(self._pending) if each is asked)
        _, binding = self._pending.pop(place)
        if binding.is_of(self.window):
            binding, self._bound = self._bound, binding
        self.drop(binding.lmr)
        self._foretell_context()

    def _bind_event(
        self, evd: EventDispatcher, cookie: Any, status: DtoStatus, _byte_count: int
    ) -> RmrBindCompletionEvent:
        """Return the event of a bind that has completed."""
        return RmrBindCompletionEvent(EventNumber.RMR_BIND_COMPLETION, evd, self, cookie, status)

    def _foretell_context(self) -> None:
        self.rmr_context = self.window.rkey
        for _ in self._pending:
            self.rmr_context = next_variant(self.rmr_context)

    def _checked_binding(self, ep: Endpoint, triplet: LmrTriplet, privileges: int) -> _Binding:
        if not isinstance(triplet, LmrTriplet):
            raise bad_argument(2, f"{triplet!r} is no piece of local memory")
        demand_bits("privileges", privileges, MemPriv.ALL, argument=3)
        if ep.pz is not self.pz:
            detail = f"{ep!r} is of zone {ep.pz!r}, not {self.pz!r}"
            raise dat_error(ReturnType.PROTECTION_VIOLATION, detail=detail)
        if triplet.segment_length == 0:
            return _Binding()
        lmr = find_piece(self.device, triplet)
        if lmr.pz is not self.pz:
            detail = f"{lmr!r} is of zone {lmr.pz!r}, not {self.pz!r}"
            raise dat_error(ReturnType.PROTECTION_VIOLATION, detail=detail)
        if privileges & MemPriv.REMOTE_WRITE and not lmr.privileges & MemPriv.LOCAL_WRITE:
            detail = f"REMOTE_WRITE, but {lmr!r} has {lmr.privileges!r}"
            subtype = Subtype.PRIVILEGES_RDMA_WRITE
            raise dat_error(ReturnType.PRIVILEGES_VIOLATION, subtype, detail)
        return _Binding(lmr, triplet, MemPriv(privileges))

    def _dispose(self) -> None:
        self.device.adapter.free_window(self.window)
        self._pending.clear()
        self._bound = _Binding()


def find_piece(device: OpenDevice, triplet: LmrTriplet) -> LocalMemory:
    """Return the region of a piece; lock held.

    Raises DatPrivilegesViolation: no region has this context. DatInvalidParameter: the piece is
    not inside.
    """
    lmr = device.memories.get(triplet.lmr_context)
    if not isinstance(lmr, LocalMemory):
        detail = f"context {triplet.lmr_context:#x} is not valid"
        raise dat_error(ReturnType.PRIVILEGES_VIOLATION, detail=detail)
    start = triplet.virtual_address - lmr.address
    if not (0 <= start <= lmr.size and 0 <= triplet.segment_length <= lmr.size - start):
        piece = f"{triplet.segment_length} bytes at {triplet.virtual_address:#x}"
        raise bad_argument(2, f"{piece} outside {lmr.size} at {lmr.address:#x}")
    return lmr


def _access(privileges: MemPriv) -> AccessFlag:
    """Return the access flags below. Writing by peers needs local writing beside it there."""
    access = AccessFlag.MW_BIND
    if privileges & (MemPriv.LOCAL_WRITE | MemPriv.REMOTE_WRITE):
        access |= AccessFlag.LOCAL_WRITE
    if privileges & MemPriv.REMOTE_WRITE:
        access |= AccessFlag.REMOTE_WRITE
    if privileges & MemPriv.REMOTE_READ:
        access |= AccessFlag.REMOTE_READ
    return access


def _bytes(source: object) -> memoryview:
    """Return a view of a buffer's bytes. Raises DatInvalidParameter: not writable, contiguous."""
    try:
        view = memoryview(source)  # type: ignore[arg-type]  # raises for what is none
    except TypeError as error:
        raise bad_argument(3, str(error)) from error
    if view.readonly or not view.c_contiguous or not view.nbytes:
        kind = type(source).__name__
        raise bad_argument(3, f"{kind}: a buffer must be writable, contiguous and not empty")
    return bytes_of(view)
