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
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from urds.common.errors import RemoteProtocolError, WireError
from urds.common.passed_files import receive_with_files, sealed_file, send_with_files
from urds.common.progress import ProgressLoop
from urds.common.timers import Timer
from urds.verbs.engine.packets import Packet
from urds.verbs.providers.shm.mappings import Borrower, PeerMappings, map_sealed
from urds.verbs.providers.shm.messages import (
    DESCRIPTORS_MAX,
    DOORBELL,
    MAGIC,
    MESSAGE_BYTES_MAX,
    ChannelMessage,
    Doorbell,
    Hello,
    MapReject,
    MapReply,
    MapRequest,
    Welcome,
    emit_message,
    parse_message,
)
from urds.verbs.providers.shm.rendezvous import Rendezvous
from urds.verbs.providers.shm.slot_packets import emit_slot, packets_of, parse_slot
from urds.verbs.providers.shm.slots import (
    BURST,
    PAYLOAD_BYTES_MAX,
    RING_BYTES,
    SLOTS_BYTES,
    WORDS_BYTES,
    Direction,
    Slot,
    SlotReader,
    SlotWriter,
)

MTU_BYTES: Final = PAYLOAD_BYTES_MAX
DIRECTION_BYTES: Final = SLOTS_BYTES + RING_BYTES
FILE_BYTES: Final = 2 * (WORDS_BYTES + DIRECTION_BYTES)
CHANNELS_MAX: Final = 1024
PENDING_MAX: Final = 64  # connections without a Hello
PENDING_NS: Final = 5_000_000_000  # how long one may take
_SLOTS_PER_PASS: Final = 64
IDLE_NS: Final = 1_000_000_000  # after which a channel that was read gives its memory back
_MESSAGES_PER_PASS: Final = 16
_MUTED_NS: Final = 100_000_000  # pause of accepting without a free descriptor


