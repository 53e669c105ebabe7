"""A message that is alone on its path, for which the compiled plane has a fast path: rare cases."""

from tests.parity.planes import PEER, PEER_PORT, World, take
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Hold,
    Limits,
)
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)


def test_any_frame_frees_a_repeat_that_was_acknowledged_before(world: World) -> None:
    """The peer had the message before the stream ended, and says so before it is repeated."""
    mailbox = world.mailbox()
    before = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    mailbox.sendto(b"request", ADDRESS)
    assert [frame.payload for frame in before.messages()] == [b"request"]
    before.close()
    world.turn()
    again = world.attach(hold=Hold.FIRST_FRAME)
    again.say(1, b"one", ack=1)
    world.turn(2)
    (repeat,) = again.messages()
    assert HeaderFlag.RETRANSMITTED in repeat.header.flags
    assert take(mailbox) == [b"one"]
    again.say(2, b"two", ack=1)
    world.turn()
    assert take(mailbox) == [b"two"]
    (row,) = world.plane.snapshot().mailboxes
    assert row.send_queued_bytes == 0


def test_a_message_beyond_the_hard_bound_pauses_its_path(make_plane: object) -> None:
    world = World(make_plane, Limits(receive_hard_bytes=1000, receive_hard_factor=1))  # type: ignore[arg-type]  # a fixture
    try:
        mailbox = world.mailbox(receive_bytes_max=256)
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        remote.say(1, b"the first frame goes the general way")
        world.turn()
        assert len(take(mailbox)) == 1
        remote.say(2, bytes(4000))
        world.turn()
        assert world.counter("recv_paused") == 1
        remote.say(3, b"waits")
        world.turn()
        assert mailbox.recvfrom(4000)[0] == bytes(4000)
        world.turn()
        assert take(mailbox) == [b"waits"]
        assert world.counter("recv_paused") == 1
    finally:
        world.close()
