"""The structures of rds-rdma(7) in C's form: checked as Linux does, turned into records.

Addresses of this process become views, each check comes in Linux's order, and the caller gets
regions to make and operations to queue. The socket decides what it and its transport allow. Sizes
and limits: a region has at most 1 MiB and a page, the bytes of one operation at most 1 MiB, its
local pieces are 1 to 1024.
Source: linux v6.12 net/rds/rdma.c, net/rds/send.c (rds_rm_size); docs/reference/rds.md 3.3, 4.3.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from urds.common import process_memory
from urds.common.errors import ErrorReason, os_error
from urds.rds.cmsg import Atomic, RdmaArgs, RdmaMap
from urds.rds.constants import (
    MAX_MESSAGE_BYTES,
    RDMA_PAGE_BYTES,
    RDMA_PIECES_MAX,
    Cmsg,
    RdmaFlag,
    SockOpt,
)
from urds.rds.rdma import key_of, remote_address
from urds.rds.runtime.backend import AtomicOperation, RdmaTransfer

ATOMIC_BYTES: Final = 8
_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1

_GET_MR: Final = Struct("=QQQQ")
_DESTINATION_BYTES: Final = 128  # struct sockaddr_storage
_SOCKADDR_IN_BYTES: Final = 16
_GET_MR_FOR_DEST: Final = Struct(f"={_DESTINATION_BYTES}xQQQQ")
_FREE_MR: Final = Struct("=QQ")
_IOVEC: Final = Struct("=QQ")
_COOKIE: Final = Struct("=Q")


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
        raise os_error(ErrorReason.TOO_LONG, f"{extent}, limit {MAX_MESSAGE_BYTES} and a page")
    return process_memory.view_at(wanted.address, wanted.region_bytes, writable=True)


def give_cookie(wanted: RdmaMap, cookie: int) -> None:
    """Write a region's cookie where its maker wants it; address 0 is nowhere.

    Raises OSError (EFAULT): that cannot be written.
    """
    if wanted.cookie_address:
        place = process_memory.view_at(wanted.cookie_address, _COOKIE.size, writable=True)
        place[:] = _COOKIE.pack(cookie)


# -- operations


def read_pieces(args: RdmaArgs) -> list[Piece]:
    """Read the list of local pieces that RDMA_ARGS points to.

    Raises OSError: EINVAL for an empty list or a piece that is none, EMSGSIZE for more than 1024,
    EFAULT for a list that is not there.
    """
    if not args.local_count:
        raise os_error(ErrorReason.BAD_CMSG, "RDMA_ARGS without local memory")
    if args.local_count > RDMA_PIECES_MAX:
        raise os_error(ErrorReason.TOO_LONG, f"{args.local_count} pieces, limit {RDMA_PIECES_MAX}")
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
    if asked.local_address % ATOMIC_BYTES:
        raise os_error(ErrorReason.MEMORY_FAULT, f"address {asked.local_address:#x} is not aligned")
    result = process_memory.view_at(asked.local_address, ATOMIC_BYTES, writable=True)
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
        "key": key_of(asked.cookie),
        "remote_address": remote_address(asked.cookie, asked.remote_address),
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
