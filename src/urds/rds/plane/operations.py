"""RDMA and atomic operations, as they pass from a socket to the transport that does them.

An operation belongs to one message: it is done before the message leaves, on the same connection,
so that its octets lie in place when the message arrives. It ends exactly once: whoever carries the
message sets `status`, and the mailbox of its sender hears of it (`Mailbox.note_operation`).
Source: rds-rdma(7); rds.md 4.3 (linux v6.12 net/rds/rdma.c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from urds.constants import RdmaStatus


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """What all operations have; made by the socket, which has checked every bound."""

    key: int  # the peer's r_key: lower half of its cookie
    remote_address: int  # within that region: the address asked for plus the cookie's offset
    token: int = 0  # the application's, given back with the status
    notify: bool = False  # NOTIFY_ME: a notice at the end, whatever it is
    report_failure: bool = False  # RDS_RECVERR: a notice of a failure, also without NOTIFY_ME
    silent: bool = False  # without payload and cookie no message follows
    fence: bool = False  # the message waits for this read
    status: RdmaStatus | None = None  # how it ended; None while it has not

    @property
    def wants_notice(self) -> bool:
        """Whether its end, as it is now, makes a notice for the application."""
        return self.notify or (self.report_failure and bool(self.status))


@dataclass(slots=True, eq=False, kw_only=True)
class RdmaTransfer(Operation):
    """Move octets between local memory and one region of the peer."""

    is_write: bool  # to the peer; else from it
    pieces: tuple[memoryview, ...]  # local, of octets, in order; writable for a read

    @property
    def payload_bytes(self) -> int:
        """Octets to be moved."""
        return sum(len(piece) for piece in self.pieces)


@dataclass(slots=True, eq=False, kw_only=True)
class AtomicOperation(Operation):
    """Fetch and add, or compare and swap, on eight octets of the peer; 64-bit operands.

    An add with a no-carry mask adds within fields whose highest bits the mask names; 0 is plain.
    A compare looks at the bits of `compare_mask` and swaps those of `swap_mask`; all ones is plain.
    """

    is_compare: bool
    operand: int  # what is added, or compared
    swap: int = 0
    no_carry_mask: int = 0
    compare_mask: int = (1 << 64) - 1
    swap_mask: int = (1 << 64) - 1
    result: memoryview  # eight writable octets: the old value, in host order


class OperationNotice(NamedTuple):
    """How an operation ended, for the application that asked to hear of it."""

    token: int
    status: RdmaStatus


class OperationNotices(tuple[OperationNotice, ...]):
    """What one receive gives of them: a tuple, in the order in which the operations ended."""

    __slots__ = ()
