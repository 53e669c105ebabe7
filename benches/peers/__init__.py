"""The contenders, urds first: the order of the rows."""

from .asyncio_peers import DealerRouterOnAsyncio, PushPullOnAsyncio, Streams
from .base import Peer
from .kernel import SeqPacket, Udp
from .loops import UrdsOnAsyncio, UrdsOnTrio
from .memory import (
    PushPullIpc,
    PushPullIpcNoCopy,
    SeqPacketSpinning,
    UrdsBesideMemory,
    UrdsBurstsOverMemory,
    UrdsOverMemory,
    UrdsOverMemorySpinning,
)
from .nodes import NODES
from .ours import Urds, UrdsBursts, UrdsFromOneBuffer, UrdsOverShm
from .tcp import Tcp, TcpBatch, TcpMany
from .turns import PEER_COUNTS, TCP_TURNS, TURNS
from .zmq import DealerRouter, DealerRouterNoCopy, PushPull, PushPullNoCopy

ALL: tuple[type[Peer], ...] = (
    Urds,
    UrdsBursts,
    UrdsOverShm,
    UrdsFromOneBuffer,
    DealerRouter,
    DealerRouterNoCopy,
    PushPull,
    PushPullNoCopy,
    Tcp,
    TcpBatch,
    TcpMany,
    SeqPacket,
    Udp,
    UrdsOverMemory,
    UrdsBesideMemory,
    UrdsBurstsOverMemory,
    UrdsOverMemorySpinning,
    PushPullIpc,
    PushPullIpcNoCopy,
    SeqPacketSpinning,
    *NODES,
    UrdsOnAsyncio,
    UrdsOnTrio,
    DealerRouterOnAsyncio,
    PushPullOnAsyncio,
    Streams,
    *TURNS,
    *TCP_TURNS,
)
BY_NAME = {peer.name: peer for peer in ALL}
assert len(BY_NAME) == len(ALL), "each peer has a name of its own"

__all__ = ["ALL", "BY_NAME", "PEER_COUNTS"]
