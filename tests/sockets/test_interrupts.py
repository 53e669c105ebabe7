"""What an interrupted read has brought is told to those who wait for it."""

from collections import deque

import pytest

from tests.parity.planes import PEER, PEER_PORT, World, take
from tests.unit.test_path_interrupts import Interrupting
from urds.dataplane.base import Release
from urds.dataplane.reference.incoming import Incoming
from urds.dataplane.reference.plane import Plane as ReferencePlane

pytestmark = pytest.mark.reference


def test_an_interrupted_read_tells_of_what_it_brought() -> None:
    world = World(ReferencePlane)
    mailbox = world.mailbox()
    remote = world.attach()
    told: list[bool] = []
    mailbox.subscribe(lambda: told.append(True), room=False)
    mailbox.queue = Interrupting(at=1, after=True)
    remote.say(1, b"here")
    with pytest.raises(KeyboardInterrupt):
        world.plane.pump()
    world.turn()
    assert (told, take(mailbox)) == ([True], [b"here"])
    world.close()


def lone_reply(world: World, mailbox: object) -> object:
    """Bring the next message to where it is taken in alone; return the peer's end."""
    remote = world.attach(release=Release.PEER_ACKNOWLEDGED)
    mailbox.sendto(b"route", (str(PEER), PEER_PORT))
    remote.say(1, b"first of the stream", ack=1)
    world.turn()
    assert take(mailbox) == [b"first of the stream"]
    return remote


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupted_lone_read_loses_and_doubles_nothing(after: bool) -> None:
    """Told of if it is there; not counted as received if it is not."""
    world = World(ReferencePlane)
    mailbox = world.mailbox()
    remote = lone_reply(world, mailbox)
    told: list[bool] = []
    mailbox.subscribe(lambda: told.append(True), room=False)
    mailbox.queue = Interrupting(at=1, after=after)
    remote.say(2, b"here")
    with pytest.raises(KeyboardInterrupt):
        world.plane.pump()
    world.turn()
    assert (told, list(mailbox.queue)) == (
        ([True], [(b"here", (str(PEER), PEER_PORT))]) if after else ([], [])
    )
    assert world.path().core.incoming.sequence_expected == (3 if after else 2)
    world.close()


class InterruptedQueue(deque):
    """A queue whose next pop is interrupted once it is done."""

    def popleft(self) -> object:
        super().popleft()
        raise KeyboardInterrupt


def test_an_interrupted_lone_acknowledgement_gives_the_room_back() -> None:
    world = World(ReferencePlane)
    mailbox = world.mailbox()
    remote = lone_reply(world, mailbox)
    outgoing = world.path().core.outgoing
    mailbox.sendto(b"asks", (str(PEER), PEER_PORT))
    told: list[bool] = []
    mailbox.subscribe(lambda: told.append(True), room=True)
    outgoing.unacked = InterruptedQueue(outgoing.unacked)
    remote.say(2, b"replies", ack=2)
    with pytest.raises(KeyboardInterrupt):
        world.plane.pump()
    world.turn()
    assert (told, mailbox.send_queued_bytes) == ([True], 0)
    world.close()


class InterruptingLock:
    """The plane's lock; who leaves it with a path to read is interrupted, once."""

    def __init__(self, world: World) -> None:
        self.lock, self.path, self.left = world.plane.lock, world.path(), 1

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        interrupts, self.left = self.left and self.path.reading, self.left - self.path.reading
        self.lock.release()
        if interrupts:
            raise KeyboardInterrupt


@pytest.mark.parametrize("lone", [False, True], ids=["general", "lone"])
def test_an_interrupt_before_the_first_octet_leaves_the_path_readable(lone: bool) -> None:
    world = World(ReferencePlane)
    mailbox = world.mailbox()
    remote = lone_reply(world, mailbox)
    remote.say(2, b"here")
    world.plane.lock = InterruptingLock(world)
    with pytest.raises(KeyboardInterrupt):
        world.plane.pump() if lone else world.path().read()
    assert not world.path().reading
    world.plane.lock = world.plane.lock.lock
    world.close()


def test_what_lies_in_a_mailbox_is_old_however_late_the_interrupt_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its repeat would be taken for another message."""
    world = World(ReferencePlane)
    mailbox = world.mailbox()
    remote = world.attach(release=Release.PEER_ACKNOWLEDGED)
    settle = Incoming._settle_parse

    def interrupted(*_: object) -> None:
        monkeypatch.setattr(Incoming, "_settle_parse", settle)
        raise KeyboardInterrupt

    monkeypatch.setattr(Incoming, "_settle_parse", interrupted)
    remote.say(1, b"one")
    with pytest.raises(KeyboardInterrupt):
        world.plane.pump()
    assert world.path().core.incoming.sequence_expected == 2
    assert mailbox.receive_queued_bytes == 3
    world.close()
