"""The `shm` provider on the compiled engine: see `adapter` for the rules, and ADR 43.

Slots, room, acknowledgements, doorbells and placed writes are `urds_native.ShmEngine`; meeting,
greeting, the sockets, the connection manager and what peers may map are here. Both speak the same
format, so the peer may be either.

A post sends before it returns, and a poll of an empty queue looks at the channels. What that leaves
to the device is told by `take_channel_events`. Behind a message of the connection manager the
engine reads no further until the message had its effect: data right behind a reply must find its
queue pair ready.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import urds_native

from urds.common.errors import RemoteProtocolError
from urds.verbs.cm.messages import CM_QKEY, CM_QPN
from urds.verbs.engine.keys import Region
from urds.verbs.engine.numbers import AccessFlag, QPState, QPType
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.engine_adapter import EngineAdapter
from urds.verbs.providers.packet_adapter import LoopPacketAdapter
from urds.verbs.providers.packet_connection import QueuePairEntry
from urds.verbs.providers.shm import adapter as reference
from urds.verbs.providers.shm.adapter import ShmAdapter, may_map
from urds.verbs.providers.shm.messages import (
    ChannelMessage,
    MapReject,
    MapReply,
    MapRequest,
)
from urds.verbs.providers.shm.peers import Channel, Peers, close_all
from urds.verbs.providers.shm.rendezvous import Rendezvous

RETRY_NS: Final = 1_000_000  # until a peer with a full backlog is tried again


class NativeShmAdapter(EngineAdapter, ShmAdapter):
    """One open `shm` device on the compiled engine."""

    has_public_calls = True
    _is_taking_news = False

    def _make_peers(self) -> Peers:
        engine: Any = urds_native.ShmEngine(
            self.attributes.link,
            gid=self.gid,
            on_pass=self._handle_pass,
            on_idle=self.progress,
            placed_bytes_min=reference.PLACED_BYTES_MIN,
        )
        self.channel_engine = engine
        self.use(engine)
        return NativePeers(self, engine, self._rendezvous)

    # -- time and progress

    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """See `Adapter.wait`. Posts and polls of other threads tell what completes meanwhile."""
        self.channel_engine.watch(1)
        try:
            return super().wait(is_ready, timeout_ns)
        finally:
            self.channel_engine.watch(-1)

    def _batch_done(self) -> None:
        super()._batch_done()
        self.channel_engine.plan(None if self._timer is None else self._timer.deadline_ns)

    def poll_memory(self) -> None:
        """Read all channels, and do what they left to the device."""
        if not self.is_closed:
            with self.batch():
                self.read_channels()
                for _ in range(len(self._waiting)):
                    self._send_message(*self._waiting.popleft())

    def read_channels(self) -> bool:
        """Read every channel, a bounded number of slots each; return whether there were any."""
        found: bool = self.channel_engine.progress()
        self._take_news()
        return found

    def arm_doorbell(self) -> bool:
        """Ask peers to ring the doorbell; false if there is something to process instead."""
        return self.is_closed or self.peers.arm_doorbell()

    def acknowledge(self) -> None:
        """Send all acknowledgements that wait, as far as there is room."""
        self.channel_engine.arm_doorbell()
        self.channel_engine.disarm_doorbell()

    def _abandon_in_child(self) -> None:
        for channel in self.peers:
            self.channel_engine.detach(channel.gid)
        super()._abandon_in_child()

    def _handle_pass(self) -> None:
        """Do what a poll has found."""
        with self.lock:
            if not self.is_closed:
                with self.batch():
                    self._take_news()

    def _take_news(self) -> None:
        """Do what the channels leave to the device, within a batch; then let them read on."""
        if self._is_taking_news:
            return
        self._is_taking_news = True
        try:
            while events := self.channel_engine.take_channel_events():
                for kind, *values in events:
                    _HANDLERS[kind](self, *values)
        finally:
            self._is_taking_news = False
            self.channel_engine.release()

    def _handle_message(self, gid: bytes, qkey: int, data: bytes) -> None:
        self._manager_packets.received += 1
        packet = _message(data)
        packet.qkey = qkey
        self._receive_message(packet, AddressVector(gid), None, None)

    def _handle_connect(self, gid: bytes) -> None:
        """Make a channel for packets that wait for it."""
        try:
            self.peers.route(gid)
        except BlockingIOError:  # its accept queue is full
            self.loop.call_at(self.now_ns() + RETRY_NS, partial(self._handle_connect, gid))
        except OSError:
            self.packets_lost += 1  # no peer there: its queue pairs go to ERR
            self.call_soon(partial(self.handle_gone, gid))

    def _handle_map(self, gid: bytes, qpn: int, rkey: int) -> None:
        channel = self.peers.find(gid)
        if channel is None or not channel.send_message(MapRequest(qpn, rkey)):
            self.channel_engine.unmap(gid, qpn)

    def _handle_error(self, gid: bytes, _what: str) -> None:
        channel = self.peers.find(gid)
        if channel is not None:
            self.call_soon(partial(self.peers.close_peer, channel))

    def _handle_failed(self, qpn: int) -> None:
        entry = self.entries.get(qpn)
        if entry is not None:
            self._dirty[qpn] = entry

    def handle_gone(self, gid: bytes) -> None:
        """Break what was connected with a peer."""
        self.channel_engine.detach(gid)
        super().handle_gone(gid)

    # -- queue pairs and memory

    def add(self, qp: QueuePair) -> None:
        """Register a queue pair with this adapter."""
        LoopPacketAdapter.add(self, qp)

    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair; its peer may not write any more."""
        LoopPacketAdapter.remove(self, qp)
        self._end_mappings(qp)
        qp.close()

    def _progress_entry(self, entry: QueuePairEntry) -> None:
        self.channel_engine.flush()
        qp, state = entry.qp, entry.qp.state
        if entry.connection is not None and state in (QPState.ERR, QPState.RESET):
            entry.connection.handle_queue_pair_error()
        if state is QPState.ERR:
            self._end_mappings(qp)
        elif self.mappable_keys.has_mappings(qp.qpn) and not may_map(qp):
            self.mappable_keys.revoke_mappings(qp.qpn)
        self._take_news()

    def _end_mappings(self, qp: QueuePair) -> None:
        self.mappable_keys.revoke_mappings(qp.qpn)
        peer = qp.peer
        if peer is not None and qp.qp_type is QPType.RC:
            self.channel_engine.unmap(peer.dgid, qp.attr.dest_qp_num)

    def register(
        self,
        pd: object,
        view: memoryview,
        address: int,
        access: AccessFlag,
        *,
        key: int | None = None,
    ) -> Region:
        """Register memory, which peers may map if all of it was allocated here."""
        region = super().register(pd, view, address, access, key=key)
        self.mappable_keys.note_new(region)
        return region

    def deregister(self, region: Region, *, unbind: bool = False) -> None:
        """Take a registration back, and what peers have mapped of it."""
        rkey = region.rkey
        super().deregister(region, unbind=unbind)
        self.mappable_keys.note_gone(rkey)

    def reregister(
        self,
        region: Region,
        *,
        pd: object | None = None,
        view: memoryview | None = None,
        address: int | None = None,
        access: AccessFlag | None = None,
    ) -> None:
        """Change what is given; peers map it anew."""
        rkey = region.rkey
        super().reregister(region, pd=pd, view=view, address=address, access=access)
        self.mappable_keys.note_gone(rkey)
        self.mappable_keys.note_new(region)

    @property
    def writes_placed(self) -> int:
        """Return how many writes went into mapped memory of the peers that there are."""
        *_, placed = self.channel_engine.channel_counters()
        return int(placed)

    # -- messages of the connection manager

    def _send_message(self, route: AddressVector, data: bytes) -> None:
        gid = route.dgid
        if gid == self.gid:
            self._manager_packets.sent += 1
            self._looped.append(_message(data))
            return
        try:
            self.peers.route(gid)
        except BlockingIOError:
            self._waiting.append((route, data))
            self.loop.call_at(self.now_ns() + RETRY_NS, self.poll_memory)
            return
        except OSError:
            self.packets_lost += 1
            self.call_soon(partial(self.handle_gone, gid))
            return
        if self.channel_engine.send_message(gid, CM_QKEY, data):
            self._manager_packets.sent += 1
        else:
            self._waiting.append((route, data))

    def _loop_back(self) -> None:
        """Process the messages to ourselves; what they cause is sent at the end."""
        with self.batch():
            while self._looped:
                self._manager_packets.received += 1
                packet = self._looped.popleft()
                self._receive_message(packet, AddressVector(self.gid), None, None)


