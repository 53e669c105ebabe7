"""Numbers of the RDS interface: one enum per family, whose members have flat Linux names too.

Members carry no prefix (`SockOpt.RECVERR`); the flat name (`RDS_RECVERR`) is the same object and
stands in `constants`. All numbers are those of Linux, also on other systems, because the API and
the bytes are Linux's.

Sources: linux v6.12 include/uapi/linux/rds.h for the interface, net/rds/rds.h for the header
and its extensions; other sources stand at their family. "UEK" is Oracle's out-of-tree kernel.
"""

from enum import IntEnum, IntFlag
from typing import Final

from urds.common.flat_names import FlatNames

FLAT: Final = FlatNames()

# Family, level, type. The address family and the level were once assigned at run time
# (`pf_rds`, `sol_rds` of rds(7)); they have been fixed since Linux 2.6.30.
AF_RDS: Final = 21
PF_RDS: Final = AF_RDS
SOL_RDS: Final = 276
SOCK_SEQPACKET: Final = 5

# Level SOL_SOCKET. Source: linux v6.12 include/uapi/asm-generic/socket.h.
SOL_SOCKET: Final = 1
SO_TIMESTAMP: Final = 29
SCM_TIMESTAMP: Final = SO_TIMESTAMP
SO_ZEROCOPY: Final = 60

# Ports of the transports. Source: linux v6.12 net/rds/tcp.h, net/rds/rdma_transport.h.
RDS_TCP_PORT: Final = 16385
RDS_PORT: Final = 18634  # RDMA over IPv4 keeps the historical port; the name is the kernel's
RDS_CM_PORT: Final = 16385  # RDMA over IPv6

# Ports of RDS itself: 16 bits, no privileged range.
PING_PORT: Final = 0  # target of a ping; at bind it means "choose for me"
PROBE_PORT: Final = 1  # source of the handshake's probe ping; bind refuses it
PORT_FIRST: Final = 2
PORT_LAST: Final = 65535
PORT_COUNT: Final = 65536

# Sizes and limits.
MAX_MESSAGE_BYTES: Final = 1 << 20  # also for the remote bytes of one RDMA operation
CONGESTION_MAP_BYTES: Final = PORT_COUNT // 8
IB_FRAGMENT_BYTES: Final = 4096  # payload of one frame over RDMA
RDMA_PAGE_BYTES: Final = 4096  # in which the offset of a region's cookie counts
RDMA_PIECES_MAX: Final = 1024  # of local memory in one RDMA operation
PATHS_MAX: Final = 8  # TCP connections to one peer; a power of two, because of the port hash
ZCOPY_COOKIES_MAX: Final = 8  # in one ZCOPY_COMPLETION

# Type of service, once per socket before its first send.
SIOCRDSSETTOS: Final = 0x89E0
SIOCRDSGETTOS: Final = 0x89E1


@FLAT.of(
    "RDS_*",
    TRANSPORT="SO_RDS_TRANSPORT",
    MSG_RXPATH_LATENCY="SO_RDS_MSG_RXPATH_LATENCY",
    TIMESTAMP_="",
)
class SockOpt(IntEnum):
    """Options at level SOL_RDS. Source: linux v6.12 include/uapi/linux/rds.h."""

    CANCEL_SENT_TO = 1
    GET_MR = 2
    FREE_MR = 3
    RECVERR = 5  # 4 was RDS_BARRIER; the number stays unused
    CONG_MONITOR = 6
    GET_MR_FOR_DEST = 7
    TRANSPORT = 8  # UEK has RDS_CONN_RESET here
    MSG_RXPATH_LATENCY = 10  # 9 is UEK's
    TIMESTAMP_OLD = 29  # the kernel takes SO_TIMESTAMP at this level too
    TIMESTAMP_NEW = 63


