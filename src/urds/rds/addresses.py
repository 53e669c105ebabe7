"""Socket addresses: a program's arguments, checked as Linux checks them, and what it gets back.

A program passes a tuple as with `socket.socket`, `(host, port)` or `(host, port, flow, scope)`, the
host being a literal or a name; or the bytes of a C `sockaddr_in` or `sockaddr_in6`. Inside, an
address is an `ipaddress` object and a v4-mapped one is IPv4. Each call has rules of its own.
Source: linux v6.12 net/rds/bind.c, net/rds/af_rds.c (connect), net/rds/send.c;
docs/reference/rds.md 3.1, 3.4.
"""

from __future__ import annotations

import socket
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Final

from urds.common.errors import ErrorReason, os_error
from urds.common.types import IPAddress

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
GivenAddress = SocketAddress | bytes  # what a call takes: bytes are a C sockaddr

# Family and scope in host order, port and address as on the wire.
_SOCKADDR_IN: Final = Struct("=H2s4s8x")
_SOCKADDR_IN6: Final = Struct("=H2s4x16sI")
_FAMILY: Final = Struct("=H")
_PORT_MAX: Final = 65535
_SCOPE_DIGITS_MAX: Final = 10  # of an index; what is longer is the name of no interface either
_LITERALS_MAX: Final = 4096  # few repeat often; reading one takes as long as queueing a message
_BROADCAST: Final = IPv4Address("255.255.255.255")


def packed_of(address: IPAddress) -> tuple[bytes, int]:
    """Return the packed bytes of an address, and its scope or 0."""
    scope = address.scope_id if isinstance(address, IPv6Address) else None
    return address.packed, int(scope) if scope and scope.isdigit() else 0


@lru_cache(maxsize=_LITERALS_MAX)
def address_of(data: bytes, scope: int) -> IPAddress:
    """Return the address of packed bytes and scope; mostly the same object for the same bytes."""
    if len(data) == 4:
        return IPv4Address(data)
    address = IPv6Address(data)
    return IPv6Address(f"{address}%{scope}") if scope else address


class Call(Enum):
    """Which call an address was given to."""

    BIND = "bind"
    CONNECT = "connect"
    SEND = "sendto"


# What Linux answers to what is no unicast address, where it is not EINVAL.
_NOT_UNICAST: Final = {(Call.CONNECT, 6): ErrorReason.ADDRESS_PROTOTYPE}


def parse(given: object, call: Call) -> tuple[IPAddress, int]:
    """Return the address and port that a program gave to `call`.

    A name is looked up, IPv4 first. Raises OSError as Linux does, TypeError and OverflowError as
    `socket.socket` does, socket.gaierror for an unknown name.
    """
    if isinstance(given, bytes):
        address, port = parse_sockaddr(given, call)
    else:
        address, port = _parse_tuple(given, call)
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    _check(address, call)
    return address, port


def parse_target(given: object, local: IPAddress) -> tuple[IPAddress, int]:
    """Return the address and port of a destination that a socket bound to `local` can reach."""
    address, port = parse(given, Call.SEND)
    if address.version != local.version:
        detail = f"to IPv{address.version} from a socket bound to IPv{local.version}"
        raise os_error(ErrorReason.FAMILY_MISMATCH, detail, peer=address)
    return address, port


def is_name(given: object) -> bool:
    """Tell whether a destination that `parse` took has a name that was looked up."""
    return isinstance(given, tuple) and _literal(given[0]) is None


def known_peer(given: SocketAddress, local: IPAddress) -> IPAddress | None:
    """Return the address of a destination if it needs no look-up and is one, else None."""
    if is_name(given):
        return None
    try:
        return parse_target(given, local)[0]
    except (OSError, TypeError, ValueError):  # the send itself reports the error
        return None


def parse_sockaddr(data: bytes, call: Call) -> tuple[IPAddress, int]:
    """Read a C socket address. Raises OSError for a short one or another family."""
    family = _FAMILY.unpack_from(data)[0] if len(data) >= _FAMILY.size else None
    shapes = {socket.AF_INET: _SOCKADDR_IN, socket.AF_INET6: _SOCKADDR_IN6}
    shape = shapes.get(family) if family is not None else None
    short = len(data) < (_SOCKADDR_IN if shape is None else shape).size
    if shape is None and not short and call is Call.CONNECT:
        raise os_error(ErrorReason.FAMILY_UNKNOWN, f"family {family}")
    if shape is None or short:
        raise os_error(ErrorReason.BAD_ADDRESS, f"{len(data)} bytes of family {family}")
    return unpack_sockaddr(data)


