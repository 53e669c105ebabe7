"""Two queue pairs over a bad link: whatever the link does, each request happens once, in order."""

import pytest

from tests.sim.verbs_reads import World as Reads
from tests.sim.verbs_world import World
from urds.verbs.engine.numbers import ReceiveOrder


@pytest.mark.sim
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("receive_order", list(ReceiveOrder), ids=lambda value: value.name)
@pytest.mark.parametrize("seed", range(20))
def test_each_request_happens_once_and_in_order(
    seed: int, receive_order: ReceiveOrder, shared: bool
) -> None:
    """Loses, repeats and reorders packets for a while, then lets the link heal."""
    World(seed, receive_order, shared=shared, lossless=False).run()


@pytest.mark.sim
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("seed", range(20))
def test_a_responder_knows_what_infinibands_headers_do_not_say(seed: int, shared: bool) -> None:
    order = ReceiveOrder.IN_ORDER
    World(seed, order, shared=shared, lossless=False, names_places=False).run()


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(20))
def test_a_peer_that_remembers_requests_answers_every_repeat(seed: int) -> None:
    Reads(seed).run()


@pytest.mark.sim
@pytest.mark.parametrize("receive_order", list(ReceiveOrder), ids=lambda value: value.name)
@pytest.mark.parametrize("seed", range(10))
def test_a_link_without_loss_needs_no_timer(seed: int, receive_order: ReceiveOrder) -> None:
    """The only repeats are those that a missing receive asks for."""
    World(seed, receive_order, shared=True, lossless=True).run()