@FLAT.of("RDS_INFO_*", V6_="RDS6_INFO_*")
class InfoOpt(IntEnum):
    """What `getsockopt` at level SOL_RDS lists. Source: linux v6.12 include/uapi/linux/rds.h."""

    COUNTERS = 10000
    CONNECTIONS = 10001
    SEND_MESSAGES = 10003  # 10002 was RDS_INFO_FLOWS; the number stays unused
    RETRANS_MESSAGES = 10004
    RECV_MESSAGES = 10005
    SOCKETS = 10006
    TCP_SOCKETS = 10007
    IB_CONNECTIONS = 10008
    CONNECTION_STATS = 10009  # never registered: ENOPROTOOPT
    IWARP_CONNECTIONS = 10010  # its transport was removed: ENOPROTOOPT
    V6_CONNECTIONS = 10011
    V6_SEND_MESSAGES = 10012
    V6_RETRANS_MESSAGES = 10013
    V6_RECV_MESSAGES = 10014
    V6_SOCKETS = 10015
    V6_TCP_SOCKETS = 10016
    V6_IB_CONNECTIONS = 10017


FLAT["RDS_INFO_FIRST"] = InfoOpt.COUNTERS
FLAT["RDS_INFO_LAST"] = InfoOpt.V6_IB_CONNECTIONS


@FLAT.of("RDS_INFO_CONNECTION_FLAG_*", ERROR="")
class ConnectionFlag(IntFlag):
    """State of a connection in the records of `CONNECTIONS`."""

    SENDING = 0x01
    CONNECTING = 0x02
    CONNECTED = 0x04
    ERROR = 0x08  # UEK only; rds-info prints it as E


@FLAT.of("RDS_CMSG_*")
class Cmsg(IntEnum):
    """Control messages at level SOL_RDS. Source: linux v6.12 include/uapi/linux/rds.h."""

    RDMA_ARGS = 1
    RDMA_DEST = 2
    RDMA_MAP = 3
    RDMA_STATUS = 4
    CONG_UPDATE = 5
    ATOMIC_FADD = 6
    ATOMIC_CSWP = 7
    MASKED_ATOMIC_FADD = 8
    MASKED_ATOMIC_CSWP = 9
    RXPATH_LATENCY = 11  # 10 is UEK's ASYNC_SEND
    ZCOPY_COOKIE = 12
    ZCOPY_COMPLETION = 13


@FLAT.of("RDS_TRANS_*", LOOP="")
class Transport(IntEnum):
    """Values of SO_RDS_TRANSPORT. Source: linux v6.12 include/uapi/linux/rds.h, net/rds/rds.h."""

    IB = 0
    GAP = 1  # was iWARP; its code is gone
    TCP = 2
    LOOP = 3  # reported by getsockopt, refused by setsockopt
    NONE = 0xFFFFFFFF  # not attached; as a C int it reads -1


RDS_TRANS_COUNT: Final = 3


@FLAT.of("RDS_FLAG_*")
class HeaderFlag(IntFlag):
    """Bits of the header's flag byte. Source: docs/reference/rds.md 1.3 (linux v7.0)."""

    CONG_BITMAP = 0x01  # Linux tests for exactly this value, with no other bit set
    ACK_REQUIRED = 0x02
    RETRANSMITTED = 0x04
    HB_PING = 0x08  # UEK only
    HB_PONG = 0x10  # UEK only
    EXTHDR_EXTENSION = 0x20  # since 7.0, over RDMA only


RDS_FLAG_PROBE_PORT: Final = PROBE_PORT  # a port, in spite of its name


@FLAT.of("RDS_EXTHDR_*")
class ExtensionType(IntEnum):
    """Extension headers. Source: linux v7.0 net/rds/rds.h; CAP_BITS and CSUM: UEK."""

    NONE = 0
    VERSION = 1
    RDMA = 2
    RDMA_DEST = 3
    RDMA_BYTES = 4  # since 7.0
    NPATHS = 5
    GEN_NUM = 6
    CAP_BITS = 7  # UEK only
    SPORT_IDX = 8  # since 7.0
    CSUM = 9  # UEK only


