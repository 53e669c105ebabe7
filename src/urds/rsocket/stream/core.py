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

Posts complete in the order of `poll_transmit`. The send queue has CONTROL_SLOTS requests that data
never take, so that a credit can always be given: it costs no credit itself, and so nothing waits
in a circle. After every call that may make something due the owner polls `poll_transmit` until it
has nothing more. Source: rsocket.md sections 1 to 8.
"""

import errno
from typing import Final

from urds.errors import RemoteProtocolError, WireError
from urds.rsocket.stream.control import Keepalive, Life
from urds.rsocket.stream.iomap import Iomap
from urds.rsocket.stream.original import OriginalSending
from urds.rsocket.stream.publishing import WINDOW_UNIT_BYTES
from urds.rsocket.stream.records import (
    BORROW_BYTES_MIN,
    CONTROL_SLOTS,
    ENTRIES_MAX,
    ORIGINAL_ENTRIES,
    Memory,
    MemorySource,
    Post,
    PostKind,
    Shut,
    StreamSettings,
    StreamState,
    StreamStats,
)
from urds.rsocket.stream.sending import Sending
from urds.rsocket.stream.target import Target, check_range
from urds.rsocket.stream.window import Window
from urds.rsocket.wire.connect_data import (
    SGE_BYTES,
    VERSION,
    ByteOrder,
    ConnectData,
    ConnectFlag,
    Sge,
    scale_slots,
    slots_of,
)
from urds.rsocket.wire.messages import (
    ARGUMENT_MAX,
    CREDIT_HAS_ENTRY,
    CREDIT_LIMIT_MASK,
    IOMAP_ENTRY_BYTES,
    Control,
    Op,
    emit_word,
    parse_word,
)

WINDOW_ALIGNMENT: Final = 64
_DISCONNECT: Final = emit_word(Op.CONTROL, Control.DISCONNECT)
_DATA: Final = PostKind.DATA
_OVER: Final = (StreamState.OVER, StreamState.FAILED)


class Stream:
    """One side of a connection, for one owner at a time. Every call is quick; none waits."""

    __slots__ = (
        "_iomap",
        "_is_own_pair",
        "_is_peer_gone",
        "_keepalive",
        "_life",
        "_memory",
        "_offer",
        "_sending",
        "_source",
        "_target",
        "_window",
        "settings",
        "stats",
    )

    def __init__(self, settings: StreamSettings, memory: MemorySource) -> None:
        """Make a stream with one region of `memory`: entries, iomap, window, in this order.

        Raises OSError ENOMEM from the source.
        """
        assert settings.send_queue > CONTROL_SLOTS, "data need a slot beside control"
        self.settings = settings
        self.stats = StreamStats()
        entries = settings.table_entries if settings.is_own else ORIGINAL_ENTRIES
        slots = slots_of(scale_slots(settings.iomap_slots))
        iomap_start = entries * SGE_BYTES
        tables_end = iomap_start + slots * IOMAP_ENTRY_BYTES
        start = -(-tables_end // WINDOW_ALIGNMENT) * WINDOW_ALIGNMENT
        window_bytes = _first_window_bytes(settings)
        self._source = memory
        self._memory = region = memory.allocate(start + window_bytes)
        order = settings.byte_order
        self._target = Target(region.view[:iomap_start], entries, order)
        self._window = Window(settings, memory, region, start, window_bytes, self.stats)
        sending = Sending if settings.is_own else OriginalSending
        self._sending = sending(settings, self._target.spaces, self.stats)
        self._iomap = Iomap(region.view[iomap_start:tables_end], order, self._sending.updates)
        self._life = Life()
        self._keepalive = Keepalive(settings.keepalive_ns)
        self._is_own_pair = False
        self._is_peer_gone = False
        self._offer = ConnectData(
            flags=_flags(settings),
            credits=settings.receive_queue,
            iomap_slots=slots,
            target_sgl=Sge(region.address, region.rkey, entries),
            data_buffer=self._window.first,
        )

    # -- connecting

    def offer(self) -> bytes:
        """Return the private data for the peer, 40 octets."""
        return self._offer.emit()

    def adopt(self, octets: bytes) -> None:
        """Take the private data of the peer; the stream is connected then.

        Octets behind the 40 are padding. Raises RemoteProtocolError for another version, for
        sizes and addresses that cannot be; the stream is as before then.
        """
        assert self.state is StreamState.NEW, "a stream connects once"
        peer = _judged(octets)
        is_own = self.settings.is_own and ConnectFlag.OWN in peer.flags
        table, order = peer.target_sgl, _byte_order_of(peer)
        self._is_own_pair = is_own
        self._target.adopt(peer.data_buffer, is_merging=is_own)
        self._sending.adopt(peer.credits, is_update_returned=is_own or not self.settings.is_own)
        self._window.adopt(table, order, is_own=is_own)
        self._iomap.adopt(
            address=table.address + table.length * SGE_BYTES,
            rkey=table.key,
            slots=peer.iomap_slots if ConnectFlag.IOMAP in peer.flags else 0,
            byte_order=order,
            is_own=is_own,
        )
        self._life.open()

    @property
    def is_connected(self) -> bool:
        """Return whether the peer's private data were taken; it stays so when the end comes."""
        return self._life.state is not StreamState.NEW

    @property
    def is_own_peer(self) -> bool:
        """Return whether the peer is one of ours, so that space is told in small steps."""
        return self._is_own_pair

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

    def close(self) -> None:
        """Give all memory back. The queue pair is gone before: nothing may be under way."""
        if self._life.state is StreamState.CLOSED:
            return
        self._life.close()
        self._sending.drop_all()
        self._window.close()
        self._target.close()
        self._iomap.close()
        self._source.release(self._memory)

    @property
    def state(self) -> StreamState:
        """Return where in its life the stream is."""
        return self._life.state

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

    @property
    def is_drained(self) -> bool:
        """Return whether nothing is to be sent and nothing un-completed."""
        sending = self._sending
        return sending.is_idle and not sending.in_flight and not self._life.is_control_due

    @property
    def wants_disconnect(self) -> bool:
        """Return whether both sides have said their last word and it is completed."""
        return self._life.state in _OVER and self.is_drained

    # -- the queue pair

    def poll_transmit(self) -> Post | None:
        """Return the next request to post, in order; None if there is none now."""
        life, sending, window = self._life, self._sending, self._window
        if not life.is_sending:
            return None
        post = None
        if window.may_be_due and sending.control_slots:
            post = window.next_update()
        if post is not None:
            sending.control_slots -= 1
        else:
            post = sending.next_post()
            if post is None:
                post = self._next_control()
                if post is None:
                    return None
        sending.in_flight.append(post)
        return post

    def _next_control(self) -> Post | None:
        """Return what needs a control slot and comes last."""
        sending, life, keepalive = self._sending, self._life, self._keepalive
        if not sending.control_slots:
            return None
        if life.is_control_due and sending.is_idle:
            control = life.next_control()
            assert control is not None, "it is due"
            if control is Control.DISCONNECT:
                self._window.stop()
            self.stats.controls_sent += 1
            word = emit_word(Op.CONTROL, control)
            post = Post(PostKind.CONTROL, b"", 0, 0, word)
        elif keepalive.is_due and life.state is StreamState.OPEN:
            keepalive.is_due, keepalive.is_out = False, True
            self.stats.keepalives_sent += 1
            post = Post(PostKind.KEEPALIVE, b"", 0, 0, None)
        else:
            return None
        sending.control_slots -= 1
        return post

    def handle_sent(self) -> None:
        """Take the completion of the oldest post. Late ones of a stream that is over do nothing."""
        sending = self._sending
        if not sending.in_flight:
            assert not self._life.is_sending, "a completion without a post"
            return
        post = sending.handle_sent()
        if post.kind is _DATA:
            return
        if post.kind is PostKind.KEEPALIVE:
            self._keepalive.is_out = False
        elif post.word == _DISCONNECT:
            self._end("disconnected")

    def handle_failed(self, reason: str) -> None:
        """Be broken: a request failed, and the queue pair has flushed all others."""
        self._end(reason, errno.EIO)
        self._sending.drop_all()

    def handle_disconnected(self, reason: str, error: int) -> None:
        """Be over, in order if `error` is 0: no request completes any more.

        What arrived stays readable; what was not sent is lost.
        """
        self._end(reason, error)
        self._sending.drop_all()

    def receive_data(self, word: int) -> None:
        """Take the immediate data of a write that has landed.

        Raises RemoteProtocolError if the peer broke the protocol: cut the connection then.
        """
        life = self._life
        if not life.is_sending:
            if life.state is StreamState.NEW or self._is_peer_gone:
                raise RemoteProtocolError(f"word {word:#010x} outside of the connection")
            return  # it crossed our own end
        if 0 <= word <= ARGUMENT_MAX:  # the operation of data is 0
            life.check_data()
            self._window.take_message(word)
            return
        try:
            op, argument = parse_word(word)
        except WireError as error:
            raise RemoteProtocolError(str(error)) from error
        if op is Op.CREDIT:
            self._take_credit(argument)
        elif op is Op.IOMAP:
            self._window.count_update()
            self._iomap.take_update(argument)
            self.stats.iomap_received += 1
        else:
            self._take_control(argument)

    def _take_credit(self, argument: int) -> None:
        """Take a new limit, and the entry that came with it."""
        stats = self.stats
        stats.credits_received += 1
        has_entry = False
        if self._is_own_pair:
            has_entry = bool(argument & CREDIT_HAS_ENTRY)
            if argument & ~(CREDIT_LIMIT_MASK | CREDIT_HAS_ENTRY):
                raise RemoteProtocolError(f"credit update with argument {argument:#x}")
        self._sending.take_limit(argument & CREDIT_LIMIT_MASK)
        if has_entry or not self._is_own_pair:
            stats.entries_received += self._target.take_entry(is_announced=has_entry)

    def _take_control(self, control: int) -> None:
        """React to a control message. KEEPALIVE asks for nothing; the original never sends it."""
        if control == Control.DISCONNECT:
            self._is_peer_gone = True
            self._end("the peer disconnected")
        elif control == Control.SHUTDOWN:
            self._window.stop()
            if self._life.take_shutdown():
                self._end("both sides shut down")

    def _end(self, reason: str, error: int = 0) -> None:
        self._life.end(reason, error)
        self._window.stop()
        self._sending.drop_waiting()

    # -- time

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due, 0 for at once; None if no keepalive is wanted."""
        return self._keepalive.poll_timeout() if self._life.state is StreamState.OPEN else None

    def handle_timeout(self, now_ns: int) -> None:
        """Make a sign of life due if it is time. Poll afterwards."""
        self._keepalive.handle_timeout(now_ns)

    def set_keepalive(self, keepalive_ns: int | None) -> None:
        """Ask for a sign of life every `keepalive_ns`, or no more."""
        self._keepalive.set_interval(keepalive_ns)


def _first_window_bytes(settings: StreamSettings) -> int:
    is_tuned = settings.is_own and not settings.is_receive_fixed
    wanted = settings.window_first_bytes if is_tuned else settings.receive_bytes
    return -(-max(1, wanted) // WINDOW_UNIT_BYTES) * WINDOW_UNIT_BYTES


def _flags(settings: StreamSettings) -> ConnectFlag:
    flags = ConnectFlag.IOMAP
    if settings.byte_order == "big":
        flags |= ConnectFlag.BIG_ENDIAN
    return flags | ConnectFlag.OWN if settings.is_own else flags


def _byte_order_of(peer: ConnectData) -> ByteOrder:
    return "big" if ConnectFlag.BIG_ENDIAN in peer.flags else "little"


def _judged(octets: bytes) -> ConnectData:
    """Read private data and judge each number. Raises RemoteProtocolError."""
    try:
        peer = ConnectData.parse(octets)
    except WireError as error:
        raise RemoteProtocolError(str(error)) from error
    if peer.version != VERSION:
        raise RemoteProtocolError(f"version {peer.version} of rsockets, not {VERSION}")
    if not peer.credits:
        raise RemoteProtocolError("a peer that takes no message")
    table = peer.target_sgl
    if not 1 <= table.length <= ENTRIES_MAX:
        raise RemoteProtocolError(f"table of {table.length} entries, not 1 to {ENTRIES_MAX}")
    table_bytes = table.length * SGE_BYTES + peer.iomap_slots * IOMAP_ENTRY_BYTES
    check_range(table.address, table_bytes, "tables")
    check_range(peer.data_buffer.address, peer.data_buffer.length, "data buffer")
    return peer
