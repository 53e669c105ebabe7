"""The real UDP sockets of datagram rsockets."""

import errno
import socket
import struct
import threading
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from urds.common.forks import renewed
from urds.common.types import HostPort
from urds.rsocket.core.datagram import SLOT_BYTES, ByUdp

READ_BYTES: Final = 2 * SLOT_BYTES  # one that is longer than a slot is seen to be
_ANCILLARY_BYTES: Final = 64
# The socket module lacks the number. Source: linux v6.12 include/uapi/linux/in.h.
_IP_PKTINFO: Final = getattr(socket, "IP_PKTINFO", 8)
_IN_PKTINFO: Final = struct.Struct("=I4s4s")  # interface, our address, address in the header
_IN6_PKTINFO: Final = struct.Struct("=16sI")


class UdpDatagram(NamedTuple):
    """What came, from where, and to which address of ours if the socket has several."""

    data: bytes
    source: HostPort
    local_host: str


class UdpSocket:
    """A UDP socket whose calls never wait. Any thread; a closed one raises OSError EBADF.

    Its lock is held for one system call, so that no descriptor is used after its close.
    """

    def __init__(self, family: int) -> None:
        """Make an unbound one. Raises OSError: EAFNOSUPPORT, EMFILE."""
        if family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError(errno.EAFNOSUPPORT, f"family {family}, known are AF_INET and AF_INET6")
        self.family = family
        self._lock = renewed(threading.Lock())
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        if family == socket.AF_INET6:
            # The version in our headers is that of the datagrams' family.
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    def fileno(self) -> int:
        """Return the descriptor, -1 if it is closed."""
        return self._socket.fileno()

    def bind(self, address: HostPort) -> None:
        """Take an address; port 0 takes a free one. Raises OSError: EADDRINUSE and others."""
        with self._lock:
            self._socket.bind(address)
            if self._is_wildcard():
                self._ask_for_targets()

    def connect(self, address: HostPort) -> None:
        """Let the kernel hear `address` alone, and report when no socket is there."""
        with self._lock:
            self._socket.connect(address)

    @property
    def local(self) -> HostPort:
        """Return our address now. Raises OSError."""
        with self._lock:
            return _address_of(self._socket.getsockname())

    @property
    def peer(self) -> HostPort:
        """Return the address we are connected to. Raises OSError: ENOTCONN."""
        with self._lock:
            return _address_of(self._socket.getpeername())

    def send(self, what: ByUdp) -> None:
        """Send one datagram. Raises BlockingIOError and what sendto says."""
        ancillary = self._leaving_from(what.local_host) if what.local_host else []
        with self._lock:
            self._socket.sendmsg([what.data], ancillary, 0, what.target)

    def receive(self) -> UdpDatagram:
        """Take one datagram. Raises BlockingIOError; OSError for an earlier one of ours."""
        with self._lock:
            data, ancillary, _, name = self._socket.recvmsg(READ_BYTES, _ANCILLARY_BYTES)
        return UdpDatagram(data, _address_of(name), _target_of(ancillary))

    def host_towards(self, target: HostPort) -> str:
        """Return our address on the way to `target`. Raises OSError: ENETUNREACH and others."""
        host = self.local[0]
        if not ip_address(host.partition("%")[0]).is_unspecified:
            return host
        with socket.socket(self.family, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            probe.connect(target)  # sends nothing
            return _address_of(probe.getsockname())[0]

    def set_option(self, level: int, option: int, value: int | bytes) -> None:
        """Set an option of the socket. Raises OSError."""
        with self._lock:
            self._socket.setsockopt(level, option, value)

    def get_option(self, level: int, option: int, buffer_bytes: int = 0) -> int | bytes:
        """Return an option: a number, or bytes if their count is given. Raises OSError."""
        with self._lock:
            if buffer_bytes:
                return self._socket.getsockopt(level, option, buffer_bytes)
            return self._socket.getsockopt(level, option)

    def close(self) -> None:
        """Close it. Safe twice."""
        with self._lock:
            self._socket.close()

    def abandon_in_child(self) -> None:
        """Close it in the child of a fork, whatever other threads of the parent were at."""
        self._lock = renewed(threading.Lock())
        self._socket.close()

    # -- inside

    def _is_wildcard(self) -> bool:
        return ip_address(self._socket.getsockname()[0]).is_unspecified

    def _ask_for_targets(self) -> None:
        """Have each datagram say where it went to: its answer has to leave from there."""
        if self.family == socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)

    def _leaving_from(self, host: str) -> list[tuple[int, int, bytes]]:
        data = ip_address(host).packed
        if self.family == socket.AF_INET6:
            return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _IN6_PKTINFO.pack(data, 0))]
        return [(socket.IPPROTO_IP, _IP_PKTINFO, _IN_PKTINFO.pack(0, data, bytes(4)))]


def _address_of(name: Any) -> HostPort:
    """Return the address of a socket's name; an IPv6 scope stays in it."""
    host, port = name[0], name[1]
    if len(name) == 4 and name[3] and "%" not in host:
        host = f"{host}%{name[3]}"
    return host, port


def _target_of(ancillary: list[tuple[int, int, bytes]]) -> str:
    """Return which address of ours a datagram went to; empty: not known, or that of a group."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            return socket.inet_ntop(socket.AF_INET, _IN_PKTINFO.unpack(data)[1])
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            host = socket.inet_ntop(socket.AF_INET6, _IN6_PKTINFO.unpack(data)[0])
            return "" if ip_address(host).is_multicast else host
    return ""
