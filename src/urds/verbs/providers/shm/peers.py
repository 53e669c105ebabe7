"""All peers of one context: who connects, who greets, who is gone.

One epoll watches everything: the listening socket, connections that have not greeted, and of each
channel its socket and its bell. Rings are read by `take_in`, whether a bell rang or not.
"""

import errno
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from urds.errors import RemoteProtocolError
from urds.verbs.providers.shm.channel import (
    Channel,
    ChannelCounters,
    accept_channel,
    hear,
    open_channel,
)
from urds.verbs.providers.shm.messages import Borrow, Decline, Hello, Lend, Message, Welcome
from urds.verbs.providers.shm.rendezvous import Rendezvous
from urds.verbs.providers.shm.ring import RingReader

FRAME_PACKET: Final = 1
CHANNELS_MAX: Final = 1024
STRANGERS_MAX: Final = 64  # connections that have not greeted
STRANGER_NS: Final = 5_000_000_000  # how long one may take
_FRAMES_PER_TURN: Final = 64
_RELEASE_BYTES: Final = 64 * 1024  # of frames that were taken: the writer gets their room back
_MESSAGES_PER_TURN: Final = 16
_MUTED_NS: Final = 100_000_000  # without a descriptor nobody can be let in; look again then


class Owner(Protocol):
    """What the adapter does with what peers say."""

    def handle_packet(self, gid: bytes, octets: bytes) -> None:
        """Take one packet."""

    def handle_borrow(self, channel: Channel, borrow: Borrow) -> None:
        """Answer a question for memory."""

    def handle_gone(self, gid: bytes) -> None:
        """React to a peer that is gone; its channels are closed."""


@dataclass(slots=True)
class _Stranger:
    connection: socket.socket
    until_ns: int