@dataclass(slots=True)
class ChannelCounters:
    """Counters of all channels of a context."""

    slots_sent: int = 0
    slots_received: int = 0
    doorbells_rung: int = 0  # the peer slept, or waited for room
    wake_ups: int = 0  # this side's doorbell rang
    waits_for_room: int = 0  # a packet found no room
    trims: int = 0  # memory of a direction was given back
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
        is_connector: bool,
        counters: ChannelCounters,
    ) -> None:
        """Take over the connection and the mapping."""
        self.gid = gid
        self.socket = connection
        self.is_connector = is_connector
        self.is_open = True
        self.idle_looks = 0  # that found no slot, in a row
        self.on_stir: Callable[[], None] | None = None  # a trimmed channel is written to
        self._counters = counters
        self._mapping = mapping
        self._out_index = 0 if is_connector else 1
        self._directions = [_direction(mapping, 0), _direction(mapping, 1)]
        self.writer = SlotWriter(self._directions[self._out_index])
        self.reader = SlotReader(self._directions[1 - self._out_index])
        self.peer_mappings = PeerMappings(self.writer)
        self._looked_at = self._trimmed_at = 0  # slots written when it was seen idle last

    def write(self, packet: Packet) -> None:
        """Write one packet, for which there is room, and wake the reader if it sleeps."""
        self._counters.slots_sent += 1
        if self.on_stir is not None:
            on_stir, self.on_stir = self.on_stir, None
            on_stir()
        if self.writer.write(*emit_slot(packet)):
            self.ring_doorbell()

    def wait_for_room(self, payload_bytes: int) -> bool:
        """Return whether there is room; if not, the doorbell rings when there may be.

        Raises RemoteProtocolError.
        """
        if self.writer.has_room(payload_bytes) or self.writer.wait_for_room(payload_bytes):
            return True
        self._counters.waits_for_room += 1
        return False

    def take(self) -> Slot | None:
        """Return the next slot, good until `free`. Raises RemoteProtocolError."""
        slot = self.reader.take()
        if slot is not None:
            self._counters.slots_received += 1
        return slot

    def free(self) -> None:
        """Be done with all slots that were taken; no effect on a closed channel."""
        if self.is_open and self.reader.free():
            self.ring_doorbell()

    def arm_doorbell(self) -> bool:
        """Ask for a doorbell; return whether there is nothing to process instead."""
        if self.reader.tell_freed():
            self.ring_doorbell()
        return self.reader.arm_doorbell()

    def ring_doorbell(self) -> None:
        """Wake the peer."""
        self._counters.doorbells_rung += 1
        # EAGAIN: it has many to read. EPIPE: the end of the socket will tell.
        with suppress(OSError):
            self.socket.send(DOORBELL, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def note_wake_up(self) -> None:
        """Count a doorbell that was heard."""
        self._counters.wake_ups += 1

    @property
    def is_placing(self) -> bool:
        """Whether the peer says that it is copying into our memory."""
        return self.is_open and self.reader.is_placing

    @property
    def is_gone(self) -> bool:
        """Whether the socket has ended, as that of a killed process does at once."""
        if not self.is_open:
            return True
        poller = select.poll()
        poller.register(self.socket, select.POLLRDHUP)
        return bool(poller.poll(0))

    def trim(self) -> bool:
        """Give the memory of our direction back if it idles; return whether there is none left.

        It does on the second call without a slot between both. Raises RemoteProtocolError.
        """
        published = self.writer.published
        if published == self._trimmed_at:
            return True
        if published != self._looked_at or not self.writer.is_drained:
            self._looked_at = published
            return False
        start = 2 * WORDS_BYTES + self._out_index * DIRECTION_BYTES
        # Any slot reads as 0 from here on, which is no ordinal; numbers and positions go on.
        with suppress(OSError):  # the memory stays, then
            self._mapping.madvise(mmap.MADV_REMOVE, start, DIRECTION_BYTES)
        self._trimmed_at = published
        self._counters.trims += 1
        return True

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
        """End our direction, and release memory and socket. Safe twice."""
        if not self.is_open:
            return
        self.writer.end()
        self.ring_doorbell()
        self.abandon()

    def abandon(self) -> None:
        """Release memory and socket; the peer is not told. Safe twice."""
        if not self.is_open:
            return
        self.is_open = False
        self.on_stir = None
        self.peer_mappings.close()
        for direction in self._directions:
            direction.close()
        with suppress(BufferError):  # a payload is being copied: it goes with that view
            self._mapping.close()
        self.socket.close()


OnMemory = Callable[[Channel, int], None]  # takes a new channel and the descriptor of its memory


def open_channel(
    gid: bytes,
    connection: socket.socket,
    *,
    own_gid: bytes,
    counters: ChannelCounters,
    on_memory: OnMemory,
) -> Channel:
    """Make the memory of a channel to `gid` and send it. Raises OSError."""
    descriptors: list[int] = []
    try:
        descriptors.append(sealed_file("urds-verbs-channel", FILE_BYTES))
        mapping = mmap.mmap(descriptors[0], FILE_BYTES)
        hello = emit_message(Hello(MAGIC, RING_BYTES, own_gid))
        send_with_files(connection, hello, descriptors)
        channel = Channel(gid, connection, mapping, is_connector=True, counters=counters)
        on_memory(channel, descriptors[0])
    except OSError:
        connection.close()
        raise
    finally:
        close_all(descriptors)
    return channel


def accept_channel(
    hello: Hello,
    descriptors: Sequence[int],
    connection: socket.socket,
    *,
    counters: ChannelCounters,
    on_memory: OnMemory,
) -> Channel:
    """Accept what a Hello brought. The descriptor is taken over, whatever happens.

    Raises RemoteProtocolError: rings of another size, memory that may shrink.
    """
    try:
        if hello.ring_bytes != RING_BYTES:
            raise RemoteProtocolError(f"rings of {hello.ring_bytes} bytes, not {RING_BYTES}")
        mapping = map_sealed(descriptors[0], FILE_BYTES)
        channel = Channel(hello.gid, connection, mapping, is_connector=False, counters=counters)
        on_memory(channel, descriptors[0])
    finally:
        close_all(descriptors)
    return channel


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
        close_all(descriptors)
        raise RemoteProtocolError(str(error)) from error
    except (RemoteProtocolError, EOFError):
        close_all(descriptors)
        raise


def _direction(mapping: mmap.mmap, index: int) -> Direction:
    """Return the memory of direction 0 (connector to acceptor) or 1."""
    words = index * WORDS_BYTES
    slots = 2 * WORDS_BYTES + index * DIRECTION_BYTES
    ring = slots + SLOTS_BYTES
    with memoryview(mapping) as whole:
        return Direction(
            whole[words : words + WORDS_BYTES], whole[slots:ring], whole[ring : ring + RING_BYTES]
        )


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for descriptor in descriptors:
        os.close(descriptor)


class PeersOwner(Protocol):
    """What the adapter does with what arrives from peers."""

    def batch(self) -> AbstractContextManager[None]:
        """Return the context in which packets are processed, and sent at its end."""

    def handle_packet(self, gid: bytes, packet: Packet) -> None:
        """Process one packet; its payload is not used after the return."""

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
        self._trim_timer: Timer | None = None
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
                gid,
                self._rendezvous.connect(gid),
                own_gid=self._gid,
                counters=self.counters,
                on_memory=self._note_memory,
            )
            self._routes[gid] = channel
            self._add(channel)
        return channel

    # -- what arrives

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

    # -- ends

    def close_peer(self, channel: Channel) -> None:
        """Close all channels with a peer after a protocol error."""
        if channel.is_open:
            self.counters.peers_broke_protocol += 1
            self._lose(channel.gid)

    def close_borrower(self, borrower: Borrower) -> None:
        """Close all channels with a peer that is one of `self`."""
        for channel in tuple(self._channels):
            if channel is borrower:
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

    def _note_memory(self, channel: Channel, memory: int) -> None:
        """React to the memory of a new channel, whose descriptor is closed after the return."""

    def _add(self, channel: Channel) -> None:
        self._channels.append(channel)
        receive = partial(self._receive_messages, channel)
        self._loop.watch(channel.socket.fileno(), select.EPOLLIN, receive)
        channel.on_stir = self._plan_trim

    def _read(self, channel: Channel) -> bool:
        """Deliver a bounded number of slots; return whether all were read."""
        try:
            for count in range(_SLOTS_PER_PASS):
                if not channel.is_open or (slot := channel.take()) is None:
                    channel.idle_looks = 0 if count else channel.idle_looks + 1
                    return True
                if slot.fields[0] != BURST:
                    self._owner.handle_packet(channel.gid, parse_slot(slot))
                else:
                    for packet in packets_of(slot):
                        self._owner.handle_packet(channel.gid, packet)
                channel.free()
        except RemoteProtocolError:
            self.close_peer(channel)
            return True
        channel.idle_looks = 0
        return False

    def _handle_gone(self, channel: Channel) -> None:
        """Close the channels of a peer that is gone and wrote no more than was read."""
        if channel.is_open:
            self.counters.peers_gone += 1
            self._lose(channel.gid)

    # -- memory of idle channels

    def _plan_trim(self) -> None:
        """Look at the channels again in a second, one of which has been written to."""
        if self._trim_timer is None:
            self._trim_timer = self._loop.call_at(time.monotonic_ns() + IDLE_NS, self.trim)

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

    def _receive_messages(self, channel: Channel, _events: int) -> None:
        with self._owner.batch():
            for _ in range(_MESSAGES_PER_PASS):
                if not channel.is_open or not self._receive_one(channel):
                    return

    def _receive_one(self, channel: Channel) -> bool:
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
        self, channel: Channel, message: ChannelMessage, descriptors: list[int]
    ) -> None:
        try:
            if isinstance(message, Doorbell):
                channel.note_wake_up()
            elif isinstance(message, Welcome):
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
            on_memory=self._note_memory,
        )

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
        self._channels.remove(channel)
        if self._routes.get(channel.gid) is channel:
            del self._routes[channel.gid]
        channel.close()
