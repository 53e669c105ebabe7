"""The connection manager's core: both sides agree, whatever the wire does."""

import errno
from dataclasses import replace
from random import Random

import pytest

from tests.verbs.cm.cm_world import LIVENESS_NS, PORT, TCP, UDP, World
from urds.verbs.cm.core import CmCore
from urds.verbs.cm.messages import CmMessage, CmMessageKind, Offer, RejectReason
from urds.verbs.cm.records import CmEventKind, CmSettings, CmState

SECOND = 1_000_000_000
ESTABLISHED, REQUEST = CmEventKind.ESTABLISHED, CmEventKind.REQUEST
INFINIBAND = CmSettings(names_context=False, alive_idle_ns=None)


def connected(**changes: object) -> World:
    world = World(**changes)  # type: ignore[arg-type]  # keywords of any kind
    world.listen()
    world.connect(private_data=b"hello")
    world.run(SECOND)
    assert world.left.kinds() == [ESTABLISHED]
    assert world.right.kinds() == [REQUEST, ESTABLISHED]
    return world


def test_both_may_say_goodbye_at_once() -> None:
    world = connected()
    for side in (world.left, world.right):
        side.core.disconnect(side.events[0].connection, now_ns=world.now_ns)
    for side in (world.left, world.right):
        world.settle(side)
    world.run(SECOND)
    assert world.left.kinds() == [ESTABLISHED, CmEventKind.DISCONNECTED]
    assert world.right.kinds() == [REQUEST, ESTABLISHED, CmEventKind.DISCONNECTED]


def test_private_data_has_a_limit() -> None:
    world = World()
    with pytest.raises(OSError, match="private data of 197 bytes, limit 196") as caught:
        world.connect(private_data=bytes(197))
    assert caught.value.errno == errno.ENOMEM
    world.listen()
    world.connect(private_data=bytes(196))
    world.run(SECOND)
    assert world.left.kinds() == [ESTABLISHED]


def test_a_rejection_carries_private_data_and_is_repeated_for_duplicates() -> None:
    world = World()
    world.listen()
    world.right.accepts = False
    world.drop = lambda _source, message: (
        message.kind is CmMessageKind.REJ and world.sent[CmMessageKind.REJ] == 1
    )
    world.connect()
    world.run(10_000_000)
    world.right.core.reject(world.right.connections[0], private_data=b"no")
    world.settle(world.right)
    world.run(SECOND)
    assert world.left.kinds() == [CmEventKind.REJECTED]
    message = world.left.events[0].message
    assert message is not None and message.private_data == b"no"
    assert world.right.kinds() == [REQUEST]


def test_a_full_backlog_refuses() -> None:
    world = World()
    world.listen(backlog=2)
    world.right.accepts = False
    for qpn in range(5):
        world.connect(qpn=100 + qpn)
    world.run(SECOND)
    assert world.left.kinds() == [CmEventKind.REFUSED] * 3
    assert world.right.core.stats.rejected_backlog == 3


def test_pending_requests_of_all_listeners_are_bounded() -> None:
    world = World(settings=CmSettings(pending_max=3))
    world.listen(backlog=100)
    world.right.accepts = False
    for qpn in range(5):
        world.connect(qpn=100 + qpn)
    world.run(SECOND)
    assert world.right.core.stats.rejected_pending == 2


def test_connections_are_bounded() -> None:
    world = World(settings=CmSettings(connections_max=2))
    world.listen()
    for qpn in range(2):
        world.connect(qpn=100 + qpn)
    with pytest.raises(OSError, match="as many as there may be"):
        world.connect()
    world.run(SECOND)
    unknown_peer = CmMessage(
        kind=CmMessageKind.REQ,
        context_guid=b"unknown!",
        local_id=5,
        space=TCP,
        target=bytes(10) + b"\xff\xff\x0a\x00\x00\x02",
        target_port=PORT,
    )
    world.right.core.receive_data(unknown_peer.emit(), source="left", now_ns=world.now_ns)
    assert world.right.core.stats.rejected_connections == 1


def test_an_absent_peer_is_given_up_after_bounded_tries() -> None:
    world = World(loss=1.0)
    world.connect()
    world.run(60 * SECOND)
    assert world.left.kinds() == [CmEventKind.UNREACHABLE]
    assert world.sent[CmMessageKind.REQ] == CmSettings().tries_max
    assert world.left.core.poll_timeout() is None


