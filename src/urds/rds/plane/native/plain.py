"""Addresses in the form of the compiled plane: packed bytes and a scope, 0 without one."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from urds.common.types import IPAddress

_ADDRESSES_MAX = 4096  # events and tables repeat few addresses often


def plain(address: IPAddress) -> tuple[bytes, int]:
    """Return the packed bytes and the scope of an address."""
    scope = address.scope_id if isinstance(address, IPv6Address) else None
    return address.packed, int(scope) if scope and scope.isdigit() else 0


@lru_cache(maxsize=_ADDRESSES_MAX)
def address_of(data: bytes, scope: int) -> IPAddress:
    """Return the address; mostly the same object for the same bytes."""
    if len(data) == 4:
        return IPv4Address(data)
    address = IPv6Address(data)
    return IPv6Address(f"{address}%{scope}") if scope else address
