"""What arrives: octets in published space, read by the application in the order of their coming.

Published stretches are filled strictly in order, whatever memory they are of, so a data message
needs no address: its octets are the next ones. Where they landed is noted as stretches, neighbours
as one, and read from there in one copy.

`expect` puts memory of the application behind all that is published: octets that arrive there are
read by arriving. It has one expectation at a time, which the caller ends:

    | arrived, not read | published, not filled | the expected memory from `ahead` on |
    |<--------------- ahead: copied with `receive_into` -->|<-- lands in place -->|

Meanwhile `receive_into` gives the octets ahead and nothing behind them. What is published cannot
be taken back: an expectation that ends early leaves its memory in the window until the peer has
filled it, and what arrives there later is read with `receive_into` like everything else.
Source: rsocket.md 4, 6, 18 (rule 2b).
"""

from typing import Final

from urds.errors import LocalProtocolError, RemoteProtocolError
from urds.rsocket.stream.areas import Area, Stretch
from urds.rsocket.stream.publishing import Publishing
from urds.rsocket.stream.records import (
    DIRECT_BYTES_MIN,
    LENGTH_MAX,
    Memory,
    MemorySource,
    StreamSettings,
    StreamStats,
)

HELD_BYTES_MAX: Final = 1 << 18
EDGES_MIN: Final = 4  # messages in a row that end where a piece ends: space is what stops the peer


