"""The core of one connection of RDS over RDMA: what to post, and what follows from what came.

A value machine: no I/O, no clock, no lock, no randomness. Its shell guards it with a lock:

    attach, detach         a connection was established, it is gone
    poll_work              the next thing to post
    handle_completed       how something posted ended
    handle_frame           what a receive brought
    handle_posted          receives were posted again

Order on a fresh connection: the congestion map, retransmits, new messages. An acknowledgement rides
on every header; it gets a frame of its own when no header is about to leave, one at a time. Such a
frame may stand between the frames of a message, nothing else may.

The sending half is `sending`, the receiving half `receiving`, flow control `credits`.
Source: linux v6.12 net/rds/ib_send.c, net/rds/ib_recv.c, net/rds/send.c;
docs/reference/rds.md 1, 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import AtomicOperation, Operation, RdmaTransfer
from urds.rds.transports.rdma.credits import CREDITS_MAX, Credits
from urds.rds.transports.rdma.frames import (
    ACK_ONLY,
    FRAGMENT_BYTES,
    LONG_FRAGMENT_BYTES,
    Frame,
    Outcome,
    Task,
    Work,
    is_ack_only,
)
from urds.rds.transports.rdma.posted import PostedWork
from urds.rds.transports.rdma.receiving import Incoming
from urds.rds.transports.rdma.sending import Outgoing, Want
from urds.rds.wire.checksum import header_intact
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.header import HEADER, HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urds.rds.plane.contract import Mailbox as Owner
    from urds.rds.plane.python.counters import Counters
    from urds.rds.transports.rdma.counters import RdmaCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    """Bounds and choices of one connection."""

    send_ring: int = 256  # work requests posted and not completed
    receive_ring: int = 256
    message_bytes_max: int = 1 << 20  # also what a peer may announce; checked before allocation
    messages_max: int = 65_536  # queued and unacknowledged; beyond it pings stay unanswered
    unacked_packets_max: int = 8  # every so many messages one has ACK_REQUIRED
    unacked_bytes_max: int = 16 << 20
    flow_control: bool = False  # whether this side offers credits


class Around(Protocol):
    """What a shell does for a core; called with the core's lock held."""

    is_paused: bool  # set where a mailbox is far over its buffer: receive no more for now

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> None:
        """Put a message into its inbox; `extension` is empty if all its bytes are 0."""

    def take_map(self, data: bytes) -> None:
        """Put the peer's congestion map in force."""

    def map_bytes(self) -> bytes:
        """Return the local congestion map as it is now."""

    def may_answer_ping(self, port: int) -> bool:
        """Tell whether a pong may be sent: pings are answered, and the port is not congested."""

    def key_used(self, target_port: int, key: int) -> None:
        """Note that the message to this port was preceded by an operation with this local key."""

    def operation_ended(self, owner: Owner, operation: Operation) -> None:
        """Note how an operation ended; its `status` is set."""


