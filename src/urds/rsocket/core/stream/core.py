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
Misuse that an application must handle is an `OSError`.

**The life of a stream**: which directions are open, what control message is due, how it ended.

    call or message              then
    shut_down(WR)                SHUTDOWN while we read, else DISCONNECT; both behind all bytes
    shut_down(RD)                nothing while we write, else DISCONNECT
    shut_down(RDWR)              DISCONNECT
    SHUTDOWN comes               reading ends; over, if our own last data are out already
    DISCONNECT comes             over
    DISCONNECT of ours completes over

What arrived stays readable in every state but CLOSED.
Source: docs/reference/rsocket.md 1 to 8.
"""

import errno
from dataclasses import dataclass
from typing import Final

from urds.common.errors import RemoteProtocolError, WireError
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
from urds.rsocket.wire import stream as wire
from urds.rsocket.wire.stream import (
    ARGUMENT_MAX,
    CREDIT_HAS_ENTRY,
    CREDIT_LIMIT_MASK,
    Control,
    Op,
    emit_imm_data,
    parse_imm_data,
)


@dataclass(slots=True, eq=False)
class StreamLifecycle:
    """State, directions and error of one stream."""

    state: StreamState = StreamState.NEW
    is_connected: bool = False  # both sides' private data are known; stays so at the end
    is_sending: bool = False  # messages may go to the peer
    can_read: bool = False  # more may come
    can_write: bool = False
    error: int = 0  # errno of what broke the stream, until it is taken
    reason: str = ""  # of the end, for people
    due: Control | None = None  # leaves behind all bytes
    _is_shutdown_out: bool = False
    _is_peer_shut: bool = False
    _is_own_end: bool = False  # the application itself ended writing

    def open(self) -> None:
        """Be connected."""
        self.state = StreamState.OPEN
        self.is_connected = self.is_sending = True
        self.can_read = self.can_write = True

    def take_error(self) -> int:
        """Return `error` and forget it."""
        error, self.error = self.error, 0
        return error

    def check_writable(self) -> None:
        """Raise OSError if bytes cannot be sent.

        ENOTCONN before the connection; EPIPE after an own shutdown, as sockets of the kernel say
        (librdmacm says ECONNRESET for both); ECONNRESET when the peer ended it.
        """
        if self.can_write:
            return
        if self.state is StreamState.NEW:
            raise OSError(errno.ENOTCONN, "the stream is not connected")
        if self._is_own_end:
            raise OSError(errno.EPIPE, "writing was shut down")
        raise OSError(errno.ECONNRESET, self.reason or "the connection is over")

    # -- what we end

    def shut_down(self, how: Shut) -> None:
        """End one direction or both; what was accepted leaves first. Poll afterwards.

        Ending what has ended changes nothing.
        """
        if self.state is not StreamState.OPEN:
            return
        if how != Shut.WR:
            self.can_read = False
        if how != Shut.RD:
            self.can_write, self._is_own_end = False, True
        if not self.can_write:
            is_half = self.can_read and not self._is_shutdown_out
            if is_half:
                self.due = Control.SHUTDOWN
            elif not self.can_read:
                self.due = Control.DISCONNECT

    def next_control(self) -> Control | None:
        """Return the control message that is due; the caller has sent all bytes before it."""
        due, self.due = self.due, None
        if due is Control.SHUTDOWN:
            self._is_shutdown_out = True
        elif due is Control.DISCONNECT:
            self.state = StreamState.CLOSING
        return due

    # -- what ends us

    def take_shutdown(self) -> bool:
        """End reading; return whether nothing is left of the stream, as we have written all."""
        self._is_peer_shut = True
        self.can_read = False
        if not self.can_write and not self._is_shutdown_out and self.state is StreamState.OPEN:
            self.due = Control.DISCONNECT  # instead of the SHUTDOWN that has not left yet
        return self._is_shutdown_out

    def check_data(self) -> None:
        """Check a data message. Raises RemoteProtocolError behind a SHUTDOWN."""
        if self._is_peer_shut:
            raise RemoteProtocolError("data after SHUTDOWN")

    def end(self, reason: str, error: int = 0) -> None:
        """Be over, in order if there is no error. What is over already stays as it is."""
        if self.state in (StreamState.OVER, StreamState.FAILED, StreamState.CLOSED):
            return
        # A side that disconnects does not care how that is confirmed.
        is_failure = bool(error) and self.state is not StreamState.CLOSING
        self.state = StreamState.FAILED if is_failure else StreamState.OVER
        if is_failure:
            self.error = error
        self.reason = reason
        self.can_read = self.can_write = self.is_sending = False
        self.due = None

    def close(self) -> None:
        """Be gone."""
        self.end("closed")
        self.state = StreamState.CLOSED


@dataclass(slots=True, eq=False)
class Keepalive:
    """When a keepalive is sent: at most one is under way."""

    _interval_ns: int | None
    _deadline_ns: int | None = None
    is_due: bool = False
    is_out: bool = False

    def set_interval(self, interval_ns: int | None) -> None:
        """Ask every `interval_ns`, or not at all; counted from the next `handle_timeout`."""
        self._interval_ns, self._deadline_ns, self.is_due = interval_ns, None, False

    def poll_timeout(self) -> int | None:
        """Return the next deadline; 0 if there is none yet, None if none is wanted."""
        if self._interval_ns is None:
            return None
        return self._deadline_ns or 0

    def handle_timeout(self, now_ns: int) -> None:
        """Make a keepalive due if it is time, and begin to count."""
        if self._interval_ns is None:
            return
        if self._deadline_ns is None:
            self._deadline_ns = now_ns + self._interval_ns
        elif now_ns >= self._deadline_ns:
            self._deadline_ns = now_ns + self._interval_ns
            self.is_due = not self.is_out


RING_ALIGNMENT: Final = 64
_DISCONNECT: Final = emit_imm_data(Op.CONTROL, Control.DISCONNECT)
_DATA: Final = PostKind.DATA
_OVER: Final = (StreamState.OVER, StreamState.FAILED)


class StreamCore:
    """One side of a connection, for one owner at a time. Every call is quick; none waits."""

    __slots__ = (
        "_is_peer_gone", "_memory", "_remote_sgl", "_source", "connect_data", "iomap",
        "is_urds_peer", "keepalive", "lifecycle", "receive_ring", "sending", "settings", "stats",
    )  # fmt: skip

    def __init__(self, settings: StreamSettings, memory: MemorySource) -> None:
        """Make a stream with one region of `memory`: entries, iomap, ring, in this order.

        Raises OSError ENOMEM from the source.
        """
        assert settings.send_queue > CONTROL_SLOTS, "data need a slot beside control"
        self.settings = settings
        self.stats = StreamStats()
        entries = settings.table_entries if settings.is_urds else LIBRDMACM_ENTRIES
        slots = wire.slots_of(wire.scale_slots(settings.iomap_slots))
        iomap_start = entries * wire.SGE_BYTES
        tables_end = iomap_start + slots * wire.IOMAP_ENTRY_BYTES
        start = -(-tables_end // RING_ALIGNMENT) * RING_ALIGNMENT
        ring_bytes = first_ring_bytes(settings)
        self._source = memory
        self._memory = region = memory.allocate(start + ring_bytes)
        order = settings.byte_order
        self._remote_sgl = RemoteSgl(region.view[:iomap_start], entries, order)
        self.receive_ring = ReceiveRing(settings, memory, region, start, ring_bytes, self.stats)
        sending = Sending if settings.is_urds else LibrdmacmSending
        self.sending = sending(settings, self._remote_sgl.spaces, self.stats)
        self.iomap = Iomap(region.view[iomap_start:tables_end], order, self.sending.updates)
        self.lifecycle = StreamLifecycle()
        self.keepalive = Keepalive(settings.keepalive_ns)
        self.is_urds_peer = False  # then space is announced in small steps
        self._is_peer_gone = False
        table = wire.Sge(region.address, region.rkey, entries)
        self.connect_data = _connect_data(settings, slots, table, self.receive_ring.first)

    # -- connecting

    def adopt(self, data: bytes) -> None:
        """Take the private data of the peer; the stream is connected then.

        Bytes behind the 40 are padding. Raises RemoteProtocolError for another version, sizes or
        addresses that cannot be; the stream is as before then.
        """
        assert self.lifecycle.state is StreamState.NEW, "a stream connects once"
        peer = _checked_connect_data(data)
        is_urds = self.settings.is_urds and wire.ConnectFlag.URDS in peer.flags
        table, order = peer.target_sgl, _byte_order_of(peer)
        self.is_urds_peer = is_urds
        self._remote_sgl.adopt(peer.data_buffer, is_merging=is_urds)
        self.sending.adopt(peer.credits, is_update_returned=is_urds or not self.settings.is_urds)
        self.receive_ring.adopt(table, order, is_urds=is_urds)
        self.iomap.adopt(
            address=table.address + table.length * wire.SGE_BYTES,
            rkey=table.key,
            slots=peer.iomap_slots if wire.ConnectFlag.IOMAP in peer.flags else 0,
            byte_order=order,
            is_urds=is_urds,
        )
        self.lifecycle.open()

    # -- sending

    def send(self, data: memoryview, *, may_zero_copy: bool) -> int:
        """Take bytes to send and return how many; 0 if there is no room.

        Bytes are copied, `send_bytes` of them at most until they complete. With `may_zero_copy`
        ZERO_COPY_BYTES_MIN and more are posted from `data` itself, as far as the peer has space,
        and must not change while `zero_copy_bytes` is not 0. `data` is one-dimensional and of
        format B. Raises OSError: ENOTCONN, EPIPE (own shutdown), ECONNRESET.
        """
        if not self.lifecycle.can_write:
            self.lifecycle.check_writable()
        return self.sending.send(data, may_zero_copy=may_zero_copy)

    @property
    def is_writable(self) -> bool:
        """Return whether a send would take something, or would raise.

        After a zero-copy send that failed for lack of space: whether such a one would.
        """
        lifecycle = self.lifecycle
        return (
            self.sending.is_writable
            if lifecycle.can_write
            else lifecycle.state is not StreamState.NEW
        )

    @property
    def unsent_bytes(self) -> int:
        """Return how many accepted bytes are not completed."""
        return self.sending.buffered_bytes + self.sending.zero_copy_bytes

    # -- receiving

    @property
    def is_ended(self) -> bool:
        """Return whether no more bytes will come and all were read."""
        is_open = self.lifecycle.can_read or self.lifecycle.state is StreamState.NEW
        return not is_open and not self.receive_ring.readable_bytes

    @property
    def is_readable(self) -> bool:
        """Return whether there are bytes, or the end."""
        return self.receive_ring.readable_bytes > 0 or self.is_ended

    # -- mapped buffers

    def map_buffer(self, memory: Memory, offset: int | None = None) -> int:
        """Let the peer write to `memory` from `offset` on; None is its address. Returns the offset.

        The peer knows it once it has received data sent later. Raises OSError: EINVAL without a
        connection or for an offset out of range, ENOMEM if the peer's slots are taken.
        """
        if self.lifecycle.state is not StreamState.OPEN:
            raise OSError(
                errno.EINVAL, f"a stream that is {self.lifecycle.state.name} maps nothing"
            )
        offset = memory.address if offset is None else offset
        self.iomap.map_buffer(memory, offset)
        self.sending.flush_updates()
        return offset

    def unmap(self, memory: Memory) -> None:
        """Take a mapping back: the caller ends the registration now.

        librdmacm is not told: its write there breaks the connection. Raises OSError (EINVAL) for
        memory that is not mapped.
        """
        self.iomap.unmap(memory, is_told=self.lifecycle.state is StreamState.OPEN)
        self.sending.flush_updates()

    def write_mapped(self, data: memoryview, offset: int, *, may_zero_copy: bool) -> int:
        """Write into buffers of the peer and return how many bytes were taken.

        Fewer if there is no room or slot, or at an offset that is not mapped. Bytes are copied or
        not as by `send`, arrive before whatever is sent later, and may overtake what waits for
        space. Raises OSError as `send`.
        """
        self.lifecycle.check_writable()
        places = self.iomap.places(offset, len(data))
        return self.sending.write_mapped(data, places, may_zero_copy=may_zero_copy)

    @property
    def can_write_mapped(self) -> bool:
        """Return whether a write into a mapped buffer would take something, or would raise."""
        sending = self.sending
        return not self.lifecycle.can_write or (sending.data_slots > 0 and sending.room > 0)

    # -- the end

    @property
    def is_drained(self) -> bool:
        """Return whether nothing is to be sent and nothing un-completed."""
        sending = self.sending
        return sending.is_idle and not sending.in_flight and self.lifecycle.due is None

    @property
    def wants_disconnect(self) -> bool:
        """Return whether the stream has ended and nothing is left to send or complete."""
        return self.lifecycle.state in _OVER and self.is_drained

    def close(self) -> None:
        """Release all memory. The queue pair is gone before: nothing may be under way."""
        if self.lifecycle.state is StreamState.CLOSED:
            return
        self.lifecycle.close()
        self.sending.drop_all()
        self.receive_ring.close()
        self._remote_sgl.close()
        self.iomap.close()
        self._source.release(self._memory)

    # -- the queue pair

    def poll_transmit(self) -> Post | None:
        """Return the next request to post, in order; None if there is none now."""
        lifecycle, sending, receive_ring = self.lifecycle, self.sending, self.receive_ring
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
                if lifecycle.due is None and not self.keepalive.is_due:
                    return None
                post = self._next_control()
                if post is None:
                    return None
        sending.in_flight.append(post)
        return post

    def _next_control(self) -> Post | None:
        """Return what needs a control slot and comes last."""
        sending, lifecycle, keepalive = self.sending, self.lifecycle, self.keepalive
        if not sending.control_slots:
            return None
        if lifecycle.due is not None and sending.is_idle:
            control = lifecycle.next_control()
            assert control is not None, "it is due"
            if control is Control.DISCONNECT:
                self.receive_ring.stop()
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
        sending = self.sending
        if not sending.in_flight:
            assert not self.lifecycle.is_sending, "a completion without a post"
            return
        post = sending.handle_sent()
        if post.kind is _DATA:
            return
        if post.kind is PostKind.KEEPALIVE:
            self.keepalive.is_out = False
        elif post.imm_data == _DISCONNECT:
            self._end("disconnected")

    def handle_posted(self) -> None:
        """Have the newest post be done before its completion: its bytes are at the peer.

        For an owner whose posts land before the call ends. Slot, room and bytes are free then; what
        its completion tells (DISCONNECT, a keepalive, that all is out) still waits for it, and
        small sends gather behind the first ones without completion.
        """
        self.sending.handle_posted()

    def handle_disconnected(self, reason: str, error: int) -> None:
        """Be over, in order if `error` is 0: no request completes any more.

        What arrived stays readable; what was not sent is lost.
        """
        self._end(reason, error)
        self.sending.drop_all()

    def receive_data(self, imm_data: int) -> None:
        """Take the immediate data of a write that has landed.

        Raises RemoteProtocolError if the peer broke the protocol: cut the connection then.
        """
        lifecycle = self.lifecycle
        if not lifecycle.is_sending:
            if lifecycle.state is StreamState.NEW or self._is_peer_gone:
                raise RemoteProtocolError(f"word {imm_data:#010x} outside of the connection")
            return  # it crossed our own end
        if 0 <= imm_data <= ARGUMENT_MAX:  # the operation of data is 0
            lifecycle.check_data()
            self.receive_ring.take_message(imm_data)
            return
        try:
            op, argument = parse_imm_data(imm_data)
        except WireError as error:
            raise RemoteProtocolError(str(error)) from error
        if op is Op.CREDIT:
            self._take_credit(argument)
        elif op is Op.IOMAP:
            self.receive_ring.count_update()
            self.iomap.take_update(argument)
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
        self.sending.take_limit(argument & CREDIT_LIMIT_MASK)
        if has_entry or not self.is_urds_peer:
            stats.entries_received += self._remote_sgl.take_entry(is_announced=has_entry)

    def _take_control(self, control: int) -> None:
        """React to a control message. KEEPALIVE asks for nothing; librdmacm never sends it."""
        if control == Control.DISCONNECT:
            self._is_peer_gone = True
            self._end("the peer disconnected")
        elif control == Control.SHUTDOWN:
            self.receive_ring.stop()
            if self.lifecycle.take_shutdown():
                self._end("both sides shut down")

    def _end(self, reason: str, error: int = 0) -> None:
        self.lifecycle.end(reason, error)
        self.receive_ring.stop()
        self.sending.drop_waiting()

    # -- time

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due, 0 for at once; None if no keepalive is wanted."""
        return self.keepalive.poll_timeout() if self.lifecycle.state is StreamState.OPEN else None

    def handle_timeout(self, now_ns: int) -> None:
        """Make a sign of life due if it is time. Poll afterwards."""
        self.keepalive.handle_timeout(now_ns)


