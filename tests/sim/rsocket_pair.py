"""Two stream cores and a model of the reliable queue pair between them, one step at a time.

A write of one side waits in its line until it lands; payload may land before its word, as over
shared memory, and a word waits until the peer takes it from its completion queue. Writes land,
words arrive and requests complete in the order of posting. When each of that happens is the
caller's choice.

What must hold of every write is checked here, from bytes and records of the wire alone: a
`DirectionState` keeps what one side has published for the other. So a core that both publishes and
believes the wrong thing is still found out.
"""

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import (
    CONTROL_SLOTS,
    Memory,
    MemorySource,
    Post,
    PostKind,
    StreamSettings,
    StreamState,
)
from urds.rsocket.wire.stream import (
    CREDIT_LIMIT_MASK,
    IOMAP_ENTRY_BYTES,
    SGE_BYTES,
    ByteOrder,
    ConnectData,
    ConnectFlag,
    Control,
    IomapEntry,
    Op,
    Sge,
    parse_imm_data,
)

GAP_BYTES = 4096  # between regions, so that no two of them continue each other
POSTS_MAX = 10_000  # that one call may leave behind
_OF_DATA_SLOTS = (PostKind.DATA, PostKind.IOMAP, PostKind.DIRECT)


class Arena:
    """The registered memory of one side."""

    def __init__(self, label: str, first_address: int) -> None:
        self.live: dict[int, Memory] = {}
        self._label = label
        self._next_address = first_address
        self._next_key = first_address >> 32 | 0x100
        self._is_closed = False

    def close(self) -> None:
        """Refuse the core more memory from now on."""
        self._is_closed = True

    def allocate(self, byte_count: int) -> Memory:
        if self._is_closed:
            raise OSError(errno.ENOMEM, "the arena is closed")
        return self.register(byte_count)

    def register(self, byte_count: int) -> Memory:
        memory = Memory(memoryview(bytearray(byte_count)), self._next_address, self._next_key)
        self.live[memory.rkey] = memory
        self._next_address += byte_count + GAP_BYTES
        self._next_key += 1
        return memory

    def release(self, memory: Memory) -> None:
        if self.live.pop(memory.rkey, None) is not memory:
            raise AssertionError(f"{self._label}: key {memory.rkey:#x} is released twice")

    def land(self, address: int, rkey: int, data: bytes) -> bool:
        """Write as the peer does; False if the key, or the range under it, is not there."""
        memory = self.live.get(rkey)
        if memory is None:
            return False
        start = address - memory.address
        if not 0 <= start <= start + len(data) <= memory.view.nbytes:
            return False
        memory.view[start : start + len(data)] = data
        return True


