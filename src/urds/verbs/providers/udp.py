"""The `udp` provider: queue pairs whose packets are UDP datagrams, between processes and hosts.

A packet of the engine, with its checksum, is one datagram. What UDP loses the queue pairs retry,
and peers that fall silent are probed.

A connecting adapter sends from a socket bound to its own address, a listening one answers from the
address and port of the request, and all packets of the connection take the same path. So a relay
between two processes only forwards datagrams, and answers to their source. A device context has
one socket for datagram queue pairs, whose port is `port`.

A vector names the socket beside the peer's address, so that answers leave from the address and port
that the request came to, whatever stands between (a relay, a translated address). An endpoint bound
to every address of the host also records which of them a datagram went to, and answers from there.
"""

import errno
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Address, ip_address
from random import SystemRandom
from select import EPOLLERR, EPOLLIN, EPOLLOUT
from typing import Any, Final

from urds.common.ip_sockets import ask_for_targets, host_towards, leaving_from, target_of
from urds.common.progress import ProgressLoop
from urds.common.types import BytesLike, HostPort
from urds.verbs.cm.messages import MTU_BYTES_MIN
from urds.verbs.cm.records import CmSettings
from urds.verbs.engine.numbers import ReceiveOrder
from urds.verbs.engine.queue_pair import LinkTraits
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import DeviceAttributes, PortSpace
from urds.verbs.providers.packet_adapter import LoopPacketAdapter
from urds.verbs.providers.packet_connection import packed

MTU_BYTES_MAX: Final = 65_000
MTU_BYTES_ETHERNET: Final = 1400
# Of 1 to 60 KiB this was as fast as any, also with the small buffers that Linux gives by default.
MTU_BYTES_LOOPBACK: Final = 32_768
DATAGRAM_BYTES_MAX: Final = 65_535
BATCH_MAX: Final = 64  # datagrams of one reading: timers and other sockets come after
_VECTORS_MAX: Final = 4096  # remembered; beyond that all are forgotten and made again
_ANCILLARY_BYTES: Final = 512

# Linux numbers that the socket module lacks. Source: linux v6.12 include/uapi/linux/in.h, in6.h.
_IP_RECVERR: Final = getattr(socket, "IP_RECVERR", 11)
_IPV6_RECVERR: Final = 25

SocketAddress = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpSettings:
    """Settings of the device."""

    address: str = "127.0.0.1"  # the context has its GID; datagrams leave from there
    # Payload of a packet. None: 32 KiB inside the host, and what fits Ethernet elsewhere.
    mtu_bytes: int | None = None
    buffer_bytes: int = 4 << 20  # of each socket; the kernel may give less
    manager: CmSettings = field(default_factory=CmSettings)


@dataclass(frozen=True, slots=True)
class UdpVector(AddressVector):
    """A route to a peer through one of our sockets.

    `host` is our own address on it where the socket has several, else empty.
    """

    endpoint: "UdpEndpoint | None" = None
    name: SocketAddress = ()
    host: str = ""


