"""How a socket sends: checks in Linux's order, control messages, memory regions by setsockopt.

The raw face of RDMA is here: structures of C whose addresses are those of this process, read by
`rdma_requests`. `socket_rdma` has the one without structures.
Source: linux v6.12 net/rds/send.c (rds_sendmsg), net/rds/rdma.c;
docs/reference/rds.md 3.2, 3.4, 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from urds.common.errors import ErrorReason, message_too_long, os_error
from urds.common.types import IPAddress
from urds.rds import addresses, options
from urds.rds.addresses import Call
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
    from urds.rds.cmsg import RdmaMap, SendRequest
    from urds.rds.runtime.backend import Mailbox, Operation

# As integers: an enum makes each operation on flags twenty times as long.
_DONTWAIT: Final = int(MSG_DONTWAIT)
_ZEROCOPY: Final = int(MSG_ZEROCOPY)
_SENT_STRICT: Final = _DONTWAIT | _ZEROCOPY
_SENT: Final = _SENT_STRICT | int(MSG_NOSIGNAL)  # docs/differences.md
_CHOOSE_RDMA: Final = "set SO_RDS_TRANSPORT to RDS_TRANS_IB before bind, or the setting transport"


class SendingSocket(SocketBase):
    """Sending, and the checks before it; see `socket.Socket`."""

    def setsockopt(
        self, level: int, option: int, value: Any, value_bytes: int | None = None, /
    ) -> None:
        """Set an option to an integer or to bytes; see `options` for what each takes.

        GET_MR and GET_MR_FOR_DEST make a memory region of an address and write its cookie to
        another; FREE_MR frees one. Raises OSError as Linux does: ENOPROTOOPT for an unknown
        option, EINVAL, EFAULT, EDOM; for regions also ENOTCONN, EOPNOTSUPP over TCP, EMSGSIZE.
        """
        if level == SOL_RDS and option in options.REGION_ACTIONS:
            self._check_open()
            data = option_bytes(value, value_bytes)
            if option == SockOpt.FREE_MR:
                self._free_region(data)
            else:
                self._get_region(option, data)
        else:
            super().setsockopt(level, option, value, value_bytes)

    # -- memory regions

    def _get_region(self, option: int, data: bytes) -> None:
        from urds.rds import rdma_requests

        wanted = rdma_requests.read_region(option, data)
        mailbox = self._bound_to_rdma()
        view = rdma_requests.view_of_region(wanted)
        peer: IPAddress | None = None
        with suppress(OSError):  # no usable address: Linux does not check it
            peer = self._host_of(rdma_requests.destination(option, data))
        self._give_cookie(mailbox, wanted, self._register(mailbox, wanted, view, peer))

    def _host_of(self, destination: Any) -> IPAddress:
        """Return the host of a destination. Raises as `sendto`."""
        return addresses.parse(destination, Call.SEND)[0]

    def _free_region(self, data: bytes) -> None:
        from urds.rds import rdma_requests

        cookie = rdma_requests.read_free(data)
        mailbox, backend = self._mailbox, self._backend
        over_rdma = self._options.transport is Transport.IB
        if over_rdma and not cookie:
            return  # asks for what was freed lazily: nothing is, here
        if mailbox is None or backend is None or not over_rdma:
            raise os_error(ErrorReason.NO_SUCH_REGION, "this socket has none")
        backend.regions().free(mailbox, cookie)

    def _register(
        self, mailbox: Mailbox, wanted: RdmaMap, view: memoryview, peer: IPAddress | None
    ) -> int:
        return self._new_region(
            mailbox,
            view,
            address=wanted.address,
            writable=bool(wanted.flags & RdmaFlag.READWRITE),
            use_once=bool(wanted.flags & RdmaFlag.USE_ONCE),
            peer=peer,
        )

    def _new_region(
        self,
        mailbox: Mailbox,
        view: memoryview,
        *,
        address: int,
        writable: bool,
        use_once: bool,
        peer: IPAddress | None,
    ) -> int:
        """Register memory and return its cookie. Raises OSError: ENOMEM, EBADF if closed."""
        assert self._backend is not None, "bound sockets have a backend"
        regions = self._backend.regions()
        cookie = regions.register(
            mailbox, view, address=address, writable=writable, use_once=use_once, peer=peer
        )
        if self._mailbox is not mailbox:  # closed meanwhile: its regions were freed before this one
            regions.free_all(mailbox)
            self._check_open()
        return cookie

    def _give_cookie(self, mailbox: Mailbox, wanted: RdmaMap, cookie: int) -> None:
        from urds.rds import rdma_requests

        try:
            rdma_requests.give_cookie(wanted, cookie)
        except OSError:
            self._forget_region(mailbox, cookie)
            raise

    def _forget_region(self, mailbox: Mailbox, cookie: int) -> None:
        """Free a region unless a peer or a close was faster."""
        assert self._backend is not None, "bound sockets have a backend"
        with suppress(OSError):
            self._backend.regions().free(mailbox, cookie)

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
            raise os_error(ErrorReason.FAMILY_MISMATCH, detail)
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
            cookie = self._map(mailbox, request.region, target[0])
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
            raise os_error(ErrorReason.TOO_LONG, detail)
        buffer, longest = self._options.send_bytes_max, self._settings.max_message_bytes
        if payload_bytes > min(buffer, longest):
            raise message_too_long(payload_bytes, message_bytes_max=longest, send_bytes_max=buffer)

    def _operations(self, request: SendRequest) -> list[Operation]:
        """Return what to do before the message; over TCP it is checked too, then refused."""
        if request.rdma is None and request.atomic is None:
            return []
        from urds.rds import rdma_requests

        report_failure = self._options.report_errors
        operations: list[Operation] = []
        if request.rdma is not None:
            pieces = rdma_requests.read_pieces(request.rdma)
            operations.append(
                rdma_requests.transfer(request.rdma, pieces, report_failure=report_failure)
            )
        if request.atomic is not None:
            operations.append(rdma_requests.atomic(request.atomic, report_failure=report_failure))
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

    def _map(self, mailbox: Mailbox, wanted: RdmaMap, peer: IPAddress) -> int:
        """Make the region that a message shall bring; EAGAIN while there is no connection."""
        from urds.rds import rdma_requests

        assert self._backend is not None, "bound sockets have a backend"
        view = rdma_requests.view_of_region(wanted)
        if not self._backend.connected(mailbox, peer):
            raise os_error(ErrorReason.NOT_CONNECTED_YET, f"{peer}: RDMA_MAP needs a connection")
        cookie = self._register(mailbox, wanted, view, peer)
        self._give_cookie(mailbox, wanted, cookie)
        return cookie

    def _post(
        self,
        payload: Any,
        flags: int,
        address: Any,
        *,
        extension: bytes = b"",
        operations: Sequence[Operation] = (),
    ) -> Mailbox:
        """Queue a message with what was made for it; return where it leaves from."""
        mailbox, target = self._destination(flags, address)
        self._bound_to_rdma()
        self._check_length(memoryview(payload).nbytes)
        mailbox.send(
            (payload,),
            addresses.socket_address(*target),
            wait_ns=self._send_wait_ns(flags),
            extension=extension,
            operations=operations,
        )
        return mailbox
