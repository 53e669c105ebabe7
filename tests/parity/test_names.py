"""Destinations that are given by name, or not quite as an address."""

import socket

import pytest

from tests.parity.planes import OTHER, PEER, PEER_PORT, World
from tests.support.planes import NATIVE, name_of
from urds.rds.plane.contract import Plane


def test_a_name_is_looked_up_at_each_send(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of a name may change; a literal stays what it is."""
    mailbox, hosts = world.mailbox(), [PEER, OTHER]
    asked: list[str] = []

    def look_up(name: str, *_: object, **__: object) -> list[object]:
        asked.append(name)
        address = str(hosts[len(asked) > 2])
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    remotes = [world.attach(path=world.path(peer)) for peer in hosts]
    for payload in (b"1", b"2", b"3"):
        mailbox.sendto(payload, ("peer.example", PEER_PORT))
    for payload in (b"4", b"5"):
        mailbox.sendto(payload, (str(PEER), PEER_PORT))
    world.turn(2)
    assert asked == ["peer.example"] * 3
    sent = [[frame.payload for frame in remote.messages()] for remote in remotes]
    assert sent == [[b"1", b"2", b"4", b"5"], [b"3"]]


def test_a_port_that_is_no_integer_is_refused(world: World, make_plane: type[Plane]) -> None:
    """The Python plane finds a known destination by a port of 4000.0 as well, for it is equal."""
    mailbox = world.mailbox()
    world.attach()
    with pytest.raises(TypeError):
        mailbox.sendto(b"x", (str(PEER), float(PEER_PORT)))
    mailbox.sendto(b"x", (str(PEER), PEER_PORT))
    if name_of(make_plane) == NATIVE:
        with pytest.raises(TypeError):
            mailbox.sendto(b"x", (str(PEER), float(PEER_PORT)))
    else:
        assert mailbox.sendto(b"x", (str(PEER), float(PEER_PORT))) == 1
