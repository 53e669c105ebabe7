"""The send side of a path: number, keep until acknowledged, retransmit after a break.

A value machine: no I/O, no clock, no lock. Messages wait in three queues, sent in this order:

    retransmits  were sent on an earlier stream and not acknowledged; keep their number, carry
                 RETRANSMITTED, go first and restart from their header
    unsent       have no number yet; a message is numbered when it first becomes bytes, so that
                 cancelling an unsent message leaves no hole
    unacked      became bytes of the current stream; kept until the peer has them

What "has them" means depends on the peer (`AckMode`): towards Linux the TCP stack's count of
acknowledged bytes, between urds nodes the header's acknowledgement field. A message cut in the
middle is retransmitted whole. Source: linux v6.12 net/rds/send.c (rds_send_path_reset).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from itertools import chain, starmap
from operator import itemgetter
from typing import Any

from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import Buffer, Limits
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.framing import emit_header
from urds.rds.plane.python.queued_messages import (
    Fence,
    Owner,
    Sent,
    Unsent,
    count_of,
    is_probe,
    matches,
    without,
)
from urds.rds.types import AckMode
from urds.rds.wire.header import HEADER_BYTES

_RETRANSMITTED = int(HeaderFlag.RETRANSMITTED)
_ACK_REQUIRED = int(HeaderFlag.ACK_REQUIRED)
REFERENCE_BYTES = 8192  # payloads from here up travel as buffers of their own, never joined
WRITE_BYTES = 65536  # of one write, or so
# Long messages travel as buffers of their own, so their number is the cost of a write.
LONG_WRITE_BYTES = 524288
_NO_EXTENSION = b""
_first = itemgetter(0)
_exhaust = deque[object](maxlen=0).extend  # each step of it made of C: no handler runs in between


class Sender:
    """Queues and numbers of one direction of a path."""

    __slots__ = (
        "ack_mode",
        "ack_request_due",
        "ack_wanted",
        "blocked_by",
        "checksum",
        "counters",
        "fences",
        "freed",
        "limits",
        "lone",
        "pending_bytes",
        "position",
        "retransmits",
        "sequence_next",
        "unacked",
        "unacked_bytes_left",
        "unacked_packets_left",
        "unsent",
    )

    def __init__(self, limits: Limits, counters: Counters, *, sequence_first: int) -> None:
        self.limits = limits
        self.counters = counters
        self.unsent: deque[Unsent | Fence] = deque()
        self.retransmits: deque[Sent] = deque()
        self.unacked: deque[Sent] = deque()
        self.sequence_next = sequence_first
        self.position = 0  # bytes made for the current stream
        self.pending_bytes = 0  # bytes of `unsent`, headers included
        self.ack_mode = AckMode.NOT_YET
        self.checksum = False
        self.ack_wanted = False  # a send account is at half of its bound
        self.ack_request_due = False  # a thread waits until everything here is acknowledged
        # The next message to be framed is the only one: its reply acknowledges it, so it requests
        # nothing.
        self.lone = False
        self.unacked_packets_left = limits.unacked_packets_max
        self.unacked_bytes_left = limits.unacked_bytes_max
        self.fences: list[Fence] = []
        self.blocked_by: Fence | None = None  # on another path: it holds new messages back
        self.freed: dict[Owner, int] = {}  # bytes, by owner, that left since the shell checked

    # -- queueing

    def queue(
        self,
        owner: Owner | None,
        source_port: int,
        target_port: int,
        payload: Buffer,
        extension: bytes = _NO_EXTENSION,
        *,
        ahead: bool = False,
    ) -> None:
        """Queue one message; `ahead` puts it before other new messages, behind retransmissions."""
        message = (owner, source_port, target_port, payload, extension)
        payload_bytes = len(payload)
        self.pending_bytes += HEADER_BYTES + payload_bytes
        if owner is not None:
            owner.send_queued_bytes += payload_bytes
        if ahead:  # one step with the stores
            self.unsent.appendleft(message)
        else:
            self.unsent.append(message)

    def is_long(self) -> bool:
        """Return whether the queue averages 8 KiB a message: each then takes a buffer or two."""
        return self.pending_bytes >= REFERENCE_BYTES * len(self.unsent)

    def message_count(self) -> int:
        """Return how many messages are queued or unacknowledged."""
        return len(self.unsent) + len(self.unacked) + len(self.retransmits)

    def fence(self) -> Fence:
        """Return a fence behind every message queued now."""
        fence = Fence()
        self.unsent.append(fence)
        self.fences.append(fence)
        self._open_fences()
        return fence

    # -- the stream

    def frame(self, out: list[Buffer], out_bytes: int, acknowledgement: int) -> int:
        """Frame queued messages behind `out_bytes` bytes; return how many bytes were made.

        The acknowledgement goes into every header; 0 towards Linux.
        """
        begin = self.position
        end = begin - out_bytes + (LONG_WRITE_BYTES if self.is_long() else WRITE_BYTES)
        if self.retransmits:
            self._frame_queue(self.retransmits, out, end, acknowledgement)
        while self.unsent and self.position < end:
            if self.blocked_by is not None and not self._fence_is_open():
                self.counters.mprds_catchup_tx0_retries += 1
                break
            self._frame_queue(self.unsent, out, end, acknowledgement)
        return self.position - begin

    def _frame_queue(
        self, queue: deque[Any], out: list[Buffer], end: int, acknowledgement: int
    ) -> None:
        """Frame the messages at the head of `retransmits` or `unsent`, up to a fence.

        Small messages are joined, payloads of 8 KiB or more are appended as they are: few buffers,
        since one write takes 1,024 at most.
        """
        again, pieces, sent = queue is self.retransmits, list[Buffer](), list[Sent]()
        position, next_sequence, checksum = self.position, self.sequence_next, self.checksum
        asks = self.ack_mode is AckMode.PEER_ACKNOWLEDGED
        flags = _RETRANSMITTED | _ACK_REQUIRED * asks if again else 0
        counts = asks and not again
        last_sequence = next_sequence + len(queue) - 1 if self.ack_wanted else -1
        for message in queue:
            if position >= end:
                break
            if again:
                sequence, _, owner, source_port, target_port, payload, extension = message
            elif isinstance(message, Fence):
                if not sent:
                    message.sequence = next_sequence - 1
                    queue.popleft()
                break
            else:
                owner, source_port, target_port, payload, extension = message
                sequence, next_sequence = next_sequence, next_sequence + 1
            payload_bytes = len(payload)
            if counts:
                flags = self._flags(payload_bytes, is_last=sequence == last_sequence)
            pieces.append(emit_header(
                sequence, acknowledgement, payload_bytes, source_port, target_port,
                flags, extension, checksum,
            ))  # fmt: skip
            if payload_bytes < REFERENCE_BYTES:
                pieces.append(payload)
            else:
                out += (b"".join(pieces), payload)
                pieces = []
            position += HEADER_BYTES + payload_bytes
            sent.append((sequence, position, owner, source_port, target_port, payload, extension))
        if pieces:
            out.append(b"".join(pieces))
        self._keep(queue, sent, next_sequence, position)

    def _flags(self, payload_bytes: int, *, is_last: bool) -> int:
        """Count a new message for a urds node; return its flags: whether it requests an ack."""
        self.unacked_packets_left -= 1
        self.unacked_bytes_left -= payload_bytes
        if self.lone or (
            self.unacked_packets_left > 0 and self.unacked_bytes_left > 0 and not is_last
        ):
            self.lone = False
            return 0
        self.counters.send_ack_required += 1
        self.allow_unacked()
        return _ACK_REQUIRED

    def _keep(self, queue: deque[Any], sent: list[Sent], sequence_next: int, position: int) -> None:
        """Move messages that have become bytes from their queue to `unacked`.

        Numbers, account and queues change in one step at the end (`interrupts`), or a message could
        get a second number: the iterator takes the first message off the queue with each that it
        gives, and is made of C alone.
        """
        counters, made, messages = self.counters, position - self.position, len(sent)
        gone = starmap(queue.popleft, itertools.repeat((), messages))
        moved = map(_first, zip(sent, gone, strict=False))
        if queue is self.retransmits:
            counters.send_retransmitted += messages
            self.position = position
            self.unacked.extend(moved)  # one step with the store
            return
        counters.send_queued += messages
        counters.copy_from_user += made - HEADER_BYTES * messages
        self.pending_bytes -= made
        self.sequence_next, self.position = sequence_next, position
        self.unacked.extend(moved)  # one step with the stores
        if not self.unsent:
            self.ack_wanted = False
        if self.fences:
            self._open_fences()

    def _fence_is_open(self) -> bool:
        if self.blocked_by is not None and self.blocked_by.open:
            self.blocked_by = None
        return self.blocked_by is None

    def end_stream(self) -> None:
        """Move every unacknowledged message to the retransmit queue, in its old order."""
        retransmits, unacked = deque(chain(self.unacked, self.retransmits)), deque[Sent]()
        # In one step: an interrupt may repeat this.
        self.retransmits, self.unacked = retransmits, unacked
        self.position = 0
        self.allow_unacked()

    # -- acknowledgements

    def wants_ack(self) -> bool:
        """Return whether every ready message has left, and a thread waits for its ack."""
        return (
            self.ack_request_due
            and self.ack_mode is AckMode.PEER_ACKNOWLEDGED
            and bool(self.unacked)
            and not self.retransmits
            and (not self.unsent or (self.blocked_by is not None and not self.blocked_by.open))
        )

    def handle_peer_acknowledged(self, sequence: int) -> bool:
        """Free everything up to `sequence`; return False if that was never sent."""
        if sequence >= self.sequence_next:
            return False
        unacked = self.unacked
        while unacked and unacked[0][0] <= sequence:
            owner, messages, freed_bytes = unacked[0][2], 0, 0  # its neighbours go with it
            for number, _, other, _, _, payload, _ in unacked:
                if other is not owner or number > sequence:
                    break
                messages, freed_bytes = messages + 1, freed_bytes + len(payload)
            self._free(unacked, messages, owner, freed_bytes)
        if not unacked:  # nothing is out: a request and its reply need no further request
            self.allow_unacked()
        if self.fences:
            self._open_fences()
        return True

    def allow_unacked(self) -> None:
        """Restart the count of messages that may be out before an acknowledgement is requested."""
        self.unacked_packets_left = self.limits.unacked_packets_max
        self.unacked_bytes_left = self.limits.unacked_bytes_max

    def handle_stream_acknowledged(self, byte_count: int) -> None:
        """Free messages wholly within the first `byte_count` bytes of the current stream."""
        unacked = self.unacked
        while unacked and unacked[0][1] <= byte_count:
            self._free(unacked, 1, unacked[0][2], len(unacked[0][5]))
        if self.fences:
            self._open_fences()

    def forget_retransmits(self, sequence: int) -> None:
        """Free messages to retransmit that the peer reports received, up to `sequence`."""
        retransmits = self.retransmits
        while sequence < self.sequence_next and retransmits and retransmits[0][0] <= sequence:
            self._free(retransmits, 1, retransmits[0][2], len(retransmits[0][5]))
        if self.fences:
            self._open_fences()

    def _free(
        self, queue: deque[Sent], messages: int, owner: Owner | None, payload_bytes: int
    ) -> None:
        """Drop the first messages of a queue, which are of one owner, and give it the room back."""
        gone = starmap(queue.popleft, itertools.repeat((), messages))
        if owner is not None:
            freed_bytes = self.freed.get(owner, 0) + payload_bytes
            self.freed[owner] = freed_bytes
            owner.send_queued_bytes -= payload_bytes
        _exhaust(gone)  # one step with the store

    def _open_fences(self) -> None:
        oldest = self.unacked or self.retransmits  # a message retransmitted already is older
        for fence in self.fences:
            if fence.sequence is None and self.unsent and self.unsent[0] is fence:
                self.unsent.popleft()
                fence.sequence = self.sequence_next - 1
            if fence.sequence is not None and (not oldest or oldest[0][0] > fence.sequence):
                fence.open = True
        self.fences = [fence for fence in self.fences if not fence.open]

    # -- taking messages out

    def move_unsent(self, other: Sender) -> int:
        """Move the unsent messages of sockets behind those of another path; return how many."""
        left, moved, moved_bytes = deque[Unsent | Fence](), deque[Unsent | Fence](), 0
        for message in self.unsent:
            if isinstance(message, Fence) or message[0] is None:
                left.append(message)
            else:
                moved.append(message)
                moved_bytes += HEADER_BYTES + len(message[3])
        joined = other.unsent + moved
        # One step: an interrupt must neither lose a message nor double it.
        self.unsent, other.unsent = left, joined
        self.pending_bytes -= moved_bytes
        other.pending_bytes += moved_bytes
        if moved:
            other.ack_wanted |= self.ack_wanted
            other.ack_request_due |= self.ack_request_due
        self._open_fences()
        return len(moved)

    def forget_probes(self) -> None:
        """Retransmit no handshake any more, drop any that waits: a newer one follows.

        A pending connection that is closed at once acknowledges none of them. Kept, they would grow
        with each such connection, and all would go out again on the next.
        """
        self.retransmits = deque(sent for sent in self.retransmits if not is_probe(*sent[2:5]))
        self.unacked = deque(sent for sent in self.unacked if not is_probe(*sent[2:5]))
        for message in [one for one in self.unsent if not isinstance(one, Fence)]:
            if is_probe(*message[:3]):
                self.unsent.remove(message)
                self.pending_bytes -= HEADER_BYTES

    def cancel(self, owner: Owner, target_port: int | None) -> int:
        """Remove the owner's messages, to one port or to all; return how many.

        Framed bytes go out to the end, to keep the framing; only retransmission ends. Source: linux
        v6.12 net/rds/send.c (rds_send_drop_to).
        """
        unsent: deque[Unsent | Fence] = deque()
        removed = removed_bytes = 0
        for message in self.unsent:
            if not isinstance(message, Fence) and matches(message, owner, target_port):
                removed, removed_bytes = removed + 1, removed_bytes + len(message[3])
            else:
                unsent.append(message)
        retransmits, again, retransmit_bytes = without(self.retransmits, owner, target_port)
        unacked, sent, sent_bytes = without(self.unacked, owner, target_port)
        gone_bytes = removed_bytes + retransmit_bytes + sent_bytes
        freed_bytes = self.freed.get(owner, 0) + gone_bytes
        # One step: an interrupt must not part the queues from their account.
        self.unsent, self.retransmits, self.unacked = unsent, retransmits, unacked
        self.pending_bytes -= HEADER_BYTES * removed + removed_bytes
        owner.send_queued_bytes -= gone_bytes
        count = removed + again + sent
        if count:  # else nothing is to be told of the account
            self.freed[owner] = freed_bytes
        self._open_fences()
        return count

    def holds(self, owner: Owner | None = None) -> bool:
        """Return whether a message of the owner, or of any, is queued or unacknowledged."""
        if owner is not None and owner.send_queued_bytes:
            return True
        sent = (message[2] for message in chain(self.retransmits, self.unacked))
        unsent = (one[0] for one in self.unsent if not isinstance(one, Fence))
        return any(one is not None and owner in (None, one) for one in chain(sent, unsent))

    def counts(self, owner: Owner | None = None) -> tuple[int, int]:
        """Return how many messages of the owner, or of all, are unsent and unacknowledged."""
        unsent = (one[0] for one in self.unsent if not isinstance(one, Fence))
        sent = (message[2] for message in chain(self.retransmits, self.unacked))
        return count_of(unsent, owner), count_of(sent, owner)

    def drop_handed_over(self) -> int:
        """Drop messages sent to an earlier generation of the peer and not acknowledged."""
        dropped = self._give_up(list(self.retransmits) + list(self.unacked))
        self.retransmits.clear()
        self.unacked.clear()
        self._open_fences()
        return dropped

    def drop_all(self) -> int:
        """Drop every message; return how many."""
        dropped = self.drop_handed_over()
        for message in self.unsent:
            if isinstance(message, Fence):
                message.sequence = self.sequence_next - 1
            else:
                dropped += self._give_up([(0, 0, *message)])
        self.unsent.clear()
        self.pending_bytes = 0
        self._open_fences()
        return dropped

    def _give_up(self, messages: Iterable[Sent]) -> int:
        count = 0
        for message in messages:
            owner = message[2]
            if owner is None:
                continue  # a ping or pong: not counted
            count += 1
            payload_bytes = len(message[5])
            freed_bytes = self.freed.get(owner, 0) + payload_bytes
            owner.send_queued_bytes -= payload_bytes
            self.freed[owner] = freed_bytes
            owner.given_up += 1
        return count
