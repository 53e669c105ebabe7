# Made by `python -m tools.stubs`.
# ruff: noqa: F403, F405, I001, RUF022 - packed, in the order of the source
# fmt: off
from urds.common.errors import ErrorReason, PlaneError, SettingError
from urds.rds.constants import *
from urds.rds.control.state import ConnectionState
from urds.rds.install import install, uninstall
from urds.rds.rdma import MemoryRegion, PendingAtomic, PendingOperation
from urds.rds.runtime.connections import ConnectionInfo
from urds.rds.runtime.peer_events import on_peer_event
from urds.rds.runtime.process import configure, connections, drain, stats
from urds.rds.settings import Settings
from urds.rds.socket import Socket, socket
from urds.rds.transports.peer_history import PeerEvent, PeerEventKind
from urds import aio as aio
__version__: str
__all__ = [
    "AF_RDS", "CONGESTION_MAP_BYTES", "Capability", "Cmsg", "ConnectionFlag", "ConnectionInfo",
    "ConnectionState", "ErrorReason", "ExtensionType", "HeaderFlag", "IB_FRAGMENT_BYTES", "InfoOpt",
    "MAX_MESSAGE_BYTES", "MSG_CMSG_CLOEXEC", "MSG_CONFIRM", "MSG_CTRUNC", "MSG_DONTROUTE",
    "MSG_DONTWAIT", "MSG_EOR", "MSG_ERRQUEUE", "MSG_MORE", "MSG_NOSIGNAL", "MSG_OOB", "MSG_PEEK",
    "MSG_TRUNC", "MSG_WAITALL", "MSG_ZEROCOPY", "MemoryRegion", "MessageFlag", "PATHS_MAX",
    "PF_RDS", "PING_PORT", "PORT_COUNT", "PORT_FIRST", "PORT_LAST", "PROBE_PORT", "PeerEvent",
    "PeerEventKind", "PendingAtomic", "PendingOperation", "PlaneError", "RDS6_INFO_CONNECTIONS",
    "RDS6_INFO_IB_CONNECTIONS", "RDS6_INFO_RECV_MESSAGES", "RDS6_INFO_RETRANS_MESSAGES",
    "RDS6_INFO_SEND_MESSAGES", "RDS6_INFO_SOCKETS", "RDS6_INFO_TCP_SOCKETS", "RDS_CANCEL_SENT_TO",
    "RDS_CMSG_ATOMIC_CSWP", "RDS_CMSG_ATOMIC_FADD", "RDS_CMSG_CONG_UPDATE",
    "RDS_CMSG_MASKED_ATOMIC_CSWP", "RDS_CMSG_MASKED_ATOMIC_FADD", "RDS_CMSG_RDMA_ARGS",
    "RDS_CMSG_RDMA_DEST", "RDS_CMSG_RDMA_MAP", "RDS_CMSG_RDMA_STATUS", "RDS_CMSG_RXPATH_LATENCY",
    "RDS_CMSG_ZCOPY_COMPLETION", "RDS_CMSG_ZCOPY_COOKIE", "RDS_CM_PORT", "RDS_CONG_MONITOR",
    "RDS_CONG_MONITOR_BIT", "RDS_CONG_MONITOR_MASK", "RDS_CONG_MONITOR_SIZE", "RDS_EXTHDR_CAP_BITS",
    "RDS_EXTHDR_CSUM", "RDS_EXTHDR_GEN_NUM", "RDS_EXTHDR_NONE", "RDS_EXTHDR_NPATHS",
    "RDS_EXTHDR_RDMA", "RDS_EXTHDR_RDMA_BYTES", "RDS_EXTHDR_RDMA_DEST", "RDS_EXTHDR_SPORT_IDX",
    "RDS_EXTHDR_VERSION", "RDS_FLAG_ACK_REQUIRED", "RDS_FLAG_CONG_BITMAP",
    "RDS_FLAG_EXTHDR_EXTENSION", "RDS_FLAG_HB_PING", "RDS_FLAG_HB_PONG", "RDS_FLAG_PROBE_PORT",
    "RDS_FLAG_RETRANSMITTED", "RDS_FREE_MR", "RDS_GET_MR", "RDS_GET_MR_FOR_DEST",
    "RDS_INFO_CONNECTIONS", "RDS_INFO_CONNECTION_FLAG_CONNECTED",
    "RDS_INFO_CONNECTION_FLAG_CONNECTING", "RDS_INFO_CONNECTION_FLAG_SENDING",
    "RDS_INFO_CONNECTION_STATS", "RDS_INFO_COUNTERS", "RDS_INFO_FIRST", "RDS_INFO_IB_CONNECTIONS",
    "RDS_INFO_IWARP_CONNECTIONS", "RDS_INFO_LAST", "RDS_INFO_RECV_MESSAGES",
    "RDS_INFO_RETRANS_MESSAGES", "RDS_INFO_SEND_MESSAGES", "RDS_INFO_SOCKETS",
    "RDS_INFO_TCP_SOCKETS", "RDS_MSG_RX_DGRAM_DELIVERED", "RDS_MSG_RX_DGRAM_REASSEMBLE",
    "RDS_MSG_RX_DGRAM_TRACE_MAX", "RDS_MSG_RX_HDR_TO_DGRAM_START", "RDS_PORT", "RDS_RDMA_CANCELED",
    "RDS_RDMA_DONTWAIT", "RDS_RDMA_DROPPED", "RDS_RDMA_FENCE", "RDS_RDMA_INVALIDATE",
    "RDS_RDMA_NOTIFY_ME", "RDS_RDMA_OTHER_ERROR", "RDS_RDMA_READWRITE", "RDS_RDMA_REMOTE_ERROR",
    "RDS_RDMA_SILENT", "RDS_RDMA_SUCCESS", "RDS_RDMA_USE_ONCE", "RDS_RECVERR", "RDS_TCP_PORT",
    "RDS_TRANS_COUNT", "RDS_TRANS_GAP", "RDS_TRANS_IB", "RDS_TRANS_NONE", "RDS_TRANS_TCP",
    "RdmaBytesFlag", "RdmaFlag", "RdmaStatus", "RxTrace", "SCM_TIMESTAMP", "SIOCRDSGETTOS",
    "SIOCRDSSETTOS", "SOCK_SEQPACKET", "SOL_RDS", "SOL_SOCKET", "SO_RDS_MSG_RXPATH_LATENCY",
    "SO_RDS_TRANSPORT", "SO_TIMESTAMP", "SO_ZEROCOPY", "SettingError", "Settings", "SockOpt",
    "Socket", "Transport", "ZCOPY_COOKIES_MAX", "configure", "connections", "drain", "install",
    "on_peer_event", "socket", "stats", "uninstall",
]
