"""One side of a stream socket over RDMA: the core, without I/O, clock and random numbers.

Two sides exchange 40 bytes while they connect (`connect_data`, `adopt`). From then on each writes
into memory of the other: bytes of data into space that the other has announced, entries that
announce space into the other's table, mappings into its iomap. Most writes bring 32 bits of
immediate data, which are all that the other side's software sees of them (`receive_data`).

    application                 core                               queue pair
    send, shut_down ----------> Sending, StreamLifecycle --------> poll_transmit: Post
                                RemoteSgl  <------ CREDIT -------- receive_data(imm_data)
    receive_into, expect <----- ReceiveRing  <------ DATA -------- receive_data(imm_data)
                                Sending <------------------------- handle_sent

After every call that may make something due the owner polls `poll_transmit` until it has nothing
more. Posts complete in that order. The send queue has CONTROL_SLOTS requests that data never take,
so that a credit can always be given: it costs no credit itself, and so nothing waits in a circle.

What the peer sends is checked before it changes anything; a peer that breaks the protocol raises
`RemoteProtocolError` from `adopt` and `receive_data` alone, and the owner cuts the connection then.
Misuse that an application must handle is an `OSError`. Source: docs/reference/rsocket.md 1 to 8.
"""

import errno
from typing import Final

from urds.common.errors import RemoteProtocolError, WireError
from urds.rsocket.core.stream.lifecycle import Keepalive, StreamLifecycle
from urds.rsocket.core.stream.receive_ring import ReceiveRing, first_ring_bytes
from urds.rsocket.core.stream.records import (
    CONTROL_SLOTS,
    ENTRIES_MAX,
    LIBRDMACM_ENTRIES,
    Memory,
    MemorySource,
    Post,
    PostKind,
    Shut,
    StreamSettings,
    StreamState,
    StreamStats,
)
from urds.rsocket.core.stream.sending import LibrdmacmSending, Sending
from urds.rsocket.core.stream.tables import Iomap, RemoteSgl, check_range
from urds.rsocket.wire.stream import (
    ARGUMENT_MAX,
    CREDIT_HAS_ENTRY,
    CREDIT_LIMIT_MASK,
    IOMAP_ENTRY_BYTES,
    SGE_BYTES,
    VERSION,
    ByteOrder,
    ConnectData,
    ConnectFlag,
    Control,
    Op,
    Sge,
    emit_imm_data,
    parse_imm_data,
    scale_slots,
    slots_of,
)

RING_ALIGNMENT: Final = 64
_DISCONNECT: Final = emit_imm_data(Op.CONTROL, Control.DISCONNECT)
_DATA: Final = PostKind.DATA
_OVER: Final = (StreamState.OVER, StreamState.FAILED)


