"""The sending half: bytes that wait, posts that go, slots and credits that come back.

    send --+-- room at the peer, nothing before it ----------------> ready --+
           +-- pending: gathered, or one block of its own --+               | next_post
                                                            +--------------+--> in flight
                                                                                | handle_sent
A data message costs a credit, a slot of the send queue and space at the peer; what lacks one of
them waits in pending. Small bytes gather there while a write is under way, so that a stream of
them costs one write for each round trip, as Nagle's rule does for TCP; more than
COALESCE_BYTES_MAX never waits for that reason.

Bytes are copied once: into the block that is posted, or not at all in a zero-copy send. Its
post refers to the caller's memory, and is made only if nothing waits before it. What is longer than
a chunk leaves in equal ones: a last one of some bytes would cost as much as the others.

Rules: `ready` and `in_flight` hold no more than the send queue, pending and copied bytes under
way no more than `send_bytes`. Source: docs/reference/rsocket.md 4, 6.
"""

from collections.abc import Iterable
from typing import Final

from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import (
    CONTROL_SLOTS,
    WRITABLE_BYTES_MIN,
    ZERO_COPY_BYTES_MIN,
    Post,
    PostKind,
    StreamSettings,
    StreamStats,
)
from urds.rsocket.core.stream.tables import RemoteRange
from urds.rsocket.wire.stream import ARGUMENT_MAX, Control, Op, emit_imm_data

COALESCE_BYTES_MAX: Final = 1 << 14
UNFINISHED_MAX: Final = 1  # data writes under way beside which a small send is still posted
UNFINISHED_NO_DELAY_MAX: Final = 8
BLOCK_BYTES_MIN: Final = 1 << 12  # of a gathering block; each that fills doubles the next
BLOCK_BYTES_MAX: Final = 1 << 16
CHUNK_FIRST_BYTES: Final = 2048  # of librdmacm
CHUNK_LAST_BYTES: Final = 1 << 16
_DATA_IMM: Final = emit_imm_data(Op.DATA, 0)
_SEQUENCE_MASK: Final = 0xFFFF
_IN_DATA_SLOTS: Final = (PostKind.DATA, PostKind.DIRECT, PostKind.IOMAP)
_DATA: Final = PostKind.DATA
_DISCONNECT: Final = emit_imm_data(Op.CONTROL, Control.DISCONNECT)


