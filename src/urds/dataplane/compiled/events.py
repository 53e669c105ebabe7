"""The reports of the compiled plane as the contract's records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from urds.dataplane.base import (
    Congested,
    Control,
    Down,
    DownReason,
    Event,
    FirstFrame,
    Interest,
    Limit,
    LimitHit,
    LingerOver,
    PeerMap,
    PeerRestarted,
    Ready,
    Wanted,
)
from urds.dataplane.compiled.path import Path
from urds.dataplane.compiled.plain import address_of


def event_of(report: tuple[Any, ...]) -> Event:
    """Return the record of a report: its name, then plain values."""
    return _MAKERS[report[0]](*report[1:])


def _down(path: Path, reason: str, errno: int, frames: int, attachment: int) -> Down:
    return Down(path, DownReason[reason], errno, frames, attachment)


def _peer_map(local: bytes, local_scope: int, peer: bytes, peer_scope: int) -> PeerMap:
    return PeerMap(address_of(local, local_scope), address_of(peer, peer_scope))


def _congested(local: bytes, scope: int, port: int, on: bool) -> Congested:
    return Congested(address_of(local, scope), port, on)


def _limit_hit(limit: str, path: Path | None, port: int, count: int) -> LimitHit:
    return LimitHit(Limit[limit], path, port, count)


def _ready(descriptor: int, interest: int) -> Ready:
    return Ready(descriptor, Interest(interest))


_MAKERS: Mapping[str, Callable[..., Event]] = {
    "Wanted": Wanted,
    "FirstFrame": FirstFrame,
    "Down": _down,
    "Control": Control,
    "PeerMap": _peer_map,
    "Congested": _congested,
    "LimitHit": _limit_hit,
    "PeerRestarted": PeerRestarted,
    "LingerOver": LingerOver,
    "Ready": _ready,
}
