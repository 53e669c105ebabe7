"""Adapters of packets whose queue pairs are an engine's own: see `engine.contract`.

`PacketAdapter` moves `Packet` records of one queue pair after the other. Here an `Engine` takes and
gives bytes; the adapter keeps what is rare: connections, messages of their manager, passes. Either
engine can be placed, the reference or the compiled one.
"""

from typing import cast

from urds.common.errors import WireError
from urds.common.types import BytesLike, HostPort
from urds.verbs.cm.messages import CM_QKEY, CM_QPN
from urds.verbs.engine.completions import CompletionQueue, Outbox, Sink
from urds.verbs.engine.contract import Engine, EngineSnapshot
from urds.verbs.engine.keys import MemoryWindow, Region
from urds.verbs.engine.numbers import AccessFlag, QPState, QPType, ReceiveOrder
from urds.verbs.engine.packets import HEADER_BYTES, Packet, PacketKind, parse_packet
from urds.verbs.engine.queue_pair import QPCap, QueuePair
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.packet_adapter import PacketAdapter, PacketStats
from urds.verbs.providers.packet_connection import QueuePairEntry

_QPN = slice(4, 8)  # of a packet: see `engine.packets`


class EngineAdapter(PacketAdapter):
    """The part of an adapter that has an engine; beside the provider's own `PacketAdapter`.

    The engine's objects stand where the reference's are expected: they have the same attributes.
    """

    def use(self, engine: Engine) -> None:
        """Use an engine, before anything is made."""
        self.engine = engine
        self.outbox = cast(Outbox, engine)  # told in the same way

    # -- objects

    def completion_queue(self, capacity: int, *, sink: Sink | None = None) -> CompletionQueue:
        """See `Adapter.completion_queue`."""
        made: CompletionQueue = self.engine.completion_queue(capacity, sink=sink)
        return made

    def shared_receive_queue(
        self, capacity: int, sge_max: int, *, pd: object
    ) -> SharedReceiveQueue:
        """See `Adapter.shared_receive_queue`."""
        made: SharedReceiveQueue = self.engine.shared_receive_queue(capacity, sge_max, pd=pd)
        return made

    def queue_pair(
        self,
        *,
        kind: QPType,
        pd: object,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        cap: QPCap,
        srq: SharedReceiveQueue | None = None,
        sq_sig_all: bool = False,
        receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER,
    ) -> QueuePair:
        """See `Adapter.queue_pair`. Raises OSError: EOPNOTSUPP for an order the engine lacks."""
        qp: QueuePair = self.engine.queue_pair(
            qpn=self.new_qpn(),
            kind=kind,
            pd=pd,
            send_cq=send_cq,
            recv_cq=recv_cq,
            cap=cap,
            srq=srq,
            sq_sig_all=sq_sig_all,
            receive_order=receive_order,
        )
        self.add(qp)
        return qp

    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair, and end its service."""
        super().remove(qp)
        qp.close()

    def register(
        self,
        pd: object,
        view: memoryview,
        address: int,
        access: AccessFlag,
        *,
        key: int | None = None,
    ) -> Region:
        """See `Adapter.register`."""
        made: Region = self.engine.register(pd, view, address, access, key=key)
        return made

    def deregister(self, region: Region, *, unbind: bool = False) -> None:
        """See `Adapter.deregister`."""
        self.engine.deregister(region, unbind=unbind)

    def reregister(
        self,
        region: Region,
        *,
        pd: object | None = None,
        view: memoryview | None = None,
        address: int | None = None,
        access: AccessFlag | None = None,
    ) -> None:
        """See `Adapter.reregister`."""
        self.engine.reregister(region, pd=pd, view=view, address=address, access=access)

    def find_region(self, lkey: int) -> Region | None:
        """See `Adapter.find_region`."""
        found: Region | None = self.engine.find_region(lkey)
        return found

    @property
    def region_count(self) -> int:
        """See `Adapter.region_count`."""
        return self.engine.region_count

    def window(self, pd: object, kind: int) -> MemoryWindow:
        """See `Adapter.window`."""
        made: MemoryWindow = self.engine.window(pd, kind)
        return made

    def free_window(self, window: MemoryWindow) -> None:
        """See `Adapter.free_window`."""
        self.engine.free_window(window)

    # -- packets and time

    @property
    def packets(self) -> PacketStats:
        """Return counts of packets: the engine's and those of the connection manager."""
        own = self._manager_packets
        counts = EngineSnapshot(*self.engine.snapshot())
        return PacketStats(
            sent=own.sent + counts.sent,
            received=own.received + counts.received,
            dropped_malformed=own.dropped_malformed + counts.dropped_malformed,
            dropped_unknown=counts.dropped_unknown,
            dropped_source=counts.dropped_source,
            dropped_manager=own.dropped_manager,
        )

    @packets.setter
    def packets(self, packets: PacketStats) -> None:
        self._manager_packets = packets

    def _progress_entry(self, entry: QueuePairEntry) -> None:
        now_ns = self._about_ns()
        while (leaving := self.engine.poll_transmit(now_ns)) is not None:
            destination, data = leaving
            self._transmit(destination, [data])
        if entry.connection is not None and entry.qp.state in (QPState.ERR, QPState.RESET):
            entry.connection.handle_queue_pair_error()

    def _transmit_packet(self, packet: Packet, destination: AddressVector) -> None:
        self._manager_packets.sent += 1
        self._transmit(destination, self._emit(packet))

    def _receive(
        self,
        data: BytesLike,
        source: AddressVector,
        *,
        local: HostPort | None = None,
        peer: HostPort | None = None,
    ) -> None:
        """Process the bytes of one packet, within a batch."""
        assert self.is_in_batch, "packets arrive within a batch"
        qpn = int.from_bytes(data[_QPN], "big") if len(data) >= HEADER_BYTES else 0
        entry = self.entries.get(qpn)
        if entry is None:
            self._receive_without_queue_pair(data, qpn, source, local, peer)
            return
        connection = entry.connection
        # The owner learns that it is connected before the data does anything.
        if (
            connection is not None
            and connection.wants_data
            and self._is_sound(data, entry, source)
            and connection.handle_data()
        ):
            self._flush_connections()
        self.engine.receive(data, source, self.now_ns())
        self._dirty[qpn] = entry
        if self.engine.fed and not entry.qp.receives:
            self.finish_pass()

    def _is_sound(self, data: BytesLike, entry: QueuePairEntry, source: AddressVector) -> bool:
        """Return whether a packet is one of the queue pair's peer."""
        try:
            parse_packet(data, checksum=self.has_checksum)
        except WireError:
            return False
        peer = entry.qp.peer
        is_datagram = entry.qp.qp_type is QPType.UD
        return is_datagram or (peer is not None and self._is_from(peer, source))

    def _receive_without_queue_pair(
        self,
        data: BytesLike,
        qpn: int,
        source: AddressVector,
        local: HostPort | None,
        peer: HostPort | None,
    ) -> None:
        if qpn != CM_QPN:
            self.engine.receive(data, source, self.now_ns())  # which counts why it is dropped
            return
        own = self._manager_packets
        try:
            packet = parse_packet(data, checksum=self.has_checksum)
        except WireError:
            own.dropped_malformed += 1
            return
        own.received += 1
        if packet.kind is not PacketKind.DATAGRAM or packet.qkey != CM_QKEY:
            own.dropped_manager += 1
            return
        self._receive_message(packet, source, local, peer)

    def _run_timers(self, now_ns: int) -> None:
        """Run the timers that are due, within a batch."""
        due_ns = self.engine.poll_timeout()
        if due_ns is not None and due_ns <= now_ns:
            self.engine.handle_timeout(now_ns)
            self._dirty.update(self.entries)
        self.cm.handle_timeout(now_ns)

    def deadline_ns(self) -> int | None:
        """Return when a batch with `_run_timers` is due, None if never; 0 is at once."""
        first_ns = 0 if self._soon else self.engine.poll_timeout()
        second_ns = self.cm.poll_timeout()
        if first_ns is None or (second_ns is not None and second_ns < first_ns):
            return second_ns
        return first_ns
