"""Hosts for the tests of shm streams: nodes and processes on addresses of a range of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.support import places, planes
from urds.rds.plane.choose import NATIVE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests in a run with the Python plane, which has no shm streams."""
    if planes.in_use() != NATIVE:
        skip = pytest.mark.skip(reason="shm streams are of the compiled plane: URDS_IMPL=native")
        for item in items:
            if "shm" in item.path.parts:
                item.add_marker(skip)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Give a test its addresses, and end what it started."""
    monkeypatch.setenv("URDS_SHARED_MEMORY", "1")
    with ExitStack() as ending:
        yield Lab(places.Loopback(), ending)
