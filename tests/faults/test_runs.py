"""The fault runs in small, over real TCP between processes; `make faults` has them in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import SystemRandom

import pytest

from tests.faults.scale import SHORT
from tests.faults.scenarios import SCENARIOS, run_scenario
from tests.faults.verdict import Outcome
from tests.support import places
from tests.support.places import Loopback, Namespaces

ATTEMPTS_MAX = 5  # of a broken rule: where a cut falls is the machine's choice
ENLARGED_MAX = 3  # times that a run is made longer, on a machine that is through before a fault


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have tests run at each place of `TEST_PLACES`."""
    places.generate_tests(metafunc, "place")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Loopback | Namespaces]:
    with places.taken(request) as taken:
        yield taken


def run(
    name: str, place: Loopback | Namespaces, *, broken_rule: str = "", stall_s: float = 40.0
) -> Outcome:
    """Run one scenario with a seed at random, and print it; longer if nothing was broken."""
    scale, seed = replace(SHORT, stall_s=stall_s), SystemRandom().randrange(1 << 32)
    for _ in range(1 + ENLARGED_MAX):
        print(f"{name}: seed {seed}, {scale.messages} messages")
        outcome = run_scenario(name, place, scale, seed=seed, broken_rule=broken_rule)
        print(outcome)
        if outcome.faults or not outcome.is_good:
            break
        scale = replace(scale, messages=4 * scale.messages)
    return outcome


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_message_comes_once_and_in_order(name: str, place: Loopback | Namespaces) -> None:
    if reason := SCENARIOS[name].missing():
        pytest.skip(reason)
    outcome = run(name, place)
    assert outcome.is_good, outcome
    assert outcome.faults > 0, "nothing was broken: the run was too short to show anything"
    if name == "told":
        assert outcome.gave_up > 0
    if name == "slow-receiver":
        assert outcome.notes["refused_of_slow"] > 0
        assert outcome.notes["refused_of_others"] == 0


@pytest.mark.parametrize("name", ["half-open", "partitions"])
def test_the_kernel_breaks_the_link_of_two_namespaces(name: str) -> None:
    if reason := places.missing() or SCENARIOS[name].missing():
        pytest.skip(reason)
    namespaces = places.take("netns6")
    try:
        outcome = run(name, namespaces)
    finally:
        namespaces.close()
    assert outcome.is_good, outcome
    assert outcome.faults > 0


@pytest.mark.reference
@pytest.mark.parametrize(
    ("broken_rule", "wrong"),
    [("retransmits keep their order", "lost"), ("a retransmit keeps its number", "duplicated")],
)
def test_a_plane_that_breaks_a_rule_is_seen(
    broken_rule: str, wrong: str, place: Loopback | Namespaces
) -> None:
    outcomes = (
        run("resets", place, broken_rule=broken_rule, stall_s=3.0) for _ in range(ATTEMPTS_MAX)
    )
    assert any(getattr(outcome, wrong) and not outcome.is_good for outcome in outcomes)
