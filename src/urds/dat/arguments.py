"""What callers give, checked: addresses, qualifiers, times, counted lists, numbers of enums.

Connection qualifiers become ports. Times become nanoseconds: they are microseconds in the C calls,
seconds in the objects.
Source: docs/reference/dat.md 1.1, 9, 17.1 (the rule of the library over rdma_cm for qualifiers).
"""

import ipaddress
import math
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from urds.common.seconds import seconds_of
from urds.common.types import HostPort, IPAddress
from urds.dat.constants import DAT_TIMEOUT_INFINITE, DAT_VALUE_UNKNOWN
from urds.dat.errors import bad_argument, dat_error
from urds.dat.returns import ReturnType, Subtype

A = TypeVar("A")
IaAddress = str | IPAddress | HostPort

QUAL_MAX: Final = (1 << 64) - 1
PORT_LAST: Final = 65_535
_FOLDED_FIRST: Final = 33_534
_FOLDED_COUNT: Final = 32_001
_NS_PER_US: Final = 1000
_US_PER_S: Final = 1_000_000


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


def ns_of_us(timeout_us: object, *, argument: int) -> int | None:
    """Return nanoseconds; `None` for DAT_TIMEOUT_INFINITE.

    Raises DatInvalidParameter: no integer from 0 to 2**32 - 1.
    """
    if not (isinstance(timeout_us, int) and 0 <= timeout_us <= DAT_TIMEOUT_INFINITE):
        detail = f"timeout of {timeout_us!r} us, from 0 to {DAT_TIMEOUT_INFINITE}"
        raise bad_argument(argument, detail)
    return None if timeout_us == DAT_TIMEOUT_INFINITE else timeout_us * _NS_PER_US


def ns_of_s(timeout_s: float | None, *, argument: int) -> int | None:
    """Return nanoseconds, rounded up to a whole microsecond; `None` for `None`.

    Raises DatInvalidParameter: no number, negative or not finite.
    """
    if timeout_s is None:
        return None
    try:
        seconds = seconds_of(timeout_s)
    except (TypeError, ValueError) as error:
        raise bad_argument(argument, str(error)) from None
    if math.isinf(seconds):
        raise bad_argument(
            argument, f"timeout_s must be finite, not {timeout_s!r}: None is for ever"
        )
    return math.ceil(seconds * _US_PER_S) * _NS_PER_US


def segments_of(count: int, iov: Sequence[A] | None) -> Sequence[A]:
    """Return the first `count` segments of a list, arguments 2 and 3 of the calls that post.

    Raises DatInvalidParameter: fewer are there, or it is no list.
    """
    given: Sequence[A] = () if iov is None else iov
    if not isinstance(given, Sequence):
        raise bad_argument(3, f"{given!r} is no list of segments")
    if count == len(given):
        return given
    if not 0 <= count <= len(given):
        raise bad_argument(2, f"{count} segments of {len(given)}")
    return given[:count]


def bytes_of(count_bytes: int, data: bytes | None, *, argument: int) -> bytes:
    """Return the first bytes of private data. Raises DatInvalidParameter: fewer are there."""
    given = b"" if data is None else bytes(data)
    if not 0 <= count_bytes <= len(given):
        raise bad_argument(argument, f"{count_bytes} bytes of private data of {len(given)}")
    return given[:count_bytes]


def choice(kind: Callable[[int], A], value: int, *, argument: int) -> A:
    """Return the member of an enum. Raises DatInvalidParameter: it has none of this value."""
    try:
        return kind(value)
    except ValueError as error:
        raise bad_argument(argument, str(error)) from None


def demand_bool(value: object, *, argument: int) -> None:
    """Raise DatInvalidParameter for what is neither True nor False, a number or a pointer say."""
    if not isinstance(value, bool):
        raise bad_argument(argument, f"{value!r} says neither wanted nor not")


def or_unknown(count: int | None) -> int:
    """Return a count, DAT_VALUE_UNKNOWN for one that the provider does not support."""
    return DAT_VALUE_UNKNOWN if count is None else count


def _bad_address(subtype: Subtype, detail: str) -> Exception:
    return dat_error(ReturnType.INVALID_ADDRESS, subtype, detail)
