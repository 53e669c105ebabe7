"""A world per test and plane; every descriptor of it is closed."""

from collections.abc import Callable, Iterator

import pytest

from tests.parity.planes import PLANES, World
from urds.dataplane.base import Limits, Plane


@pytest.fixture(params=PLANES.values(), ids=PLANES.keys())
def make_plane(request: pytest.FixtureRequest) -> Callable[..., Plane]:
    """Return one plane after the other."""
    return request.param


@pytest.fixture
def limits() -> Limits:
    """Return the bounds of the world; a test module overrides it."""
    return Limits()


@pytest.fixture
def world(make_plane: Callable[..., Plane], limits: Limits) -> Iterator[World]:
    """Return a world around a plane whose clock the test moves."""
    made = World(make_plane, limits)
    yield made
    made.close()
