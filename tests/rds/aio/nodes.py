"""Backends of one test, and host addresses that no other test run has."""

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support import backends
from urds import aio
from urds.rds.runtime.process import process

_hosts = itertools.count(random.Random(os.getpid()).randrange(1 << 16) << 6)


def fresh_host() -> str:
    """Return an address of 127/8."""
    number = next(_hosts) % (200 * 256 * 253)
    rest, last = divmod(number, 253)
    second, third = divmod(rest, 256)
    return f"127.{second + 20}.{third}.{last + 1}"


class Node:
    """A backend with addresses of its own."""

    def __init__(self, backend: backends.Backend) -> None:
        self.backend = backend

    async def bind(self, host: str | None = None) -> aio.Socket:
        before = process.use(self.backend)
        try:
            return await aio.bind((host or fresh_host(), 0))
        finally:
            process.use(before)


@contextmanager
def node() -> Iterator[Node]:
    """Make a node, closed at the end."""
    with backends.made(drain_s=0) as backend:
        yield Node(backend)
