"""Records that DAT calls take and give, with the field names of the C structures.

Sizes are bytes, `DAT_COUNT` is signed with -1 for "default" and -2 for "unknown", timeouts are
microseconds. Handles in records are the objects themselves, `None` for DAT_HANDLE_NULL. Addresses
are numeric IP addresses as text. Source: docs/reference/dat.md 1.1, 4.1, 4.2, 7, 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from urds.dat.constants import (
    DAT_HW_DEFAULT,
    DAT_SRQ_LW_DEFAULT,
    CompletionFlag,
    EpCreator,
    EpState,
    IovOwnership,
    PzSupport,
    Qos,
    ServiceType,
)

__all__ = [
    "EpAttr", "EpStatus", "IaAttr", "LmrTriplet", "NamedAttr", "ProviderAttr", "ProviderInfo",
    "RecvInfo", "RmrTriplet", "SrqAttr",
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


class EpStatus(NamedTuple):
    """State of an endpoint, and whether nothing is outstanding in either direction."""

    state: EpState
    recv_idle: bool
    request_idle: bool


class RecvInfo(NamedTuple):
    """Receive buffers at an endpoint: how many, and over how many messages they reach.

    `None` is DAT_VALUE_UNKNOWN. Source: docs/reference/dat.md 13.1.
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
