"""A siege for each device, made when a test first asks for it; strangers leave after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rdma.hostile_peer import DEVICES, Siege


@pytest.fixture(scope="package", params=DEVICES)
def _standing_siege(request: pytest.FixtureRequest) -> Iterator[Siege]:
    made = Siege(request.param)
    yield made
    made.close()


@pytest.fixture
def siege(_standing_siege: Siege) -> Iterator[Siege]:
    """Give the siege; after the test the victim keeps nothing of strangers, others are well."""
    yield _standing_siege
    _standing_siege.dismiss()
    _standing_siege.others_are_well(1)
