"""What moves the packets of queue pairs: the lower half of a packet provider's adapter.

Callbacks may post and kick: within a batch such a call only marks the queue pair, and `settle`, at
the end of the batch, carries everything away. So no queue pair is entered while it is served.
"""

import errno
import random
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from urds.errors import WireError
from urds.forks import renewed
from urds.verbs.cm.deadlines import Deadlines
from urds.verbs.cm.messages import CM_QPN
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import QPState, QPType
from urds.verbs.engine.packet_codec import emit_packet, parse_packet
from urds.verbs.engine.packets import Packet, Syndrome
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector, AsyncEvent
from urds.verbs.providers.base import Adapter, Address, DeviceAttributes

if TYPE_CHECKING:
    from urds.verbs.providers.packet_connection import PacketConnection

Buffer = bytes | bytearray | memoryview

_ACK: Final = int(Syndrome.ACK)
QPN_FIRST: Final = 16  # Source: verbs-and-roce.md 13
QPN_LAST: Final = 0xFF_FFFE


@dataclass(slots=True)
class PacketStats:
    """Packets since the opening, and why some were dropped."""

    sent: int = 0
    received: int = 0
    dropped_malformed: int = 0
    dropped_unknown: int = 0  # no such queue pair
    dropped_source: int = 0  # from another place than the queue pair's peer
    dropped_manager: int = 0  # to queue pair 1, but no message of a manager


@dataclass(slots=True, eq=False)
class Entry:
    """One queue pair of the adapter, and the connection it belongs to."""

    qp: QueuePair
    connection: "PacketConnection | None" = None


