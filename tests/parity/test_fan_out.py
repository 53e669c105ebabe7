"""A fan-out that is told again, as after a fault, lets no message overtake."""

from types import SimpleNamespace
from typing import Any

from tests.parity.planes import LOCAL, PEER, PEER_PORT, World
from urds.rds.control.events import FanOut
from urds.rds.control.paths import path_of_port
from urds.rds.runtime.actions import Actions
from urds.rds.runtime.local_addresses import PeerPaths
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)
# Its sockets had path 1 of two.
PORT = next(port for port in range(2000, 3000) if path_of_port(port, 4) == 3)


def test_a_path_goes_on_waiting_for_the_one_that_its_sockets_had(world: World) -> None:
    paths = [world.path()] + [
        world.plane.path(local=LOCAL, peer=PEER, index=index, sequence_first=1)
        for index in range(1, 4)
    ]
    mailbox = world.mailbox(PORT)
    peer_paths = PeerPaths(paths[:2], 2, {mailbox})
    driver: Any = SimpleNamespace(
        log=SimpleNamespace(part=lambda name: None),
        paths=SimpleNamespace(
            to=lambda host, peer: peer_paths, make=lambda host, peer, index: paths[index]
        ),
    )
    actions = Actions(driver)
    mailbox.route(PEER, paths[1])
    mailbox.sendto(b"first", ADDRESS)
    for _ in range(2):
        actions.carry_out(None, FanOut(PEER, 4))  # type: ignore[arg-type]  # unused
    mailbox.sendto(b"second", ADDRESS)
    moved = world.attach(path=paths[3], ack_mode=AckMode.PEER_ACKNOWLEDGED)
    world.turn(3)
    assert moved.messages() == []
    before = world.attach(path=paths[1], ack_mode=AckMode.PEER_ACKNOWLEDGED)
    world.turn(3)
    assert [frame.payload for frame in before.messages()] == [b"first"]
    before.say(0, ack=1, source_port=0, target_port=0)
    world.turn(3)
    assert [frame.payload for frame in moved.messages()] == [b"second"]
