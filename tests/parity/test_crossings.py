"""What another thread does while a message is on its way out, with its step made by hand.

A stream calls back in the middle of `sendmsg`, where a plane holds no lock; what else can only
happen between two sections of a call is put there.
"""

from collections.abc import Callable

import pytest

from tests.parity.planes import ACK_DELAY_MS, MS, PEER, PEER_PORT, PORT, Remote, World, take
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Agreement,
    Buffer,
    Limits,
    Mailbox,
)
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)
ASKING_MAX = Limits().unacked_packets_max


def in_the_next_write(remote: Remote, step: Callable[[], object]) -> None:
    """Have `step` done once the stream took the next bytes, before their writer knows."""
    write = remote.stream.sendmsg

    def sendmsg(buffers: list[Buffer], *_: object) -> int:
        del remote.stream.sendmsg
        taken = write(buffers)
        step()
        return taken

    remote.stream.sendmsg = sendmsg  # watched on purpose


def idle_path(world: World) -> tuple[Mailbox, Remote]:
    """Return a mailbox and its peer: a message went each way, and nothing is owed or out."""
    mailbox = world.mailbox()
    remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    world.path().agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=True))
    mailbox.sendto(b"route", ADDRESS)
    remote.say(1, b"reply", ack=1)
    world.turn()
    assert take(mailbox) == [b"reply"]
    world.turn(ms=2)
    remote.frames()
    return mailbox, remote


def test_what_arrives_during_a_write_is_acknowledged(world: World) -> None:
    """The write tells of what came before; what comes meanwhile is owed from then on."""
    mailbox, remote = idle_path(world)
    mailbox.sendto(b"so that the next is not alone", ADDRESS)
    remote.say(2, b"before")
    world.turn()

    def arrive() -> None:
        world.now_ns += MS // 10
        remote.say(3, b"meanwhile")
        world.plane.progress()

    world.now_ns += MS // 10  # a pause: the next one leaves at once
    in_the_next_write(remote, arrive)
    mailbox.sendto(b"acknowledges what came before", ADDRESS)
    assert take(mailbox) == [b"before", b"meanwhile"]
    for _ in range(ACK_DELAY_MS + 10):
        world.turn(ms=1)
    assert [frame.header.ack for frame in remote.frames()] == [1, 2, 3]


@pytest.mark.reference
def test_a_map_is_not_left_behind_by_a_lone_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A congested socket closes, and one beside it sends before the map of that leaves."""
    mailbox, remote = idle_path(world)
    other = world.mailbox(PORT + 1, receive_bytes_max=4096)
    for number in range(10):
        remote.say(2 + number, bytes(3000), target_port=PORT + 1)
    world.turn()
    world.turn(ms=2)
    flush = world.plane.passes.flush_batches

    def send_and_flush() -> None:
        mailbox.sendto(b"lone", ADDRESS)
        flush()

    remote.frames()
    monkeypatch.setattr(world.plane.passes, "flush_batches", send_and_flush)
    other.close()
    monkeypatch.undo()
    world.turn(ms=2)
    flags = [frame.header.flags for frame in remote.frames()]
    assert flags.count(HeaderFlag.CONG_BITMAP) == 1


@pytest.mark.parametrize("cancelled", [7, 9, 200])
def test_a_run_behind_many_cancelled_messages_asks_as_it_should(
    world: World, cancelled: int
) -> None:
    mailbox, remote = idle_path(world)
    for _ in range(cancelled):
        mailbox.sendto(b"cancelled", ADDRESS)
        mailbox.cancel(None, None)
    remote.frames()
    in_the_next_write(remote, lambda: [mailbox.sendto(b"run", ADDRESS) for _ in range(40)])
    mailbox.sendto(b"lone", ADDRESS)
    world.turn(ms=2)
    asking = [frame.header.flags == HeaderFlag.ACK_REQUIRED for frame in remote.messages()]
    first = asking.index(True)  # whether a lone one asks is up to the plane
    assert first < ASKING_MAX
    assert [index for index, asks in enumerate(asking) if asks] == [
        *range(first, len(asking), ASKING_MAX)
    ]


@pytest.mark.reference
def test_a_message_behind_a_lone_one_leaves_without_help_of_the_peer(world: World) -> None:
    """Another thread sends in our write, which takes its message along; then it notes a tail."""
    mailbox, remote = idle_path(world)
    for _ in range(3):  # two leave at once, the third would wait for more
        world.path().writer.flush(0)
    mailbox.sendto(b"lone", ADDRESS)
    mailbox.sendto(b"behind", ADDRESS)
    world.turn(ms=2)
    assert [frame.payload for frame in remote.messages()] == [b"lone", b"behind"]
