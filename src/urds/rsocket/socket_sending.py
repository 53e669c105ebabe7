"""Sending of a stream socket, with the flags and the waiting of `socket.socket`.

Each call first tries what the link does without waiting; only who got nothing waits, without a
lock, and drives the device meanwhile. A send that may wait for ever returns when everything was
taken, as a kernel's does; with a timeout it returns what was taken before a second wait.
Source: rsocket.md section 6.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from functools import partial
from socket import MSG_CONFIRM, MSG_DONTROUTE, MSG_DONTWAIT, MSG_EOR, MSG_MORE, MSG_NOSIGNAL
from typing import TYPE_CHECKING, Any, Final

from urds.rsocket import devices, socket_names
from urds.rsocket.link import LinkState
from urds.rsocket.refusals import closed, refusal
from urds.rsocket.socket_waiting import Patience
from urds.rsocket.sockets import Socket
from urds.rsocket.stream import BORROW_BYTES_MIN

if TYPE_CHECKING:
    from urds.rsocket.link import Link
    from urds.rsocket.socket_waiting import Wait

# What changes nothing here: nobody is killed by SIGPIPE, nothing is routed.
IDLE_FLAGS: Final = int(MSG_NOSIGNAL | MSG_MORE | MSG_EOR | MSG_CONFIRM | MSG_DONTROUTE)
LEND_WAIT_S: Final = 0.005  # some wake-ups of a peer that does read

# As integers: an enum makes each operation on flags twenty times as long.
_DONTWAIT: Final = int(MSG_DONTWAIT)
_SEND_FLAGS: Final = _DONTWAIT | IDLE_FLAGS
_CONNECTING: Final = LinkState.CONNECTING
_OVER: Final = LinkState.OVER
_NEVER: Final = 0.0


class SendingSocket(Socket):
    """The calls that send octets over `_link`, and what receiving shares with them."""

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

    def sendto(self, data: Any, flags_or_address: Any, address: Any = None, /) -> int:
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

        Small ones are copied into one message. Raises OSError: ENOTSUP for control messages,
        EISCONN for an address; else as `send`.
        """
        if tuple(ancdata):
            raise refusal(errno.ENOTSUP, "control messages")
        views = [memoryview(one).cast("B") for one in buffers]
        if address is not None:
            return self.sendto(b"", flags, address)
        if sum(map(len, views)) < BORROW_BYTES_MIN:
            return self._send(memoryview(b"".join(views)), flags)
        patience, sent = self._patience(flags), 0
        for view in views:
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
        none for LEND_WAIT_S, or a caller that cannot wait: then they are copied as long as
        SO_SNDBUF has room, for a sender of less than that must not depend on the peer's reading.
        """
        if sent and not patience.is_endless:
            return sent
        stream, wait = link.stream, wait_on(link)

        def has_room() -> bool:
            return stream is None or stream.is_writable or link.state is _OVER or self._is_over

        while sent < len(view):
            if wait(has_room, patience.shorter(LEND_WAIT_S)):
                taken = link.send(view[sent:])
            else:
                taken = 0
            if not taken:
                taken = link.send(view[sent:], may_borrow=False)
            if not taken:
                patience.until(wait, has_room)
            sent += taken
            if taken and not patience.is_endless:
                break
        return sent

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


def wait_on(link: Link) -> Wait:
    """Return how to wait for what happens on a link that is connected."""
    return partial(devices.wait, (link.opening,))
