"""Whatever happens to two nodes, once it stops they are joined by the right streams."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rds.control.proto_world import HIGH, LOW, MS, SECOND, Node, World, paths_match
from urds.rds.control.events import Release, RestartPeer

PATHS = st.sampled_from([1, 2, 8])
DISTURBANCES = st.lists(
    st.tuples(
        st.sampled_from(["want", "reset", "restart", "cut", "heal"]),
        st.booleans(),  # the lower node
        st.integers(0, 7),  # path
        st.integers(0, 40 * MS),  # time until the next
    ),
    max_size=30,
)


@given(DISTURBANCES, PATHS, PATHS, st.integers(0, 1000))
def test_paths_come_up_in_the_end(
    disturbances: list[tuple[str, bool, int, int]], npaths_low: int, npaths_high: int, seed: int
) -> None:
    """Restarts keep the node's number of paths; latency is 1 ms."""
    world = World()
    npaths = {LOW: npaths_low, HIGH: npaths_high}
    for generation, local in enumerate((LOW, HIGH), 1):
        Node(world, local, generation=generation, seed=seed, npaths=npaths[local])
    random = Random(seed)
    for what, lower, index, pause_ns in disturbances:
        local, peer = (LOW, HIGH) if lower else (HIGH, LOW)
        node = world.nodes[local]
        if what == "want":
            node.want(peer, index)
        elif what == "reset":
            node.reset(peer, index)
        elif what == "restart":
            node.crash()
            Node(world, local, generation=random.getrandbits(31) + 3, npaths=npaths[local])
        else:
            node.reachable = what == "heal"
        world.run(pause_ns)
    low, high = world.nodes[LOW], world.nodes[HIGH]
    low.reachable = high.reachable = True
    low.want(HIGH)
    world.run(10 * SECOND)
    assert paths_match(low, high)
    assert len(low.attached) == min(npaths_low, npaths_high)
    for node in (low, high):
        assert not any(end.waiting for end in node.attached.values()), "no path is held for ever"


@pytest.mark.parametrize("seed", range(5))
def test_no_release_before_the_restart_it_rests_on(seed: int) -> None:
    world, random = World(), Random(seed)
    low = Node(world, LOW, generation=1, npaths=4)
    high = Node(world, HIGH, generation=2, npaths=4)
    low.want(HIGH)
    world.run(SECOND)
    for generation in range(3, 8):
        low.log.clear()
        high.crash()
        high = Node(world, HIGH, generation=generation, npaths=4)
        world.run(random.randrange(2 * SECOND, 3 * SECOND))
        kinds = [type(action) for action in low.log]
        assert kinds.index(RestartPeer) < kinds.index(Release)
