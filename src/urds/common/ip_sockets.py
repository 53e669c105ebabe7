"""What UDP and TCP sockets of the kernel are asked alike: names, and addresses of this host.

A socket that is bound to every address of the host learns from each datagram which of them it went
to, and says of each which it leaves from.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from struct import Struct
from typing import Any, Final

from urds.common.types import HostPort

Ancillary = tuple[int, int, bytes]

# The socket module lacks the number. Source: linux v6.12 include/uapi/linux/in.h.
_IP_PKTINFO: Final = getattr(socket, "IP_PKTINFO", 8)
_IN_PKTINFO: Final = Struct("=I4s4s")  # interface, our address, address in the header
_IN6_PKTINFO: Final = Struct("=16sI")


def address_of(name: Any) -> HostPort:
    """Return the address of a socket's name; an IPv6 scope stays in it."""
    host, port = name[0], name[1]
    if len(name) == 4 and name[3] and "%" not in host:
        host = f"{host}%{name[3]}"
    return host, port


def name_of(host: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """Return the name that a socket takes for a literal: of two members for IPv4, four for IPv6.

    A scope is the number or the name of an interface. Raises OSError: no such interface.
    """
    if ":" not in host:
        return host, port
    host, _, scope = host.partition("%")
    index = socket.if_nametoindex(scope) if scope and not scope.isdigit() else int(scope or 0)
    return host, port, 0, index


def host_port(address: HostPort | tuple[str, int, int, int]) -> str:
    """Return an address as a text: `10.0.0.1:4000`, `[fd00::1]:4000`."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_towards(family: int, name: Any) -> str:
    """Return the address of this host on the way to a socket address. Raises OSError: ENETUNREACH.

    A broadcast address is one, too.
    """
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        probe.connect(name)  # sends nothing
        return address_of(probe.getsockname())[0]


def ask_for_targets(sock: socket.socket) -> None:
    """Have each datagram say where it went to: its answer has to leave from there."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)


def target_of(ancillary: list[Ancillary]) -> str:
    """Return which address of ours a datagram went to; empty: not known, or that of a group."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            return socket.inet_ntop(socket.AF_INET, _IN_PKTINFO.unpack(data)[1])
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            host = socket.inet_ntop(socket.AF_INET6, _IN6_PKTINFO.unpack(data)[0])
            return "" if ip_address(host).is_multicast else host
    return ""


def leaving_from(host: str) -> list[Ancillary]:
    """Return the control messages of a datagram that leaves from this address of ours."""
    address = ip_address(host)
    if address.version == 6:
        data = _IN6_PKTINFO.pack(address.packed, 0)
        return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, data)]
    return [(socket.IPPROTO_IP, _IP_PKTINFO, _IN_PKTINFO.pack(0, address.packed, bytes(4)))]
