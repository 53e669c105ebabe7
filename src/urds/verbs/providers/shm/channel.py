"""A channel joins two device contexts: two rings, two doorbells, and a socket.

The rings carry packets. A doorbell is an eventfd that the writer of a ring rings when its reader
sleeps. The socket carries the few messages that come with descriptors, and its end tells that the
peer is gone. The context that connects makes everything and sends it in its Hello; it may write
into its ring before the other has looked.

When two contexts connect to each other at the same moment there are two channels. Each side
keeps sending on the one it used first, so nothing is reordered.
"""

import errno
import fcntl
import mmap
import os
import socket
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from urds.common.errors import RemoteProtocolError, WireError
from urds.common.types import BytesLike
from urds.verbs.providers.shm.mappings import PeerMappings, map_sealed, sealed_file
from urds.verbs.providers.shm.messages import (
    DESCRIPTORS_MAX,
    MAGIC,
    MESSAGE_BYTES_MAX,
    ChannelMessage,
    Hello,
    emit_message,
    parse_message,
)
from urds.verbs.providers.shm.ring import (
    RING_CELLS_BYTES,
    RingFrame,
    RingReader,
    RingWriter,
)

RING_BYTES: Final = 1 << 20
MTU_BYTES: Final = 256 * 1024
PACKET_BYTES_MAX: Final = MTU_BYTES + 128  # with the headers of the packet codec
_CELLS_PAGE_BYTES: Final = 4096
_FILE_BYTES: Final = _CELLS_PAGE_BYTES + 2 * RING_BYTES
_EVENTFD_LINK: Final = "anon_inode:[eventfd]"


@dataclass(slots=True)
class ChannelCounters:
    """Counters of all channels of a context."""

    frames_sent: int = 0
    frames_received: int = 0
    doorbells_rung: int = 0  # the peer slept, or waited for room
    wake_ups: int = 0  # this side's doorbell rang
    waits_for_room: int = 0  # a packet found the ring full
    peers_gone: int = 0
    peers_broke_protocol: int = 0
    messages_not_sent: int = 0  # the socket was full


