"""Two hosts with a link between them, IPv4 and IPv6; needs root."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import places
from tests.support.carriers import carrier, pytest_generate_tests  # noqa: F401 - pytest's
from tests.support.places import Namespaces

Say = Callable[[str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here: they have a command of their own."""
    for item in items:
        if "tests/namespaces/" in item.nodeid:
            item.add_marker("namespaces")


@pytest.fixture(params=["netns4", "netns6"])
def hosts(request: pytest.FixtureRequest) -> Iterator[Namespaces]:
    """Give two hosts, 0 on the left and 1 on the right, and end them."""
    if reason := places.missing():
        pytest.skip(reason)
    made = Namespaces(ipv6=request.param == "netns6")
    yield made
    made.close()


@pytest.fixture
def say(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Say:
    """Give what prints a line to who runs the tests, and keeps it in the report."""

    def print_line(text: str) -> None:
        request.node.user_properties.append(("said", text))
        with capsys.disabled():
            print(f"\n{request.node.name}: {text}", flush=True)

    return print_line
