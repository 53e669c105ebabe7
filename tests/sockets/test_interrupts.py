"""What an interrupted read has brought is told to those who wait for it."""

import pytest

from tests.parity.planes import ReferencePlane, World, take
from tests.unit.test_path_interrupts import Interrupting


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
