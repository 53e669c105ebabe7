"""All peers of one context, and the channels to them: connecting, greeting, leaving.

A channel joins two device contexts: two rings, two doorbells, and a socket. The rings carry
packets. A doorbell is an eventfd that the writer of a ring rings when its reader sleeps. The socket
carries the few messages that come with descriptors, and its end tells that the peer is gone. The
context that connects makes everything and sends it in its Hello; it may write into its ring before
the other has looked.

When two contexts connect to each other at the same moment there are two channels. Each side
keeps sending on the one it used first, so nothing is reordered.

The adapter's loop watches the listening socket, pending connections, and of each channel its socket
and its doorbell. Rings are read by `read_rings`, whether a doorbell rang or not.
"""

import errno
import fcntl
import mmap
import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from urds.common.errors import RemoteProtocolError, WireError
from urds.common.passed_files import receive_with_files, sealed_file, send_with_files
from urds.common.progress import ProgressLoop
from urds.common.timers import Timer
from urds.common.types import BytesLike
from urds.verbs.providers.shm.mappings import PeerMappings, map_sealed
from urds.verbs.providers.shm.messages import (
    DESCRIPTORS_MAX,
    MAGIC,
    MESSAGE_BYTES_MAX,
    ChannelMessage,
    Hello,
    MapReject,
    MapReply,
    MapRequest,
    Welcome,
    emit_message,
    parse_message,
)
from urds.verbs.providers.shm.rendezvous import Rendezvous
from urds.verbs.providers.shm.ring import RING_CELLS_BYTES, RingFrame, RingReader, RingWriter

