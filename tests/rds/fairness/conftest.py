"""Both planes for what needs no network; addresses and nodes as the tests of TCP have them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from tests.rds.fairness.floods import Flooded
from tests.rds.transports.tcp.conftest import lab  # noqa: F401 - pytest's
from tests.support import planes
from tests.support.carriers import carrier, pytest_generate_tests  # noqa: F401 - pytest's
from urds.rds.plane.contract import Plane

MakeFlooded = Callable[..., Flooded]


@pytest.fixture(params=planes.parameters())
def make_plane(request: pytest.FixtureRequest) -> Callable[..., Plane]:
    """Return one plane after the other."""
    return request.param  # type: ignore[no-any-return]  # pytest's is Any


@pytest.fixture
def make_flooded(make_plane: Callable[..., Plane]) -> Iterator[MakeFlooded]:
    """Flood a plane with backlogs; it is closed at the end."""
    with ExitStack() as ending:

        def make(backlogs: Sequence[bytes], *, receive_bytes: int) -> Flooded:
            made = Flooded(make_plane, backlogs, receive_bytes=receive_bytes)
            ending.callback(made.close)
            return made

        yield make
