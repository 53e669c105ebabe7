"""The fixture of the conformance suite: each test runs once per provider."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.conformance import ROWS, World

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
