"""The `shm` provider: queue pairs of processes of one host and one user, over shared memory.

A packet goes through the ring towards its peer. A write into memory that the peer has lent goes
there at once, with one copy by this side; then the packet says PLACED and carries no octets. The
engine places a request only while no write before it to the same octets is on its way, so the last
one wins. Small writes go through the ring.

Between the two the initiator's checks are those of an honest peer, and come early: octets may
be there before a request in front of them has failed. What the responder would refuse is not
placed, as long as both keep the rules of `grants`.

A ring that is full holds packets back in their queue pairs; none is lost. Datagrams have no way
that could be asked before they are taken: those that find no room are lost and counted.
"""

import errno
import os
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from random import SystemRandom
from typing import Final

from urds.errors import RemoteProtocolError
from urds.verbs.cm.records import CmSettings
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType
from urds.verbs.engine.queue_pair import LinkTraits, QPAttr, QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import Address, DeviceAttributes, PortSpace
from urds.verbs.providers.packet_adapter import PacketAdapter
from urds.verbs.providers.packet_connection import ADDRESSES_KEPT
from urds.verbs.providers.packet_mover import Buffer, Entry
from urds.verbs.providers.shm.channel import RING_BYTES, Channel
from urds.verbs.providers.shm.grants import LendingKeys
from urds.verbs.providers.shm.memory import Allocations
from urds.verbs.providers.shm.messages import GID_BYTES, Borrow, Decline
from urds.verbs.providers.shm.peers import FRAME_PACKET, Peers
from urds.verbs.providers.shm.pump import Pump
from urds.verbs.providers.shm.rendezvous import EPHEMERAL_PORTS, ListenerName, Rendezvous
from urds.verbs.providers.shm.ring import Octets

MTU_BYTES: Final = 256 * 1024
_PACKET_BYTES_MAX: Final = MTU_BYTES + 128  # with the headers of the packet codec
PLACED_BYTES_MIN: Final = 512  # a shorter write costs less as a packet: fences, look-ups
_LOOK_NS: Final = 1_000_000  # how often who spins looks at sockets as well
_IDLE_TURNS: Final = 32  # in vain, after which who spins lets other openings of the process run
_GIVE_WAY_S: Final = 0.000_001  # of which the kernel makes some 60 microseconds
_RECEIVING: Final = (QPState.RTR, QPState.RTS, QPState.SQD)
_GID_PREFIX: Final = 0xFD  # of addresses that belong to nobody: RFC 4193


