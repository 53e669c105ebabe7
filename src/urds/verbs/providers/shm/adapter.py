"""The `shm` provider: queue pairs of processes of one host and one user, over shared memory.

A packet is a slot towards its peer. A write into memory that this side has mapped from the peer is
copied there at once and has no packet; one with an immediate value has a packet that says PLACED
and carries no bytes. The engine places a request only while no write before it to the same bytes is
in flight, so the last one wins. Small writes are packets.

For placed writes the initiator's checks are those of an honest peer, and come early: bytes may
be there before a request in front of them has failed. What the responder would reject is not
placed, as long as both keep the rules of `mappings`.

Acknowledgements wait for a packet to the same queue pair and ride on it. One goes alone when two
looks at the channel have found nothing, before its side sleeps, after 32 packets without one, and
before a message of the connection manager, so that an end does not overtake it.

A channel without room holds packets back in their queue pairs; none is lost. A datagram's path is
unknown before the packet is taken: datagrams that find no room are lost and counted.
"""

import atexit
import errno
import socket
import time
from collections import deque
from dataclasses import replace
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from random import SystemRandom
from typing import Any, Final
from weakref import WeakSet

from urds.common.errors import RemoteProtocolError
from urds.common.types import BytesLike, HostPort
from urds.verbs.cm.records import CmSettings
from urds.verbs.engine.flight import FIRST_NS, timeout_ns
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType
from urds.verbs.engine.packets import Packet
from urds.verbs.engine.queue_pair import LinkTraits, QPAttr, QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import DeviceAttributes, PortSpace
from urds.verbs.providers.packet_adapter import LoopPacketAdapter
from urds.verbs.providers.packet_connection import ADDRESSES_KEPT, QueuePairEntry
from urds.verbs.providers.shm.channels import MTU_BYTES, ChannelCounters, ChannelEnd
from urds.verbs.providers.shm.mappings import Allocations, MappableKeys, MappingPeer
from urds.verbs.providers.shm.messages import GID_BYTES, MapReject, MapRequest
from urds.verbs.providers.shm.peers import Peers, SlotPeers
from urds.verbs.providers.shm.rendezvous import EPHEMERAL_PORTS, ListenerName, Rendezvous
from urds.verbs.providers.shm.slots import PAYLOAD_BYTES_MAX, SLOT_BYTES

PLACED_BYTES_MIN: Final = 256  # a shorter write is carried along, and shares a line with its slot
LOOPED_BYTES_MAX: Final = 1 << 20  # under way to ourselves, slots included
_LOOKS: Final = 2  # that find nothing before an acknowledgement goes alone
IDLE_PASSES: Final = 32  # empty ones after which a spinning caller yields to other adapters
_EXIT_WAIT_S: Final = 1.0  # for a thread that has the lock when the program ends
_GIVE_WAY_S: Final = 0.000_001  # of which the kernel makes some 60 microseconds
_RECEIVING: Final = (QPState.RTR, QPState.RTS, QPState.SQD)
_GID_PREFIX: Final = 0xFD  # of unique local addresses: RFC 4193


