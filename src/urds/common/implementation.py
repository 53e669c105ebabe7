"""Which implementation a process uses: the compiled one, or that of Python.

`URDS_IMPL` decides: `python` or `native`. Without it a process gets the compiled one if the module
`urds_native` of exactly this version can be imported, else that of Python. On a free-threaded
Python the module's import would enable the GIL for the whole process, so there it is imported only
if `URDS_IMPL` names it.

Nothing is imported before something asks. Data planes and verbs devices follow the same choice.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from urds.common.errors import PlaneError, SettingError
from urds.common.named_tuples import NamedTuple
from urds.common.version import VERSION

VARIABLE: Final = "URDS_IMPL"
PYTHON: Final = "python"
NATIVE: Final = "native"
_ADVICE: Final = "`make native` or `pip install ./native` in a checkout of urds builds it"
_FREE_THREADED: Final = (
    f"Python runs without its lock, which the compiled plane needs: {VARIABLE}={NATIVE} turns it on"
)


class Choice(NamedTuple):
    """The chosen implementation, and the reason."""

    plane: str  # PYTHON or NATIVE
    reason: str  # one line for users


def choose() -> Choice:
    """Return the plane that a node gets, which is also the engine of a device.

    Raises SettingError for an unknown value of URDS_IMPL, PlaneError if it asks for the compiled
    plane and no module of this version exists.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in {"", PYTHON, NATIVE}:
        raise SettingError(f"{VARIABLE} = {wanted!r} (environment): give {PYTHON} or {NATIVE}")
    if wanted == PYTHON:
        return Choice(PYTHON, f"{VARIABLE}={PYTHON}")
    reason = missing() if wanted or _has_interpreter_lock() else _FREE_THREADED
    if reason and wanted:
        raise PlaneError(f"{VARIABLE}={NATIVE}, but {reason}: {_ADVICE}")
    if reason:
        return Choice(PYTHON, reason)
    return Choice(NATIVE, f"{VARIABLE}={NATIVE}" if wanted else f"urds_native {VERSION} is here")


def plane_in_use() -> str:
    """Return "python" or "native", the plane that a node gets. Raises as `choose`."""
    return choose().plane


def missing() -> str:
    """Return why the compiled plane cannot be used; "" if it can."""
    try:
        import urds_native

        found = urds_native.VERSION
    except ModuleNotFoundError as failure:
        if failure.name != "urds_native":
            return f"urds_native cannot be imported ({failure})"
        return "urds_native is not installed"
    except (ImportError, AttributeError) as failure:
        return f"urds_native cannot be imported ({failure})"
    found = found.replace("-", ".")  # Cargo's spelling
    return "" if found == VERSION else f"urds_native is of version {found}, urds of {VERSION}"


def line_floor_ns(first: int, second: int) -> float:
    """Return how long a cache line takes there and back between two processors, in nanoseconds.

    For a process whose compiled plane is not `missing`. Half a second at most, without the
    interpreter's lock. Raises ValueError if both are one or one cannot be used; OSError, EBUSY, if
    others had them all the time.
    """
    import urds_native

    return urds_native.line_floor_ns(first, second)


def _has_interpreter_lock() -> bool:
    """Return whether Python runs with its GIL; free-threaded builds exist since 3.13."""
    ask = getattr(sys, "_is_gil_enabled", None)
    return ask is None or ask()
