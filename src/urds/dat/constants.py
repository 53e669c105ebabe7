"""Numbers of uDAPL 1.2: one enum per family, whose members have flat C names too, and query masks.

Members carry no prefix (`EvdFlag.DTO`); the flat name (`DAT_EVD_DTO_FLAG`) is the same object and
stands in `urds.dat`; type checkers read it in the stub, which `tools.stubs` writes.

Source: docs/reference/dat.md 1.2, 4.2, 4.3, 6, 7 (header values of uDAPL 1.2). The headers of DAT
2.0, which Linux distributions ship, number some families otherwise: docs/reference/dat.md 1.3.
"""

from enum import IntEnum, IntFlag
from typing import Final

from urds.common.flat_names import FlatNames

FLAT: Final = FlatNames()

DAT_TIMEOUT_INFINITE: Final = 0xFFFF_FFFF  # microseconds
DAT_VALUE_UNKNOWN: Final = -2
DAT_WATERMARK_INFINITE: Final = -1
DAT_HW_DEFAULT: Final = -1
DAT_SRQ_LW_DEFAULT: Final = 0
DAT_OPTIMAL_ALIGNMENT: Final = 256
DAT_NAME_MAX_LENGTH: Final = 256  # the closing NUL of C included
DAT_LMR_COOKIE_SIZE: Final = 40
DAT_VERSION_MAJOR: Final = 1
DAT_VERSION_MINOR: Final = 2
DAT_THREADSAFE: Final = True  # every call of this provider is; the reference headers say FALSE
DAT_TRUE: Final = True
DAT_FALSE: Final = False
DAT_HANDLE_NULL: Final = None


@FLAT.of("DAT_EVD_*", EXISTS="DAT_EVD_ASYNC_EXISTS")
class AsyncEvdHandle(IntEnum):
    """Values that stand for an asynchronous event dispatcher elsewhere."""

    EXISTS = 1  # input of dat_ia_open: do not make one
    OUT_OF_SCOPE = 2  # what dat_ia_open and dat_ia_query give then


@FLAT.of("DAT_HANDLE_TYPE_*")
class HandleType(IntEnum):
    """Kinds of object."""

    CR = 0
    EP = 1
    EVD = 2
    IA = 3
    LMR = 4
    PSP = 5
    PZ = 6
    RMR = 7
    RSP = 8
    CNO = 9
    SRQ = 10


@FLAT.of("DAT_COMPLETION_*_FLAG")
class CompletionFlag(IntFlag):
    """How a request completes, or all of an endpoint's."""

    DEFAULT = 0x00
    SUPPRESS = 0x01  # no event if it succeeds
    SOLICITED_WAIT = 0x02
    UNSIGNALLED = 0x04  # an event that wakes no thread
    BARRIER_FENCE = 0x08  # wait for all earlier RDMA reads
    EVD_THRESHOLD = 0x10  # endpoint attribute only


@FLAT.of("DAT_QOS_*")
class Qos(IntFlag):
    """Qualities of service. This provider offers BEST_EFFORT."""

    BEST_EFFORT = 0
    HIGH_THROUGHPUT = 1
    LOW_LATENCY = 2
    ECONOMY = 4
    PREMIUM = 8


@FLAT.of("DAT_CONNECT_*_FLAG")
class ConnectFlag(IntFlag):
    """Wishes of a connect. This provider offers DEFAULT."""

    DEFAULT = 0
    MULTIPATH = 1


@FLAT.of("DAT_CLOSE_*_FLAG")
class CloseFlag(IntEnum):
    """How an interface adapter or a connection is closed."""

    ABRUPT = 0
    GRACEFUL = 1


@FLAT.of("DAT_PSP_*_FLAG")
class PspFlag(IntEnum):
    """Which side makes the endpoints of a public service point."""

    CONSUMER = 0
    PROVIDER = 1


@FLAT.of("DAT_EVD_*_FLAG")
class EvdFlag(IntFlag):
    """Event streams that may feed an event dispatcher."""

    SOFTWARE = 0x001
    CR = 0x010
    DTO = 0x020
    CONNECTION = 0x040
    RMR_BIND = 0x080
    ASYNC = 0x100
    DEFAULT = 0x1F0


@FLAT.of("DAT_EVD_STATE_*")
class EvdState(IntFlag):
    """State of an event dispatcher: one value of each of three bands."""

    ENABLED = 0x01
    DISABLED = 0x02
    WAITABLE = 0x04
    UNWAITABLE = 0x08
    CONFIG_NOTIFY = 0x10
    CONFIG_SOLICITED = 0x20
    CONFIG_THRESHOLD = 0x30


@FLAT.of("DAT_MEM_TYPE_*")
class MemType(IntEnum):
    """What a local memory region is made of. SHARED_VIRTUAL is not offered here."""

    VIRTUAL = 0
    LMR = 1
    SHARED_VIRTUAL = 2


