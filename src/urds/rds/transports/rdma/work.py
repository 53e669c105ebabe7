"""The work that a connection's core asks its device to post, and how it ended.

A core never touches a queue pair. It gives work in the order in which it must be posted, numbered
by `wr_id`; completions come in that order with these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from urds.rds.plane.operations import Operation


@dataclass(frozen=True, slots=True)
class Frame:
    """One SEND: a header and one fragment of payload."""

    wr_id: int
    data: bytes
    solicited: bool = False  # the last fragment of a message
    fence: bool = False  # behind a read of the same message that asked for it


@dataclass(frozen=True, slots=True)
class Piece:
    """One work request of an operation: piece `number` of a transfer, or an atomic (number 0)."""

    wr_id: int
    operation: Operation
    number: int
    remote_address: int  # of this piece


Work = Frame | Piece


class Outcome(Enum):
    """How a work request ended."""

    DONE = auto()
    REMOTE_ACCESS = auto()  # the peer's memory refused it
    FLUSHED = auto()  # never done, or unknown: the connection broke
    FAILED = auto()  # anything else
