"""Addresses as the compiled plane has them: packed octets and a scope, 0 without one."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from urds.dataplane.base import Address

_ADDRESSES_MAX = 4096  # events and tables name few addresses often


def plain(address: Address) -> tuple[bytes, int]:
    """Return the packed octets and the scope of an address."""
    scope = address.scope_id if isinstance(address, IPv6Address) else None
    return address.packed, int(scope) if scope and scope.isdigit() else 0


@lru_cache(maxsize=_ADDRESSES_MAX)
def address_of(octets: bytes, scope: int) -> Address:
    """Return the address; the same object for the same octets, most of the time."""
    if len(octets) == 4:
        return IPv4Address(octets)
    address = IPv6Address(octets)
    return IPv6Address(f"{address}%{scope}") if scope else address
