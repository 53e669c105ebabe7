"""All peers of one context, and the channels to them: connecting, greeting, leaving.

A channel joins two device contexts: one file of memory, with slots and a ring each way, and a
socket. Slots carry packets. The socket carries the few messages that come with descriptors, and
doorbells, each a message of one byte for a sleeping peer; its end tells that the peer is gone. The
context that connects makes the memory and sends it in its Hello; it may write slots before the
other has looked.

When two contexts connect to each other at the same moment there are two channels. Each side
keeps sending on the one it used first, so nothing is reordered.

A channel whose slots have all been read for a second gives their memory back: the writer does,
since it alone knows that none is under way.

The adapter's loop watches the listening socket, pending connections and the socket of each channel.
Slots are read by `read_slots`, whether a doorbell rang or not.
"""

import errno
import mmap
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, Generic, Protocol

from urds.common.errors import RemoteProtocolError
from urds.common.progress import ProgressLoop
from urds.common.timers import Timer
from urds.verbs.engine.packets import Packet
from urds.verbs.providers.shm.channels import (
    FILE_BYTES,
    Channel,
    ChannelCounters,
    ChannelEnd,
    End,
    accept_channel,
    close_all,
    open_channel,
    receive_message,
)
from urds.verbs.providers.shm.mappings import MappingPeer, map_sealed
from urds.verbs.providers.shm.messages import (
    ChannelMessage,
    Doorbell,
    Hello,
    MapReject,
    MapReply,
    MapRequest,
    Welcome,
)
from urds.verbs.providers.shm.rendezvous import Rendezvous
from urds.verbs.providers.shm.slot_packets import parse_slot

CHANNELS_MAX: Final = 1024
PENDING_MAX: Final = 64  # connections without a Hello
PENDING_NS: Final = 5_000_000_000  # how long one may take
_SLOTS_PER_PASS: Final = 64
IDLE_NS: Final = 1_000_000_000  # after which a channel that was read gives its memory back
_MESSAGES_PER_PASS: Final = 16
_MUTED_NS: Final = 100_000_000  # pause of accepting without a free descriptor


class PeersOwner(Protocol):
    """What the adapter does with what arrives from peers."""

    @property
    def batch(self) -> AbstractContextManager[bool]:
        """The context in which packets are processed."""

    @property
    def flushing(self) -> AbstractContextManager[None]:
        """The context around it, at whose end is sent what packets caused."""

    def handle_packet(self, gid: bytes, packet: Packet) -> None:
        """Process one packet; its payload is not used after the return."""

    def handle_map_request(self, channel: ChannelEnd, request: MapRequest) -> None:
        """Answer a request to map memory."""

    def handle_gone(self, gid: bytes, *, is_cut: bool = False) -> None:
        """React to a peer that is gone, or was cut off by this side; its channels are closed."""


