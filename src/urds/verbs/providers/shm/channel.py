"""A channel: what joins two contexts. Two rings, two bells, and a socket.

The rings carry packets. A bell is an eventfd that the writer of a ring rings when its reader
sleeps. The socket carries the few messages that come with descriptors, and its end tells that the
peer is gone, however it went. The context that connects makes everything and sends it in its
Hello; it may write into its ring before the other has looked.

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

from urds.errors import RemoteProtocolError, WireError
from urds.verbs.providers.shm.grants import Borrowings
from urds.verbs.providers.shm.memory import map_sealed, sealed_file
from urds.verbs.providers.shm.messages import (
    DESCRIPTORS_MAX,
    MAGIC,
    MESSAGE_BYTES_MAX,
    Hello,
    Message,
    emit_message,
    parse_message,
)
from urds.verbs.providers.shm.ring import RING_CELLS_BYTES, Frame, Octets, RingReader, RingWriter

RING_BYTES: Final = 1 << 20
_CELLS_PAGE_BYTES: Final = 4096
_FILE_BYTES: Final = _CELLS_PAGE_BYTES + 2 * RING_BYTES
_EVENTFD_LINK: Final = "anon_inode:[eventfd]"


@dataclass(slots=True)
class ChannelCounters:
    """What happened on all channels of a context, for people and tests."""

    frames_sent: int = 0
    frames_received: int = 0
    bells_rung: int = 0  # the peer slept, or waited for room
    wake_ups: int = 0  # this side was rung for
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
        bell_of_peer: int,
        bell: int,
        is_connector: bool,
        payload_bytes_max: int,
        counters: ChannelCounters,
    ) -> None:
        """Take over the connection, the mapping and both bells."""
        self.gid = gid
        self.socket = connection
        self.bell = bell
        self.is_connector = is_connector
        self.is_open = True
        self._bell_of_peer = bell_of_peer
        self._counters = counters
        self._mapping = mapping
        out_index, in_index = (0, 1) if is_connector else (1, 0)
        self.writer = RingWriter(*_ring_views(mapping, out_index))
        self.reader = RingReader(
            *_ring_views(mapping, in_index), payload_bytes_max=payload_bytes_max
        )
        self.borrowings = Borrowings(self.writer)

    def write(self, kind: int, *parts: Octets) -> None:
        """Put one frame into the ring, which has room, and wake the reader if it sleeps."""
        self._counters.frames_sent += 1
        if self.writer.write(kind, *parts):
            self.ring_bell()

    def wait_for_room(self, payload_bytes: int) -> bool:
        """Return whether there is room; if not, the bell rings when there may be.

        Raises RemoteProtocolError.
        """
        if self.writer.has_room(payload_bytes) or self.writer.wait_for_room(payload_bytes):
            return True
        self._counters.waits_for_room += 1
        return False

    def take(self) -> Frame | None:
        """Return the next frame. Raises RemoteProtocolError."""
        frame = self.reader.take()
        if frame is not None:
            self._counters.frames_received += 1
        return frame

    def release(self) -> None:
        """Say that all taken frames are done with; a closed channel says nothing."""
        if self.is_open and self.reader.release():
            self.ring_bell()

    def ring_bell(self) -> None:
        """Wake the peer."""
        self._counters.bells_rung += 1
        with suppress(OSError):  # EAGAIN: it was rung 2^64 times, and still rings
            os.eventfd_write(self._bell_of_peer, 1)

    def hear_bell(self) -> None:
        """Note that this side was rung for."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.bell)
            self._counters.wake_ups += 1

    def say(self, message: Message, descriptors: Sequence[int] = ()) -> bool:
        """Send a message on the socket; return whether it went."""
        try:
            _send(self.socket, emit_message(message), descriptors)
        except OSError:
            # Full, or the peer is gone: the end of the socket will tell.
            self._counters.messages_not_sent += 1
            return False
        return True

    def close(self) -> None:
        """Release memory, bells and socket. Safe twice."""
        if not self.is_open:
            return
        self.is_open = False
        self.borrowings.close()
        self.writer.close()
        self.reader.close()
        self._mapping.close()
        self.socket.close()
        os.close(self.bell)
        os.close(self._bell_of_peer)