class ShmAdapter(LoopPacketAdapter):
    """One open `shm` device."""

    def __init__(self, name: str = "shm0", *, directory: Path | None = None) -> None:
        """Open the device; `directory` is where contexts meet, if not the user's default.

        Raises OSError: PermissionError if the directory is not this user's alone.
        """
        rng = SystemRandom()
        attributes = DeviceAttributes(
            name=name,
            provider="shm",
            link=LinkTraits(mtu_bytes=MTU_BYTES, lossless=True, acks_wait=True),
        )
        super().__init__(
            attributes,
            gid=bytes([_GID_PREFIX]) + rng.randbytes(GID_BYTES - 1),
            rng=rng,
            # The end of a socket reports at once that a peer is gone: no probes are needed.
            settings=CmSettings(alive_idle_ns=None),
        )
        self.packets_lost = 0  # without a peer, and datagrams that found no room
        self._rendezvous = Rendezvous(self.gid, directory)
        self.allocations = Allocations()
        self.mappable_keys = MappableKeys(
            self.allocations, lambda: self.peers, rng=rng, on_overdue=self._give_up
        )
        self.keys = self.mappable_keys
        self._place_remote = self._place  # one bound method for all queue pairs
        self._names: dict[tuple[HostPort, PortSpace], ListenerName] = {}
        self._starved: set[AddressVector] = set()  # paths that were full
        self._early: dict[bytes, Packet] = {}  # first packets to peers with a full backlog
        self._acks_pending: dict[bytes, dict[int, QueuePairEntry]] = {}  # acknowledgements, by peer
        self._sources: dict[bytes, AddressVector] = {}  # peers that sent something
        self._fading: set[int] = set()  # queue pairs whose peer is gone, and that have time left
        self._looped: deque[Packet] = deque()  # packets to ourselves
        self._looped_bytes = 0
        self._idle_passes = 0  # of `progress`, in a row
        with self.lock:  # the progress thread waits for it until all is here
            self.loop = self._loop_kind(
                self.lock, memory=self, on_abandon=self._abandon_in_child, on_cut=self.go_on
            )
            self.peers = self._make_peers()
        _alive.add(self)

    def _make_peers(self) -> Peers[Any]:
        return SlotPeers(self.gid, self._rendezvous, self, self.loop)

    # -- time and progress

    def progress(self) -> None:
        """Read the slots and run what is due; poll the sockets now and then.

        A caller that polls in a loop holds the interpreter. Where the peer is an adapter of the
        same process its thread would get it 5 ms later each time, several times for one packet; so
        after some empty passes the caller yields.
        """
        received = self.packets.received
        if self.loop.progress() or self.packets.received != received:
            self._idle_passes = 0
        else:
            self._count_idle_pass()

    def _count_idle_pass(self) -> None:
        self._idle_passes += 1
        if self._idle_passes >= IDLE_PASSES and len(_alive) > 1:
            self._idle_passes = 0
            time.sleep(_GIVE_WAY_S)

    def close(self) -> None:
        """Disconnect the peers and close everything."""
        with self.lock:
            if self.is_closed:
                return
            self.acknowledge()
            for qpn in self.entries:
                self.mappable_keys.revoke_mappings(qpn)
            self._disconnect_all()
        _alive.discard(self)
        self.loop.close()
        with self.lock:
            self._release_names()
            self.peers.close()

    def _release_names(self) -> None:
        for name in self._names.values():
            name.close()
        self._names.clear()
        self._rendezvous.close()

    def _abandon_in_child(self) -> None:
        """Close this copy of the device in the child of a fork; the peers are not told."""
        self.is_closed = True
        self.entries.clear()
        self._dirty.clear()
        self._acks_pending.clear()
        for name in self._names.values():
            name.abandon()
        self._rendezvous.abandon()
        self.peers.abandon()
        _alive.discard(self)

    # -- ProgressMemory

    def poll_memory(self) -> None:
        """Read all slots, feed the paths that have room again, and send late acknowledgements."""
        if not self.is_closed:
            with self.flushing, self.batch:
                self.peers.read_slots()
                if self._starved:
                    self._feed()
                if self._acks_pending:
                    for channel in self.peers:
                        if channel.idle_looks >= _LOOKS and channel.gid in self._acks_pending:
                            self._acknowledge_peer(channel.gid)

    def arm_doorbell(self) -> bool:
        """Ask peers to ring the doorbell; false if there is something to process instead."""
        # What a closed adapter has not read stays unread: a thread may wait for the lock.
        if self.is_closed:
            return True
        if self._acks_pending:
            self.acknowledge()
        return self.peers.arm_doorbell()

    def disarm_doorbell(self) -> None:
        """Ask peers not to ring the doorbell."""
        self.peers.disarm_doorbell()

    def progressed_ns(self) -> int:
        """Return 0: all progress is made by the loop."""
        return 0

    # -- PeersOwner

    def handle_packet(self, gid: bytes, packet: Packet) -> None:
        """Process one packet."""
        source = self._sources.get(gid)
        if source is None:
            source = self._sources[gid] = AddressVector(gid)
        self._receive_packet(packet, source, None, None)

    def handle_map_request(self, channel: ChannelEnd, request: MapRequest) -> None:
        """Let the peer map memory of a queue pair that receives and allows writes."""
        entry = self.entries.get(request.qpn)
        peer = None if entry is None else entry.qp.peer
        if entry is None or peer is None or peer.dgid != channel.gid or not may_map(entry.qp):
            channel.send_message(MapReject(request.qpn, request.rkey))
            return
        answer = self.mappable_keys.map_remote(request, pd=entry.qp.pd)
        if isinstance(answer, MapReject):
            channel.send_message(answer)
        else:
            channel.send_message(answer[0], [answer[1]])

    def handle_gone(self, gid: bytes, *, is_cut: bool = False) -> None:
        """Break what was connected with a peer: connections, then queue pairs without one.

        Those with a `timeout` get the time of a silent peer, unless this side has cut it off.
        """
        route = AddressVector(gid)
        self._starved.discard(route)
        self._early.pop(gid, None)
        self._sources.pop(gid, None)
        self._acks_pending.pop(gid, None)
        with self.flushing, self.batch:
            self.cm.handle_route_lost(route)
            for entry in list(self.entries.values()):
                qp = entry.qp
                patience_ns = None if is_cut else _patience_ns(qp.attr)
                if _leads_to(qp, gid) and patience_ns is None:
                    _enter_error(qp, self.now_ns())
                    self._dirty[qp.qpn] = entry
                elif _leads_to(qp, gid) and qp.qpn not in self._fading:
                    self._fading.add(qp.qpn)
                    call = partial(self._fade, entry, gid)
                    self.loop.call_at(self.now_ns() + (patience_ns or 0), call)

    def _fade(self, entry: QueuePairEntry, gid: bytes) -> None:
        """Fail a queue pair whose peer is gone, unless a timer of its requests will."""
        qp = entry.qp
        self._fading.discard(qp.qpn)
        is_there = self.entries.get(qp.qpn) is entry and _leads_to(qp, gid)
        if is_there and self.peers.find(gid) is None and qp.poll_timeout() is None:
            with self.flushing, self.batch:
                _enter_error(qp, self.now_ns())
                self._dirty[qp.qpn] = entry

    # -- queue pairs and memory

    def add(self, qp: QueuePair) -> None:
        """Register a queue pair with this adapter."""
        super().add(qp)
        qp.gid = self.gid
        if qp.qp_type is QPType.RC:
            qp.place_remote, qp.placed_bytes_min = self._place_remote, PLACED_BYTES_MIN

    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair; its peer may not write any more."""
        entry = self.entries.get(qp.qpn)
        if entry is not None and entry.qp is qp and qp.ack_pending:
            self._send_ack(entry)
        super().remove(qp)
        for pending in self._acks_pending.values():
            pending.pop(qp.qpn, None)
        qp.place_remote = None
        self._end_mappings(qp)

    @property
    def writes_placed(self) -> int:
        """Return how many writes went into mapped memory of the peers that there are."""
        return sum(channel.peer_mappings.placed for channel in self.peers)

    @property
    def regions_mapped(self) -> int:
        """Return how many regions of the peers that there are this side has mapped."""
        return sum(len(channel.peer_mappings) for channel in self.peers)

    @property
    def acks_waiting(self) -> int:
        """Return how many queue pairs have an acknowledgement that waits for a packet."""
        return sum(entry.qp.ack_pending for entry in self.entries.values())

    def channel_counters(self) -> ChannelCounters:
        """Return the counters of all channels that there were."""
        return replace(self.peers.counters)

    def allocate(self, length: int) -> memoryview:
        """Return zeroed memory that peers can map once it is registered with REMOTE_WRITE."""
        return self.allocations.allocate(length)

    def _progress_entry(self, entry: QueuePairEntry) -> None:
        qp, peer = entry.qp, entry.qp.peer
        if peer is not None and peer.dgid == self.gid:
            qp.hurry_ack()  # nothing that leads to ourselves is looked at while it is empty
        super()._progress_entry(entry)
        if peer is not None and qp.ack_pending and peer.dgid != self.gid:
            self._acks_pending.setdefault(peer.dgid, {})[qp.qpn] = entry
        if qp.state is QPState.ERR:
            self._end_mappings(qp)
        elif self.mappable_keys.has_mappings(qp.qpn) and not may_map(qp):
            self.mappable_keys.revoke_mappings(qp.qpn)

    # -- acknowledgements that wait

    def acknowledge(self) -> None:
        """Send all acknowledgements that wait, as far as there is room."""
        for gid in list(self._acks_pending):
            self._acknowledge_peer(gid)

    def _acknowledge_peer(self, gid: bytes) -> None:
        for entry in self._acks_pending.pop(gid, {}).values():
            if entry.qp.ack_pending:
                self._send_ack(entry)

    def _send_ack(self, entry: QueuePairEntry) -> None:
        if not self.is_in_batch:
            self._moment_ns = 0  # that of a batch which is over
        entry.qp.hurry_ack()
        self._progress_entry(entry)

    def _send_message(self, route: AddressVector, data: bytes) -> None:
        if route.dgid in self._acks_pending:
            self._acknowledge_peer(route.dgid)
        super()._send_message(route, data)

    def _give_up(self, peer: MappingPeer) -> None:
        """Part with a peer that says for too long that it is copying."""
        self.call_soon(partial(self.peers.close_mapping_peer, peer))

    def _end_mappings(self, qp: QueuePair) -> None:
        self.mappable_keys.revoke_mappings(qp.qpn)
        channel = None if qp.peer is None else self.peers.find(qp.peer.dgid)
        if channel is not None:
            channel.peer_mappings.forget(qp.attr.dest_qp_num)

    def _place(self, qp: QueuePair, rkey: int, address: int, data: BytesLike) -> bool:
        """Write into the peer's memory if it is mapped, else request the mapping once."""
        if qp.peer is None or qp.peer.dgid == self.gid:
            return False
        try:
            channel = self.peers.route(qp.peer.dgid)
        except OSError:
            return False  # the packet meets the same, and tells the queue pair
        placed: bool | MapRequest
        placed = channel.peer_mappings.place(qp.attr.dest_qp_num, rkey, address, data)
        if isinstance(placed, MapRequest):
            if not channel.send_message(placed):
                channel.peer_mappings.forget_request(placed)
            return False
        return placed

    # -- packets out

    def _has_room(self, destination: AddressVector) -> bool:
        channel = self.peers.find(destination.dgid)
        if channel is not None and not self._early and channel.writer.is_roomy:
            return True
        if destination.dgid == self.gid:
            has_room = self._looped_bytes < LOOPED_BYTES_MAX
        elif destination.dgid in self._early:
            has_room = False
        elif channel is None:
            has_room = True  # the first packet makes one
        else:
            try:
                has_room = channel.wait_for_room(PAYLOAD_BYTES_MAX)
            except RemoteProtocolError:
                self.call_soon(partial(self.peers.close_peer, channel))
                has_room = False
        if not has_room:
            self._starved.add(destination)
        return has_room

    def _is_from(self, peer: AddressVector, source: AddressVector) -> bool:
        return peer.dgid == source.dgid

    def _transmit_packet(self, packet: Packet, destination: AddressVector) -> None:
        self.packets.sent += 1
        gid = destination.dgid
        channel = self.peers.find(gid)
        if channel is not None and not self._early and channel.writer.is_roomy:
            channel.write(packet)
        elif gid == self.gid:
            self._looped.append(_kept(packet))
            self._looped_bytes += SLOT_BYTES + len(packet.payload)
        elif gid in self._early:
            self.packets_lost += 1  # a datagram: all others check for room
        else:
            self._transmit_to(packet, destination)

    def _transmit_to(self, packet: Packet, destination: AddressVector) -> None:
        gid = destination.dgid
        try:
            channel = self.peers.route(gid)
        except BlockingIOError:
            # Its accept queue is full: `_feed` tries again.
            self._early[gid] = _kept(packet)
            self._starved.add(destination)
        except OSError:
            self.packets_lost += 1  # no peer there: its queue pair goes to ERR
            self.call_soon(partial(self.handle_gone, gid))
        else:
            if channel.writer.has_room(len(packet.payload)):
                channel.write(packet)
            else:
                self.packets_lost += 1

    def _feed(self) -> None:
        """Serve the queue pairs that waited for paths that have room now."""
        starved, self._starved = self._starved, set()
        for destination in starved:
            if (packet := self._early.pop(destination.dgid, None)) is not None:
                self._transmit_to(packet, destination)
            if self._has_room(destination):
                self._resume(destination)

    def _batch_done(self) -> None:
        if self._looped:
            if self._is_connecting:
                self.loop.call_soon(self._loop_back)  # the answer comes after the connect's return
            else:
                self._loop_back()
        super()._batch_done()

    def _loop_back(self) -> None:
        """Process the packets to ourselves; what they cause is sent at the end."""
        with self.flushing, self.batch:
            while self._looped:
                packet = self._looped.popleft()
                self._looped_bytes -= SLOT_BYTES + len(packet.payload)
                self._receive_packet(packet, AddressVector(self.gid), None, None)
            if self._starved:
                self._feed()

    # -- addresses

    def _resolve(
        self, peer: HostPort, local: HostPort | None, space: PortSpace
    ) -> tuple[AddressVector | None, HostPort]:
        host = numeric(peer[0])
        own = numeric(local[0]) if local is not None else host
        port = local[1] if local is not None else 0
        if local is not None:
            check_local(own)
        gid = self._rendezvous.find(space, host, peer[1])
        route = None if gid is None else AddressVector(gid)
        return route, (own, port or self._rng.choice(EPHEMERAL_PORTS))

    def _claim(self, local: HostPort, space: PortSpace) -> HostPort:
        host = numeric(local[0])
        check_local(host)
        name = self._rendezvous.claim(space, host, local[1])
        address = (host, name.port)
        self._names[address, space] = name
        return address

    def _release(self, local: HostPort, space: PortSpace) -> None:
        self._names.pop((local, space)).close()


