"""Two urds nodes: which one connects, how they get acquainted, what a restart does."""

import pytest

from tests.rds.control.proto_world import (
    HIGH,
    LOW,
    MS,
    SECOND,
    End,
    Frame,
    Node,
    World,
    control,
    down,
    first_frame,
    of_own,
    paths_match,
    shake_hands,
)
from urds.rds.control.events import (
    Agree,
    Attach,
    Connect,
    Detach,
    FanIn,
    FanOut,
    Hold,
    PeerKind,
    PeerStartedAnew,
    ProbeDeadStream,
    Release,
    RequestCallBack,
    RestartPeer,
    SendControl,
)
from urds.rds.types import AckMode
from urds.rds.wire.extensions import emit_handshake, parse_handshake


def pair(npaths_low: int = 1, npaths_high: int = 1) -> tuple[World, Node, Node]:
    world = World()
    low = Node(world, LOW, generation=100, npaths=npaths_low)
    return world, low, Node(world, HIGH, generation=200, npaths=npaths_high)


def handshakes(node: Node) -> list:
    return [
        parse_handshake(action.extension)
        for action in node.seen(SendControl)
        if 1 in (action.source_port, action.target_port)
    ]


@pytest.mark.parametrize("npaths", [1, 2])
def test_a_stream_that_only_a_urds_node_has_begins_with_one_hello_of_each_side(npaths: int) -> None:
    """A probe would ask for what the hello tells, and cost a message and an answer more."""
    world = World(by_shared_memory=True)
    low = Node(world, LOW, generation=100, npaths=npaths)
    high = Node(world, HIGH, generation=200, npaths=npaths)
    low.want(HIGH)
    world.run(SECOND)
    assert paths_match(low, high)
    for node, generation in ((low, 100), (high, 200)):
        assert [attach.probe for attach in node.seen(Attach)] == [None] * npaths
        assert [hello.generation for hello in handshakes(node)] == [generation] * npaths


@pytest.mark.rule("wire-generation-stored")
@pytest.mark.parametrize("npaths", [1, 2, 4, 8])
@pytest.mark.parametrize("starter", ["low", "high"])
def test_whichever_side_starts_all_paths_come_up_between_own_nodes(
    starter: str, npaths: int
) -> None:
    world, low, high = pair(npaths, npaths)
    first, second = (low, high) if starter == "low" else (high, low)
    first.want(second.local)
    world.run(SECOND)
    assert paths_match(low, high)
    assert len(low.attached) == npaths
    assert low.to(HIGH).facts.kind is high.to(LOW).facts.kind is PeerKind.URDS
    assert (low.to(HIGH).facts.generation, high.to(LOW).facts.generation) == (200, 100)
    assert not high.seen(Connect)
    assert not low.seen(RequestCallBack)
    assert not low.seen(RestartPeer) + high.seen(RestartPeer)


@pytest.mark.rule("wire-mprds-minimum", "wire-mprds-agree")
def test_the_smaller_number_of_paths_counts() -> None:
    world, low, high = pair(8, 2)
    low.want(HIGH)
    world.run(SECOND)
    assert [action.count for action in low.seen(FanOut) + high.seen(FanOut)] == [2, 2]
    assert paths_match(low, high)


@pytest.mark.rule("wire-negotiation")
def test_both_agree_on_acknowledgements_of_the_peer() -> None:
    world, low, high = pair()
    low.want(HIGH)
    world.run(SECOND)
    for node, peer in ((low, HIGH), (high, LOW)):
        assert node.seen(Agree) == [Agree(peer, AckMode.PEER_ACKNOWLEDGED, True)]


def test_no_generation_goes_to_a_peer_that_is_not_known_to_be_ours() -> None:
    world, low, high = pair(2, 2)
    low.want(HIGH)
    world.run(SECOND)
    for node in (low, high):
        led = [action.probe for action in node.seen(Attach) if action.probe]
        sent = [action.extension for action in node.seen(SendControl) if action.source_port == 1]
        probe = parse_handshake([*led, *sent][0])
        assert probe.generation is None
        assert probe.npaths == 2
        assert not probe.sport_index, "the mark implies it"