class StreamCore:
    """One side of a connection, for one owner at a time. Every call is quick; none waits."""

    __slots__ = (
        "_connect_data", "_iomap", "_is_peer_gone", "_keepalive", "_lifecycle", "_memory",
        "_receive_ring", "_remote_sgl", "_sending", "_source", "is_urds_peer", "settings", "stats",
    )  # fmt: skip

    def __init__(self, settings: StreamSettings, memory: MemorySource) -> None:
        """Make a stream with one region of `memory`: entries, iomap, ring, in this order.

        Raises OSError ENOMEM from the source.
        """
        assert settings.send_queue > CONTROL_SLOTS, "data need a slot beside control"
        self.settings = settings
        self.stats = StreamStats()
        entries = settings.table_entries if settings.is_urds else LIBRDMACM_ENTRIES
        slots = slots_of(scale_slots(settings.iomap_slots))
        iomap_start = entries * SGE_BYTES
        tables_end = iomap_start + slots * IOMAP_ENTRY_BYTES
        start = -(-tables_end // RING_ALIGNMENT) * RING_ALIGNMENT
        ring_bytes = first_ring_bytes(settings)
        self._source = memory
        self._memory = region = memory.allocate(start + ring_bytes)
        order = settings.byte_order
        self._remote_sgl = RemoteSgl(region.view[:iomap_start], entries, order)
        self._receive_ring = ReceiveRing(settings, memory, region, start, ring_bytes, self.stats)
        sending = Sending if settings.is_urds else LibrdmacmSending
        self._sending = sending(settings, self._remote_sgl.spaces, self.stats)
        self._iomap = Iomap(region.view[iomap_start:tables_end], order, self._sending.updates)
        self._lifecycle = StreamLifecycle()
        self._keepalive = Keepalive(settings.keepalive_ns)
        self.is_urds_peer = False  # then space is announced in small steps
        self._is_peer_gone = False
        table = Sge(region.address, region.rkey, entries)
        self._connect_data = _connect_data(settings, slots, table, self._receive_ring.first)

    # -- connecting

    def connect_data(self) -> bytes:
        """Return the private data for the peer, 40 bytes."""
        return self._connect_data

    def adopt(self, data: bytes) -> None:
        """Take the private data of the peer; the stream is connected then.

        Bytes behind the 40 are padding. Raises RemoteProtocolError for another version, sizes or
        addresses that cannot be; the stream is as before then.
        """
        assert self.state is StreamState.NEW, "a stream connects once"
        peer = _checked_connect_data(data)
        is_urds = self.settings.is_urds and ConnectFlag.URDS in peer.flags
        table, order = peer.target_sgl, _byte_order_of(peer)
        self.is_urds_peer = is_urds
        self._remote_sgl.adopt(peer.data_buffer, is_merging=is_urds)
        self._sending.adopt(peer.credits, is_update_returned=is_urds or not self.settings.is_urds)
        self._receive_ring.adopt(table, order, is_urds=is_urds)
        self._iomap.adopt(
            address=table.address + table.length * SGE_BYTES,
            rkey=table.key,
            slots=peer.iomap_slots if ConnectFlag.IOMAP in peer.flags else 0,
            byte_order=order,
            is_urds=is_urds,
        )
        self._lifecycle.open()

    @property
    def is_connected(self) -> bool:
        """Return whether the peer's private data were taken; it stays so when the end comes."""
        return self._lifecycle.was_opened

    @property
    def state(self) -> StreamState:
        """Return where in its life the stream is."""
        return self._lifecycle.state

    # -- sending

    def send(self, data: memoryview, *, may_zero_copy: bool) -> int:
        """Take bytes to send and return how many; 0 if there is no room.

        Bytes are copied, `send_bytes` of them at most until they complete. With `may_zero_copy`
        ZERO_COPY_BYTES_MIN and more are posted from `data` itself, as far as the peer has space,
        and must not change while `zero_copy_bytes` is not 0. `data` is one-dimensional and of
        format B. Raises OSError: ENOTCONN, EPIPE (own shutdown), ECONNRESET.
        """
        if not self._lifecycle.can_write:
            self._lifecycle.check_writable()
        return self._sending.send(data, may_zero_copy=may_zero_copy)

    @property
    def is_writable(self) -> bool:
        """Return whether a send would take something, or would raise.

        After a zero-copy send that failed for lack of space: whether such a one would.
        """
        lifecycle = self._lifecycle
        return (
            self._sending.is_writable
            if lifecycle.can_write
            else lifecycle.state is not StreamState.NEW
        )

    @property
    def zero_copy_bytes(self) -> int:
        """Return how many bytes of the caller's memory are not completed."""
        return self._sending.zero_copy_bytes

    @property
    def unsent_bytes(self) -> int:
        """Return how many accepted bytes are not completed."""
        return self._sending.buffered_bytes + self._sending.zero_copy_bytes

    def set_no_delay(self, no_delay: bool) -> None:
        """Let more small writes be under way at a time before they gather."""
        self._sending.set_no_delay(no_delay)

    # -- receiving

    def receive_into(self, view: memoryview, *, peek: bool = False) -> int:
        """Copy bytes that are there and return how many: 0 for none, or at the end.

        While a receive is expected, only bytes before it. Poll afterwards: what is read frees
        space. `view` is one-dimensional, of format B.
        """
        return self._receive_ring.receive_into(view, peek=peek)

    def receive(self, byte_count_max: int, *, peek: bool = False) -> bytes:
        """Return bytes that are there, in one copy; otherwise as `receive_into`."""
        return self._receive_ring.receive(byte_count_max, peek=peek)

    def expect(self, memory: Memory, byte_count: int) -> int:
        """Let a wait for exactly `byte_count` bytes be filled in place.

        Returns the offset in `memory` from which on bytes arrive in place, `byte_count` if nothing
        is expected: what is on its way nearly covers the wait. Until `end_expect`, `receive_into`
        gives those before it alone. `memory` stays registered while `holds` says so. Raises
        LocalProtocolError while another receive is expected. Poll afterwards.
        """
        return self._receive_ring.expect(memory, byte_count)

    @property
    def expected_left(self) -> int:
        """Return how many bytes have yet to arrive in the expected memory."""
        return self._receive_ring.expected_left

    def end_expect(self) -> int:
        """End the expectation, fulfilled or not; return how many bytes arrived in place.

        They count from the offset that `expect` returned. 0 while bytes before them are not read:
        then `receive_into` gives these too, and what the peer still writes into the memory.
        """
        return self._receive_ring.end_expect()

    def holds(self, memory: Memory) -> bool:
        """Return whether the peer may still write to memory that was expected, or it is unread."""
        return self._receive_ring.holds(memory)

    @property
    def readable_bytes(self) -> int:
        """Return how many bytes wait to be read."""
        return self._receive_ring.readable_bytes

    @property
    def is_ended(self) -> bool:
        """Return whether no more bytes will come and all were read."""
        is_open = self.can_read or self.state is StreamState.NEW
        return not is_open and not self._receive_ring.readable_bytes

    @property
    def is_readable(self) -> bool:
        """Return whether there are bytes, or the end."""
        return self._receive_ring.readable_bytes > 0 or self.is_ended

    # -- mapped buffers

    def map_buffer(self, memory: Memory, offset: int | None = None) -> int:
        """Let the peer write to `memory` from `offset` on; None is its address. Returns the offset.

        The peer knows it once it has received data sent later. Raises OSError: EINVAL without a
        connection or for an offset out of range, ENOMEM if the peer's slots are taken.
        """
        if self.state is not StreamState.OPEN:
            raise OSError(errno.EINVAL, f"a stream that is {self.state.name} maps nothing")
        offset = memory.address if offset is None else offset
        self._iomap.map_buffer(memory, offset)
        self._sending.flush_updates()
        return offset

    def unmap(self, memory: Memory) -> None:
        """Take a mapping back: the caller ends the registration now.

        librdmacm is not told: its write there breaks the connection. Raises OSError (EINVAL) for
        memory that is not mapped.
        """
        self._iomap.unmap(memory, is_told=self._lifecycle.state is StreamState.OPEN)
        self._sending.flush_updates()

    def is_mapped(self, offset: int) -> bool:
        """Return whether the peer has mapped a buffer to this offset."""
        return self._iomap.is_mapped(offset)

    def write_mapped(self, data: memoryview, offset: int, *, may_zero_copy: bool) -> int:
        """Write into buffers of the peer and return how many bytes were taken.

        Fewer if there is no room or slot, or at an offset that is not mapped. Bytes are copied or
        not as by `send`, arrive before whatever is sent later, and may overtake what waits for
        space. Raises OSError as `send`.
        """
        self._lifecycle.check_writable()
        places = self._iomap.places(offset, len(data))
        return self._sending.write_mapped(data, places, may_zero_copy=may_zero_copy)

    @property
    def can_write_mapped(self) -> bool:
        """Return whether a write into a mapped buffer would take something, or would raise."""
        sending = self._sending
        return not self._lifecycle.can_write or (sending.data_slots > 0 and sending.room > 0)

    # -- the end

    def shut_down(self, how: Shut) -> None:
        """End one direction or both; what was accepted leaves first. Poll afterwards."""
        self._lifecycle.shut_down(how)

    @property
    def can_read(self) -> bool:
        """Return whether more bytes may come."""
        return self._lifecycle.can_read

    @property
    def can_write(self) -> bool:
        """Return whether bytes may be sent."""
        return self._lifecycle.can_write

    @property
    def reason(self) -> str:
        """Return why the stream ended, for people."""
        return self._lifecycle.reason

    @property
    def error(self) -> int:
        """Return the errno of what broke the stream, 0 if nothing did or it was taken."""
        return self._lifecycle.error

    def take_error(self) -> int:
        """Return `error` and forget it."""
        error, self._lifecycle.error = self._lifecycle.error, 0
        return error

    @property
    def is_drained(self) -> bool:
        """Return whether nothing is to be sent and nothing un-completed."""
        sending = self._sending
        return sending.is_idle and not sending.in_flight and self._lifecycle.due is None

    @property
    def wants_disconnect(self) -> bool:
        """Return whether the stream has ended and nothing is left to send or complete."""
        return self._lifecycle.state in _OVER and self.is_drained

    def close(self) -> None:
        """Release all memory. The queue pair is gone before: nothing may be under way."""
        if self._lifecycle.state is StreamState.CLOSED:
            return
        self._lifecycle.close()
        self._sending.drop_all()
        self._receive_ring.close()
        self._remote_sgl.close()
        self._iomap.close()
        self._source.release(self._memory)

    # -- the queue pair

    def poll_transmit(self) -> Post | None:
        """Return the next request to post, in order; None if there is none now."""
        lifecycle, sending, receive_ring = self._lifecycle, self._sending, self._receive_ring
        if not lifecycle.is_sending:
            return None
        post = None
        if receive_ring.may_be_due and sending.control_slots:
            post = receive_ring.next_update()
        if post is not None:
            sending.control_slots -= 1
        else:
            post = sending.next_post()
            if post is None:
                if lifecycle.due is None and not self._keepalive.is_due:
                    return None
                post = self._next_control()
                if post is None:
                    return None
        sending.in_flight.append(post)
        return post

    def _next_control(self) -> Post | None:
        """Return what needs a control slot and comes last."""
        sending, lifecycle, keepalive = self._sending, self._lifecycle, self._keepalive
        if not sending.control_slots:
            return None
        if lifecycle.due is not None and sending.is_idle:
            control = lifecycle.next_control()
            assert control is not None, "it is due"
            if control is Control.DISCONNECT:
                self._receive_ring.stop()
            self.stats.controls_sent += 1
            imm_data = emit_imm_data(Op.CONTROL, control)
            post = Post(PostKind.CONTROL, b"", 0, 0, imm_data)
        elif keepalive.is_due and lifecycle.state is StreamState.OPEN:
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
            assert not self._lifecycle.is_sending, "a completion without a post"
            return
        post = sending.handle_sent()
        if post.kind is _DATA:
            return
        if post.kind is PostKind.KEEPALIVE:
            self._keepalive.is_out = False
        elif post.imm_data == _DISCONNECT:
            self._end("disconnected")

    def handle_disconnected(self, reason: str, error: int) -> None:
        """Be over, in order if `error` is 0: no request completes any more.

        What arrived stays readable; what was not sent is lost.
        """
        self._end(reason, error)
        self._sending.drop_all()

    def receive_data(self, imm_data: int) -> None:
        """Take the immediate data of a write that has landed.

        Raises RemoteProtocolError if the peer broke the protocol: cut the connection then.
        """
        lifecycle = self._lifecycle
        if not lifecycle.is_sending:
            if lifecycle.state is StreamState.NEW or self._is_peer_gone:
                raise RemoteProtocolError(f"word {imm_data:#010x} outside of the connection")
            return  # it crossed our own end
        if 0 <= imm_data <= ARGUMENT_MAX:  # the operation of data is 0
            lifecycle.check_data()
            self._receive_ring.take_message(imm_data)
            return
        try:
            op, argument = parse_imm_data(imm_data)
        except WireError as error:
            raise RemoteProtocolError(str(error)) from error
        if op is Op.CREDIT:
            self._take_credit(argument)
        elif op is Op.IOMAP:
            self._receive_ring.count_update()
            self._iomap.take_update(argument)
            self.stats.iomap_received += 1
        else:
            self._take_control(argument)

    def _take_credit(self, argument: int) -> None:
        """Take a new limit, and the entry that came with it."""
        stats = self.stats
        stats.credits_received += 1
        has_entry = False
        if self.is_urds_peer:
            has_entry = bool(argument & CREDIT_HAS_ENTRY)
            if argument & ~(CREDIT_LIMIT_MASK | CREDIT_HAS_ENTRY):
                raise RemoteProtocolError(f"credit update with argument {argument:#x}")
        self._sending.take_limit(argument & CREDIT_LIMIT_MASK)
        if has_entry or not self.is_urds_peer:
            stats.entries_received += self._remote_sgl.take_entry(is_announced=has_entry)

    def _take_control(self, control: int) -> None:
        """React to a control message. KEEPALIVE asks for nothing; librdmacm never sends it."""
        if control == Control.DISCONNECT:
            self._is_peer_gone = True
            self._end("the peer disconnected")
        elif control == Control.SHUTDOWN:
            self._receive_ring.stop()
            if self._lifecycle.take_shutdown():
                self._end("both sides shut down")

    def _end(self, reason: str, error: int = 0) -> None:
        self._lifecycle.end(reason, error)
        self._receive_ring.stop()
        self._sending.drop_waiting()

    # -- time

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due, 0 for at once; None if no keepalive is wanted."""
        return self._keepalive.poll_timeout() if self._lifecycle.state is StreamState.OPEN else None

    def handle_timeout(self, now_ns: int) -> None:
        """Make a sign of life due if it is time. Poll afterwards."""
        self._keepalive.handle_timeout(now_ns)

    def set_keepalive(self, keepalive_ns: int | None) -> None:
        """Ask for a sign of life every `keepalive_ns`, or no more."""
        self._keepalive.set_interval(keepalive_ns)


def _connect_data(settings: StreamSettings, slots: int, table: Sge, first: Sge) -> bytes:
    """Return what our side says of itself."""
    flags = ConnectFlag.IOMAP
    if settings.byte_order == "big":
        flags |= ConnectFlag.BIG_ENDIAN
    if settings.is_urds:
        flags |= ConnectFlag.URDS
    return ConnectData(
        flags=flags,
        credits=settings.receive_queue,
        iomap_slots=slots,
        target_sgl=table,
        data_buffer=first,
    ).emit()


def _byte_order_of(peer: ConnectData) -> ByteOrder:
    """Return the order in which the peer's tables are written."""
    return "big" if ConnectFlag.BIG_ENDIAN in peer.flags else "little"


def _checked_connect_data(data: bytes) -> ConnectData:
    """Read private data and check each number. Raises RemoteProtocolError.

    Unknown flags pass: a later release of librdmacm may mean something by them.
    """
    try:
        peer = ConnectData.parse(data)
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
