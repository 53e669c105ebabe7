"""Times at the interface to nanoseconds: microseconds in the C calls, seconds in the objects."""

import math

from urds.dat.constants import DAT_TIMEOUT_INFINITE
from urds.dat.errors import bad_argument

_NS_PER_US = 1000
_US_PER_S = 1_000_000


def ns_of_us(timeout_us: int, *, argument: int) -> int | None:
    """Return nanoseconds; `None` for DAT_TIMEOUT_INFINITE.

    Raises DatInvalidParameter: not 0 to 2**32 - 1.
    """
    if not 0 <= timeout_us <= DAT_TIMEOUT_INFINITE:
        detail = f"timeout of {timeout_us} us, from 0 to {DAT_TIMEOUT_INFINITE}"
        raise bad_argument(argument, detail)
    return None if timeout_us == DAT_TIMEOUT_INFINITE else timeout_us * _NS_PER_US


def ns_of_s(timeout_s: float | None, *, argument: int) -> int | None:
    """Return nanoseconds, rounded up to a whole microsecond; `None` for `None`.

    Raises DatInvalidParameter: negative or not finite.
    """
    if timeout_s is None:
        return None
    if not (math.isfinite(timeout_s) and timeout_s >= 0):
        raise bad_argument(argument, f"timeout of {timeout_s} s, from 0 on and finite")
    return math.ceil(timeout_s * _US_PER_S) * _NS_PER_US
