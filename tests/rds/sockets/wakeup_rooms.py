"""Scenarios of room for a destination that was refused, on both planes; how they break.

The sender is a follower: the leader reads the acknowledgement, and has to tell it.
"""

import errno
from ipaddress import ip_address

import pytest

from tests.rds.sockets.wakeup_scene import LOCAL, PEER_ADDRESS, Scene
from urds.rds.constants import MSG_DONTWAIT
from urds.rds.plane.contract import Mailbox
from urds.rds.plane.python.accounts import Destination

OTHER = ip_address("127.0.84.3")
OTHER_ADDRESS = (str(OTHER), 4000)
SIZE = 1000


def _fill(mailbox: Mailbox, address: tuple[str, int]) -> int:
    """Send until it is refused; return the errno."""
    try:
        while True:
            mailbox.sendto(bytes(100), int(MSG_DONTWAIT), address)
    except OSError as refused:
        return refused.errno or 0


def room_is_told_to_who_waits_there(scene: Scene) -> bool:
    """Have one of several destinations without room acknowledge, once; a send waits for it."""
    mailbox = scene.mailbox(1, send_bytes_max=SIZE)
    away = scene.plane.path(local=LOCAL, peer=OTHER, index=0, sequence_first=1)
    mailbox.route(OTHER, away)
    remote = scene.attach()
    assert _fill(mailbox, OTHER_ADDRESS) == errno.EAGAIN
    assert _fill(mailbox, PEER_ADDRESS) == errno.ENOBUFS
    scene.receive(scene.mailbox(2))  # it leads
    before = scene.seats()
    results = scene.start(lambda: mailbox.sendto(bytes(100), PEER_ADDRESS))
    scene.wait_for(lambda: scene.seats() > before)
    remote.say(0, ack=1, source_port=0, target_port=0)
    return scene.wait_for(lambda: bool(results))


def room_is_told_to_no_waiter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Destination, "tell", lambda self, wait_queue: None)
