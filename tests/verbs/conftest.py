"""The fixture of the conformance suite: each test runs once per provider."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs.conformance import PROVIDERS, World


@pytest.fixture(params=PROVIDERS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Yield a world; at its end the canaries are whole and what the test shows was seen."""
    made = World(request.param, tmp_path / "meet")
    try:
        yield made
        assert made.is_guarded(), "octets outside a region have changed"
        if not made.has_refused:
            assert made.not_seen(*getattr(request.function, "shows", ())) == []
    finally:
        made.close()
