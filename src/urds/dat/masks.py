"""Query masks of uDAPL 1.2: which fields of a record a query or a modify means.

A query here fills all fields whatever the mask says, which the specification allows; a mask with
an unknown bit is refused. Source: dat.md sections 1.2, 4.2 and 7.
"""

from enum import IntFlag


class EvdField(IntFlag):
    """Fields of `EvdParam`."""

    IA_HANDLE = 0x01
    EVD_QLEN = 0x02
    EVD_STATE = 0x04
    CNO = 0x08
    EVD_FLAGS = 0x10
    ALL = 0x1F


class CnoField(IntFlag):
    """Fields of `CnoParam`."""

    IA_HANDLE = 1
    AGENT = 2
    ALL = 3


class PzField(IntFlag):
    """Fields of `PzParam`."""

    IA_HANDLE = 1
    ALL = 1


class PspField(IntFlag):
    """Fields of `PspParam`."""

    IA_HANDLE = 1
    CONN_QUAL = 2
    EVD_HANDLE = 4
    PSP_FLAGS = 8
    ALL = 0xF


class RspField(IntFlag):
    """Fields of `RspParam`."""

    IA_HANDLE = 1
    CONN_QUAL = 2
    EVD_HANDLE = 4
    EP_HANDLE = 8
    ALL = 0xF


class CrField(IntFlag):
    """Fields of `CrParam`."""

    REMOTE_IA_ADDRESS_PTR = 0x01
    REMOTE_PORT_QUAL = 0x02
    PRIVATE_DATA_SIZE = 0x04
    PRIVATE_DATA = 0x08
    LOCAL_EP_HANDLE = 0x10
    ALL = 0x1F


class LmrField(IntFlag):
    """Fields of `LmrParam`."""

    IA_HANDLE = 0x001
    MEM_TYPE = 0x002
    REGION_DESC = 0x004
    LENGTH = 0x008
    PZ_HANDLE = 0x010
    MEM_PRIV = 0x020
    LMR_CONTEXT = 0x040
    RMR_CONTEXT = 0x080
    REGISTERED_SIZE = 0x100
    REGISTERED_ADDRESS = 0x200
    ALL = 0x3FF


class RmrField(IntFlag):
    """Fields of `RmrParam`."""

    IA_HANDLE = 0x01
    PZ_HANDLE = 0x02
    LMR_TRIPLET = 0x04
    MEM_PRIV = 0x08
    RMR_CONTEXT = 0x10
    ALL = 0x1F


class SrqField(IntFlag):
    """Fields of `SrqParam`."""

    IA_HANDLE = 0x01
    SRQ_STATE = 0x02
    PZ_HANDLE = 0x04
    MAX_RECV_DTO = 0x08
    MAX_RECV_IOV = 0x10
    LOW_WATERMARK = 0x20
    AVAILABLE_DTO_COUNT = 0x40
    OUTSTANDING_DTO_COUNT = 0x80
    ALL = 0xFF


class EpField(IntFlag):
    """Fields of `EpParam` and, from 0x1000 up, of its `EpAttr`."""

    IA_HANDLE = 0x1
    EP_STATE = 0x2
    LOCAL_IA_ADDRESS_PTR = 0x4
    LOCAL_PORT_QUAL = 0x8
    REMOTE_IA_ADDRESS_PTR = 0x10
    REMOTE_PORT_QUAL = 0x20
    PZ_HANDLE = 0x40
    RECV_EVD_HANDLE = 0x80
    REQUEST_EVD_HANDLE = 0x100
    CONNECT_EVD_HANDLE = 0x200
    SRQ_HANDLE = 0x400
    EP_ATTR_SERVICE_TYPE = 0x1000
    EP_ATTR_MAX_MESSAGE_SIZE = 0x2000
    EP_ATTR_MAX_RDMA_SIZE = 0x4000
    EP_ATTR_QOS = 0x8000
    EP_ATTR_RECV_COMPLETION_FLAGS = 0x10000
    EP_ATTR_REQUEST_COMPLETION_FLAGS = 0x20000
    EP_ATTR_MAX_RECV_DTOS = 0x40000
    EP_ATTR_MAX_REQUEST_DTOS = 0x80000
    EP_ATTR_MAX_RECV_IOV = 0x100000
    EP_ATTR_MAX_REQUEST_IOV = 0x200000
    EP_ATTR_MAX_RDMA_READ_IN = 0x400000
    EP_ATTR_MAX_RDMA_READ_OUT = 0x800000
    EP_ATTR_SRQ_SOFT_HW = 0x1000000
    EP_ATTR_MAX_RDMA_READ_IOV = 0x2000000
    EP_ATTR_MAX_RDMA_WRITE_IOV = 0x4000000
    EP_ATTR_NUM_TRANSPORT_ATTR = 0x8000000
    EP_ATTR_TRANSPORT_SPECIFIC_ATTR = 0x10000000
    EP_ATTR_NUM_PROVIDER_ATTR = 0x20000000
    EP_ATTR_PROVIDER_SPECIFIC_ATTR = 0x40000000
    EP_ATTR_ALL = 0x7FFFF000
    ALL = 0x7FFFF7FF