@FLAT.of("DAT_MEM_PRIV_*_FLAG")
class MemPriv(IntFlag):
    """Rights on memory. Local reading is always granted: docs/reference/dat.md 11."""

    NONE = 0x00
    LOCAL_READ = 0x01
    REMOTE_READ = 0x02
    LOCAL_WRITE = 0x10
    REMOTE_WRITE = 0x20
    READ = 0x03  # name of uDAPL 1.0
    WRITE = 0x30  # name of uDAPL 1.0
    ALL = 0x33


@FLAT.of("DAT_IOV_*")
class IovOwnership(IntEnum):
    """Which side may touch a list of segments after a post."""

    CONSUMER = 0
    PROVIDER_NOMOD = 1
    PROVIDER_MOD = 2


@FLAT.of("DAT_PSP_CREATES_EP_*")
class EpCreator(IntEnum):
    """Whether the provider makes endpoints for public service points."""

    NEVER = 0
    IFASKED = 1
    ALWAYS = 2


@FLAT.of("DAT_PZ_*")
class PzSupport(IntEnum):
    """How protection zones of one adapter relate."""

    UNIQUE = 0
    SAME = 1
    SHAREABLE = 2


@FLAT.of("DAT_SERVICE_TYPE_*")
class ServiceType(IntEnum):
    """Kinds of endpoint."""

    RC = 0


@FLAT.of("DAT_SRQ_STATE_*")
class SrqState(IntEnum):
    """State of a shared receive queue. DAT 2.0 swaps the two numbers."""

    OPERATIONAL = 0
    ERROR = 1


@FLAT.of("DAT_EP_STATE_*")
class EpState(IntEnum):
    """State of an endpoint. No provider that is known uses the UNCONFIGURED ones."""

    UNCONNECTED = 0
    UNCONFIGURED_UNCONNECTED = 1
    RESERVED = 2
    UNCONFIGURED_RESERVED = 3
    PASSIVE_CONNECTION_PENDING = 4
    UNCONFIGURED_PASSIVE = 5
    ACTIVE_CONNECTION_PENDING = 6
    TENTATIVE_CONNECTION_PENDING = 7
    UNCONFIGURED_TENTATIVE = 8
    CONNECTED = 9
    DISCONNECT_PENDING = 10
    DISCONNECTED = 11
    COMPLETION_PENDING = 12


@FLAT.of(
    "DAT_*_EVENT",
    CONNECTION_="DAT_CONNECTION_EVENT_*",
    CONNECTION_REQUEST="DAT_CONNECTION_REQUEST_EVENT",
    ASYNC_="DAT_ASYNC_ERROR_*",
    ASYNC_WATERMARK="DAT_ASYNC_EVENT_WATERMARK",
)
class EventNumber(IntEnum):
    """What an event tells.

    ASYNC_WATERMARK is ours: uDAPL 1.2 defines the two watermark notifications, their handles and
    reasons, but no number for them. Source: docs/reference/dat.md 6.
    """

    DTO_COMPLETION = 0x00001
    RMR_BIND_COMPLETION = 0x01001
    CONNECTION_REQUEST = 0x02001
    CONNECTION_ESTABLISHED = 0x04001
    CONNECTION_PEER_REJECTED = 0x04002
    CONNECTION_NON_PEER_REJECTED = 0x04003
    CONNECTION_ACCEPT_COMPLETION_ERROR = 0x04004
    CONNECTION_DISCONNECTED = 0x04005
    CONNECTION_BROKEN = 0x04006
    CONNECTION_TIMED_OUT = 0x04007
    CONNECTION_UNREACHABLE = 0x04008
    ASYNC_EVD_OVERFLOW = 0x08001
    ASYNC_IA_CATASTROPHIC = 0x08002
    ASYNC_EP_BROKEN = 0x08003
    ASYNC_TIMED_OUT = 0x08004
    ASYNC_PROVIDER_INTERNAL_ERROR = 0x08005
    ASYNC_WATERMARK = 0x08006
    SOFTWARE = 0x10001


@FLAT.of("DAT_IA_*")
class IaReason(IntEnum):
    """Reasons of an asynchronous event whose handle is an interface adapter."""

    CATASTROPHIC_ERROR = 0
    OTHER_ERROR = 1


@FLAT.of("DAT_EP_*")
class EpReason(IntEnum):
    """Reasons of an asynchronous event whose handle is an endpoint."""

    TRANSFER_TO_ERROR = 0
    OTHER_ERROR = 1
    SRQ_SOFT_HIGH_WATERMARK_EVENT = 2


@FLAT.of("DAT_EVD_*")
class EvdReason(IntEnum):
    """Reasons of an asynchronous event whose handle is an event dispatcher."""

    OVERFLOW_ERROR = 0
    OTHER_ERROR = 1


