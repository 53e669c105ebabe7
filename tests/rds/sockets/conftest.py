"""Fixtures: a backend of its own for each test, and sockets that are closed at its end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

import pytest

import urds
from tests.rds.sockets import hosts
from tests.rds.sockets.fake_backend import FakeBackend, FakeMailbox
from tests.rds.sockets.hosts import host
from tests.rds.sockets.over_nodes import reason_not_over_nodes
from tests.support import backends
from tests.support.carriers import carrier, pytest_generate_tests  # noqa: F401 - pytest's
from urds.rds.constants import SOL_RDS, SockOpt, Transport
from urds.rds.runtime.backend import Backend
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process

UseSettings = Callable[..., AbstractContextManager[InProcess]]
NewSocket = Callable[..., urds.Socket]


@contextmanager
def backend_with(**values: object) -> Iterator[InProcess]:
    """Give this process a fresh backend with these tunables, for a `with` block."""
    with backends.made(**{"drain_s": 0, **values}) as backend:
        before = process.use(backend)
        try:
            yield cast("InProcess", backend)
        finally:
            process.use(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot apply to sockets of a node."""
    for item in items if backends.IS_ATTACHED else ():
        if isinstance(item, pytest.Function) and ".sockets." in item.module.__name__:
            reason = reason_not_over_nodes(item.module.__name__, item.originalname)
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"over a node: {reason}"))


@pytest.fixture(autouse=True)
def fresh_addresses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test over nodes addresses of its own, in the constants of its module too."""
    backends.shift()
    for name, value in list(vars(request.module).items()) if backends.IS_ATTACHED else ():
        if (moved := hosts.shifted(value)) != value:
            monkeypatch.setattr(request.module, name, moved)


@pytest.fixture
def backend() -> Iterator[InProcess]:
    """Give a fresh backend with default settings."""
    with backend_with() as made:
        yield made


@pytest.fixture
def new_socket(backend: InProcess) -> Iterator[NewSocket]:
    """Make sockets, bound if a host number is given; all are closed at the end."""
    made: list[urds.Socket] = []

    def make(number: int | None = None, port: int = 0) -> urds.Socket:
        made.append(urds.Socket())
        if number is not None:
            made[-1].bind((host(number), port))
        return made[-1]

    yield make
    for sock in made:
        sock.close()


# -- over mailboxes that only record

FAKE_LOCAL = ("10.0.0.1", 4000)
FAKE_PEER = ("10.0.0.2", 5000)


def bound_over(transport: Transport | None) -> urds.Socket:
    """Return a socket bound to FAKE_LOCAL over a transport that is chosen before."""
    sock = urds.Socket()
    if transport is not None:
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(transport))
    sock.bind(FAKE_LOCAL)
    return sock


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    """Put a fake backend in place of the process's."""
    backend = FakeBackend()
    before = process.use(cast("Backend", backend))
    yield backend
    process.use(before)


@pytest.fixture
def over_rdma(fake: FakeBackend) -> Iterator[urds.Socket]:
    """Make a socket over RDMA, bound to FAKE_LOCAL."""
    with bound_over(Transport.IB) as made:
        yield made


@pytest.fixture
def box(over_rdma: urds.Socket, fake: FakeBackend) -> FakeMailbox:
    """Return the mailbox of `over_rdma`."""
    return fake.bound[-1]


@pytest.fixture
def over_tcp(fake: FakeBackend) -> Iterator[urds.Socket]:
    """Make a socket over TCP, bound to FAKE_LOCAL."""
    with bound_over(None) as made:
        yield made


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Have the process make its backend by itself, with tunables from the environment."""
    before = process.use(None)

    def configure(**tunables: float) -> None:
        for name, value in tunables.items():
            monkeypatch.setenv(f"URDS_{name.upper()}", str(value))

    yield configure
    made = process.use(before)
    if made is not None:
        made.close()


def has_thread() -> bool:
    """Tell whether this process has a control thread."""
    return any(thread.name == "urds-driver" for thread in threading.enumerate())
