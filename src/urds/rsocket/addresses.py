"""The names of sockets: what a program gives, as with `socket.socket`, and what it gets back.

A program gives `(host, port)`, or for AF_INET6 also flow and scope, the host being a literal or a
name. Devices know addresses as a literal, with `%scope` where it needs one, and a port.
"""

import socket
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from urds.common.ip_sockets import name_of
from urds.common.types import HostPort

_PORT_MAX: Final = 65_535
_FLOW_MAX: Final = (1 << 20) - 1
_LENGTHS: Final = {socket.AF_INET: (2,), socket.AF_INET6: (2, 3, 4)}
_ANY: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def parse(given: object, family: int, call: str) -> HostPort:
    """Return the address that a program gave to `call`; a name is looked up, which may wait.

    Raises TypeError and OverflowError as `socket.socket` does, socket.gaierror for a name that
    cannot be resolved or has no address of the family.
    """
    title = socket.AddressFamily(family).name
    if not isinstance(given, tuple):
        raise TypeError(f"{call}(): {title} address must be tuple, not {type(given).__name__}")
    if len(given) not in _LENGTHS[socket.AddressFamily(family)]:
        raise TypeError(f"{call}(): {title} address must be a pair (host, port), not {given!r}")
    host, port, *rest = given
    if not isinstance(host, str) or not all(isinstance(one, int) for one in (port, *rest)):
        raise TypeError(f"{call}(): {title} address must be a host and integers, not {given!r}")
    if not 0 <= port <= _PORT_MAX:
        raise OverflowError(f"{call}(): port must be 0-65535.")
    if rest and not 0 <= rest[0] <= _FLOW_MAX:
        raise OverflowError(f"{call}(): flowinfo must be 0-{_FLOW_MAX}.")
    literal = host if _is_literal(host, family) else _look_up(host, family)
    return _scoped(literal, rest[1] if len(rest) > 1 else 0), port


def reachable(address: HostPort) -> HostPort:
    """Return where a connect to `address` goes: to any address means to this host, as in TCP."""
    return _LOOPBACK.get(address[0], address[0]), address[1]


def unmapped(address: HostPort) -> HostPort:
    """Return the IPv4 address that a mapped one (`::ffff:10.0.0.1`) stands for, or any other."""
    host, port = address
    mapped = IPv6Address(host).ipv4_mapped if host.startswith("::") else None
    return (host if mapped is None else str(mapped)), port


def unbound(family: int) -> HostPort:
    """Return the name of a socket that has none."""
    return _ANY[socket.AddressFamily(family)], 0


def shown(address: HostPort, family: int) -> Any:
    """Return the tuple that a program sees: two members for IPv4, four for IPv6."""
    host, port = address
    if family == socket.AF_INET:
        return host, port
    return name_of(host if ":" in host else f"::ffff:{host}", port)


def _is_literal(host: str, family: int) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (address.version == 6) == (family == socket.AF_INET6)


def _look_up(host: str, family: int) -> str:
    """Ask the resolver; the empty host is any address. Raises socket.gaierror."""
    if not host:
        return _ANY[socket.AddressFamily(family)]
    found = socket.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
    name = found[0][4]
    return _scoped(str(name[0]), int(name[3]) if len(name) == 4 else 0)


def _scoped(host: str, scope: int) -> str:
    """Return a literal with its scope, where the address has one and does not say it yet."""
    if not scope or "%" in host or not IPv6Address(host).is_link_local:
        return host
    return f"{host}%{scope}"
