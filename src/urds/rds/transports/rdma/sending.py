"""The sending half: number, cut, keep until acknowledged, retransmit after a break.

A value machine: no I/O, no clock, no lock. A message is in one place at a time:

    unsent       has no number yet; nothing of it was handed to the connection
    current      is being posted: its operations piece by piece, then its frames
    unacked      is posted; kept until the peer acknowledges its number
    silents      posted and without a frame: finished when its operations are
    retransmits  was unacknowledged when a connection broke; goes first, with its old number

Where both sides pack frames (docs/adr/0047), messages that follow each other go in one frame as far
as they fit it whole. The core decides whether a frame leaves or waits for more of them.

A message is numbered when its first frame is made, so that cancelling an unsent one leaves no
hole; Linux numbers it when it is queued. The map is a message without number and owner.

Operations are handed over once and never retried: what a broken connection did of them is unknown.
A message whose operations have all succeeded is retransmitted alone. An operation that is taken
back (its message cancelled) ends when the pieces that the device has are done, for until then the
device may touch its memory. Source: linux v6.12 net/rds/send.c, net/rds/ib_send.c;
docs/reference/rds.md 1.6, 1.7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from urds.rds.constants import HeaderFlag, RdmaStatus
from urds.rds.plane.contract import AtomicOperation, Buffer, Operation, RdmaTransfer
from urds.rds.plane.message_transport import Gathered
from urds.rds.transports.rdma.frames import (
    FRAGMENT_BYTES,
    PACKED_BYTES,
    Frame,
    Message,
    MessageHeader,
    Piece,
    Task,
    fragment_count,
    with_keys,
)
from urds.rds.transports.rdma.queues import Bundle, Queues

if TYPE_CHECKING:
    from urds.rds.plane.contract import Mailbox as Owner
    from urds.rds.plane.python.counters import Counters
    from urds.rds.transports.rdma.core import CoreLimits

_RETRANSMITTED = int(HeaderFlag.RETRANSMITTED)
_ACK_REQUIRED = int(HeaderFlag.ACK_REQUIRED)
_CONG_BITMAP = int(HeaderFlag.CONG_BITMAP)


class Want(Enum):
    """What has to be posted next."""

    NOTHING = auto()
    PIECE = auto()  # of an operation
    FRAME = auto()


class _Budget:
    """What may be sent before a message asks for an acknowledgement.

    Kernel parity: a new connection object has none: its first message wants an acknowledgement.
    """

    def __init__(self, limits: CoreLimits) -> None:
        self._limits = limits
        self._packets_left = 0
        self._bytes_left = 0

    def take(self, payload_bytes: int) -> bool:
        """Spend a message; false, and the whole budget again, if there is too little."""
        if not self._packets_left or self._bytes_left < payload_bytes:
            self.refill()
            return False
        self._packets_left -= 1
        self._bytes_left -= payload_bytes
        return True

    def emit(
        self, gathered: Gathered, sequence: int, acknowledgement: int, credit: int
    ) -> tuple[bytes, int]:
        """Spend gathered messages; return their bytes, and how many had too little."""
        limits = self._limits
        left = (self._packets_left, self._bytes_left)
        data, asked, *left_then = gathered.emit(
            sequence,
            acknowledgement,
            credit,
            (*left, limits.unacked_packets_max, limits.unacked_bytes_max),
        )
        self._packets_left, self._bytes_left = left_then
        return data, asked

    def left(self) -> tuple[int, int, int, int]:
        """Return packets and bytes left, and of a whole budget."""
        limits = self._limits
        whole = limits.unacked_packets_max, limits.unacked_bytes_max
        return self._packets_left, self._bytes_left, *whole

    def take_back(self, packets_left: int, bytes_left: int) -> None:
        """Have so much left."""
        self._packets_left, self._bytes_left = packets_left, bytes_left

    def refill(self) -> None:
        """Have the whole budget again."""
        self._packets_left = self._limits.unacked_packets_max
        self._bytes_left = self._limits.unacked_bytes_max


class Outgoing(Queues):
    """Queues, numbers and operations of one direction of a connection."""

    def __init__(self, limits: CoreLimits, counters: Counters, *, sequence_first: int) -> None:
        super().__init__(counters)
        self.limits = limits
        self.sequence_next = sequence_first
        self.ended: deque[tuple[Owner, Operation]] = deque()  # to be told by the core
        self._running: dict[Task, None] = {}  # handed over and not ended, in their order
        self.fragment_bytes = FRAGMENT_BYTES  # of this connection
        self.is_packed = False  # frames of this connection may hold several messages
        self._fragment = 0  # frames of `current` that were posted
        self._header: MessageHeader | None = None
        self.budget = _Budget(limits)

    # -- queueing

    def queue(
        self,
        owner: Owner | None,
        source_port: int,
        target_port: int,
        payload: Buffer,
        extension: bytes = b"",
        operations: Sequence[Operation] = (),
        *,
        ack_required: bool = False,
    ) -> None:
        """Queue one message, which is charged to its owner until it is in `freed`.

        What has gathered comes before it.

        `ack_required` asks for an acknowledgement: the account is half full with this message.
        """
        message = Message(
            owner, source_port, target_port, payload, extension, ack_required=ack_required
        )
        if operations:
            assert owner is not None, "operations belong to a socket"
            message.is_silent = (
                not payload and not any(extension) and all(one.silent for one in operations)
            )
            # Source: linux v6.12 net/rds/send.c (rds_send_xmit): RDMA first, then atomics.
            ordered = sorted(operations, key=lambda one: isinstance(one, AtomicOperation))
            message.tasks = tuple(Task(message, owner, operation) for operation in ordered)
            message.extension = with_keys(extension, ordered)
            self.counters.send_rdma += sum(isinstance(one, RdmaTransfer) for one in ordered)
        self._absorb()
        self._unsent.append(message)
        self._unsent_bytes += message.frame_bytes
        self.counters.send_queued += 1
        self.counters.copy_from_user += len(payload)

    # -- what is posted

    def want(self) -> Want:
        """Tell what is to be posted next, without the map that may be due."""
        message = self.current
        if message is None:
            if self.retransmits:
                return Want.FRAME
            self._absorb()
            if not self._unsent:
                return Want.NOTHING
            first = self._unsent[0]
            if isinstance(first, Bundle):
                return Want.FRAME
            message = first
        return Want.PIECE if message.next_task() else Want.FRAME

    def take_piece(self, wr_id: int) -> tuple[Piece, Task]:
        """Take the next piece of an operation, and with its first one the message, for posting."""
        message = self._begin_next()
        task = message.next_task()
        assert task is not None, "the caller asks `want` first"
        if not message.was_handed_over:
            message.was_handed_over = True
            self._running.update(dict.fromkeys(message.tasks))
        piece = task.next_piece(wr_id)
        if message.is_silent and message.next_task() is None:
            self._silents[message] = None
            self.current = None
        return piece, task

    def begin_map(self, data: bytes) -> None:
        """Make the local congestion map the message that is posted next."""
        assert self.current is None, "a map stands between messages"
        self._begin(Message(None, 0, 0, data, is_map=True))
        self.counters.cong_update_queued += 1

    def take_frame(
        self, wr_id: int, *, acknowledgement: int, credit: int, solicited: bool
    ) -> Frame:
        """Take the next frame for posting; with its first one a message gets its number.

        The last frame is solicited in any case.
        """
        if self.is_packed and not self.current and not self.retransmits and self._bundle_is_next():
            data = self._pack(self._take_bundle(acknowledgement, credit))
            return Frame(wr_id, data, solicited=True)
        message = self._begin_next()
        is_first = self._header is None
        fence = is_first and bool(message.tasks) and message.asks_fence()
        data, is_last = self._take_fragment(message, acknowledgement, credit)
        if self.is_packed and is_last and is_first:
            data = self._pack(data)
        return Frame(wr_id, data, solicited=solicited or is_last, fence=fence)

    def _take_fragment(
        self, message: Message, acknowledgement: int, credit: int
    ) -> tuple[bytes, bool]:
        """Take the next fragment with its header; return also whether it is the last one."""
        header = self._header = self._header or self._make_header(message)
        payload = message.fragment(self._fragment, self.fragment_bytes)
        data = header.emit(acknowledgement=acknowledgement, credit=credit, payload=payload)
        self._fragment += 1
        is_last = self._fragment == fragment_count(len(message.payload), self.fragment_bytes)
        if is_last:
            self.current = None
            if not message.is_map and not message.is_taken_back:
                self._unacked.append(message)
        return data, is_last

    def _pack(self, first: bytes) -> bytes:
        """Put the messages that come next behind the first one, as far as they fit whole.

        One that brings operations begins a frame: they are posted before it.
        """
        self._absorb()
        parts, room_bytes = [first], PACKED_BYTES - len(first)
        while queue := self.retransmits or self._unsent:
            head = queue[0]
            if isinstance(head, Bundle) and head.gathered.frame_bytes > room_bytes:
                head = self.unsent[0]  # some of its messages may fit
            # The first header of a frame acknowledges and grants.
            if isinstance(head, Bundle):
                data = self._take_bundle(0, 0)
            elif head.tasks or head.frame_bytes > room_bytes:
                break
            else:
                data, _ = self._take_fragment(self._begin_next(), 0, 0)
            parts.append(data)
            room_bytes -= len(data)
        return b"".join(parts) if len(parts) > 1 else first

    def _bundle_is_next(self) -> bool:
        return bool(self._unsent) and isinstance(self._unsent[0], Bundle)

    def _take_bundle(self, acknowledgement: int, credit: int) -> bytes:
        """Take the bundle that is next for posting; its messages get their numbers."""
        bundle = self._unsent.popleft()
        assert isinstance(bundle, Bundle), "the caller asks first"
        gathered = bundle.gathered
        self._unsent_bytes -= gathered.frame_bytes
        bundle.first = self.sequence_next
        self.sequence_next += len(gathered)
        bundle.sequence = self.sequence_next - 1
        data, asked = self.budget.emit(gathered, bundle.first, acknowledgement, credit)
        self.counters.send_ack_required += asked
        self._unacked.append(bundle)
        return data

    def _begin_next(self) -> Message:
        message = self.current
        if message is None:
            if self.retransmits:
                message = self.retransmits.popleft()
            else:
                first = self._unsent.popleft()
                if isinstance(first, Bundle):  # frames are not packed any more
                    self._unsent.appendleft(first)
                    first = self.unsent.popleft()
                message = first
                self._unsent_bytes -= message.frame_bytes
            self._begin(message)
        return message

    def _begin(self, message: Message) -> None:
        self.current, self._fragment, self._header = message, 0, None

    def _make_header(self, message: Message) -> MessageHeader:
        flags = _CONG_BITMAP
        if not message.is_map:
            flags = self._flags(message)
            if not message.sequence:
                message.sequence = self.sequence_next
                self.sequence_next += 1
        return message.header(flags)

    def _flags(self, message: Message) -> int:
        """Return the flags of a message. Source: docs/reference/rds.md 1.6, its three rules."""
        flags = _ACK_REQUIRED if message.ack_required else 0
        if message.is_retransmit:
            flags |= _RETRANSMITTED | _ACK_REQUIRED
            self.counters.send_retransmitted += 1
        if not self.budget.take(len(message.payload)):
            flags |= _ACK_REQUIRED
            self.counters.send_ack_required += 1
        return flags

    # -- how it ended

    def handle_acknowledged(self, sequence: int) -> bool:
        """Free everything up to `sequence`; False if that was never sent."""
        if sequence > self._sent_last():
            return False
        while self._unacked and self._unacked[0].sequence <= sequence:
            done = self._unacked.popleft()
            if isinstance(done, Bundle):
                self._free_bundle(done)
            else:
                self._free(done)
        if self._unacked and isinstance(first := self._unacked[0], Bundle):
            while first.first <= sequence and self.unacked[0].sequence <= sequence:
                self._free(self.unacked.popleft())
        while self.retransmits and self.retransmits[0].sequence <= sequence:
            self._free(self.retransmits.popleft())
        return True

    def _sent_last(self) -> int:
        """Return the highest number whose message was posted to its end."""
        current = self.current
        is_partly_sent = current is not None and current.sequence and not current.is_retransmit
        return self.sequence_next - (2 if is_partly_sent else 1)

    def handle_piece_done(self, task: Task) -> bool:
        """Count a piece as done; true if the operation has ended with success."""
        task.done += 1
        if task.operation.status is not None:
            return False
        if task.final is not None:
            if task.done == task.posted:
                self._end(task, task.final)
            return False
        if task.done < task.pieces:
            return False
        self._end(task, RdmaStatus.SUCCESS)
        message = task.message
        if message in self._silents and all(
            one.operation.status is not None for one in message.tasks
        ):
            del self._silents[message]
            self._free(message)
        return True

    def handle_piece_failed(self, task: Task, status: RdmaStatus) -> None:
        """End an operation; its message must not arrive without it and is dropped."""
        task.done += 1
        if task.operation.status is not None:
            return
        self._end(task, status if task.final is None else task.final)
        message = task.message
        if self._remove_sent(message):
            self.counters.send_given_up += self._give_up([message])

    def _remove_sent(self, message: Message) -> bool:
        """Take a message that was handed over out of its place; false if it is finished."""
        if message is self.current:
            self._leave_current()
        elif message in self._silents:
            del self._silents[message]
        elif message in self.unacked:
            self.unacked.remove(message)
        else:
            return False
        return True

    def _leave_current(self) -> None:
        """Drop the message that is being posted; once begun, its frames go on to the last."""
        if self._header is None:
            self.current = None
        elif self.current is not None:
            self.current.is_taken_back = True

    def end_connection(self) -> None:
        """Move unacknowledged messages to `retransmits`, in order; end their operations."""
        for task in list(self._running):
            self._end(task, RdmaStatus.DROPPED if task.final is None else task.final)
        current, self.current = self.current, None
        sent = [*self.unacked]
        if current is not None and not current.is_taken_back:
            if current.sequence:
                sent.append(current)
            elif current.was_handed_over:
                self._return_to_unsent(current)
        kept = [message for message in sent if message.has_succeeded()]
        lost = [message for message in sent if not message.has_succeeded()]
        lost += self._silents
        self._silents.clear()
        self.unacked.clear()
        for message in kept:
            message.is_retransmit = True
            message.tasks = ()
        self.retransmits.extendleft(reversed(kept))
        self.counters.send_given_up += self._give_up(lost)
        self.budget.refill()

    def _return_to_unsent(self, message: Message) -> None:
        """Keep a message without a number, if its operations are done; they are not retried."""
        if message.has_succeeded():
            message.tasks = ()
            self.unsent.appendleft(message)
            self._unsent_bytes += message.frame_bytes
        else:
            self.counters.send_given_up += self._give_up([message])

    # -- taking messages out

    def cancel(
        self,
        owner: Owner,
        target_port: int | None,
        status: RdmaStatus = RdmaStatus.CANCELED,
    ) -> int:
        """Remove the owner's messages, to one port or to all; return how many.

        A message whose frames have begun goes out to its end, for the sake of framing; only its
        retransmission ends. Source: linux v6.12 net/rds/send.c (rds_send_drop_to).
        """
        chosen = [
            message
            for message in self._messages()
            if message.owner is owner and target_port in (None, message.target_port)
        ]
        self._take_out(chosen, status)
        for message in chosen:
            self._free(message)
        return len(chosen)

    def drop_handed_over(self) -> int:
        """Drop what an earlier generation of the peer was handed and did not acknowledge."""
        assert not self.unacked, "the connection has ended"
        handed = [*self.retransmits, *(one for one in self.unsent if one.was_handed_over)]
        self._take_out(handed, RdmaStatus.DROPPED)
        return self._give_up(handed)

    def drop_all(self) -> int:
        """Drop every message; return how many of sockets."""
        messages = list(self._messages())
        self._take_out(messages, RdmaStatus.DROPPED)
        return self._give_up(messages)

    def _take_out(self, messages: Sequence[Message], status: RdmaStatus) -> None:
        """Remove messages from every queue and take their operations back."""
        chosen = set(messages)
        if not chosen:
            return
        self.unsent = deque(one for one in self.unsent if one not in chosen)
        self.retransmits = deque(one for one in self.retransmits if one not in chosen)
        self.unacked = deque(one for one in self.unacked if one not in chosen)
        self._silents = {one: None for one in self._silents if one not in chosen}
        if self.current in chosen:
            self._leave_current()
        for message in messages:
            for task in message.tasks:
                self._take_back(task, status)
            message.tasks = ()  # see `_free`

    def _take_back(self, task: Task, status: RdmaStatus) -> None:
        """End an operation now, or when the pieces that the device has are done."""
        if task.operation.status is not None:
            return
        if task.posted == task.done:
            self._end(task, status)
        else:
            task.final = status

    def _end(self, task: Task, status: RdmaStatus) -> None:
        task.operation.status = status
        self._running.pop(task, None)
        self.ended.append((task.owner, task.operation))

    def _give_up(self, messages: Iterable[Message]) -> int:
        """Free accounts of messages that will not arrive; return how many are of sockets."""
        count = 0
        for message in messages:
            owner = message.owner
            if owner is None:
                continue  # a pong: of no socket
            count += 1
            self._free(message)
        return count

    def _free(self, message: Message) -> None:
        # Tasks name their message. In a cycle with it they would keep the buffers of operations
        # that have ended, until the next garbage collection.
        message.tasks = ()
        owner = message.owner
        if owner is not None:
            messages, freed_bytes = self.freed.get(owner, (0, 0))
            self.freed[owner] = messages + 1, freed_bytes + len(message.payload)
            message.owner = None