@pytest.mark.rule("wire-generation-probe")
@pytest.mark.parametrize("npaths", [1, 4])
def test_a_known_own_node_is_held_until_the_hellos_are_exchanged(npaths: int) -> None:
    world, low, high = pair(npaths, npaths)
    low.want(HIGH)
    world.run(SECOND)
    low.log.clear()
    high.log.clear()
    low.reset(HIGH)
    world.run(SECOND)
    for node in (low, high):
        assert [action.hold for action in node.seen(Attach)] == [Hold.HELLO]
        assert len(node.seen(Release)) == 1
        (hello,) = node.seen(SendControl)  # hellos that cross answer each other
        assert hello.hello
        assert parse_handshake(hello.extension).generation == (100 if node is low else 200)
    assert paths_match(low, high)


@pytest.mark.rule("wire-generation-restart", "wire-generation-stored")
@pytest.mark.parametrize("npaths", [1, 4])
@pytest.mark.parametrize("who", ["low", "high"])
def test_a_restart_is_told_before_anything_is_released(who: str, npaths: int) -> None:
    world, low, high = pair(npaths, npaths)
    low.want(HIGH)
    world.run(SECOND)
    old, survivor = (low, high) if who == "low" else (high, low)
    survivor.log.clear()
    old.crash()
    new = Node(world, old.local, generation=300, npaths=npaths)
    world.run(3 * SECOND)
    assert paths_match(new, survivor)
    assert len(new.attached) == npaths
    kinds = [type(action) for action in survivor.log]
    assert kinds.count(RestartPeer) == 1
    assert kinds.index(RestartPeer) < kinds.index(Release)
    assert survivor.seen(PeerStartedAnew) == [PeerStartedAnew(old.local)]
    assert survivor.to(old.local).facts.generation == 300
    assert not new.seen(RestartPeer)


@pytest.mark.parametrize("has_asked", [True, False], ids=["after its probe", "after its map"])
@pytest.mark.parametrize("generation", [100, 300], ids=["the same", "another"])
def test_a_peer_that_ended_before_it_answered_is_known_by_its_map(
    generation: int, has_asked: bool
) -> None:
    """Messages go out behind a first map: a restart is not handed again what was handed to it."""
    _, _, high = pair()
    core = high.to(LOW)
    core.handle_accepted(1, 40000, 0)
    core.handle_first_frame(0, 1, 0, generation=100)
    if has_asked:
        shake_hands(core, of_own(None), ping=True)
    down(core, 0, 2, 0)
    core.handle_accepted(2, 40008, 0)
    core.handle_first_frame(0, 2, 0, generation=generation)
    shake_hands(core, of_own(generation), ping=True)
    actions = list(iter(high.endpoint.poll_event, None))
    assert [one.hold for one in actions if isinstance(one, Attach)][1] is Hold.HELLO
    kinds = [type(action) for action in actions]
    restarts = [RestartPeer] * (generation != 100)
    assert [kind for kind in kinds if kind in (RestartPeer, Release)] == [*restarts, Release]
    assert core.facts.generation == generation


