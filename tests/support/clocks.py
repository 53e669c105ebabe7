"""Another time for one module: the threads of the devices that the process has open need theirs."""

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def give_time(
    patch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]
) -> None:
    """Have these stand in for functions of `time` in this module alone.

    A progress thread that reads a wrong clock once may sleep for an hour behind it.
    """
    patch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))
