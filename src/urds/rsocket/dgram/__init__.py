"""The core of datagram rsockets: which way each datagram goes, and who sent what came."""

from urds.rsocket.dgram.core import Datagrams
from urds.rsocket.dgram.records import (
    SLOT_BYTES,
    Address,
    ByQueuePair,
    ByUdp,
    DatagramSettings,
    DatagramStats,
    DestinationState,
    Device,
    GiveUp,
    LookUp,
    QueuePairWay,
)

__all__ = [
    "SLOT_BYTES", "Address", "ByQueuePair", "ByUdp", "DatagramSettings", "DatagramStats",
    "Datagrams", "DestinationState", "Device", "GiveUp", "LookUp", "QueuePairWay",
]  # fmt: skip
