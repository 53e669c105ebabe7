"""Rows of the tests of DAT: networks that scenes stand on, and devices by what opens them."""

from collections.abc import Iterator

import pytest

from tests.dat.devices import opening
from tests.dat.scene import ROWS, Scene


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of scenes in every row, or in those that it names."""
    if vars(metafunc.module).get("Scene") is Scene:
        named = metafunc.definition.get_closest_marker("rows")
        metafunc.parametrize("row", named.args if named else ROWS, indirect=True)


@pytest.fixture(autouse=True)
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have scenes stand on the networks of a row."""
    name: str = getattr(request, "param", ROWS[0])
    if name == "sim-native":
        pytest.importorskip("urds_native", reason="the compiled engine is not built")
    monkeypatch.setattr(Scene, "row", name)
    return name


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the name of a device that can be opened; a test gets it from `DEVICES`."""
    with opening(request.param) as name:
        yield name
