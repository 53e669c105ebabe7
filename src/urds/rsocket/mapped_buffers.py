"""Mapped buffers: what the peer may write by offset, straight from its memory into ours.

The owner of a buffer maps it; the peer knows it as soon as it has received bytes sent after that.
Nothing tells of a mapped write but bytes sent after it. Source: docs/reference/rsocket.md 7.
"""

from __future__ import annotations

import errno
from functools import partial
from socket import MSG_DONTWAIT, MSG_NOSIGNAL
from typing import Any, Final, NamedTuple

from urds.rsocket.constants import ANY_OFFSET, PROT_NONE, PROT_WRITE
from urds.rsocket.core.stream import Memory, StreamCore
from urds.rsocket.errors import closed, os_error
from urds.rsocket.link import devices
from urds.rsocket.link.stream_link import LinkState, StreamLink
from urds.rsocket.memory import address_of
from urds.rsocket.stream_transfer import StreamTransfer
from urds.rsocket.waiting import CallTimeout

_FLAGS: Final = int(MSG_DONTWAIT | MSG_NOSIGNAL)


class MappedBuffer(NamedTuple):
    """A registered buffer; with `is_shown` the peer has an entry of it."""

    memory: Memory
    is_shown: bool


class MappedBuffers:
    """The buffers that one stream socket has mapped, and writes into those of its peer."""

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

    def write(self, data: Any, offset: int, flags: int, wait_s: float | None) -> int:
        """Write into what the peer has mapped; see `StreamSocket.write_mapped`."""
        view = memoryview(data).cast("B")
        if flags & ~_FLAGS:
            raise os_error(errno.EOPNOTSUPP, f"flags {flags & ~_FLAGS:#x}")
        call_timeout = CallTimeout(0.0 if flags & MSG_DONTWAIT else wait_s)
        link = self._transfer.connected_link(call_timeout)
        try:
            written = self._write(link, view, offset)
            while written < len(view) and self._is_mapped(link, offset + written):
                if written and not call_timeout.is_infinite:
                    break
                wait = partial(devices.wait, (link.context,))
                call_timeout.until(wait, partial(self._can_write, link))
                written += self._write(link, view[written:], offset + written)
        except OSError:
            if self._transfer.is_closed:
                raise closed() from None
            raise
        return written

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

    def _write(self, link: StreamLink, view: memoryview, offset: int) -> int:
        with link.context.adapter.lock:
            stream = link.stream
            if stream is None:
                raise os_error(errno.ENOTCONN)
            taken = stream.write_mapped(view, offset, may_zero_copy=True)
            if taken:
                link.post_pending()
            return taken

    @staticmethod
    def _is_mapped(link: StreamLink, offset: int) -> bool:
        return link.stream is not None and link.stream.iomap.is_mapped(offset)

    def _can_write(self, link: StreamLink) -> bool:
        stream = link.stream
        return self._transfer.is_closed or stream is None or stream.can_write_mapped


def _writable(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError(f"a peer writes into mapped buffers, not into {type(buffer).__name__}")
    if not view.nbytes:
        raise os_error(errno.EINVAL, "a buffer without bytes")
    return view.cast("B")
