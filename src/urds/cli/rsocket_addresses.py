"""Addresses of the tools of `urds rsocket`: names and numbers to what a socket takes."""

from __future__ import annotations

import socket
from typing import Any, Final

from urds.cli.exits import UsageError
from urds.cli.rsocket_ways import LOOPBACK

FORMATS: Final = ("name", "ip", "ipv6", "gid")
_FAMILIES: Final = {"name": socket.AF_UNSPEC, "ip": socket.AF_INET, "ipv6": socket.AF_INET6}


def resolved(
    host: str, port: int, address_format: str, *, by_verbs: bool = False
) -> tuple[int, Any]:
    """Return family and address of a host. Raises UsageError for a format it is not in, OSError."""
    if address_format == "gid":
        raise UsageError("-f gid: GIDs of software devices have no addresses (AF_IB); use ip, ipv6")
    if by_verbs:
        return _by_verbs(host, port)
    flags = 0 if address_format == "name" else socket.AI_NUMERICHOST
    try:
        found = socket.getaddrinfo(
            host, port, _FAMILIES[address_format], socket.SOCK_STREAM, flags=flags
        )
    except socket.gaierror as unknown:
        if flags:
            raise UsageError(f"{host} is no address of -f {address_format}") from None
        raise OSError(f"{host}: {unknown.strerror}") from None
    return found[0][0], found[0][4]


def _by_verbs(host: str, port: int) -> tuple[int, Any]:
    """Resolve as rdma_getaddrinfo does: through the verbs' own call."""
    from urds.verbs.cm_parameters import AddrInfo

    address = AddrInfo(dst=host, dst_service=port).dst
    assert address is not None, "a host was given"
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET, address


def local_address(host: str, port: int, family: int | None) -> tuple[int, Any]:
    """Return family and address to bind; "" is 127.0.0.1. Raises OSError."""
    try:
        found = socket.getaddrinfo(
            host or LOOPBACK, port, family or socket.AF_UNSPEC, socket.SOCK_STREAM
        )
    except socket.gaierror as unknown:
        raise OSError(f"{host}: {unknown.strerror}") from None
    return found[0][0], found[0][4]
