"""Receiving of a stream socket, with the flags and the waiting of `socket.socket`.

Octets are copied once, from where the peer wrote them to the caller. Whoever waits for all of
many octets (MSG_WAITALL) in memory of `allocate` has the peer write them there, without any copy.
Source: rsocket.md sections 6 and 18.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from socket import MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL
from typing import TYPE_CHECKING, Any, Final

from urds.receive_buffers import all_writable, fill, writable
from urds.rsocket.link import LinkState
from urds.rsocket.refusals import refusal
from urds.rsocket.socket_memory import registered
from urds.rsocket.socket_sending import IDLE_FLAGS, SendingSocket, wait_on
from urds.rsocket.socket_waiting import Patience
from urds.rsocket.stream import DIRECT_BYTES_MIN

if TYPE_CHECKING:
    from urds.rsocket import options
    from urds.rsocket.link import Link
    from urds.rsocket.stream import Memory, Stream

_DONTWAIT: Final = int(MSG_DONTWAIT)
_PEEK: Final = int(MSG_PEEK)
_WAITALL: Final = int(MSG_WAITALL)
_FLAGS: Final = _DONTWAIT | _PEEK | _WAITALL | int(MSG_CMSG_CLOEXEC) | IDLE_FLAGS
_CONNECTING: Final = LinkState.CONNECTING
_OVER: Final = LinkState.OVER


class TransferSocket(SendingSocket):
    """The calls that receive octets over `_link`."""

    __slots__ = ("_is_expecting",)

    def _begin(self, family: int, kind: int, proto: int, chosen: options.Options) -> None:
        self._is_expecting = False  # whether a receive has given its memory to the peer
        super()._begin(family, kind, proto, chosen)

    # -- the calls

    def recv(self, bytes_max: int, flags: int = 0, /) -> bytes:
        """Take at most `bytes_max` octets; none at the end of the stream.

        MSG_WAITALL waits for all of them, MSG_PEEK leaves them there and waits for none but the
        first. Raises OSError: EAGAIN, ETIMEDOUT, ENOTCONN, ECONNRESET.
        """
        if bytes_max < 0:
            raise ValueError("negative buffersize in recv")
        if flags & _WAITALL and not flags & _PEEK:
            buffer = bytearray(bytes_max)
            return bytes(memoryview(buffer)[: self._receive(memoryview(buffer), flags)])
        link, patience = self._receiving_link(flags)
        try:
            octets = self._take(link, bytes_max, flags)
            while not octets and bytes_max and not link.is_ended:
                patience = patience or self._patience(flags)
                patience.until(wait_on(link), self._has_octets(link))
                octets = self._take(link, bytes_max, flags)
        except OSError:
            self._check_open()
            raise
        if self.watchers:
            self.watchers.tell()
        if not octets:
            self._check_open()
        return octets

    def recv_into(self, buffer: Any, bytes_max: int = 0, flags: int = 0) -> int:
        """Take octets into a buffer, at most `bytes_max` of them; 0 is the whole buffer.

        Return how many; 0 at the end of the stream. Raises ValueError if the buffer is smaller
        than `bytes_max`, OSError as `recv`. With MSG_WAITALL and memory of `allocate` the peer
        writes there itself: if the time is over before all has come, what is behind the octets
        that were returned stays the peer's until the octets that it writes there are read.
        """
        return self._receive(writable(buffer, bytes_max, "recv_into"), flags)

    def recvfrom(self, bytes_max: int, flags: int = 0, /) -> tuple[bytes, Any]:
        """Take octets as `recv` does; return them and the peer's address."""
        return self.recv(bytes_max, flags), self._peer_shown()

    def recvfrom_into(self, buffer: Any, bytes_max: int = 0, flags: int = 0) -> tuple[int, Any]:
        """Take octets as `recv_into` does; return how many and the peer's address."""
        view = writable(buffer, bytes_max, "recvfrom_into")
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
        views = all_writable(buffers)
        return self._receive_all(views, flags), [], 0, self._peer_shown()

    def _receive_all(self, views: list[memoryview], flags: int) -> int:
        """Fill buffers in order. Only the first wait counts, unless MSG_WAITALL asks for all."""
        if flags & _PEEK:
            octets = self.recv(sum(map(len, views)), flags)
            return fill(views, octets)
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

    # -- below

    def _receiving_link(self, flags: int) -> tuple[Link, Patience | None]:
        """Return the link, connected, and the patience that is left if that took any."""
        if flags & ~_FLAGS:
            raise refusal(errno.EOPNOTSUPP, f"flags {flags & ~_FLAGS:#x}")
        link, patience = self._link, None
        if link is None or link.state is _CONNECTING:
            patience = self._patience(flags)
            link = self._link_for_data(patience)
        return link, patience

    def _receive(self, view: memoryview, flags: int) -> int:
        link, patience = self._receiving_link(flags)
        is_peek = bool(flags & _PEEK)
        is_whole = bool(flags & _WAITALL) and not is_peek
        if is_whole and len(view) >= DIRECT_BYTES_MIN:
            memory = registered(view, link.opening)
            if memory is not None:
                return self._receive_in_place(link, memory, patience or self._patience(flags))
        try:
            with link.opening.adapter.lock:
                taken = 0 if self._is_expecting else link.receive_into(view, peek=is_peek)
            if taken < len(view) and (is_whole or not taken):
                patience = patience or self._patience(flags)
                taken = self._receive_rest(link, view, taken, flags, patience)
        except OSError:
            self._check_open()
            raise
        if self.watchers:
            self.watchers.tell()
        return taken

    def _take(self, link: Link, bytes_max: int, flags: int) -> bytes:
        with link.opening.adapter.lock:
            if self._is_expecting:
                return b""
            return link.receive(bytes_max, peek=bool(flags & _PEEK))

    def _receive_rest(
        self,
        link: Link,
        view: memoryview,
        taken: int,
        flags: int,
        patience: Patience,
        *,
        is_expecting: bool = False,
    ) -> int:
        """Wait for the first octets, or with MSG_WAITALL for all; return how many came."""
        is_peek = bool(flags & _PEEK)
        has_octets = self._has_octets(link, is_expecting=is_expecting)
        while taken < len(view) and not link.is_ended:
            try:
                patience.until(wait_on(link), has_octets)
            except (BlockingIOError, TimeoutError):
                if taken:
                    break
                raise
            with link.opening.adapter.lock:
                if is_expecting or not self._is_expecting:
                    taken += link.receive_into(view[taken:], peek=is_peek)
            if taken and (is_peek or not flags & _WAITALL):
                break
        if not taken:
            self._check_open()
        return taken

    def _receive_in_place(self, link: Link, memory: Memory, patience: Patience) -> int:
        """Let the peer write straight into `memory`, all of it; return how many octets came.

        What was under way already comes first, by copying. Other receivers wait for the end: an
        octet that one of them took would be missing here.
        """
        view, lock = memory.view, link.opening.adapter.lock
        taken = direct_from = 0
        is_mine, problem, stream = False, None, link.stream
        try:
            with lock:
                # Not if another thread does, nor into what one that gave up has left to the peer.
                if stream is not None and not self._is_expecting and not stream.holds(memory):
                    self._is_expecting = is_mine = True
                    direct_from = stream.expect(memory, len(view))
                    link.carry()
            if stream is None or not is_mine:
                return self._receive_rest(link, view, 0, _WAITALL, patience)
            taken = self._receive_rest(
                link, view[:direct_from], 0, _WAITALL, patience, is_expecting=True
            )
            if taken == direct_from < len(view):
                patience.until(wait_on(link), self._is_filled(link, stream))
        except (BlockingIOError, TimeoutError) as error:
            problem = error
        finally:
            if is_mine and stream is not None:
                with lock:
                    self._is_expecting = False
                    if not self._is_over:
                        taken += stream.end_expect()
                        link.carry()
        self._check_open()
        self._wake()  # what comes after these octets is another thread's
        if problem is not None and not taken:
            raise problem
        return taken or link.receive_into(view)  # which raises what broke the connection

    def _is_filled(self, link: Link, stream: Stream) -> Callable[[], bool]:
        def is_filled() -> bool:
            return (
                not stream.expected_left
                or not stream.can_read
                or link.state is _OVER
                or self._is_over
            )

        return is_filled

    def _has_octets(self, link: Link, *, is_expecting: bool = False) -> Callable[[], bool]:
        stream = link.stream

        def has_octets() -> bool:
            if self._is_expecting and not is_expecting:
                return self._is_over
            return stream is None or stream.is_readable or link.state is _OVER or self._is_over

        return has_octets


def _later(flags: int) -> int:
    """Return the flag for buffers after the first: they take what is there."""
    return 0 if flags & _WAITALL else _DONTWAIT


def _refuse_ancillary(ancillary_bytes_max: int) -> None:
    if ancillary_bytes_max:
        raise refusal(errno.ENOTSUP, f"room for {ancillary_bytes_max} octets of control messages")
