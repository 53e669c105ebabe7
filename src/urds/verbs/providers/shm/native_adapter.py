"""The `shm` provider on the compiled engine: see `adapter` for the rules, and ADR 43.

Slots, room, acknowledgements, doorbells and placed writes are `urds_native.ShmEngine`; meeting,
greeting, the sockets, the connection manager and what peers may map are here. Both speak the same
format, so the peer may be either.

A post sends before it returns, and a poll of an empty queue looks at the channels. What that leaves
to the device is told by `take_channel_events`. Behind a message of the connection manager the
engine reads no further until the message had its effect: data right behind a reply must find its
queue pair ready.
"""

import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, starmap
from types import TracebackType
from typing import Any, Final

import urds_native

from urds.common.errors import RemoteProtocolError
from urds.verbs.cm.messages import CM_QKEY, CM_QPN
from urds.verbs.engine.completions import CompletionQueue
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
from urds.verbs.providers.shm.channels import ChannelCounters, ChannelEnd
from urds.verbs.providers.shm.couriers import make_courier
from urds.verbs.providers.shm.messages import MapReject, MapReply, MapRequest
from urds.verbs.providers.shm.native_loop import NativeLoop
from urds.verbs.providers.shm.peers import Peers
from urds.verbs.providers.shm.rendezvous import Rendezvous

LOOKS_MAX: Final = 32  # until a whole pass
ROOM_NS: Final = 1_000_000  # until a message that found no room in its channel is tried again
RETRY_NS: Final = 20_000_000  # until a peer with a full backlog is tried again
_PAUSES_MAX: Final = 64  # of one look at the channels, for receives that sinks give back
_PLACED, _LOST = 4, 6  # among the engine's counters


