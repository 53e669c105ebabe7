"""Numbers of uDAPL 1.2, one enum per family; the flat `DAT_*` names are in `urds.dat.names`.

Source: dat.md sections 1.2, 4.3 and 6 (header values of uDAPL 1.2). The headers of DAT 2.0, which
Linux distributions ship, number some families otherwise: dat.md section 1.3.
"""

from enum import IntEnum, IntFlag
from typing import Final

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


class AsyncEvdHandle(IntEnum):
    """Values that stand for an asynchronous event dispatcher elsewhere."""

    EXISTS = 1  # input of dat_ia_open: do not make one
    OUT_OF_SCOPE = 2  # what dat_ia_open and dat_ia_query give then


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


class CompletionFlag(IntFlag):
    """How a request completes, or all of an endpoint's."""

    DEFAULT = 0x00
    SUPPRESS = 0x01  # no event if it succeeds
    SOLICITED_WAIT = 0x02
    UNSIGNALLED = 0x04  # an event that wakes nobody
    BARRIER_FENCE = 0x08  # wait for all earlier RDMA reads
    EVD_THRESHOLD = 0x10  # endpoint attribute only


class Qos(IntFlag):
    """Qualities of service. This provider offers BEST_EFFORT."""

    BEST_EFFORT = 0
    HIGH_THROUGHPUT = 1
    LOW_LATENCY = 2
    ECONOMY = 4
    PREMIUM = 8


class ConnectFlag(IntFlag):
    """Wishes of a connect. This provider offers DEFAULT."""

    DEFAULT = 0
    MULTIPATH = 1


class CloseFlag(IntEnum):
    """How an interface adapter or a connection is closed."""

    ABRUPT = 0
    GRACEFUL = 1


class PspFlag(IntEnum):
    """Who makes the endpoints of a public service point."""

    CONSUMER = 0
    PROVIDER = 1


class EvdFlag(IntFlag):
    """Event streams that may feed an event dispatcher."""

    SOFTWARE = 0x001
    CR = 0x010
    DTO = 0x020
    CONNECTION = 0x040
    RMR_BIND = 0x080
    ASYNC = 0x100
    DEFAULT = 0x1F0


class EvdState(IntFlag):
    """State of an event dispatcher: one value of each of three bands."""

    ENABLED = 0x01
    DISABLED = 0x02
    WAITABLE = 0x04
    UNWAITABLE = 0x08
    CONFIG_NOTIFY = 0x10
    CONFIG_SOLICITED = 0x20
    CONFIG_THRESHOLD = 0x30


class MemType(IntEnum):
    """What a local memory region is made of. SHARED_VIRTUAL is not offered here."""

    VIRTUAL = 0
    LMR = 1
    SHARED_VIRTUAL = 2


class MemPriv(IntFlag):
    """Rights on memory. Local reading is always granted: dat.md section 11."""

    NONE = 0x00
    LOCAL_READ = 0x01
    REMOTE_READ = 0x02
    LOCAL_WRITE = 0x10
    REMOTE_WRITE = 0x20
    READ = 0x03  # name of uDAPL 1.0
    WRITE = 0x30  # name of uDAPL 1.0
    ALL = 0x33


class IovOwnership(IntEnum):
    """Who may touch a list of segments after a post."""

    CONSUMER = 0
    PROVIDER_NOMOD = 1
    PROVIDER_MOD = 2


class EpCreator(IntEnum):
    """Whether the provider makes endpoints for public service points."""

    NEVER = 0
    IFASKED = 1
    ALWAYS = 2


class PzSupport(IntEnum):
    """How protection zones of one adapter relate."""

    UNIQUE = 0
    SAME = 1
    SHAREABLE = 2


class ServiceType(IntEnum):
    """Kinds of endpoint."""

    RC = 0


class SrqState(IntEnum):
    """State of a shared receive queue. DAT 2.0 swaps the two numbers."""

    OPERATIONAL = 0
    ERROR = 1


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


class EventNumber(IntEnum):
    """What an event tells.

    ASYNC_WATERMARK is ours: uDAPL 1.2 defines the two watermark notifications, their handles and
    reasons, but no number for them. Source: dat.md section 6.
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


class IaReason(IntEnum):
    """Reasons of an asynchronous event whose handle is an interface adapter."""

    CATASTROPHIC_ERROR = 0
    OTHER_ERROR = 1


class EpReason(IntEnum):
    """Reasons of an asynchronous event whose handle is an endpoint."""

    TRANSFER_TO_ERROR = 0
    OTHER_ERROR = 1
    SRQ_SOFT_HIGH_WATERMARK_EVENT = 2


class EvdReason(IntEnum):
    """Reasons of an asynchronous event whose handle is an event dispatcher."""

    OVERFLOW_ERROR = 0
    OTHER_ERROR = 1


class SrqReason(IntEnum):
    """Reasons of an asynchronous event whose handle is a shared receive queue."""

    TRANSFER_TO_ERROR = 0
    OTHER_ERROR = 1
    LOW_WATERMARK_EVENT = 2


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