def test_a_caller_may_give_up_sooner() -> None:
    world = World(loss=1.0)
    world.connect(timeout_ns=500_000_000)
    world.run(499_000_000)
    assert world.left.kinds() == []
    world.run(1_000_000)
    assert world.left.kinds() == [CmEventKind.UNREACHABLE]


def test_a_slow_owner_keeps_the_requester_waiting() -> None:
    """The owner answers later than all tries together would last."""
    world = World()
    world.listen()
    world.right.accepts = False
    world.connect()
    world.run(25 * SECOND)
    assert world.left.kinds() == []
    assert world.sent[CmMessageKind.MRA] > 3
    world.right.core.accept(
        world.right.connections[0], offer=Offer(qpn=200), private_data=b"", now_ns=world.now_ns
    )
    world.settle(world.right)
    world.run(SECOND)
    assert world.left.kinds() == [ESTABLISHED]


def test_an_owner_that_never_answers_costs_nothing_for_ever() -> None:
    world = World()
    world.listen()
    world.right.accepts = False
    world.connect()
    world.run(60 * SECOND)
    assert world.left.kinds() == [CmEventKind.ERROR]
    assert world.right.kinds() == [REQUEST, CmEventKind.ERROR]
    assert world.right.core.poll_timeout() is None


def test_data_replaces_a_lost_rtu() -> None:
    world = World()
    world.listen()
    world.drop = lambda _source, message: message.kind is CmMessageKind.RTU
    world.connect()
    world.run(10_000_000)
    assert world.right.kinds() == [REQUEST]
    assert world.right.core.handle_data(world.right.connections[0], world.now_ns)
    world.settle(world.right)
    assert world.right.kinds() == [REQUEST, ESTABLISHED]
    assert world.right.core.stats.established_by_data == 1


def test_a_repeated_reply_gets_another_rtu() -> None:
    world = World()
    world.listen()
    world.drop = lambda _source, message: (
        message.kind is CmMessageKind.RTU and world.sent[CmMessageKind.RTU] == 1
    )
    world.connect()
    world.run(SECOND)
    assert world.right.kinds() == [REQUEST, ESTABLISHED]
    assert world.left.kinds() == [ESTABLISHED]


def test_an_answer_that_is_never_confirmed_ends_in_an_error() -> None:
    world = World()
    world.listen()
    world.drop = lambda source, _message: source == "left" and world.now_ns > 0
    world.connect()
    world.run(60 * SECOND)
    assert world.right.kinds() == [REQUEST, CmEventKind.ERROR]
    assert world.left.kinds()[-1] is CmEventKind.BROKEN


def test_a_connect_that_is_given_up_tells_the_listener() -> None:
    world = World()
    world.listen()
    world.right.accepts = False
    connection = world.connect()
    world.run(10_000_000)
    world.left.core.forget(connection, now_ns=world.now_ns)
    world.settle(world.left)
    world.run(10_000_000)
    assert world.left.kinds() == []
    assert world.right.kinds() == [REQUEST, CmEventKind.ERROR]
    with pytest.raises(OSError) as caught:
        world.right.core.accept(
            world.right.connections[0], offer=Offer(), private_data=b"", now_ns=world.now_ns
        )
    assert caught.value.errno == errno.EINVAL


def test_a_late_duplicate_of_a_request_makes_no_second_connection() -> None:
    world = World()
    world.listen()
    requests: list[bytes] = []

    def note(_source: str, message: CmMessage) -> bool:
        if message.kind is CmMessageKind.REQ:
            requests.append(message.emit())
        return False

    world.drop = note
    connection = world.connect()
    world.run(SECOND)
    world.left.core.disconnect(connection, now_ns=world.now_ns)
    world.settle(world.left)
    world.run(SECOND)
    world.send(world.left, requests[0])
    world.run(SECOND)
    assert world.right.kinds().count(REQUEST) == 1


def test_ended_requests_are_remembered_up_to_a_bound() -> None:
    world = World(settings=CmSettings(past_max=4))
    world.listen(backlog=100)
    world.right.accepts = False
    for qpn in range(10):
        world.connect(qpn=100 + qpn)
    world.run(10_000_000)
    for connection in world.right.connections:
        world.right.core.reject(connection)
    assert len(world.right.core._past) == 4  # the bound has no other witness