@lru_cache(ADDRESSES_KEPT)
def numeric(host: str) -> str:
    """Return the one spelling of an IP address. Raises OSError: EINVAL for anything else."""
    try:
        return str(ip_address(host))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None


def check_local(host: str) -> None:
    """Raise OSError EADDRNOTAVAIL unless the address is one of this host."""
    try:  # a link-local address brings its scope along, and only so it can be bound
        found = socket.getaddrinfo(
            host, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, str(error)) from None
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        probe.bind(address)


def _kept(packet: Packet) -> Packet:
    """Return a packet with a payload of its own: the slot is reused."""
    return replace(packet, payload=bytes(packet.payload))


def _acknowledge_at_exit() -> None:
    """Tell peers what was executed here: a program that ends without a close has taken it."""
    for adapter in list(_alive):
        if adapter.lock.acquire(timeout=_EXIT_WAIT_S):
            try:
                if not adapter.is_closed:
                    adapter.acknowledge()
            finally:
                adapter.lock.release()


atexit.register(_acknowledge_at_exit)


def _enter_error(qp: QueuePair, now_ns: int) -> None:
    qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, now_ns)


def _leads_to(qp: QueuePair, gid: bytes) -> bool:
    """Return whether a queue pair is connected with a peer."""
    is_peer = qp.qp_type is QPType.RC and qp.peer is not None and qp.peer.dgid == gid
    return is_peer and qp.state in _RECEIVING


def _patience_ns(attr: QPAttr) -> int | None:
    """Return for how long a silent peer is asked; `None` if `timeout` sets no end to that."""
    wait_ns = timeout_ns(attr.timeout)
    return None if wait_ns is None else (attr.retry_cnt + 1) * max(wait_ns, FIRST_NS)


def may_map(qp: QueuePair) -> bool:
    """Return whether the peer of a queue pair may map what it may write."""
    return qp.state in _RECEIVING and bool(qp.attr.qp_access_flags & AccessFlag.REMOTE_WRITE)


_alive: WeakSet[ShmAdapter] = WeakSet()  # of this process
