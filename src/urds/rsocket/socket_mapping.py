"""Mapped buffers: what the peer may write by offset, straight from its memory into ours.

The owner of a buffer maps it; the peer knows it as soon as it has received octets sent after
that. A mapped write tells nobody: small octets sent after it do. Source: rsocket.md section 7.
"""

from __future__ import annotations

import errno
from functools import partial
from socket import MSG_DONTWAIT, MSG_NOSIGNAL
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from urds.rsocket import devices
from urds.rsocket.constants import ANY_OFFSET, PROT_NONE, PROT_WRITE
from urds.rsocket.link import LinkState
from urds.rsocket.refusals import closed, refusal
from urds.rsocket.socket_memory import address_of
from urds.rsocket.socket_receiving import TransferSocket

if TYPE_CHECKING:
    from urds.rsocket import options
    from urds.rsocket.link import Link
    from urds.rsocket.stream import Memory, Stream

_FLAGS: Final = int(MSG_DONTWAIT | MSG_NOSIGNAL)


class Mapping(NamedTuple):
    """A registered buffer; with `is_shown` the peer has an entry of it."""

    memory: Memory
    is_shown: bool


class MappingSocket(TransferSocket):
    """The calls of mapped buffers; see `Socket`."""

    __slots__ = ("_mappings",)

    def _begin(self, family: int, kind: int, proto: int, chosen: options.Options) -> None:
        self._mappings: list[Mapping] = []
        super()._begin(family, kind, proto, chosen)

    def map_buffer(
        self, buffer: Any, offset: int = ANY_OFFSET, protection: int = PROT_WRITE
    ) -> int:
        """Let the peer write into a buffer from `offset` on, by default its address; return it.

        PROT_NONE registers the buffer and shows it to nobody. Raises OSError: EINVAL (no
        connection, another protection, an offset out of range), ENOMEM (the peer offers no slot
        that is free); TypeError for a buffer that cannot be written.
        """
        view = _writable(buffer)
        link, stream = self._mappable(protection)
        if offset < ANY_OFFSET:
            raise refusal(errno.EINVAL, f"offset {offset}")
        opening = link.opening
        with opening.adapter.lock:
            memory = opening.register(view)
            try:
                if protection == PROT_WRITE:
                    offset = stream.map_buffer(memory, None if offset == ANY_OFFSET else offset)
                elif offset == ANY_OFFSET:
                    offset = memory.address
            except OSError:
                opening.release(memory)
                raise
            self._mappings.append(Mapping(memory, protection == PROT_WRITE))
            link.carry()
        return offset

    def unmap_buffer(self, buffer: Any) -> None:
        """Take a buffer back: on return the peer cannot write there any more.

        A peer of ours is told; another's write there breaks the connection. Raises OSError
        (EINVAL) unless exactly these octets are mapped.
        """
        view = _writable(buffer)
        self._check_open()
        wanted = (address_of(view), len(view))
        for mapping in list(self._mappings):
            memory = mapping.memory
            if (memory.address, memory.view.nbytes) == wanted and self._unmap(mapping):
                return
        raise refusal(errno.EINVAL, f"{len(view)} octets at {wanted[0]:#x} are not mapped")

    def write_mapped(self, data: Any, offset: int, flags: int = 0) -> int:
        """Write into what the peer has mapped from `offset` on; return how many octets were.

        Fewer at the first octet that is not mapped, 0 if that is the first of all; else as many,
        and in the same time, as `send`. From 16 KiB up they are written from the caller's memory
        straight into the peer's. Raises OSError as `send`.
        """
        view = memoryview(data).cast("B")
        if flags & ~_FLAGS:
            raise refusal(errno.EOPNOTSUPP, f"flags {flags & ~_FLAGS:#x}")
        patience = self._patience(flags)
        link = self._link_for_data(patience)
        try:
            written = self._write_mapped(link, view, offset)
            while written < len(view) and self._is_mapped(link, offset + written):
                if written and not patience.is_endless:
                    break
                patience.until(partial(devices.wait, (link.opening,)), partial(self._can, link))
                written += self._write_mapped(link, view[written:], offset + written)
        except OSError:
            if self._is_over:
                raise closed() from None
            raise
        return written

    # -- below

    def _mappable(self, protection: int) -> tuple[Link, Stream]:
        self._check_open()
        link = self._link
        if protection not in (PROT_NONE, PROT_WRITE):
            raise refusal(errno.EINVAL, f"protection {protection}, not PROT_NONE or PROT_WRITE")
        if link is None or link.stream is None or link.state is not LinkState.CONNECTED:
            raise refusal(errno.EINVAL, "no connection to map a buffer for")
        return link, link.stream

    def _unmap(self, mapping: Mapping) -> bool:
        """Take one mapping back; false if another thread was faster."""
        link = self._link
        assert link is not None, "who has mapped has a link"
        with link.opening.adapter.lock:
            if mapping not in self._mappings:
                return False
            self._mappings.remove(mapping)
            if mapping.is_shown and link.stream is not None:
                link.stream.unmap(mapping.memory)
                link.carry()
            link.opening.release(mapping.memory)
            return True

    def _unmap_all(self) -> None:
        for mapping in list(self._mappings):
            self._unmap(mapping)

    def _write_mapped(self, link: Link, view: memoryview, offset: int) -> int:
        with link.opening.adapter.lock:
            stream = link.stream
            if stream is None:
                raise refusal(errno.ENOTCONN)
            taken = stream.write_mapped(view, offset, may_borrow=True)
            if taken:
                link.carry()
            return taken

    @staticmethod
    def _is_mapped(link: Link, offset: int) -> bool:
        stream = link.stream
        return stream is not None and stream.is_mapped(offset)

    def _can(self, link: Link) -> bool:
        stream = link.stream
        return self._is_over or stream is None or stream.can_write_mapped


def _writable(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError(f"a peer writes into mapped buffers, not into {type(buffer).__name__}")
    if not view.nbytes:
        raise refusal(errno.EINVAL, "a buffer without octets")
    return view.cast("B")
