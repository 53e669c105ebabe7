"""Fixtures: the world of the conformance suite, once per provider, and a place over shm0."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.conformance import ROWS, World
from tests.verbs.shm_world import Side, joined

_HAS_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Remember how the test itself went: one that failed has shown nothing, and said why."""
    report = yield
    if report.when == "call":
        item.stash[_HAS_PASSED] = report.passed
    return report


@pytest.fixture(params=ROWS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Yield a world; at its end the canaries are whole and what the test shows was seen."""
    made = World(request.param, tmp_path / "meet")
    try:
        yield made
        assert made.is_guarded(), "bytes outside a region have changed"
        if request.node.stash.get(_HAS_PASSED, False) and not made.has_refused:
            assert made.not_seen(*getattr(request.function, "shows", ())) == []
    finally:
        made.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return where devices of shm meet; nothing is there yet."""
    return tmp_path / "meet"


@pytest.fixture
def pair(place: Path) -> Iterator[tuple[Side, Side]]:
    """Yield two sides over shm, connected."""
    left, right = joined(place)
    yield left, right
    left.close()
    right.close()
