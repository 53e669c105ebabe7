"""A path closes: what was never sent goes over another one, and with it the sockets."""

import pytest

from tests.parity.planes import LOCAL, PEER, PEER_PORT, World
from urds.rds.constants import HeaderFlag, MessageFlag
from urds.rds.plane.contract import ConnectWanted, Hold, Limits, Path
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)
DONTWAIT = int(MessageFlag.DONTWAIT)


def closing_path(world: World) -> Path:
    """Return a second path to the peer."""
    return world.plane.path(local=LOCAL, peer=PEER, index=1, sequence_first=1)


def test_nothing_overtakes_and_what_was_sent_stays(world: World) -> None:
    mailbox, other_box = world.mailbox(), world.mailbox(5001)
    closing, staying = closing_path(world), world.path()
    mailbox.route(PEER, closing)
    first = world.attach(path=closing, ack_mode=AckMode.PEER_ACKNOWLEDGED)
    mailbox.sendto(b"sent", ADDRESS)
    closing.hold_behind(None)
    for payload in (b"one", bytes(9000), b""):
        mailbox.sendto(payload, ADDRESS)
    other_box.sendto(b"before", ADDRESS)
    assert mailbox.unacknowledged() == 4
    world.plane.move_queue(closing, staying, [mailbox])
    mailbox.sendto(b"after", ADDRESS)
    assert mailbox.unacknowledged() == 5
    second = world.attach(path=staying, ack_mode=AckMode.PEER_ACKNOWLEDGED)
    world.turn(5)
    sent = [b"before", b"one", bytes(9000), b"", b"after"]
    assert [frame.payload for frame in second.messages()] == sent
    assert [frame.payload for frame in first.messages()] == [b"sent"]
    second.say(0, ack=5, source_port=0, target_port=0)
    world.turn()
    assert (mailbox.unacknowledged(), other_box.unacknowledged()) == (1, 0)
    assert closing.drop_queue() == 1
    assert mailbox.unacknowledged() == 0


def test_no_sender_is_told_of_a_failure(world: World) -> None:
    mailbox, closing = world.mailbox(), closing_path(world)
    mailbox.route(PEER, closing)
    mailbox.sendto(b"waits", ADDRESS)
    world.plane.move_queue(closing, world.path(), [mailbox])
    assert closing.drop_queue() == 0
    assert world.counter("send_given_up") == 0
    assert mailbox.sendto(b"after", ADDRESS) == 5


def test_a_path_without_a_stream_asks_for_one(world: World) -> None:
    mailbox, closing, staying = world.mailbox(), closing_path(world), world.path()
    mailbox.route(PEER, closing)
    mailbox.sendto(b"waits", ADDRESS)
    assert [event.path for event in world.turn() if isinstance(event, ConnectWanted)] == [closing]
    world.plane.move_queue(closing, staying, [mailbox])
    assert [event.path for event in world.turn() if isinstance(event, ConnectWanted)] == [staying]


def test_messages_of_a_closed_socket_move_too(world: World) -> None:
    mailbox, closing = world.mailbox(), closing_path(world)
    mailbox.route(PEER, closing)
    mailbox.sendto(b"waits", ADDRESS)
    mailbox.close()
    world.plane.move_queue(closing, world.path(), [])
    remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    world.turn(5)
    assert [frame.payload for frame in remote.messages()] == [b"waits"]


def test_pings_are_not_moved(world: World) -> None:
    closing = closing_path(world)
    first, second = world.attach(path=closing, hold=Hold.HELLO), world.attach()
    closing.control(source_port=1, target_port=0, extension=bytes(16))
    world.plane.move_queue(closing, world.path(), [])
    second.frames()
    world.turn(5)
    assert second.frames() == []
    closing.end_hold(received_by_peer=None)
    assert first.frames()[-1].header.target_port == 0


def test_who_waits_for_room_on_the_path_finds_it_on_the_other(make_plane) -> None:
    world = World(make_plane, Limits(path_messages_max=3))
    mailbox, closing, staying = world.mailbox(), closing_path(world), world.path()
    mailbox.route(PEER, closing)
    closing.hold_behind(None)
    world.attach(path=closing, ack_mode=AckMode.PEER_ACKNOWLEDGED)
    world.attach(path=staying, ack_mode=AckMode.PEER_ACKNOWLEDGED)
    told: list[None] = []
    for _ in range(3):
        mailbox.sendto(b"x", ADDRESS)
        world.turn(5)
    with pytest.raises(BlockingIOError):
        mailbox.sendto(b"x", DONTWAIT, ADDRESS)
    mailbox.subscribe(lambda: told.append(None), room=True, address=ADDRESS)
    assert not told
    world.plane.move_queue(closing, staying, [mailbox])
    world.turn()
    assert told
    world.close()


def test_the_other_path_may_be_over_its_limit_and_takes_nothing_new(make_plane) -> None:
    world = World(make_plane, Limits(path_messages_max=3))
    mailbox, other_box = world.mailbox(), world.mailbox(5001)
    closing, staying = closing_path(world), world.path()
    mailbox.route(PEER, closing)
    for box in (mailbox, other_box):
        for _ in range(3):
            box.sendto(b"x", ADDRESS)
    world.plane.move_queue(closing, staying, [mailbox])
    for box in (mailbox, other_box):
        with pytest.raises(BlockingIOError):
            box.sendto(b"y", DONTWAIT, ADDRESS)
    remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    world.turn(5)
    assert len(remote.messages()) == 6
    remote.say(0, ack=6, source_port=0, target_port=0)
    world.turn()
    assert mailbox.sendto(b"y", DONTWAIT, ADDRESS) == 1
    world.close()


def test_a_half_full_account_asks_for_the_acknowledgement_there(world: World) -> None:
    mailbox, closing = world.mailbox(send_bytes_max=4000), closing_path(world)
    mailbox.route(PEER, closing)
    for _ in range(2):
        mailbox.sendto(bytes(1500), ADDRESS)
    world.plane.move_queue(closing, world.path(), [mailbox])
    remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    world.turn(5)
    assert [frame.header.flags for frame in remote.messages()] == [0, HeaderFlag.ACK_REQUIRED]
