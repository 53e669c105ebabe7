"""Data over the connection of a stream socket, with the flags and the waiting of `socket.socket`.

Each call first tries what the link does without waiting; a call that got nothing waits, without a
lock, and makes the device progress meanwhile. A send that may wait for ever returns when all was
taken, as a kernel's does; with a timeout it returns what was taken before a second wait.

Bytes are copied once, from where the peer wrote them to the caller. A receive that waits for all
of many bytes (MSG_WAITALL) in memory of `allocate` has the peer write them there, without a copy.

**Memory into which peers write** is what `allocate` gives, with the key that a device has for it.
A key stays as long as the memory: a stream that let the peer write to it keeps it alive.

**Mapped buffers**: what the peer may write by offset, straight from its memory into ours. The owner
of a buffer maps it; the peer knows it as soon as it has received bytes sent after that. Nothing
tells of a mapped write but bytes sent after it.
Source: docs/reference/rsocket.md 6, 7, 18.
"""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import finalize

from urds.common.buffers import address_of
from urds.common.receive_buffers import checked_size, fill, writable
from urds.rsocket import settings
from urds.rsocket.constants import ANY_OFFSET, PROT_NONE, PROT_WRITE
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import DIRECT_BYTES_MIN, ZERO_COPY_BYTES_MIN, Memory
from urds.rsocket.errors import closed, os_error
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DeviceContext
from urds.rsocket.link.stream_link import LinkState, StreamLink, wait_on
from urds.rsocket.waiting import CallTimeout, Wait, Watchers


@dataclass(slots=True, eq=False)
class _Allocation:
    """One piece of memory, whole, and the registrations it has."""

    view: memoryview
    keys: dict[DeviceContext, Memory] = field(default_factory=dict)


# By the id of the object under the views that `allocate` gave; views of a part have the same one.
_allocations: Final[dict[int, _Allocation]] = {}


def allocate(byte_count: int) -> memoryview:
    """Return zeroed memory that receives with MSG_WAITALL are written to without a copy.

    So are those into parts of it. Raises ValueError below 1 byte, MemoryError, OSError.
    """
    if byte_count < 1:
        raise ValueError(f"{byte_count} bytes cannot be allocated")
    whole = devices.contexts()[0].adapter.allocate(byte_count)
    array = (ctypes.c_char * byte_count).from_buffer(whole)
    allocation = _Allocation(whole)
    _allocations[id(array)] = allocation
    finalize(array, _forget, id(array)).atexit = False
    return memoryview(array).cast("B")


def registered(view: memoryview, context: DeviceContext) -> Memory | None:
    """Return the bytes of a view as memory of a device, None if `allocate` did not give them.

    Takes the device's lock.
    """
    allocation = _allocations.get(id(view.obj))
    if allocation is None:
        return None
    whole = allocation.keys.get(context)
    if whole is None:
        with context.adapter.lock:
            whole = allocation.keys.get(context)  # another thread may have been faster
            if whole is None:
                whole = allocation.keys[context] = context.register(allocation.view)
    return Memory(view, address_of(view), whole.rkey)


def _forget(array_id: int) -> None:
    """Take the keys back. A finaliser may run inside any call: the devices do it later."""
    for context, memory in _allocations.pop(array_id).keys.items():
        if not context.is_abandoned:
            context.adapter.call_soon(partial(context.release, memory))


_NS: Final = 1_000_000_000
_NS_PER_US: Final = 1000
ZERO_COPY_WAIT_S: Final = 0.005  # some wake-ups of a peer that does read

# As integers: an enum makes each operation on flags twenty times as long. MSG_NOSIGNAL and the
# like change nothing here: no SIGPIPE is sent, nothing is routed.
_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
_PEEK: Final = int(socket.MSG_PEEK)
_WAITALL: Final = int(socket.MSG_WAITALL)
_SEND_FLAGS: Final = _DONTWAIT | int(
    socket.MSG_NOSIGNAL
    | socket.MSG_MORE
    | socket.MSG_EOR
    | socket.MSG_CONFIRM
    | socket.MSG_DONTROUTE
)
_RECEIVE_FLAGS: Final = _SEND_FLAGS | _PEEK | _WAITALL | int(socket.MSG_CMSG_CLOEXEC)
_CONNECTING: Final = LinkState.CONNECTING
_OVER: Final = LinkState.OVER