class NativeShmAdapter(EngineAdapter, ShmAdapter):
    """One open `shm` device on the compiled engine."""

    has_public_calls = True
    has_native_waits = True
    _loop_kind = NativeLoop
    loop: NativeLoop
    peers: "NativePeers"
    has_failed = False  # the engine has
    _is_released = False  # though it has failed
    _is_taking_news = False
    _has_read = False  # packets, in the pass under way
    _looks = 0  # since the last whole pass
    _has_found = False  # by one of them

    def _make_peers(self) -> "NativePeers":
        engine: Any = urds_native.ShmEngine(
            self.attributes.link,
            gid=self.gid,
            on_pass=self._handle_pass,
            on_idle=self.progress,
            owner=self.loop,
            **self.loop.descriptors,
            placed_bytes_min=reference.PLACED_BYTES_MIN,
        )
        self.channel_engine = engine
        self.loop.use(engine, self._before_sleep, self.look)
        self._news: deque[tuple[Any, ...]] = deque()  # taken from the engine and not done yet
        self.on_stream: dict[int, Callable[[], None]] = {}  # by queue pair, of compiled streams
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

    def wait_fed(
        self, cq: CompletionQueue, is_ready: Callable[[], bool], timeout_ns: int | None
    ) -> bool:
        """See `Adapter.wait_fed`: the thread sleeps in the engine, and gives the sink its part."""
        return self.loop.wait(is_ready, timeout_ns, cq)

    def _before_sleep(self) -> None:
        with self.guarded():
            self.peers.plan_trim()

    def _batch_done(self) -> None:
        with self.guarded():
            super()._batch_done()
            self.channel_engine.plan(None if self._timer is None else self._timer.deadline_ns)

    def _handle_timer(self) -> None:
        with self.guarded():
            super()._handle_timer()

    def progress(self) -> None:
        """Read the channels and run what is due; see `ShmAdapter.progress`."""
        self._has_read = False
        if self.loop.progress() or self._has_read:
            self._idle_passes = 0
        else:
            self._count_idle_pass()

    def poll_memory(self) -> None:
        """Read all channels, and do what they left to the device."""
        if not self.is_closed:
            with self.guarded(), self.flushing, self.batch:
                self.read_channels()
                for _ in range(len(self._waiting)):
                    self._send_message(*self._waiting.popleft())

    def look(self, cq: Any) -> None:
        """See `Adapter.look`; now and then there is a whole pass, for sockets and timers.

        If no look since the last one has found anything, other threads get the interpreter.
        """
        self._looks += 1
        if self._looks < LOOKS_MAX:
            with self.lock:
                self._has_found |= cq.look()
            return
        if not self._has_found:
            self._idle_passes = reference.IDLE_PASSES
        self._looks, self._has_found = 0, False
        self.progress()

    def finish_post(self, qp: QueuePair, cq: Any) -> None:
        """See `Adapter.finish_post`: the post has sent, and may have completed something."""
        if self.is_in_batch:
            self.progress_qp(qp)
        else:
            cq.look()

    def arm_doorbell(self) -> bool:
        """See `ShmAdapter.arm_doorbell`."""
        with self.guarded():
            return super().arm_doorbell()
        return True

    def disarm_doorbell(self) -> None:
        """See `ShmAdapter.disarm_doorbell`."""
        if not self.is_closed:
            with self.guarded():
                super().disarm_doorbell()

    # -- an engine that has failed

    def guarded(self) -> "_Guarded":
        """Part with all peers if the engine has panicked: it does nothing any more but refuse."""
        return _Guarded(self)

    def _fail(self) -> None:
        if not self.has_failed:
            self.has_failed = self.is_closed = True
            self.entries.clear()
            self._dirty.clear()
            self.peers.part()
            self.loop.leave_plane()
            self.notify()

    def close(self) -> None:
        """See `ShmAdapter.close`. A device whose engine has failed closes as well."""
        with self.lock:
            if not self.is_closed:
                self.acknowledge()  # which tells whether it has
        super().close()
        with self.lock, self.guarded():
            self.channel_engine.close()
        if self.has_failed and not self._is_released:
            self._is_released = True
            self.loop.close()
            with self.lock:
                self._release_names()

    def read_channels(self) -> bool:
        """Read every channel, a bounded number of slots each; return whether there were any."""
        return self._take_from(self.channel_engine.progress)

    def drain(self, gid: bytes) -> bool:
        """Read what is left of a peer that is gone; return whether there was anything."""
        return self._take_from(partial(self.channel_engine.drain, gid))

    def _take_from(self, read: Callable[[], bool]) -> bool:
        found = read()
        self._take_news()
        for _ in range(_PAUSES_MAX):
            if not self.channel_engine.is_paused:
                break
            self.finish_pass()  # sinks give receives back, of which a queue pair had none left
            read()
            self._take_news()
        self._has_read |= found
        return found

    def acknowledge(self) -> None:
        """Send all acknowledgements that wait, as far as there is room."""
        with self.guarded():
            self.channel_engine.acknowledge()

    def _abandon_in_child(self) -> None:
        self.channel_engine.abandon_in_child()
        super()._abandon_in_child()

    def _handle_pass(self) -> None:
        """Do what a poll has found."""
        with self.lock:
            if not self.is_closed:
                with self.guarded(), self.flushing, self.batch:
                    self._take_news()

    def _take_news(self) -> None:
        """Do what the channels leave to the device, within a batch; then let them read on."""
        if self._is_taking_news:
            return
        if self._is_connecting:  # they may be of the connection that is being asked for
            self.call_soon(self._take_news)
            return
        if self.has_failed:
            return
        self._is_taking_news, news = True, self._news
        try:
            _do_news(self, news)
        except BaseException:  # a signal handler's: the engine tells nothing twice
            self._soon.append(self._take_news)
            self._request_batch()
            raise
        finally:
            self._is_taking_news = False
            if not news:  # else what comes behind a message that waits here would be read first
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
            # No peer is there: its queue pairs go to ERR.
            self.call_soon(partial(self.handle_gone, gid))

    def _handle_map(self, gid: bytes, qpn: int, rkey: int) -> None:
        channel = self.peers.find(gid)
        if channel is None or not channel.send_message(MapRequest(qpn, rkey)):
            self.channel_engine.unmap(gid, qpn)

    def _handle_error(self, gid: bytes, _what: str) -> None:
        channel = self.peers.find(gid)
        if channel is not None:
            self.call_soon(partial(self.peers.close_peer, channel))

    def _handle_ended(self, gid: bytes) -> None:
        self.call_soon(partial(self.peers.lose_peer, gid))

    def stream(self, qp: Any, settings: object, source: object) -> Any:
        """Make the compiled stream of a queue pair in INIT. Raises OSError: EINVAL, ENOMEM."""
        return urds_native.Stream(self.channel_engine, qp, settings, source)

    rdma_courier = make_courier

    def _handle_stream(self, qpn: int) -> None:
        handler = self.on_stream.get(qpn)
        if handler is not None:
            handler()

    def progressed_ns(self) -> int:
        """Return when a call that takes no lock of Python made progress last."""
        at_ns: int = self.channel_engine.progressed_ns
        return at_ns

    def _handle_failed(self, qpn: int) -> None:
        entry = self.entries.get(qpn)
        if entry is not None:
            self._dirty[qpn] = entry

    def handle_gone(self, gid: bytes, *, is_cut: bool = False) -> None:
        """Break what was connected with a peer; see `ShmAdapter.handle_gone`."""
        self.channel_engine.detach(gid)
        super().handle_gone(gid, is_cut=is_cut)

    # -- queue pairs and memory

    def completion_channel(self, on_taken: Callable[[], None]) -> Any:
        """See `Adapter.completion_channel`."""
        return self.channel_engine.completion_channel(on_taken)

    def add(self, qp: QueuePair) -> None:
        """Register a queue pair with this adapter."""
        LoopPacketAdapter.add(self, qp)

    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair; its peer may not write any more."""
        self.on_stream.pop(qp.qpn, None)
        LoopPacketAdapter.remove(self, qp)
        self._end_mappings(qp)
        qp.close()

    def _progress_entry(self, entry: QueuePairEntry) -> None:
        self.channel_engine.flush()
        if self.channel_engine.is_paused:
            self.call_soon(self.poll_memory)
        entry.break_if_in(QPState.ERR, QPState.RESET)
        qp, state = entry.qp, entry.qp.state
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
        return int(self.channel_engine.channel_counters()[_PLACED])

    @property
    def regions_mapped(self) -> int:
        """Return how many regions of the peers that there are this side has mapped."""
        return int(self.channel_engine.regions_mapped)

    @property
    def acks_waiting(self) -> int:
        """Return how many queue pairs have an acknowledgement that waits for a packet."""
        return int(self.channel_engine.waiting_acks)

    def channel_counters(self) -> ChannelCounters:
        """Return the counters of all channels that there were."""
        sent, received, rung, waits, _, trims, _ = self.channel_engine.channel_counters()
        return replace(
            self.peers.counters,
            slots_sent=sent,
            slots_received=received,
            doorbells_rung=rung,
            waits_for_room=waits,
            trims=trims,
        )

    def costs(self) -> dict[str, int]:
        """Return how often the engine's lock was taken, and how many bytes it copied.

        Bytes that came out of a channel count twice: they are copied to where they belong.
        """
        entered, put, taken, placed = self.channel_engine.costs()
        return {"locks": entered, "bytes": put + 2 * taken + placed}

    @property
    def packets_lost(self) -> int:
        """Return how many packets had no peer, and how many datagrams no room."""
        return self._messages_lost + int(self.channel_engine.channel_counters()[_LOST])

    @packets_lost.setter
    def packets_lost(self, lost: int) -> None:
        self._messages_lost = lost

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
            self._messages_lost += 1
            self.call_soon(partial(self.handle_gone, gid))
            return
        if self.channel_engine.send_message(gid, CM_QKEY, data):
            self._manager_packets.sent += 1
        else:
            self._waiting.append((route, data))
            self.loop.call_at(self.now_ns() + ROOM_NS, self.poll_memory)

    def _loop_back(self) -> None:
        """Process the messages to ourselves; what they cause is sent at the end."""
        with self.flushing, self.batch:
            while self._looped:
                self._manager_packets.received += 1
                packet = self._looped.popleft()
                self._receive_message(packet, AddressVector(self.gid), None, None)


class _Guarded:
    """Context of `guarded`; a generator would take four times as long around each pass."""

    __slots__ = ("_adapter",)

    def __init__(self, adapter: NativeShmAdapter) -> None:
        self._adapter = adapter

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, OSError) or error.errno != errno.EIO:
            return False
        self._adapter._fail()
        return True


def _message(data: bytes) -> Packet:
    return Packet(
        PacketKind.DATAGRAM,
        CM_QPN,
        flags=PacketFlag.FIRST | PacketFlag.LAST,
        source_qpn=CM_QPN,
        qkey=CM_QKEY,
        payload=data,
    )


def _do_news(adapter: NativeShmAdapter, news: deque[tuple[Any, ...]]) -> None:
    """Do what is left in `news` and what the engine tells, until there is nothing."""
    take = adapter.channel_engine.take_channel_events
    while True:
        if not news:
            # One call of C alone takes and keeps it: no signal handler runs between.
            news.extend(chain.from_iterable(starmap(take, _ONCE)))
            if not news:
                return
        kind, *values = news[0]
        if kind not in _REPEATABLE:
            news.popleft()
        _HANDLERS[kind](adapter, *values)
        if kind in _REPEATABLE:
            news.popleft()


_ONCE: Final = ((),)  # calls without arguments
# What may be done again if a signal handler's exception cuts it short. The others are tried once:
# a message that is processed twice would be two.
_REPEATABLE: Final = frozenset({"stream", "failed", "gone", "error"})
_HANDLERS: Final[dict[str, Any]] = {
    "message": NativeShmAdapter._handle_message,
    "connect": NativeShmAdapter._handle_connect,
    "map": NativeShmAdapter._handle_map,
    "gone": NativeShmAdapter._handle_ended,
    "error": NativeShmAdapter._handle_error,
    "failed": NativeShmAdapter._handle_failed,
    "stream": NativeShmAdapter._handle_stream,
}


class NativeChannel(ChannelEnd):
    """One end of a channel whose memory is the engine's; its socket is rung from there."""

    def __init__(
        self,
        gid: bytes,
        connection: socket.socket,
        engine: Any,
        *,
        is_connector: bool,
        counters: ChannelCounters,
    ) -> None:
        super().__init__(gid, connection, is_connector=is_connector, counters=counters)
        self._engine = engine

    @property
    def is_placing(self) -> bool:
        """Whether the peer says that it is copying into our memory."""
        return self.is_open and bool(self._engine.is_placing(self.gid))

    def close(self) -> None:
        """End all channels with this peer, and release memory and socket. Safe twice."""
        if self.is_open:
            self._engine.detach(self.gid)  # before the socket, which it rings
            self.abandon()


