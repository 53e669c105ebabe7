"""Two queue pairs over a bad link: whatever the link does, each request happens once, in order."""

import pytest

from tests.sim.verbs_world import World
from urds.verbs.engine.numbers import Acceptance


@pytest.mark.sim
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("acceptance", list(Acceptance), ids=lambda value: value.name)
@pytest.mark.parametrize("seed", range(20))
def test_each_request_happens_once_and_in_order(
    seed: int, acceptance: Acceptance, shared: bool
) -> None:
    """Loses, repeats and reorders packets for a while, then lets the link heal."""
    World(seed, acceptance, shared=shared, lossless=False).run()


@pytest.mark.sim
@pytest.mark.parametrize("acceptance", list(Acceptance), ids=lambda value: value.name)
@pytest.mark.parametrize("seed", range(10))
def test_a_link_without_loss_needs_no_timer(seed: int, acceptance: Acceptance) -> None:
    """The only repeats are those that a missing receive asks for."""
    World(seed, acceptance, shared=True, lossless=True).run()
