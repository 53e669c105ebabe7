"""The contenders, ours first: the order of the rows."""

from .base import Peer
from .kernel import SeqPacket, Udp
from .ours import Urds
from .tcp import Tcp, TcpBatch, TcpMany
from .zmq import DealerRouter, DealerRouterNoCopy, PushPull

ALL: tuple[type[Peer], ...] = (
    Urds,
    DealerRouter,
    DealerRouterNoCopy,
    PushPull,
    Tcp,
    TcpBatch,
    TcpMany,
    SeqPacket,
    Udp,
)
OURS = Urds.name
BY_NAME = {peer.name: peer for peer in ALL}
assert len(BY_NAME) == len(ALL), "each peer has a name of its own"