class UdpEndpoint:
    """One bound, non-blocking UDP socket."""

    def __init__(self, local: HostPort, *, buffer_bytes: int) -> None:
        """Bind. Raises OSError: EADDRINUSE, EADDRNOTAVAIL, EACCES, EINVAL for no address."""
        try:
            address = ip_address(local[0])
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error)) from None
        self.family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        self.is_wildcard = address.is_unspecified
        self.is_full = False  # a datagram did not go: wait for room
        self.is_retiring = False  # closes when no connection needs it any more
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        try:
            self._prepare(buffer_bytes)
            self.socket.bind(local)
        except BaseException:
            self.socket.close()
            raise
        self.local: HostPort = (local[0], self.socket.getsockname()[1])
        self._vectors: dict[tuple[SocketAddress, str], UdpVector] = {}

    def vector(self, name: SocketAddress, host: str = "") -> UdpVector:
        """Return the vector of a peer's socket address."""
        key = (name, host)
        found = self._vectors.get(key)
        if found is None:
            if len(self._vectors) >= _VECTORS_MAX:
                self._vectors.clear()
            found = UdpVector(packed(name[0]), name[1], self, name, host)
            self._vectors[key] = found
        return found

    def send(self, vector: UdpVector, parts: Sequence[BytesLike]) -> None:
        """Send one datagram; one that cannot be sent is lost."""
        ancillary = leaving_from(vector.host) if vector.host else []
        for _ in range(2):
            try:
                self.socket.sendmsg(parts, ancillary, 0, vector.name)
            except BlockingIOError:
                self.is_full = True
                return
            except OSError as error:
                # The error of an earlier datagram comes out here, once; `unreachable` has it.
                if error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH):
                    return
            else:
                return

    def receive(self) -> Iterator[tuple[bytes, UdpVector]]:
        """Yield datagrams that have arrived, at most BATCH_MAX, each with its source."""
        for _ in range(BATCH_MAX):
            try:
                if self.is_wildcard:
                    data, sent, _, name = self.socket.recvmsg(DATAGRAM_BYTES_MAX, _ANCILLARY_BYTES)
                    yield data, self.vector(name, target_of(sent))
                else:
                    data, name = self.socket.recvfrom(DATAGRAM_BYTES_MAX)
                    yield data, self.vector(name)
            except BlockingIOError:
                return
            except OSError:
                continue  # of an earlier datagram of ours; `unreachable` has it

    def unreachable(self) -> Iterator[UdpVector]:
        """Yield the peers whose host reports a closed port, at most BATCH_MAX."""
        for _ in range(BATCH_MAX):
            try:
                _, ancillary, _, name = self.socket.recvmsg(
                    0, _ANCILLARY_BYTES, socket.MSG_ERRQUEUE
                )
            except OSError:
                return
            if name and any(_is_port_unreachable(data) for _, _, data in ancillary):
                if not self.is_wildcard:
                    yield self.vector(name)
                    continue
                # That port is closed, whichever of our addresses the datagram was sent from.
                yield from [one for key, one in self._vectors.items() if key[0] == name]

    def local_of(self, vector: UdpVector) -> HostPort:
        """Return the address to which a peer sends."""
        return (vector.host or self.local[0], self.local[1])

    def _prepare(self, buffer_bytes: int) -> None:
        sock = self.socket
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        if self.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        if self.is_wildcard:
            ask_for_targets(sock)


