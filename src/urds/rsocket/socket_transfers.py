"""Sending and receiving of a stream socket, with the flags and the waiting of `socket.socket`.

Each call first tries what the link does without waiting; only who got nothing waits, without a
lock, and drives the device meanwhile. A send that may wait for ever returns when everything was
taken, as a kernel's does; with a timeout it returns what was taken before a second wait.
Source: rsocket.md section 6.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from functools import partial
from socket import (
    MSG_CMSG_CLOEXEC,
    MSG_CONFIRM,
    MSG_DONTROUTE,
    MSG_DONTWAIT,
    MSG_EOR,
    MSG_MORE,
    MSG_NOSIGNAL,
    MSG_PEEK,
    MSG_WAITALL,
)
from typing import TYPE_CHECKING, Any, Final

from urds.rsocket import devices, socket_names
from urds.rsocket.link import LinkState
from urds.rsocket.refusals import closed, refusal
from urds.rsocket.socket_waiting import Patience
from urds.rsocket.sockets import Socket

if TYPE_CHECKING:
    from urds.rsocket.link import Link

# As integers: an enum makes each operation on flags twenty times as long.
_DONTWAIT: Final = int(MSG_DONTWAIT)
_PEEK: Final = int(MSG_PEEK)
_WAITALL: Final = int(MSG_WAITALL)
# What changes nothing here: nobody is killed by SIGPIPE, nothing is routed.
_IDLE_FLAGS: Final = int(MSG_NOSIGNAL | MSG_MORE | MSG_EOR | MSG_CONFIRM | MSG_DONTROUTE)
_SEND_FLAGS: Final = _DONTWAIT | _IDLE_FLAGS
_RECEIVE_FLAGS: Final = _DONTWAIT | _PEEK | _WAITALL | _IDLE_FLAGS | int(MSG_CMSG_CLOEXEC)
_CONNECTING: Final = LinkState.CONNECTING
_OVER: Final = LinkState.OVER
_NEVER: Final = 0.0
LEND_WAIT_S: Final = 0.005  # some wake-ups of a peer that does read


class TransferSocket(Socket):
    """The calls that carry octets over `_link`."""

    __slots__ = ("_link",)

    _link: Link | None

    # -- sending

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send octets and return how many were taken.

        From 16 KiB up they are written from the caller's memory, which is free again on return.
        Raises OSError: EAGAIN, ETIMEDOUT, ENOTCONN, EPIPE (shut down), ECONNRESET.
        """
        return self._send(memoryview(data).cast("B"), flags)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Send everything. After an error nobody can tell how much was sent."""
        view = memoryview(data).cast("B")
        patience = self._patience(flags)
        sent = self._send(view, flags, patience)
        while sent < len(view):
            sent += self._send(view[sent:], flags, patience)

    def sendto(self, data: Any, flags_or_address: Any, address: Any = None, /) -> int:  # type: ignore[override]  # the parent's overloads, in one signature
        """Refuse an address with EISCONN; without one as `send`."""
        flags, target = (0, flags_or_address) if address is None else (flags_or_address, address)
        if target is not None:
            self._link_for_data()
            raise refusal(errno.EISCONN, f"a stream takes no address, not {target!r}")
        return self.send(data, flags)

    def sendmsg(
        self,
        buffers: Iterable[Any],
        ancdata: Iterable[tuple[int, int, Any]] = (),
        flags: int = 0,
        address: Any = None,
        /,
    ) -> int:
        """Send all buffers, one after the other; return how many octets were taken.

        Raises OSError: ENOTSUP for control messages, EISCONN for an address; else as `send`.
        """
        if tuple(ancdata):
            raise refusal(errno.ENOTSUP, "control messages")
        views = [memoryview(one).cast("B") for one in buffers]
        if address is not None:
            return self.sendto(b"", flags, address)
        patience, sent = self._patience(flags), 0
        for view in views or [memoryview(b"")]:
            try:
                taken = self._send(view, flags, patience)
            except (BlockingIOError, TimeoutError):
                if sent:
                    break
                raise
            sent += taken
            if taken < len(view):
                break
        return sent

    def _send(self, view: memoryview, flags: int, patience: Patience | None = None) -> int:
        if flags & ~_SEND_FLAGS:
            raise refusal(errno.EOPNOTSUPP, f"flags {flags & ~_SEND_FLAGS:#x}")
        link = self._link
        if link is None or link.state is _CONNECTING:
            link = self._link_for_data(patience or self._patience(flags))
        try:
            sent = link.send(view)
            if sent < len(view):
                sent = self._send_rest(link, view, sent, patience or self._patience(flags))
        except OSError:
            if self._is_over:
                raise closed() from None
            raise
        if self.watchers:
            self.watchers.tell()
        return sent

    def _send_rest(self, link: Link, view: memoryview, sent: int, patience: Patience) -> int:
        """Go on when there is room; return how many octets were taken in all.

        Large octets wait for room at the peer, where they go without a copy. A peer that gives
        none for LEND_WAIT_S reads nothing now: then they are copied, as long as SO_SNDBUF has
        room, for a sender of less than that must not depend on the peer's reading.
        """
        if sent and not patience.is_endless:
            return sent
        stream, wait = link.stream, _wait_on(link)

        def has_room() -> bool:
            return stream is None or stream.is_writable or link.state is _OVER or self._is_over

        while sent < len(view):
            if patience.is_none or wait(has_room, patience.shorter(LEND_WAIT_S)):
                patience.until(wait, has_room)
                taken = link.send(view[sent:])
            else:
                taken = link.send(view[sent:], may_borrow=False)
                if not taken:
                    patience.until(wait, has_room)
            sent += taken
            if taken and not patience.is_endless:
                break
        return sent

    # -- receiving

    def recv(self, bytes_max: int, flags: int = 0, /) -> bytes:
        """Take at most `bytes_max` octets; none at the end of the stream.

        MSG_WAITALL waits for all of them, MSG_PEEK leaves them there. Raises OSError: EAGAIN,
        ETIMEDOUT, ENOTCONN, ECONNRESET.
        """
        if bytes_max < 0:
            raise ValueError("negative buffersize in recv")
        _check_receive_flags(flags)
        wanted, patience = bytes_max, self._patience(flags)
        if wanted and not flags & _WAITALL:
            wanted = min(wanted, max(1, self._wait_readable(patience)))
        buffer = bytearray(wanted)
        taken = self._receive(memoryview(buffer), flags, patience)
        if taken < wanted:
            del buffer[taken:]
        return bytes(buffer)

    def recv_into(self, buffer: Any, bytes_max: int = 0, flags: int = 0) -> int:
        """Take octets into a buffer, at most `bytes_max` of them; 0 is the whole buffer.

        Return how many; 0 at the end of the stream. Raises ValueError if the buffer is smaller
        than `bytes_max`, OSError as `recv`.
        """
        return self._receive(_target(buffer, bytes_max, "recv_into"), flags)

    def recvfrom(self, bytes_max: int, flags: int = 0, /) -> tuple[bytes, Any]:
        """Take octets as `recv` does; return them and the peer's address."""
        return self.recv(bytes_max, flags), self._peer_shown()

    def recvfrom_into(self, buffer: Any, bytes_max: int = 0, flags: int = 0) -> tuple[int, Any]:
        """Take octets as `recv_into` does; return how many and the peer's address."""
        view = _target(buffer, bytes_max, "recvfrom_into")
        return self._receive(view, flags), self._peer_shown()

    def recvmsg(
        self, bytes_max: int, ancillary_bytes_max: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """Take octets as `recv` does; there are no control messages.

        Raises OSError: ENOTSUP if there is room for them; else as `recv`.
        """
        _refuse_ancillary(ancillary_bytes_max)
        return self.recv(bytes_max, flags), [], 0, self._peer_shown()

    def recvmsg_into(
        self, buffers: Iterable[Any], ancillary_bytes_max: int = 0, flags: int = 0, /
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        """Take octets into all buffers, one after the other; else as `recvmsg`."""
        _refuse_ancillary(ancillary_bytes_max)
        views = [_target(one, 0, "recvmsg_into") for one in buffers]
        return self._receive_all(views, flags), [], 0, self._peer_shown()

    def _receive_all(self, views: list[memoryview], flags: int) -> int:
        """Fill buffers in order. Only the first wait counts, unless MSG_WAITALL asks for all."""
        if flags & _PEEK:
            octets = self.recv(sum(map(len, views)), flags)
            return _scatter(octets, views)
        taken = 0
        for view in filter(len, views):
            try:
                count = self._receive(view, flags if not taken else flags | _later(flags))
            except (BlockingIOError, TimeoutError):
                if taken:
                    break
                raise
            taken += count
            if count < len(view):
                break
        return taken

    def _wait_readable(self, patience: Patience) -> int:
        """Wait until something or the end can be taken; return how many octets are there."""
        link = self._link
        if link is None or link.state is _CONNECTING:
            link = self._link_for_data(patience)
        stream = link.stream
        if stream is None:
            return 0
        if not stream.is_readable:
            patience.until(_wait_on(link), self._has_octets(link))
        return stream.readable_bytes

    def _receive(self, view: memoryview, flags: int, patience: Patience | None = None) -> int:
        _check_receive_flags(flags)
        link = self._link
        if link is None or link.state is _CONNECTING:
            link = self._link_for_data(patience or self._patience(flags))
        is_peek = bool(flags & _PEEK)
        try:
            taken = link.receive_into(view, peek=is_peek)
            if taken < len(view) and (not taken or (flags & _WAITALL and not is_peek)):
                patience = patience or self._patience(flags)
                taken = self._receive_rest(link, view, taken, flags, patience)
        except OSError:
            if self._is_over:
                raise closed() from None
            raise
        if self.watchers:
            self.watchers.tell()
        return taken

    def _receive_rest(
        self, link: Link, view: memoryview, taken: int, flags: int, patience: Patience
    ) -> int:
        """Wait for the first octets, or with MSG_WAITALL for all; return how many came."""
        is_peek = bool(flags & _PEEK)
        has_octets = self._has_octets(link)
        while taken < len(view) and not link.is_ended:
            try:
                patience.until(_wait_on(link), has_octets)
            except (BlockingIOError, TimeoutError):
                if taken:
                    break
                raise
            taken += link.receive_into(view[taken:], peek=is_peek)
            if taken and (is_peek or not flags & _WAITALL):
                break
        if self._is_over and not taken:
            raise closed()
        return taken

    def _has_octets(self, link: Link) -> Callable[[], bool]:
        stream = link.stream

        def has_octets() -> bool:
            return stream is None or stream.is_readable or link.state is _OVER or self._is_over

        return has_octets

    # -- for both

    def _patience(self, flags: int) -> Patience:
        return Patience(_NEVER if flags & _DONTWAIT else self._wait_s)

    def _link_for_data(self, patience: Patience | None = None) -> Link:
        """Return the link, connected: a connect under way is waited for.

        Raises OSError: EBADF, ENOTCONN, EAGAIN, ETIMEDOUT.
        """
        link = self._link
        if link is None:
            self._check_open()
            raise refusal(errno.ENOTCONN)
        if link.state is _CONNECTING:
            patience = patience or self._patience(0)
            patience.until(
                partial(devices.wait, link.openings),
                lambda: link.state is not _CONNECTING or self._is_over,
            )
            self._check_open()
        return link

    def _peer_shown(self) -> Any:
        link = self._link
        if link is None or link.peer is None:
            return None
        return socket_names.shown(link.peer, self._family)


def _wait_on(link: Link) -> Callable[[Callable[[], bool], float | None], bool]:
    return partial(devices.wait, (link.opening,))


def _check_receive_flags(flags: int) -> None:
    if flags & ~_RECEIVE_FLAGS:
        raise refusal(errno.EOPNOTSUPP, f"flags {flags & ~_RECEIVE_FLAGS:#x}")


def _later(flags: int) -> int:
    """Return the flag for buffers after the first: they take what is there."""
    return 0 if flags & _WAITALL else _DONTWAIT


def _target(buffer: Any, bytes_max: int, call: str) -> memoryview:
    """Return the octets to fill. Raises ValueError, TypeError as `socket.socket` does."""
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError(f"{call}() needs a writable buffer, not {type(buffer).__name__}")
    view = view.cast("B")
    if bytes_max < 0:
        raise ValueError(f"negative buffersize in {call}")
    if bytes_max > len(view):
        raise ValueError(f"buffer of {len(view)} octets is too small for {bytes_max}")
    return view[:bytes_max] if bytes_max else view


def _scatter(octets: bytes, views: list[memoryview]) -> int:
    copied = 0
    for view in views:
        piece = octets[copied : copied + len(view)]
        view[: len(piece)] = piece
        copied += len(piece)
    return copied


def _refuse_ancillary(ancillary_bytes_max: int) -> None:
    if ancillary_bytes_max:
        raise refusal(errno.ENOTSUP, f"room for {ancillary_bytes_max} octets of control messages")
