"""The clock that control and data plane share."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Return monotonic nanoseconds; `Plane` uses the same clock."""
    return time.monotonic_ns()