class UdpAdapter(LoopPacketAdapter):
    """One open `udp` device."""

    has_checksum = True  # UDP's own has 16 bits, and none at all over loopback

    def __init__(self, name: str = "udp0", settings: UdpSettings | None = None) -> None:
        """Open the device. Raises OSError: the address is not ours, or no socket is left."""
        self.settings = settings or UdpSettings()
        mtu_bytes = self._mtu_bytes_of(self.settings.address)
        if not MTU_BYTES_MIN <= mtu_bytes <= MTU_BYTES_MAX:
            raise ValueError(f"mtu of {mtu_bytes} bytes, not {MTU_BYTES_MIN} to {MTU_BYTES_MAX}")
        attributes = DeviceAttributes(
            name=name,
            provider="udp",
            link=LinkTraits(mtu_bytes=mtu_bytes, lossless=False),
            receive_order=frozenset(ReceiveOrder),
        )
        super().__init__(
            attributes,
            gid=packed(self.settings.address),
            rng=SystemRandom(),
            settings=self.settings.manager,
        )
        self._endpoints: dict[HostPort, UdpEndpoint] = {}  # by host and port asked for; 0: any
        self._claims: dict[HostPort, int] = {}  # listeners per endpoint
        self.loop = ProgressLoop(self.lock, on_cut=self.go_on)
        try:
            with self.lock:
                self._main = self._endpoint((self.settings.address, 0))
        except OSError:
            self.loop.close()
            raise
        self.port = self._main.local[1]

    def close(self) -> None:
        """Disconnect the peers and close the sockets."""
        with self.lock:
            if self.is_closed:
                return
            self._disconnect_all()
        self.loop.close()
        with self.lock:
            for endpoint in self._endpoints.values():
                endpoint.socket.close()
            self._endpoints.clear()

    # -- sockets

    def _endpoint(self, local: HostPort, *, is_new: bool = False) -> UdpEndpoint:
        """Return the endpoint for an address, made if there is none yet.

        Port 0 is the one for outgoing requests; with `is_new` it is a free port, for a listener.
        """
        found = None if is_new else self._endpoints.get(local)
        if found is not None:
            found.is_retiring = False
            return found
        endpoint = UdpEndpoint(local, buffer_bytes=self.settings.buffer_bytes)
        self._endpoints[endpoint.local if is_new else local] = endpoint
        self.loop.watch(endpoint.socket.fileno(), EPOLLIN, partial(self._handle_ready, endpoint))
        return endpoint

    def _handle_ready(self, endpoint: UdpEndpoint, mask: int) -> None:
        with self.flushing, self.batch:
            for data, source in endpoint.receive():
                local = endpoint.local_of(source)
                self._receive(data, source, local=local, peer=(source.name[0], source.port))
            if mask & EPOLLERR:
                for gone in endpoint.unreachable():
                    self.cm.handle_unreachable(gone, self.now_ns())
        if mask & EPOLLOUT and endpoint.is_full:
            endpoint.is_full = False
            self.loop.change(endpoint.socket.fileno(), EPOLLIN)
            with self.flushing, self.batch:
                for destination in self._blocked.paths():
                    self._resume(destination)

    def _close_retired(self) -> None:
        """Close endpoints of former listeners that no connection uses any more."""
        retiring = [key for key, each in self._endpoints.items() if each.is_retiring]
        if not retiring:
            return
        used = {route.endpoint for route in self.cm.routes() if isinstance(route, UdpVector)}
        for key in retiring:
            endpoint = self._endpoints[key]
            if endpoint not in used:
                del self._endpoints[key]
                self.loop.unwatch(endpoint.socket.fileno())
                endpoint.socket.close()

    # -- hooks

    def _transmit(self, destination: AddressVector, parts: Sequence[BytesLike]) -> None:
        vector = self._way(destination)
        if vector is None or vector.endpoint is None:
            return
        endpoint = vector.endpoint
        endpoint.send(vector, parts)
        if endpoint.is_full:
            self.loop.change(endpoint.socket.fileno(), EPOLLIN | EPOLLOUT)

    def _has_room(self, destination: AddressVector) -> bool:
        vector = self._way(destination)
        return vector is None or vector.endpoint is None or not vector.endpoint.is_full

    def _way(self, destination: AddressVector) -> UdpVector | None:
        """Return the route to a vector that an application made from a GID and a port."""
        if isinstance(destination, UdpVector):
            return destination
        address = IPv6Address(destination.dgid)
        host = str(address.ipv4_mapped or address)
        try:
            name = socket_name((host, destination.port))
            return self._main.vector(name)
        except OSError:
            return None

    def _mtu_bytes(self, route: AddressVector) -> int:
        if isinstance(route, UdpVector):
            return min(self.attributes.link.mtu_bytes, self._mtu_bytes_of(route.name[0]))
        return self.attributes.link.mtu_bytes

    def _mtu_bytes_of(self, host: str) -> int:
        if self.settings.mtu_bytes is not None:
            return self.settings.mtu_bytes
        return MTU_BYTES_LOOPBACK if ip_address(host).is_loopback else MTU_BYTES_ETHERNET

    def _is_from(self, peer: AddressVector, source: AddressVector) -> bool:
        if isinstance(peer, UdpVector):
            return peer == source
        return (peer.dgid, peer.port) == (source.dgid, source.port)

    def _resolve(
        self, peer: HostPort, local: HostPort | None, space: PortSpace
    ) -> tuple[AddressVector | None, HostPort]:
        own = local or (own_host(peer), 0)
        endpoint = self._endpoint(own)
        # A socket at all addresses is asked at one of them, so its requests leave from there.
        host = own_host(peer).partition("%")[0] if endpoint.is_wildcard else ""
        vector = endpoint.vector(socket_name(peer), host)
        return vector, endpoint.local_of(vector)

    def _claim(self, local: HostPort, space: PortSpace) -> HostPort:
        endpoint = self._endpoint(local, is_new=not local[1])
        self._claims[endpoint.local] = self._claims.get(endpoint.local, 0) + 1
        return endpoint.local

    def _release(self, local: HostPort, space: PortSpace) -> None:
        self._claims[local] -= 1
        if not self._claims[local]:
            del self._claims[local]
            if local in self._endpoints:  # else the adapter is closed
                self._endpoints[local].is_retiring = True
                self._close_retired()

    def _run_timers(self, now_ns: int) -> None:
        super()._run_timers(now_ns)
        self._close_retired()


def _is_port_unreachable(extended_error: bytes) -> bool:
    """Return whether a `sock_extended_err` reports a closed port."""
    return int.from_bytes(extended_error[:4], sys.byteorder) == errno.ECONNREFUSED


def own_host(peer: HostPort) -> str:
    """Return the address of this host from which it reaches `peer`.

    Raises OSError: EINVAL for no address, ENETUNREACH and the like.
    """
    try:
        version = ip_address(peer[0]).version
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    return host_towards(family, peer)


def socket_name(peer: HostPort) -> SocketAddress:
    """Return the socket address of a numeric one, as `recvfrom` returns it."""
    kind, flags = socket.SOCK_DGRAM, socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    name: SocketAddress = socket.getaddrinfo(peer[0], peer[1], type=kind, flags=flags)[0][4]
    return name


open_adapter: Final = UdpAdapter