def _connect_data(settings: StreamSettings, slots: int, table: wire.Sge, first: wire.Sge) -> bytes:
    """Return what our side says of itself."""
    flags = wire.ConnectFlag.IOMAP
    if settings.byte_order == "big":
        flags |= wire.ConnectFlag.BIG_ENDIAN
    if settings.is_urds:
        flags |= wire.ConnectFlag.URDS
    return wire.ConnectData(
        flags=flags,
        credits=settings.receive_queue,
        iomap_slots=slots,
        target_sgl=table,
        data_buffer=first,
    ).emit()


def _byte_order_of(peer: wire.ConnectData) -> wire.ByteOrder:
    """Return the order in which the peer's tables are written."""
    return "big" if wire.ConnectFlag.BIG_ENDIAN in peer.flags else "little"


def _checked_connect_data(data: bytes) -> wire.ConnectData:
    """Read private data and check each number. Raises RemoteProtocolError.

    Unknown flags pass: a later release of librdmacm may mean something by them.
    """
    try:
        peer = wire.ConnectData.parse(data)
    except WireError as error:
        raise RemoteProtocolError(str(error)) from error
    if peer.version != wire.VERSION:
        raise RemoteProtocolError(f"version {peer.version} of rsockets, not {wire.VERSION}")
    if not peer.credits:
        raise RemoteProtocolError("a peer that takes no message")
    table = peer.target_sgl
    if not 1 <= table.length <= ENTRIES_MAX:
        raise RemoteProtocolError(f"table of {table.length} entries, not 1 to {ENTRIES_MAX}")
    table_bytes = table.length * wire.SGE_BYTES + peer.iomap_slots * wire.IOMAP_ENTRY_BYTES
    check_range(table.address, table_bytes, "tables")
    check_range(peer.data_buffer.address, peer.data_buffer.length, "data buffer")
    return peer