def test_a_queue_pair_that_connects_anew_replaces_its_stale_connection() -> None:
    world = connected()
    world.drop = lambda _source, _message: True
    world.left.core.forget(world.left.events[0].connection, now_ns=world.now_ns)
    world.settle(world.left)
    world.drop = lambda _source, message: message.kind is CmMessageKind.DREQ
    world.connect(qpn=100)
    world.run(100_000_000)
    assert world.right.kinds() == [
        REQUEST, ESTABLISHED, CmEventKind.BROKEN, REQUEST, ESTABLISHED,
    ]  # fmt: skip
    assert world.right.core.stats.stale == 1


def test_a_killed_peer_is_found_out_in_bounded_time() -> None:
    world = connected()
    world.drop = lambda source, _message: source == "right"
    world.run(LIVENESS_NS)
    assert world.left.kinds() == [ESTABLISHED, CmEventKind.BROKEN]
    assert world.left.events[-1].reason == "peer does not answer"
    world.run(LIVENESS_NS)  # in case it lives it is told, a bounded number of times
    assert world.left.core.poll_timeout() is None


def test_a_living_peer_is_asked_now_and_then_and_stays() -> None:
    world = connected()
    world.run(60 * SECOND)
    assert world.left.kinds() == [ESTABLISHED]
    assert 0 < world.left.core.stats.alive_sent <= 31


def test_many_connections_with_one_peer_cost_one_question() -> None:
    world = World()
    world.listen(backlog=100)
    for qpn in range(50):
        world.connect(qpn=100 + qpn)
    world.run(20 * SECOND)
    assert world.left.kinds() == [ESTABLISHED] * 50
    assert world.left.core.stats.alive_sent <= 11
    world.drop = lambda source, _message: source == "right"
    world.run(LIVENESS_NS)
    assert world.left.kinds()[50:] == [CmEventKind.BROKEN] * 50


def test_a_peer_started_anew_is_not_the_old_one() -> None:
    world = connected()
    world.right.core = CmCore(random=Random("another life"))
    world.run(4 * SECOND)
    assert world.left.kinds() == [ESTABLISHED, CmEventKind.BROKEN]
    assert world.left.events[-1].reason == "peer was started anew"


