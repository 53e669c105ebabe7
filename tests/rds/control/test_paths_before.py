"""Several paths, where an earlier process of the same generation had them: a node's next worker."""

import pytest

from tests.rds.control.proto_world import HIGH, LOW, MS, SECOND, Node, World, paths_match
from urds.rds.control.events import Action, Attach, Connect, FanIn, FanOut, Hold, Refuse, Refused
from urds.rds.control.paths import SourcePortRule

PATHS = 4
GENERATIONS = {LOW: 100, HIGH: 200}


def node(world: World, local: object, npaths: int = PATHS, **more: object) -> Node:
    return Node(world, local, generation=GENERATIONS[local], npaths=npaths, **more)


def met(*, by_shared_memory: bool) -> tuple[World, Node, Node]:
    """Have two nodes connected over all paths."""
    world = World(by_shared_memory=by_shared_memory)
    low, high = node(world, LOW), node(world, HIGH)
    low.want(HIGH)
    world.run(SECOND)
    assert paths_match(low, high)
    return world, low, high


def accept(high: Node, index: int) -> list[Action]:
    """Have a stream for a path come, over shared memory; return what is done with it."""
    high.log.clear()
    end = high.new_end(40_000 + index)
    high.endpoint.handle_accepted(end.number, LOW, end.source_port, high.world.now_ns, is_urds=True)
    while (action := high.endpoint.poll_event()) is not None:
        high.log.append(action)
    return high.log


@pytest.mark.parametrize("npaths", [1, PATHS])
def test_a_stream_of_a_path_that_is_not_there_is_refused(npaths: int) -> None:
    """The hello on it would have the numbers of path 0: messages would come twice, or never."""
    found = accept(node(World(), HIGH, npaths), 2)
    assert [type(one) for one in found] == [Refuse], "it is no fault: no notice of it"


def test_it_waits_where_path_0_is_asked_for_the_count() -> None:
    high = node(World(), HIGH)
    assert [one.index for one in accept(high, 0) if isinstance(one, Attach)] == [0]
    assert accept(high, 2) == []


def test_a_stream_takes_the_path_of_its_port_before_the_peer_is_known() -> None:
    high = node(World(), HIGH, npaths_before=PATHS)
    assert accept(high, 2)[:2] == [FanOut(LOW, PATHS), Attach(LOW, 2, 1, Hold.HELLO)]
    assert accept(high, 0)[0] == Attach(LOW, 0, 2, Hold.HELLO)
    assert accept(high, 5) == [], "the handshake tells whether there are more"


def test_the_paths_of_before_are_there_with_the_first_message() -> None:
    low = node(World(), LOW, npaths_before=PATHS)
    core = low.to(HIGH)
    core.handle_wanted(2, SECOND)
    found = [low.endpoint.poll_event() for _ in range(3)]
    # A peer that has restarted must see path 0 first.
    assert found == [FanOut(HIGH, PATHS), Connect(HIGH, 0, SourcePortRule(0, 1)), None]


@pytest.mark.parametrize("by_shared_memory", [False, True])
@pytest.mark.parametrize("first", range(PATHS))
@pytest.mark.parametrize(("npaths", "npaths_before"), [(PATHS, 1), (PATHS, PATHS), (1, PATHS)])
def test_no_message_goes_over_the_path_of_other_numbers(
    npaths: int, npaths_before: int, first: int, by_shared_memory: bool
) -> None:
    """A worker ends, and the first path to lose its stream is any; `Node` looks at each release."""
    world, low, high = met(by_shared_memory=by_shared_memory)
    ended, world.nodes[HIGH] = high, node(world, HIGH, npaths, npaths_before=npaths_before)
    ended.alive = False
    for index in (first, *(one for one in range(PATHS) if one != first)):
        low.reset(HIGH, index)
        world.run(5 * MS)
    world.run(10 * SECOND)
    assert paths_match(low, world.nodes[HIGH])
    assert len(low.attached) == PATHS


@pytest.mark.parametrize("by_shared_memory", [False, True])
def test_both_may_be_replaced(by_shared_memory: bool) -> None:
    world, low, high = met(by_shared_memory=by_shared_memory)
    low.crash()
    high.crash()
    low, high = (node(world, one, 1, npaths_before=PATHS) for one in (LOW, HIGH))
    high.to(LOW).handle_was_connected(world.now_ns)
    low.to(HIGH).handle_was_connected(world.now_ns)
    world.run(SECOND)
    assert paths_match(low, high)
    assert len(low.attached) == PATHS, "a setting that is less has to wait for the next generation"
    assert low.seen(FanOut) == [FanOut(HIGH, PATHS)]
    assert not low.seen(FanIn) + high.seen(FanIn) + low.seen(Refused) + high.seen(Refused)


def test_a_peer_that_restarted_with_fewer_has_the_others_closed() -> None:
    world, low, high = met(by_shared_memory=True)
    low.crash()
    high.crash()
    low = node(world, LOW, npaths_before=PATHS)
    high = Node(world, HIGH, generation=201, npaths=2)
    low.to(HIGH).handle_was_connected(world.now_ns)
    world.run(SECOND)
    assert paths_match(low, high)
    assert low.seen(FanIn) == [FanIn(HIGH, 2)]
