"""What `urds node status`, `upgrade` and `stop` ask of a running node."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from urds.common.errors import SettingError
from urds.rds.node.settings import OVERFLOW_UID
from urds.rds.runtime import node_requests, places
from urds.rds.wire.node import Request, RequestOp

UPGRADE_WAIT_S: Final = 60.0
STOP_WAIT_S: Final = 30.0
_STEP_S: Final = 0.02


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Have an OSError say which node was asked, and what to do; its errno stays."""
    try:
        yield
    except OSError as failure:
        text = failure.strerror or str(failure)
        if failure.errno in (errno.ENOENT, errno.ECONNREFUSED):
            text = f"no node at {place}: start one with `{_start_of(place)}`"
            if Path(place).exists() and not Path(place).is_socket():
                text = f"{place} is no socket, so no node is there"
        elif failure.errno == errno.EPERM:
            text = f"the node at {place} obeys its own user and root alone"
        elif failure.errno == errno.EACCES and os.geteuid() == OVERFLOW_UID:
            text = f"a node serves no uid {OVERFLOW_UID}, which stands for every unmapped user"
        elif failure.errno == errno.EACCES:
            text = f"{place}: {text} (node.socket_mode)"
        elif failure.errno == errno.ETIMEDOUT:
            text = (
                f"no answer from the node at {place}: its worker hangs or is stopped,"
                " SIGHUP to its supervisor replaces it"
            )
        elif failure.errno == errno.EPROTO:
            text = f"the node at {place} is of another release: {text}"
        raise OSError(failure.errno, text) from failure


def _start_of(place: str) -> str:
    """Return the command that starts a node at a place."""
    if place == places.SYSTEM_PLACE:
        return "urds node --system"
    return "urds node" if place == places.user_place() else f"urds node --socket {place}"


def check_place(place: str) -> None:
    """Raise SettingError for a path that every program would read otherwise."""
    if place[:1] != "/":
        raise SettingError(f"--socket {place}: must be an absolute path")


def find(place: str | None, *, system: bool = False) -> str:
    """Return the place that is meant. Raises OSError if no node is there."""
    if place is not None:
        return place
    if system:
        return places.SYSTEM_PLACE
    found = places.find()
    if found is None:
        own = places.user_place()
        text = f"no node at {places.SYSTEM_PLACE} nor at {own}: start one with `urds node`"
        if places.is_served(own):
            text = f"the node at {own} is not asked: its folder is not of this user alone (0700)"
        raise FileNotFoundError(None, text)
    return found


def status(place: str) -> dict[str, Any]:
    """Return what a node tells of itself. Raises OSError."""
    with _naming(place):
        _, data = node_requests.fetch(place, Request(operation=RequestOp.STATUS))
    found: dict[str, Any] = json.loads(data)
    return found


def upgrade(place: str) -> tuple[int, int]:
    """Have the worker replaced; return the process ids before and after. Raises OSError."""
    first = status(place)
    before: int = first["worker"]
    with _naming(place):
        node_requests.ask(place, Request(operation=RequestOp.UPGRADE))
    until_s = time.monotonic() + UPGRADE_WAIT_S
    while time.monotonic() < until_s:
        with suppress(ConnectionError):  # a request that the old worker had not read
            now = status(place)
            if now["worker"] != before:
                return before, now["worker"]
            if now.get("upgrades_failed") != first.get("upgrades_failed"):
                raise OSError(None, f"no upgrade, the old worker serves: {now['upgrade_error']}")
        time.sleep(_STEP_S)
    raise TimeoutError(None, f"no new worker within {UPGRADE_WAIT_S:g} s")


def stop(place: str) -> None:
    """Have a node end in order, and wait until it has. Raises OSError."""
    with _naming(place):
        node_requests.ask(place, Request(operation=RequestOp.STOP))
    until_s = time.monotonic() + STOP_WAIT_S
    while places.is_served(place):
        if time.monotonic() > until_s:
            raise TimeoutError(None, f"the node has not ended within {STOP_WAIT_S:g} s")
        time.sleep(_STEP_S)
