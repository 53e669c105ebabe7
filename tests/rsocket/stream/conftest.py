"""Each test of the stream core runs with Python's core and with the compiled one.

A test marked `reference` looks inside Python's. A librdmacm is emulated by Python's in both.
"""

import pytest

from tests.rsocket.stream import stream_pair
from tests.support.native_stream import make_native
from urds.rds.plane.choose import missing
from urds.rsocket.core.stream.core import StreamCore

CORES = {"python": StreamCore, "native": make_native}


@pytest.fixture(autouse=True, params=CORES)
def core_in_use(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sides made meanwhile use one of the cores."""
    if request.param == "native":
        if reason := missing():
            pytest.skip(f"no compiled core: {reason}")
        if request.node.get_closest_marker("reference"):
            pytest.skip("looks inside Python's core")
    monkeypatch.setattr(stream_pair, "make_core", CORES[request.param])