class ConnectionCore:
    """State of one connection to a peer, over all its outages.

    The shell queues and counts messages in `outgoing`, whose `freed` it clears.
    """

    def __init__(
        self,
        limits: CoreLimits,
        counters: Counters,
        rdma: RdmaCounters,
        around: Around,
        *,
        sequence_first: int,
    ) -> None:
        self.limits = limits
        self.counters = counters
        self.rdma = rdma
        self.is_attached = False
        self.map_due = False  # set by the shell when the local map changed on a connection
        self._was_acknowledged = False  # by a frame of this connection
        self._around = around
        self.outgoing = Outgoing(limits, counters, sequence_first=sequence_first)
        self.incoming = Incoming(limits, counters, rdma, around, answer_ping=self._answer_ping)
        self._credits = Credits()
        self._posted = PostedWork()  # at most `send_ring`
        self._is_packed = False  # frames of this connection may hold several messages

    # -- the connection comes and goes

    def offer(self, posted: int) -> int:
        """Return the credits for the private data: `posted` receives, 0 without flow control."""
        return self._credits.offer(posted if self.limits.flow_control else 0)

    @property
    def acknowledge_sequence(self) -> int:
        """The highest number received, for the private data."""
        return max(0, self.incoming.sequence_expected - 1)

    def attach(
        self,
        *,
        acknowledged: int,
        credits: int,
        frame_format: FrameFormat = FrameFormat.SHORT,
    ) -> None:
        """Begin a connection with the contents of the peer's private data; the map goes first.

        An acknowledgement of what was never sent is ignored here: it is about another generation of
        this node, and the first frame that contains it again ends the connection.
        """
        assert not self.is_attached, "the shell detaches first"
        self.is_attached = True
        self.map_due = True
        self._was_acknowledged = False
        self._credits.begin(credits)
        is_long = frame_format >= FrameFormat.LONG
        fragment_bytes = LONG_FRAGMENT_BYTES if is_long else FRAGMENT_BYTES
        self.outgoing.fragment_bytes = self.incoming.fragment_bytes = fragment_bytes
        self._is_packed = self.outgoing.is_packed = frame_format >= FrameFormat.PACKED
        if acknowledged:
            self.outgoing.handle_acknowledged(acknowledged)

    def detach(self) -> None:
        """End the connection.

        Unacknowledged messages will be retransmitted, a partial one is forgotten. Operations that
        were handed over and have not ended end with DROPPED, and their messages are dropped.
        """
        if not self.is_attached:
            return
        self.is_attached = False
        self.map_due = False
        self._posted.end_connection()
        self._credits.end()
        self.incoming.end_connection()
        self._is_packed = self.outgoing.is_packed = False
        self.outgoing.end_connection()
        self.update_gathering()
        self.counters.conn_reset += 1
        self._tell_ended()

    def restart_peer(self) -> int:
        """Begin another generation of the peer, without a connection.

        Returns how many messages its old generation took with it: they were handed to it.
        """
        assert not self.is_attached, "the shell detaches first"
        self.incoming.restart_peer()
        return self.outgoing.drop_handed_over()

    def expect(self, sequence: int) -> None:
        """Restore what this generation of the peer has sent: before its first connection here."""
        assert not self.is_attached, "numbers are known before frames come"
        self.incoming.sequence_expected = max(self.incoming.sequence_expected, sequence)

    # -- messages

    def cancel(
        self,
        owner: Owner,
        target_port: int | None,
        status: RdmaStatus = RdmaStatus.CANCELED,
    ) -> int:
        """Remove the owner's messages, to one port or to all; return how many.

        Their operations end with `status`, those that the device works at when it is done.
        """
        count = self.outgoing.cancel(owner, target_port, status)
        self._tell_ended()
        return count

    def drop_all(self) -> int:
        """Drop every message; return how many. Their operations end with DROPPED."""
        count = self.outgoing.drop_all()
        self._tell_ended()
        return count

    # -- work

    def wants_work(self) -> bool:
        """Tell whether `poll_work` would return something."""
        if not self.is_attached or len(self._posted) >= self.limits.send_ring:
            return False
        if self._want() is Want.PIECE:
            return True
        return self._credits.may_take() and (
            self._want() is Want.FRAME or self._acknowledgement_may_go()
        )

    def poll_work(self) -> Work | None:
        """Return the next thing to post; None: nothing to do, the ring is full, or no credit."""
        if not self.is_attached:
            return None
        want = self._want()
        if len(self._posted) >= self.limits.send_ring:
            self.rdma.ib_tx_ring_full += want is not Want.NOTHING
            return None
        # The pieces of an operation carry no header, so an acknowledgement would wait for them.
        if want is not Want.FRAME and self._acknowledgement_may_go() and self._credits.may_take():
            return self._post_acknowledgement()
        if want is Want.PIECE:
            return self._post_piece()
        if want is Want.NOTHING:
            self.rdma.ib_ack_send_delayed += self._acknowledgement_is_due()
            self.update_gathering()
            return None
        if not self._credits.may_take():
            self.rdma.ib_tx_throttle += 1
            return None
        return self._post_frame()

    def update_gathering(self) -> None:
        """Tell the plane how many bytes may gather there, now that nothing leaves."""
        self.outgoing.gatherer.set_gathering(self.outgoing.room_bytes if self._gathers() else 0)

    def _want(self) -> Want:
        if self.map_due and self.outgoing.current is None:
            return Want.FRAME
        want = self.outgoing.want()
        return Want.NOTHING if want is Want.FRAME and self._gathers() else want

    def _gathers(self) -> bool:
        """Tell whether messages wait for others to fill their frame.

        They wait for frames under way: the first of a burst leaves at once, and the last when the
        device has done with what went before. A frame that leaves anyway takes them along.
        """
        return (
            self._is_packed
            and self._posted.frames > 0
            and self.outgoing.may_gather()
            and not self._acknowledgement_may_go()
        )

    def _acknowledgement_may_go(self) -> bool:
        """Tell whether an acknowledgement of its own is due, and none is on its way."""
        return self._acknowledgement_is_due() and not self._posted.has_acknowledgement

    def _acknowledgement_is_due(self) -> bool:
        return self.incoming.acknowledgement_asked or self._credits.update_is_due()

    def _post_piece(self) -> Work:
        piece, task = self.outgoing.take_piece(self._posted.wr_id_next)
        self._posted.note_piece(task)
        return piece

    def _post_frame(self) -> Work:
        outgoing, incoming = self.outgoing, self.incoming
        if self.map_due and outgoing.current is None:
            data = self._around.map_bytes()
            self.map_due = False
            outgoing.begin_map(data)
        self.rdma.ib_ack_send_piggybacked += incoming.acknowledgement_asked
        credit = self._take_credit()
        frame = outgoing.take_frame(
            self._posted.wr_id_next,
            acknowledgement=incoming.acknowledgement,
            credit=credit,
            # A peer that only solicited frames wake would else not grant the awaited credits.
            solicited=not self._credits.may_take(),
        )
        incoming.note_ack_sent()
        self._posted.note_frame()
        return frame

    def _post_acknowledgement(self) -> Work:
        credit = self._take_credit()
        data = ACK_ONLY.emit(acknowledgement=self.incoming.acknowledgement, credit=credit)
        frame = Frame(self._posted.wr_id_next, data, solicited=True)
        self.rdma.ib_ack_sent += 1
        self.incoming.note_ack_sent()
        self._posted.note_acknowledgement()
        return frame

    def _take_credit(self) -> int:
        credit = self._credits.take()
        self.rdma.ib_tx_credit_updates += credit > 0
        return credit

    @property
    def is_useful(self) -> bool:
        """Whether a message has passed on this connection, in either direction."""
        return self._was_acknowledged or self.incoming.acknowledgement > 0

    @property
    def has_ack_pending(self) -> bool:
        """Whether messages lie in inboxes that no acknowledgement has named yet."""
        return self.is_attached and self.incoming.has_ack_pending

    def acknowledge(self) -> None:
        """Make a pending acknowledgement due at once: later there may be no connection."""
        if self.has_ack_pending:
            self.incoming.acknowledgement_asked = True

    # -- what happened

    def handle_completed(self, wr_id: int, outcome: Outcome) -> None:
        """Note how a work request ended; earlier ones that were not reported are done."""
        for task, is_reported in self._posted.complete(wr_id):
            self._handle_piece_completed(task, outcome if is_reported else Outcome.DONE)
        if self.outgoing.ended:
            self._tell_ended()

    def _handle_piece_completed(self, task: Task, outcome: Outcome) -> None:
        if outcome is Outcome.DONE:
            if self.outgoing.handle_piece_done(task):
                self._count_success(task.operation)
        elif outcome is Outcome.REMOTE_ACCESS:
            self.outgoing.handle_piece_failed(task, RdmaStatus.REMOTE_ERROR)
        elif outcome is Outcome.FAILED:
            self.outgoing.handle_piece_failed(task, RdmaStatus.OTHER_ERROR)
        # FLUSHED: the end of the connection reports DROPPED; kernel parity.

    def _count_success(self, operation: Operation) -> None:
        if isinstance(operation, RdmaTransfer):
            if operation.is_write:
                self.counters.send_rdma_bytes += operation.payload_bytes
            else:
                self.counters.recv_rdma_bytes += operation.payload_bytes
        elif isinstance(operation, AtomicOperation):
            self.rdma.ib_atomic_cswp += operation.is_compare
            self.rdma.ib_atomic_fadd += not operation.is_compare

    def _tell_ended(self) -> None:
        ended = self.outgoing.ended
        while ended:
            self._around.operation_ended(*ended.popleft())

    def handle_posted(self, count: int) -> None:
        """Note receives that were posted again; the next frames grant them."""
        self._credits.note_posted(count)

    def handle_frame(self, data: memoryview) -> str | None:
        """Take what a receive brought; return the protocol error that ends the connection, or None.

        After a protocol error the shell calls nothing but `detach`.
        """
        if not self.is_attached:
            return None
        while True:
            end = self._take_plain(data)
            if not end:
                reason, end = self._take_header(data)
                if reason is not None:
                    return reason
            if end >= len(data):
                return None
            data = data[end:]

    def _take_plain(self, data: memoryview) -> int:
        """Have the plane deliver the plain messages that come next; return their bytes."""
        incoming = self.incoming
        if incoming.is_partial or not self._is_packed:
            return 0
        bytes_max = min(LONG_FRAGMENT_BYTES, self.limits.message_bytes_max)
        delivered = self.outgoing.gatherer.deliver_plain(
            data, bytes_max, incoming.sequence_expected
        )
        taken_bytes, sequence_expected, messages, asked, pauses = delivered
        if messages:
            incoming.note_plain(sequence_expected, messages, asked)
        if pauses:
            self._around.is_paused = True
        return taken_bytes

    def _take_header(self, data: memoryview) -> tuple[str | None, int]:
        """Take a header and its payload; return the protocol error, and where they end."""
        if len(data) < HEADER_BYTES:
            return f"frame of {len(data)} bytes, header {HEADER_BYTES}", 0
        fields = HEADER.unpack_from(data)
        if not header_intact(fields):
            self.counters.recv_drop_bad_checksum += 1
            return f"header checksum {fields[8]:#06x} does not match", 0
        acknowledged, credit = fields[1], fields[6]
        if acknowledged and not self.outgoing.handle_acknowledged(acknowledged):
            self.counters.recv_drop_bad_ack += 1
            next_ = self.outgoing.sequence_next
            return f"BAD_ACKNOWLEDGEMENT: {acknowledged}, next number {next_}", 0
        self._was_acknowledged |= acknowledged > 0
        if credit:
            self.rdma.ib_rx_credit_updates += 1
            if not self._credits.handle_granted(credit):
                return f"credits above {CREDITS_MAX}", 0
        payload = data[HEADER_BYTES:]
        if is_ack_only(fields):
            self.rdma.ib_ack_received += 1
            return f"{len(payload)} bytes behind an acknowledgement" if payload else None, len(data)
        if self._is_packed and fields[2] < len(payload) and not self.incoming.is_partial:
            payload = payload[: fields[2]]
        return self.incoming.take_fragment(fields, payload), HEADER_BYTES + len(payload)

    def _answer_ping(self, port: int) -> None:
        """Queue a pong; pings beyond the bound of messages stay unanswered."""
        if not self._around.may_answer_ping(port):
            return
        if self.outgoing.message_count() >= self.limits.messages_max:
            self.counters.recv_drop_control_full += 1
            return
        self.outgoing.queue(None, 0, port, b"")
        self.counters.send_pong += 1

    # -- a courier goes on from the numbers, and gives them back

    def hand_over(self) -> tuple[Any, ...] | None:
        """Return the numbers, for a courier to go on from; None while it could not."""
        outgoing, incoming = self.outgoing, self.incoming
        if not self._is_packed or self._credits.is_on or self.map_due or incoming.is_partial:
            return None
        posted = self._posted.hand_over()
        if posted is None:
            return None
        messages = outgoing.hand_over_messages(outgoing.sequence_next)
        if messages is None:
            return None
        left = outgoing.budget.left()
        return messages, outgoing.sequence_next, left, *posted, incoming.numbers()

    def take_back(
        self,
        frame_next: int,
        posted: Sequence[tuple[int, bool]],
        received: tuple[int, int, bool, int],
        *,
        acknowledged: int,
    ) -> None:
        """Go on from the numbers of a courier."""
        self._posted.take_back(frame_next, posted)
        self.incoming.take_back(received)
        self._was_acknowledged |= acknowledged > 0
