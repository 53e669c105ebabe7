"""Numbers of the rsocket interface that Python's `socket` module does not have.

Source: docs/reference/rsocket.md 7, 12 (rdma-core 691953d8, rdma/rsocket.h).
"""

from enum import IntEnum, IntFlag
from typing import Final

SOL_RDMA: Final = 0x10000


class RdmaOpt(IntEnum):
    """Options at level SOL_RDMA; all are set before a connection begins."""

    SQSIZE = 0
    RQSIZE = 1
    INLINE = 2
    IOMAPSIZE = 3
    ROUTE = 4


class Protection(IntFlag):
    """What a peer may do with a mapped buffer; values of mmap(2)."""

    NONE = 0
    READ = 1  # no mapping can be asked for with it
    WRITE = 2


RDMA_SQSIZE: Final = RdmaOpt.SQSIZE
RDMA_RQSIZE: Final = RdmaOpt.RQSIZE
RDMA_INLINE: Final = RdmaOpt.INLINE
RDMA_IOMAPSIZE: Final = RdmaOpt.IOMAPSIZE
RDMA_ROUTE: Final = RdmaOpt.ROUTE

PROT_NONE: Final = Protection.NONE
PROT_WRITE: Final = Protection.WRITE

# Of an offset that the caller of `riomap` leaves to us.
ANY_OFFSET: Final = -1

QUEUE_MIN: Final = 16  # entries of a send or a receive queue
QUEUE_MAX: Final = 0xFFFE
INLINE_BYTES_MAX: Final = 0xFFFE
IOMAP_SLOTS_MAX: Final = 32_512  # what eight bits can announce; docs/reference/rsocket.md 2.1
