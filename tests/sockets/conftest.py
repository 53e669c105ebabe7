"""Fixtures: a backend of its own for each test, and sockets that are closed at its end."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

import urds
from tests.sockets.hosts import host
from urds.backend import process
from urds.backend.inprocess import InProcess
from urds.settings import Settings

UseSettings = Callable[..., AbstractContextManager[InProcess]]
NewSocket = Callable[..., urds.Socket]


@contextmanager
def backend_with(**values: object) -> Iterator[InProcess]:
    """Give this process a fresh backend with these tunables, for a `with` block."""
    backend = InProcess(Settings.load({"drain_s": 0, **values}, environ={}))
    before = process.use(backend)
    try:
        yield backend
    finally:
        process.use(before)
        backend.close()


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