def _send(connection: socket.socket, octets: bytes, descriptors: Sequence[int]) -> None:
    """Send a message and descriptors; `socket.send_fds` of CPython 3.11 to 3.13 drops the flags."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
    connection.sendmsg([octets], [rights] if descriptors else [], socket.MSG_NOSIGNAL)


def open_channel(
    gid: bytes,
    connection: socket.socket,
    *,
    own_gid: bytes,
    payload_bytes_max: int,
    counters: ChannelCounters,
) -> Channel:
    """Make the memory and the bells of a channel to `gid` and send them over. Raises OSError."""
    descriptors: list[int] = []
    try:
        descriptors.append(sealed_file("urds-verbs-channel", _FILE_BYTES))
        for _ in range(2):
            descriptors.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        mapping = mmap.mmap(descriptors[0], _FILE_BYTES)
        hello = emit_message(Hello(MAGIC, RING_BYTES, own_gid))
        _send(connection, hello, descriptors)
    except OSError:
        _close_all(descriptors)
        connection.close()
        raise
    os.close(descriptors[0])
    return Channel(
        gid,
        connection,
        mapping,
        bell_of_peer=descriptors[1],
        bell=descriptors[2],
        is_connector=True,
        payload_bytes_max=payload_bytes_max,
        counters=counters,
    )


def accept_channel(
    hello: Hello,
    descriptors: Sequence[int],
    connection: socket.socket,
    *,
    payload_bytes_max: int,
    counters: ChannelCounters,
) -> Channel:
    """Take what a Hello brought. The descriptors are taken over, whatever happens.

    Raises RemoteProtocolError: rings of another size, memory that may shrink, no eventfd.
    """
    memory, bell, bell_of_peer = descriptors
    try:
        if hello.ring_bytes != RING_BYTES:
            raise RemoteProtocolError(f"rings of {hello.ring_bytes} octets, not {RING_BYTES}")
        _check_bell(bell)
        _check_bell(bell_of_peer)
        mapping = map_sealed(memory, _FILE_BYTES)
    except RemoteProtocolError:
        _close_all([bell, bell_of_peer])
        raise
    finally:
        os.close(memory)
    return Channel(
        hello.gid,
        connection,
        mapping,
        bell_of_peer=bell_of_peer,
        bell=bell,
        is_connector=False,
        payload_bytes_max=payload_bytes_max,
        counters=counters,
    )


def hear(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message of a peer and its descriptors, now the caller's; `None` if none.

    Raises EOFError when the peer is gone, RemoteProtocolError for octets that are no message.
    """
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    try:
        octets, descriptors, answer_flags, _ = socket.recv_fds(
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
        if not octets:
            raise EOFError("the peer closed its end")
        return parse_message(octets, len(descriptors)), descriptors
    except WireError as error:
        _close_all(descriptors)
        raise RemoteProtocolError(str(error)) from error
    except (RemoteProtocolError, EOFError):
        _close_all(descriptors)
        raise


def _ring_views(mapping: mmap.mmap, index: int) -> tuple[memoryview, memoryview]:
    """Return cells and data of ring 0 (connector to acceptor) or 1."""
    with memoryview(mapping) as whole:
        cells_start = index * RING_CELLS_BYTES
        data_start = _CELLS_PAGE_BYTES + index * RING_BYTES
        cells = whole[cells_start : cells_start + RING_CELLS_BYTES].cast("Q")
        return cells, whole[data_start : data_start + RING_BYTES]


def _check_bell(descriptor: int) -> None:
    """Refuse what is no eventfd, or may block. Raises RemoteProtocolError.

    A peer can make it block later on: then it stops this process while it lives, as it could
    with a signal; see the trust that `grants` tells of.
    """
    kind = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if kind != _EVENTFD_LINK or not flags & os.O_NONBLOCK:
        raise RemoteProtocolError(f"bell is {kind}, flags {flags:#x}")


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
