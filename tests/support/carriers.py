"""What carries the messages of a test: TCP, a shm stream, or RDMA on a device.

A test marked `each_carrier` runs once over each; `each_carrier("shm0")` leaves the other device to
`TEST_CARRIERS=all`, for a test that takes long and adds little there. The choice is made as a user
makes it, by environment: processes that a test starts inherit it, and backends that are made by
hand take it from `chosen`. Shm streams need the compiled plane. In a module so marked,
`each_carrier(False)` takes out a test that is the same over each; `tcp_only` and its reason skip
one that applies to TCP alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.support import places, planes
from urds.rds.constants import Transport
from urds.rds.plane.choose import NATIVE

TCP: Final = "tcp"
SHM: Final = "shm"
CARRIERS: Final[Mapping[str, Mapping[str, str]]] = {
    TCP: {"URDS_TRANSPORT": "tcp", "URDS_SHARED_MEMORY": "0"},
    SHM: {"URDS_TRANSPORT": "tcp", "URDS_SHARED_MEMORY": "1"},
    "shm0": {"URDS_TRANSPORT": "ib", "URDS_RDMA_DEVICES": "shm0"},
    "tcp0": {"URDS_TRANSPORT": "ib", "URDS_RDMA_DEVICES": "tcp0"},
}
RDMA_DEVICES: Final = tuple(name for name in CARRIERS if name not in {TCP, SHM})
IS_ATTACHED: Final = os.environ.get("TEST_BACKEND") == "attached"  # see `backends`
_TAKES_ALL: Final = os.environ.get("TEST_CARRIERS") == "all"
_VARIABLES: Final = ("URDS_TRANSPORT", "URDS_RDMA_DEVICES", "URDS_SHARED_MEMORY")


def chosen() -> dict[str, str]:
    """Return the variables that choose the carrier of this process."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def is_rdma() -> bool:
    """Tell whether the sockets of this process send over RDMA."""
    return chosen().get("URDS_TRANSPORT") == "ib"


def transport() -> Transport:
    """Return what a bind attaches in this process."""
    return Transport.IB if is_rdma() else Transport.TCP


def here() -> list[str]:
    """Return the carriers of this run; shm needs the compiled plane and both ends on one host.

    Sockets of a node are over TCP.
    """
    has_shm = planes.in_use() == NATIVE and places.is_loopback()
    has_rdma = not IS_ATTACHED
    left_out = {*(() if has_shm else (SHM,)), *(() if has_rdma else RDMA_DEVICES)}
    return [name for name in CARRIERS if name not in left_out]


def control_counter(name: str) -> str:
    """Return what a counter of the control cores is called."""
    return f"rdma_{name}" if is_rdma() else name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have a test that is marked `each_carrier` run over each carrier."""
    mark = metafunc.definition.get_closest_marker("each_carrier")
    if mark is not None and mark.args != (False,):
        devices = mark.args if mark.args and not _TAKES_ALL else RDMA_DEVICES
        if not places.is_loopback():  # shared memory reaches no other host
            devices = ("tcp0",)
        names = [name for name in here() if name not in RDMA_DEVICES or name in devices]
        given = [pytest.param(one, marks=_marks(metafunc, one)) for one in names]
        metafunc.parametrize("carrier", given, indirect=True)


def _marks(metafunc: pytest.Metafunc, carrier: str) -> list[pytest.MarkDecorator]:
    tcp_only = metafunc.definition.get_closest_marker("tcp_only")
    if carrier != TCP and tcp_only is not None:
        return [pytest.mark.skip(reason=tcp_only.args[0])]
    return []


@pytest.fixture(autouse=True)
def carrier(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str | None]:
    """Choose the carrier of a test marked `each_carrier`; None leaves it to the environment."""
    name: str | None = getattr(request, "param", None)
    for variable in _VARIABLES if name else ():
        monkeypatch.delenv(variable, raising=False)
    for variable, value in (CARRIERS[name] if name else {}).items():
        monkeypatch.setenv(variable, value)
    return name
