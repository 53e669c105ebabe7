"""One UDP socket of the `udp` provider, and the vectors of the peers behind it.

A vector names the socket beside the peer's address, so that answers leave from the address and port
that the request came to, whatever stands between (a relay, a translated address). An endpoint bound
to every address of the host also records which of them a datagram went to, and answers from there.
"""

import errno
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from urds.common.types import BytesLike, HostPort
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.packet_connection import packed

DATAGRAM_BYTES_MAX: Final = 65_535
BATCH_MAX: Final = 64  # datagrams of one reading: timers and other sockets come after
_VECTORS_MAX: Final = 4096  # remembered; beyond that all are forgotten and made again
_ANCILLARY_BYTES: Final = 512

# Linux numbers that the socket module lacks. Source: linux v6.12 include/uapi/linux/in.h, in6.h.
_IP_PKTINFO: Final = getattr(socket, "IP_PKTINFO", 8)
_IP_RECVERR: Final = getattr(socket, "IP_RECVERR", 11)
_IPV6_RECVERR: Final = 25
_IN_PKTINFO: Final = struct.Struct("=I4s4s")  # interface, our address, address in the header
_IN6_PKTINFO: Final = struct.Struct("=16sI")

SocketAddress = tuple[Any, ...]


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
        self.sent_lost = 0
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        try:
            self._prepare(buffer_bytes)
            self.socket.bind(local)
        except BaseException:
            self.socket.close()
            raise
        self.local: HostPort = (local[0], self.socket.getsockname()[1])
        self._vectors: dict[tuple[SocketAddress, str], UdpVector] = {}

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

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
        """Send one datagram; one that cannot be sent is lost and counted."""
        ancillary = self._source(vector.host) if vector.host else []
        for _ in range(2):
            try:
                self.socket.sendmsg(parts, ancillary, 0, vector.name)
            except BlockingIOError:
                self.is_full = True
                break
            except OSError as error:
                # The error of an earlier datagram comes out here, once; `unreachable` has it.
                if error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH):
                    break
            else:
                return
        self.sent_lost += 1

    def receive(self) -> Iterator[tuple[bytes, UdpVector]]:
        """Yield datagrams that have arrived, at most BATCH_MAX, each with its source."""
        for _ in range(BATCH_MAX):
            try:
                if self.is_wildcard:
                    yield self._receive_with_target()
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
                yield self.vector(name)

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
            if self.is_wildcard:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            if self.is_wildcard:
                sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)

    def _receive_with_target(self) -> tuple[bytes, UdpVector]:
        raw, ancillary, _, name = self.socket.recvmsg(DATAGRAM_BYTES_MAX, _ANCILLARY_BYTES)
        host = ""
        for level, kind, data in ancillary:
            if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
                host = socket.inet_ntop(socket.AF_INET, _IN_PKTINFO.unpack(data)[2])
            elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
                host = socket.inet_ntop(socket.AF_INET6, _IN6_PKTINFO.unpack(data)[0])
        return raw, self.vector(name, host)

    def _source(self, host: str) -> list[tuple[int, int, bytes]]:
        data = socket.inet_pton(self.family, host)
        if self.family == socket.AF_INET6:
            return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _IN6_PKTINFO.pack(data, 0))]
        return [(socket.IPPROTO_IP, _IP_PKTINFO, _IN_PKTINFO.pack(0, data, bytes(4)))]


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
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(peer)  # sends nothing
        host: str = probe.getsockname()[0]
        return host


def socket_name(peer: HostPort) -> SocketAddress:
    """Return the socket address of a numeric one, as `recvfrom` returns it."""
    kind, flags = socket.SOCK_DGRAM, socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    name: SocketAddress = socket.getaddrinfo(peer[0], peer[1], type=kind, flags=flags)[0][4]
    return name