class Peers:
    """The channels of a context. All calls with the lock of the adapter held."""

    def __init__(
        self,
        gid: bytes,
        rendezvous: Rendezvous,
        owner: Owner,
        *,
        payload_bytes_max: int,
        now_ns: Callable[[], int],
    ) -> None:
        self.epoll = select.epoll()
        self.counters = ChannelCounters()
        self.strangers_refused = 0  # too many, too slow, or no greeting
        self._gid = gid
        self._rendezvous = rendezvous
        self._owner = owner
        self._payload_bytes_max = payload_bytes_max
        self._now_ns = now_ns
        self._routes: dict[bytes, Channel] = {}  # what is sent to a peer goes here
        self._channels: list[Channel] = []
        self._by_descriptor: dict[int, Channel] = {}
        self._strangers: dict[int, _Stranger] = {}
        self._muted_until_ns: int | None = None
        self.epoll.register(rendezvous.socket, select.EPOLLIN)

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[Channel]:
        return iter(tuple(self._channels))

    def find(self, gid: bytes) -> Channel | None:
        """Return the channel on which to send to a peer, if there is one."""
        return self._routes.get(gid)

    def route(self, gid: bytes) -> Channel:
        """Return the channel on which to send to a peer; make one if there is none.

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
                payload_bytes_max=self._payload_bytes_max,
                counters=self.counters,
            )
            self._routes[gid] = channel
            self._add(channel)
        return channel

    # -- what arrives

    def handle_ready(self, descriptors: Iterable[int]) -> None:
        """Serve the descriptors that epoll found ready."""
        for descriptor in descriptors:
            channel = self._by_descriptor.get(descriptor)
            if channel is not None:
                if descriptor == channel.bell:
                    channel.hear_bell()
                else:
                    self._hear_peer(channel)
            elif descriptor in self._strangers:
                self._hear_stranger(descriptor)
            elif descriptor == self._rendezvous.socket.fileno():
                self._let_in()

    def take_in(self) -> None:
        """Read every ring, a bounded number of frames each."""
        for channel in tuple(self._channels):
            self._read(channel, _FRAMES_PER_TURN)

    def fall_asleep(self) -> bool:
        """Ask all writers to ring; return whether no ring has anything."""
        for channel in tuple(self._channels):
            try:
                if channel.is_open and not channel.reader.fall_asleep():
                    self.awake()
                    return False
            except RemoteProtocolError:
                self.break_off(channel)
        return True

    def awake(self) -> None:
        """Tell all writers that nobody need ring."""
        for channel in self._channels:
            channel.reader.awake()

    def handle_time(self, now_ns: int) -> None:
        """Send strangers away who do not greet; look again at who waits to be let in."""
        if self._muted_until_ns is not None and now_ns >= self._muted_until_ns:
            self._muted_until_ns = None
            self.epoll.modify(self._rendezvous.socket, select.EPOLLIN)
        if self._strangers:
            for descriptor, stranger in list(self._strangers.items()):
                if now_ns >= stranger.until_ns:
                    self._send_away(descriptor)

    # -- ends

    def break_off(self, channel: Channel) -> None:
        """End everything with a peer that broke the protocol."""
        if channel.is_open:
            self.counters.peers_broke_protocol += 1
            self._lose(channel.gid)

    def break_off_reader(self, reader: RingReader) -> None:
        """End everything with the peer that writes this ring."""
        for channel in tuple(self._channels):
            if channel.reader is reader:
                self.break_off(channel)

    def close(self) -> None:
        """Close all channels; peers see that this context is gone."""
        for descriptor in list(self._strangers):
            self._send_away(descriptor)
        for channel in tuple(self._channels):
            self._close(channel)
        self.epoll.close()

    def abandon(self) -> None:
        """Close all descriptors in the child of a fork; the set they are watched in is shared."""
        self.epoll.close()
        for stranger in self._strangers.values():
            stranger.connection.close()
        for channel in self._channels:
            channel.close()
        self._strangers.clear()
        self._channels.clear()
        self._by_descriptor.clear()
        self._routes.clear()

    # -- inside

    def _add(self, channel: Channel) -> None:
        self._channels.append(channel)
        for descriptor in (channel.socket.fileno(), channel.bell):
            self._by_descriptor[descriptor] = channel
            self.epoll.register(descriptor, select.EPOLLIN)

    def _read(self, channel: Channel, frames_max: int) -> bool:
        """Hand on up to `frames_max` frames; return whether the ring is empty now."""
        try:
            for _ in range(frames_max):
                if not channel.is_open or (frame := channel.take()) is None:
                    return True
                kind, octets = frame
                if kind != FRAME_PACKET:
                    raise RemoteProtocolError(f"frame of kind {kind}")
                self._owner.handle_packet(channel.gid, octets)
                if channel.reader.held_bytes >= _RELEASE_BYTES:
                    channel.release()
        except RemoteProtocolError:
            self.break_off(channel)
            return True
        finally:
            channel.release()
        return False

    def _hear_peer(self, channel: Channel) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if not channel.is_open:
                return
            try:
                heard = hear(channel.socket)
                if heard is None:
                    return
                self._handle_message(channel, *heard)
            except RemoteProtocolError:
                self.break_off(channel)
            except EOFError:
                # What it said before it went counts: at most a ring full, it writes no more.
                while not self._read(channel, _FRAMES_PER_TURN):
                    pass
                self._depart(channel)

    def _depart(self, channel: Channel) -> None:
        if channel.is_open:
            self.counters.peers_gone += 1
            self._lose(channel.gid)

    def _handle_message(self, channel: Channel, message: Message, descriptors: list[int]) -> None:
        try:
            if isinstance(message, Welcome):
                if not channel.is_connector or message.gid != channel.gid:
                    raise RemoteProtocolError(f"welcome from {message.gid.hex()}")
            elif isinstance(message, Borrow):
                self._owner.handle_borrow(channel, message)
            elif isinstance(message, Lend):
                channel.borrowings.take(message, descriptors[0])
            elif isinstance(message, Decline):
                channel.borrowings.decline(message)
            else:
                raise RemoteProtocolError("a second greeting")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _let_in(self) -> None:
        try:
            while (connection := self._rendezvous.accept()) is not None:
                if len(self._strangers) >= STRANGERS_MAX or len(self) >= CHANNELS_MAX:
                    self.strangers_refused += 1
                    connection.close()
                    continue
                stranger = _Stranger(connection, self._now_ns() + STRANGER_NS)
                self._strangers[connection.fileno()] = stranger
                self.epoll.register(connection, select.EPOLLIN)
                self._hear_stranger(connection.fileno())
        except OSError:
            # No descriptor is free: they wait in the backlog, and we do not run in a circle.
            self._muted_until_ns = self._now_ns() + _MUTED_NS
            self.epoll.modify(self._rendezvous.socket, 0)

    def _hear_stranger(self, descriptor: int) -> None:
        connection = self._strangers[descriptor].connection
        try:
            heard = hear(connection)
            if heard is None:
                return
            channel = self._greet(connection, *heard)
        except (RemoteProtocolError, EOFError):
            self._send_away(descriptor)
            return
        # The socket lives on in the channel.
        del self._strangers[descriptor]
        self.epoll.unregister(descriptor)
        self._add(channel)
        self._routes.setdefault(channel.gid, channel)
        channel.say(Welcome(self._gid))

    def _greet(
        self, connection: socket.socket, message: Message, descriptors: list[int]
    ) -> Channel:
        if not isinstance(message, Hello):
            for descriptor in descriptors:
                os.close(descriptor)
            raise RemoteProtocolError(f"{type(message).__name__} before the greeting")
        is_known = any(
            channel.gid == message.gid and not channel.is_connector for channel in self._channels
        )
        if is_known or message.gid == self._gid:
            for descriptor in descriptors:
                os.close(descriptor)
            raise RemoteProtocolError(f"{message.gid.hex()} has a channel")
        return accept_channel(
            message,
            descriptors,
            connection,
            payload_bytes_max=self._payload_bytes_max,
            counters=self.counters,
        )

    def _send_away(self, descriptor: int) -> None:
        stranger = self._strangers.pop(descriptor)
        self.strangers_refused += 1
        self.epoll.unregister(descriptor)
        stranger.connection.close()

    def _lose(self, gid: bytes) -> None:
        """Close every channel with a peer and tell."""
        for channel in tuple(self._channels):
            if channel.gid == gid:
                self._close(channel)
        self._owner.handle_gone(gid)

    def _close(self, channel: Channel) -> None:
        for descriptor in (channel.socket.fileno(), channel.bell):
            del self._by_descriptor[descriptor]
            self.epoll.unregister(descriptor)
        self._channels.remove(channel)
        if self._routes.get(channel.gid) is channel:
            del self._routes[channel.gid]
        channel.close()
