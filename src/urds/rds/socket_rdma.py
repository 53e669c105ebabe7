"""RDMA and atomic operations on a socket without hand-packed structures.

One side makes a region of its memory and sends the cookie along with a message; the other moves
bytes into it or out of it, unseen by the program there, and its next message arrives after the
bytes. `socket_sending` has the same with the structures of rds-rdma(7).
Source: rds-rdma(7); docs/reference/rds.md 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from urds.common.errors import ErrorReason, os_error
from urds.rds.constants import MAX_MESSAGE_BYTES, RDMA_PIECES_MAX
from urds.rds.socket_sending import SendingSocket

if TYPE_CHECKING:
    from urds.rds.rdma import MemoryRegion, PendingAtomic, PendingOperation

    Buffer = bytes | bytearray | memoryview

_U64_END: Final = 1 << 64
_ALL_BITS: Final = _U64_END - 1
_ATOMIC_BYTES: Final = 8


class RdmaSocket(SendingSocket):
    """Memory regions, transfers and atomic operations; see `socket.Socket`.

    For sockets over RDMA; over TCP each call raises OSError (EOPNOTSUPP). In all of them `address`
    None is the default destination, and `payload` None sends no message to the program there; with
    a payload, of no bytes even, a message follows.
    """

    def get_mr(
        self, buffer: Any, address: Any = None, *, writable: bool = True, use_once: bool = False
    ) -> MemoryRegion:
        """Make a region of a contiguous buffer of 1 byte to 1 MiB; no byte is copied.

        Peers that are told its cookie may read it, and if `writable` write it and do atomic
        operations in it, until it is freed. With `address`, that of a destination, its host alone
        may, as with RDS_GET_MR_FOR_DEST; the port does not count. `use_once` frees it with the
        first message whose sender has transferred to or from it. Raises OSError: ENOTCONN,
        EOPNOTSUPP, EINVAL, EMSGSIZE, ENOMEM (65,536 regions of the process); TypeError,
        ValueError: no such buffer.
        """
        from urds.rds.rdma import MemoryRegion

        mailbox = self._bound_to_rdma()
        view = memoryview(buffer)
        if writable and view.readonly:
            name = type(buffer).__name__
            raise ValueError(f"{name} is read-only: ask for a region with writable=False")
        data = view.cast("B")
        _check_span(len(data))
        peer = None if address is None else self._host_of(address)
        cookie = self._new_region(
            mailbox, data, address=0, writable=writable, use_once=use_once, peer=peer
        )
        assert self._backend is not None, "bound sockets have a backend"
        return MemoryRegion(self._backend, mailbox, cookie=cookie, region_bytes=len(data))

    def send_region(
        self, payload: Buffer, region: MemoryRegion, address: Any = None, *, flags: int = 0
    ) -> int:
        """Queue one message that brings the cookie of a region of this socket; return its length.

        The peer gets it from `recv_region`, or as control message RDMA_DEST. Raises OSError as
        `sendto`, and EINVAL for a region that is over or another socket's.
        """
        from urds.rds import cmsg

        mailbox = self._bound_to_rdma()
        if not self._owns(mailbox, region.cookie):
            raise os_error(ErrorReason.NO_SUCH_REGION, f"{region!r}")
        self._post(payload, flags, address, extension=cmsg.destination_extension(region.cookie))
        return memoryview(payload).nbytes

    def rdma_write(
        self,
        buffers: Any,
        cookie: int,
        address: Any = None,
        *,
        offset: int = 0,
        payload: Buffer | None = None,
        flags: int = 0,
    ) -> PendingOperation:
        """Write a buffer, or several one behind the other, into a peer's region.

        From `offset` of the region on: 1 byte to 1 MiB in at most 1024 pieces, which may not
        change until the operation has ended. A `payload` arrives after the bytes. Raises OSError
        as `sendto`, and EINVAL or EMSGSIZE for a size that cannot be.
        """
        return self._transfer(
            buffers, cookie, address, offset, payload, flags, is_write=True, fence=False
        )

    def rdma_read(
        self,
        buffers: Any,
        cookie: int,
        address: Any = None,
        *,
        offset: int = 0,
        payload: Buffer | None = None,
        fence: bool = True,
        flags: int = 0,
    ) -> PendingOperation:
        """Read from a peer's region into a writable buffer, or several one behind the other.

        As `rdma_write`, the other way; the bytes are here when the operation has ended. With
        `fence` a `payload` leaves no sooner than that, so the peer may take it for the end.
        """
        return self._transfer(
            buffers, cookie, address, offset, payload, flags, is_write=False, fence=fence
        )

    def fetch_add(
        self,
        cookie: int,
        addend: int,
        address: Any = None,
        *,
        offset: int = 0,
        no_carry_mask: int = 0,
        payload: Buffer | None = None,
        flags: int = 0,
    ) -> PendingAtomic:
        """Add to eight bytes of a peer's writable region, a number in the peer's byte order.

        Modulo 2**64; a negative addend subtracts. Each bit of `no_carry_mask` is the highest of a
        field of its own, which carries nothing out. `offset` counts from the region's beginning and
        leads to bytes aligned to 8. The returned operation has the old value. Raises OSError as
        `sendto`; ValueError for a number or mask beyond 64 bits.
        """
        if not -(1 << 63) <= addend < _U64_END:
            raise ValueError(f"addend {addend} has more than 64 bits")
        _check_64_bits(no_carry_mask=no_carry_mask)
        asked = {"is_compare": False, "operand": addend % _U64_END, "no_carry_mask": no_carry_mask}
        return self._atomic(cookie, address, offset, payload, flags, asked)

    def compare_swap(
        self,
        cookie: int,
        expected: int,
        new: int,
        address: Any = None,
        *,
        offset: int = 0,
        compare_mask: int = _ALL_BITS,
        swap_mask: int = _ALL_BITS,
        payload: Buffer | None = None,
        flags: int = 0,
    ) -> PendingAtomic:
        """Set eight bytes of a peer's writable region to `new` if they are `expected`.

        `compare_mask` selects the bits that are compared, `swap_mask` the bits that are set. It was
        done if the old value of the returned operation is as expected. The rest is as in
        `fetch_add`.
        """
        _check_64_bits(expected=expected, new=new, compare_mask=compare_mask, swap_mask=swap_mask)
        asked = {
            "is_compare": True,
            "operand": expected,
            "swap": new,
            "compare_mask": compare_mask,
            "swap_mask": swap_mask,
        }
        return self._atomic(cookie, address, offset, payload, flags, asked)

    def _transfer(
        self,
        buffers: Any | Iterable[Any],
        cookie: int,
        address: Any,
        offset: int,
        payload: Buffer | None,
        flags: int,
        *,
        is_write: bool,
        fence: bool,
    ) -> PendingOperation:
        from urds.rds import rdma
        from urds.rds.runtime.backend import RdmaTransfer

        _check_64_bits(cookie=cookie, offset=offset)
        pieces = rdma.spans(buffers, writable=not is_write)
        _check_span(sum(map(len, pieces)))
        if len(pieces) > RDMA_PIECES_MAX:
            raise os_error(ErrorReason.TOO_LONG, f"{len(pieces)} pieces, limit {RDMA_PIECES_MAX}")
        operation = RdmaTransfer(
            key=rdma.key_of(cookie),
            remote_address=rdma.remote_address(cookie, offset),
            silent=payload is None,
            fence=fence,
            is_write=is_write,
            pieces=pieces,
        )
        mailbox = self._post(
            b"" if payload is None else payload, flags, address, operations=(operation,)
        )
        return rdma.PendingOperation(mailbox, operation)

    def _atomic(
        self,
        cookie: int,
        address: Any,
        offset: int,
        payload: Buffer | None,
        flags: int,
        asked: dict[str, Any],
    ) -> PendingAtomic:
        from urds.rds import rdma
        from urds.rds.runtime.backend import AtomicOperation

        _check_64_bits(cookie=cookie, offset=offset)
        operation = AtomicOperation(
            key=rdma.key_of(cookie),
            remote_address=rdma.remote_address(cookie, offset),
            silent=payload is None,
            result=memoryview(bytearray(_ATOMIC_BYTES)),
            **asked,
        )
        mailbox = self._post(
            b"" if payload is None else payload, flags, address, operations=(operation,)
        )
        return rdma.PendingAtomic(mailbox, operation)


def _check_span(payload_bytes: int) -> None:
    if not payload_bytes:
        raise os_error(ErrorReason.BAD_ARGUMENT, "0 bytes of memory")
    if payload_bytes > MAX_MESSAGE_BYTES:
        detail = f"{payload_bytes} bytes of memory, limit {MAX_MESSAGE_BYTES}"
        raise os_error(ErrorReason.TOO_LONG, detail)


def _check_64_bits(**numbers: int) -> None:
    for name, number in numbers.items():
        if not 0 <= number < _U64_END:
            raise ValueError(f"{name} {number} is not in 0 to 2**64 - 1")
