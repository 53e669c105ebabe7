"""Every test of this folder marked `anyio` runs under asyncio and under trio."""

from collections.abc import Iterator

import pytest

from tests.rds.aio.nodes import Node, node
from tests.support.carriers import carrier, pytest_generate_tests  # noqa: F401 - pytest's


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    pytest.importorskip(name)  # trio is an extra
    return name


@pytest.fixture
def own() -> Iterator[Node]:
    """Make a backend of the test's own."""
    with node() as made:
        yield made


@pytest.fixture
def other() -> Iterator[Node]:
    """Make a second backend in this process: between the two there is a connection."""
    with node() as made:
        yield made
