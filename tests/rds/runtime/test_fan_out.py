"""Which path a new one is held behind, so that no socket overtakes itself when it moves there."""

from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import Any

import pytest

from urds.rds.control.events import FanOut
from urds.rds.control.paths import path_of_port
from urds.rds.runtime.actions import Actions
from urds.rds.runtime.local_addresses import PeerPaths

PEER = IPv4Address("127.0.0.2")


class Path:
    """Stands in for a path: what it was held behind."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.behind: list[int | None] = []

    def hold_behind(self, other: "Path | None") -> None:
        self.behind.append(None if other is None else other.index)


class World:
    """Stands in for a driver with the paths to one peer."""

    def __init__(self) -> None:
        self.paths = PeerPaths([Path(0)])  # type: ignore[list-item]  # stands in
        self.made: list[Path] = []
        driver: Any = SimpleNamespace(
            log=SimpleNamespace(part=lambda name: None),
            paths=SimpleNamespace(
                to=lambda host, peer: self.paths, make=lambda host, peer, index: self._make(index)
            ),
        )
        self._actions = Actions(driver)

    def _make(self, index: int) -> Path:
        self.made.append(Path(index))
        return self.made[-1]

    def tell(self, count: int) -> None:
        self._actions.carry_out(None, FanOut(PEER, count))  # type: ignore[arg-type]  # unused


def fan_out(*counts: int) -> list[Path]:
    """Tell these counts one after the other; return the paths."""
    world = World()
    for count in counts:
        world.tell(count)
    return world.paths.paths  # type: ignore[return-value]  # stands in


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 8), (2, 4), (2, 8), (4, 8)])
def test_a_path_is_held_behind_the_one_that_its_sockets_had(before: int, after: int) -> None:
    paths = fan_out(before, after)
    for port in range(2, 200):
        now = path_of_port(port, after)
        if now >= before:
            assert paths[now].behind == [None, path_of_port(port, before)]


@pytest.mark.parametrize("again", [2, 4])
def test_a_count_told_again_changes_nothing(again: int) -> None:
    assert [path.behind for path in fan_out(2, 4, again)] == [[], [None, 0], [None, 0], [None, 1]]


class Cut(Exception):
    """A fault within a fan-out."""


@pytest.mark.parametrize("calls", range(5))
def test_a_fan_out_that_was_cut_short_is_done_when_it_is_told_again(
    monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Wherever it was cut, each path is held behind the one before in the end."""
    left, hold_behind = [calls], Path.hold_behind

    def cut(path: Path, other: Path | None) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Cut
        hold_behind(path, other)

    world = World()
    world.tell(2)
    monkeypatch.setattr(Path, "hold_behind", cut)
    if calls < 4:
        with pytest.raises(Cut):
            world.tell(4)
        world.tell(4)
    else:
        world.tell(4)
    behind = [path.behind for path in world.made]
    assert [each[-1] for each in behind] == [0, 0, 1]
    assert len(behind[0]) == 2, "what was there before is left alone"