def unpack_sockaddr(data: bytes) -> tuple[IPAddress, int]:
    """Read 28 bytes or more as IPv6, else 16 as IPv4, whatever the family field holds.

    That is how RDS_CANCEL_SENT_TO reads its value: kernel parity.
    """
    if len(data) < _SOCKADDR_IN6.size:
        _, port, address4 = _SOCKADDR_IN.unpack_from(data)
        return IPv4Address(address4), int.from_bytes(port, "big")
    _, port, address6, scope = _SOCKADDR_IN6.unpack_from(data)
    address = IPv6Address(address6)
    return address.ipv4_mapped or _scoped(address, scope), int.from_bytes(port, "big")


def socket_address(address: IPAddress, port: int) -> SocketAddress:
    """Return the tuple that a program sees: two members for IPv4, four for IPv6."""
    if isinstance(address, IPv4Address):
        return str(address), port
    host, _, scope = str(address).partition("%")
    return host, port, 0, int(scope or 0)


def _parse_tuple(given: object, call: Call) -> tuple[IPAddress, int]:
    name = call.value
    if not isinstance(given, tuple):
        kind = type(given).__name__
        raise TypeError(f"{name}(): AF_RDS address must be tuple, not {kind}")
    if len(given) not in (2, 4):
        raise TypeError(
            f"{name}(): AF_RDS address must be (host, port) or (host, port, flow, scope)"
        )
    host, port, *rest = given
    if not isinstance(host, str) or not all(isinstance(one, int) for one in (port, *rest)):
        raise TypeError(f"{name}(): AF_RDS address must be a host and integers, not {given!r}")
    if not 0 <= port <= _PORT_MAX:
        raise OverflowError(f"{name}(): port must be 0-65535.")
    address = _literal(host) or _lookup(host)
    return (_scoped(address, rest[1]) if rest and address.version == 6 else address), port


def _literal(host: str) -> IPAddress | None:
    """Read a literal; the empty host and `<broadcast>` are those of the socket module."""
    if not host:
        return IPv4Address(0)
    if host == "<broadcast>":
        return _BROADCAST
    plain, _, scope = host.partition("%")
    address = _plain_literal(plain)
    if address is None or not scope or address.version == 4:
        return address
    is_number = scope.isascii() and scope.isdigit() and len(scope) <= _SCOPE_DIGITS_MAX
    return _scoped(address, int(scope) if is_number else socket.if_nametoindex(scope))


@lru_cache(maxsize=_LITERALS_MAX)
def _plain_literal(host: str) -> IPAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _lookup(host: str) -> IPAddress:
    """Ask the resolver, which may wait. Raises socket.gaierror."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    best = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    address = ip_address(str(best[4][0]).partition("%")[0])
    return _scoped(address, int(best[4][3])) if len(best[4]) == 4 else address


def _scoped(address: IPAddress, scope: int) -> IPAddress:
    """Return an address with its scope, where it needs one; a number outranks that of the text."""
    if not scope or not address.is_link_local:
        return address
    return IPv6Address(f"{str(address).partition('%')[0]}%{scope}")


def _check(address: IPAddress, call: Call) -> None:
    if address.is_unspecified and address.version == 4 and call is Call.CONNECT:
        raise os_error(ErrorReason.DESTINATION_ANY)
    if address.is_unspecified or address.is_multicast or address == _BROADCAST:
        reason = _NOT_UNICAST.get((call, address.version), ErrorReason.BAD_ADDRESS)
        advice = "; RDS has no wildcard, give one address" if address.is_unspecified else ""
        raise os_error(reason, f"{address} is not unicast{advice}")
    if isinstance(address, IPv6Address) and address.is_link_local and not address.scope_id:
        raise os_error(ErrorReason.BAD_ADDRESS, f"{address} is link-local and has no scope")