def _message(data: bytes) -> Packet:
    return Packet(
        PacketKind.DATAGRAM,
        CM_QPN,
        flags=PacketFlag.FIRST | PacketFlag.LAST,
        source_qpn=CM_QPN,
        qkey=CM_QKEY,
        payload=data,
    )


_HANDLERS: Final[dict[str, Any]] = {
    "message": NativeShmAdapter._handle_message,
    "connect": NativeShmAdapter._handle_connect,
    "map": NativeShmAdapter._handle_map,
    "error": NativeShmAdapter._handle_error,
    "failed": NativeShmAdapter._handle_failed,
}


class NativePeers(Peers):
    """The peers of a context whose channels are the engine's: their slots are not read here."""

    def __init__(self, adapter: NativeShmAdapter, engine: Any, rendezvous: Rendezvous) -> None:
        self._adapter = adapter
        self._engine = engine
        super().__init__(adapter.gid, rendezvous, adapter, adapter.loop)

    def read_slots(self) -> None:
        """Read every channel, a bounded number of slots each."""
        self._adapter.read_channels()

    def arm_doorbell(self) -> bool:
        """Ask all writers to ring; return whether no channel has anything."""
        is_armed: bool = self._engine.arm_doorbell()
        return is_armed

    def disarm_doorbell(self) -> None:
        """Tell all writers that no doorbell is needed."""
        self._engine.disarm_doorbell()

    def _note_memory(self, channel: Channel, memory: int) -> None:
        try:
            self._engine.attach(channel.gid, memory, channel.socket.fileno(), channel.is_connector)
        except OSError as error:
            raise RemoteProtocolError(f"memory that is no channel's: {error}") from error

    def _read(self, channel: Channel) -> bool:
        return not self._adapter.read_channels()

    def _close(self, channel: Channel) -> None:
        self._engine.detach(channel.gid)
        super()._close(channel)

    def _handle_message(
        self, channel: Channel, message: ChannelMessage, descriptors: list[int]
    ) -> None:
        if not isinstance(message, MapReply | MapReject):
            super()._handle_message(channel, message, descriptors)
            return
        try:
            self._answer(channel.gid, message, descriptors)
        except OSError as error:
            raise RemoteProtocolError(f"{message}: {error}") from error
        finally:
            close_all(descriptors)

    def _answer(self, gid: bytes, message: MapReply | MapReject, descriptors: list[int]) -> None:
        qpn, rkey = message.qpn, message.rkey
        if isinstance(message, MapReject):
            self._engine.reject_map(gid, qpn, rkey)
            return
        place = (message.address, message.region_bytes, message.generation)
        self._engine.map(gid, qpn, rkey, descriptors[0], *place)
