"""Whatever happens to two nodes over RDMA, once it stops they are joined by one connection.

While it goes on, the world itself watches: never two connections of one peer, no acknowledgement
of what another generation sent, a restart told if and only if there is one.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.rds.transports.rdma_core.rdma_world import (
    HIGH,
    LOW,
    MS,
    SECOND,
    Node,
    World,
    are_joined,
    pair,
)
from urds.rds.control.rdma_events import Connect, PeerKey

DISTURBANCES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("want", "both", "send", "break", "half", "protocol_error", "fault"),
                *("restart", "reboot", "lose", "cut"),
            ]
        ),
        st.booleans(),  # the lower node
        st.integers(0, 40 * MS) | st.integers(0, 3 * SECOND),  # time until the next
    ),
    max_size=30,
)
SETTINGS = {"answer_wait_ns": 5 * SECOND}


def disturb(world: World, what: str, local: object, peer: object) -> None:
    """Do one thing to one of the two nodes."""
    node, other = world.nodes[local], world.nodes[peer]
    key = PeerKey(peer, 0)
    if what in ("want", "both"):
        node.want(peer)
        if what == "both":
            other.want(local)
    elif what == "send":
        node.send(key)
    elif what in ("break", "half"):
        node.break_connection(key, silent=what == "half")
    elif what == "protocol_error":
        node.protocol_error(key)
    elif what == "fault":
        node.endpoint.handle_fault(key, world.now_ns)
        node.act()
    elif what in ("restart", "reboot"):
        node.crash(silent=what == "reboot")
        generation = node.generation + 1
        Node(world, local, generation=generation, is_linux=node.is_linux, **SETTINGS)
    elif what == "lose":
        world.lost = 2
    else:
        node.is_reachable = not node.is_reachable


@given(DISTURBANCES, st.booleans(), st.booleans(), st.integers(0, 1000))
@example([("both", True, 0)], False, True, 0)
@example([("both", True, 0)], True, True, 0)
def test_one_connection_in_the_end(
    disturbances: list[tuple[str, bool, int]], is_linux: bool, by_lower: bool, seed: int
) -> None:
    world = World(seed)
    pair(world, is_linux=is_linux, **SETTINGS)
    for what, lower, pause_ns in disturbances:
        disturb(world, what, *((LOW, HIGH) if lower else (HIGH, LOW)))
        world.run(pause_ns)
    low, high = world.nodes[LOW], world.nodes[HIGH]
    low.is_reachable = high.is_reachable = True
    world.lost = 0
    one, other = (low, high) if by_lower else (high, low)
    one.want(other.local)
    world.run(20 * SECOND)
    assert are_joined(low, high)
    for node in (low, high):
        node.log.clear()
    world.run(120 * SECOND)
    assert low.log == high.log == [], "nothing moves any more"


@pytest.mark.parametrize("is_linux", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_duel_ends(seed: int, is_linux: bool) -> None:
    """Between urds nodes the lower one's first attempt wins; elsewhere chance parts the two."""
    world = World(seed)
    low, high = pair(world, is_linux=is_linux)
    low.want(HIGH)
    high.want(LOW)
    world.run(SECOND if is_linux else 20 * MS)
    assert are_joined(low, high)
    if not is_linux:
        (first,) = low.seen(Connect)
        assert low.attached[PeerKey(HIGH, 0)].number == first.number
        assert (low.stats.ups, high.stats.ups) == (1, 1)


def test_types_of_service_have_connections_of_their_own() -> None:
    world = World()
    low, high = pair(world)
    for tos in (0, 7, 255):
        (low if tos else high).want(HIGH if tos else LOW, tos)
    world.run(SECOND)
    assert all(are_joined(low, high, tos) for tos in (0, 7, 255))


@given(DISTURBANCES, st.integers(0, 1000))
def test_a_connection_to_ourselves_comes_up_in_the_end(
    disturbances: list[tuple[str, bool, int]], seed: int
) -> None:
    """The disturbances of two nodes, as far as they make sense for one."""
    world = World(seed)
    node = Node(world, LOW, generation=1, **SETTINGS)
    for what, is_passive, pause_ns in disturbances:
        key = PeerKey(LOW, 0, is_passive)
        if what in ("want", "both"):
            node.want(LOW)
        elif what in ("break", "half"):
            node.break_connection(key, silent=what == "half")
        elif what == "protocol_error":
            node.protocol_error(key)
        elif what == "send":
            node.send(key)
        elif what == "lose":
            world.lost = 2
        world.run(pause_ns)
    world.lost = 0
    node.want(LOW)
    world.run(20 * SECOND)
    active, passive = (node.attached[PeerKey(LOW, 0, passive)] for passive in (False, True))
    assert active.twin is passive and passive.twin is active
