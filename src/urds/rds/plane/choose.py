"""Choice between the Python plane and the compiled plane, as `common.implementation` says.

Nothing is imported before a node needs a plane; no other module may import `urds_native`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from urds.common.implementation import (
    NATIVE,
    PYTHON,
    VARIABLE,
    Choice,
    choose,
    missing,
    plane_in_use,
)

if TYPE_CHECKING:
    from urds.rds.plane.contract import Plane
    from urds.rds.plane.native import ShmStream

__all__ = [
    "NATIVE",
    "PYTHON",
    "VARIABLE",
    "Choice",
    "attaches",
    "choose",
    "missing",
    "native_module",
    "plane_class",
    "plane_in_use",
    "shm_stream_class",
]


def plane_class(choice: Choice | None = None) -> Callable[..., Plane]:
    """Return the class of `choice`, by default of `choose()`. Raises as `choose`."""
    if (choice or choose()).plane == NATIVE:
        from urds.rds.plane.native import Plane as Compiled

        return Compiled
    from urds.rds.plane.python.plane import Plane as Reference

    return Reference


def shm_stream_class(plane: Plane) -> type[ShmStream] | None:
    """Return the class of shm streams for a plane; None if the plane supports none."""
    if not _is_compiled(plane):
        return None
    from urds.rds.plane.native import ShmStream

    return ShmStream


def native_module() -> ModuleType:
    """Return the compiled module, for what has no place in the contract. Raises ImportError."""
    import urds_native

    return urds_native


def attaches() -> bool:
    """Return whether the compiled module has sockets that are attached to a node."""
    return hasattr(native_module(), "AttachedMailbox")


def _is_compiled(plane: Plane) -> bool:
    """Return whether the plane is the compiled one, without an import; tests replace planes."""
    return type(plane).__module__.startswith("urds.rds.plane.native")
