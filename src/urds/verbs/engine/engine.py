"""The engine of one opened device: queue pairs, queues and keys behind `engine.contract`.

The reference of the compiled engine, `urds_native.Engine`: both take the same calls and packets
and give the same packets, completions, events and errors. It serves queue pairs in the order in
which they were made. It takes no lock and reads no clock: its adapter holds the one and passes the
other.
"""

import errno
from collections.abc import Iterator

from urds.common.errors import WireError
from urds.common.types import BytesLike
from urds.verbs.engine.attributes import LinkTraits, QPCap
from urds.verbs.engine.completions import CompletionQueue, Outbox
from urds.verbs.engine.contract import EngineSnapshot
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import QPType, ReceiveOrder
from urds.verbs.engine.objects import Objects
from urds.verbs.engine.packets import Packet, emit_packet, parse_packet
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.work import AddressVector, Event


class Engine(Objects):
    """All of one opened device that happens per work request, packet or completion."""

    def __init__(self, link: LinkTraits, *, gid: bytes, checksum: bool = False) -> None:
        """Make an engine without objects; with `checksum` its packets carry a CRC-32."""
        self.link = link
        self.gid = gid
        self._has_checksum = checksum
        self.keys = KeyTable()
        self.outbox = Outbox()
        self._queue_pairs: dict[int, QueuePair] = {}
        self._sent = self._received = 0
        self._malformed = self._unknown = self._wrong_source = 0

    # -- objects

    def queue_pair(
        self,
        *,
        qpn: int,
        kind: QPType,
        pd: object,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        cap: QPCap,
        srq: SharedReceiveQueue | None = None,
        sq_sig_all: bool = False,
        receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER,
    ) -> QueuePair:
        """Make a queue pair in RESET, served until it is closed.

        Raises OSError: EINVAL for a number that another one has.
        """
        if qpn in self._queue_pairs:
            raise OSError(errno.EINVAL, f"queue pair {qpn} is there already")
        qp = QueuePair(
            qpn=qpn,
            qp_type=kind,
            pd=pd,
            send_cq=send_cq,
            recv_cq=recv_cq,
            srq=srq,
            cap=cap,
            sq_sig_all=sq_sig_all,
            keys=self.keys,
            link=self.link,
            receive_order=receive_order,
            outbox=self.outbox,
        )
        qp.gid = self.gid
        qp.on_close = self._forget
        self._queue_pairs[qpn] = qp
        return qp

    def _forget(self, qp: QueuePair) -> None:
        if self._queue_pairs.get(qp.qpn) is qp:
            del self._queue_pairs[qp.qpn]
            outbox = self.outbox
            outbox.events = [event for event in outbox.events if event.element is not qp]

    # -- packets and time

    def receive(self, data: BytesLike, source: AddressVector, now_ns: int) -> None:
        """Process the bytes of one packet that arrived."""
        try:
            packet = parse_packet(data, checksum=self._has_checksum)
        except WireError:
            self._malformed += 1
            return
        self._received += 1
        qp = self._queue_pairs.get(packet.target_qpn)
        if qp is None:
            self._unknown += 1
        elif qp.qp_type is QPType.RC and qp.peer != source:
            self._wrong_source += 1
        else:
            qp.receive_packet(packet, now_ns, source)

    def poll_transmit(self, now_ns: int) -> tuple[AddressVector, bytes] | None:
        """Return the next packet and where it goes, `None` when there is none now."""
        for qp, packet in self._leaving(now_ns):
            destination = packet.destination or qp.peer
            if destination is not None:  # else it leads nowhere: the queue pair has no peer
                self._sent += 1
                parts = emit_packet(packet, checksum=self._has_checksum)
                return destination, b"".join(parts)
        return None

    def _leaving(self, now_ns: int) -> Iterator[tuple[QueuePair, Packet]]:
        for qp in list(self._queue_pairs.values()):
            while (packet := qp.poll_transmit(now_ns)) is not None:
                yield qp, packet

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due, `None` if never."""
        dues = (qp.poll_timeout() for qp in self._queue_pairs.values())
        return min((due_ns for due_ns in dues if due_ns is not None), default=None)

    def handle_timeout(self, now_ns: int) -> None:
        """Run the timers that are due."""
        for qp in self._queue_pairs.values():
            due_ns = qp.poll_timeout()
            if due_ns is not None and due_ns <= now_ns:
                qp.handle_timeout(now_ns)

    # -- what there is to tell

    @property
    def fed(self) -> int:
        """Return how many queues have sinks that are due."""
        return len(self.outbox.fed)

    @property
    def events(self) -> int:
        """Return how many events wait."""
        return len(self.outbox.events)

    def feed_sinks(self) -> None:
        """Give each sink what has completed in its queue."""
        self.outbox.feed_sinks()

    def take_events(self) -> list[Event]:
        """Return the events, and forget them."""
        return self.outbox.take_events()

    def snapshot(self) -> EngineSnapshot:
        """Return counts: of packets since it was made, and of what there is."""
        return EngineSnapshot(
            self._sent,
            self._received,
            self._malformed,
            self._unknown,
            self._wrong_source,
            len(self._queue_pairs),
            self.keys.region_count,
        )
