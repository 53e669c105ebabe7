"""Interface adapters: one device context each, and all objects made from it.

The adapter below (`urds.verbs.providers`) gives the lock, the keys, the clock and the way to wait;
this object makes the others, hands on asynchronous events, and closes everything.
Source: docs/reference/dat.md 3, 6, 7, 16.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from urds.dat.constants import (
    DAT_THREADSAFE,
    DAT_VERSION_MAJOR,
    DAT_VERSION_MINOR,
    AsyncEvdHandle,
    CompletionFlag,
    EpCreator,
    EvdFlag,
    EventNumber,
    HandleType,
    IaField,
    IovOwnership,
    MemType,
    ProviderField,
    PzSupport,
    Qos,
)
from urds.dat.endpoint import Endpoint
from urds.dat.errors import dat_error, demand_bits, from_os_error
from urds.dat.evd import AsyncErrorEvent, EventDispatcher, NotificationPoint, ProxyAgent
from urds.dat.evd_streams import MERGING, Role
from urds.dat.handles import DatObject, OpenDevice, live, while_live
from urds.dat.memory import ProtectionZone, find_piece
from urds.dat.records import IaAttr, LmrTriplet, NamedAttr, ProviderAttr, ProviderInfo
from urds.dat.registry import REGISTRY, Provider, Support
from urds.dat.returns import ReturnType
from urds.dat.service_points import PublicServicePoint, ReservedServicePoint
from urds.verbs.engine.numbers import AsyncEventType
from urds.verbs.engine.work import Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from urds.verbs.engine.work import Event
    from urds.verbs.providers.base import Adapter, DeviceAttributes

PROVIDER_NAME: Final = "urds"
PROVIDER_VERSION: Final = (1, 2)
ADDRESS_LAST: Final = (1 << 64) - 1
PRIVATE_DATA_BYTES_MIN: Final = 64  # what the specification demands

ASYNC_QLEN_DEFAULT: Final = 8
LOOPBACK: Final = "127.0.0.1"

# An abrupt close ends the children in this order: users before what they use.
_END_ORDER: Final = (
    HandleType.CR, HandleType.PSP, HandleType.RSP, HandleType.EP, HandleType.SRQ,
    HandleType.RMR, HandleType.LMR, HandleType.PZ, HandleType.EVD, HandleType.CNO,
)  # fmt: skip

# What is not listed is no event of DAT: the endpoint deals with it, or there is no need.
_ASYNC_NUMBER_OF: Final[dict[AsyncEventType, EventNumber]] = {
    AsyncEventType.CQ_ERR: EventNumber.ASYNC_EVD_OVERFLOW,
    AsyncEventType.DEVICE_FATAL: EventNumber.ASYNC_PROVIDER_INTERNAL_ERROR,
    AsyncEventType.PORT_ERR: EventNumber.ASYNC_IA_CATASTROPHIC,
    AsyncEventType.QP_FATAL: EventNumber.ASYNC_EP_BROKEN,
    AsyncEventType.QP_REQ_ERR: EventNumber.ASYNC_EP_BROKEN,
    AsyncEventType.QP_ACCESS_ERR: EventNumber.ASYNC_EP_BROKEN,
    AsyncEventType.SQ_DRAINED: EventNumber.ASYNC_EP_BROKEN,
    AsyncEventType.SRQ_ERR: EventNumber.ASYNC_PROVIDER_INTERNAL_ERROR,
    AsyncEventType.SRQ_LIMIT_REACHED: EventNumber.ASYNC_WATERMARK,
    AsyncEventType.QP_RECV_SOFT_WATERMARK: EventNumber.ASYNC_WATERMARK,
}
_WATERMARK_REASON: Final = 2  # of an endpoint as of a shared receive queue


_open: Final[WeakSet[InterfaceAdapter]] = WeakSet()


class InterfaceAdapter(DatObject, kind=HandleType.IA):
    """One open device. As a context manager it closes abruptly, so nothing is left."""

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
        """Stand on an adapter of its own; `on_close` is called once at the end.

        Raises DatInvalidParameter, DatInvalidHandle, DatInsufficientResources.
        """
        self.attr: IaAttr = ia_attributes(name, address, adapter.attributes)
        self.provider_attr: ProviderAttr = provider_attributes(adapter.attributes, support)
        self.device = OpenDevice(adapter, address, self.attr, self.provider_attr, support)
        self.name, self.adapter, self.address = name, adapter, address
        self.children: dict[int, DatObject] = self.device.objects  # by handle
        self._on_close = on_close
        super().__init__(self)
        self._own_async_evd: EventDispatcher | None = None
        self._async_evd: EventDispatcher | None = None
        with self.lock:
            self._take_async_evd(async_evd, async_qlen)
            self.device.post_async = self.post_async
            adapter.on_events = self._handle_events
            _open.add(self)

    @property
    def async_evd(self) -> EventDispatcher | AsyncEvdHandle:
        """Return where asynchronous events go; OUT_OF_SCOPE if that is not known here."""
        return AsyncEvdHandle.OUT_OF_SCOPE if self._async_evd is None else self._async_evd

    # -- making objects

    @while_live
    def create_pz(self) -> ProtectionZone:
        """Make a protection zone."""
        return ProtectionZone(self)

    @while_live
    def create_evd(
        self, min_qlen: int, flags: int, cno: NotificationPoint | None = None
    ) -> EventDispatcher:
        """Make an event dispatcher; see there."""
        return EventDispatcher(self, min_qlen, EvdFlag(flags), cno)

    @while_live
    def create_cno(self, agent: ProxyAgent | None = None) -> NotificationPoint:
        """Make a notification point."""
        return NotificationPoint(self, agent)

    def listen(
        self,
        conn_qual: int | None = None,
        *,
        evd: EventDispatcher,
        provider_ep: bool = False,
    ) -> PublicServicePoint:
        """Listen at a connection qualifier, a free one with `None`; see `PublicServicePoint`."""
        return PublicServicePoint(self, conn_qual, evd, provider_ep=provider_ep)

    def reserve(self, conn_qual: int, ep: Endpoint, evd: EventDispatcher) -> ReservedServicePoint:
        """Listen once for an endpoint; see `ReservedServicePoint`."""
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

    @while_live
    def sync_rdma_read(self, triplets: Iterable[LmrTriplet]) -> None:
        """Check pieces of memory; it always is ready for reads of peers, and shows their writes."""
        for triplet in triplets:
            if triplet.segment_length:
                find_piece(self.device, triplet)

    sync_rdma_write = sync_rdma_read

    # -- closing

    def close(self, graceful: bool = False) -> None:
        """Close the adapter. Abruptly it succeeds in any state and frees all children.

        Gracefully it raises DatInvalidState while objects are left that a program has made.
        """
        with self.lock:
            self.demand_live()
            own, children = self._own_async_evd, self.children.values()
            left = tuple(child for child in children if child is not own)
            if graceful and left:
                detail = f"{len(left)} objects are left, {left[0]!r} among them"
                raise dat_error(ReturnType.INVALID_STATE, self.in_use_subtype, detail)
            for child in sorted(children, key=lambda child: _END_ORDER.index(child.handle_type)):
                child.end()
            self.end()
            _open.discard(self)
        # Not with the lock: the adapter waits for its thread.
        self.adapter.close()
        self._on_close()

    def free(self) -> None:
        """Close gracefully."""
        self.close(graceful=True)

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.close()

    def _dispose(self) -> None:
        self.adapter.on_events = None
        self.device.post_async = lambda _number, _subject: None
        self._async_evd = self._own_async_evd = None

    # -- asynchronous events; lock held

    def post_async(self, number: EventNumber, subject: DatObject) -> None:
        """Queue an asynchronous event about `subject`, where there is a dispatcher for them."""
        evd = self._async_evd
        if evd is None:
            return
        # The dispatcher of an adapter that was opened earlier has its own lock. Locks are taken
        # newest adapter first, so two adapters cannot wait for each other.
        with evd.lock:
            if evd.live:
                # Other events have reason 0 of their handle's kind.
                reason = _WATERMARK_REASON if number is EventNumber.ASYNC_WATERMARK else 0
                evd.queue(AsyncErrorEvent(number, evd, subject, reason))

    def _handle_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Completed):
                continue  # no queue here is armed
            owner = self if event.element is None else self.device.owner_of(event.element)
            if owner is None:
                continue
            number = _ASYNC_NUMBER_OF.get(event.event_type)
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


def ia_attributes(name: str, address: str, device: DeviceAttributes) -> IaAttr:
    """Return the attributes of an adapter on this device. Source: docs/reference/dat.md 7.1."""
    transport = (
        NamedAttr("provider", device.provider),
        NamedAttr("mtu_bytes", str(device.link.mtu_bytes)),
        NamedAttr("lossless", str(device.link.lossless)),
    )
    vendor = (NamedAttr("device", device.name),)
    firmware = [int(part) for part in device.fw_ver.split(".")[:2]]
    return IaAttr(
        adapter_name=name,
        vendor_name=device.vendor,
        hardware_version_major=device.hw_ver,
        hardware_version_minor=0,
        firmware_version_major=firmware[0],
        firmware_version_minor=firmware[1],
        ia_address_ptr=address,
        max_eps=device.max_qp,
        max_dto_per_ep=device.max_qp_wr,
        max_rdma_read_per_ep_in=device.max_qp_rd_atom,
        max_rdma_read_per_ep_out=device.max_qp_init_rd_atom,
        max_evds=device.max_cq,
        max_evd_qlen=device.max_cqe,
        max_iov_segments_per_dto=device.max_sge,
        max_lmrs=device.max_mr,
        max_lmr_block_size=device.max_mr_size,
        max_lmr_virtual_address=ADDRESS_LAST,
        max_pzs=device.max_pd,
        max_message_size=device.max_msg_sz,
        max_rdma_size=device.max_msg_sz,
        max_rmrs=device.max_mw,
        max_rmr_target_address=ADDRESS_LAST,
        max_srqs=device.max_srq,
        max_ep_per_srq=device.max_qp,
        max_recv_per_srq=device.max_srq_wr,
        max_iov_segments_per_rdma_read=device.max_sge,
        max_iov_segments_per_rdma_write=device.max_sge,
        max_rdma_read_in=device.max_qp * device.max_qp_rd_atom,
        max_rdma_read_out=device.max_qp * device.max_qp_init_rd_atom,
        max_rdma_read_per_ep_in_guaranteed=True,
        max_rdma_read_per_ep_out_guaranteed=True,
        num_transport_attr=len(transport),
        transport_attr=transport,
        num_vendor_attr=len(vendor),
        vendor_attr=vendor,
    )


def provider_attributes(device: DeviceAttributes, support: Support) -> ProviderAttr:
    """Return the attributes of this provider on this device. Source: docs/reference/dat.md 7.2."""
    assert device.max_private_data >= PRIVATE_DATA_BYTES_MIN, device
    return ProviderAttr(
        provider_name=PROVIDER_NAME,
        provider_version_major=PROVIDER_VERSION[0],
        provider_version_minor=PROVIDER_VERSION[1],
        dapl_version_major=DAT_VERSION_MAJOR,
        dapl_version_minor=DAT_VERSION_MINOR,
        lmr_mem_types_supported=MemType.VIRTUAL | MemType.LMR,
        iov_ownership_on_return=IovOwnership.CONSUMER,
        dat_qos_supported=Qos.BEST_EFFORT,
        completion_flags_supported=CompletionFlag.SUPPRESS
        | CompletionFlag.UNSIGNALLED
        | CompletionFlag.SOLICITED_WAIT
        | CompletionFlag.BARRIER_FENCE,
        is_thread_safe=True,
        max_private_data_size=device.max_private_data,
        supports_multipath=False,
        ep_creator=EpCreator.IFASKED,
        pz_support=PzSupport.UNIQUE,
        optimal_buffer_alignment=64,
        evd_stream_merging_supported=MERGING,
        srq_supported=True,
        srq_watermarks_supported=support.srq_watermarks,
        srq_ep_pz_difference_supported=True,
        srq_info_supported=support.srq_info,
        ep_recv_info_supported=support.ep_recv_info,
        lmr_sync_req=False,
        dto_async_return_guaranteed=True,
        rdma_write_for_rdma_read_req=False,
    )


def open_ia(
    name: str,
    async_qlen: int = ASYNC_QLEN_DEFAULT,
    async_evd: EventDispatcher | AsyncEvdHandle | None = None,
    *,
    major: int = DAT_VERSION_MAJOR,
    minor: int = DAT_VERSION_MINOR,
    is_thread_safe: bool = DAT_THREADSAFE,
) -> InterfaceAdapter:
    """Open an adapter of the registry; `urds.dat.open` is this function.

    Asynchronous events go to a dispatcher that is made with at least `async_qlen` places, to the
    one given, or with AsyncEvdHandle.EXISTS nowhere that is known here. Raises
    DatProviderNotFound, DatInvalidParameter, DatInsufficientResources.
    """
    info, provider = REGISTRY.find(name, major=major, minor=minor, is_thread_safe=is_thread_safe)
    try:
        adapter = provider.open_adapter()
    except OSError as error:
        raise from_os_error(error) from error
    REGISTRY.count_open(provider, 1)
    address = provider.address or str(getattr(adapter, "address", LOOPBACK))
    try:
        return InterfaceAdapter(
            info.ia_name,
            adapter,
            address=address,
            support=provider.support,
            async_qlen=async_qlen,
            async_evd=async_evd,
            on_close=lambda: REGISTRY.count_open(provider, -1),
        )
    except BaseException:
        REGISTRY.count_open(provider, -1)
        adapter.close()
        raise


def providers() -> list[ProviderInfo]:
    """Return the adapters that can be opened by name. Raises DatInternalError: no registry."""
    return REGISTRY.list_providers()


def register(
    name: str,
    open_adapter: Callable[[], Adapter],
    *,
    address: str | None = None,
    support: Support | None = None,
) -> ProviderInfo:
    """Add an adapter to the registry of this process: each open calls `open_adapter`.

    `address` is the numeric IP address of the adapter, `None` its attribute of that name or
    loopback. For a simulated network: `register("sim-a", lambda: network.adapter("a"))`. Raises
    DatProviderAlreadyRegistered.
    """
    info = ProviderInfo(name)
    REGISTRY.add(Provider(open_adapter, address, support or Support()), info)
    return info


def unregister(info: ProviderInfo) -> None:
    """Remove an adapter again. Raises DatProviderNotFound, DatProviderInUse."""
    REGISTRY.remove(info)


def _free_all_in_child() -> None:
    """Free each handle of the parent: the devices below are closed, nothing would ever end."""
    for ia in list(_open):
        for one in (ia, *ia.children.values()):
            one.live = False
    _open.clear()


os.register_at_fork(after_in_child=_free_all_in_child)
