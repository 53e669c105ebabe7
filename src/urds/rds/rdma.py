"""RDMA calls of a socket: their results, and the structures of rds-rdma(7) in C's form.

The methods of `Socket` make regions and operations, and any thread may use them. Numbers and
directions are those of rds-rdma(7): a *region* is memory that a peer may read, and write if it is
writable; its *cookie* is what the peer is told.

Structures are checked as Linux does and turned into records: addresses of this process become
views, each check comes in Linux's order, and the caller gets regions to make and operations to
queue. The socket decides what it and its transport allow. A region has at most 1 MiB and a page,
the bytes of one operation at most 1 MiB, its local pieces are 1 to 1024.
Source: rds-rdma(7); linux v6.12 net/rds/rdma.c, net/rds/send.c (rds_rm_size);
docs/reference/rds.md 3.3, 4.3.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Self

from urds.common import process_memory
from urds.common.errors import ErrorReason, os_error
from urds.common.seconds import waiting_time
from urds.rds.cmsg import Atomic, RdmaArgs, RdmaMap, SendRequest
from urds.rds.constants import MAX_MESSAGE_BYTES, Cmsg, RdmaFlag, RdmaStatus, SockOpt
from urds.rds.numbers import RDMA_PAGE_BYTES, RDMA_PIECES_MAX
from urds.rds.runtime.backend import AtomicOperation, RdmaTransfer

if TYPE_CHECKING:
    from urds.rds.runtime.backend import Backend, Mailbox, Operation

_NS: Final = 1_000_000_000
_KEY_BITS: Final = 32
_KEY_MASK: Final = (1 << _KEY_BITS) - 1
_ATOMIC_BYTES: Final = 8
_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1

_GET_MR: Final = Struct("=QQQQ")
_DESTINATION_BYTES: Final = 128  # struct sockaddr_storage
_SOCKADDR_IN_BYTES: Final = 16
_GET_MR_FOR_DEST: Final = Struct(f"={_DESTINATION_BYTES}xQQQQ")
_FREE_MR: Final = Struct("=QQ")
_IOVEC: Final = Struct("=QQ")
_COOKIE: Final = Struct("=Q")


class MemoryRegion:
    """A buffer that peers may reach; see `Socket.get_mr`. As a context manager it frees itself.

    The buffer is used as it is, never copied, and stays exported (a bytearray cannot be resized)
    until the region is over: freed here, used by a peer if it was for one use, or its socket
    closed.
    """

    def __init__(
        self, backend: Backend, mailbox: Mailbox, *, cookie: int, region_bytes: int
    ) -> None:
        self.cookie: Final = cookie  # 64 bits, for the peer: `Socket.send_region` gives it to one
        self.region_bytes: Final = region_bytes
        self._backend = backend
        self._mailbox = mailbox

    @property
    def is_over(self) -> bool:
        """Tell whether the region has ended.

        After `free` no peer reaches the memory. A region for one use that was used is taken off the
        devices some moments later: its peer may reach it until then, as with Linux.
        """
        return not self._backend.regions().owns(self._mailbox, self.cookie)

    def free(self) -> None:
        """Take the memory back; from here on the cookie is refused. Once more does nothing.

        Waits for a peer that is copying at this moment, at most about a second.
        """
        with suppress(OSError):  # over already: used up by a peer, or the socket is closed
            self._backend.regions().free(self._mailbox, self.cookie)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"cookie={self.cookie:#x}"
        return f"<urds.MemoryRegion {self.region_bytes} bytes, {state}>"


class PendingOperation:
    """A transfer or an atomic operation that a socket has queued; it ends exactly once.

    Its memory is the operation's until then. How it ended is a status and no exception: SUCCESS,
    REMOTE_ERROR (the peer's memory refused it), CANCELED, DROPPED (the connection broke; it may
    have been done) or OTHER_ERROR.
    """

    def __init__(self, mailbox: Mailbox, operation: Operation) -> None:
        self._mailbox = mailbox
        self._operation = operation

    @property
    def status(self) -> RdmaStatus | None:
        """Return how it ended; None while it has not."""
        return self._operation.status

    def wait(self, wait_s: float | None = None) -> RdmaStatus:
        """Wait until it has ended, at most `wait_s` seconds (None: for ever); return its status.

        Raises TimeoutError (ETIMEDOUT) when the time is over and OSError (EBADF) if its socket is
        closed first; the operation goes on, or is canceled with its socket. TypeError and
        ValueError: `wait_s` is no time.
        """
        left_s = waiting_time(wait_s, "wait_s")
        status = self._operation.status
        if status is None:
            wait_ns = None if left_s is None else round(left_s * _NS)
            self._mailbox.wait_operation(self._operation, wait_ns)
            status = self._operation.status
        if status is None:
            raise os_error(ErrorReason.TIMED_OUT, f"the operation has not ended in {wait_s} s")
        return status

    def __repr__(self) -> str:
        state = "pending" if self.status is None else self.status.name
        return f"<urds.{type(self).__name__} {state}>"


class PendingAtomic(PendingOperation):
    """An atomic operation under way."""

    _operation: AtomicOperation

    @property
    def old_value(self) -> int:
        """Return what the peer's eight bytes held before, 64 bits without sign.

        Raises LookupError: it has not ended with SUCCESS, so the value is not known.
        """
        if self.status is not RdmaStatus.SUCCESS:
            raise LookupError(f"no value of an operation that is {self.status!r}")
        return int.from_bytes(self._operation.result, sys.byteorder)


@dataclass(frozen=True, slots=True)
class Piece:
    """Local memory as a struct rds_iovec names it."""

    address: int
    byte_count: int


# -- regions


def read_region(option: int, data: bytes) -> RdmaMap:
    """Read the value of GET_MR or GET_MR_FOR_DEST. Raises OSError (EINVAL) for another size."""
    layout = _GET_MR if option == SockOpt.GET_MR else _GET_MR_FOR_DEST
    values = layout.unpack(_exact(data, layout))
    return RdmaMap(**dict(zip(RdmaMap.__slots__, values, strict=True)))


def destination(option: int, data: bytes) -> bytes:
    """Return the socket address of GET_MR_FOR_DEST, empty for GET_MR."""
    if option != SockOpt.GET_MR_FOR_DEST:
        return b""
    family = int.from_bytes(data[:2], sys.byteorder)
    return data[: _SOCKADDR_IN_BYTES if family == socket.AF_INET else _DESTINATION_BYTES]


def read_free(data: bytes) -> int:
    """Read the cookie from the value of FREE_MR. Raises OSError (EINVAL) for another size.

    Its flags ask for the key to be invalid at once, or lazily: here it always is at once.
    """
    cookie: int = _FREE_MR.unpack(_exact(data, _FREE_MR))[0]
    return cookie


def view_of_region(wanted: RdmaMap) -> memoryview:
    """Return the memory of a region to be made.

    Raises OSError: EINVAL for no bytes or an end past the last page, EMSGSIZE for more than 1 MiB
    and a page, EFAULT for what cannot be written, even if the peer will only read: kernel parity.
    """
    end = wanted.address + wanted.region_bytes
    extent = f"{wanted.region_bytes} bytes at {wanted.address:#x}"
    if end > _U64_MAX + 1 - RDMA_PAGE_BYTES or not 0 < wanted.region_bytes <= _U32_MAX:
        raise os_error(ErrorReason.BAD_ARGUMENT, extent)
    pages = -(-end // RDMA_PAGE_BYTES) - wanted.address // RDMA_PAGE_BYTES
    if pages - 1 > MAX_MESSAGE_BYTES // RDMA_PAGE_BYTES:
        detail = f"{extent}, limit {MAX_MESSAGE_BYTES} and a page"
        raise os_error(ErrorReason.TOO_LONG, detail, limit=MAX_MESSAGE_BYTES)
    return process_memory.view_at(wanted.address, wanted.region_bytes, writable=True)


def give_cookie(wanted: RdmaMap, cookie: int) -> None:
    """Write a region's cookie where its maker wants it; address 0 is nowhere.

    Raises OSError (EFAULT): that cannot be written.
    """
    if wanted.cookie_address:
        place = process_memory.view_at(wanted.cookie_address, _COOKIE.size, writable=True)
        place[:] = _COOKIE.pack(cookie)


# -- operations


def operations_of(request: SendRequest, *, report_failure: bool) -> list[Operation]:
    """Return the operations that control messages ask for, in the order in which they are done."""
    operations: list[Operation] = []
    if request.rdma is not None:
        pieces = read_pieces(request.rdma)
        operations.append(transfer(request.rdma, pieces, report_failure=report_failure))
    if request.atomic is not None:
        operations.append(atomic(request.atomic, report_failure=report_failure))
    return operations


def read_pieces(args: RdmaArgs) -> list[Piece]:
    """Read the list of local pieces that RDMA_ARGS points to.

    Raises OSError: EINVAL for an empty list or a piece that is none, EMSGSIZE for more than 1024,
    EFAULT for a list that is not there.
    """
    if not args.local_count:
        raise os_error(ErrorReason.BAD_CMSG, "RDMA_ARGS without local memory")
    if args.local_count > RDMA_PIECES_MAX:
        detail = f"{args.local_count} pieces, limit {RDMA_PIECES_MAX}"
        raise os_error(ErrorReason.TOO_LONG, detail, limit=RDMA_PIECES_MAX)
    data = args.local_count * _IOVEC.size
    listed = process_memory.view_at(args.local_vector_address, data, writable=False)
    pieces = [Piece(*values) for values in _IOVEC.iter_unpack(bytes(listed))]
    for piece in pieces:
        if not 0 < piece.byte_count <= _U32_MAX or piece.address + piece.byte_count > _U64_MAX:
            detail = f"a piece of {piece.byte_count} bytes at {piece.address:#x}"
            raise os_error(ErrorReason.BAD_CMSG, detail)
    return pieces


def transfer(args: RdmaArgs, pieces: list[Piece], *, report_failure: bool) -> RdmaTransfer:
    """Return the operation that RDMA_ARGS asks for.

    Raises OSError: EFAULT for a piece that is not there, or not writable for a read; EINVAL if
    the pieces together are longer than the peer's part.
    """
    is_write = bool(args.flags & RdmaFlag.READWRITE)
    left = args.remote_bytes
    views = []
    for piece in pieces:
        # A piece that is too long need only be mapped as far as shows that.
        byte_count = min(piece.byte_count, left + 1)
        views.append(process_memory.view_at(piece.address, byte_count, writable=not is_write))
        left -= byte_count
        if left < 0:
            detail = f"local pieces exceed the {args.remote_bytes} bytes of the peer"
            raise os_error(ErrorReason.BAD_CMSG, detail)
    return RdmaTransfer(
        **_operation_of(args, report_failure=report_failure),
        is_write=is_write,
        pieces=tuple(views),
    )


def atomic(asked: Atomic, *, report_failure: bool) -> AtomicOperation:
    """Return the operation that an ATOMIC control message asks for; plain ones are masked ones.

    Raises OSError (EFAULT): the place for the old value is not aligned to 8 bytes, or not there.
    """
    if asked.local_address % _ATOMIC_BYTES:
        raise os_error(ErrorReason.MEMORY_FAULT, f"address {asked.local_address:#x} is not aligned")
    result = process_memory.view_at(asked.local_address, _ATOMIC_BYTES, writable=True)
    is_compare = asked.kind in (Cmsg.ATOMIC_CSWP, Cmsg.MASKED_ATOMIC_CSWP)
    is_masked = asked.kind in (Cmsg.MASKED_ATOMIC_CSWP, Cmsg.MASKED_ATOMIC_FADD)
    operand, second, compare_mask, swap_mask = asked.operands
    masks = (compare_mask, swap_mask) if is_compare and is_masked else (_U64_MAX, _U64_MAX)
    return AtomicOperation(
        **_operation_of(asked, report_failure=report_failure),
        is_compare=is_compare,
        operand=operand,
        swap=second if is_compare else 0,
        no_carry_mask=second if is_masked and not is_compare else 0,
        compare_mask=masks[0],
        swap_mask=masks[1],
        result=result,
    )


def _operation_of(asked: RdmaArgs | Atomic, *, report_failure: bool) -> dict[str, Any]:
    """Return the fields of `Operation`, which all kinds have."""
    return {
        **_place_of(asked.cookie, asked.remote_address),
        "token": asked.user_token,
        "notify": bool(asked.flags & RdmaFlag.NOTIFY_ME),
        "report_failure": report_failure,
        "silent": bool(asked.flags & RdmaFlag.SILENT),
        "fence": bool(asked.flags & RdmaFlag.FENCE),
    }


def _exact(data: bytes, layout: Struct) -> bytes:
    if len(data) != layout.size:
        raise os_error(ErrorReason.OPTION_SIZE, f"{len(data)} bytes, not {layout.size}")
    return data


# -- without structures


def transfer_of(
    buffers: object, cookie: int, offset: int, *, silent: bool, is_write: bool, fence: bool
) -> RdmaTransfer:
    """Return the operation of `Socket.rdma_write` or `rdma_read`; raises as they do."""
    check_64_bits(cookie=cookie, offset=offset)
    pieces = spans(buffers, writable=not is_write)
    check_span(sum(map(len, pieces)))
    if len(pieces) > RDMA_PIECES_MAX:
        detail = f"{len(pieces)} pieces, limit {RDMA_PIECES_MAX}"
        raise os_error(ErrorReason.TOO_LONG, detail, limit=RDMA_PIECES_MAX)
    return RdmaTransfer(
        **_place_of(cookie, offset), silent=silent, fence=fence, is_write=is_write, pieces=pieces
    )


def atomic_of(cookie: int, offset: int, *, silent: bool, **asked: Any) -> AtomicOperation:
    """Return the operation of `Socket.fetch_add` or `compare_swap`; raises as they do."""
    check_64_bits(cookie=cookie, offset=offset)
    result = memoryview(bytearray(_ATOMIC_BYTES))
    return AtomicOperation(**_place_of(cookie, offset), silent=silent, result=result, **asked)


def spans(buffers: object, *, writable: bool) -> tuple[memoryview, ...]:
    """Return one buffer, or an iterable of them, as views of bytes; empty ones are left out.

    Raises TypeError: no buffer, or not contiguous. ValueError: read-only where bytes shall come.
    """
    try:
        views = [memoryview(buffers)]  # type: ignore[arg-type]  # the question is whether it is one
    except TypeError:
        views = [memoryview(one) for one in buffers]  # type: ignore[attr-defined]  # as above
    for view in views:
        if writable and view.readonly:
            raise ValueError(f"{type(view.obj).__name__} is read-only: nothing can be read into it")
    return tuple(view.cast("B") for view in views if view.nbytes)


def _place_of(cookie: int, address: int) -> dict[str, Any]:
    """Return a place in a peer's region, as its device knows it.

    The key is the cookie's lower half. The upper half is where in a page the region begins; sums
    wrap at 64 bits.
    """
    remote_address = (cookie >> _KEY_BITS) + address & _U64_MAX
    return {"key": cookie & _KEY_MASK, "remote_address": remote_address}


def check_span(payload_bytes: int) -> None:
    """Check the size of memory. Raises OSError: EINVAL for none, EMSGSIZE above 1 MiB."""
    if not payload_bytes:
        raise os_error(ErrorReason.BAD_ARGUMENT, "0 bytes of memory")
    if payload_bytes > MAX_MESSAGE_BYTES:
        detail = f"{payload_bytes} bytes of memory, limit {MAX_MESSAGE_BYTES}"
        raise os_error(ErrorReason.TOO_LONG, detail, limit=MAX_MESSAGE_BYTES)


def check_64_bits(**numbers: int) -> None:
    """Raise ValueError for a number that is negative or has more than 64 bits."""
    for name, number in numbers.items():
        if not 0 <= number <= _U64_MAX:
            raise ValueError(f"{name} {number} is not in 0 to 2**64 - 1")
