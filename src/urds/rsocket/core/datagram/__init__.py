"""The core of datagram rsockets: how each datagram goes, and from where what came was sent."""

from urds.rsocket.core.datagram.core import DatagramCore
from urds.rsocket.core.datagram.records import (
    SLOT_BYTES,
    ByQueuePair,
    ByUdp,
    CancelLookUp,
    DatagramSettings,
    DatagramStats,
    DestinationState,
    LocalDevice,
    LookUp,
    QueuePairAddress,
)

__all__ = [
    "SLOT_BYTES",
    "Address",
    "ByQueuePair",
    "ByUdp",
    "CancelLookUp",
    "DatagramCore",
    "DatagramSettings",
    "DatagramStats",
    "DestinationState",
    "LocalDevice",
    "LookUp",
    "QueuePairAddress",
]  # fmt: skip
