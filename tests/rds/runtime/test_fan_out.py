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


def fan_out(*counts: int) -> list[Path]:
    """Tell these counts one after the other; return the paths."""
    paths = PeerPaths([Path(0)])  # type: ignore[list-item]  # stands in
    driver: Any = SimpleNamespace(
        log=SimpleNamespace(part=lambda name: None),
        paths=SimpleNamespace(
            to=lambda host, peer: paths, make=lambda host, peer, index: Path(index)
        ),
    )
    for count in counts:
        Actions(driver).carry_out(None, FanOut(PEER, count))  # type: ignore[arg-type]  # unused
    return paths.paths  # type: ignore[return-value]  # stands in


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 8), (2, 4), (2, 8), (4, 8)])
def test_a_path_is_held_behind_the_one_that_its_sockets_had(before: int, after: int) -> None:
    paths = fan_out(before, after)
    for port in range(2, 200):
        now = path_of_port(port, after)
        if now >= before:
            assert paths[now].behind == [None, path_of_port(port, before)]


def test_the_same_count_told_again_holds_all_again() -> None:
    """A fault may have left them held for good."""
    assert [path.behind for path in fan_out(4, 4)] == [[], *[[None, 0, None, 0]] * 3]