class DirectionState:
    """What the receiver of one direction has published, and what the sender has used of it."""

    def __init__(self, sender: ConnectData, receiver: ConnectData) -> None:
        self.table = sender.target_sgl
        is_big = bool(sender.flags & ConnectFlag.BIG_ENDIAN)
        self.byte_order: ByteOrder = "big" if is_big else "little"
        # An original wants the bytes of a message in one entry.
        self.is_whole = not sender.flags & receiver.flags & ConnectFlag.URDS
        sender_is_own = bool(sender.flags & ConnectFlag.URDS)
        # ADR 9: towards an original updates of the iomap cost nothing, for it gives nothing back.
        self.is_update_returned = bool(receiver.flags & ConnectFlag.URDS)
        self.is_update_paid = self.is_update_returned or not sender_is_own
        self.pieces = deque([receiver.data_buffer])
        self.index = 1
        self.limit = receiver.credits  # unwrapped, as the counts are
        self.sent = 0

    def publish(self, at: int, rkey: int, data: bytes) -> str:
        """Take note of an entry; return what is wrong with it."""
        slot = self.table.address + self.index * SGE_BYTES
        if (at, rkey, len(data)) != (slot, self.table.key, SGE_BYTES):
            return f"an entry of {len(data)} bytes at {at:#x}, due was slot {self.index}"
        if len(self.pieces) >= self.table.length:
            return f"entry {len(self.pieces) + 1} in a table of {self.table.length}"
        piece = Sge.parse(data, self.byte_order)
        if not piece.length:
            return "an entry without bytes"
        self.pieces.append(piece)
        self.index = (self.index + 1) % self.table.length
        return ""

    def fill(self, at: int, rkey: int, byte_count: int) -> str:
        """Use published space from its front; return what is wrong with that."""
        left, whole = byte_count, self.pieces[0] if self.pieces else Sge(0, 0, 0)
        if self.is_whole and byte_count > whole.length:
            return f"a write of {byte_count} bytes over an entry of {whole.length}"
        while left:
            if not self.pieces:
                return f"a write of {byte_count} bytes, {left} more than are published"
            piece = self.pieces.popleft()
            if (piece.address, piece.key) != (at, rkey):
                return f"a write to {at:#x}, published was {piece.address:#x}"
            taken = min(left, piece.length)
            left, at = left - taken, at + taken
            if taken < piece.length:
                self.pieces.appendleft(Sge(at, rkey, piece.length - taken))
        return ""

    def grant(self, limit: int) -> str:
        """Raise the limit; return what is wrong with it. It never falls."""
        step = limit - self.limit & CREDIT_LIMIT_MASK
        self.limit += step
        return f"limit {limit} is {step} ahead" if step > 0x7FFF else ""

    def spend(self) -> str:
        """Count a message that needs a credit; return what is wrong if there is none."""
        self.sent += 1
        return f"message {self.sent} over limit {self.limit}" if self.sent > self.limit else ""


@dataclass
class Flight:
    """A write on its way. Borrowed bytes were taken when it was posted."""

    post: Post
    data: bytes | memoryview
    landed: int = 0  # bytes of it that are in the peer's memory

    @property
    def is_landed(self) -> bool:
        return self.landed == len(self.data)


@dataclass
class Side:
    """One core with its memory and its half of the queue pair."""

    name: str
    core: StreamCore
    arena: Arena
    settings: StreamSettings
    line: deque[Flight] = field(default_factory=deque)  # not delivered
    acknowledged: int = 0  # delivered, and their completions not taken
    words: deque[int] = field(default_factory=deque)  # delivered, and not taken
    kinds: deque[PostKind] = field(default_factory=deque)  # of all that are not completed
    direction: DirectionState = field(init=False)  # of the direction in which this side sends
    mapped: list[IomapEntry] = field(default_factory=list)  # that ever were in this side's iomap
    ends: deque[int] = field(default_factory=deque)  # of messages taken and not read, in bytes
    taken_bytes: int = 0
    read_messages: int = 0
    is_over: bool = False
    is_silent: bool = False  # said DISCONNECT


