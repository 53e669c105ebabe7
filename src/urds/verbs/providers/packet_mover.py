"""Moves the packets of queue pairs: registration, batches, packets, timers.

Callbacks may post and call `progress_qp`: within a batch such a call only marks the queue pair, and
`flush`, at the end of the batch, sends everything. So no queue pair is entered recursively.
"""

import errno
import random
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from urds.common.errors import WireError
from urds.common.forks import renewed
from urds.common.timers import Deadlines
from urds.common.types import BytesLike, HostPort
from urds.verbs.cm.messages import CM_QPN
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import QPState, QPType
from urds.verbs.engine.packet_codec import emit_packet, parse_packet
from urds.verbs.engine.packets import Packet, Syndrome
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector, EngineEvent
from urds.verbs.providers.base import Adapter, DeviceAttributes

if TYPE_CHECKING:
    from urds.verbs.providers.packet_connection import PacketConnection


_ACK: Final = int(Syndrome.ACK)
QPN_FIRST: Final = 16  # Source: docs/reference/verbs-and-roce.md 13
QPN_LAST: Final = 0xFF_FFFE


@dataclass(slots=True)
class PacketStats:
    """Packets since the device was opened, and why some were dropped."""

    sent: int = 0
    received: int = 0
    dropped_malformed: int = 0
    dropped_unknown: int = 0  # no such queue pair
    dropped_source: int = 0  # from another place than the queue pair's peer
    dropped_manager: int = 0  # to queue pair 1, but no message of a manager


