"""Stream and datagram sockets over RDMA, on the verbs of `urds`, as librdmacm's rsockets are.

`Socket` and `socket` fit where those of the `socket` module do; the r* calls are those of
rdma/rsocket.h, over integer descriptors. `allocate` gives memory that large receives reach without
a copy. Constants are those of the `socket` module, and SOL_RDMA and the like here.
"""

from urds.rsocket.calls import (
    raccept,
    rbind,
    rclose,
    rconnect,
    rfcntl,
    rgetpeername,
    rgetsockname,
    rgetsockopt,
    riomap,
    riounmap,
    riowrite,
    rlisten,
    rread,
    rreadv,
    rrecv,
    rrecvfrom,
    rrecvmsg,
    rsend,
    rsendmsg,
    rsendto,
    rsetsockopt,
    rshutdown,
    rsocket,
    rwrite,
    rwritev,
)
from urds.rsocket.constants import (
    ANY_OFFSET,
    PROT_NONE,
    PROT_WRITE,
    RDMA_INLINE,
    RDMA_IOMAPSIZE,
    RDMA_ROUTE,
    RDMA_RQSIZE,
    RDMA_SQSIZE,
    SOL_RDMA,
    Protection,
    RdmaOpt,
)
from urds.rsocket.datagram_socket import DatagramSocket
from urds.rsocket.install import install, uninstall
from urds.rsocket.link.devices import use
from urds.rsocket.poll import rpoll, rselect
from urds.rsocket.repoll import Repoll, repoll_create, repoll_ctl, repoll_wait
from urds.rsocket.settings import configure
from urds.rsocket.socket import Socket
from urds.rsocket.stream_socket import StreamSocket, create_connection, create_server, socket
from urds.rsocket.stream_transfer import allocate

__all__ = [
    "ANY_OFFSET", "PROT_NONE", "PROT_WRITE", "RDMA_INLINE", "RDMA_IOMAPSIZE", "RDMA_ROUTE",
    "RDMA_RQSIZE", "RDMA_SQSIZE", "SOL_RDMA", "DatagramSocket", "Protection", "RdmaOpt", "Repoll",
    "Socket", "StreamSocket", "allocate", "configure", "create_connection", "create_server",
    "install",
    "raccept", "rbind", "rclose", "rconnect", "repoll_create", "repoll_ctl", "repoll_wait",
    "rfcntl", "rgetpeername", "rgetsockname", "rgetsockopt", "riomap", "riounmap", "riowrite",
    "rlisten", "rpoll", "rread", "rreadv", "rrecv", "rrecvfrom", "rrecvmsg", "rselect", "rsend",
    "rsendmsg", "rsendto", "rsetsockopt", "rshutdown", "rsocket", "rwrite", "rwritev", "socket",
    "uninstall", "use",
]  # fmt: skip
