"""Waiting times that callers give: what is none is refused before anything waits."""

from __future__ import annotations

import math
from typing import Any, Final, SupportsFloat, SupportsIndex, cast

_FOREVER_S: Final = 1 << 32  # 136 years; a wait is told in nanoseconds, of 63 bits at the least


def number_of(value: object, what: str) -> float:
    """Return a number that `what` was given, infinity for one beyond a float's range.

    Raises TypeError: it is none; ValueError: NaN.
    """
    # The classes first: protocols take microseconds to ask, and each call with a time asks.
    if not isinstance(value, (int, float, SupportsFloat, SupportsIndex)):
        given = "None" if value is None else f"{type(value).__name__} {value!r}"
        raise TypeError(f"{what} must be a number, not {given}")
    try:
        number = float(value)
    except OverflowError:
        return math.inf if cast("Any", value) > 0 else -math.inf
    if math.isnan(number):
        raise ValueError(f"{what} must be a number, not {value!r}")
    return number


def seconds_of(value: object, what: str = "timeout_s") -> float:
    """Return a number of seconds. Raises as `number_of`; ValueError: negative."""
    seconds = number_of(value, what)
    if seconds < 0:
        raise ValueError(f"{what} must be 0 or more seconds, not {value!r}")
    return seconds


def waiting_time(value: object, what: str = "timeout_s") -> float | None:
    """Return how many seconds to wait, `None` for ever: for `None`, infinity and whole centuries.

    Raises as `seconds_of`.
    """
    if value is None:
        return None
    seconds = seconds_of(value, what)
    return seconds if seconds < _FOREVER_S else None


def polling_time(value: object, what: str, *, per_s: int = 1) -> float | None:
    """Return how many seconds a poll(2) waits, `None` for ever: a negative number as well.

    The value is in units of which a second has `per_s`. Raises as `number_of`.
    """
    number = math.inf if value is None else number_of(value, what)
    return None if number < 0 else waiting_time(number / per_s)
