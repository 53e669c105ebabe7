"""Records that DAT calls take and give, with the field names of the C structures.

Sizes are octets, `DAT_COUNT` is signed with -1 for "default" and -2 for "unknown", timeouts are
microseconds. Handles in records are the objects themselves, `None` for DAT_HANDLE_NULL. Addresses
are numeric IP addresses as text. Source: dat.md sections 1.1, 4.1, 4.2, 7 and 12.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from urds.dat.numbers import (
    DAT_HW_DEFAULT,
    DAT_SRQ_LW_DEFAULT,
    CompletionFlag,
    EpCreator,
    EpState,
    EvdFlag,
    EvdState,
    IovOwnership,
    MemPriv,
    MemType,
    PspFlag,
    PzSupport,
    Qos,
    ServiceType,
    SrqState,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from urds.dat.cno import NotificationPoint
    from urds.dat.ep import Endpoint
    from urds.dat.evd import EventDispatcher
    from urds.dat.ia import InterfaceAdapter
    from urds.dat.memory import LocalMemory
    from urds.dat.pz import ProtectionZone
    from urds.dat.srq import SharedReceiveQueue

__all__ = [
    "CnoParam", "CrParam", "EpAttr", "EpParam", "EpStatus", "EvdParam",
    "IaAttr", "LmrParam", "LmrTriplet", "NamedAttr", "ProviderAttr", "ProviderInfo", "ProxyAgent",
    "PspParam", "PzParam", "RecvInfo", "RmrParam", "RmrTriplet", "RspParam", "SrqAttr", "SrqParam",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LmrTriplet:
    """A piece of local memory. With `segment_length` 0 the other fields mean nothing."""

    lmr_context: int
    virtual_address: int
    segment_length: int


@dataclass(frozen=True, slots=True)
class RmrTriplet:
    """A piece of a peer's memory."""

    rmr_context: int
    target_address: int
    segment_length: int


