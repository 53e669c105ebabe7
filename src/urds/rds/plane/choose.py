"""The door to the compiled plane: which of the two planes a node gets, and why.

`URDS_IMPL` decides: `python` or `native`. Without it the compiled plane is taken where the module
`urds_native` of exactly our version can be imported, else the reference. RDS over RDMA is carried
by the reference alone, so a node with the compiled plane has one of those beside it for its sockets
over RDMA (docs/adr/0015). Where Python runs without its lock, importing the module would turn it on
for the whole process: nobody gets that who did not ask for it by name.

Nothing is imported before a node needs a plane; nobody else may import `urds_native`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from urds.errors import PlaneError, SettingError

if TYPE_CHECKING:
    from urds.dataplane.base import Plane
    from urds.dataplane.compiled.lane import Lane

VERSION: Final = "0.1.0.dev0"  # of urds; the module must have been made for the same
VARIABLE: Final = "URDS_IMPL"
PYTHON: Final = "python"
NATIVE: Final = "native"
_ADVICE: Final = "`make native` or `pip install ./native` in a checkout of urds builds it"
_FREE_THREADED: Final = (
    f"Python runs without its lock, which the compiled plane needs: {VARIABLE}={NATIVE} turns it on"
)


class Choice(NamedTuple):
    """Which plane, and why that one."""

    plane: str  # PYTHON or NATIVE
    reason: str  # one line for people


def choose() -> Choice:
    """Return which plane a node gets for its sockets over TCP.

    Raises SettingError for an unknown value of URDS_IMPL, PlaneError if it asks for the compiled
    plane and there is none of our version.
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
    """Return "python" or "native": what a node gets. Raises as `choose`."""
    return choose().plane


def plane_class(choice: Choice | None = None) -> Callable[..., Plane]:
    """Return the class of the plane that was chosen, or that `choose` names. Raises as it does."""
    if (choice or choose()).plane == NATIVE:
        from urds.dataplane.compiled.plane import Plane as Compiled

        return Compiled
    from urds.dataplane.reference.plane import Plane as Reference

    return Reference


def lane_class(plane: Plane) -> type[Lane] | None:
    """Return the class of lanes to other processes for a plane; None if it takes none."""
    if not _is_compiled(plane):
        return None
    from urds.dataplane.compiled.lane import Lane

    return Lane


def plane_beside(plane: Plane) -> Callable[..., Plane] | None:
    """Return the class of plane that carries RDMA beside one that does not; None if it does."""
    return plane_class(Choice(PYTHON, "it carries RDMA")) if _is_compiled(plane) else None


def missing() -> str:
    """Return why there is no compiled plane for us; nothing if there is one."""
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


def _has_interpreter_lock() -> bool:
    """Tell whether Python runs with its lock; free-threaded builds exist since 3.13."""
    ask = getattr(sys, "_is_gil_enabled", None)
    return ask is None or ask()


def _is_compiled(plane: Plane) -> bool:
    """Tell which plane it is without an import; tests put others in its place."""
    return type(plane).__module__.startswith("urds.dataplane.compiled")
