"""In which order the messages of paths that close move, so that no socket overtakes itself."""

from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import Any

import pytest

from urds.rds.control.events import FanIn, FanOut
from urds.rds.control.paths import path_of_port
from urds.rds.runtime.actions import Actions
from urds.rds.runtime.local_addresses import PeerPaths

PEER = IPv4Address("127.0.0.2")
PORTS = range(2, 200)


class World:
    """Stands in for a driver and its plane: what they were told, in order."""

    def __init__(self, npaths: int) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.mailboxes: set[Any] = {Mailbox(port) for port in PORTS}
        self.paths = PeerPaths([Path(self, index) for index in range(npaths)], npaths)  # type: ignore[misc]  # stand in
        self.paths.mailboxes = self.mailboxes
        driver: Any = SimpleNamespace(
            log=SimpleNamespace(part=lambda name: None),
            paths=SimpleNamespace(
                to=lambda host, peer: self.paths,
                forget=lambda path: self.told.append(("forget", path.index)),
            ),
            plane=SimpleNamespace(move_queue=self._move_queue),
        )
        self._actions = Actions(driver)

    def _move_queue(self, path: Any, other: Any, mailboxes: list[Any]) -> None:
        self.told.append(("move", path.index, other.index))
        for mailbox in mailboxes:
            assert mailbox.index is None, "moved twice"
            mailbox.index = other.index

    def tell(self, action: FanIn | FanOut) -> None:
        self._actions.carry_out(None, action)  # type: ignore[arg-type]  # unused


class Mailbox:
    """Stands in for a mailbox: the path that it was moved to."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.index: int | None = None


class Path:
    """Stands in for a path."""

    def __init__(self, world: World, index: int) -> None:
        self.index = index
        self._told = world.told

    def hold_behind(self, other: "Path | None") -> None:
        assert other is None
        self._told.append(("hold", self.index))

    def drop_queue(self) -> None:
        self._told.append(("drop", self.index))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (8, 1), (4, 2), (8, 2), (8, 4)])
def test_each_socket_moves_to_the_path_that_it_has_from_now_on(before: int, after: int) -> None:
    world = World(before)
    world.tell(FanIn(PEER, after))
    for mailbox in world.mailboxes:
        moved = path_of_port(mailbox.port, before) >= after
        assert mailbox.index == (path_of_port(mailbox.port, after) if moved else None)
    assert world.paths.npaths == len(world.paths.paths) == after


def test_all_are_held_first_then_the_oldest_moves_first_and_what_was_sent_is_dropped_last() -> None:
    """Path 6 may wait for what its sockets left on path 2: that has to be ahead of it."""
    world = World(8)
    world.tell(FanIn(PEER, 2))
    closing = range(2, 8)
    ends = [(what, index) for index in closing for what in ("drop", "forget")]
    moves = [("move", index, index & 1) for index in closing]
    assert world.told == [*(("hold", index) for index in closing), *moves, *ends]


@pytest.mark.parametrize("count", [2, 4])
def test_as_many_paths_as_before_or_more_change_nothing(count: int) -> None:
    world = World(2)
    world.tell(FanIn(PEER, count))
    assert world.told == []
    assert world.paths.npaths == 2