@FLAT.of("DAT_SRQ_*")
class SrqReason(IntEnum):
    """Reasons of an asynchronous event whose handle is a shared receive queue."""

    TRANSFER_TO_ERROR = 0
    OTHER_ERROR = 1
    LOW_WATERMARK_EVENT = 2


@FLAT.of("DAT_DTO_*", RMR_="DAT_RMR_*")
class DtoStatus(IntEnum):
    """How a data transfer or a bind ended."""

    SUCCESS = 0
    ERR_FLUSHED = 1
    ERR_LOCAL_LENGTH = 2
    ERR_LOCAL_EP = 3
    ERR_LOCAL_PROTECTION = 4
    ERR_BAD_RESPONSE = 5
    ERR_REMOTE_ACCESS = 6
    ERR_REMOTE_RESPONDER = 7
    ERR_TRANSPORT = 8
    ERR_RECEIVER_NOT_READY = 9
    ERR_PARTIAL_PACKET = 10
    RMR_OPERATION_FAILED = 11


class SrqWatermarks(IntFlag):
    """Provider attribute `srq_watermarks_supported`: hexadecimal digits are the flags."""

    SRQ_LOW = 0x001
    EP_SOFT_HIGH = 0x010
    EP_HARD_HIGH = 0x100


class SrqInfo(IntFlag):
    """Provider attribute `srq_info_supported`."""

    AVAILABLE_DTO_COUNT = 0x01
    OUTSTANDING_DTO_COUNT = 0x10


class EpRecvInfo(IntFlag):
    """Provider attribute `ep_recv_info_supported`."""

    NBUFS_ALLOCATED = 0x01
    BUFS_ALLOC_SPAN = 0x10


# Query masks: which fields of a record a query or a modify means. A query here fills all fields
# whatever the mask says, which the specification allows; a mask with an unknown bit is rejected.


@FLAT.of("DAT_EVD_FIELD_*")
class EvdField(IntFlag):
    """Fields of `EvdParam`."""

    IA_HANDLE = 0x01
    EVD_QLEN = 0x02
    EVD_STATE = 0x04
    CNO = 0x08
    EVD_FLAGS = 0x10
    ALL = 0x1F


@FLAT.of("DAT_CNO_FIELD_*")
class CnoField(IntFlag):
    """Fields of `CnoParam`."""

    IA_HANDLE = 1
    AGENT = 2
    ALL = 3


@FLAT.of("DAT_PZ_FIELD_*")
class PzField(IntFlag):
    """Fields of `PzParam`."""

    IA_HANDLE = 1
    ALL = 1


@FLAT.of("DAT_PSP_FIELD_*")
class PspField(IntFlag):
    """Fields of `PspParam`."""

    IA_HANDLE = 1
    CONN_QUAL = 2
    EVD_HANDLE = 4
    PSP_FLAGS = 8
    ALL = 0xF


@FLAT.of("DAT_RSP_FIELD_*")
class RspField(IntFlag):
    """Fields of `RspParam`."""

    IA_HANDLE = 1
    CONN_QUAL = 2
    EVD_HANDLE = 4
    EP_HANDLE = 8
    ALL = 0xF


@FLAT.of("DAT_CR_FIELD_*")
class CrField(IntFlag):
    """Fields of `CrParam`."""

    REMOTE_IA_ADDRESS_PTR = 0x01
    REMOTE_PORT_QUAL = 0x02
    PRIVATE_DATA_SIZE = 0x04
    PRIVATE_DATA = 0x08
    LOCAL_EP_HANDLE = 0x10
    ALL = 0x1F


@FLAT.of("DAT_LMR_FIELD_*")
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


@FLAT.of("DAT_RMR_FIELD_*")
class RmrField(IntFlag):
    """Fields of `RmrParam`."""

    IA_HANDLE = 0x01
    PZ_HANDLE = 0x02
    LMR_TRIPLET = 0x04
    MEM_PRIV = 0x08
    RMR_CONTEXT = 0x10
    ALL = 0x1F


@FLAT.of("DAT_SRQ_FIELD_*")
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


@FLAT.of("DAT_EP_FIELD_*")
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


@FLAT.of("DAT_IA_FIELD_IA_*", NONE="DAT_IA_FIELD_NONE", ALL="DAT_IA_FIELD_ALL")
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


@FLAT.of("DAT_PROVIDER_FIELD_*")
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


FLAT["DAT_CLOSE_DEFAULT"] = CloseFlag.ABRUPT
FLAT["DAT_EP_STATE_ERROR"] = EpState.DISCONNECTED
FLAT["DAT_DTO_FAILURE"] = DtoStatus.ERR_FLUSHED
FLAT["DAT_DTO_LENGTH_ERROR"] = DtoStatus.ERR_LOCAL_LENGTH

__all__ = [
    name
    for name in globals()
    if name[0].isupper() and name not in {"FLAT", "Final", "FlatNames", "IntEnum", "IntFlag"}
]