class StreamTransfer:
    """The link of one stream socket, and the calls that send and receive over it.

    `wait_s` is the timeout of the socket. Errors of all calls: EBADF (closed, also meanwhile),
    EAGAIN, ETIMEDOUT, ENOTCONN, EOPNOTSUPP (flags), ECONNRESET.
    """

    __slots__ = ("_closed", "_expecting", "_served", "_wait_s", "link", "watchers")

    def __init__(self, watchers: Watchers) -> None:
        self.link: StreamLink | None = None
        self.watchers = watchers
        self._closed = self._expecting = False
        self._served: Any = None  # the compiled stream whose placed methods call here
        self._wait_s: float | None = None  # of these

    @property
    def is_closed(self) -> bool:
        """Whether the socket is closed."""
        return self._closed

    @is_closed.setter
    def is_closed(self, is_closed: bool) -> None:
        self._closed = is_closed
        if is_closed and self._served is not None:
            self._served.end_waits()

    @property
    def _is_expecting(self) -> bool:
        """Whether a receive has given its memory to the peer."""
        return self._expecting

    @_is_expecting.setter
    def _is_expecting(self, is_expecting: bool) -> None:
        self._expecting = is_expecting
        if self._served is not None:
            self._served.set_expecting(is_expecting)

    def connected_link(self, call_timeout: CallTimeout) -> StreamLink:
        """Return the link, connected: a connect under way is waited for."""
        link = self.link
        if link is None:
            self._check_open()
            raise os_error(errno.ENOTCONN)
        if link.state is _CONNECTING:
            call_timeout.until(
                partial(devices.wait, link.contexts),
                lambda: link.state is not _CONNECTING or self.is_closed,
            )
            self._check_open()
        return link

    def _check_open(self) -> None:
        if self.is_closed:
            raise closed()

    # -- for the methods of a compiled stream, which do what is done at once

    @property
    def may_serve(self) -> bool:
        """Whether the link has a compiled stream whose methods are not placed yet."""
        return self._served is None and self.link is not None and self.link.native is not None

    def serve(self, native: Any, wait_s: float | None) -> None:
        """Do from now on what these methods leave."""
        native.place(self, settings.current().polling_time * _NS_PER_US)
        self._served = native
        self.set_wait(wait_s)

    def set_wait(self, wait_s: float | None) -> None:
        """Have them wait that long."""
        self._wait_s = wait_s
        if self._served is not None:
            self._served.set_wait_ns(-1 if wait_s is None else int(wait_s * _NS))

    def send_given(self, data: Any, flags: int) -> int:
        """Send; see `StreamSocket.send`."""
        return self.send(memoryview(data).cast("B"), flags, self._wait_s)

    def send_rest_given(self, data: Any, sent: int) -> int:
        """Go on after `sent` bytes; see `StreamSocket.send`."""
        view = memoryview(data).cast("B")
        if not sent or self.link is None:
            return self.send(view, 0, self._wait_s)
        try:
            sent = self._send_rest(self.link, view, sent, CallTimeout(self._wait_s))
        except OSError:
            if self.is_closed:
                raise closed() from None
            raise
        self.watchers.tell()
        return sent

    def send_all_given(self, data: Any, flags: int, sent: int) -> None:
        """Send what is behind `sent` bytes; see `StreamSocket.sendall`."""
        self.send_all(memoryview(data).cast("B")[sent:], flags, self._wait_s)

    def receive_given(self, bytes_max: int, flags: int) -> bytes:
        """Receive; see `StreamSocket.recv`."""
        if type(bytes_max) is not int or bytes_max < 0:
            bytes_max = checked_size(bytes_max, "recv")
        return self.receive(bytes_max, flags, self._wait_s)

    def receive_into_given(self, buffer: Any, bytes_max: int, flags: int, taken: int) -> int:
        """Receive behind `taken` bytes; see `StreamSocket.recv_into`."""
        view = writable(buffer, bytes_max, "recv_into")
        return self.receive_into(view, flags, self._wait_s, taken)

    def write_mapped_given(self, data: Any, offset: int, flags: int, written: int) -> int:
        """Write what is behind `written` bytes; see `StreamSocket.write_mapped`."""
        return write_mapped(self, data, offset, flags, self._wait_s, written)

    @staticmethod
    def is_allocated(buffer: Any) -> bool:
        """Return whether `allocate` gave the memory of a buffer."""
        return isinstance(buffer, memoryview) and id(buffer.obj) in _allocations

    def tell(self) -> None:
        """Tell watchers after a call that has done something."""
        self.watchers.tell()

    # -- sending

    def send(
        self,
        view: memoryview,
        flags: int,
        wait_s: float | None,
        call_timeout: CallTimeout | None = None,
    ) -> int:
        """Send bytes and return how many were taken; EPIPE after a shutdown."""
        if flags & ~_SEND_FLAGS:
            raise os_error(errno.EOPNOTSUPP, f"flags {flags & ~_SEND_FLAGS:#x}")
        link = self.link
        if link is None or link.state is _CONNECTING:
            link = self.connected_link(call_timeout or _call_timeout(flags, wait_s))
        try:
            sent = link.send(view)
            if sent < len(view):
                call_timeout = call_timeout or _call_timeout(flags, wait_s)
                sent = self._send_rest(link, view, sent, call_timeout)
        except OSError:
            if self.is_closed:
                raise closed() from None
            raise
        self.watchers.tell()
        return sent

    def send_all(self, view: memoryview, flags: int, wait_s: float | None) -> None:
        """Send everything within one timeout."""
        call_timeout = _call_timeout(flags, wait_s)
        sent = self.send(view, flags, wait_s, call_timeout)
        while sent < len(view):
            sent += self.send(view[sent:], flags, wait_s, call_timeout)

    def send_views(self, views: list[memoryview], flags: int, wait_s: float | None) -> int:
        """Send buffers in order; small ones are copied into one message."""
        if sum(map(len, views)) < ZERO_COPY_BYTES_MIN:
            return self.send(memoryview(b"".join(views)), flags, wait_s)
        call_timeout, sent = _call_timeout(flags, wait_s), 0
        for view in views:
            try:
                taken = self.send(view, flags, wait_s, call_timeout)
            except (BlockingIOError, TimeoutError):
                if sent:
                    break
                raise
            sent += taken
            if taken < len(view):
                break
        return sent

    def _send_rest(
        self, link: StreamLink, view: memoryview, sent: int, call_timeout: CallTimeout
    ) -> int:
        """Go on when there is room; return how many bytes were taken in all.

        Large data waits for room at the peer, where it goes without a copy. A peer that gives
        none for ZERO_COPY_WAIT_S, or a caller that cannot wait: then it is copied as long as
        SO_SNDBUF has room, for a sender of less than that must not depend on the peer's reading.
        """
        if sent and not call_timeout.is_infinite:
            return sent
        stream, wait = link.stream, _wait_on(link)

        def has_room() -> bool:
            return stream is None or stream.is_writable or link.state is _OVER or self.is_closed

        while sent < len(view):
            if wait(has_room, call_timeout.shorter(ZERO_COPY_WAIT_S)):
                taken = link.send(view[sent:])
            else:
                taken = 0
            if not taken:
                taken = link.send(view[sent:], may_zero_copy=False)
            if not taken:
                call_timeout.until(wait, has_room)
            sent += taken
            if taken and not call_timeout.is_infinite:
                break
        return sent

    # -- receiving

    def receive(self, bytes_max: int, flags: int, wait_s: float | None) -> bytes:
        """Return at most `bytes_max` bytes, none at the end of the stream."""
        if flags & _WAITALL and not flags & _PEEK:
            buffer = bytearray(bytes_max)
            count = self.receive_into(memoryview(buffer), flags, wait_s)
            return bytes(memoryview(buffer)[:count])
        link, call_timeout = self._receiving_link(flags, wait_s)
        try:
            data = self._take(link, bytes_max, flags)
            while not data and bytes_max and not link.is_ended:
                call_timeout = call_timeout or _call_timeout(flags, wait_s)
                call_timeout.until(_wait_on(link), self._has_bytes(link))
                data = self._take(link, bytes_max, flags)
        except OSError:
            self._check_open()
            raise
        self.watchers.tell()
        if not data:
            self._check_open()
        return data

    def receive_views(self, views: list[memoryview], flags: int, wait_s: float | None) -> int:
        """Fill buffers in order. Only the first wait counts, unless MSG_WAITALL asks for all."""
        if flags & _PEEK:
            return fill(views, self.receive(sum(map(len, views)), flags, wait_s))
        # Buffers after the first take what is there.
        later_flags = flags if flags & _WAITALL else flags | _DONTWAIT
        taken = 0
        for view in filter(len, views):
            if taken and self.link is not None and self.link.is_ended:
                break  # the next call tells why
            try:
                count = self.receive_into(view, later_flags if taken else flags, wait_s)
            except (BlockingIOError, TimeoutError):
                if taken:
                    break
                raise
            taken += count
            if count < len(view):
                break
        return taken

    def receive_into(
        self, view: memoryview, flags: int, wait_s: float | None, taken: int = 0
    ) -> int:
        """Receive into a buffer and return how many bytes, 0 at the end of the stream.

        `taken` bytes of it were received before.
        """
        link, call_timeout = self._receiving_link(flags, wait_s)
        is_peek = bool(flags & _PEEK)
        is_whole = bool(flags & _WAITALL) and not is_peek
        if is_whole and not taken and len(view) >= DIRECT_BYTES_MIN:
            memory = registered(view, link.context)
            if memory is not None:
                call_timeout = call_timeout or _call_timeout(flags, wait_s)
                return self._receive_in_place(link, memory, call_timeout)
        try:
            with link.context.adapter.lock:
                if not taken and not self._is_expecting:
                    taken = link.receive_into(view, peek=is_peek)
            if taken < len(view) and (is_whole or not taken):
                call_timeout = call_timeout or _call_timeout(flags, wait_s)
                taken = self._receive_rest(link, view, taken, flags, call_timeout)
        except OSError:
            self._check_open()
            raise
        self.watchers.tell()
        return taken

    def _receiving_link(
        self, flags: int, wait_s: float | None
    ) -> tuple[StreamLink, CallTimeout | None]:
        """Return the link, connected, and the timeout that is left if that took any."""
        if flags & ~_RECEIVE_FLAGS:
            raise os_error(errno.EOPNOTSUPP, f"flags {flags & ~_RECEIVE_FLAGS:#x}")
        link, call_timeout = self.link, None
        if link is None or link.state is _CONNECTING:
            call_timeout = _call_timeout(flags, wait_s)
            link = self.connected_link(call_timeout)
        return link, call_timeout

    def _take(self, link: StreamLink, bytes_max: int, flags: int) -> bytes:
        with link.context.adapter.lock:
            if self._is_expecting:
                return b""
            return link.receive(bytes_max, peek=bool(flags & _PEEK))

    def _receive_rest(
        self,
        link: StreamLink,
        view: memoryview,
        taken: int,
        flags: int,
        call_timeout: CallTimeout,
        *,
        is_expecting: bool = False,
    ) -> int:
        """Wait for the first bytes, or with MSG_WAITALL for all; return how many came."""
        is_peek = bool(flags & _PEEK)
        has_bytes = self._has_bytes(link, is_expecting=is_expecting)
        while taken < len(view) and not link.is_ended:
            try:
                call_timeout.until(_wait_on(link), has_bytes)
            except (BlockingIOError, TimeoutError):
                if taken:
                    break
                raise
            if taken and link.is_ended:
                break  # the next call tells why: what has come is not lost for it
            with link.context.adapter.lock:
                if is_expecting or not self._is_expecting:
                    taken += link.receive_into(view[taken:], peek=is_peek)
            if taken and (is_peek or not flags & _WAITALL):
                break
        if not taken:
            self._check_open()
            if len(view) and link.is_ended:
                with link.context.adapter.lock:
                    taken = link.receive_into(view)  # it tells once how the connection ended
        return taken

    def _receive_in_place(self, link: StreamLink, memory: Memory, call_timeout: CallTimeout) -> int:
        """Let the peer write straight into `memory`, all of it; return how many bytes came.

        What was under way already comes first, by copying. Other receivers wait for the end: a
        byte that one of them took would be missing here.
        """
        view, lock = memory.view, link.context.adapter.lock
        taken = direct_from = 0
        is_mine, problem, stream = False, None, link.stream
        try:
            with lock:
                # Not if another thread does, nor into what one that gave up has left to the peer.
                if (
                    stream is not None
                    and not self._is_expecting
                    and not stream.receive_ring.holds(memory)
                ):
                    self._is_expecting = is_mine = True
                    direct_from = stream.receive_ring.expect(memory, len(view))
                    link.post_pending()
            if stream is None or not is_mine:
                return self._receive_rest(link, view, 0, _WAITALL, call_timeout)
            native, ahead = link.native, view[:direct_from]
            if native is not None and direct_from:
                taken = native.take_ahead(ahead)
            taken = self._receive_rest(
                link, ahead, taken, _WAITALL, call_timeout, is_expecting=True
            )
            is_direct = taken == direct_from < len(view)
            if is_direct and not (native is not None and native.look_filled()):
                call_timeout.until(_wait_on(link), self._is_filled(link, stream))
        except (BlockingIOError, TimeoutError) as error:
            problem = error
        finally:
            if is_mine and stream is not None:
                with lock:
                    self._is_expecting = False
                    if not self.is_closed:
                        taken += stream.receive_ring.end_expect()
                        link.post_pending()
        self._check_open()
        self.watchers.tell()  # what comes after these bytes is another thread's
        with lock:
            link.context.tell()
        if problem is not None and not taken:
            raise problem
        return taken or link.receive_into(view)  # which raises what broke the connection

    def _is_filled(self, link: StreamLink, stream: StreamCore) -> Callable[[], bool]:
        def is_filled() -> bool:
            is_over = link.state is _OVER or self.is_closed
            return not stream.receive_ring.expected_left or not stream.lifecycle.can_read or is_over

        return is_filled

    def _has_bytes(self, link: StreamLink, *, is_expecting: bool = False) -> Callable[[], bool]:
        stream = link.stream

        def has_bytes() -> bool:
            if self._is_expecting and not is_expecting:
                return self.is_closed
            return stream is None or stream.is_readable or link.state is _OVER or self.is_closed

        return has_bytes