@dataclass(frozen=True, slots=True)
class NamedAttr:
    """An attribute of one transport or provider."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """One line of the registry."""

    ia_name: str
    dapl_version_major: int = 1
    dapl_version_minor: int = 2
    is_thread_safe: bool = True


@dataclass(frozen=True, slots=True)
class ProxyAgent:
    """What a notification point calls once, in a thread of its own, when it is triggered."""

    proxy_agent_func: Callable[[Any, EventDispatcher], object]
    instance_data: Any = None


@dataclass(frozen=True, slots=True)
class IaAttr:
    """What an interface adapter is and can do. Mask bits in order: `IaField`."""

    adapter_name: str
    vendor_name: str
    hardware_version_major: int
    hardware_version_minor: int
    firmware_version_major: int
    firmware_version_minor: int
    ia_address_ptr: str
    max_eps: int
    max_dto_per_ep: int
    max_rdma_read_per_ep_in: int
    max_rdma_read_per_ep_out: int
    max_evds: int
    max_evd_qlen: int
    max_iov_segments_per_dto: int
    max_lmrs: int
    max_lmr_block_size: int
    max_lmr_virtual_address: int
    max_pzs: int
    max_message_size: int
    max_rdma_size: int
    max_rmrs: int
    max_rmr_target_address: int
    max_srqs: int
    max_ep_per_srq: int
    max_recv_per_srq: int
    max_iov_segments_per_rdma_read: int
    max_iov_segments_per_rdma_write: int
    max_rdma_read_in: int
    max_rdma_read_out: int
    max_rdma_read_per_ep_in_guaranteed: bool
    max_rdma_read_per_ep_out_guaranteed: bool
    num_transport_attr: int = 0
    transport_attr: tuple[NamedAttr, ...] = ()
    num_vendor_attr: int = 0
    vendor_attr: tuple[NamedAttr, ...] = ()


@dataclass(frozen=True, slots=True)
class ProviderAttr:
    """What a provider offers. Mask bits in order: `ProviderField`."""

    provider_name: str
    provider_version_major: int
    provider_version_minor: int
    dapl_version_major: int
    dapl_version_minor: int
    lmr_mem_types_supported: int
    iov_ownership_on_return: IovOwnership
    dat_qos_supported: Qos
    completion_flags_supported: CompletionFlag
    is_thread_safe: bool
    max_private_data_size: int
    supports_multipath: bool
    ep_creator: EpCreator
    pz_support: PzSupport
    optimal_buffer_alignment: int
    # Rows and columns: software, CR, DTO, connection, RMR bind, asynchronous.
    evd_stream_merging_supported: tuple[tuple[bool, ...], ...]
    srq_supported: bool
    srq_watermarks_supported: int
    srq_ep_pz_difference_supported: bool
    srq_info_supported: int
    ep_recv_info_supported: int
    lmr_sync_req: bool
    dto_async_return_guaranteed: bool
    rdma_write_for_rdma_read_req: bool
    num_provider_specific_attr: int = 0
    provider_specific_attr: tuple[NamedAttr, ...] = ()


@dataclass(frozen=True, slots=True)
class EpAttr:
    """Attributes of an endpoint; the defaults are those of both reference providers.

    With a shared receive queue `max_recv_dtos` is the hard high watermark and `srq_soft_hw` the
    soft one; DAT_HW_DEFAULT, and there 0 as well, is no mark.
    """

    service_type: ServiceType = ServiceType.RC
    max_message_size: int = 1 << 31
    max_rdma_size: int = 1 << 31
    qos: Qos = Qos.BEST_EFFORT
    recv_completion_flags: CompletionFlag = CompletionFlag.EVD_THRESHOLD
    request_completion_flags: CompletionFlag = CompletionFlag.EVD_THRESHOLD
    max_recv_dtos: int = 16
    max_request_dtos: int = 16
    max_recv_iov: int = 4
    max_request_iov: int = 4
    max_rdma_read_in: int = 4
    max_rdma_read_out: int = 4
    srq_soft_hw: int = DAT_HW_DEFAULT
    max_rdma_read_iov: int = 4
    max_rdma_write_iov: int = 4
    ep_transport_specific_count: int = 0
    ep_transport_specific: tuple[NamedAttr, ...] = ()
    ep_provider_specific_count: int = 0
    ep_provider_specific: tuple[NamedAttr, ...] = ()


@dataclass(frozen=True, slots=True)
class EpParam:
    """What an endpoint is at this moment. Mask bits: `EpField`."""

    ia_handle: InterfaceAdapter | None = None
    ep_state: EpState = EpState.UNCONNECTED
    local_ia_address_ptr: str | None = None
    local_port_qual: int = 0
    remote_ia_address_ptr: str | None = None
    remote_port_qual: int = 0
    pz_handle: ProtectionZone | None = None
    recv_evd_handle: EventDispatcher | None = None
    request_evd_handle: EventDispatcher | None = None
    connect_evd_handle: EventDispatcher | None = None
    srq_handle: SharedReceiveQueue | None = None
    ep_attr: EpAttr = field(default_factory=EpAttr)


class EpStatus(NamedTuple):
    """State of an endpoint, and whether nothing is outstanding in either direction."""

    state: EpState
    recv_idle: bool
    request_idle: bool


class RecvInfo(NamedTuple):
    """Receive buffers at an endpoint: how many, and over how many messages they reach.

    `None` is DAT_VALUE_UNKNOWN. Source: dat.md section 13.1.
    """

    nbufs_allocated: int | None
    bufs_alloc_span: int | None

    @property
    def missing(self) -> int | None:
        """Return how many buffers the endpoint has yet to take, `None` if it is not known."""
        if self.nbufs_allocated is None or self.bufs_alloc_span is None:
            return None
        return self.bufs_alloc_span - self.nbufs_allocated


@dataclass(frozen=True, slots=True)
class SrqAttr:
    """Attributes of a shared receive queue. A new queue takes DAT_SRQ_LW_DEFAULT only."""

    max_recv_dtos: int
    max_recv_iov: int = 1
    low_watermark: int = DAT_SRQ_LW_DEFAULT


@dataclass(frozen=True, slots=True)
class SrqParam:
    """What a shared receive queue is at this moment. Mask bits: `SrqField`.

    A count is `None` in the object layer where the C call gives DAT_VALUE_UNKNOWN.
    """

    ia_handle: InterfaceAdapter
    srq_state: SrqState
    pz_handle: ProtectionZone
    max_recv_dtos: int
    max_recv_iov: int
    low_watermark: int
    available_dto_count: int | None
    outstanding_dto_count: int | None


@dataclass(frozen=True, slots=True)
class EvdParam:
    """What an event dispatcher is at this moment. Mask bits: `EvdField`."""

    ia_handle: InterfaceAdapter
    evd_qlen: int
    evd_state: EvdState
    cno_handle: NotificationPoint | None
    evd_flags: EvdFlag


@dataclass(frozen=True, slots=True)
class CnoParam:
    """What a notification point is at this moment. Mask bits: `CnoField`."""

    ia_handle: InterfaceAdapter
    agent: ProxyAgent | None


@dataclass(frozen=True, slots=True)
class PzParam:
    """What a protection zone is. Mask bits: `PzField`."""

    ia_handle: InterfaceAdapter


@dataclass(frozen=True, slots=True)
class PspParam:
    """What a public service point is. Mask bits: `PspField`."""

    ia_handle: InterfaceAdapter
    conn_qual: int
    evd_handle: EventDispatcher
    psp_flags: PspFlag


@dataclass(frozen=True, slots=True)
class RspParam:
    """What a reserved service point is. Mask bits: `RspField`."""

    ia_handle: InterfaceAdapter
    conn_qual: int
    evd_handle: EventDispatcher
    ep_handle: Endpoint


@dataclass(frozen=True, slots=True)
class CrParam:
    """What a connection request says. Mask bits: `CrField`."""

    remote_ia_address_ptr: str
    remote_port_qual: int
    private_data_size: int
    private_data: bytes
    local_ep_handle: Endpoint | None


@dataclass(frozen=True, slots=True)
class LmrParam:
    """What a local memory region is. Mask bits: `LmrField`.

    `region_desc` is the registered buffer, or the region that this one was made of.
    """

    ia_handle: InterfaceAdapter
    mem_type: MemType
    region_desc: memoryview | LocalMemory
    length: int
    pz_handle: ProtectionZone
    mem_priv: MemPriv
    lmr_context: int
    rmr_context: int
    registered_size: int
    registered_address: int


@dataclass(frozen=True, slots=True)
class RmrParam:
    """What a remote memory region is bound to; `None` while it is not. Mask bits: `RmrField`."""

    ia_handle: InterfaceAdapter
    pz_handle: ProtectionZone
    lmr_triplet: LmrTriplet | None
    mem_priv: MemPriv
    rmr_context: int
