"""Attributes of interface adapters and of this provider, all fields filled.

Source: docs/reference/dat.md 7.1 (which verbs attribute each comes from) and 7.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from urds.dat.constants import (
    DAT_VERSION_MAJOR,
    DAT_VERSION_MINOR,
    CompletionFlag,
    EpCreator,
    IovOwnership,
    MemType,
    PzSupport,
    Qos,
)
from urds.dat.evd_streams import MERGING
from urds.dat.records import IaAttr, NamedAttr, ProviderAttr

if TYPE_CHECKING:
    from urds.dat.registry import Support
    from urds.verbs.providers.base import DeviceAttributes

PROVIDER_NAME: Final = "urds"
PROVIDER_VERSION: Final = (1, 2)
ADDRESS_LAST: Final = (1 << 64) - 1
PRIVATE_DATA_BYTES_MIN: Final = 64  # what the specification demands


def ia_attributes(name: str, address: str, device: DeviceAttributes) -> IaAttr:
    """Return the attributes of an adapter on this device."""
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
    """Return the attributes of this provider on this device."""
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
