"""All peers of one context: connecting, greeting, leaving.

One epoll watches everything: the listening socket, pending connections, and of each channel its
socket and its doorbell. Rings are read by `read_rings`, whether a doorbell rang or not.
"""

import errno
import select
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from urds.common.errors import RemoteProtocolError
from urds.verbs.providers.shm.channel import (
    Channel,
    ChannelCounters,
    accept_channel,
    close_all,
    open_channel,
    receive_message,
)
from urds.verbs.providers.shm.messages import (
    ChannelMessage,
    Hello,
    MapReject,
    MapReply,
    MapRequest,
    Welcome,
)
from urds.verbs.providers.shm.rendezvous import Rendezvous
from urds.verbs.providers.shm.ring import RingReader

FRAME_PACKET: Final = 1
CHANNELS_MAX: Final = 1024
PENDING_MAX: Final = 64  # connections without a Hello
PENDING_NS: Final = 5_000_000_000  # how long one may take
_FRAMES_PER_PASS: Final = 64
_RELEASE_BYTES: Final = 64 * 1024  # of frames that were taken: the writer gets their room back
_MESSAGES_PER_PASS: Final = 16
_MUTED_NS: Final = 100_000_000  # pause of accepting without a free descriptor


class PeersOwner(Protocol):
    """What the adapter does with what arrives from peers."""

    def handle_packet(self, gid: bytes, data: bytes) -> None:
        """Process one packet."""

    def handle_map_request(self, channel: Channel, request: MapRequest) -> None:
        """Answer a request to map memory."""

    def handle_gone(self, gid: bytes) -> None:
        """React to a peer that is gone; its channels are closed."""


class Peers:
    """The channels of a context. All calls with the lock of the adapter held."""

    def __init__(
        self,
        gid: bytes,
        rendezvous: Rendezvous,
        owner: PeersOwner,
        *,
        now_ns: Callable[[], int],
    ) -> None:
        self.epoll = select.epoll()
        self.counters = ChannelCounters()
        self.pending_dropped = 0  # too many, too slow, or no greeting
        self._gid = gid
        self._rendezvous = rendezvous
        self._owner = owner
        self._now_ns = now_ns
        self._routes: dict[bytes, Channel] = {}  # what is sent to a peer goes here
        self._channels: list[Channel] = []
        self._by_descriptor: dict[int, Channel] = {}
        # Connections without a greeting, and until when they may be.
        self._pending: dict[int, tuple[socket.socket, int]] = {}
        self._muted_until_ns: int | None = None
        self.epoll.register(rendezvous.socket, select.EPOLLIN)

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
                gid,
                self._rendezvous.connect(gid),
                own_gid=self._gid,
                counters=self.counters,
            )
            self._routes[gid] = channel
            self._add(channel)
        return channel

    # -- what arrives

    def handle_ready(self, descriptors: Iterable[int]) -> None:
        """Handle the descriptors that epoll found ready."""
        for descriptor in descriptors:
            channel = self._by_descriptor.get(descriptor)
            if channel is not None:
                if descriptor == channel.doorbell:
                    channel.clear_doorbell()
                else:
                    self._receive_messages(channel)
            elif descriptor in self._pending:
                self._receive_hello(descriptor)
            elif descriptor == self._rendezvous.socket.fileno():
                self._accept_connections()

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

    def handle_timeout(self, now_ns: int) -> None:
        """Drop pending connections that did not greet in time; resume accepting."""
        if self._muted_until_ns is not None and now_ns >= self._muted_until_ns:
            self._muted_until_ns = None
            self.epoll.modify(self._rendezvous.socket, select.EPOLLIN)
        if self._pending:
            for descriptor, (_, until_ns) in list(self._pending.items()):
                if now_ns >= until_ns:
                    self._drop_pending(descriptor)

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
        for descriptor in list(self._pending):
            self._drop_pending(descriptor)
        for channel in tuple(self._channels):
            self._close(channel)
        self.epoll.close()

    def abandon(self) -> None:
        """Close all descriptors in the child of a fork; the epoll set is shared with the parent."""
        self.epoll.close()
        for connection, _ in self._pending.values():
            connection.close()
        for channel in self._channels:
            channel.close()
        self._pending.clear()
        self._channels.clear()
        self._by_descriptor.clear()
        self._routes.clear()

    # -- inside

    def _add(self, channel: Channel) -> None:
        self._channels.append(channel)
        for descriptor in (channel.socket.fileno(), channel.doorbell):
            self._by_descriptor[descriptor] = channel
            self.epoll.register(descriptor, select.EPOLLIN)

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

    def _receive_messages(self, channel: Channel) -> None:
        for _ in range(_MESSAGES_PER_PASS):
            if not channel.is_open:
                return
            try:
                heard = receive_message(channel.socket)
                if heard is None:
                    return
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
            close_all(descriptors)

    def _accept_connections(self) -> None:
        try:
            while (connection := self._rendezvous.accept()) is not None:
                if len(self._pending) >= PENDING_MAX or len(self) >= CHANNELS_MAX:
                    self.pending_dropped += 1
                    connection.close()
                    continue
                self._pending[connection.fileno()] = connection, self._now_ns() + PENDING_NS
                self.epoll.register(connection, select.EPOLLIN)
                self._receive_hello(connection.fileno())
        except OSError:
            # No descriptor is free: they wait in the backlog; accepting pauses.
            self._muted_until_ns = self._now_ns() + _MUTED_NS
            self.epoll.modify(self._rendezvous.socket, 0)

    def _receive_hello(self, descriptor: int) -> None:
        connection, _ = self._pending[descriptor]
        try:
            heard = receive_message(connection)
            if heard is None:
                return
            channel = self._accept_hello(connection, *heard)
        except (RemoteProtocolError, EOFError):
            self._drop_pending(descriptor)
            return
        # The socket lives on in the channel.
        del self._pending[descriptor]
        self.epoll.unregister(descriptor)
        self._add(channel)
        self._routes.setdefault(channel.gid, channel)
        channel.send_message(Welcome(self._gid))

    def _accept_hello(
        self, connection: socket.socket, message: ChannelMessage, descriptors: list[int]
    ) -> Channel:
        if not isinstance(message, Hello):
            close_all(descriptors)
            raise RemoteProtocolError(f"{type(message).__name__} before the greeting")
        is_known = any(
            channel.gid == message.gid and not channel.is_connector for channel in self._channels
        )
        if is_known or message.gid == self._gid:
            close_all(descriptors)
            raise RemoteProtocolError(f"{message.gid.hex()} has a channel")
        return accept_channel(
            message,
            descriptors,
            connection,
            counters=self.counters,
        )

    def _drop_pending(self, descriptor: int) -> None:
        connection, _ = self._pending.pop(descriptor)
        self.pending_dropped += 1
        self.epoll.unregister(descriptor)
        connection.close()

    def _lose(self, gid: bytes) -> None:
        """Close every channel with a peer and tell the owner."""
        for channel in tuple(self._channels):
            if channel.gid == gid:
                self._close(channel)
        self._owner.handle_gone(gid)

    def _close(self, channel: Channel) -> None:
        for descriptor in (channel.socket.fileno(), channel.doorbell):
            del self._by_descriptor[descriptor]
            self.epoll.unregister(descriptor)
        self._channels.remove(channel)
        if self._routes.get(channel.gid) is channel:
            del self._routes[channel.gid]
        channel.close()
