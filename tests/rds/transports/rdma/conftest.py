"""A siege for each device, made at its first use; unknown peers leave after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rds.transports.rdma.hostile_peer import DEVICES, Siege


@pytest.fixture(scope="package", params=DEVICES)
def _standing_siege(request: pytest.FixtureRequest) -> Iterator[Siege]:
    made = Siege(request.param)
    yield made
    made.close()


@pytest.fixture
def siege(_standing_siege: Siege) -> Iterator[Siege]:
    """Give the siege; after the test the victim keeps nothing of unknown peers, others are well."""
    yield _standing_siege
    _standing_siege.dismiss()
    _standing_siege.others_are_well(1)