def _call_timeout(flags: int, wait_s: float | None) -> CallTimeout:
    return CallTimeout(0.0 if flags & _DONTWAIT else wait_s)


def _wait_on(link: StreamLink) -> Wait:
    """Return how to wait for what happens on a link that is connected."""
    return partial(wait_on, link)


_MAPPED_FLAGS: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class MappedBuffer(NamedTuple):
    """A registered buffer; with `is_shown` the peer has an entry of it."""

    memory: Memory
    is_shown: bool


class MappedBuffers:
    """The buffers that one stream socket has mapped."""

    __slots__ = ("_buffers", "_transfer")

    def __init__(self, transfer: StreamTransfer) -> None:
        self._transfer = transfer
        self._buffers: list[MappedBuffer] = []

    def map(self, buffer: Any, offset: int, protection: int) -> int:
        """Map a buffer; see `StreamSocket.map_buffer`."""
        view = _writable(buffer)
        link, stream = self._mappable(protection)
        if offset < ANY_OFFSET:
            raise os_error(errno.EINVAL, f"offset {offset}")
        context = link.context
        with context.adapter.lock:
            memory = context.register(view)
            try:
                if protection == PROT_WRITE:
                    offset = stream.map_buffer(memory, None if offset == ANY_OFFSET else offset)
                elif offset == ANY_OFFSET:
                    offset = memory.address
            except OSError:
                context.release(memory)
                raise
            self._buffers.append(MappedBuffer(memory, protection == PROT_WRITE))
            link.post_pending()
        return offset

    def unmap(self, buffer: Any) -> None:
        """Take a buffer back; see `StreamSocket.unmap_buffer`."""
        view = _writable(buffer)
        wanted = (address_of(view), len(view))
        for mapped in list(self._buffers):
            memory = mapped.memory
            if (memory.address, memory.view.nbytes) == wanted and self._unmap(mapped):
                return
        raise os_error(errno.EINVAL, f"{len(view)} bytes at {wanted[0]:#x} are not mapped")

    def unmap_all(self) -> None:
        """Take all buffers back."""
        for mapped in list(self._buffers):
            self._unmap(mapped)

    def _mappable(self, protection: int) -> tuple[StreamLink, StreamCore]:
        if self._transfer.is_closed:
            raise closed()
        link = self._transfer.link
        if protection not in (PROT_NONE, PROT_WRITE):
            raise os_error(errno.EINVAL, f"protection {protection}, not PROT_NONE or PROT_WRITE")
        if link is None or link.stream is None or link.state is not LinkState.CONNECTED:
            raise os_error(errno.EINVAL, "no connection to map a buffer for")
        return link, link.stream

    def _unmap(self, mapped: MappedBuffer) -> bool:
        """Take one buffer back; false if another thread was faster."""
        link = self._transfer.link
        assert link is not None, "a socket with mapped buffers has a link"
        with link.context.adapter.lock:
            if mapped not in self._buffers:
                return False
            self._buffers.remove(mapped)
            if mapped.is_shown and link.stream is not None:
                link.stream.unmap(mapped.memory)
                link.post_pending()
            link.context.release(mapped.memory)
            return True


