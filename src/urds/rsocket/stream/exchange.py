"""What the two sides of a stream say to each other: private data, words, requests, the end.

Posts complete in the order of `poll_transmit`. The send queue has CONTROL_SLOTS requests that data
never take, so that a credit can always be given: it costs no credit itself, and so nothing waits
in a circle. Whatever the peer says is judged before it changes anything, and refused with the
values; the owner cuts the connection then. Source: rsocket.md sections 2 to 8.
"""

import errno
from typing import Final

from urds.errors import RemoteProtocolError, WireError
from urds.rsocket.stream.control import Keepalive, Life
from urds.rsocket.stream.iomap import Iomap
from urds.rsocket.stream.offers import byte_order_of, first_window_bytes, flags_of, judged
from urds.rsocket.stream.original import OriginalSending
from urds.rsocket.stream.records import (
    CONTROL_SLOTS,
    ORIGINAL_ENTRIES,
    MemorySource,
    Post,
    PostKind,
    StreamSettings,
    StreamState,
    StreamStats,
)
from urds.rsocket.stream.sending import Sending
from urds.rsocket.stream.target import Target
from urds.rsocket.stream.window import Window
from urds.rsocket.wire.connect_data import (
    SGE_BYTES,
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


class Exchange:
    """A stream as the peer and the queue pair know it."""

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
        window_bytes = first_window_bytes(settings)
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
            flags=flags_of(settings),
            credits=settings.receive_queue,
            iomap_slots=slots,
            target_sgl=Sge(region.address, region.rkey, entries),
            data_buffer=self._window.first,
        ).emit()

    # -- connecting

    def offer(self) -> bytes:
        """Return the private data for the peer, 40 octets."""
        return self._offer

    def adopt(self, octets: bytes) -> None:
        """Take the private data of the peer; the stream is connected then.

        Octets behind the 40 are padding. Raises RemoteProtocolError for another version, for
        sizes and addresses that cannot be; the stream is as before then.
        """
        assert self.state is StreamState.NEW, "a stream connects once"
        peer = judged(octets)
        is_own = self.settings.is_own and ConnectFlag.OWN in peer.flags
        table, order = peer.target_sgl, byte_order_of(peer)
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
        return self._life.was_opened

    @property
    def is_own_peer(self) -> bool:
        """Return whether the peer is one of ours, so that space is told in small steps."""
        return self._is_own_pair

    @property
    def state(self) -> StreamState:
        """Return where in its life the stream is."""
        return self._life.state

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
                if life.due is None and not self._keepalive.is_due:
                    return None
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
        if life.due is not None and sending.is_idle:
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

    # -- the end

    @property
    def is_drained(self) -> bool:
        """Return whether nothing is to be sent and nothing un-completed."""
        sending = self._sending
        return sending.is_idle and not sending.in_flight and self._life.due is None

    @property
    def wants_disconnect(self) -> bool:
        """Return whether both sides have said their last word and it is completed."""
        return self._life.state in _OVER and self.is_drained

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