class Capability(IntFlag):
    """What a `urds` node announces in its mark; both sides use what both announced.

    Ours, in 16 bits; no kernel reads them. Source: docs/protocol, "The mark".
    """

    ACKNOWLEDGEMENTS = 0x0001  # h_ack counts, ack-only messages are sent and understood
    CHECKSUM = 0x0002  # every header carries its checksum
    GENERATION_HELLO = 0x0004  # a new generation per start; a change of it resets the paths
    SHARED_MEMORY = 0x0008  # a shm stream may replace TCP on one host
    # 0x0010 to 0x0800 are free; the upper four bits are a number, see MESSAGE_DOUBLINGS_SHIFT.


# The upper four bits of the capabilities: a node takes messages of 1 MiB doubled so many times, at
# most 4 GiB - 1. Ours, as the mark.
MESSAGE_DOUBLINGS_SHIFT: Final = 12
MESSAGE_DOUBLINGS_MAX: Final = 12


@FLAT.of("RDS_RDMA_*")
class RdmaFlag(IntFlag):
    """Flags of RDMA operations and memory regions. Source: linux v6.12 uapi rds.h."""

    READWRITE = 0x01  # operation: write to the peer; region: the peer may write
    FENCE = 0x02
    INVALIDATE = 0x04
    USE_ONCE = 0x08
    DONTWAIT = 0x10  # defined and never read
    NOTIFY_ME = 0x20
    SILENT = 0x40


@FLAT.of("RDS_RDMA_*")
class RdmaStatus(IntEnum):
    """How an RDMA or atomic operation ended. Source: linux v6.12 uapi rds.h."""

    SUCCESS = 0
    REMOTE_ERROR = 1
    CANCELED = 2
    DROPPED = 3  # its connection broke: operations are never retried
    OTHER_ERROR = 4


class RdmaBytesFlag(IntFlag):
    """Direction in an RDMA_BYTES extension header. Source: linux v7.0 net/rds/rds.h."""

    WRITE = 1
    READ = 2


@FLAT.of("RDS_MSG_RX_*")
class RxTrace(IntEnum):
    """Stages whose duration MSG_RXPATH_LATENCY reports. Source: linux v6.12 uapi rds.h."""

    HDR_TO_DGRAM_START = 0
    DGRAM_REASSEMBLE = 1
    DGRAM_DELIVERED = 2


RDS_MSG_RX_DGRAM_TRACE_MAX: Final = 3


@FLAT.of("MSG_*")
class MessageFlag(IntFlag):
    """Flags of send and receive calls. Source: linux v6.12 include/linux/socket.h."""

    OOB = 0x01
    PEEK = 0x02
    DONTROUTE = 0x04
    CTRUNC = 0x08
    TRUNC = 0x20
    DONTWAIT = 0x40
    EOR = 0x80
    WAITALL = 0x100
    CONFIRM = 0x800
    ERRQUEUE = 0x2000
    NOSIGNAL = 0x4000
    MORE = 0x8000
    ZEROCOPY = 0x4000000
    CMSG_CLOEXEC = 0x40000000


RDS_CONG_MONITOR_SIZE: Final = 64


def RDS_CONG_MONITOR_BIT(port: int) -> int:  # noqa: N802 - the name of rds.h
    """Return the number (0 to 63) of the group that `port` shares in a monitor mask."""
    return port % RDS_CONG_MONITOR_SIZE


def RDS_CONG_MONITOR_MASK(port: int) -> int:  # noqa: N802 - the name of rds.h
    """Return the monitor mask with the one bit of the group of `port`."""
    return 1 << RDS_CONG_MONITOR_BIT(port)


# What `urds` exports: all but the limits and formats that are of urds alone.
__all__ = [
    name
    for name in globals()
    if name[0].isupper()
    and name not in {"FLAT", "Final", "FlatNames", "IntEnum", "IntFlag"}
    and not name.startswith(("RDMA_", "MESSAGE_"))
]