class Peers(ABC, Generic[End]):
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
        self._routes: dict[bytes, End] = {}  # what is sent to a peer goes here
        self._channels: list[End] = []
        # Connections without a greeting, and the timer of each.
        self._pending: dict[socket.socket, Timer] = {}
        self._trim_timer: Timer | None = None
        loop.watch(rendezvous.socket.fileno(), select.EPOLLIN, self._accept_connections)

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[End]:
        return iter(tuple(self._channels))

    def find(self, gid: bytes) -> End | None:
        """Return the channel for sending to a peer, if there is one."""
        return self._routes.get(gid)

    def route(self, gid: bytes) -> End:
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
                make=self._make_end,
            )
            self._routes[gid] = channel
            self._add(channel)
        return channel

    # -- what a kind of channels gives

    @abstractmethod
    def _make_end(
        self, gid: bytes, connection: socket.socket, memory: int, is_connector: bool
    ) -> End:
        """Make the end of a channel; the descriptor of its memory stays the caller's.

        Raises RemoteProtocolError for memory that is no channel's, OSError.
        """

    @abstractmethod
    def read_slots(self) -> None:
        """Read every channel, a bounded number of slots each."""

    @abstractmethod
    def arm_doorbell(self) -> bool:
        """Ask all writers to ring; return whether no channel has anything."""

    @abstractmethod
    def disarm_doorbell(self) -> None:
        """Tell all writers that no doorbell is needed."""

    @abstractmethod
    def trim(self) -> None:
        """Give memory of idle channels back; plan the next look while others are busy."""

    @abstractmethod
    def _read(self, channel: End) -> bool:
        """Deliver a bounded number of slots; return whether all were read."""

    @abstractmethod
    def _take_answer(
        self, channel: End, answer: MapReply | MapReject, descriptors: list[int]
    ) -> None:
        """Take the answer on a request to map memory. Raises RemoteProtocolError."""

    # -- ends

    def close_peer(self, channel: ChannelEnd) -> None:
        """Close all channels with a peer after a protocol error."""
        if channel.is_open:
            self.counters.peers_broke_protocol += 1
            self._lose(channel.gid, is_cut=True)

    def close_mapping_peer(self, peer: MappingPeer) -> None:
        """Close all channels with a peer that is one of `self`."""
        for channel in tuple(self._channels):
            if channel is peer:
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
            channel.abandon()
        self._pending.clear()
        self._channels.clear()
        self._routes.clear()

    # -- inside

    def _add(self, channel: End) -> None:
        self._channels.append(channel)
        receive = partial(self._receive_messages, channel)
        self._loop.watch(channel.socket.fileno(), select.EPOLLIN, receive)

    def _handle_gone(self, channel: ChannelEnd) -> None:
        """Close the channels of a peer that is gone and wrote no more than was read."""
        if channel.is_open:
            self.counters.peers_gone += 1
            self._lose(channel.gid, is_cut=False)

    def _plan_trim(self) -> None:
        """Look at the channels again in a second, one of which has been written to."""
        if self._trim_timer is None:
            self._trim_timer = self._loop.call_at(time.monotonic_ns() + IDLE_NS, self.trim)

    def _receive_messages(self, channel: End, _events: int) -> None:
        with self._owner.flushing, self._owner.batch:
            for _ in range(_MESSAGES_PER_PASS):
                if not channel.is_open or not self._receive_one(channel):
                    return

    def _receive_one(self, channel: End) -> bool:
        """Handle one message; return whether another may be there at once.

        Behind a doorbell there rarely is one, and if there is the socket stays ready.
        """
        try:
            heard = receive_message(channel.socket)
            if heard is None:
                return False
            self._handle_message(channel, *heard)
            return not isinstance(heard[0], Doorbell)
        except RemoteProtocolError:
            self.close_peer(channel)
        except EOFError:
            # What it wrote before it ended counts: at most what there is room for.
            while not self._read(channel):
                pass
            self._handle_gone(channel)
        return True

    def _handle_message(
        self, channel: End, message: ChannelMessage, descriptors: list[int]
    ) -> None:
        try:
            if isinstance(message, Doorbell):
                channel.note_wake_up()
            elif isinstance(message, Welcome):
                if not channel.is_connector or message.gid != channel.gid:
                    raise RemoteProtocolError(f"welcome from {message.gid.hex()}")
            elif isinstance(message, MapRequest):
                self._owner.handle_map_request(channel, message)
            elif isinstance(message, MapReply | MapReject):
                self._take_answer(channel, message, descriptors)
            else:
                raise RemoteProtocolError("a second greeting")
        finally:
            close_all(descriptors)

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
    ) -> End:
        if not isinstance(message, Hello):
            close_all(descriptors)
            raise RemoteProtocolError(f"{type(message).__name__} before the greeting")
        is_known = any(
            channel.gid == message.gid and not channel.is_connector for channel in self._channels
        )
        if is_known or message.gid == self._gid:
            close_all(descriptors)
            raise RemoteProtocolError(f"{message.gid.hex()} has a channel")
        return accept_channel(message, descriptors, connection, make=self._make_end)

    def _drop_pending(self, connection: socket.socket) -> None:
        self._pending.pop(connection).cancel()
        self.pending_dropped += 1
        self._loop.unwatch(connection.fileno())
        connection.close()

    def _lose(self, gid: bytes, *, is_cut: bool) -> None:
        """Close every channel with a peer and tell the owner."""
        for channel in tuple(self._channels):
            if channel.gid == gid:
                self._close(channel)
        self._owner.handle_gone(gid, is_cut=is_cut)

    def _close(self, channel: End) -> None:
        self._loop.unwatch(channel.socket.fileno())
        self._channels.remove(channel)
        if self._routes.get(channel.gid) is channel:
            del self._routes[channel.gid]
        channel.close()


class SlotPeers(Peers[Channel]):
    """The peers of a context that reads and writes the slots of its channels itself."""

    def read_slots(self) -> None:
        """Read every channel, a bounded number of slots each."""
        for channel in tuple(self._channels):
            if self._read(channel) and channel.is_open and channel.reader.is_ended:
                self._handle_gone(channel)

    def arm_doorbell(self) -> bool:
        """Ask all writers to ring; return whether no channel has anything."""
        for channel in self._channels:
            if not channel.arm_doorbell():
                self.disarm_doorbell()
                return False
        return True

    def disarm_doorbell(self) -> None:
        """Tell all writers that no doorbell is needed."""
        for channel in self._channels:
            channel.reader.disarm_doorbell()

    def trim(self) -> None:
        """Give memory of idle channels back; plan the next look while others are busy."""
        self._trim_timer = None
        for channel in tuple(self._channels):
            try:
                if channel.trim():
                    channel.on_stir = self._plan_trim
                else:
                    self._plan_trim()
            except RemoteProtocolError:
                self.close_peer(channel)

    def _make_end(
        self, gid: bytes, connection: socket.socket, memory: int, is_connector: bool
    ) -> Channel:
        map_file = mmap.mmap if is_connector else map_sealed
        mapping = map_file(memory, FILE_BYTES)
        return Channel(gid, connection, mapping, is_connector=is_connector, counters=self.counters)

    def _add(self, channel: Channel) -> None:
        super()._add(channel)
        channel.on_stir = self._plan_trim

    def _read(self, channel: Channel) -> bool:
        if channel.is_reading or channel.is_writing:
            self._lose(channel.gid, is_cut=True)
            return True
        try:
            for count in range(_SLOTS_PER_PASS):
                channel.is_reading = True
                if not channel.is_open or (slot := channel.take()) is None:
                    channel.is_reading = False
                    channel.idle_looks = 0 if count else channel.idle_looks + 1
                    return True
                self._owner.handle_packet(channel.gid, parse_slot(slot))
                channel.free()
                channel.is_reading = False
        except RemoteProtocolError:
            self.close_peer(channel)
            return True
        channel.idle_looks = 0
        return False

    def _take_answer(
        self, channel: Channel, answer: MapReply | MapReject, descriptors: list[int]
    ) -> None:
        if isinstance(answer, MapReply):
            channel.peer_mappings.take(answer, descriptors[0])
        else:
            channel.peer_mappings.reject(answer)