class IaField(IntFlag):
    """Fields of `IaAttr`."""

    NONE = 0
    ADAPTER_NAME = 1 << 0
    VENDOR_NAME = 1 << 1
    HARDWARE_MAJOR_VERSION = 1 << 2
    HARDWARE_MINOR_VERSION = 1 << 3
    FIRMWARE_MAJOR_VERSION = 1 << 4
    FIRMWARE_MINOR_VERSION = 1 << 5
    ADDRESS_PTR = 1 << 6
    MAX_EPS = 1 << 7
    MAX_DTO_PER_EP = 1 << 8
    MAX_RDMA_READ_PER_EP_IN = 1 << 9
    MAX_RDMA_READ_PER_EP_OUT = 1 << 10
    MAX_EVDS = 1 << 11
    MAX_EVD_QLEN = 1 << 12
    MAX_IOV_SEGMENTS_PER_DTO = 1 << 13
    MAX_LMRS = 1 << 14
    MAX_LMR_BLOCK_SIZE = 1 << 15
    MAX_LMR_VIRTUAL_ADDRESS = 1 << 16
    MAX_PZS = 1 << 17
    MAX_MESSAGE_SIZE = 1 << 18
    MAX_RDMA_SIZE = 1 << 19
    MAX_RMRS = 1 << 20
    MAX_RMR_TARGET_ADDRESS = 1 << 21
    MAX_SRQS = 1 << 22
    MAX_EP_PER_SRQ = 1 << 23
    MAX_RECV_PER_SRQ = 1 << 24
    MAX_IOV_SEGMENTS_PER_RDMA_READ = 1 << 25
    MAX_IOV_SEGMENTS_PER_RDMA_WRITE = 1 << 26
    MAX_RDMA_READ_IN = 1 << 27
    MAX_RDMA_READ_OUT = 1 << 28
    MAX_RDMA_READ_PER_EP_IN_GUARANTEED = 1 << 29
    MAX_RDMA_READ_PER_EP_OUT_GUARANTEED = 1 << 30
    NUM_TRANSPORT_ATTR = 1 << 31
    TRANSPORT_ATTR = 1 << 32
    NUM_VENDOR_ATTR = 1 << 33
    VENDOR_ATTR = 1 << 34
    ALL = 0x7FFFFFFFF


class ProviderField(IntFlag):
    """Fields of `ProviderAttr`."""

    NONE = 0
    PROVIDER_NAME = 1 << 0
    PROVIDER_VERSION_MAJOR = 1 << 1
    PROVIDER_VERSION_MINOR = 1 << 2
    DAPL_VERSION_MAJOR = 1 << 3
    DAPL_VERSION_MINOR = 1 << 4
    LMR_MEM_TYPE_SUPPORTED = 1 << 5
    IOV_OWNERSHIP = 1 << 6
    DAT_QOS_SUPPORTED = 1 << 7
    COMPLETION_FLAGS_SUPPORTED = 1 << 8
    IS_THREAD_SAFE = 1 << 9
    MAX_PRIVATE_DATA_SIZE = 1 << 10
    SUPPORTS_MULTIPATH = 1 << 11
    EP_CREATOR = 1 << 12
    PZ_SUPPORT = 1 << 13
    OPTIMAL_BUFFER_ALIGNMENT = 1 << 14
    EVD_STREAM_MERGING_SUPPORTED = 1 << 15
    SRQ_SUPPORTED = 1 << 16
    SRQ_WATERMARKS_SUPPORTED = 1 << 17
    SRQ_EP_PZ_DIFFERENCE_SUPPORTED = 1 << 18
    SRQ_INFO_SUPPORTED = 1 << 19
    EP_RECV_INFO_SUPPORTED = 1 << 20
    LMR_SYNC_REQ = 1 << 21
    DTO_ASYNC_RETURN_GUARANTEED = 1 << 22
    RDMA_WRITE_FOR_RDMA_READ_REQ = 1 << 23
    NUM_PROVIDER_SPECIFIC_ATTR = 1 << 24
    PROVIDER_SPECIFIC_ATTR = 1 << 25
    ALL = 0x3FFFFFF