@pytest.mark.parametrize("npaths", [1, 2])
def test_a_peer_that_ended_behind_its_first_map_is_known_when_it_is_back(
    npaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its handshakes had come, and what is new does not know this node."""
    world, low, high = pair(npaths, npaths)
    take, ended = high._take, []

    def take_map_alone(end: End, frame: Frame) -> None:
        if end in ended or (not ended and frame.source_port is not None):
            return
        take(end, frame)
        if not ended and end.index is not None:
            ended.append(end)
            low.crash()
            Node(world, LOW, generation=300, npaths=npaths)
            high.log.clear()
            world.after(5 * MS, lambda: high.want(LOW))

    monkeypatch.setattr(high, "_take", take_map_alone)
    high.want(LOW)
    world.run(900 * MS)  # and not for want of an answer
    kinds = [type(action) for action in high.log]
    assert kinds.count(RestartPeer) == 1
    assert kinds.index(RestartPeer) < kinds.index(Release)
    assert high.to(LOW).facts.generation == 300
    assert high.endpoint.stats.handshake_timeouts == 0


@pytest.mark.parametrize("npaths", [1, 8])
def test_a_peer_with_one_path_may_come_from_any_port(npaths: int) -> None:
    """Something between that changes ports must not keep it out. One with more has to be placed."""
    _, _, high = pair()
    core = high.to(LOW)
    core.handle_accepted(1, 40001, 0)
    core.handle_first_frame(0, 1, 0, generation=100)
    shake_hands(core, of_own(100, npaths), ping=True)
    kinds = [type(action) for action in iter(high.endpoint.poll_event, None)]
    assert (Detach in kinds, Release in kinds) == (npaths > 1, npaths == 1)


def test_a_survivor_calls_a_restarted_peer_that_wants_nothing() -> None:
    """What waits at the survivor would wait for ever if only the lower side called."""
    world, low, high = pair()
    low.want(HIGH)
    world.run(SECOND)
    low.crash()
    world.run(30 * SECOND)
    new = Node(world, LOW, generation=300)
    world.run(60 * SECOND)
    assert paths_match(new, high)


@pytest.mark.parametrize(("before", "after"), [(8, 2), (8, 1), (2, 8), (1, 4)])
@pytest.mark.parametrize("who", ["low", "high"])
def test_a_new_life_may_have_another_number_of_paths(who: str, before: int, after: int) -> None:
    world, low, high = pair(8, 8)
    old, survivor = (low, high) if who == "low" else (high, low)
    Node(world, old.local, generation=100, npaths=before)
    old = world.nodes[old.local]
    old.want(survivor.local)
    world.run(SECOND)
    assert len(survivor.attached) == before
    old.crash()
    new = Node(world, old.local, generation=300, npaths=after)
    new.want(survivor.local)
    world.run(3 * SECOND)
    assert paths_match(new, survivor)
    assert survivor.to(new.local).npaths == len(survivor.attached) == after
    assert bool(survivor.seen(FanIn)) == (after < before)
    stats = survivor.to(new.local).stats
    assert (stats.fan_outs, stats.fan_ins) == ((before > 1) + (after > before), after < before)


def test_paths_connect_only_after_path_0_is_confirmed_again() -> None:
    world, low, high = pair(4, 4)
    low.want(HIGH)
    world.run(SECOND)
    low.log.clear()
    high.crash()
    new = Node(world, HIGH, generation=300, npaths=4)
    world.run(SECOND)
    order = [
        (type(action), action.index) for action in low.log if isinstance(action, Connect | Release)
    ]
    assert order.index((Release, 0)) < min(order.index((Connect, index)) for index in (1, 2, 3))
    assert not new.seen(Detach)
    assert paths_match(low, new)


def test_a_stream_that_follows_a_misplaced_one_waits_for_its_own_hello() -> None:
    """What path 3 has received says nothing of path 0, whose stream came meanwhile."""
    _, _, high = pair()
    core = high.to(LOW)
    core.handle_accepted(1, 40003, 0)
    core.handle_first_frame(0, 1, 0, generation=100)
    core.handle_accepted(2, 40000, 1)
    hello = emit_handshake(of_own(100, 4))
    control(core, 0, acknowledgement=777, source_port=1, target_port=0, extension=hello, now_ns=2)
    actions = list(iter(high.endpoint.poll_event, None))
    assert [one.stream for one in actions if isinstance(one, Attach)] == [1, 2]
    assert not [one for one in actions if isinstance(one, Release)]


def test_a_stream_of_another_path_does_not_stay_on_path_0() -> None:
    """The peer's host died without a word; path 1 notices first and calls its successor."""
    world, low, high = pair(2, 2)
    low.want(HIGH)
    world.run(SECOND)
    high.alive = False
    for end in high.attached.values():
        end.open = False
    new = Node(world, HIGH, generation=300, npaths=2)
    low.reset(HIGH, 1)
    world.run(SECOND)
    assert new.endpoint.stats.misplaced == 1
    assert new.seen(Attach)[0].hold is Hold.HELLO, "nothing was sent on the wrong path"
    low.reset(HIGH, 0)
    world.run(3 * SECOND)
    assert paths_match(low, new)
    assert len(low.attached) == 2


@pytest.mark.parametrize("npaths", [1, 2])
@pytest.mark.parametrize("is_met", [False, True])
@pytest.mark.parametrize("first", [3, 5])
def test_a_stream_of_a_path_that_is_not_there_stays_on_none(
    npaths: int, first: int, is_met: bool
) -> None:
    """The peer's host died without a word, and its successor has fewer paths.

    `is_met`: that knows already that the peer is a urds node.
    """
    world, low, high = pair(8, 8)
    low.want(HIGH)
    world.run(SECOND)
    high.alive = False
    for end in high.attached.values():
        end.open = False
    new = Node(world, HIGH, generation=300, npaths=npaths)
    if is_met:
        low.reset(HIGH, 0)
        world.run(SECOND)
        new.reset(LOW, 0)
    low.reset(HIGH, first)
    world.run(SECOND)
    assert paths_match(low, new), "`Node` looks at each release"
    assert len(low.attached) == npaths
    assert not new.endpoint.stats.takeovers_refused


def test_streams_to_the_old_life_are_dropped_when_the_new_one_shows() -> None:
    """The peer's host died without a word; path 0 notices first."""
    world, low, high = pair(2, 2)
    low.want(HIGH)
    world.run(SECOND)
    high.alive = False
    for end in high.attached.values():
        end.open = False
    new = Node(world, HIGH, generation=300, npaths=2)
    low.log.clear()
    low.reset(HIGH, 0)
    world.run(SECOND)
    assert low.seen(Detach) == [Detach(HIGH, 1)]
    assert paths_match(low, new)
    assert len(low.attached) == 2


def test_a_new_lower_node_counts_the_paths_after_its_own_probe_is_answered() -> None:
    """The higher one greets the node it knew, whose number of paths may have been another."""
    world, low, high = pair(8, 8)
    low.want(HIGH)
    world.run(SECOND)
    low.reset(HIGH)
    world.run(SECOND)
    hello = [action for action in high.seen(SendControl) if action.source_port == 1][-1]
    fresh = Node(World(), LOW, generation=301, npaths=8)
    core = fresh.to(HIGH)
    core.handle_wanted(0, 0)
    core.handle_connected(0, 1, 0)
    first_frame(core, 0, 0)
    control(
        core,
        0,
        acknowledgement=0,
        source_port=1,
        target_port=0,
        extension=hello.extension,
        now_ns=0,
    )
    assert core.npaths == 1
    control(
        core,
        0,
        acknowledgement=0,
        source_port=0,
        target_port=1,
        extension=hello.extension,
        now_ns=0,
    )
    assert core.npaths == 8


def test_a_call_back_request_probes_a_path_that_seems_up() -> None:
    world, low, high = pair()
    low.want(HIGH)
    world.run(SECOND)
    end = high.attached.pop((LOW, 0))
    high.close(end, silent=True)
    down(high.to(LOW), 0, 1, world.now_ns)
    world.run(100 * MS)
    assert low.seen(ProbeDeadStream)


def test_a_duel_ends_with_one_stream() -> None:
    world, low, high = pair()
    low.want(HIGH)
    high.want(LOW)
    world.run(SECOND)
    assert paths_match(low, high)
    assert len(low.seen(Attach)) == len(high.seen(Attach)) == 1
