"""Addresses of interface adapters, and connection qualifiers as ports.

Source: docs/reference/dat.md 1.1, 9, 17.1 (the rule of the library over rdma_cm for qualifiers).
"""

import ipaddress
from typing import Final

from urds.common.types import HostPort, IPAddress
from urds.dat.errors import bad_argument, dat_error
from urds.dat.returns import ReturnType, Subtype

IaAddress = str | IPAddress | HostPort

QUAL_MAX: Final = (1 << 64) - 1
PORT_LAST: Final = 65_535
_FOLDED_FIRST: Final = 33_534
_FOLDED_COUNT: Final = 32_001


def numeric_address(address: object) -> str:
    """Return the numeric text of an IP address: text, an `ipaddress` object or a socket address.

    Raises DatInvalidAddress: MALFORMED for what is none, UNSUPPORTED for multicast, broadcast and
    "any", to which no connection can go.
    """
    given = address[0] if isinstance(address, tuple) and address else address
    try:
        found = ipaddress.ip_address(given)  # type: ignore[arg-type]  # raises for what is none
    except ValueError as error:
        raise _bad_address(Subtype.INVALID_ADDRESS_MALFORMED, str(error)) from error
    is_broadcast = found == ipaddress.IPv4Address("255.255.255.255")
    if found.is_multicast or found.is_unspecified or is_broadcast:
        raise _bad_address(Subtype.INVALID_ADDRESS_UNSUPPORTED, f"{found} names no one host")
    return str(found)


def port_of(conn_qual: object, *, argument: int) -> int:
    """Return the port of a connection qualifier; those above 65535 are folded into 33534 to 65534.

    Raises DatInvalidParameter: 0, or not an unsigned 64-bit number.
    """
    if not isinstance(conn_qual, int) or not 1 <= conn_qual <= QUAL_MAX:
        raise bad_argument(argument, f"connection qualifier {conn_qual!r}, from 1 to {QUAL_MAX}")
    if conn_qual <= PORT_LAST:
        return conn_qual
    return _FOLDED_FIRST + conn_qual % _FOLDED_COUNT


def _bad_address(subtype: Subtype, detail: str) -> Exception:
    return dat_error(ReturnType.INVALID_ADDRESS, subtype, detail)