class Window(Publishing):
    """What one stream receives."""

    __slots__ = (
        "_ahead",
        "_arrived",
        "_edges",
        "_expected",
        "_held_wait_bytes",
        "_landed",
        "_message_ends",
        "_messages_received",
        "_stretches",
        "readable_bytes",
    )

    def __init__(
        self,
        settings: StreamSettings,
        source: MemorySource,
        memory: Memory,
        start: int,
        window_bytes: int,
        stats: StreamStats,
    ) -> None:
        super().__init__(settings, source, memory, start, window_bytes, stats)
        self.readable_bytes = 0
        self._stretches: list[Stretch] = []  # arrived and not read, in order
        self._arrived = 0  # octets since the beginning
        self._edges = 0  # messages in a row that ended where a piece ends
        self._held_wait_bytes = settings.held_wait_bytes
        self._messages_received = 0
        self._message_ends: list[int] = []  # of messages not read, in octets like `_arrived`
        self._expected: Area | None = None
        self._ahead = 0  # octets to be read before those of `_expected`
        self._landed = 0  # octets in `_expected`

    # -- what arrives

    def take_message(self, byte_count: int) -> None:
        """Take the word of a data message: its octets have landed.

        Raises RemoteProtocolError for a message without a credit, without octets, with more than
        was published, or beyond the end of a piece whose memory does not continue.
        """
        if self._messages_received >= self._limit:
            raise RemoteProtocolError(f"message {self._messages_received} without a credit")
        if not 0 < byte_count <= self._unfilled_octets:
            raise RemoteProtocolError(
                f"message of {byte_count} octets, published are {self._unfilled_octets}"
            )
        self._messages_received += 1
        self._arrived += byte_count
        self._message_ends.append(self._arrived)
        self._unfilled_octets -= byte_count
        stats = self._stats
        stats.messages_received += 1
        stats.octets_received += byte_count
        piece = self._unfilled[0]
        if byte_count < piece.byte_count:
            self._land(piece.area, piece.offset, byte_count)
            piece.offset += byte_count
            piece.byte_count -= byte_count
            self._edges = 0
        else:
            self._fill_pieces(byte_count)

    def _fill_pieces(self, byte_count: int) -> None:
        """Fill the first piece to its end, and more."""
        unfilled = self._unfilled
        while True:
            piece = unfilled[0]
            taken = min(byte_count, piece.byte_count)
            self._land(piece.area, piece.offset, taken)
            piece.offset += taken
            piece.byte_count -= taken
            byte_count -= taken
            if not piece.byte_count:
                del unfilled[0]
            if not byte_count:
                break
            if not piece.is_continued_by(unfilled[0]):
                raise RemoteProtocolError(f"message goes {byte_count} octets beyond its piece")
        # On a long way something is always published that the peer does not know of yet: that it
        # stops for space shows by where its messages end.
        self._edges = 0 if piece.byte_count else self._edges + 1
        self._is_full = self._is_full or not unfilled or self._edges >= EDGES_MIN
        self.may_be_due = True

    def _land(self, area: Area, offset: int, byte_count: int) -> None:
        """Note octets that are to be read, or are by having arrived where they are expected."""
        stretches = self._stretches
        if area is self._expected:
            self._landed += byte_count
            self._stats.octets_direct += byte_count
            if not stretches:
                self._free(area, byte_count)
                return
        else:
            self.readable_bytes += byte_count
        if stretches:
            last = stretches[-1]
            if last.area is area and last.offset + last.byte_count == offset:
                last.byte_count += byte_count
                return
        stretches.append(Stretch(area, offset, byte_count))

    def count_update(self) -> None:
        """Count a message that costs a credit and has nothing to read.

        The original does not, which costs it a credit for ever. Raises RemoteProtocolError for a
        message without a credit.
        """
        if not self._is_own_side:
            return
        if self._messages_received >= self._limit:
            raise RemoteProtocolError(f"message {self._messages_received} without a credit")
        self._messages_received += 1
        self._messages_read += 1
        self.may_be_due = True

    # -- what is read

    def receive_into(self, view: memoryview, *, peek: bool) -> int:
        """Copy octets that are to be read, and free their space unless `peek`."""
        wanted = len(view)
        if self._expected is not None and wanted > self._ahead:
            wanted = self._ahead
        stretches = self._stretches
        if not stretches or not wanted:
            return 0
        first = stretches[0]
        if wanted <= first.byte_count and not peek:
            start = first.offset
            view[:wanted] = first.area.view[start : start + wanted]
            self._consume(first, wanted)
            return wanted
        done = 0
        for stretch in stretches if peek else list(stretches):
            taken = min(stretch.byte_count, wanted - done)
            start = stretch.offset
            view[done : done + taken] = stretch.area.view[start : start + taken]
            done += taken
            if not peek:
                self._consume(stretch, taken)
            if done == wanted:
                break
        return done

    def receive(self, byte_count_max: int, *, peek: bool) -> bytes:
        """Return octets that are to be read as `receive_into`, in one copy."""
        left = min(byte_count_max, self.readable_bytes)
        if self._expected is not None:
            left = min(left, self._ahead)
        taken, parts = [], []
        for stretch in self._stretches:
            if not left:
                break
            byte_count = min(stretch.byte_count, left)
            left -= byte_count
            taken.append((stretch, byte_count))
            parts.append(stretch.area.view[stretch.offset : stretch.offset + byte_count])
        octets = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        if not peek:
            for stretch, byte_count in taken:
                self._consume(stretch, byte_count)
        return octets

    def _consume(self, stretch: Stretch, byte_count: int) -> None:
        """Note that octets of the first stretch were copied out."""
        self.readable_bytes -= byte_count
        self._stats.octets_copied_out += byte_count
        stretch.offset += byte_count
        stretch.byte_count -= byte_count
        if not stretch.byte_count:
            del self._stretches[0]
        self._free(stretch.area, byte_count)
        if self._expected is not None:
            self._ahead -= byte_count
            self._skip_landed()
        if self._is_full and not self.readable_bytes:
            self._consider_growth()

    def _skip_landed(self) -> None:
        """Read what landed where it is expected, once all before it is read."""
        if self._stretches and self._stretches[0].area is self._expected:
            stretch = self._stretches.pop(0)
            self._free(stretch.area, stretch.byte_count)

    def _free(self, area: Area, byte_count: int) -> None:
        """Note that the next octets in order are read."""
        area.free += byte_count
        if area.is_left and area.free == area.byte_count:
            self._grown.remove(area.memory)
            self._source.release(area.memory)
        self._read = read = self._read + byte_count
        ends = self._message_ends
        if ends and ends[0] <= read:
            count = 1
            while count < len(ends) and ends[count] <= read:
                count += 1
            del ends[:count]
            self._messages_read += count
        if area.free >= area.step or self._messages_read >= self._threshold:
            self.may_be_due = True

    # -- direct receive

    def expect(self, memory: Memory, byte_count: int) -> int:
        """Let octets of a wait for `byte_count` of them arrive in `memory`, at their place.

        Returns from which offset on they do; `byte_count` if it is not worth while, and then
        nothing is expected. Raises LocalProtocolError while another expectation stands.
        """
        if self._expected is not None:
            raise LocalProtocolError("another receive is expected already")
        self._hold_back(byte_count)
        ahead = self.readable_bytes + self._unfilled_octets
        rest = byte_count - ahead
        if not DIRECT_BYTES_MIN <= rest <= LENGTH_MAX or self.is_stopped:
            return byte_count
        area = Area(memory, ahead, rest, rest)
        area.free = 0
        self._expected, self._expected_piece = area, Stretch(area, ahead, rest)
        self._ahead, self._landed = ahead, 0
        self.may_be_due = True
        return ahead

    def _hold_back(self, byte_count: int) -> None:
        """Publish less of the window until a long wait is over: an eighth of what it waits for.

        More would be copied instead of arriving in place at the next one. Less would leave the
        peer idle between two waits, which costs shorter waits more than the copy.
        """
        if byte_count >= self._held_wait_bytes:
            self._held_until = self._read + byte_count
            self._held_bytes = min(byte_count // 8, HELD_BYTES_MAX)

    @property
    def expected_left(self) -> int:
        """Return how many octets have yet to arrive in the expected memory."""
        return 0 if self._expected is None else self._expected.byte_count - self._landed

    def end_expect(self) -> int:
        """End the expectation; return how many octets arrived in place, and so are read.

        While octets ahead are not read these are none: `receive_into` gives them in their turn.
        """
        area, self._expected, self._expected_piece = self._expected, None, None
        if area is None:
            return 0
        if self._ahead:
            self.readable_bytes += self._landed
            self._stats.octets_direct -= self._landed
            return 0
        return self._landed

    def holds(self, memory: Memory) -> bool:
        """Return whether the peer may still write there, or unread octets lie there."""
        end = memory.address + memory.view.nbytes
        return any(
            area.memory.address < end
            and memory.address < area.memory.address + area.memory.view.nbytes
            for area in {stretch.area for stretch in (*self._unfilled, *self._stretches)}
        )

    def close(self) -> None:
        """Forget everything and give back what the window has grown into."""
        self.stop()
        self._stretches.clear()
        self._unfilled.clear()
        self.readable_bytes = 0
        self._expected = None
        for memory in self._grown:
            self._source.release(memory)
        self._grown.clear()
