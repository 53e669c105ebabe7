"""The channel between two contexts: memory with slots and rings, and the socket beside it.

`ChannelEnd` is what every channel has; `Channel` reads and writes the slots itself, and
`native_adapter` has one whose slots are the compiled engine's.
"""

import errno
import mmap
import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from urds.common.ending import is_ending, peer_process
from urds.common.errors import RemoteProtocolError, WireError
from urds.common.passed_files import receive_with_files, sealed_file, send_with_files
from urds.verbs.engine.packets import Packet
from urds.verbs.providers.shm.mappings import PeerMappings
from urds.verbs.providers.shm.messages import (
    DESCRIPTORS_MAX,
    DOORBELL,
    MAGIC,
    MESSAGE_BYTES_MAX,
    ChannelMessage,
    Hello,
    emit_message,
    parse_message,
)
from urds.verbs.providers.shm.slot_packets import emit_slot
from urds.verbs.providers.shm.slots import (
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


class ChannelEnd(ABC):
    """One end of a channel: its peer and its socket. All calls with the adapter's lock held."""

    def __init__(
        self,
        gid: bytes,
        connection: socket.socket,
        *,
        is_connector: bool,
        counters: ChannelCounters,
    ) -> None:
        """Take over the connection."""
        self.gid = gid
        self.socket = connection
        self.is_connector = is_connector
        self.is_open = True
        self._counters = counters
        self._pid = peer_process(connection)
        self._was_ending = False

    def note_wake_up(self) -> None:
        """Count a doorbell that was heard."""
        self._counters.wake_ups += 1

    @property
    @abstractmethod
    def is_placing(self) -> bool:
        """Whether the peer says that it is copying into our memory."""

    @property
    def is_gone(self) -> bool:
        """Whether the socket has ended: the last thing of a killed process that does."""
        if not self.is_open:
            return True
        poller = select.poll()
        poller.register(self.socket, select.POLLRDHUP)
        return bool(poller.poll(0))

    def look_for_end(self) -> bool:
        """Return whether the process was killed, as this look and the one before tell."""
        was_ending, self._was_ending = self._was_ending, is_ending(self._pid)
        return was_ending and self._was_ending

    def send_message(self, message: ChannelMessage, descriptors: Sequence[int] = ()) -> bool:
        """Send a message on the socket; return whether it was sent."""
        try:
            send_with_files(self.socket, emit_message(message), descriptors)
        except OSError:
            return False  # full, or the peer is gone: the end of the socket will tell
        return True

    @abstractmethod
    def close(self) -> None:
        """End our direction, and release memory and socket. Safe twice."""

    def abandon(self) -> None:
        """Release memory and socket; the peer is not told. Safe twice."""
        self.is_open = False
        self.socket.close()


End = TypeVar("End", bound=ChannelEnd)


class Channel(ChannelEnd):
    """One end of a channel whose slots are read and written here."""

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
        super().__init__(gid, connection, is_connector=is_connector, counters=counters)
        self.idle_looks = 0  # that found no slot, in a row
        # A slot is being read, or written: found so later, a signal handler's exception has cut
        # that short, and what the slot carried may be lost.
        self.is_reading = self.is_writing = False
        self.on_stir: Callable[[], None] | None = None  # a trimmed channel is written to
        self._mapping = mapping
        self._out_index = 0 if is_connector else 1
        self._directions = [_direction(mapping, 0), _direction(mapping, 1)]
        self.writer = SlotWriter(self._directions[self._out_index])
        self.reader = SlotReader(self._directions[1 - self._out_index])
        self.peer_mappings = PeerMappings(self.writer)
        self._looked_at = self._trimmed_at = 0  # slots written when it was seen idle last

    def write(self, packet: Packet) -> None:
        """Write one packet, for which there is room, and wake the reader if it sleeps."""
        self.is_writing = True
        self._counters.slots_sent += 1
        if self.on_stir is not None:
            on_stir, self.on_stir = self.on_stir, None
            on_stir()
        if self.writer.write(*emit_slot(packet)):
            self.ring_doorbell()
        self.is_writing = False

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

    @property
    def is_placing(self) -> bool:
        """Whether the peer says that it is copying into our memory."""
        return self.is_open and self.reader.is_placing

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
        super().abandon()
        self.on_stir = None
        self.peer_mappings.close()
        for direction in self._directions:
            direction.close()
        with suppress(BufferError):  # a payload is being copied: it goes with that view
            self._mapping.close()


# Makes the end of a channel: takes the peer's GID, the socket, the descriptor of the memory, which
# stays the caller's, and whether this side connects. Raises RemoteProtocolError for wrong memory.
MakeEnd = Callable[[bytes, socket.socket, int, bool], End]


def open_channel(
    gid: bytes, connection: socket.socket, *, own_gid: bytes, make: MakeEnd[End]
) -> End:
    """Make the memory of a channel to `gid` and send it. Raises OSError."""
    descriptors: list[int] = []
    try:
        descriptors.append(sealed_file("urds-verbs-channel", FILE_BYTES))
        hello = emit_message(Hello(MAGIC, RING_BYTES, own_gid))
        send_with_files(connection, hello, descriptors)
        return make(gid, connection, descriptors[0], True)
    except OSError:
        connection.close()
        raise
    finally:
        close_all(descriptors)


def accept_channel(
    hello: Hello, descriptors: Sequence[int], connection: socket.socket, *, make: MakeEnd[End]
) -> End:
    """Accept what a Hello brought. The descriptor is taken over, whatever happens.

    Raises RemoteProtocolError: rings of another size, memory that may shrink.
    """
    try:
        if hello.ring_bytes != RING_BYTES:
            raise RemoteProtocolError(f"rings of {hello.ring_bytes} bytes, not {RING_BYTES}")
        return make(hello.gid, connection, descriptors[0], False)
    finally:
        close_all(descriptors)


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
