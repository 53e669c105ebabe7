"""Addresses as the tools need them: what a user named, and from where to reach it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from random import Random
from typing import Final

from urds.cli.exits import UsageError
from urds.constants import RDS_TCP_PORT

Address = IPv4Address | IPv6Address

_GUESSES: Final = 16


def find_address(text: str) -> Address:
    """Return a literal, or what the resolver says of a name, IPv4 first. Raises UsageError."""
    with suppress(ValueError):
        return ip_address(text)
    try:
        found = socket.getaddrinfo(text, None, type=socket.SOCK_DGRAM)
    except OSError as failure:
        raise UsageError(f"{text}: {failure.strerror}") from failure
    best = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return ip_address(str(best[4][0]))


def candidates(target: Address, outgoing: Address, random: Random) -> Iterator[str]:
    """Yield local addresses from which to reach the target, the likeliest first.

    First what the routes choose (`outgoing`). Each process that binds needs an address of its own,
    so where the target is an IPv4 address of this very machine, others of 127/8 follow.
    """
    if outgoing != target:
        yield str(outgoing)
    if outgoing == target or target.is_loopback:
        if target.version == 6:
            yield str(target)  # no second one: this process answers itself, if nobody else does
            return
        base = int(IPv4Address("127.0.0.0"))
        for _ in range(_GUESSES):
            yield str(IPv4Address(base + random.randrange(1 << 8, (1 << 24) - 1)))


def outgoing_address(target: Address) -> Address:
    """Ask the routing table, by a UDP socket that sends nothing.

    Raises OSError: it knows no way there.
    """
    family = socket.AF_INET if target.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(target), RDS_TCP_PORT))
        except OSError as failure:
            raise OSError(failure.errno, f"{failure.strerror}: no route to {target}") from failure
        return ip_address(str(probe.getsockname()[0]))
