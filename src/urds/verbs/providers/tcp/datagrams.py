"""Datagram queue pairs and the datagram port space of the tcp provider: UDP sockets.

The packets are those of the providers that carry packets, and so is the look-up of listeners
(`cm.core`); only sockets and progress are this provider's. A device has one socket at its own
address, made when it is first needed, and one per address it listens at; every socket serves every
queue pair. An answer leaves through the socket that received the request, since its sender knows
that address. UDP's checksum is the only one.
"""

import errno
import random
import select
import socket
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from urds.common.ip_sockets import address_of, host_towards
from urds.common.types import BytesLike, HostPort
from urds.verbs.engine.attributes import LinkTraits
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import PortSpace
from urds.verbs.providers.packet_adapter import LoopPacketAdapter
from urds.verbs.providers.packet_connection import packed
from urds.verbs.providers.tcp.sockets import host_of, resolve

if TYPE_CHECKING:
    from urds.verbs.providers.tcp.adapter import TcpAdapter


DATAGRAMS_MAX: Final = 64  # of one socket and pass
SOCKETS_MAX: Final = 1024
HEARD_MAX: Final = 1024  # peers whose socket is remembered
_CLOSED: Final = "closed with its device"


class DatagramAdapter(LoopPacketAdapter):
    """The datagram half of a `tcp` device: its queue pairs of type UD."""

    def __init__(self, host: "TcpAdapter") -> None:
        link = LinkTraits(mtu_bytes=host.settings.datagram_bytes_max, lossless=False)
        super().__init__(
            replace(host.attributes, link=link),
            gid=host.gid,
            rng=random.SystemRandom(),
            lock=host.lock,
        )
        self.keys = host.keys
        self.outbox = host.outbox
        self._host = host
        self.loop = host.loop
        self._sockets: dict[HostPort, socket.socket] = {}
        self._heard: OrderedDict[AddressVector, socket.socket] = OrderedDict()

    @property
    def vector(self) -> AddressVector:
        """Return the address of this device's queue pairs. Raises OSError without a socket."""
        name = address_of(self._own_socket(host_of(self.gid)).getsockname())
        return AddressVector(self.gid, name[1])

    def add(self, qp: QueuePair) -> None:
        """Register a queue pair; its link is a datagram's, not the streams'."""
        qp.link = self.attributes.link
        qp.mtu_bytes, qp.gid = qp.link.mtu_bytes, self.gid
        super().add(qp)

    # -- what the host does for us

    def finish_pass(self) -> None:
        """End a pass of the device."""
        self._host.finish_pass()

    def close(self) -> None:
        """Disconnect the peers and close the sockets. The lock is held."""
        if not self.is_closed:
            self._disconnect_all()
            for name in list(self._sockets):
                self._close_socket(name)

    # -- what a packet provider gives

    def _transmit(self, destination: AddressVector, parts: Sequence[BytesLike]) -> None:
        try:
            way = self._heard.get(destination) or self._socket_towards(destination)
            name = resolve((host_of(destination.dgid), destination.port))[1]
            way.sendmsg(parts, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, name)
        except OSError:
            self._host.stats.datagrams_dropped_unsent += 1

    def _resolve(
        self, peer: HostPort, local: HostPort | None, space: PortSpace
    ) -> tuple[AddressVector | None, HostPort]:
        resolve(peer)
        route = AddressVector(packed(peer[0]), peer[1])
        way = self._socket_towards(route) if local is None else self._own_socket(local[0])
        return route, address_of(way.getsockname())

    def _claim(self, local: HostPort, space: PortSpace) -> HostPort:
        # Listened at before: the core knows whether a listener still does.
        return local if local in self._sockets else address_of(self._open(local).getsockname())

    def _release(self, local: HostPort, space: PortSpace) -> None:
        """Keep the socket: peers know our queue pairs by its address."""

    # -- sockets

    def _own_socket(self, host: str) -> socket.socket:
        """Return the socket at one of our addresses, a new one if there is none."""
        for name, found in self._sockets.items():
            if name[0] == host:
                return found
        return self._open((host, 0))

    def _socket_towards(self, destination: AddressVector) -> socket.socket:
        """Return a socket that reaches a destination: ours, or one at the address that does."""
        own, target = host_of(self.gid), host_of(destination.dgid)
        if _kind(own) == _kind(target):
            return self._own_socket(own)
        for name, found in self._sockets.items():
            if _kind(name[0]) == _kind(target):
                return found
        family, name = resolve((target, destination.port or 1))
        return self._own_socket(host_towards(family, name))

    def _open(self, local: HostPort) -> socket.socket:
        if self.is_closed:
            raise OSError(errno.EBADF, _CLOSED)
        if len(self._sockets) >= SOCKETS_MAX:
            raise OSError(errno.EMFILE, f"{SOCKETS_MAX} addresses for datagrams, the limit")
        family, name = resolve(local)
        opened = socket.socket(family, socket.SOCK_DGRAM)
        try:
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            opened.bind(name)
            opened.setblocking(False)
        except OSError:
            opened.close()
            raise
        self._sockets[address_of(opened.getsockname())] = opened
        self.loop.watch(
            opened.fileno(), select.EPOLLIN, lambda _events: self._handle_socket(opened)
        )
        return opened

    def _close_socket(self, name: HostPort) -> None:
        closing = self._sockets.pop(name)
        self.loop.unwatch(closing.fileno())
        closing.close()

    def _handle_socket(self, readable: socket.socket) -> None:
        view, local = self._host.read_view, address_of(readable.getsockname())
        with self.flushing, self.batch:
            for _ in range(DATAGRAMS_MAX):
                try:
                    count, name = readable.recvfrom_into(view)
                except OSError:
                    return  # nothing more; or an error of an earlier datagram, which may be lost
                peer = address_of(name)
                source = AddressVector(packed(peer[0]), peer[1])
                self._remember(source, readable)
                self._receive(view[:count], source, local=_known(local), peer=peer)

    def _remember(self, source: AddressVector, readable: socket.socket) -> None:
        self._heard[source] = readable
        self._heard.move_to_end(source)
        if len(self._heard) > HEARD_MAX:
            self._heard.popitem(last=False)


def _known(local: HostPort) -> HostPort | None:
    """Return where a datagram arrived, if the socket's name is not a wildcard."""
    return None if local[0] in ("0.0.0.0", "::") else local


def _kind(host: str) -> tuple[int, bool]:
    """Return what decides whether one socket reaches a host: family, and loopback or not."""
    ip = ip_address(host_of(packed(host)))
    return ip.version, ip.is_loopback
