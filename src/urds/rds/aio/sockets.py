"""The socket of event loops: what `urds.Socket` does, with `await` where it would wait.

A call first does what the non-blocking socket does, and returns without touching the loop if that
went well. Else it subscribes to the mailbox, sleeps until woken, and begins anew. It takes or
queues the message in the very step in which it returns, with no `await` between: a cancelled call
has taken nothing and queued nothing.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Self

from urds.common.errors import ErrorReason, os_error
from urds.common.records import record
from urds.rds import socket as sockets
from urds.rds.aio.progress import BUDGET, COST_SHIFT, LoopProgress, running_progress
from urds.rds.constants import MSG_DONTWAIT, MSG_ERRQUEUE
from urds.rds.runtime.process import current

if TYPE_CHECKING:
    from urds.rds.addresses import SocketAddress
    from urds.rds.aio.progress import Sleeper
    from urds.rds.runtime.backend import Buffer, Plane

_NOT_NOW: Final = frozenset({errno.EAGAIN, errno.ENOBUFS})
_WHOLE: Final = (1 << 32) - 1  # no message is longer
_LINGER: Final = Struct("=ii")
_NAP_S: Final = 0.001  # first and longest between two checks of a lingering close
_NAP_S_MAX: Final = 0.05


@record(frozen=False)
class Receipt:
    """Records whether a send was queued, whatever became of the call and of its wrapper."""

    sent: bool = False


class Socket:
    """An RDS socket for tasks of asyncio and trio.

    Any number of tasks may call anything at a time, from several loops too. A call outside of a
    loop raises RuntimeError when it would have to wait.
    """

    def __init__(self, sock: sockets.Socket) -> None:
        """Take a socket, bound or not, as its own; it becomes non-blocking."""
        sock.setblocking(False)
        self._socket = sock
        self._plane: Plane | None = None
        self._progress: LoopProgress | None = None
        self._dry = False  # the last receive had to sleep, so the next will: skip the first check
        self.closed = False

    # -- receiving

    async def recv(self, payload_bytes_max: int = _WHOLE) -> bytes:
        """Wait for a message and take its payload; see `recv_from`."""
        return (await self.recv_from(payload_bytes_max))[0]

    async def recv_from(self, payload_bytes_max: int = _WHOLE) -> tuple[bytes, SocketAddress]:
        """Wait for a message; return its payload and source.

        What exceeds `payload_bytes_max` is discarded. Cancelled, it has taken nothing. With
        RDS_CONG_MONITOR on, a notification comes as no bytes from None. Raises OSError (EBADF)
        when the socket is closed, before or while it waits.
        """
        progress = self._progress
        if progress is None or progress.budget <= 0:
            progress = await self._pass()
        recvfrom = self._socket.recvfrom
        is_dry = self._dry
        while True:
            if not is_dry:
                try:
                    taken = recvfrom(payload_bytes_max)
                except BlockingIOError:  # or another task was faster
                    pass
                else:
                    progress.budget -= 1 + (len(taken[0]) >> COST_SHIFT)
                    return taken
            with self._arrival() as sleeper:
                self._dry = not sleeper.told  # else one is there already
                await sleeper
            is_dry = False

    async def recvmsg(
        self, payload_bytes_max: int, ancillary_bytes_max: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[Any], int, Any]:
        """Wait for a message or notification with its control messages; see `urds.Socket`.

        MSG_DONTWAIT and MSG_ERRQUEUE never wait: OSError (EAGAIN) if there is nothing.
        """
        if self._progress is None or self._progress.budget <= 0:
            await self._pass()
        recvmsg = self._socket.recvmsg
        while True:
            try:
                return recvmsg(payload_bytes_max, ancillary_bytes_max, flags)
            except BlockingIOError:
                if flags & (MSG_DONTWAIT | MSG_ERRQUEUE):
                    raise
            with self._arrival() as sleeper:
                await sleeper

    def __aiter__(self) -> Self:
        """Iterate over messages and their sources until the socket is closed."""
        return self

    async def __anext__(self) -> tuple[bytes, SocketAddress]:
        """Return the next message and its source."""
        try:
            return await self.recv_from()
        except OSError as refused:
            if refused.errno == errno.EBADF and self.closed:
                raise StopAsyncIteration from None
            raise

    # -- sending

    async def send_to(
        self, payload: Buffer, address: SocketAddress, *, receipt: Receipt | None = None
    ) -> int:
        """Queue one message, after waiting for room and for a congested peer; return its length.

        It was queued if and only if this returns: raised, by a cancellation too, means not sent.
        Where something around the call hides how it ended, `receipt` tells. A name as host of
        `address` is looked up and blocks the loop. Raises OSError, which more waiting would not
        mend: EMSGSIZE, EHOSTUNREACH for messages given up, EBADF for a closed socket.
        """
        progress = self._progress
        if progress is None or progress.budget <= 0:
            progress = await self._pass()
        try:
            payload_bytes = self._socket.sendto(payload, address)
        except OSError as refused:
            if refused.errno not in _NOT_NOW:
                raise
            sendto = self._socket.sendto
            payload_bytes = await self._wait_for_room(lambda: sendto(payload, address), address)
        if receipt is not None:
            receipt.sent = True
        self._note_sent(payload_bytes)
        return payload_bytes

    async def send(self, payload: Buffer, *, receipt: Receipt | None = None) -> int:
        """Queue one message to the peer that `connect` chose; see `send_to`."""
        send = self._socket.send
        return await self._send(lambda: send(payload), None, receipt)

    async def sendmsg(
        self,
        buffers: Iterable[Buffer],
        ancillary: Iterable[Any] = (),
        flags: int = 0,
        address: SocketAddress | None = None,
        /,
        *,
        copy: bool = True,
        receipt: Receipt | None = None,
    ) -> int:
        """Queue one message gathered from `buffers`; see `send_to` and `urds.Socket`.

        MSG_DONTWAIT never waits: OSError (EAGAIN, ENOBUFS).
        """
        gathered, control = list(buffers), list(ancillary)
        sendmsg = self._socket.sendmsg
        return await self._send(
            lambda: sendmsg(gathered, control, flags, address, copy=copy),
            address,
            receipt,
            may_wait=not flags & MSG_DONTWAIT,
        )

    async def _send(
        self,
        attempt: Callable[[], int],
        address: SocketAddress | None,
        receipt: Receipt | None,
        *,
        may_wait: bool = True,
    ) -> int:
        if self._progress is None or self._progress.budget <= 0:
            await self._pass()
        try:
            payload_bytes = attempt()
        except OSError as refused:
            if refused.errno not in _NOT_NOW or not may_wait:
                raise
            payload_bytes = await self._wait_for_room(attempt, address)
        if receipt is not None:
            receipt.sent = True
        self._note_sent(payload_bytes)
        return payload_bytes

    def _note_sent(self, payload_bytes: int) -> None:
        progress = self._progress
        if progress is None:
            return  # closed meanwhile by another thread
        progress.budget -= 1 + (payload_bytes >> COST_SHIFT)
        if progress.plane.batches and not progress.flush_due and not progress.flush_soon():
            self._join().flush_soon()

    # -- waiting

    def _arrival(self) -> Sleeper:
        """Return what waits until a message may be there."""
        progress = self._join()  # anew: another loop may have joined while this one rested
        return progress.sleepers(progress, self._socket.mailbox)

    async def _wait_for_room(
        self, attempt: Callable[[], int], address: SocketAddress | None
    ) -> int:
        """Attempt whenever there may be room there, until the message is queued."""
        if address is None:
            address = self._socket.getpeername()
        while True:
            progress = self._join()
            with progress.sleepers(
                progress, self._socket.mailbox, room=True, address=address
            ) as sleeper:
                try:
                    return attempt()
                except OSError as refused:
                    if refused.errno not in _NOT_NOW:
                        raise
                await sleeper

    async def _pass(self) -> LoopProgress:
        """Be served by the running loop, and let it run an iteration if its budget is spent."""
        progress = self._join()
        if progress.budget <= 0:
            await progress.one_pass()
            progress.budget = BUDGET
        return progress

    def _join(self) -> LoopProgress:
        """Be served by the running loop."""
        progress = self._progress
        if progress is not None and progress.is_here() and progress.running():
            return progress
        if self.closed:
            raise os_error(ErrorReason.CLOSED)
        if self._plane is None:
            _ = self._socket.mailbox  # raises ENOTCONN before bind
            self._plane = current().plane
        progress = running_progress(self._plane)
        if progress is self._progress and progress.running():
            return progress
        if self._progress is not None:
            self._progress.leave(self)
        self._progress = progress
        progress.join(self)
        return progress

    # -- calls that never wait

    def bind(self, address: SocketAddress) -> None:
        """Take a local address and port; see `urds.Socket`. Looking up a name waits."""
        self._socket.bind(address)
        self._plane = current().plane

    def connect(self, address: SocketAddress) -> None:
        """Set the default destination; nothing is sent."""
        self._socket.connect(address)

    @property
    def unacknowledged(self) -> int:
        """How many messages peers have not acknowledged; see `urds.Socket.unacknowledged`."""
        return self._socket.unacknowledged

    def getsockname(self) -> Any:
        """Return the bound address."""
        return self._socket.getsockname()

    def getpeername(self) -> SocketAddress:
        """Return the default destination. Raises OSError (ENOTCONN) if there is none."""
        return self._socket.getpeername()

    def setsockopt(self, level: int, option: int, value: Any, /) -> None:
        """Set an option; see `urds.Socket`."""
        self._socket.setsockopt(level, option, value)

    def getsockopt(self, level: int, option: int, buffer_bytes: int = 0, /) -> Any:
        """Return an option; see `urds.Socket`."""
        return self._socket.getsockopt(level, option, buffer_bytes)

    # -- closing

    def close(self) -> None:
        """Unbind; tasks that wait here get OSError (EBADF), iterations end. Idempotent.

        With SO_LINGER it blocks as `urds.Socket.close` does; `aclose` does not.
        """
        self.closed = True
        self._socket.close()
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.leave(self)

    async def aclose(self) -> None:
        """Close after the wait that SO_LINGER asks for. Cancellation ends the wait."""
        if self.closed:
            return
        try:
            lingers, linger_s = _LINGER.unpack(self.getsockopt(SOL_SOCKET, SO_LINGER, _LINGER.size))
            if lingers and linger_s and await self._linger(time.monotonic() + linger_s):
                self.setsockopt(SOL_SOCKET, SO_LINGER, _LINGER.pack(1, 0))  # it has been
        except BaseException as error:
            if self.closed and isinstance(error, OSError):
                return  # another task has closed it
            with suppress(OSError):  # closed meanwhile
                self.setsockopt(SOL_SOCKET, SO_LINGER, _LINGER.pack(0, 0))
            raise
        finally:
            self.close()

    async def _linger(self, until_s: float) -> bool:
        """Wait until all is acknowledged, or for the deadline; return False before bind."""
        try:
            progress = self._join()
        except OSError:
            return False
        self._socket.mailbox.request_acks()
        nap_s = _NAP_S
        while time.monotonic() < until_s and self.unacknowledged:
            await progress.nap(nap_s)
            nap_s = min(2 * nap_s, _NAP_S_MAX)
        return True

    async def __aenter__(self) -> Self:
        """Return the socket; it is closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.aclose()

    def __repr__(self) -> str:
        return f"<urds.aio.Socket of {self._socket!r}>"


def open_socket() -> Socket:
    """Make a socket that is not bound yet: options first, then `bind`."""
    return Socket(sockets.Socket())


async def bind(address: SocketAddress) -> Socket:
    """Make a socket bound to `(host, port)`; port 0 chooses a free one.

    Raises OSError as `urds.Socket.bind` does, after the socket was closed.
    """
    sock = open_socket()
    try:
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