class Channel:
    """One end of a channel. All calls with the lock of the adapter held."""

    def __init__(
        self,
        gid: bytes,
        connection: socket.socket,
        mapping: mmap.mmap,
        *,
        peer_doorbell: int,
        doorbell: int,
        is_connector: bool,
        counters: ChannelCounters,
    ) -> None:
        """Take over the connection, the mapping and both doorbells."""
        self.gid = gid
        self.socket = connection
        self.doorbell = doorbell
        self.is_connector = is_connector
        self.is_open = True
        self._peer_doorbell = peer_doorbell
        self._counters = counters
        self._mapping = mapping
        out_index, in_index = (0, 1) if is_connector else (1, 0)
        self.writer = RingWriter(*_ring_views(mapping, out_index))
        self.reader = RingReader(
            *_ring_views(mapping, in_index), payload_bytes_max=PACKET_BYTES_MAX
        )
        self.peer_mappings = PeerMappings(self.writer)

    def write(self, kind: int, *parts: BytesLike) -> None:
        """Write one frame into the ring, which has room, and wake the reader if it sleeps."""
        self._counters.frames_sent += 1
        if self.writer.write(kind, *parts):
            self.ring_doorbell()

    def wait_for_room(self, payload_bytes: int) -> bool:
        """Return whether there is room; if not, the doorbell rings when there may be.

        Raises RemoteProtocolError.
        """
        if self.writer.has_room(payload_bytes) or self.writer.wait_for_room(payload_bytes):
            return True
        self._counters.waits_for_room += 1
        return False

    def take(self) -> RingFrame | None:
        """Return the next frame. Raises RemoteProtocolError."""
        frame = self.reader.take()
        if frame is not None:
            self._counters.frames_received += 1
        return frame

    def release(self) -> None:
        """Release all taken frames to the writer; no effect on a closed channel."""
        if self.is_open and self.reader.release():
            self.ring_doorbell()

    def ring_doorbell(self) -> None:
        """Wake the peer."""
        self._counters.doorbells_rung += 1
        with suppress(OSError):  # EAGAIN: it was rung 2^64 times, and still rings
            os.eventfd_write(self._peer_doorbell, 1)

    def clear_doorbell(self) -> None:
        """Clear the doorbell after it rang."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.doorbell)
            self._counters.wake_ups += 1

    def send_message(self, message: ChannelMessage, descriptors: Sequence[int] = ()) -> bool:
        """Send a message on the socket; return whether it was sent."""
        try:
            _send(self.socket, emit_message(message), descriptors)
        except OSError:
            # Full, or the peer is gone: the end of the socket will tell.
            self._counters.messages_not_sent += 1
            return False
        return True

    def close(self) -> None:
        """Release memory, doorbells and socket. Safe twice."""
        if not self.is_open:
            return
        self.is_open = False
        self.peer_mappings.close()
        self.writer.close()
        self.reader.close()
        self._mapping.close()
        self.socket.close()
        os.close(self.doorbell)
        os.close(self._peer_doorbell)


def _send(connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Send a message and descriptors; `socket.send_fds` of CPython 3.11 to 3.13 drops the flags."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
    connection.sendmsg([data], [rights] if descriptors else [], socket.MSG_NOSIGNAL)


def open_channel(
    gid: bytes,
    connection: socket.socket,
    *,
    own_gid: bytes,
    counters: ChannelCounters,
) -> Channel:
    """Make the memory and the doorbells of a channel to `gid` and send them. Raises OSError."""
    descriptors: list[int] = []
    try:
        descriptors.append(sealed_file("urds-verbs-channel", _FILE_BYTES))
        for _ in range(2):
            descriptors.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        mapping = mmap.mmap(descriptors[0], _FILE_BYTES)
        hello = emit_message(Hello(MAGIC, RING_BYTES, own_gid))
        _send(connection, hello, descriptors)
    except OSError:
        close_all(descriptors)
        connection.close()
        raise
    os.close(descriptors[0])
    return Channel(
        gid,
        connection,
        mapping,
        peer_doorbell=descriptors[1],
        doorbell=descriptors[2],
        is_connector=True,
        counters=counters,
    )


def accept_channel(
    hello: Hello,
    descriptors: Sequence[int],
    connection: socket.socket,
    *,
    counters: ChannelCounters,
) -> Channel:
    """Accept what a Hello brought. The descriptors are taken over, whatever happens.

    Raises RemoteProtocolError: rings of another size, memory that may shrink, no eventfd.
    """
    memory, doorbell, peer_doorbell = descriptors
    try:
        if hello.ring_bytes != RING_BYTES:
            raise RemoteProtocolError(f"rings of {hello.ring_bytes} bytes, not {RING_BYTES}")
        _check_doorbell(doorbell)
        _check_doorbell(peer_doorbell)
        mapping = map_sealed(memory, _FILE_BYTES)
    except RemoteProtocolError:
        close_all([doorbell, peer_doorbell])
        raise
    finally:
        os.close(memory)
    return Channel(
        hello.gid,
        connection,
        mapping,
        peer_doorbell=peer_doorbell,
        doorbell=doorbell,
        is_connector=False,
        counters=counters,
    )


def receive_message(connection: socket.socket) -> tuple[ChannelMessage, list[int]] | None:
    """Return the next message of a peer and its descriptors, now the caller's; `None` if none.

    Raises EOFError when the peer is gone, RemoteProtocolError for bytes that are not a message.
    """
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    try:
        data, descriptors, answer_flags, _ = socket.recv_fds(
            connection, MESSAGE_BYTES_MAX, DESCRIPTORS_MAX, flags
        )
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return None
        raise EOFError(str(error)) from error
    try:
        if answer_flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise RemoteProtocolError("message or descriptors beyond the limit")
        if not data:
            raise EOFError("the peer closed its end")
        return parse_message(data, len(descriptors)), descriptors
    except WireError as error:
        close_all(descriptors)
        raise RemoteProtocolError(str(error)) from error
    except (RemoteProtocolError, EOFError):
        close_all(descriptors)
        raise


def _ring_views(mapping: mmap.mmap, index: int) -> tuple[memoryview, memoryview]:
    """Return cells and data of ring 0 (connector to acceptor) or 1."""
    with memoryview(mapping) as whole:
        cells_start = index * RING_CELLS_BYTES
        data_start = _CELLS_PAGE_BYTES + index * RING_BYTES
        cells = whole[cells_start : cells_start + RING_CELLS_BYTES].cast("Q")
        return cells, whole[data_start : data_start + RING_BYTES]


def _check_doorbell(descriptor: int) -> None:
    """Raise RemoteProtocolError for a descriptor that is not an eventfd, or may block.

    A peer can make it block later on: then it stops this process while it lives, as it could
    with a signal; see the trust model in `mappings`.
    """
    kind = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if kind != _EVENTFD_LINK or not flags & os.O_NONBLOCK:
        raise RemoteProtocolError(f"doorbell is {kind}, flags {flags:#x}")


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that came with a message, or were made for one."""
    for descriptor in descriptors:
        os.close(descriptor)
