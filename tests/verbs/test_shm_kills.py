"""Peers over `shm0` that are killed at random points: see `shm_kills`, which kills more by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs.shm_kills import ROLES, Nursery, Survivor, descriptor_count

KILLS = 20  # of which one role in turn


@pytest.fixture
def survivor(tmp_path: Path) -> Iterator[Survivor]:
    nursery = Nursery()
    survivor = Survivor(nursery, tmp_path / "meet", seed=7)
    yield survivor
    survivor.close()
    nursery.close()


@pytest.mark.timeout(240)
def test_a_survivor_reads_what_was_sent_and_keeps_its_memory(survivor: Survivor) -> None:
    roles = list(ROLES)
    for role in roles:
        survivor.lose_peer(role)
    before = descriptor_count()
    for number in range(len(roles), KILLS):
        survivor.lose_peer(roles[number % len(roles)])
    assert {role: survivor.counts[role] for role in roles} == dict.fromkeys(roles, KILLS // 4)
    assert survivor.counts["messages"] > KILLS
    assert descriptor_count() <= before
    assert len(survivor.side.adapter.peers) == 0