def test_a_hint_that_no_host_is_there_rejects_and_retries_at_once() -> None:
    world = connected()
    world.drop = lambda _source, _message: True
    world.connect(qpn=101)
    world.left.core.handle_unreachable("right", world.now_ns)
    world.settle(world.left)
    assert world.left.kinds()[-1] is CmEventKind.REFUSED
    world.run(SECOND // 2)
    assert world.left.kinds()[-1] is CmEventKind.BROKEN


def test_a_lost_route_ends_everything_at_once() -> None:
    world = connected()
    world.left.core.handle_route_lost("right")
    world.settle(world.left)
    assert world.left.kinds() == [ESTABLISHED, CmEventKind.BROKEN]


def test_a_failed_queue_pair_breaks_both_sides_and_the_peer_hears_it_later() -> None:
    world = connected()
    world.left.core.fail(
        world.left.events[0].connection, reason="queue pair failed", now_ns=world.now_ns
    )
    world.settle(world.left)
    assert world.left.kinds()[-1] is CmEventKind.BROKEN
    world.run(CmSettings().error_grace_ns)
    assert world.right.kinds()[-1] is ESTABLISHED
    world.run(SECOND)
    assert world.right.kinds()[-1] is CmEventKind.BROKEN
    assert world.left.kinds().count(CmEventKind.BROKEN) == 1


def test_a_look_up_survives_a_lost_answer() -> None:
    world = World()
    world.listen(space=UDP)
    world.drop = lambda _source, message: (
        message.kind is CmMessageKind.SIDR_REP and world.sent[CmMessageKind.SIDR_REP] == 1
    )
    world.connect(space=UDP)
    world.run(SECOND)
    assert world.left.kinds() == [ESTABLISHED]
    assert world.right.kinds() == [REQUEST, ESTABLISHED]


def test_the_two_spaces_are_apart() -> None:
    world = World()
    world.listen(space=UDP)
    world.connect(space=TCP)
    world.run(SECOND)
    assert world.left.kinds() == [CmEventKind.REFUSED]
    assert world.right.core.stats.rejected_no_listener == 1


def test_unknown_peers_cannot_speak_of_a_connection() -> None:
    """Right numbers from another route, or of another device context, change nothing."""
    world = connected()
    connection = world.left.events[0].connection
    goodbye = CmMessage(
        kind=CmMessageKind.DREQ,
        context_guid=connection.context_guid,
        local_id=connection.remote_id,
        remote_id=connection.local_id,
    )
    forged = CmMessage(
        kind=CmMessageKind.DREQ,
        context_guid=b"somebody",
        local_id=connection.remote_id,
        remote_id=connection.local_id,
    )
    world.left.core.receive_data(goodbye.emit(), source="elsewhere", now_ns=world.now_ns)
    world.left.core.receive_data(forged.emit(), source="right", now_ns=world.now_ns)
    assert connection.state is CmState.ESTABLISHED
    assert world.left.core.stats.dropped_unknown == 2
    misplaced = replace(forged, kind=CmMessageKind.RTU, context_guid=connection.context_guid)
    world.left.core.receive_data(misplaced.emit(), source="right", now_ns=world.now_ns)
    assert connection.state is CmState.ESTABLISHED
    assert world.left.core.stats.dropped_misplaced == 1
    world.left.core.receive_data(goodbye.emit(), source="right", now_ns=world.now_ns)
    assert connection.state is CmState.OVER


# -- as in InfiniBand: a request and its reply alone name a device context


def test_without_a_device_context_numbers_and_route_find_the_connection() -> None:
    world = connected(settings=INFINIBAND)
    connection = world.left.events[0].connection
    goodbye = CmMessage(
        kind=CmMessageKind.DREQ,
        context_guid=b"not said",
        local_id=connection.remote_id,
        remote_id=connection.local_id,
    )
    for foreign, route in (
        (goodbye, "elsewhere"),
        (replace(goodbye, local_id=goodbye.local_id ^ 1), "right"),
        (replace(goodbye, remote_id=goodbye.remote_id ^ 1), "right"),
    ):
        world.left.core.receive_data(foreign.emit(), source=route, now_ns=world.now_ns)
    assert connection.state is CmState.ESTABLISHED
    world.left.core.receive_data(goodbye.emit(), source="right", now_ns=world.now_ns)
    assert connection.state is CmState.OVER


def test_a_reply_of_another_device_context_is_not_the_peers() -> None:
    world = connected(settings=INFINIBAND)
    connection = world.left.events[0].connection
    reply = CmMessage(
        kind=CmMessageKind.REP,
        context_guid=b"somebody",
        local_id=connection.remote_id,
        remote_id=connection.local_id,
        offer=Offer(qpn=5),
    )
    world.left.core.receive_data(reply.emit(), source="right", now_ns=world.now_ns)
    assert world.left.core.stats.dropped_unknown == 1


@pytest.mark.parametrize("call", ["reject", "close"])
def test_a_requester_without_a_device_context_gives_up_before_it_knows_our_number(
    call: str,
) -> None:
    """Its route tells whose number the message names; another's says nothing."""
    world = World(settings=INFINIBAND)
    world.listen()
    world.right.accepts = False
    connection = world.connect()
    world.run(SECOND // 10)
    (asked,) = world.right.connections
    rejected = CmMessage(
        kind=CmMessageKind.REJ,
        context_guid=bytes(8),
        local_id=connection.local_id,
        reason=RejectReason.TIMEOUT,
    )
    world.right.core.receive_data(rejected.emit(), source="elsewhere", now_ns=world.now_ns)
    assert asked.state is CmState.REQUESTED
    if call == "close":
        world.left.core.close()
        world.settle(world.left)
        world.run(SECOND // 10)
    else:
        world.right.core.receive_data(rejected.emit(), source="left", now_ns=world.now_ns)
    assert asked.state is CmState.OVER


def test_without_device_contexts_a_duplicate_makes_no_second_connection() -> None:
    world = connected(settings=INFINIBAND)
    request = CmMessage(
        kind=CmMessageKind.REQ,
        context_guid=world.left.core.context_guid,
        local_id=world.left.events[0].connection.local_id,
        space=TCP,
        target=bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 2]),
        target_port=PORT,
    )
    for _ in range(2):  # of a connection, and of one that is over
        world.right.core.receive_data(request.emit(), source="left", now_ns=world.now_ns)
        world.left.core.disconnect(world.left.events[0].connection, now_ns=world.now_ns)
        world.settle(world.left)
        world.run(SECOND)
    assert world.right.core.stats.requests_duplicate == 2
    assert world.right.kinds().count(REQUEST) == 1


def test_two_routes_may_use_one_number_for_a_look_up() -> None:
    """SIDR_REQ names no device context, so that its number alone says nothing."""
    core = CmCore(random=Random(1), settings=INFINIBAND)
    core.listen(local=("10.0.0.2", PORT), space=UDP, backlog=8)
    look_up = CmMessage(
        kind=CmMessageKind.SIDR_REQ,
        context_guid=bytes(8),
        local_id=7,
        space=UDP,
        target=bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 2]),
        target_port=PORT,
    )
    for route in ("one", "another", "one"):
        core.receive_data(look_up.emit(), source=route, now_ns=0)
    assert core.stats.requests_received == 2 and core.stats.requests_duplicate == 1


