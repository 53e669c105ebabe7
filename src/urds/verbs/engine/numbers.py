"""Numbers of the verbs interface, one enum per family, with the names that libibverbs users know.

Source: docs/reference/verbs-and-roce.md 9-12 (linux v6.1 include/uapi/rdma/ib_user_verbs.h values).
"""

from enum import IntEnum, IntFlag


class QPType(IntEnum):
    """Types of queue pair."""

    RC = 2
    UD = 4


class UnsupportedQPType(IntEnum):
    """Types of queue pair that libibverbs has and no provider supports."""

    UC = 3
    RAW_PACKET = 8
    XRC_SEND = 9
    XRC_RECV = 10
    DRIVER = 255


class QPState(IntEnum):
    """States of a queue pair; `engine.attributes` has the table of transitions."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class QPAttrMask(IntFlag):
    """Which fields of a `QPAttr` a modify sets."""

    STATE = 1 << 0
    CUR_STATE = 1 << 1
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    QKEY = 1 << 6
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    CAP = 1 << 19
    DEST_QPN = 1 << 20


class SRQAttrMask(IntFlag):
    """Which fields of an `SRQAttr` a modify sets."""

    MAX_WR = 1
    LIMIT = 2


class AccessFlag(IntFlag):
    """Access rights of a memory region. Local reading is always allowed."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8
    MW_BIND = 16


class UnsupportedAccessFlag(IntFlag):
    """Access flags that libibverbs has and no provider supports."""

    ZERO_BASED = 32
    ON_DEMAND = 64
    HUGETLB = 128


class WROpcode(IntEnum):
    """Opcodes of send work requests. Gaps are opcodes that no provider supports."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6
    LOCAL_INV = 7
    BIND_MW = 8
    SEND_WITH_INV = 9
    MASKED_ATOMIC_CMP_AND_SWP = 12
    MASKED_ATOMIC_FETCH_AND_ADD = 13


class SendFlag(IntFlag):
    """Flags of a send work request."""

    FENCE = 1  # wait for all earlier reads and atomics of this queue pair
    SIGNALED = 2  # complete it even when it succeeds
    SOLICITED = 4  # its receive wakes a waiter armed for solicited ones
    INLINE = 8  # copy the data now: the buffer is free again when the post returns


class WCStatus(IntEnum):
    """How a work request ended. No provider reports 3, 17, 18, or 22 and above."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21


class WCOpcode(IntEnum):
    """What a work completion completes. Masked operations complete as their plain ones do."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


class WCFlag(IntFlag):
    """Optional contents of a work completion."""

    GRH = 1
    WITH_IMM = 2
    WITH_INV = 8


class AsyncEventType(IntEnum):
    """Events of an object outside any work request."""

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    COMM_EST = 4
    SQ_DRAINED = 5
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10
    SRQ_ERR = 14
    SRQ_LIMIT_REACHED = 15
    QP_LAST_WQE_REACHED = 16
    # Ours, beyond libibverbs: a queue pair holds more receive buffers than its soft mark.
    QP_RECV_SOFT_WATERMARK = 100
    QP_RECV_HARD_WATERMARK = 101


class MTU(IntEnum):
    """Codes of the path MTU; `1 << (code + 7)` bytes."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5


class ReceiveOrder(IntEnum):
    """What a responder does with a packet that arrives ahead of others."""

    IN_ORDER = 0  # drop it: the requester goes back N. Receive buffers never have gaps
    ARRIVAL_ORDER = 1  # keep it; its message takes a buffer when its first byte arrives
    FILL_GAPS = 2  # keep it; messages below it take their buffers at once as well


# What a connection lets the peer do; the keys' rights decide.
PEER_ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)

ATOMIC_BYTES = 8
CELL_MASK = (1 << 64) - 1  # of the bytes that an atomic operation changes
PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1
MESSAGE_BYTES_MAX = 1 << 31
GRH_BYTES = 40  # before the data of a datagram in the first receive buffer
RNR_RETRY_FOREVER = 7

# Code of `min_rnr_timer` to the time that it stands for, in nanoseconds
# (docs/reference/verbs-and-roce.md 2).
_RNR_10_US = (
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
)  # fmt: skip
RNR_TIMER_NS = tuple(value * 10_000 for value in _RNR_10_US)
