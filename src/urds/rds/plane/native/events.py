"""The compiled plane's reports as event records of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from urds.rds.plane.contract import (
    Control,
    Down,
    DownReason,
    Event,
    FirstFrame,
    Interest,
    LingerOver,
    PeerRestarted,
    Ready,
    Wanted,
)
from urds.rds.plane.native.path import Path


def event_of(report: tuple[Any, ...]) -> Event:
    """Return the record of a report: its name, then plain values."""
    return _MAKERS[report[0]](*report[1:])


def _down(path: Path, reason: str, errno: int, frames: int, attachment: int) -> Down:
    return Down(path, DownReason[reason], errno, frames, attachment)


def _ready(descriptor: int, interest: int) -> Ready:
    return Ready(descriptor, Interest(interest))


_MAKERS: Mapping[str, Callable[..., Event]] = {
    "Wanted": Wanted,
    "FirstFrame": FirstFrame,
    "Down": _down,
    "Control": Control,
    "PeerRestarted": PeerRestarted,
    "LingerOver": LingerOver,
    "Ready": _ready,
}
