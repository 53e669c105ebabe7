"""How frames of RDS over RDMA are made, which two urds nodes agree on at each connect."""

from enum import IntEnum
from typing import Final


class FrameFormat(IntEnum):
    """The number is the version of the mark in the private data that offers it.

    Who offers one takes the ones before it as well.
    """

    SHORT = 1  # fragments of 4096 bytes, as towards every other peer
    LONG = 2  # fragments of 65536 bytes
    PACKED = 3  # the same, and whole messages one behind the other in a frame


FRAME_FORMAT_NEWEST: Final = FrameFormat.PACKED