class PacketMover(Adapter):
    """The queue pairs of an adapter, their packets and their timers."""

    has_checksum: ClassVar[bool] = False  # whether packets carry a CRC-32 of their own

    def __init__(
        self,
        attributes: DeviceAttributes,
        *,
        gid: bytes,
        chance: random.Random,
        lock: "threading.RLock | None" = None,
    ) -> None:
        self.attributes = attributes
        self.gid = gid
        self.keys = KeyTable(chance=chance)
        self.lock = lock or renewed(threading.RLock())
        self.on_async_event: Callable[[AsyncEvent], None] = lambda _event: None
        self.packets = PacketStats()
        self.is_closed = False
        self._chance = chance
        self._entries: dict[int, Entry] = {}
        self._deadlines: Deadlines[int] = Deadlines()
        self._dirty: dict[int, Entry] = {}
        self._blocked: dict[AddressVector, dict[int, Entry]] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._depth = 0
        self._is_lossless = attributes.link.lossless
        self._moment_ns = 0  # of the batch under way, once somebody has asked; else 0
        self._qpn_next = chance.randrange(QPN_FIRST, QPN_LAST)

    # -- what a provider gives

    @abstractmethod
    def _transmit(self, destination: AddressVector, parts: Sequence[Buffer]) -> None:
        """Send one packet. Its parts are the engine's memory: done with them on return."""

    def _has_room(self, destination: AddressVector) -> bool:
        """Tell whether one packet of any size can go to `destination` now."""
        return True

    def _is_from(self, peer: AddressVector, source: AddressVector) -> bool:
        """Tell whether a packet from `source` may speak for a queue pair's `peer`."""
        return peer == source

    def _settled(self) -> None:
        """React to a batch that is over: wake who waits."""

    def _nudge(self) -> None:
        """See to it that a batch comes soon. Nothing to do where time stands still meanwhile."""

    def notify(self) -> None:
        """Wake who waits; within a batch its end does."""
        if not self._depth:
            self._settled()

    # -- what the upper half does

    @abstractmethod
    def _receive_message(
        self, packet: Packet, source: AddressVector, local: Address | None, peer: Address | None
    ) -> None:
        """Take a packet for the connection manager."""

    @abstractmethod
    def _settle_connections(self) -> None:
        """Tell events of connections and send the manager's messages, until there are none."""

    # -- queue pairs

    def new_qpn(self) -> int:
        """Return the next number: all others come before one is used again."""
        while True:  # ends: `max_qp` is far below the count of numbers
            number = self._qpn_next
            self._qpn_next = number + 1 if number < QPN_LAST else QPN_FIRST
            if number not in self._entries:
                return number

    def add(self, qp: QueuePair) -> None:
        """Take a queue pair in."""
        if self.is_closed:
            raise OSError(errno.ENODEV, f"{self.attributes.name} is closed")
        assert qp.qpn not in self._entries, f"queue pair {qp.qpn} is there already"
        self._entries[qp.qpn] = Entry(qp)

    def remove(self, qp: QueuePair) -> None:
        """Forget a queue pair."""
        entry = self._entries.get(qp.qpn)
        if entry is None or entry.qp is not qp:
            return
        if entry.connection is not None:
            entry.connection.forget_queue_pair()
        del self._entries[qp.qpn]
        self._dirty.pop(qp.qpn, None)
        self._deadlines.cancel(qp.qpn)
        for blocked in self._blocked.values():
            blocked.pop(qp.qpn, None)

    def kick(self, qp: QueuePair) -> None:
        """Carry away what the queue pair has to say, now or at the end of the batch."""
        entry = self._entries.get(qp.qpn)
        if entry is not None:
            self._dirty[qp.qpn] = entry
            self.settle()

    # -- batches

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` in the next `settle`, which the call under way ends with, or soon."""
        self._soon.append(action)
        # Whoever is in a batch comes to it himself; to wake another thread costs more than most
        # actions. A finaliser may call from outside, without the lock.
        if not (self._depth and self.lock._is_owned()):  # type: ignore[attr-defined]  # as Condition asks
            self._nudge()

    def _batch(self) -> "_Batch":
        """Put off what calls within want carried away, and carry it away at the end."""
        return _Batch(self)

    def settle(self) -> None:
        """Carry everything away that waits, unless a batch will do so."""
        if self._depth:
            return
        self._depth, self._moment_ns = 1, 0
        try:
            self._settle_connections()
            while self._dirty or self._soon:
                if self._dirty:
                    self._serve(self._dirty.popitem()[1])
                else:
                    self._soon.popleft()()
                self._settle_connections()
        finally:
            self._depth = 0
        self._settled()

    def _serve(self, entry: Entry) -> None:
        qp, now_ns = entry.qp, self._about_ns()
        while self._may_transmit(entry) and (packet := qp.poll_transmit(now_ns)) is not None:
            destination = packet.destination or qp.peer
            if destination is not None:
                self._carry(packet, destination)
        while (event := qp.poll_event()) is not None:
            self.on_async_event(event)
        # Taken back by hand it can do no more for its connection than one that has failed.
        if entry.connection is not None and qp.state in (QPState.ERR, QPState.RESET):
            entry.connection.handle_queue_pair_error()
        # A later deadline is found when the planned one comes: most timers are moved, not run.
        deadline_ns = qp.poll_timeout()
        planned_ns = self._deadlines.get(qp.qpn)
        if deadline_ns is not None and (planned_ns is None or deadline_ns < planned_ns):
            self._deadlines.set(qp.qpn, deadline_ns)

    def _about_ns(self) -> int:
        """Return the time, without loss once per batch: it is asked for each packet.

        There it decides nothing but when a pause ends. Where packets get lost ages are measured.
        """
        if not self._is_lossless:
            return self.now_ns()
        if not self._moment_ns:
            self._moment_ns = self.now_ns()
        return self._moment_ns

    def _may_transmit(self, entry: Entry) -> bool:
        """Tell whether the way to the peer has room, and note who waits for it.

        A datagram's way is not known before it is taken: it may be lost.
        """
        peer = entry.qp.peer
        if peer is None or entry.qp.qp_type is not QPType.RC or self._has_room(peer):
            return True
        self._blocked.setdefault(peer, {})[entry.qp.qpn] = entry
        return False

    def _resume(self, destination: AddressVector) -> None:
        """Serve the queue pairs that waited for room towards `destination`."""
        self._dirty.update(self._blocked.pop(destination, {}))
        self.settle()

    def _carry(self, packet: Packet, destination: AddressVector) -> None:
        self.packets.sent += 1
        self._transmit(destination, emit_packet(packet, checksum=self.has_checksum))

    # -- packets that arrive, timers

    def _receive(
        self,
        octets: Buffer,
        source: AddressVector,
        *,
        local: Address | None = None,
        peer: Address | None = None,
    ) -> None:
        """Take one packet's octets from the way, within a batch.

        `local` and `peer` are the addresses it went to and came from, where the provider has
        such: requests for connections are judged by them.
        """
        try:
            packet = parse_packet(octets, checksum=self.has_checksum)
        except WireError:
            self.packets.dropped_malformed += 1
            return
        self._receive_packet(packet, source, local=local, peer=peer)

    def _receive_packet(
        self,
        packet: Packet,
        source: AddressVector,
        *,
        local: Address | None = None,
        peer: Address | None = None,
    ) -> None:
        """Take one packet that is a record already, within a batch."""
        assert self._depth, "packets arrive within a batch"
        self.packets.received += 1
        if packet.target_qpn == CM_QPN:
            self._receive_message(packet, source, local, peer)
            return
        entry = self._entries.get(packet.target_qpn)
        if entry is None:
            self.packets.dropped_unknown += 1
            return
        qp = entry.qp
        if qp.qp_type is QPType.RC and (qp.peer is None or not self._is_from(qp.peer, source)):
            self.packets.dropped_source += 1
            return
        # The owner learns that it is connected before the data does anything.
        connection = entry.connection
        if connection is not None and connection.wants_data and connection.handle_data():
            self._settle_connections()
        # A refusal begins a pause, whose length counts.
        is_refusal = packet.syndrome > _ACK
        qp.receive_packet(packet, self.now_ns() if is_refusal else self._about_ns(), source)
        self._dirty[qp.qpn] = entry

    def _run_timers(self, now_ns: int) -> None:
        """Run the queue pairs' timers that are due, within a batch."""
        while (qpn := self._deadlines.pop_due(now_ns)) is not None:
            entry = self._entries[qpn]
            deadline_ns = entry.qp.poll_timeout()
            if deadline_ns is not None and deadline_ns <= now_ns:
                entry.qp.handle_timeout(now_ns)
                self._dirty[qpn] = entry
            elif deadline_ns is not None:
                self._deadlines.set(qpn, deadline_ns)

    def _deadline(self) -> int | None:
        """Return when a batch with `_run_timers` is due, None if never; 0 is at once."""
        return 0 if self._soon else self._deadlines.next_ns()


class _Batch:
    """The time of one batch. A failure inside leaves what waits to the next one."""

    __slots__ = ("_mover",)

    def __init__(self, mover: PacketMover) -> None:
        self._mover = mover

    def __enter__(self) -> None:
        self._mover._depth += 1
        self._mover._moment_ns = 0

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self._mover._depth -= 1
        if kind is None:
            self._mover.settle()
