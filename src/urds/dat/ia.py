"""Interface adapters: one opening of a device, and all objects made from it.

The adapter below (`urds.verbs.providers`) gives the lock, the keys, the clock and the way to wait;
this object keeps the list of children, hands on asynchronous events, and closes everything.
Source: dat.md sections 3, 6, 7 and 16.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Final

from urds.dat.attributes import LIMIT_OF, ia_attributes, provider_attributes
from urds.dat.cno import NotificationPoint
from urds.dat.errors import dat_error, demand_bits
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.events import async_number, async_reason
from urds.dat.handles import DatObject, live
from urds.dat.masks import IaField, ProviderField
from urds.dat.numbers import AsyncEvdHandle, EvdFlag, EventNumber, HandleType
from urds.dat.pz import ProtectionZone
from urds.dat.returns import ReturnType, Subtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from urds.dat.ep import Endpoint
    from urds.dat.memory import LocalMemory
    from urds.dat.psp import PublicServicePoint
    from urds.dat.records import IaAttr, LmrTriplet, ProviderAttr, ProxyAgent
    from urds.dat.registry import Support
    from urds.dat.rsp import ReservedServicePoint
    from urds.verbs.engine.work import AsyncEvent
    from urds.verbs.providers.base import Adapter

ASYNC_QLEN_DEFAULT: Final = 8

# An abrupt close ends the children in this order: users before what they use.
_END_ORDER: Final = (
    HandleType.CR, HandleType.PSP, HandleType.RSP, HandleType.EP, HandleType.SRQ,
    HandleType.RMR, HandleType.LMR, HandleType.PZ, HandleType.EVD, HandleType.CNO,
)  # fmt: skip


class InterfaceAdapter(DatObject):
    """One opening of a device. As a context manager it closes abruptly, so nothing is left."""

    handle_type: ClassVar[HandleType] = HandleType.IA
    invalid_subtype: ClassVar[Subtype] = Subtype.INVALID_HANDLE_IA
    in_use_subtype: ClassVar[Subtype] = Subtype.INVALID_STATE_IA_IN_USE

    def __init__(
        self,
        name: str,
        adapter: Adapter,
        *,
        address: str,
        support: Support,
        async_qlen: int = ASYNC_QLEN_DEFAULT,
        async_evd: EventDispatcher | AsyncEvdHandle | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Stand on an adapter that nobody else uses; `on_close` is called once at the end.

        Raises DatInvalidParameter, DatInvalidHandle, DatInsufficientResources.
        """
        self.adapter = adapter
        self.lock = adapter.lock
        self.children: dict[int, DatObject] = {}
        self._counts: Counter[HandleType] = Counter()
        self.regions: dict[int, LocalMemory] = {}  # by lmr_context
        self._owners: dict[int, DatObject] = {}  # of engine objects, by identity
        self._on_close = on_close
        self.address = address
        self.support = support
        self.attr: IaAttr = ia_attributes(name, address, adapter.attributes)
        self.provider_attr: ProviderAttr = provider_attributes(adapter.attributes, support)
        super().__init__(self)
        self._own_async_evd: EventDispatcher | None = None
        self._async_evd: EventDispatcher | None = None
        with self.lock:
            self._take_async_evd(async_evd, async_qlen)
            adapter.on_async_event = self._handle_event

    @property
    def name(self) -> str:
        """Return the name under which the adapter was opened."""
        return self.attr.adapter_name

    @property
    def async_evd(self) -> EventDispatcher | AsyncEvdHandle:
        """Return where asynchronous events go; OUT_OF_SCOPE if that is not known here."""
        return AsyncEvdHandle.OUT_OF_SCOPE if self._async_evd is None else self._async_evd

    # -- making objects

    def create_pz(self) -> ProtectionZone:
        """Make a protection zone."""
        with self.lock:
            self.demand_live()
            return ProtectionZone(self)

    def create_evd(
        self, min_qlen: int, flags: int, cno: NotificationPoint | None = None
    ) -> EventDispatcher:
        """Make an event dispatcher; see there."""
        with self.lock:
            self.demand_live()
            return EventDispatcher(self, min_qlen, EvdFlag(flags), cno)

    def create_cno(self, agent: ProxyAgent | None = None) -> NotificationPoint:
        """Make a notification point."""
        with self.lock:
            self.demand_live()
            return NotificationPoint(self, agent)

    def listen(
        self,
        conn_qual: int | None = None,
        *,
        evd: EventDispatcher,
        provider_ep: bool = False,
    ) -> PublicServicePoint:
        """Listen at a connection qualifier, a free one with `None`; see `urds.dat.psp`."""
        from urds.dat.psp import PublicServicePoint

        return PublicServicePoint(self, conn_qual, evd, provider_ep=provider_ep)

    def reserve(self, conn_qual: int, ep: Endpoint, evd: EventDispatcher) -> ReservedServicePoint:
        """Listen once for an endpoint; see `urds.dat.rsp`."""
        from urds.dat.rsp import ReservedServicePoint

        return ReservedServicePoint(self, conn_qual, ep, evd)

    # -- asking

    def query(
        self, ia_mask: int = IaField.ALL, provider_mask: int = ProviderField.ALL
    ) -> tuple[IaAttr, ProviderAttr]:
        """Return all attributes. Raises DatInvalidParameter: a mask with an unknown bit."""
        demand_bits("mask", ia_mask, IaField.ALL, argument=3)
        demand_bits("mask", provider_mask, ProviderField.ALL, argument=5)
        with self.lock:
            self.demand_live()
            return self.attr, self.provider_attr

    def sync_rdma_read(self, triplets: Iterable[LmrTriplet]) -> None:
        """Make local memory ready for reads of peers: it always is, the pieces are checked."""
        self._sync(triplets)

    def sync_rdma_write(self, triplets: Iterable[LmrTriplet]) -> None:
        """Make writes of peers visible in local memory: they are, the pieces are checked."""
        self._sync(triplets)

    def _sync(self, triplets: Iterable[LmrTriplet]) -> None:
        from urds.dat.memory import find_piece

        with self.lock:
            self.demand_live()
            for triplet in triplets:
                if triplet.segment_length:
                    find_piece(self, triplet)

    # -- closing

    def close(self, graceful: bool = False) -> None:
        """Close the adapter. Abruptly it succeeds in any state and frees all children.

        Gracefully it raises DatInvalidState while objects are left that a program has made.
        """
        with self.lock:
            self.demand_live()
            left = tuple(one for one in self.children.values() if one is not self._own_async_evd)
            if graceful and left:
                detail = f"{len(left)} objects are left, {left[0]!r} among them"
                raise dat_error(ReturnType.INVALID_STATE, self.in_use_subtype, detail)
            self._end_children()
            self.end()
        # Not with the lock: the adapter waits for its thread.
        self.adapter.close()
        self._on_close()

    def free(self) -> None:
        """Close gracefully."""
        self.close(graceful=True)

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.close()

    def _end_children(self) -> None:
        by_kind: dict[HandleType, list[DatObject]] = {kind: [] for kind in _END_ORDER}
        for child in self.children.values():
            by_kind[child.handle_type].append(child)
        for kind in _END_ORDER:
            for child in by_kind[kind]:
                child.end()

    def _dispose(self) -> None:
        self.adapter.on_async_event = lambda _event: None
        self._owners.clear()
        self._async_evd = self._own_async_evd = None

    # -- for the children; lock held

    def demand_own(self, *others: DatObject | None) -> None:
        """Raise DatInvalidHandle if one belongs to another adapter."""
        for other in others:
            if other is not None and other.ia is not self:
                detail = f"{other!r} belongs to another adapter"
                raise dat_error(ReturnType.INVALID_HANDLE, other.invalid_subtype, detail)

    def demand_room(self, kind: HandleType) -> None:
        """Raise DatInsufficientResources if there can be no more objects of this kind."""
        if kind in LIMIT_OF:
            name, subtype = LIMIT_OF[kind]
            limit = getattr(self.attr, name)
            if self._counts[kind] >= limit:
                detail = f"{limit} objects ({name})"
                raise dat_error(ReturnType.INSUFFICIENT_RESOURCES, subtype, detail)

    def admit(self, child: DatObject) -> None:
        """Take a new object into the list of those that close with the adapter."""
        self.children[child.handle] = child
        self._counts[child.handle_type] += 1

    def dismiss(self, child: DatObject) -> None:
        """Take an object that ends from the list."""
        if self.children.pop(child.handle, None) is not None:
            self._counts[child.handle_type] -= 1

    def adopt(self, engine: object, owner: DatObject) -> None:
        """Remember whose engine object this is: asynchronous events about it name the owner."""
        self._owners[id(engine)] = owner

    def disown(self, engine: object) -> None:
        """Forget an engine object."""
        self._owners.pop(id(engine), None)

    def post_async(
        self, number: EventNumber, subject: DatObject, reason: int | None = None
    ) -> None:
        """Queue an asynchronous event about `subject`, where there is a dispatcher for them.

        Unless told, the reason is the one of this event for that kind of object.
        """
        evd = self._async_evd
        if evd is None:
            return
        # The dispatcher of an adapter that was opened earlier has its own lock. Locks are taken
        # in the order of openings, newest first, so two adapters cannot wait for each other.
        with evd.lock:
            if evd.live:
                if reason is None:
                    reason = async_reason(number, subject.handle_type)
                evd.post_async(number, subject, reason)

    def _handle_event(self, event: AsyncEvent) -> None:
        owner = self if event.element is None else self._owners.get(id(event.element))
        if owner is None:
            return
        number = async_number(event.event_type)
        if number is not None:
            self.post_async(number, owner)
        owner.handle_async(event.event_type)

    def _take_async_evd(self, given: EventDispatcher | AsyncEvdHandle | None, qlen: int) -> None:
        if given is AsyncEvdHandle.EXISTS:
            return
        if given is None:
            evd = self._own_async_evd = EventDispatcher(self, qlen, EvdFlag.ASYNC)
        else:
            evd = live(given, EventDispatcher, Role.ASYNC.subtype)
        with evd.lock:
            evd.attach(Role.ASYNC, self)
        self._async_evd = evd
