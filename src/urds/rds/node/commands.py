"""What `urds node status`, `upgrade` and `stop` ask of a running node."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, Final

from urds.rds.runtime import node_requests, places
from urds.rds.wire.node import Request, RequestOp

UPGRADE_WAIT_S: Final = 60.0
STOP_WAIT_S: Final = 30.0
_STEP_S: Final = 0.02


def find(place: str | None, *, system: bool = False) -> str:
    """Return the place that is meant. Raises OSError if no node is there."""
    if place is not None:
        return place
    if system:
        return places.SYSTEM_PLACE
    found = places.find()
    if found is None:
        text = f"no node at {places.SYSTEM_PLACE} nor at {places.user_place()}"
        raise FileNotFoundError(None, f"{text}: start one with `urds node`")
    return found


def status(place: str) -> dict[str, Any]:
    """Return what a node tells of itself. Raises OSError."""
    _, data = node_requests.fetch(place, Request(operation=RequestOp.STATUS))
    found: dict[str, Any] = json.loads(data)
    return found


def upgrade(place: str) -> tuple[int, int]:
    """Have the worker replaced; return the process ids before and after. Raises OSError."""
    before: int = status(place)["worker"]
    node_requests.ask(place, Request(operation=RequestOp.UPGRADE))
    until_s = time.monotonic() + UPGRADE_WAIT_S
    while time.monotonic() < until_s:
        with suppress(ConnectionError):  # a request that the old worker had not read
            now = status(place)
            if now["worker"] != before:
                return before, now["worker"]
            if now.get("upgrade_error"):
                raise OSError(None, f"no upgrade, the old worker serves: {now['upgrade_error']}")
        time.sleep(_STEP_S)
    raise TimeoutError(None, f"no new worker within {UPGRADE_WAIT_S:g} s")


def stop(place: str) -> None:
    """Have a node end in order, and wait until it has. Raises OSError."""
    node_requests.ask(place, Request(operation=RequestOp.STOP))
    until_s = time.monotonic() + STOP_WAIT_S
    while places.is_served(place):
        if time.monotonic() > until_s:
            raise TimeoutError(None, f"the node has not ended within {STOP_WAIT_S:g} s")
        time.sleep(_STEP_S)
