"""Work requests and completions: what an application posts and what it gets back.

The names are libibverbs' and pyverbs' (docs/reference/verbs-and-roce.md 18). The records carry no
bytes: a scatter/gather entry names memory by address and key, resolved when it is used.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple

from urds.verbs.engine.numbers import (
    CELL_MASK,
    AsyncEventType,
    SendFlag,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)


@dataclass(frozen=True, slots=True)
class SGE:
    """One piece of registered memory: `length` bytes from `addr`, under the local key."""

    addr: int
    length: int
    lkey: int


def total_bytes(sg: Sequence[SGE]) -> int:
    """Return the total length of the pieces in bytes. Raises TypeError: one is no integer."""
    if len(sg) == 1:
        return index(sg[0].length)
    return sum(index(piece.length) for piece in sg)


def check_wr_id(wr_id: int) -> None:
    """Check the number of a work request. Raises OverflowError: not one of 64 bits; TypeError."""
    if index(wr_id) >> 64:
        raise OverflowError(f"wr_id {wr_id}, from 0 to {(1 << 64) - 1}")


def check_count(num_sge: int, sg: Sequence[SGE]) -> None:
    """Check the `num_sge` of a work request. Raises OSError: EINVAL."""
    if num_sge != len(sg):
        raise OSError(errno.EINVAL, f"num_sge {num_sge}, the list `sg` has {len(sg)}")


@dataclass(slots=True)
class RecvWR:
    """Room for one message; its bytes fill the pieces in order.

    `num_sge` may be left out; if it is given, a post checks that the list has so many.
    """

    wr_id: int = 0  # of 64 bits: a post raises OverflowError for another
    sg: list[SGE] = field(default_factory=list)
    next_wr: "RecvWR | None" = None  # posted after this one by the same call
    num_sge: int | None = field(default=None, kw_only=True)


@dataclass(slots=True)
class SendWR:
    """One request. Fields that its opcode does not use are ignored.

    `num_sge` may be left out; if it is given, a post checks that `sg` has so many pieces.
    `imm_data`, `invalidate_rkey` (for SEND_WITH_INV and LOCAL_INV), `rkey`, `remote_qpn` and
    `remote_qkey` are 32-bit integers: a post raises OverflowError for others.
    `compare_add` and `swap` are 64-bit, as are the masks of MASKED_ATOMIC_*; `window` and `bind`
    are for BIND_MW. `data`, if given, is what a SEND or WRITE carries instead of `sg`, for layers
    above the verbs objects: bytes, or a contiguous view of format B. It needs no key and is not
    copied without INLINE: it must not change until the request completes or is detached
    (`SendRequest.detach`).
    """

    wr_id: int = 0  # as that of a receive
    opcode: WROpcode = WROpcode.SEND
    sg: list[SGE] = field(default_factory=list)
    send_flags: SendFlag = SendFlag.SIGNALED
    imm_data: int = 0
    invalidate_rkey: int = 0
    remote_addr: int = 0
    rkey: int = 0
    compare_add: int = 0
    swap: int = 0
    compare_mask: int = CELL_MASK  # bits that have to be those of `compare_add`
    swap_mask: int = CELL_MASK  # bits that become those of `swap`
    boundary: int = 0  # highest bits of the fields that an addition stays within
    # Datagrams: where to
    ah: "AddressVector | None" = None
    remote_qpn: int = 0
    remote_qkey: int = 0
    # Memory windows
    window: Any = None
    bind: Any = None
    data: bytes | memoryview | None = None
    next_wr: "SendWR | None" = None  # posted after this one by the same call
    num_sge: int | None = field(default=None, kw_only=True)

    @property
    def message_bytes(self) -> int:
        """Return the length of its message in bytes: of its pieces, or of its own data."""
        return total_bytes(self.sg) if self.data is None else len(self.data)

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Name the remote memory of a read or write."""
        self.rkey, self.remote_addr = rkey, addr

    def set_wr_ud(self, ah: Any, qpn: int, qkey: int) -> None:
        """Name the receiver of a datagram. `ah` is an `AH` or an `AddressVector`."""
        self.ah = getattr(ah, "vector", ah)
        self.remote_qpn, self.remote_qkey = qpn, qkey

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """Name the eight remote bytes of an atomic operation and its operands."""
        self.rkey, self.remote_addr = rkey, addr
        self.compare_add, self.swap = compare_add, swap

    def set_wr_masked_atomic(
        self,
        rkey: int,
        addr: int,
        compare_add: int,
        swap: int = 0,
        *,
        compare_mask: int = CELL_MASK,
        swap_mask: int = CELL_MASK,
        boundary: int = 0,
    ) -> None:
        """Name cell, operands and masks of a masked atomic operation."""
        self.set_wr_atomic(rkey, addr, compare_add, swap)
        self.compare_mask, self.swap_mask, self.boundary = compare_mask, swap_mask, boundary


@dataclass(frozen=True, slots=True)
class AddressVector:
    """Where packets go: the port's GID there (16 bytes) and, for providers on IP, its UDP port."""

    dgid: bytes
    port: int = 0


_NO_FLAGS = WCFlag(0)


class WC(NamedTuple):
    """One work completion. On failure only `wr_id`, `status` and `qp_num` are valid.

    A tuple, since one is made per message: a frozen dataclass takes three times as long.
    """

    wr_id: int
    status: WCStatus = WCStatus.SUCCESS
    opcode: WCOpcode = WCOpcode.SEND
    byte_len: int = 0
    qp_num: int = 0
    src_qp: int = 0
    imm_data: int = 0  # with WCFlag.WITH_INV: the key that was invalidated
    wc_flags: WCFlag = _NO_FLAGS
    vendor_err: int = 0
    solicited: bool = False  # the sender asked for an event (SendFlag.SOLICITED)


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """An event of `element`: the engine's queue pair, completion queue or shared receive queue."""

    event_type: AsyncEventType
    element: Any


@dataclass(frozen=True, slots=True)
class Completed:
    """A completion has come to `element`, a completion queue that was armed for it."""

    element: Any


Event = EngineEvent | Completed
