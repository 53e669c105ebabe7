"""A world per test and plane; every descriptor of it is closed."""

from collections.abc import Callable, Iterator

import pytest

from tests.parity.planes import RealWorld, World
from tests.support import planes
from urds.rds.plane.contract import Limits, Plane


@pytest.fixture(params=planes.parameters())
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


@pytest.fixture
def real(make_plane: Callable[..., Plane]) -> Iterator[RealWorld]:
    """Return a world around a plane with the system's clock and a helper."""
    made = RealWorld(make_plane)
    yield made
    made.close()
