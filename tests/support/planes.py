"""The two data planes, for tests: which there are, which one this run is about.

Without URDS_IMPL a run is about the reference plane, whatever is installed, so that its outcome
does not depend on that; `make test` runs the suites of messages once more with URDS_IMPL=native.
tests/parity puts both beside each other in one run. A test marked `reference` looks
inside the
Python plane, or replaces a part of it, and is left out where the plane is the compiled one.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from urds.common.errors import SettingError
from urds.rds.plane.choose import (
    NATIVE,
    PYTHON,
    VARIABLE,
    Choice,
    missing,
    plane_class,
    plane_in_use,
)
from urds.rds.plane.contract import Plane

REQUIRED = "TEST_NATIVE_REQUIRED"  # 1: a compiled plane was meant to be built
LOOKS_INSIDE = "looks inside the Python plane"
_FIXTURE = "make_plane"  # whose parameter is the plane that a test of parity runs on


def choose() -> None:
    """Settle which plane the nodes of this run have. Raises UsageError if it is not here."""
    os.environ[VARIABLE] = os.environ.get(VARIABLE) or PYTHON
    try:
        plane_in_use()
    except (SettingError, ImportError) as error:
        raise pytest.UsageError(str(error)) from None
    if os.environ.get(REQUIRED) == "1" and (reason := missing()):
        raise pytest.UsageError(f"{REQUIRED}=1, but {reason}")


def in_use() -> str:
    """Return the plane that nodes of this run have, `python` or `native`."""
    return os.environ.get(VARIABLE) or plane_in_use()


def chosen() -> dict[str, str]:
    """Return the variables that choose the plane of a process that a test starts."""
    return {VARIABLE: in_use()}


def make_native(**settings: object) -> Plane:
    """Make a compiled plane."""
    return plane_class(Choice(NATIVE, "a test"))(**settings)


PLANES: dict[str, Callable[..., Plane]] = {
    PYTHON: plane_class(Choice(PYTHON, "a test")),
    NATIVE: make_native,
}


def name_of(make_plane: Callable[..., Plane]) -> str:
    """Return which plane a maker of `PLANES` makes."""
    return NATIVE if make_plane is make_native else PYTHON


def parameters() -> list[object]:
    """Return both planes as parameters of a fixture; the compiled one is skipped if missing."""
    reason = missing()
    marks = [pytest.mark.skip(reason=f"no compiled plane: {reason}")] if reason else []
    return [
        pytest.param(PLANES[PYTHON], id=PYTHON),
        pytest.param(PLANES[NATIVE], id=NATIVE, marks=marks),
    ]


def leave_out(items: list[pytest.Item]) -> None:
    """Skip the tests that look inside the Python plane where they have the compiled one."""
    for item in items:
        if item.get_closest_marker("reference") and _plane_of(item) == NATIVE:
            item.add_marker(pytest.mark.skip(reason=LOOKS_INSIDE))


def _plane_of(item: pytest.Item) -> str:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    make_plane = parameters.get(_FIXTURE)
    return in_use() if make_plane is None else name_of(make_plane)