def write_mapped(
    transfer: StreamTransfer,
    data: Any,
    offset: int,
    flags: int,
    wait_s: float | None,
    written: int = 0,
) -> int:
    """Write into what the peer has mapped; see `StreamSocket.write_mapped`.

    `written` bytes were before.
    """
    view = memoryview(data).cast("B")
    if flags & ~_MAPPED_FLAGS:
        raise os_error(errno.EOPNOTSUPP, f"flags {flags & ~_MAPPED_FLAGS:#x}")
    call_timeout = CallTimeout(0.0 if flags & socket.MSG_DONTWAIT else wait_s)
    link = transfer.connected_link(call_timeout)

    def can_write() -> bool:
        stream = link.stream
        return transfer.is_closed or stream is None or stream.can_write_mapped

    try:
        written += _write_some(link, view[written:], offset + written)
        while written < len(view) and _is_mapped(link, offset + written):
            if written and not call_timeout.is_infinite:
                break
            call_timeout.until(_wait_on(link), can_write)
            written += _write_some(link, view[written:], offset + written)
    except OSError:
        if transfer.is_closed:
            raise closed() from None
        raise
    return written


def _write_some(link: StreamLink, view: memoryview, offset: int) -> int:
    with link.context.adapter.lock:
        stream = link.stream
        if stream is None:
            raise os_error(errno.ENOTCONN)
        taken = stream.write_mapped(view, offset, may_zero_copy=True)
        if taken:
            link.post_pending()
        return taken


def _is_mapped(link: StreamLink, offset: int) -> bool:
    return link.stream is not None and link.stream.iomap.is_mapped(offset)


def _writable(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError(f"a peer writes into mapped buffers, not into {type(buffer).__name__}")
    if not view.nbytes:
        raise os_error(errno.EINVAL, "a buffer without bytes")
    return view.cast("B")