@pytest.mark.parametrize("kind", list(CmMessageKind))
def test_messages_out_of_place_are_dropped_and_answered_by_no_more_bytes(
    kind: CmMessageKind,
) -> None:
    core = CmCore(random=Random(1))
    data = CmMessage(kind=kind, context_guid=b"unknown!", local_id=3, remote_id=4).emit()
    core.receive_data(data, source="anywhere", now_ns=0)
    answers = []
    while (outgoing := core.poll_transmit()) is not None:
        answers.append(outgoing[1])
    assert len(answers) <= 1
    assert sum(map(len, answers)) <= len(data)
    assert core.poll_event() is None
    assert core.poll_timeout() is None


def test_rejection_of_an_established_connection_breaks_it() -> None:
    world = connected()
    connection = world.left.events[0].connection
    unknown = CmMessage(
        kind=CmMessageKind.REJ,
        context_guid=connection.context_guid,
        remote_id=connection.local_id,
        reason=RejectReason.INVALID_COMM_ID,
    )
    world.left.core.receive_data(unknown.emit(), source="right", now_ns=world.now_ns)
    world.settle(world.left)
    assert world.left.kinds() == [ESTABLISHED, CmEventKind.BROKEN]


@pytest.mark.parametrize("settings", [None, INFINIBAND], ids=["own", "infiniband"])
@pytest.mark.parametrize("seed", range(50))
def test_both_sides_agree_whatever_the_wire_does(seed: int, settings: CmSettings | None) -> None:
    """Ten connections over a bad wire, half of them ended by each side."""
    world = World(seed, loss=0.2, duplicate=0.2, reorder=0.3, settings=settings)
    world.listen(backlog=100)
    for qpn in range(10):
        world.connect(qpn=100 + qpn)
    world.run(40 * SECOND)
    for index, side in enumerate((world.left, world.right)):
        chosen = [e.connection for e in side.events if e.kind is ESTABLISHED][index::2]
        for connection in chosen:
            side.core.disconnect(connection, now_ns=world.now_ns)
        world.settle(side)
    world.run(60 * SECOND)
    for side in (world.left, world.right):
        per_connection: dict[int, list[CmEventKind]] = {}
        for event in side.events:
            per_connection.setdefault(event.connection.local_id, []).append(event.kind)
        for kinds in per_connection.values():
            without_request = [kind for kind in kinds if kind is not REQUEST]
            ends = [kind for kind in without_request if kind is not ESTABLISHED]
            assert without_request.count(ESTABLISHED) <= 1, f"seed {seed}: {kinds}"
            assert len(ends) <= 1 and ends == without_request[-len(ends) or 99 :], f"seed {seed}"
    assert world.right.kinds().count(REQUEST) <= 10, f"seed {seed}"
    established = world.left.kinds().count(ESTABLISHED)
    assert established >= 8, f"seed {seed}: {world.left.kinds()}"
    living = [len(side.core._connections) for side in (world.left, world.right)]
    assert living[0] == living[1], f"seed {seed}: {living}"
