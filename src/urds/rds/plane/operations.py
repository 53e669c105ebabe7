"""RDMA and atomic operations, as a socket hands them to a transport.

An operation belongs to one message: it completes before the message leaves, on the same connection,
so that its bytes are in place when the message arrives. It ends exactly once: the transport sets
`status` and calls `Mailbox.note_operation` of the sender's mailbox. Source: rds-rdma(7);
docs/reference/rds.md 4.3 (linux v6.12 net/rds/rdma.c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from urds.rds.constants import RdmaStatus


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """Fields of every operation; the socket creates it and has checked every limit."""

    key: int  # the peer's r_key: lower half of its cookie
    remote_address: int  # within that region: the requested address plus the cookie's offset
    token: int = 0  # the application's, returned with the status
    notify: bool = False  # NOTIFY_ME: a notice at the end, whatever the status
    report_failure: bool = False  # RDS_RECVERR: a notice of a failure, also without NOTIFY_ME
    silent: bool = False  # without payload and cookie no message follows
    fence: bool = False  # the message waits for this read
    status: RdmaStatus | None = None  # None while it has not ended

    @property
    def wants_notice(self) -> bool:
        """Whether its present status makes a notice for the application."""
        return self.notify or (self.report_failure and bool(self.status))


@dataclass(slots=True, eq=False, kw_only=True)
class RdmaTransfer(Operation):
    """Move bytes between local memory and one region of the peer."""

    is_write: bool  # to the peer; else from it
    pieces: tuple[memoryview, ...]  # local, of bytes, in order; writable for a read

    @property
    def payload_bytes(self) -> int:
        """Bytes to move."""
        return sum(len(piece) for piece in self.pieces)


@dataclass(slots=True, eq=False, kw_only=True)
class AtomicOperation(Operation):
    """Fetch and add, or compare and swap, on eight bytes of the peer; 64-bit operands.

    An add with a no-carry mask adds within fields whose highest bits the mask sets; 0 is plain. A
    compare uses the bits of `compare_mask` and swaps those of `swap_mask`; all ones is plain.
    """

    is_compare: bool
    operand: int  # what is added, or compared
    swap: int = 0
    no_carry_mask: int = 0
    compare_mask: int = (1 << 64) - 1
    swap_mask: int = (1 << 64) - 1
    result: memoryview  # eight writable bytes: the old value, in host order


class OperationNotice(NamedTuple):
    """How an operation ended, for an application that requested a notice."""

    token: int
    status: RdmaStatus


class OperationNotices(tuple[OperationNotice, ...]):
    """The notices of one receive: a tuple, in the order in which the operations ended."""

    __slots__ = ()
