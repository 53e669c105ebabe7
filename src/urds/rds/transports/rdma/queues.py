"""Where messages of one direction are between their send and the peer's acknowledgement.

Messages that gathered in the plane (`rds.plane.message_transport`) are one `Bundle` as long as all
that is done with them is done with all: framing, posting, acknowledging. Code that needs single
messages uses `unsent` or `unacked`, which make messages of the bundles.

A value machine: no I/O, no clock, no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from urds.rds.plane.message_transport import Gathered, Gatherer, NothingGathers
from urds.rds.transports.rdma.frames import PACKED_BYTES, Message, MessageEntry

if TYPE_CHECKING:
    from urds.rds.plane.contract import Mailbox as Owner
    from urds.rds.plane.python.counters import Counters


class Bundle:
    """Messages that gathered in the plane, in the order of their sends."""

    __slots__ = ("first", "gathered", "sequence")

    def __init__(self, gathered: Gathered) -> None:
        self.gathered = gathered
        self.first = 0  # number of the first one; 0 while they have none
        self.sequence = 0  # of the last one

    def messages(self) -> Iterator[Message]:
        """Return them one by one."""
        for place, one in enumerate(self.gathered.messages()):
            owner, source_port, target_port, payload, asks = one
            message = Message(owner, source_port, target_port, payload, ack_required=asks)
            message.sequence = self.first + place if self.first else 0
            yield message


def plain_of(queue: Iterable[Message | Bundle]) -> list[Any] | None:
    """Return messages as compiled code takes them; None if one is not plain.

    They are `urds_native.GatheredMessages`, or owner, ports, payload, whether it was ASKS.
    """
    plain: list[Any] = []
    for one in queue:
        if isinstance(one, Bundle):
            plain.append(one.gathered.compiled)
            continue
        if one.owner is None or one.tasks or any(one.extension) or one.is_retransmit:
            return None
        plain.append((one.owner, one.source_port, one.target_port, one.payload, one.ack_required))
    return plain


class Queues:
    """Messages that wait, or were sent and are not acknowledged; see `sending`."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.current: Message | None = None
        self.retransmits: deque[Message] = deque()
        # Messages and their bytes, by owner, that left since the shell looked.
        self.freed: dict[Owner, tuple[int, int]] = {}
        self.gatherer: Gatherer = NothingGathers()
        self._silents: dict[Message, None] = {}
        self._unsent: deque[Message | Bundle] = deque()
        self._unsent_bytes = 0  # with their headers
        self._unacked: deque[Message | Bundle] = deque()
        self._bundled = 0  # messages in bundles but for one of each

    @property
    def unsent(self) -> deque[Message]:
        """Messages without a number, of which nothing was handed to the connection."""
        self._absorb()
        self._unsent = self._unbundled(self._unsent)
        return self._unsent  # type: ignore[return-value]  # no bundle is there

    @unsent.setter
    def unsent(self, messages: Iterable[Message]) -> None:
        self._unsent = deque(messages)
        self._unsent_bytes = sum(one.frame_bytes for one in self.unsent)

    @property
    def unacked(self) -> deque[Message]:
        """Messages that were posted and are not acknowledged."""
        self._unacked = self._unbundled(self._unacked)
        return self._unacked  # type: ignore[return-value]  # no bundle is there

    @unacked.setter
    def unacked(self, messages: Iterable[Message]) -> None:
        self._unacked = deque(messages)

    def _unbundled(self, queue: deque[Message | Bundle]) -> deque[Message | Bundle]:
        """Return a queue with messages in place of the bundles."""
        if not any(isinstance(one, Bundle) for one in queue):
            return queue
        single: deque[Message | Bundle] = deque()
        for one in queue:
            if isinstance(one, Bundle):
                self._bundled -= len(one.gathered) - 1
                single.extend(one.messages())
            else:
                single.append(one)
        return single

    def _absorb(self) -> None:
        """Take over what has gathered in the plane, behind all that is queued."""
        gathered = self.gatherer.take_gathered()
        if gathered is not None:
            self.restore_unsent(Bundle(gathered))
            self.counters.send_queued += len(gathered)
            self.counters.copy_from_user += gathered.payload_bytes

    def hand_over_messages(self, sequence_next: int) -> tuple[list[Any], list[Any]] | None:
        """Give up what is not acknowledged, and what is not sent; None if any is not plain."""
        if self.current or self.retransmits or self._silents:
            return None
        unacked, unsent = plain_of(self._unacked), plain_of(self._unsent)
        if unacked is None or unsent is None:
            return None
        if self._unacked:
            first = self._unacked[0]
            number = first.first if isinstance(first, Bundle) else first.sequence
            count = sum(
                len(one.gathered) if isinstance(one, Bundle) else 1 for one in self._unacked
            )
            if number + count != sequence_next:
                return None  # one was cancelled
        self._unacked.clear()
        self._unsent.clear()
        self._unsent_bytes = self._bundled = 0
        return unacked, unsent

    def restore_unsent(self, bundle: Bundle) -> None:
        """Queue messages without numbers; what no frame has room for are single ones."""
        gathered = bundle.gathered
        self._unsent_bytes += gathered.frame_bytes
        if gathered.frame_bytes > PACKED_BYTES:
            self._unsent.extend(bundle.messages())
        else:
            self._unsent.append(bundle)
            self._bundled += len(gathered) - 1

    def restore_unacked(self, bundle: Bundle, sequence_next: int) -> None:
        """Keep messages that were sent, all before a number."""
        bundle.sequence = sequence_next - 1
        bundle.first = sequence_next - len(bundle.gathered)
        self._unacked.append(bundle)
        self._bundled += len(bundle.gathered) - 1

    def _free_bundle(self, bundle: Bundle) -> None:
        self._bundled -= len(bundle.gathered) - 1
        for owner, messages, payload_bytes in bundle.gathered.accounts():
            known, known_bytes = self.freed.get(owner, (0, 0))
            self.freed[owner] = known + messages, known_bytes + payload_bytes

    def may_gather(self) -> bool:
        """Tell whether the next frame has room for messages that are not queued yet.

        What was sent before, and a message that has begun, never wait.
        """
        return self.current is None and not self.retransmits and self._unsent_bytes < PACKED_BYTES

    @property
    def room_bytes(self) -> int:
        """How many bytes may gather before a frame is full."""
        return max(0, PACKED_BYTES - self._unsent_bytes)

    # -- what is there

    def message_count(self) -> int:
        """Return how many messages are queued or unacknowledged.

        Neither the map counts, nor what has gathered and was not taken over.
        """
        count = len(self._unsent) + len(self.retransmits) + len(self._unacked) + self._bundled
        return count + len(self._silents) + len(self._tracked_current())

    def holds(self, owner: Owner | None = None) -> bool:
        """Tell whether a message of the owner, or of any socket, is queued or unacknowledged."""
        owners = (message.owner for message in self._messages())
        return any(one is not None and owner in (None, one) for one in owners)

    def counts(self, owner: Owner | None = None) -> tuple[int, int]:
        """Count the messages of the owner, or of any: never sent, and not acknowledged."""
        unsent, every = (
            sum(one.owner is not None and owner in (None, one.owner) for one in messages)
            for messages in (self.unsent, self._messages())
        )
        return unsent, every - unsent

    def held(self, owner: Owner) -> tuple[int, int]:
        """Return how many messages of an owner are queued or unacknowledged, and their bytes."""
        held = [len(one.payload) for one in self._messages() if one.owner is owner]
        return len(held), sum(held)

    def _messages(self) -> Iterator[Message]:
        current = self._tracked_current()
        return chain(self.unsent, self.retransmits, self.unacked, self._silents, current)

    def _tracked_current(self) -> tuple[Message, ...]:
        current = self.current
        is_tracked = current is not None and not current.is_map and not current.is_taken_back
        return (current,) if current is not None and is_tracked else ()

    def unsent_entries(self) -> Iterator[MessageEntry]:
        """List what was never sent."""
        return (message.entry() for message in self.unsent)

    def sent_entries(self) -> Iterator[MessageEntry]:
        """List what was sent and is not acknowledged, in the order of numbers."""
        sent = chain(self._silents, self.unacked, self._tracked_current(), self.retransmits)
        return (message.entry() for message in sent)