class ShmAdapter(PacketAdapter):
    """One opening of the `shm` device."""

    def __init__(self, name: str = "shm0", *, directory: Path | None = None) -> None:
        """Open the device; `directory` is where contexts meet, if not the user's usual place.

        Raises OSError: PermissionError if the directory is not this user's alone.
        """
        chance = SystemRandom()
        attributes = DeviceAttributes(
            name=name,
            provider="shm",
            link=LinkTraits(mtu_bytes=MTU_BYTES, lossless=True),
        )
        super().__init__(
            attributes,
            gid=bytes([_GID_PREFIX]) + chance.randbytes(GID_BYTES - 1),
            chance=chance,
            # The end of a socket tells at once that a peer is gone: nobody has to be asked.
            settings=CmSettings(alive_idle_ns=None),
        )
        self.packets_lost = 0  # to nobody, and datagrams that found no room
        self._rendezvous = Rendezvous(self.gid, directory)
        self.peers = Peers(
            self.gid,
            self._rendezvous,
            self,
            payload_bytes_max=_PACKET_BYTES_MAX,
            now_ns=time.monotonic_ns,
        )
        self.allocations = Allocations()
        self.lending = LendingKeys(
            self.allocations,
            lambda: [channel.reader for channel in self.peers],
            chance=chance,
            on_overdue=lambda reader: self.call_soon(partial(self.peers.break_off_reader, reader)),
        )
        self.keys = self.lending
        self._place_remote = self._place  # one object for all queue pairs
        self._names: dict[tuple[Address, PortSpace], ListenerName] = {}
        self._starved: set[AddressVector] = set()  # ways that were full
        self._early: dict[bytes, bytes] = {}  # first packets to who could not be asked yet
        self._sources: dict[bytes, AddressVector] = {}  # who sent something
        self._looped: deque[bytes] = deque()  # packets to ourselves
        self._looped_bytes = 0
        self._looked_ns = 0
        self._idle_turns = 0  # of `progress`, in a row
        with self.lock:  # its thread waits for the lock until it can be found here
            self._pump = Pump(self, self.lock, self.peers.epoll, name=f"urds-verbs-{name}")
        _alive.add(self)

    # -- time and progress

    def now_ns(self) -> int:
        """Return the monotonic clock."""
        return time.monotonic_ns()

    def progress(self) -> None:
        """Read the rings and run what is due; look at the sockets now and then.

        Who spins holds the interpreter. Where the peer is an opening of the same process its
        thread would get 5 ms later each time it needs that, several times for one packet; so a
        spin in vain gives way now and then.
        """
        with self.lock:
            if self._depth or self.is_closed:
                return
            received = self.packets.received
            now_ns = time.monotonic_ns()
            self._pump.note_driving(now_ns)
            ready: list[tuple[int, int]] = []
            if now_ns - self._looked_ns >= _LOOK_NS and not self._pump.is_led:
                self._looked_ns = now_ns
                ready = self.peers.epoll.poll(0)
            self.turn([descriptor for descriptor, _ in ready])
            is_vain = not ready and self.packets.received == received
            self._idle_turns = self._idle_turns + 1 if is_vain else 0
            gives_way = self._idle_turns >= _IDLE_TURNS and len(_alive) > 1
            if gives_way:
                self._idle_turns = 0
        if gives_way:
            time.sleep(_GIVE_WAY_S)

    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Wait, and drive the device meanwhile unless another thread does."""
        return self._pump.wait(is_ready, timeout_ns)

    def attend(self) -> None:
        """Count one who sleeps outside. See `Adapter.attend`."""
        self._pump.attend()

    def unattend(self) -> None:
        """Count one less."""
        self._pump.unattend()

    def close(self) -> None:
        """Tell the peers and close everything."""
        with self.lock:
            if self.is_closed:
                return
            for qpn in self._entries:
                self.lending.end_loans(qpn)
            self._say_goodbye()
        _alive.discard(self)
        self._pump.close()
        with self.lock:
            for name in self._names.values():
                name.close()
            self._names.clear()
            self._rendezvous.close()
            self.peers.close()

    def abandon_in_child(self) -> None:
        """Leave everything to the parent; called in the child of a fork.

        What the child kept open would keep the parent's names taken and its peers waiting after
        the parent's death. The device is closed here, and nothing is said to anybody.
        """
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]  # as threading does with its own
        self.is_closed = True
        self._entries.clear()
        self._dirty.clear()
        self._pump.abandon_in_child()
        for name in self._names.values():
            name.abandon()
        self._rendezvous.abandon()
        self.peers.abandon()

    # -- as the pump's

    def turn(self, descriptors: Iterable[int]) -> None:
        """Serve ready descriptors, read all rings, run what is due."""
        if self.is_closed or self._depth:
            return
        with self._batch():
            now_ns = time.monotonic_ns()
            self.peers.handle_ready(descriptors)
            self.peers.take_in()
            self._run_timers(now_ns)
            self.peers.handle_time(now_ns)
            if self._starved:
                self._feed()

    def fall_asleep(self) -> bool:
        """Ask to be rung for; false if there is something to do instead."""
        # What a closed adapter has not read stays unread: who waits for the lock gets it.
        return self.is_closed or (not self._looped and self.peers.fall_asleep())

    def awake(self) -> None:
        """Ask not to be rung for."""
        self.peers.awake()

    def deadline(self) -> int | None:
        """Return when something is due."""
        return self._deadline()

    # -- as the owner of peers

    def handle_packet(self, gid: bytes, octets: bytes) -> None:
        """Take one packet."""
        source = self._sources.get(gid)
        if source is None:
            source = self._sources[gid] = AddressVector(gid)
        self._receive(octets, source)

    def handle_borrow(self, channel: Channel, borrow: Borrow) -> None:
        """Lend memory to the peer of a queue pair that receives and allows writes."""
        entry = self._entries.get(borrow.qpn)
        peer = None if entry is None else entry.qp.peer
        if entry is None or peer is None or peer.dgid != channel.gid or not _may_lend(entry.qp):
            channel.say(Decline(borrow.qpn, borrow.rkey))
            return
        answer = self.lending.lend(borrow, pd=entry.qp.pd)
        if isinstance(answer, Decline):
            channel.say(answer)
        else:
            channel.say(answer[0], [answer[1]])

    def handle_gone(self, gid: bytes) -> None:
        """Break what was connected with a peer: connections, then queue pairs without one."""
        route = AddressVector(gid)
        self._starved.discard(route)
        self._early.pop(gid, None)
        self._sources.pop(gid, None)
        with self._batch():
            self._lose_route(route)
            for entry in list(self._entries.values()):
                qp = entry.qp
                if qp.qp_type is QPType.RC and qp.peer is not None and qp.peer.dgid == gid:
                    self._break(entry)

    # -- queue pairs and memory

    def add(self, qp: QueuePair) -> None:
        """Take a queue pair in."""
        super().add(qp)
        qp.gid = self.gid
        if qp.qp_type is QPType.RC:
            qp.place_remote, qp.placed_bytes_min = self._place_remote, PLACED_BYTES_MIN

    def remove(self, qp: QueuePair) -> None:
        """Forget a queue pair; its peer may not write any more."""
        super().remove(qp)
        qp.place_remote = None
        self._end_loans(qp)

    def allocate(self, length: int) -> memoryview:
        """Return zeroed memory that peers can map once it is registered with REMOTE_WRITE."""
        return self.allocations.allocate(length)

    def _serve(self, entry: Entry) -> None:
        super()._serve(entry)
        qp = entry.qp
        if qp.state is QPState.ERR:
            self._end_loans(qp)
        elif self.lending.has_lent(qp.qpn) and not _may_lend(qp):
            self.lending.end_loans(qp.qpn)

    def _end_loans(self, qp: QueuePair) -> None:
        self.lending.end_loans(qp.qpn)
        channel = None if qp.peer is None else self.peers.find(qp.peer.dgid)
        if channel is not None:
            channel.borrowings.forget(qp.attr.dest_qp_num)

    def _place(self, qp: QueuePair, rkey: int, address: int, octets: Octets) -> bool:
        """Write into the peer's memory if it has lent it, else ask for it once."""
        if qp.peer is None or qp.peer.dgid == self.gid:
            return False
        try:
            channel = self.peers.route(qp.peer.dgid)
        except OSError:
            return False  # the packet meets the same, and tells the queue pair
        placed = channel.borrowings.place(qp.attr.dest_qp_num, rkey, address, octets)
        if isinstance(placed, Borrow):
            if not channel.say(placed):
                channel.borrowings.withdraw(placed)
            return False
        return placed

    def _break(self, entry: Entry) -> None:
        qp = entry.qp
        if qp.state in _RECEIVING:
            qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, self.now_ns())
            self._dirty[qp.qpn] = entry

    # -- packets out

    def _has_room(self, destination: AddressVector) -> bool:
        channel = self.peers.find(destination.dgid)
        if channel is not None and not self._early and channel.writer.is_roomy:
            return True
        if destination.dgid == self.gid:
            has_room = self._looped_bytes < RING_BYTES
        else:
            has_room = self._has_room_at(destination)
        if not has_room:
            self._starved.add(destination)
        return has_room

    def _has_room_at(self, destination: AddressVector) -> bool:
        if destination.dgid in self._early:
            return False
        channel = self.peers.find(destination.dgid)
        if channel is None:
            return True  # the first packet makes one
        try:
            return channel.wait_for_room(_PACKET_BYTES_MAX)
        except RemoteProtocolError:
            self.call_soon(partial(self.peers.break_off, channel))
            return False

    def _is_from(self, peer: AddressVector, source: AddressVector) -> bool:
        return peer.dgid == source.dgid

    def _transmit(self, destination: AddressVector, parts: Sequence[Buffer]) -> None:
        gid = destination.dgid
        channel = self.peers.find(gid)
        if channel is not None and not self._early and channel.writer.is_roomy:
            channel.write(FRAME_PACKET, *parts)
        elif gid == self.gid:
            octets = b"".join(parts)
            self._looped.append(octets)
            self._looped_bytes += len(octets)
        elif gid in self._early:
            self.packets_lost += 1  # a datagram: all others ask first
        else:
            self._transmit_to(destination, parts)

    def _transmit_to(self, destination: AddressVector, parts: Sequence[Buffer]) -> None:
        gid = destination.dgid
        try:
            channel = self.peers.route(gid)
        except BlockingIOError:
            # It has many to greet: `_feed` tries again.
            self._early[gid] = b"".join(parts)
            self._starved.add(destination)
        except OSError:
            self.packets_lost += 1  # nobody is there, and its queue pair is told
            self.call_soon(partial(self.handle_gone, gid))
        else:
            if channel.writer.has_room(sum(map(len, parts))):
                channel.write(FRAME_PACKET, *parts)
            else:
                self.packets_lost += 1

    def _feed(self) -> None:
        """Serve who waited for ways that have room now."""
        starved, self._starved = self._starved, set()
        for destination in starved:
            if (octets := self._early.pop(destination.dgid, None)) is not None:
                self._transmit_to(destination, [octets])
            if self._has_room(destination):
                self._resume(destination)

    def _settled(self) -> None:
        if self._looped and not self._is_connecting:
            self._loop()
        elif self._looped:
            self._pump.wake()  # a peer in this very device answers when the connect has returned
        self._pump.wake_ready()

    def _nudge(self) -> None:
        self._pump.wake()

    def _loop(self) -> None:
        """Take in the packets to ourselves; what they cause goes out at the end."""
        with self._batch():
            while self._looped:
                octets = self._looped.popleft()
                self._looped_bytes -= len(octets)
                self._receive(octets, AddressVector(self.gid))
            if self._starved:
                self._feed()

    # -- addresses

    def _resolve(
        self, peer: Address, local: Address | None, space: PortSpace
    ) -> tuple[AddressVector | None, Address]:
        host = numeric(peer[0])
        own = numeric(local[0]) if local is not None else host
        port = local[1] if local is not None else 0
        if local is not None:
            check_local(own)
        gid = self._rendezvous.find(space, host, peer[1])
        route = None if gid is None else AddressVector(gid)
        return route, (own, port or self._chance.choice(EPHEMERAL_PORTS))

    def _claim(self, local: Address, space: PortSpace) -> Address:
        host = numeric(local[0])
        check_local(host)
        name = self._rendezvous.claim(space, host, local[1])
        address = (host, name.port)
        self._names[address, space] = name
        return address

    def _release(self, local: Address, space: PortSpace) -> None:
        self._names.pop((local, space)).close()


@lru_cache(ADDRESSES_KEPT)
def numeric(host: str) -> str:
    """Return the one spelling of an IP address. Raises OSError: EINVAL for anything else."""
    try:
        return str(ip_address(host))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None


def check_local(host: str) -> None:
    """Raise OSError EADDRNOTAVAIL unless the address is this host's: names stay honest."""
    try:  # a link-local address brings its scope along, and only so it can be bound
        found = socket.getaddrinfo(
            host, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, str(error)) from None
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        probe.bind(address)


def _may_lend(qp: QueuePair) -> bool:
    return qp.state in _RECEIVING and bool(qp.attr.qp_access_flags & AccessFlag.REMOTE_WRITE)


_alive: weakref.WeakSet[ShmAdapter] = weakref.WeakSet()


def _abandon_all() -> None:
    for adapter in list(_alive):
        if not adapter.is_closed:
            adapter.abandon_in_child()
    _alive.clear()


os.register_at_fork(after_in_child=_abandon_all)


def open_adapter(name: str) -> ShmAdapter:
    """Open the device. Raises OSError."""
    return ShmAdapter(name)
