"""The `udp` provider: queue pairs whose packets are UDP datagrams, between processes and hosts.

A packet of the engine, with its checksum, is one datagram. What UDP loses the queue pairs retry,
and peers that fall silent are probed.

A connecting adapter sends from a socket bound to its own address, a listening one answers from the
address and port of the request, and all packets of the connection take the same path. So a relay
between two processes only forwards datagrams, and answers to their source. A device context has
one socket for datagram queue pairs, whose port is `port`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from random import SystemRandom
from select import EPOLLERR, EPOLLIN, EPOLLOUT
from typing import Final

from urds.common.types import BytesLike, HostPort
from urds.verbs.cm.messages import MTU_BYTES_MIN
from urds.verbs.cm.records import CmSettings
from urds.verbs.engine.numbers import Acceptance
from urds.verbs.engine.queue_pair import LinkTraits
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import DeviceAttributes, PortSpace
from urds.verbs.providers.packet_adapter import PacketAdapter
from urds.verbs.providers.packet_connection import packed
from urds.verbs.providers.tcp.reactor import Reactor, ReactorAdapter, Timer
from urds.verbs.providers.udp_endpoint import UdpEndpoint, UdpVector, own_host, socket_name


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpSettings:
    """Settings of the device."""

    address: str = "127.0.0.1"  # whose GID the opening has; its datagrams leave from there
    # Payload of a packet. None: 32 KiB inside the host, and what fits Ethernet elsewhere.
    mtu_bytes: int | None = None
    buffer_bytes: int = 4 << 20  # of each socket; the kernel may give less
    manager: CmSettings = field(default_factory=CmSettings)


MTU_BYTES_MAX: Final = 65_000
MTU_BYTES_ETHERNET: Final = 1400
# Of 1 to 60 KiB this was as fast as any, also with the small buffers that Linux gives by default.
MTU_BYTES_LOOPBACK: Final = 32_768


class UdpAdapter(ReactorAdapter, PacketAdapter):
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
            acceptance=frozenset(Acceptance),
        )
        super().__init__(
            attributes,
            gid=packed(self.settings.address),
            rng=SystemRandom(),
            settings=self.settings.manager,
        )
        self._endpoints: dict[HostPort, UdpEndpoint] = {}  # by host and port asked for; 0: any
        self._claims: dict[HostPort, int] = {}  # listeners per endpoint
        self._timer: Timer | None = None
        self.reactor = Reactor(self.lock, name=f"urds-verbs-{name}")
        try:
            with self.lock:
                self._main = self._endpoint((self.settings.address, 0))
        except OSError:
            self.reactor.close()
            raise
        self.port = self._main.local[1]

    def close(self) -> None:
        """Disconnect the peers and close the sockets."""
        with self.lock:
            if self.is_closed:
                return
            self._disconnect_all()
        self.reactor.close()
        with self.lock:
            for endpoint in self._endpoints.values():
                endpoint.close()
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

        def handle(mask: int) -> None:
            self._handle_ready(endpoint, mask)

        self.reactor.watch(endpoint.fileno(), EPOLLIN, handle)
        return endpoint

    def _handle_ready(self, endpoint: UdpEndpoint, mask: int) -> None:
        with self._batch():
            for data, source in endpoint.receive():
                local = endpoint.local_of(source)
                self._receive(data, source, local=local, peer=(source.name[0], source.port))
            if mask & EPOLLERR:
                for gone in endpoint.unreachable():
                    self.cm.handle_unreachable(gone, self.now_ns())
        if mask & EPOLLOUT and endpoint.is_full:
            endpoint.is_full = False
            self.reactor.change(endpoint.fileno(), EPOLLIN)
            with self._batch():
                for destination in list(self._blocked):
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
                self.reactor.unwatch(endpoint.fileno())
                endpoint.close()

    # -- hooks

    def _transmit(self, destination: AddressVector, parts: Sequence[BytesLike]) -> None:
        vector = self._way(destination)
        if vector is None or vector.endpoint is None:
            return
        endpoint = vector.endpoint
        endpoint.send(vector, parts)
        if endpoint.is_full:
            self.reactor.change(endpoint.fileno(), EPOLLIN | EPOLLOUT)

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
        return endpoint.vector(socket_name(peer)), endpoint.local

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

    def _batch_done(self) -> None:
        self._timer = self.reactor.replan(self._timer, self.deadline_ns(), self._handle_timer)
        self.reactor.tell()

    def _request_batch(self) -> None:
        self.reactor.call_soon(self.flush)

    def _handle_timer(self) -> None:
        self._timer = None
        with self._batch():
            self._run_timers(self.now_ns())


open_adapter: Final = UdpAdapter
