"""Processes that a tool starts for its other side: with the very `urds` that runs here."""

from __future__ import annotations

import os
from pathlib import Path

import urds


def environment() -> dict[str, str]:
    """Return an environment in which a child finds this `urds`, wherever it was imported from."""
    place = str(Path(urds.__file__).resolve().parents[1])
    others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([place, *others])}