@dataclass(slots=True, eq=False)
class QueuePairEntry:
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
        rng: random.Random,
        lock: "threading.RLock | None" = None,
    ) -> None:
        self.attributes = attributes
        self.gid = gid
        self.keys = KeyTable(rng=rng)
        self.lock = lock or renewed(threading.RLock())
        self.on_async_event: Callable[[EngineEvent], None] = lambda _event: None
        self.packets = PacketStats()
        self.is_closed = False
        self._rng = rng
        self._entries: dict[int, QueuePairEntry] = {}
        self._deadlines: Deadlines[int] = Deadlines()
        self._dirty: dict[int, QueuePairEntry] = {}
        self._blocked: dict[AddressVector, dict[int, QueuePairEntry]] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._depth = 0
        self._is_lossless = attributes.link.lossless
        self._moment_ns = 0  # of the current batch, once it was read; else 0
        self._qpn_next = rng.randrange(QPN_FIRST, QPN_LAST)

    # -- what a provider gives

    @abstractmethod
    def _transmit(self, destination: AddressVector, parts: Sequence[BytesLike]) -> None:
        """Send one packet. Its parts are the engine's memory, not used after return."""

    def _has_room(self, destination: AddressVector) -> bool:
        """Return whether one packet of any size can go to `destination` now."""
        return True

    def _is_from(self, peer: AddressVector, source: AddressVector) -> bool:
        """Return whether a packet from `source` is from a queue pair's `peer`."""
        return peer == source

    def _batch_done(self) -> None:
        """Handle the end of a batch: wake waiters that are ready."""

    def _request_batch(self) -> None:
        """Make sure that a batch comes soon. Nothing to do in virtual time."""

    def notify(self) -> None:
        """Wake waiters; within a batch its end does."""
        if not self._depth:
            self._batch_done()

    # -- what the upper half does

    @abstractmethod
    def _receive_message(
        self, packet: Packet, source: AddressVector, local: HostPort | None, peer: HostPort | None
    ) -> None:
        """Process a packet for the connection manager."""

    @abstractmethod
    def _flush_connections(self) -> None:
        """Deliver events of connections and send the manager's messages, until there are none."""

    # -- queue pairs

    def new_qpn(self) -> int:
        """Return the next number: all others come before one is used again."""
        while True:  # ends: `max_qp` is far below the count of numbers
            number = self._qpn_next
            self._qpn_next = number + 1 if number < QPN_LAST else QPN_FIRST
            if number not in self._entries:
                return number

    def add(self, qp: QueuePair) -> None:
        """Register a queue pair with this adapter."""
        if self.is_closed:
            raise OSError(errno.ENODEV, f"{self.attributes.name} is closed")
        assert qp.qpn not in self._entries, f"queue pair {qp.qpn} is there already"
        self._entries[qp.qpn] = QueuePairEntry(qp)

    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair."""
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

    def progress_qp(self, qp: QueuePair) -> None:
        """Send what the queue pair has to send, now or at the end of the batch."""
        entry = self._entries.get(qp.qpn)
        if entry is not None:
            self._dirty[qp.qpn] = entry
            self.flush()

    # -- batches

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` in the next `flush`, which the current call ends with, or soon."""
        self._soon.append(action)
        # A batch ends with it; to wake another thread costs more than most actions. A finaliser
        # may call from outside, without the lock.
        if not (self._depth and self.lock._is_owned()):  # type: ignore[attr-defined]  # as Condition asks
            self._request_batch()

    def _batch(self) -> "_Batch":
        """Defer sending within; everything is sent at the end."""
        return _Batch(self)

    def flush(self) -> None:
        """Send everything that waits, unless a batch will do so."""
        if self._depth:
            return
        self._depth, self._moment_ns = 1, 0
        try:
            self._flush_connections()
            while self._dirty or self._soon:
                if self._dirty:
                    self._progress_entry(self._dirty.popitem()[1])
                else:
                    self._soon.popleft()()
                self._flush_connections()
        finally:
            self._depth = 0
        self._batch_done()

    def _progress_entry(self, entry: QueuePairEntry) -> None:
        qp, now_ns = entry.qp, self._about_ns()
        while self._may_transmit(entry) and (packet := qp.poll_transmit(now_ns)) is not None:
            destination = packet.destination or qp.peer
            if destination is not None:
                self._transmit_packet(packet, destination)
        while (event := qp.poll_event()) is not None:
            self.on_async_event(event)
        # After a reset it is as useless to its connection as one that has failed.
        if entry.connection is not None and qp.state in (QPState.ERR, QPState.RESET):
            entry.connection.handle_queue_pair_error()
        # A later deadline is set when the planned one comes: most timers are moved, not run.
        deadline_ns = qp.poll_timeout()
        planned_ns = self._deadlines.get(qp.qpn)
        if deadline_ns is not None and (planned_ns is None or deadline_ns < planned_ns):
            self._deadlines.set(qp.qpn, deadline_ns)

    def _about_ns(self) -> int:
        """Return the time; without loss it is read once per batch, not for each packet.

        There it decides only when a pause ends. Where packets get lost ages are measured.
        """
        if not self._is_lossless:
            return self.now_ns()
        if not self._moment_ns:
            self._moment_ns = self.now_ns()
        return self._moment_ns

    def _may_transmit(self, entry: QueuePairEntry) -> bool:
        """Return whether the path to the peer has room; if not, record the queue pair as blocked.

        A datagram's path is unknown before it is taken: it may be lost.
        """
        peer = entry.qp.peer
        if peer is None or entry.qp.qp_type is not QPType.RC or self._has_room(peer):
            return True
        self._blocked.setdefault(peer, {})[entry.qp.qpn] = entry
        return False

    def _resume(self, destination: AddressVector) -> None:
        """Serve the queue pairs that waited for room towards `destination`."""
        self._dirty.update(self._blocked.pop(destination, {}))
        self.flush()

    def _transmit_packet(self, packet: Packet, destination: AddressVector) -> None:
        self.packets.sent += 1
        self._transmit(destination, emit_packet(packet, checksum=self.has_checksum))

    # -- packets that arrive, timers

    def _receive(
        self,
        data: BytesLike,
        source: AddressVector,
        *,
        local: HostPort | None = None,
        peer: HostPort | None = None,
    ) -> None:
        """Process the bytes of one packet, within a batch.

        `local` and `peer` are the addresses it went to and came from, if the provider has them:
        they identify the listener of a connection request.
        """
        try:
            packet = parse_packet(data, checksum=self.has_checksum)
        except WireError:
            self.packets.dropped_malformed += 1
            return
        self._receive_packet(packet, source, local=local, peer=peer)

    def _receive_packet(
        self,
        packet: Packet,
        source: AddressVector,
        *,
        local: HostPort | None = None,
        peer: HostPort | None = None,
    ) -> None:
        """Process one parsed packet, within a batch."""
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
            self._flush_connections()
        # A NAK may start a pause, whose length counts.
        is_nak = packet.syndrome > _ACK
        qp.receive_packet(packet, self.now_ns() if is_nak else self._about_ns(), source)
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
    """Context of one batch. After an exception inside, what waits is left to the next one."""

    __slots__ = ("_mover",)

    def __init__(self, mover: PacketMover) -> None:
        self._mover = mover

    def __enter__(self) -> None:
        self._mover._depth += 1
        self._mover._moment_ns = 0

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self._mover._depth -= 1
        if kind is None:
            self._mover.flush()