def chunk_of(byte_count: int, chunk_max: int) -> int:
    """Return the first of equal parts of so many bytes, none longer than `chunk_max`."""
    if byte_count <= chunk_max:
        return byte_count
    return -(-byte_count // -(-byte_count // chunk_max))


class Sending:
    """What one stream has to send, without its control messages."""

    __slots__ = (
        "_block", "_block_bytes", "_block_used", "_chunk_max", "_is_blocked", "_is_update_paid",
        "_lands", "_limit", "_no_delay", "_pending", "_send_bytes", "_sequence", "_spaces",
        "_stats", "_unfinished", "_unfinished_max", "buffered_bytes", "control_slots", "credits",
        "data_slots", "in_flight", "is_zero_copy_blocked", "pending_bytes", "ready", "updates",
        "zero_copy_bytes",
    )  # fmt: skip

    def __init__(
        self, settings: StreamSettings, spaces: list[RemoteRange], stats: StreamStats
    ) -> None:
        # Lists, for all are short or empty: a deque costs an idle stream 700 bytes.
        self.in_flight: list[Post] = []  # in the order of their completions
        self.ready: list[Post] = []  # slots, credits and space are theirs already
        self.updates: dict[int, Post] = {}  # of the iomap by slot: data sent later wait for them
        self.pending_bytes = 0  # accepted and not in a post yet
        self.buffered_bytes = 0  # copied and not completed
        self.zero_copy_bytes = 0  # of the caller's memory and not completed
        self.is_zero_copy_blocked = False  # the last send was large and found no space
        self.credits = 0
        self.data_slots = settings.send_queue - CONTROL_SLOTS
        self.control_slots = CONTROL_SLOTS
        self._limit = 0  # credits that the peer may ever have outstanding
        self._sequence = 0  # of the next message that costs a credit
        self._spaces = spaces
        self._stats = stats
        self._send_bytes = settings.send_bytes
        self._chunk_max = min(settings.chunk_max_bytes, ARGUMENT_MAX)
        self._pending: list[memoryview] = []
        self._block: bytearray | None = None  # gathers, behind all of `_pending`
        self._block_used = 0
        self._block_bytes = BLOCK_BYTES_MIN
        self._unfinished = 0  # data posts that are ready or in flight; no long ones that landed
        self._lands = False  # `handle_posted` was called
        self._unfinished_max = UNFINISHED_MAX
        self._is_blocked = False
        self._is_update_paid = True
        self.set_no_delay(settings.no_delay)

    def set_no_delay(self, no_delay: bool) -> None:
        """Choose how many small writes may be under way before more of them gather."""
        self._no_delay = no_delay
        is_many = no_delay or self._lands
        self._unfinished_max = UNFINISHED_NO_DELAY_MAX if is_many else UNFINISHED_MAX

    # -- what the peer allows

    def adopt(self, credit_count: int, *, is_update_returned: bool) -> None:
        """Take the credits of the connect data, and whether the peer gives those of updates back.

        To a peer that does not, updates go without a credit, but only while there is one: then a
        receive is there for them as well.
        """
        self._limit = self.credits = credit_count
        self._is_update_paid = is_update_returned

    def take_limit(self, limit: int) -> None:
        """Take the absolute limit of a credit update, 16 bits.

        Raises RemoteProtocolError for one that takes credits back, or gives more than the peer
        has receives.
        """
        available = (limit - self._sequence) & _SEQUENCE_MASK
        if not self.credits <= available <= self._limit:
            raise RemoteProtocolError(
                f"limit {limit} at message {self._sequence & _SEQUENCE_MASK} leaves {available} "
                f"credits, not {self.credits} to {self._limit}"
            )
        self.credits = available

    @property
    def can_post(self) -> bool:
        """Return whether a data message could be made now."""
        return self.credits > 0 and self.data_slots > 0 and bool(self._spaces)

    @property
    def can_zero_copy(self) -> bool:
        """Return whether a large zero-copy send would be taken, at least in part."""
        return self.can_post and not self.pending_bytes and not self.updates

    @property
    def room(self) -> int:
        """Return how many bytes may be copied in."""
        return self._send_bytes - self.buffered_bytes

    @property
    def is_writable(self) -> bool:
        """Return whether a send like the last one would be taken, at least in part."""
        if self.is_zero_copy_blocked:
            return self.can_zero_copy
        return self._send_bytes - self.buffered_bytes >= WRITABLE_BYTES_MIN

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing left to hand out."""
        return not (self.ready or self.pending_bytes or self.updates)

    # -- what the application gives

    def send(self, data: memoryview, *, may_zero_copy: bool) -> int:
        """Take bytes and return how many; copies them unless they go from the caller's memory."""
        byte_count = len(data)
        if may_zero_copy and byte_count >= ZERO_COPY_BYTES_MIN:
            return self._send_zero_copy(data)
        self.is_zero_copy_blocked = False
        room = self._send_bytes - self.buffered_bytes
        if byte_count > room:
            byte_count = room
            if room <= 0:
                return 0
            data = data[:room]
        self.buffered_bytes += byte_count
        self._stats.bytes_copied_in += byte_count
        if (
            self._unfinished < self._unfinished_max
            and not self.pending_bytes
            and self.credits
            and self.data_slots
            and self._spaces
            and byte_count <= self._spaces[0].byte_count
            and byte_count <= self._chunk_max
            and not self.updates
        ):
            if byte_count:
                self._post(bytes(data), byte_count, False)
            return byte_count
        self._gather(data, byte_count)
        return byte_count

    def _send_zero_copy(self, data: memoryview) -> int:
        """Post straight from the caller's memory as far as can be posted at once."""
        self.flush_updates()
        while self.pending_bytes and self.can_post:
            self._post_pending()
        taken, byte_count = 0, len(data)
        if self.can_zero_copy:
            while taken < byte_count and self.can_post:
                left = min(byte_count - taken, self._spaces[0].byte_count)
                chunk = chunk_of(left, self._chunk_max)
                self._post(data[taken : taken + chunk], chunk, True)
                taken += chunk
            self.zero_copy_bytes += taken
            self._stats.bytes_zero_copy += taken
        self.is_zero_copy_blocked = not taken
        if not taken:
            self._note_blocked()
        return taken

    def _gather(self, data: memoryview, byte_count: int) -> None:
        """Copy bytes to the end of what is pending."""
        self.pending_bytes += byte_count
        start = self._block_used
        end = start + byte_count
        if self._block is not None and end < self._block_bytes:
            self._block[start:end] = data
            self._block_used = end
        else:
            self._gather_in_blocks(data, byte_count)

    def _gather_in_blocks(self, data: memoryview, byte_count: int) -> None:
        """Copy bytes that fill the block, or need a first or a new one."""
        if byte_count >= BLOCK_BYTES_MAX // 2:
            self._seal()
            self._pending.append(memoryview(bytes(data)))
            return
        while byte_count:
            if self._block is None:
                self._block_bytes = max(self._block_bytes, min(byte_count * 2, BLOCK_BYTES_MAX))
                self._block = bytearray(self._block_bytes)
            start = self._block_used
            taken = min(byte_count, self._block_bytes - start)
            self._block[start : start + taken] = data[:taken]
            self._block_used += taken
            if self._block_used == self._block_bytes:
                self._seal()
                self._block_bytes = min(self._block_bytes * 2, BLOCK_BYTES_MAX)
            data, byte_count = data[taken:], byte_count - taken

    def _seal(self) -> None:
        """End the block that gathers: from here on it is only read."""
        if self._block is not None:
            self._pending.append(memoryview(self._block)[: self._block_used])
            self._block, self._block_used = None, 0

    # -- what goes to the queue pair

    def next_post(self) -> Post | None:
        """Return the next post that needs no control slot; the caller puts it in flight."""
        if self.updates:
            self.flush_updates()
        if self.ready:
            return self.ready.pop(0)
        if not self.pending_bytes:
            return None
        if self._unfinished >= self._unfinished_max and self.pending_bytes < COALESCE_BYTES_MAX:
            return None
        if not self.can_post:
            self._note_blocked()
            return None
        self._post_pending()
        return self.ready.pop(0)

    def flush_updates(self) -> None:
        """Make the updates of the iomap ready, as far as there are credits and slots for them.

        While one is left no data can be posted either, so none overtake it.
        """
        updates = self.updates
        while updates and self.credits and self.data_slots:
            self.ready.append(updates.pop(next(iter(updates))))
            self.data_slots -= 1
            self._stats.iomap_sent += 1
            if self._is_update_paid:
                self.credits -= 1
                self._sequence += 1

    def _post_pending(self) -> None:
        """Make one write of the front of what is pending."""
        if not self._pending:
            self._seal()
        front = self._pending[0]
        chunk = chunk_of(min(len(front), self._spaces[0].byte_count), self._chunk_max)
        if chunk == len(front):
            del self._pending[0]
        else:
            self._pending[0], front = front[chunk:], front[:chunk]
        self.pending_bytes -= chunk
        if not self.pending_bytes:
            self._block_bytes = BLOCK_BYTES_MIN
        self._post(front, chunk, False)

    def _post(self, data: bytes | memoryview, byte_count: int, is_zero_copy: bool) -> None:
        """Make a data message; its credit, slot and space are known to be there."""
        space = self._spaces[0]
        imm_data = _DATA_IMM | byte_count
        post = Post(_DATA, data, space.address, space.rkey, imm_data, is_zero_copy)
        if is_zero_copy:
            post.zero_copy_bytes = byte_count
        if byte_count == space.byte_count:
            del self._spaces[0]
        else:
            space.address += byte_count
            space.byte_count -= byte_count
        self.credits -= 1
        self._sequence += 1
        self.data_slots -= 1
        self._unfinished += 1
        self._is_blocked = False
        stats = self._stats
        stats.messages_sent += 1
        stats.bytes_sent += byte_count
        self.ready.append(post)

    def write_mapped(
        self, data: memoryview, places: Iterable[tuple[int, int, int]], *, may_zero_copy: bool
    ) -> int:
        """Post writes to `places` (address, key, length) as far as slots and room go; return bytes.

        Large data is posted from the caller's memory, else copied.
        """
        is_zero_copy = may_zero_copy and len(data) >= ZERO_COPY_BYTES_MIN
        taken = 0
        for address, rkey, byte_count in places:
            end = address + byte_count
            while address < end:
                chunk = chunk_of(end - address, self._chunk_max)
                chunk = chunk if is_zero_copy else min(chunk, self.room)
                if chunk <= 0 or not self.data_slots:
                    return taken
                part = data[taken : taken + chunk]
                self._post_direct(part if is_zero_copy else bytes(part), address, rkey)
                address += chunk
                taken += chunk
        return taken

    def _post_direct(self, data: bytes | memoryview, address: int, rkey: int) -> None:
        """Make a write into a mapped buffer; a memoryview is the caller's memory."""
        byte_count, is_zero_copy = len(data), isinstance(data, memoryview)
        self.data_slots -= 1
        self._stats.bytes_mapped += byte_count
        post = Post(PostKind.DIRECT, data, address, rkey, None, is_zero_copy)
        if is_zero_copy:
            self.zero_copy_bytes += byte_count
            self._stats.bytes_zero_copy += byte_count
            post.zero_copy_bytes = byte_count
        else:
            self.buffered_bytes += byte_count
            self._stats.bytes_copied_in += byte_count
        self.ready.append(post)

    def _note_blocked(self) -> None:
        """Count what pending bytes wait for, once until they move."""
        if self._is_blocked:
            return
        self._is_blocked = True
        stats = self._stats
        if not self.credits:
            stats.blocked_on_credit += 1
        elif not self._spaces:
            stats.blocked_on_space += 1
        else:
            stats.blocked_on_slots += 1

    # -- what comes back

    def handle_sent(self) -> Post:
        """Take the completion of the oldest post in flight and return it."""
        post = self.in_flight.pop(0)
        if not post.is_done:
            self._finish(post)
        if post.kind is _DATA and not (post.is_done and _is_long(post)):
            self._unfinished -= 1
        return post

    def handle_posted(self) -> None:
        """Have the newest post be done, unless its completion tells something.

        Short data are counted until it comes, so that small sends gather while the peer is behind.
        """
        if not self._lands:
            self._lands = True
            self.set_no_delay(self._no_delay)
        post = self.in_flight[-1] if self.in_flight else None
        if post is None or post.is_done or post.kind is PostKind.KEEPALIVE:
            return
        if post.imm_data != _DISCONNECT:
            post.is_done = True
            self._finish(post)
            if post.kind is _DATA and _is_long(post):
                self._unfinished -= 1

    def _finish(self, post: Post) -> None:
        """Give back what a post occupied."""
        if post.kind not in _IN_DATA_SLOTS:
            self.control_slots += 1
            return
        self.data_slots += 1
        if post.is_zero_copy:
            self.zero_copy_bytes -= post.zero_copy_bytes
        elif post.kind is not PostKind.IOMAP:
            self.buffered_bytes -= len(post.data)

    def drop_waiting(self) -> None:
        """Forget what is not in flight: the peer takes no more messages."""
        self.ready.clear()
        self.updates.clear()
        self._pending.clear()
        self._block, self._block_used, self.pending_bytes = None, 0, 0
        kinds = (PostKind.DATA, PostKind.DIRECT)
        kept = [post for post in self.in_flight if post.kind in kinds and not post.is_done]
        self.zero_copy_bytes = sum(post.zero_copy_bytes for post in kept)
        self.buffered_bytes = sum(len(post.data) for post in kept if not post.is_zero_copy)

    def drop_all(self) -> None:
        """Forget everything: no completion will come that matters."""
        self.in_flight.clear()
        self.drop_waiting()


def _is_long(post: Post) -> bool:
    """Return whether what follows a post gains nothing by gathering."""
    return max(len(post.data), post.zero_copy_bytes) >= COALESCE_BYTES_MAX


class LibrdmacmSending(Sending):
    """Sending as librdmacm does it, for tests that need such a peer.

    Each call posts at once what may be sent, in chunks that double from CHUNK_FIRST_BYTES, and
    refuses the rest: nothing waits or gathers, all is copied.
    Source: docs/reference/rsocket.md 4, 6.
    """

    __slots__ = ()

    @property
    def is_writable(self) -> bool:
        """Return whether librdmacm's "may send" holds."""
        return self.can_post and self.room >= WRITABLE_BYTES_MIN

    def send(self, data: memoryview, *, may_zero_copy: bool) -> int:
        """Post what may be sent; copies it."""
        taken, ramp = 0, CHUNK_FIRST_BYTES
        while taken < len(data) and self.is_writable:
            left = len(data) - taken
            # A last piece may be longer than the step before it.
            chunk = min(left if ramp >= left else ramp, self.room, self._spaces[0].byte_count)
            ramp = min(ramp * 2, CHUNK_LAST_BYTES)
            self.buffered_bytes += chunk
            self._stats.bytes_copied_in += chunk
            self._post(bytes(data[taken : taken + chunk]), chunk, False)
            taken += chunk
        return taken
