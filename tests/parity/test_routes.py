"""Routes that change around a send, and what makes a path look for a stream."""

import pytest

from tests.parity.planes import LOCAL, PEER, PEER_PORT, World
from urds.common.errors import ErrorReason
from urds.rds.plane.contract import ConnectWanted, Hold, Limits

ADDRESS = (str(PEER), PEER_PORT)


@pytest.mark.reference
def test_a_message_leaves_on_the_path_that_queued_it(world: World, monkeypatch) -> None:
    """A fan-out may route the socket elsewhere between the two."""
    mailbox = world.mailbox()
    remote = world.attach()
    other = world.plane.path(local=LOCAL, peer=PEER, index=1, sequence_first=1)
    queue = mailbox.sends.queue

    def queue_and_fan_out(*arguments):
        queued = queue(*arguments)
        if not isinstance(queued, ErrorReason):
            mailbox.sends.set_route(PEER, other)
        return queued

    monkeypatch.setattr(mailbox.sends, "queue", queue_and_fan_out)
    mailbox.sendto(b"x", ADDRESS)
    world.turn(2)
    assert [frame.payload for frame in remote.messages()] == [b"x"]


def test_a_route_that_goes_before_the_message_is_queued_is_made_again(world: World) -> None:
    mailbox = world.mailbox()
    remote = world.attach()
    resolve, resolved = world.plane.resolve, []

    def resolve_and_lose(box, peer) -> None:
        resolve(box, peer)
        resolved.append(peer)
        if len(resolved) == 1:
            box.route(peer, None)

    world.plane.resolve = resolve_and_lose
    mailbox.sendto(b"x", ADDRESS)
    world.turn(2)
    assert len(resolved) == 2
    assert [frame.payload for frame in remote.messages()] == [b"x"]


def test_a_probe_alone_is_not_worth_a_stream(world: World) -> None:
    """Else who connects once and leaves is called for ever, and never makes room for another."""
    path = world.path()
    remote = world.attach(path=path, hold=Hold.NOTHING)
    path.control(source_port=1, target_port=0, extension=bytes(16))
    assert not path.holds_messages()
    remote.close()
    assert not any(isinstance(event, ConnectWanted) for event in world.turn())
    world.mailbox().sendto(b"x", ADDRESS)
    assert path.holds_messages()
    assert any(isinstance(event, ConnectWanted) for event in world.turn())


def test_the_map_of_a_peer_goes_with_its_last_path(world: World) -> None:
    path = world.path()
    remote = world.attach(path=path)
    remote.say_map(b"\xff" * 8192)
    world.turn()
    assert path.peer_is_congested(PEER_PORT)
    path.close()
    again = world.plane.path(local=LOCAL, peer=PEER, index=0, sequence_first=1)
    assert not again.peer_is_congested(PEER_PORT)


def test_pongs_for_a_peer_that_does_not_read_are_bounded(make_plane) -> None:
    world = World(make_plane, Limits(path_messages_max=10))
    world.attach(hold=Hold.HELLO)
    path = world.path()
    for _ in range(20):
        path.control(source_port=0, target_port=PEER_PORT, extension=bytes(16))
    (row,) = world.plane.snapshot().paths
    assert row.unsent_messages == 10
    path.control(source_port=1, target_port=0, extension=bytes(16))  # a probe always may
    (row,) = world.plane.snapshot().paths
    assert row.unsent_messages == 11
    world.close()