RING_BYTES: Final = 1 << 20
MTU_BYTES: Final = 256 * 1024
PACKET_BYTES_MAX: Final = MTU_BYTES + 128  # with the headers of the packet codec
_CELLS_PAGE_BYTES: Final = 4096
_FILE_BYTES: Final = _CELLS_PAGE_BYTES + 2 * RING_BYTES
_EVENTFD_LINK: Final = "anon_inode:[eventfd]"
FRAME_PACKET: Final = 1
CHANNELS_MAX: Final = 1024
PENDING_MAX: Final = 64  # connections without a Hello
PENDING_NS: Final = 5_000_000_000  # how long one may take
_FRAMES_PER_PASS: Final = 64
_RELEASE_BYTES: Final = 64 * 1024  # of frames that were taken: the writer gets their room back
_MESSAGES_PER_PASS: Final = 16
_MUTED_NS: Final = 100_000_000  # pause of accepting without a free descriptor


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

    def clear_doorbell(self, _events: int) -> None:
        """Clear the doorbell after it rang."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.doorbell)
            self._counters.wake_ups += 1

    def send_message(self, message: ChannelMessage, descriptors: Sequence[int] = ()) -> bool:
        """Send a message on the socket; return whether it was sent."""
        try:
            send_with_files(self.socket, emit_message(message), descriptors)
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


def open_channel(
    gid: bytes, connection: socket.socket, *, own_gid: bytes, counters: ChannelCounters
) -> Channel:
    """Make the memory and the doorbells of a channel to `gid` and send them. Raises OSError."""
    descriptors: list[int] = []
    try:
        descriptors.append(sealed_file("urds-verbs-channel", _FILE_BYTES))
        for _ in range(2):
            descriptors.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        mapping = mmap.mmap(descriptors[0], _FILE_BYTES)
        hello = emit_message(Hello(MAGIC, RING_BYTES, own_gid))
        send_with_files(connection, hello, descriptors)
    except OSError:
        _close_all(descriptors)
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
        _close_all([doorbell, peer_doorbell])
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
    try:
        data, descriptors, flags = receive_with_files(
            connection, MESSAGE_BYTES_MAX, DESCRIPTORS_MAX
        )
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return None
        raise EOFError(str(error)) from error
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise RemoteProtocolError("message or descriptors beyond the limit")
        if not data:
            raise EOFError("the peer closed its end")
        return parse_message(data, len(descriptors)), descriptors
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


def _check_doorbell(descriptor: int) -> None:
    """Raise RemoteProtocolError for a descriptor that is not an eventfd, or may block.

    A peer can make it block later on: then it stops this process while it lives, as it could
    with a signal; see the trust model in `mappings`.
    """
    kind = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if kind != _EVENTFD_LINK or not flags & os.O_NONBLOCK:
        raise RemoteProtocolError(f"doorbell is {kind}, flags {flags:#x}")


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class PeersOwner(Protocol):
    """What the adapter does with what arrives from peers."""

    def batch(self) -> AbstractContextManager[None]:
        """Return the context in which packets are processed, and sent at its end."""

    def handle_packet(self, gid: bytes, data: bytes) -> None:
        """Process one packet."""

    def handle_map_request(self, channel: Channel, request: MapRequest) -> None:
        """Answer a request to map memory."""

    def handle_gone(self, gid: bytes) -> None:
        """React to a peer that is gone; its channels are closed."""


class Peers:
    """The channels of a context. All calls with the lock of the adapter held."""

    def __init__(
        self, gid: bytes, rendezvous: Rendezvous, owner: PeersOwner, loop: ProgressLoop
    ) -> None:
        self.counters = ChannelCounters()
        self.pending_dropped = 0  # too many, too slow, or no greeting
        self._gid = gid
        self._rendezvous = rendezvous
        self._owner = owner
        self._loop = loop
        self._routes: dict[bytes, Channel] = {}  # what is sent to a peer goes here
        self._channels: list[Channel] = []
        # Connections without a greeting, and the timer of each.
        self._pending: dict[socket.socket, Timer] = {}
        loop.watch(rendezvous.socket.fileno(), select.EPOLLIN, self._accept_connections)

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[Channel]:
        return iter(tuple(self._channels))

    def find(self, gid: bytes) -> Channel | None:
        """Return the channel for sending to a peer, if there is one."""
        return self._routes.get(gid)

    def route(self, gid: bytes) -> Channel:
        """Return the channel for sending to a peer; make one if there is none.

        Raises OSError: EAGAIN for now; ENOENT, ECONNREFUSED, EACCES, EMFILE: not at all.
        """
        channel = self._routes.get(gid)
        if channel is None:
            if len(self._channels) >= CHANNELS_MAX:
                raise OSError(errno.EMFILE, f"{CHANNELS_MAX} channels, as many as there may be")
            channel = open_channel(
                gid, self._rendezvous.connect(gid), own_gid=self._gid, counters=self.counters
            )
            self._routes[gid] = channel
            self._add(channel)
        return channel

    # -- what arrives

    def read_rings(self) -> None:
        """Read every ring, a bounded number of frames each."""
        for channel in tuple(self._channels):
            self._read(channel)

    def arm_doorbell(self) -> bool:
        """Ask all writers to ring; return whether no ring has anything."""
        for channel in tuple(self._channels):
            try:
                if channel.is_open and not channel.reader.arm_doorbell():
                    self.disarm_doorbell()
                    return False
            except RemoteProtocolError:
                self.close_peer(channel)
        return True

    def disarm_doorbell(self) -> None:
        """Tell all writers that no doorbell is needed."""
        for channel in self._channels:
            channel.reader.disarm_doorbell()

    # -- ends

    def close_peer(self, channel: Channel) -> None:
        """Close all channels with a peer after a protocol error."""
        if channel.is_open:
            self.counters.peers_broke_protocol += 1
            self._lose(channel.gid)

    def close_peer_of(self, reader: RingReader) -> None:
        """Close all channels with the peer that writes this ring."""
        for channel in tuple(self._channels):
            if channel.reader is reader:
                self.close_peer(channel)

    def close(self) -> None:
        """Close all channels; peers see that this context is gone."""
        for connection in list(self._pending):
            self._drop_pending(connection)
        for channel in tuple(self._channels):
            self._close(channel)

    def abandon(self) -> None:
        """Close all descriptors in the child of a fork."""
        for connection in self._pending:
            connection.close()
        for channel in self._channels:
            channel.close()
        self._pending.clear()
        self._channels.clear()
        self._routes.clear()

    # -- inside

    def _add(self, channel: Channel) -> None:
        self._channels.append(channel)
        receive = partial(self._receive_messages, channel)
        self._loop.watch(channel.socket.fileno(), select.EPOLLIN, receive)
        self._loop.watch(channel.doorbell, select.EPOLLIN, channel.clear_doorbell)

    def _read(self, channel: Channel) -> bool:
        """Deliver a bounded number of frames; return whether the ring is empty now."""
        try:
            for _ in range(_FRAMES_PER_PASS):
                if not channel.is_open or (frame := channel.take()) is None:
                    return True
                kind, data = frame
                if kind != FRAME_PACKET:
                    raise RemoteProtocolError(f"frame of kind {kind}")
                self._owner.handle_packet(channel.gid, data)
                if channel.reader.held_bytes >= _RELEASE_BYTES:
                    channel.release()
        except RemoteProtocolError:
            self.close_peer(channel)
            return True
        finally:
            channel.release()
        return False

    def _receive_messages(self, channel: Channel, _events: int) -> None:
        with self._owner.batch():
            for _ in range(_MESSAGES_PER_PASS):
                if not channel.is_open or not self._receive_one(channel):
                    return

    def _receive_one(self, channel: Channel) -> bool:
        """Handle one message; return whether there was any."""
        try:
            heard = receive_message(channel.socket)
            if heard is None:
                return False
            self._handle_message(channel, *heard)
        except RemoteProtocolError:
            self.close_peer(channel)
        except EOFError:
            # What it wrote before it ended counts: at most one full ring.
            while not self._read(channel):
                pass
            if channel.is_open:
                self.counters.peers_gone += 1
                self._lose(channel.gid)
        return True

    def _handle_message(
        self, channel: Channel, message: ChannelMessage, descriptors: list[int]
    ) -> None:
        try:
            if isinstance(message, Welcome):
                if not channel.is_connector or message.gid != channel.gid:
                    raise RemoteProtocolError(f"welcome from {message.gid.hex()}")
            elif isinstance(message, MapRequest):
                self._owner.handle_map_request(channel, message)
            elif isinstance(message, MapReply):
                channel.peer_mappings.take(message, descriptors[0])
            elif isinstance(message, MapReject):
                channel.peer_mappings.reject(message)
            else:
                raise RemoteProtocolError("a second greeting")
        finally:
            _close_all(descriptors)

    def _accept_connections(self, _events: int) -> None:
        try:
            while (connection := self._rendezvous.accept()) is not None:
                if len(self._pending) >= PENDING_MAX or len(self) >= CHANNELS_MAX:
                    self.pending_dropped += 1
                    connection.close()
                    continue
                self._pending[connection] = self._loop.call_at(
                    time.monotonic_ns() + PENDING_NS, partial(self._drop_pending, connection)
                )
                receive = partial(self._receive_hello, connection)
                self._loop.watch(connection.fileno(), select.EPOLLIN, receive)
                receive(select.EPOLLIN)
        except OSError:
            # No descriptor is free: they wait in the backlog; accepting pauses.
            self._mute(True)
            self._loop.call_at(time.monotonic_ns() + _MUTED_NS, partial(self._mute, False))

    def _mute(self, is_muted: bool) -> None:
        self._loop.change(self._rendezvous.socket.fileno(), 0 if is_muted else select.EPOLLIN)

    def _receive_hello(self, connection: socket.socket, _events: int) -> None:
        try:
            heard = receive_message(connection)
            if heard is None:
                return
            channel = self._accept_hello(connection, *heard)
        except (RemoteProtocolError, EOFError):
            self._drop_pending(connection)
            return
        # The socket lives on in the channel.
        self._pending.pop(connection).cancel()
        self._loop.unwatch(connection.fileno())
        self._add(channel)
        self._routes.setdefault(channel.gid, channel)
        channel.send_message(Welcome(self._gid))

    def _accept_hello(
        self, connection: socket.socket, message: ChannelMessage, descriptors: list[int]
    ) -> Channel:
        if not isinstance(message, Hello):
            _close_all(descriptors)
            raise RemoteProtocolError(f"{type(message).__name__} before the greeting")
        is_known = any(
            channel.gid == message.gid and not channel.is_connector for channel in self._channels
        )
        if is_known or message.gid == self._gid:
            _close_all(descriptors)
            raise RemoteProtocolError(f"{message.gid.hex()} has a channel")
        return accept_channel(message, descriptors, connection, counters=self.counters)

    def _drop_pending(self, connection: socket.socket) -> None:
        self._pending.pop(connection).cancel()
        self.pending_dropped += 1
        self._loop.unwatch(connection.fileno())
        connection.close()

    def _lose(self, gid: bytes) -> None:
        """Close every channel with a peer and tell the owner."""
        for channel in tuple(self._channels):
            if channel.gid == gid:
                self._close(channel)
        self._owner.handle_gone(gid)

    def _close(self, channel: Channel) -> None:
        self._loop.unwatch(channel.socket.fileno())
        self._loop.unwatch(channel.doorbell)
        self._channels.remove(channel)
        if self._routes.get(channel.gid) is channel:
            del self._routes[channel.gid]
        channel.close()
