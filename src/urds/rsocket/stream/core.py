"""One side of a stream socket over RDMA: the core, without I/O, clock and chance.

Two sides exchange 40 octets while they connect (`offer`, `adopt`). From then on each writes into
memory of the other: octets of data into space that the other has published, entries that publish
space into the other's table, mappings into its iomap. Most writes bring a word of 32 bits, which
is all that the other side's software sees of them (`receive_data`).

    application                    core                         queue pair
    send, shut_down -------------> Sending, Life -------------> poll_transmit: Post
                                   Target  <------ CREDIT ----- receive_data(word)
    receive_into, expect <-------- Window  <------ DATA ------- receive_data(word)
                                   Sending <------------------- handle_sent

Calls of the application are here, the peer's side in `exchange`. After every call that may make
something due the owner polls `poll_transmit` until it has nothing more.
Source: rsocket.md sections 1 to 8.
"""

import errno

from urds.rsocket.stream.exchange import Exchange
from urds.rsocket.stream.records import BORROW_BYTES_MIN, Memory, Shut, StreamState


class Stream(Exchange):
    """One side of a connection, for one owner at a time. Every call is quick; none waits."""

    __slots__ = ()

    # -- sending

    def send(self, data: memoryview, *, may_borrow: bool) -> int:
        """Take octets to send and return how many; 0 if there is no room.

        Octets are copied, `send_bytes` of them at most until they complete. With `may_borrow`,
        BORROW_BYTES_MIN and more are posted from `data` itself, as far as the peer has space now,
        and must not change while `borrowed_octets` is not 0. `data` is one-dimensional and of
        format B. Raises OSError as `check_writable`.
        """
        if not self._life.can_write:
            self._life.check_writable()
        return self._sending.send(data, may_borrow=may_borrow)

    def check_writable(self) -> None:
        """Raise OSError if nothing can be sent: ENOTCONN, EPIPE (own shutdown), ECONNRESET."""
        self._life.check_writable()

    @property
    def is_writable(self) -> bool:
        """Return whether a send would take something, or would raise.

        After a borrowed send that was refused for lack of space: whether such a one would.
        """
        life = self._life
        return self._sending.is_writable if life.can_write else life.state is not StreamState.NEW

    @property
    def borrowed_octets(self) -> int:
        """Return how many octets of the caller's memory are not completed."""
        return self._sending.borrowed_octets

    @property
    def unsent_octets(self) -> int:
        """Return how many accepted octets are not completed."""
        return self._sending.buffered_octets + self._sending.borrowed_octets

    def set_no_delay(self, no_delay: bool) -> None:
        """Let more small writes be under way at a time before they gather."""
        self._sending.set_no_delay(no_delay)

    # -- receiving

    def receive_into(self, view: memoryview, *, peek: bool = False) -> int:
        """Copy octets that are there and return how many: 0 for none, or at the end.

        While a receive is expected, only octets that come before it. What is read frees space, so
        poll afterwards. `view` is one-dimensional, of format B.
        """
        return self._window.receive_into(view, peek=peek)

    def receive(self, byte_count_max: int, *, peek: bool = False) -> bytes:
        """Return octets that are there, in one copy; otherwise as `receive_into`."""
        return self._window.receive(byte_count_max, peek=peek)

    def expect(self, memory: Memory, byte_count: int) -> int:
        """Let a wait for exactly `byte_count` octets be filled in place.

        Returns the offset in `memory` from which on octets arrive by themselves. Those before it
        are for the caller: `receive_into` gives them, and no more, until `end_expect`. Equal to
        `byte_count`: nothing is expected, the octets there and under way cover the wait or nearly
        so. `memory` stays registered while `holds` says so. One expectation at a time. Raises
        LocalProtocolError otherwise. Poll afterwards.
        """
        return self._window.expect(memory, byte_count)

    @property
    def expected_left(self) -> int:
        """Return how many octets have yet to arrive in the expected memory."""
        return self._window.expected_left

    def end_expect(self) -> int:
        """End the expectation, fulfilled or not; return how many octets arrived in place.

        They count from the offset that `expect` returned and are read. It is 0 while octets before
        them are not read: then these too are left to `receive_into`. If the memory is not full,
        the peer may go on to fill it, and `receive_into` gives what it writes.
        """
        return self._window.end_expect()

    def holds(self, memory: Memory) -> bool:
        """Return whether the peer may still write to memory that was expected, or it is unread."""
        return self._window.holds(memory)

    @property
    def readable_bytes(self) -> int:
        """Return how many octets wait to be read."""
        return self._window.readable_bytes

    @property
    def is_ended(self) -> bool:
        """Return whether no more octets will come and all were read."""
        life = self._life
        is_open = life.can_read or life.state is StreamState.NEW
        return not is_open and not self._window.readable_bytes

    @property
    def is_readable(self) -> bool:
        """Return whether there are octets, or the end."""
        return self._window.readable_bytes > 0 or self.is_ended

    # -- mapped buffers

    def map_buffer(self, memory: Memory, offset: int | None = None) -> int:
        """Let the peer write to `memory` from `offset` on; None is its address. Returns the offset.

        The peer knows it once it has received data sent later. Raises OSError: EINVAL without a
        connection or for an offset out of range, ENOMEM if the peer's slots are taken.
        """
        if self._life.state is not StreamState.OPEN:
            raise OSError(errno.EINVAL, f"a stream that is {self.state.name} maps nothing")
        offset = memory.address if offset is None else offset
        self._iomap.map_buffer(memory, offset)
        self._sending.flush_updates()
        return offset

    def unmap(self, memory: Memory) -> None:
        """Take a mapping back: the caller ends the registration now.

        A peer of ours is told; an original's entry goes stale, and its write there breaks the
        connection. Raises OSError EINVAL for memory that is not mapped.
        """
        self._iomap.unmap(memory, is_told=self._life.state is StreamState.OPEN)
        self._sending.flush_updates()

    def is_mapped(self, offset: int) -> bool:
        """Return whether the peer has mapped a buffer to this offset."""
        return self._iomap.is_mapped(offset)

    def write_mapped(self, data: memoryview, offset: int, *, may_borrow: bool) -> int:
        """Write into buffers of the peer and return how many octets were taken.

        Fewer if there is no room or slot, or at an offset that is not mapped (`is_mapped`). Octets
        are copied or lent as by `send`. They arrive before whatever is sent later; octets that
        wait for space since earlier may be overtaken. Raises OSError as `check_writable`.
        """
        self._life.check_writable()
        sending, taken = self._sending, 0
        is_lent = may_borrow and len(data) >= BORROW_BYTES_MIN
        for address, rkey, byte_count in self._iomap.places(offset, len(data)):
            end = address + byte_count
            while address < end:
                chunk = min(end - address, self.settings.chunk_max_bytes)
                chunk = chunk if is_lent else min(chunk, sending.room)
                if chunk <= 0 or not sending.data_slots:
                    return taken
                piece = data[taken : taken + chunk]
                sending.post_direct(piece if is_lent else bytes(piece), address, rkey)
                self.stats.octets_mapped += chunk
                address += chunk
                taken += chunk
        return taken

    @property
    def can_write_mapped(self) -> bool:
        """Return whether a write into a mapped buffer would take something, or would raise."""
        sending = self._sending
        return not self._life.can_write or (sending.data_slots > 0 and sending.room > 0)

    # -- the end

    def shut_down(self, how: Shut) -> None:
        """End one direction or both; what was accepted leaves first. Poll afterwards."""
        self._life.shut_down(how)

    @property
    def can_read(self) -> bool:
        """Return whether more octets may come."""
        return self._life.can_read

    @property
    def can_write(self) -> bool:
        """Return whether octets may be sent."""
        return self._life.can_write

    @property
    def reason(self) -> str:
        """Return why the stream ended, for people."""
        return self._life.reason

    @property
    def error(self) -> int:
        """Return the errno of what broke the stream, 0 if nothing did or it was taken."""
        return self._life.error

    def take_error(self) -> int:
        """Return `error` and forget it."""
        error, self._life.error = self._life.error, 0
        return error
