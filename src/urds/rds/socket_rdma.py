"""How a socket sends, and RDMA: checks in Linux's order, control messages, memory regions.

RDMA has two faces. Without hand-packed structures: one side makes a region of its memory and sends
the cookie along with a message; the other moves bytes into it or out of it, unseen by the program
there, and its next message arrives after the bytes. And with the structures of rds-rdma(7), whose
addresses are those of this process; `rdma` reads them, and is imported when it is needed.
Source: rds-rdma(7); linux v6.12 net/rds/send.c (rds_sendmsg), net/rds/rdma.c;
docs/reference/rds.md 3.2, 3.4, 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from urds.common.errors import ErrorReason, message_too_long, os_error
from urds.common.types import IPAddress
from urds.rds import addresses, options
from urds.rds.addresses import Call, GivenAddress
from urds.rds.constants import (
    MAX_MESSAGE_BYTES,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    MSG_ZEROCOPY,
    SOL_RDS,
    RdmaFlag,
    SockOpt,
    Transport,
)
from urds.rds.socket_base import SocketBase, option_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from urds.rds.cmsg import RdmaMap, SendRequest
    from urds.rds.rdma import MemoryRegion, PendingAtomic, PendingOperation
    from urds.rds.runtime.backend import Backend, Buffer, Mailbox, Operation

_U64_END: Final = 1 << 64
_ALL_BITS: Final = _U64_END - 1
# As integers: an enum makes each operation on flags twenty times as long.
_DONTWAIT: Final = int(MSG_DONTWAIT)
_ZEROCOPY: Final = int(MSG_ZEROCOPY)
_SENT_STRICT: Final = _DONTWAIT | _ZEROCOPY
_SENT: Final = _SENT_STRICT | int(MSG_NOSIGNAL)  # docs/differences.md
_CHOOSE_RDMA: Final = "set SO_RDS_TRANSPORT to RDS_TRANS_IB before bind, or the setting transport"


class RdmaSocket(SocketBase):
    """Sending and its checks, memory regions, transfers and atomic operations; see `socket.Socket`.

    What concerns memory is for sockets over RDMA; over TCP it raises OSError (EOPNOTSUPP). In all
    these calls `address` None is the default destination, and `payload` None sends no message to
    the program there; with a payload, of no bytes even, a message follows.
    """

    def setsockopt(
        self,
        level: int,
        optname: int,
        value: int | ReadableBuffer | None,
        optlen: int | None = None,
        /,
    ) -> None:
        """Set an option to an integer or to bytes; see `options` for what each takes.

        GET_MR and GET_MR_FOR_DEST make a memory region of an address and write its cookie to
        another; FREE_MR frees one. Raises OSError as Linux does: ENOPROTOOPT for an unknown
        option, EINVAL, EFAULT, EDOM; for regions also ENOTCONN, EOPNOTSUPP over TCP, EMSGSIZE.
        """
        if level == SOL_RDS and optname in options.REGION_ACTIONS:
            self._check_open()
            data = option_bytes(value, optlen)
            if optname == SockOpt.FREE_MR:
                self._free_region(data)
            else:
                self._get_region(optname, data)
        else:
            super().setsockopt(level, optname, value, optlen)

    # -- regions and operations without structures

    def get_mr(
        self,
        buffer: ReadableBuffer,
        address: GivenAddress | None = None,
        *,
        writable: bool = True,
        use_once: bool = False,
    ) -> MemoryRegion:
        """Make a region of a contiguous buffer of 1 byte to 1 MiB; no byte is copied.

        Peers that are told its cookie may read it, and if `writable` write it and do atomic
        operations in it, until it is freed. With `address`, that of a destination, its host alone
        may, as with RDS_GET_MR_FOR_DEST; the port does not count. `use_once` frees it with the
        first message whose sender has transferred to or from it. Raises OSError: ENOTCONN,
        EOPNOTSUPP, EINVAL, EMSGSIZE, ENOMEM (65,536 regions of the process); TypeError,
        ValueError: no such buffer.
        """
        from urds.rds import rdma

        mailbox = self._bound_to_rdma()
        view = memoryview(buffer)
        if writable and view.readonly:
            name = type(buffer).__name__
            raise ValueError(f"{name} is read-only: ask for a region with writable=False")
        data = view.cast("B")
        rdma.check_span(len(data))
        peer = None if address is None else addresses.parse(address, Call.SEND)[0]
        flags = RdmaFlag.READWRITE * writable | RdmaFlag.USE_ONCE * use_once
        cookie = self._register(mailbox, data, flags, peer)
        backend = self._bound_backend()
        return rdma.MemoryRegion(backend, mailbox, cookie=cookie, region_bytes=len(data))

    def send_region(
        self,
        payload: Buffer,
        region: MemoryRegion,
        address: GivenAddress | None = None,
        *,
        flags: int = 0,
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
        buffers: ReadableBuffer | Iterable[ReadableBuffer],
        cookie: int,
        address: GivenAddress | None = None,
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
        from urds.rds import rdma

        operation = rdma.transfer_of(
            buffers, cookie, offset, silent=payload is None, is_write=True, fence=False
        )
        mailbox = self._post(payload, flags, address, operations=(operation,))
        return rdma.PendingOperation(mailbox, operation)

    def rdma_read(
        self,
        buffers: ReadableBuffer | Iterable[ReadableBuffer],
        cookie: int,
        address: GivenAddress | None = None,
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
        from urds.rds import rdma

        operation = rdma.transfer_of(
            buffers, cookie, offset, silent=payload is None, is_write=False, fence=fence
        )
        mailbox = self._post(payload, flags, address, operations=(operation,))
        return rdma.PendingOperation(mailbox, operation)

    def fetch_add(
        self,
        cookie: int,
        addend: int,
        address: GivenAddress | None = None,
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
        from urds.rds import rdma

        if not -(1 << 63) <= addend < _U64_END:
            raise ValueError(f"addend {addend} has more than 64 bits")
        rdma.check_64_bits(no_carry_mask=no_carry_mask)
        asked = {"is_compare": False, "operand": addend % _U64_END, "no_carry_mask": no_carry_mask}
        operation = rdma.atomic_of(cookie, offset, silent=payload is None, **asked)
        mailbox = self._post(payload, flags, address, operations=(operation,))
        return rdma.PendingAtomic(mailbox, operation)

    def compare_swap(
        self,
        cookie: int,
        expected: int,
        new: int,
        address: GivenAddress | None = None,
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
        from urds.rds import rdma

        masks = {"compare_mask": compare_mask, "swap_mask": swap_mask}
        rdma.check_64_bits(expected=expected, new=new, **masks)
        asked = {"is_compare": True, "operand": expected, "swap": new, **masks}
        operation = rdma.atomic_of(cookie, offset, silent=payload is None, **asked)
        mailbox = self._post(payload, flags, address, operations=(operation,))
        return rdma.PendingAtomic(mailbox, operation)

    # -- memory regions

    def _get_region(self, option: int, data: bytes) -> None:
        from urds.rds import rdma

        wanted = rdma.read_region(option, data)
        mailbox = self._bound_to_rdma()
        view = rdma.view_of_region(wanted)
        peer: IPAddress | None = None
        with suppress(OSError):  # no usable address: Linux does not check it
            peer = addresses.parse(rdma.destination(option, data), Call.SEND)[0]
        self._map(mailbox, wanted, view, peer)

    def _free_region(self, data: bytes) -> None:
        from urds.rds import rdma

        cookie = rdma.read_free(data)
        mailbox, backend = self._mailbox, self._backend
        over_rdma = self._options.transport is Transport.IB
        if over_rdma and not cookie:
            return  # asks for what was freed lazily: nothing is, here
        if mailbox is None or backend is None or not over_rdma:
            raise os_error(ErrorReason.NO_SUCH_REGION, "this socket has none")
        backend.regions().free(mailbox, cookie)

    def _bound_backend(self) -> Backend:
        assert self._backend is not None, "bound sockets have a backend"
        return self._backend

    def _register(
        self,
        mailbox: Mailbox,
        view: memoryview,
        flags: int,
        peer: IPAddress | None,
        *,
        address: int = 0,
    ) -> int:
        """Register memory and return its cookie. Raises OSError: ENOMEM, EBADF if closed."""
        regions = self._bound_backend().regions()
        cookie = regions.register(
            mailbox,
            view,
            address=address,
            writable=bool(flags & RdmaFlag.READWRITE),
            use_once=bool(flags & RdmaFlag.USE_ONCE),
            peer=peer,
        )
        if self._mailbox is not mailbox:  # closed meanwhile: its regions were freed before this one
            regions.free_all(mailbox)
            self._check_open()
        return cookie

    def _map(
        self, mailbox: Mailbox, wanted: RdmaMap, view: memoryview, peer: IPAddress | None
    ) -> int:
        """Make a region and write its cookie where the program wants it."""
        from urds.rds import rdma

        cookie = self._register(mailbox, view, wanted.flags, peer, address=wanted.address)
        try:
            rdma.give_cookie(wanted, cookie)
        except OSError:
            self._forget_region(mailbox, cookie)
            raise
        return cookie

    def _forget_region(self, mailbox: Mailbox, cookie: int) -> None:
        """Free a region unless a peer or a close was faster."""
        with suppress(OSError):
            self._bound_backend().regions().free(mailbox, cookie)

    def _bound_to_rdma(self) -> Mailbox:
        mailbox = self._bound()
        if self._options.transport is not Transport.IB:
            raise os_error(ErrorReason.NOT_SUPPORTED, f"RDMA needs its transport: {_CHOOSE_RDMA}")
        return mailbox

    # -- sending

    def _send(
        self,
        buffers: Sequence[Any],
        ancillary: Sequence[tuple[int, int, Any]],
        flags: int,
        address: Any,
        *,
        copy: bool = True,
    ) -> int:
        """Check in Linux's order, then queue. Source: docs/reference/rds.md 3.4 (linux v6.12)."""
        mailbox, target = self._destination(flags, address)
        wait_ns = self._send_wait_ns(flags)
        if ancillary or flags & _ZEROCOPY:
            return self._send_with_control(mailbox, buffers, ancillary, flags, target, copy=copy)
        target_address = addresses.socket_address(*target)
        return mailbox.send(buffers, target_address, wait_ns=wait_ns, copy=copy)

    def _destination(self, flags: int, address: Any) -> tuple[Mailbox, tuple[IPAddress, int]]:
        """Return where from and where to a message goes."""
        if flags and flags & (~_SENT_STRICT if self._settings.strict_linux else ~_SENT):
            raise os_error(ErrorReason.FLAGS_NOT_SUPPORTED, f"flags {flags:#x}")
        target = None if address is None else addresses.parse(address, Call.SEND)
        mailbox = self._bound()
        target = target or self._peer
        if target is None:
            raise os_error(ErrorReason.NO_DESTINATION_GIVEN)
        if target[0].version != mailbox.local.version:
            detail = f"{target[0]} from a socket bound to {mailbox.local}"
            raise os_error(ErrorReason.FAMILY_MISMATCH, detail, peer=target[0])
        return mailbox, target

    def _send_wait_ns(self, flags: int) -> int | None:
        return 0 if flags & _DONTWAIT else self._wait_ns(self._options.send_wait_ns)

    def _send_with_control(
        self,
        mailbox: Mailbox,
        buffers: Sequence[Any],
        ancillary: Sequence[tuple[int, int, Any]],
        flags: int,
        target: tuple[IPAddress, int],
        *,
        copy: bool,
    ) -> int:
        """Send with control messages; a region that one of them made goes if the send fails."""
        from urds.rds import cmsg

        payload_bytes = sum(memoryview(one).nbytes for one in buffers)
        self._check_length(payload_bytes, cmsg.rdma_bytes(ancillary))
        zerocopy = bool(flags & _ZEROCOPY)
        if zerocopy and self._options.zerocopy and self._options.transport is Transport.IB:
            raise os_error(ErrorReason.NOT_SUPPORTED, "MSG_ZEROCOPY over RDMA")
        request = cmsg.read(ancillary)
        operations = self._operations(request)
        self._check_companions(mailbox, request, zerocopy=zerocopy)
        cookie = request.destination_cookie
        if request.region is not None:
            cookie = self._map_for(mailbox, request.region, target[0])
        try:
            return mailbox.send(
                buffers,
                addresses.socket_address(*target),
                wait_ns=self._send_wait_ns(flags),
                extension=b"" if cookie is None else cmsg.destination_extension(cookie),
                operations=operations,
                copy=copy,
            )
        except BaseException:  # a handler of a signal may end the wait for room
            if request.region is not None and cookie is not None:
                self._forget_region(mailbox, cookie)
            raise

    def _check_length(self, payload_bytes: int, rdma_bytes: int = 0) -> None:
        if rdma_bytes > MAX_MESSAGE_BYTES:
            detail = f"RDMA of {rdma_bytes} bytes, limit {MAX_MESSAGE_BYTES}"
            raise os_error(ErrorReason.TOO_LONG, detail, limit=MAX_MESSAGE_BYTES)
        buffer, longest = self._options.send_bytes_max, self._settings.max_message_bytes
        if payload_bytes > min(buffer, longest):
            raise message_too_long(payload_bytes, message_bytes_max=longest, send_bytes_max=buffer)

    def _operations(self, request: SendRequest) -> list[Operation]:
        """Return what to do before the message; over TCP it is checked too, then refused."""
        if request.rdma is None and request.atomic is None:
            return []
        from urds.rds import rdma

        operations = rdma.operations_of(request, report_failure=self._options.report_errors)
        self._bound_to_rdma()
        return operations

    def _check_companions(self, mailbox: Mailbox, request: SendRequest, *, zerocopy: bool) -> None:
        """Refuse a cookie that is none of this socket's, a region over TCP, and MSG_ZEROCOPY.

        `sendmsg(..., copy=False)` is what sends by reference here.
        """
        cookie = request.destination_cookie
        if cookie is not None and not self._owns(mailbox, cookie):
            raise os_error(ErrorReason.BAD_CMSG, "RDMA_DEST names no memory region of this socket")
        if request.region is not None:
            self._bound_to_rdma()
        has_cookie = request.zerocopy_cookie is not None
        if zerocopy != has_cookie or (zerocopy and not self._options.zerocopy):
            raise os_error(
                ErrorReason.BAD_CMSG, "MSG_ZEROCOPY needs SO_ZEROCOPY and one ZCOPY_COOKIE"
            )
        if zerocopy:
            raise os_error(ErrorReason.NOT_SUPPORTED, "MSG_ZEROCOPY")

    def _owns(self, mailbox: Mailbox, cookie: int) -> bool:
        backend = self._backend
        over_rdma = self._options.transport is Transport.IB
        return backend is not None and over_rdma and backend.regions().owns(mailbox, cookie)

    def _map_for(self, mailbox: Mailbox, wanted: RdmaMap, peer: IPAddress) -> int:
        """Make the region that a message shall bring; EAGAIN while there is no connection."""
        from urds.rds import rdma

        view = rdma.view_of_region(wanted)
        if not self._bound_backend().connected(mailbox, peer):
            detail = f"{peer}: RDMA_MAP needs a connection"
            raise os_error(ErrorReason.NOT_CONNECTED_YET, detail, peer=peer)
        return self._map(mailbox, wanted, view, peer)

    def _post(
        self,
        payload: Buffer | None,
        flags: int,
        address: Any,
        *,
        extension: bytes = b"",
        operations: Sequence[Operation] = (),
    ) -> Mailbox:
        """Queue a message with what was made for it; return where it leaves from."""
        mailbox, target = self._destination(flags, address)
        self._bound_to_rdma()
        data = b"" if payload is None else payload
        self._check_length(memoryview(data).nbytes)
        mailbox.send(
            (data,),
            addresses.socket_address(*target),
            wait_ns=self._send_wait_ns(flags),
            extension=extension,
            operations=operations,
        )
        return mailbox
