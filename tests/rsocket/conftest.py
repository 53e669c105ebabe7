"""Fixtures of sockets over devices: a module's `OVER` says which ones its tests run over."""

from collections.abc import Iterator

import pytest

from tests.rsocket.socket_pairs import Pair, pair_over, using


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have the fixture `device` be each of the module's devices."""
    if "device" in metafunc.fixturenames and hasattr(metafunc.module, "OVER"):
        metafunc.parametrize("device", metafunc.module.OVER, indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have sockets made meanwhile use these devices."""
    with using(request.param):
        yield request.param


@pytest.fixture
def pair(device: str) -> Iterator[Pair]:
    """Yield a listener, a socket connected to it, and the one it accepted."""
    with pair_over(device) as made:
        yield made