class NativePeers(Peers[NativeChannel]):
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
        self.plan_trim()
        is_armed: bool = self._engine.arm_doorbell()
        return is_armed

    def disarm_doorbell(self) -> None:
        """Tell all writers that no doorbell is needed."""
        self._engine.disarm_doorbell()

    def trim(self) -> None:
        """Give memory of idle channels back; plan the next look while others are busy."""
        self._trim_timer = None
        self._engine.note_trim(False)
        if self._engine.trim():
            self._plan_trim()

    def plan_trim(self) -> None:
        """Look at the channels in a second, if one was written to since its memory was given."""
        if self._trim_timer is None and self._engine.is_stirred:
            self._plan_trim()

    def _plan_trim(self) -> None:
        super()._plan_trim()
        self._engine.note_trim(True)

    def _receive_messages(self, channel: NativeChannel, events: int) -> None:
        with self._adapter.guarded():
            super()._receive_messages(channel, events)

    def part(self) -> None:
        """Close all sockets: peers see the end. The engine is not asked."""
        for connection in list(self._pending):
            self._drop_pending(connection)
        for channel in tuple(self._channels):
            self._loop.unwatch(channel.socket.fileno())
            channel.abandon()
        self._channels.clear()
        self._routes.clear()

    def lose_peer(self, gid: bytes) -> None:
        """Close the channels of a peer that has ended and wrote no more than was read."""
        if (channel := self.find(gid)) is not None:
            self._handle_gone(channel)

    def _make_end(
        self, gid: bytes, connection: socket.socket, memory: int, is_connector: bool
    ) -> NativeChannel:
        try:
            self._engine.attach(gid, memory, connection.fileno(), is_connector)
        except OSError as error:
            if is_connector:
                raise
            raise RemoteProtocolError(f"memory that is no channel's: {error}") from error
        return NativeChannel(
            gid, connection, self._engine, is_connector=is_connector, counters=self.counters
        )

    def _read(self, channel: NativeChannel) -> bool:
        return not self._adapter.drain(channel.gid)

    def _take_answer(
        self, channel: NativeChannel, answer: MapReply | MapReject, descriptors: list[int]
    ) -> None:
        gid, qpn, rkey = channel.gid, answer.qpn, answer.rkey
        try:
            if isinstance(answer, MapReject):
                self._engine.reject_map(gid, qpn, rkey)
                return
            place = (answer.address, answer.region_bytes, answer.generation)
            self._engine.map(gid, qpn, rkey, descriptors[0], *place)
        except OSError as error:
            raise RemoteProtocolError(f"{answer}: {error}") from error