class Pair:
    """Both sides, connected. Every method that moves something returns whether it could."""

    def __init__(
        self,
        label: str,
        settings: tuple[StreamSettings, StreamSettings],
        make: Callable[[StreamSettings, MemorySource], StreamCore] = StreamCore,
    ) -> None:
        self.label = label  # of this run, for messages of failures
        self.now_ns = 0
        arenas = [Arena(label, 0x10 << 40), Arena(label, 0x20 << 40)]
        self.sides = [
            Side(name, make(each, arena), arena, each)
            for name, each, arena in zip("AB", settings, arenas, strict=True)
        ]
        offers = [side.core.connect_data for side in self.sides]
        records = [ConnectData.parse(own_data) for own_data in offers]
        for index in (1, 0):  # who is asked learns first
            side = self.sides[index]
            side.direction = DirectionState(records[index], records[1 - index])
            # The connection manager pads private data.
            side.core.adopt(offers[1 - index] + bytes(156))
        self.is_cut, self.error = False, 0
        for side in self.sides:
            self.post_pending(side)

    def peer(self, side: Side) -> Side:
        return self.sides[side is self.sides[0]]

    def fail(self, what: str) -> AssertionError:
        return AssertionError(f"{self.label}: {what}")

    def expect_none(self, side: Side, problem: str) -> None:
        if problem:
            raise self.fail(f"{side.name} sent {problem}")

    # -- what a shell does

    def post_pending(self, side: Side) -> None:
        """Post all that a core has to say."""
        for _ in range(POSTS_MAX):
            post = side.core.poll_transmit()
            if post is None:
                return
            if not side.is_over:
                self._post(side, post)
        raise self.fail(f"{side.name} finds no end of posts")

    def _post(self, side: Side, post: Post) -> None:
        side.kinds.append(post.kind)
        control = sum(kind not in _OF_DATA_SLOTS for kind in side.kinds)
        data = len(side.kinds) - control
        if control > CONTROL_SLOTS or data > side.settings.send_queue - CONTROL_SLOTS:
            raise self.fail(f"{side.name} has {data} requests under way and {control} of control")
        if side.is_silent and post.imm_data is not None:
            raise self.fail(f"{side.name} sent {post.imm_data:#x} after its last word")
        if post.imm_data is not None:
            self._judge_word(side, *parse_imm_data(post.imm_data))
        raw = bytes(post.data) if post.is_zero_copy else post.data
        side.line.append(Flight(post, raw))

    def _judge_word(self, side: Side, op: Op, argument: int) -> None:
        if op is Op.DATA or (op is Op.IOMAP and side.direction.is_update_paid):
            self.expect_none(side, side.direction.spend())
        elif op is Op.CREDIT:
            granted = argument - side.read_messages & CREDIT_LIMIT_MASK
            if granted > side.settings.receive_queue:
                raise self.fail(
                    f"{side.name} granted {granted} beyond {side.read_messages} read messages"
                )
        side.is_silent |= (op, argument) == (Op.CONTROL, Control.DISCONNECT)

    def complete(self, side: Side) -> bool:
        """Take the oldest completion of a request."""
        if not side.acknowledged or side.is_over:
            return False
        side.acknowledged -= 1
        side.kinds.popleft()
        side.core.handle_sent()
        self.post_pending(side)
        return True

    def take_word(self, side: Side) -> bool:
        """Take the oldest word that has arrived."""
        if not side.words or side.is_over:
            return False
        imm_data = side.words.popleft()
        op, argument = parse_imm_data(imm_data)
        if side.core.lifecycle.state not in (StreamState.OPEN, StreamState.CLOSING):
            pass  # what crosses an own end belongs to neither side
        elif op is Op.DATA:
            side.taken_bytes += argument
            side.ends.append(side.taken_bytes)
        elif op is Op.IOMAP and self.peer(side).direction.is_update_returned:
            side.read_messages += 1
        try:
            side.core.receive_data(imm_data)
        except RemoteProtocolError as error:
            raise self.fail(f"{side.name} refused {imm_data:#010x}: {error}") from error
        return True

    def note_read(self, side: Side, read_bytes: int) -> None:
        """Count the messages that an application has read once it has so many bytes."""
        while side.ends and side.ends[0] <= read_bytes:
            side.ends.popleft()
            side.read_messages += 1

    # -- what the wire does

    def land(self, side: Side, byte_count: int) -> bool:
        """Let bytes of the write in front land before the word that goes with them."""
        if self.is_cut or not side.line or side.line[0].is_landed:
            return False
        flight = side.line[0]
        # An entry is one write of the bus; data may be seen half.
        part = byte_count if flight.post.kind is PostKind.DATA else len(flight.data)
        self._land(side, flight, part)
        return True

    def deliver(self, side: Side) -> bool:
        """Let the write in front arrive, word and all."""
        if self.is_cut or not side.line:
            return False
        flight = side.line[0]
        self._land(side, flight, len(flight.data))
        side.line.popleft()
        side.acknowledged += 1
        if flight.post.imm_data is not None:
            op, argument = parse_imm_data(flight.post.imm_data)
            if op is Op.CREDIT:
                self.expect_none(
                    side, self.peer(side).direction.grant(argument & CREDIT_LIMIT_MASK)
                )
            self._arrive(side, self.peer(side), flight.post.imm_data)
        return True

    def _arrive(self, side: Side, peer: Side, imm_data: int) -> None:
        """Let a word wait for the peer. Each takes a receive; without one the sender would stall.

        Beside the messages with credits these may be there: an entry for each slot of the table,
        two updates for the halves of the credits, SHUTDOWN and DISCONNECT.
        """
        peer.words.append(imm_data)
        receives = peer.settings.receive_queue + peer.direction.table.length + 4
        if side.direction.is_update_paid and len(peer.words) > receives:
            raise self.fail(f"{len(peer.words)} words wait for {peer.name}, of {receives} receives")

    def _land(self, side: Side, flight: Flight, byte_count: int) -> None:
        data = bytes(flight.data[flight.landed : flight.landed + byte_count])
        if not data:
            return
        at, rkey = flight.post.address + flight.landed, flight.post.rkey
        if not self.peer(side).arena.land(at, rkey, data):
            raise self.fail(f"{side.name} wrote {len(data)} bytes to {at:#x}, where none are")
        flight.landed += len(data)
        self.expect_none(side, self._judge_write(side, flight.post.kind, at, rkey, data))

    def _judge_write(self, side: Side, kind: PostKind, at: int, rkey: int, data: bytes) -> str:
        peer = self.peer(side)
        if kind is PostKind.DATA:
            return side.direction.fill(at, rkey, len(data))
        if kind is PostKind.CREDIT:
            return peer.direction.publish(at, rkey, data)
        if kind is PostKind.IOMAP:
            return self._judge_mapping(peer, at, rkey, data)
        if kind is PostKind.DIRECT:
            return self._judge_direct(side, at, rkey, len(data))
        return f"{len(data)} bytes with {kind.name}"

    def _judge_mapping(self, peer: Side, at: int, rkey: int, data: bytes) -> str:
        table = peer.direction.table
        slot, rest = divmod(at - table.address - table.length * SGE_BYTES, IOMAP_ENTRY_BYTES)
        slots = peer.settings.iomap_slots
        if rest or rkey != table.key or not 0 <= slot < slots:
            return f"a mapping at {at:#x}, where no slot is"
        entry = IomapEntry.parse(data, peer.direction.byte_order)
        if entry.length:  # else a mapping ended; writes may be under way to it
            peer.mapped.append(entry)
        return ""

    def _judge_direct(self, side: Side, at: int, rkey: int, byte_count: int) -> str:
        for entry in side.mapped:
            start = at - entry.address
            if entry.key == rkey and 0 <= start <= start + byte_count <= entry.length:
                return ""
        return f"{byte_count} bytes to {at:#x}, where no buffer is mapped"

    # -- the end

    def cut(self, error: int) -> None:
        """End the connection, in order if `error` is 0: what is not delivered never will be."""
        self.is_cut, self.error = True, error

    def end(self, side: Side) -> bool:
        """Tell a side that the connection is over, once it has taken all words that arrived."""
        if not self.is_cut or side.words or side.is_over:
            return False
        was_open = side.core.lifecycle.state is StreamState.OPEN
        side.is_over = True
        side.line.clear()
        side.kinds.clear()
        if self.error == errno.EIO:
            side.core.handle_disconnected("a write failed", errno.EIO)
        else:
            side.core.handle_disconnected("the connection is over", self.error)
        if side.core.lifecycle.error != (self.error if was_open else 0):
            raise self.fail(f"{side.name} has error {side.core.lifecycle.error} after {self.error}")
        self.post_pending(side)
        return True
