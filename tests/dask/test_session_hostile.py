"""What a peer that keeps no rule can do to a session, and to the hub."""

import pytest

from tests.dask.session_world import LIMITS, MS, WINDOW, World
from urds.common.errors import WireError
from urds.dask import wire
from urds.dask.hub import Hub
from urds.dask.stream import FRAMES_MAX
from urds.dask.wire import Header, Hello, Kind

PEER = ("10.0.0.9", 9)
HELLO = Hello(WINDOW, bytes(16), 0, 0)


def _packet(kind, body=b"", *, session_id=7, sequence=0, from_acceptor=False):
    return wire.emit_header(Header(kind, session_id, sequence, from_acceptor)) + body


def _accepted(**limits):
    hub = Hub(limits=LIMITS, hello=HELLO, **limits)
    hub.is_listening = True
    hub.handle(_packet(Kind.OPEN, wire.emit_hello(HELLO)), PEER, 0)
    _, session = hub.poll_accepted()
    return hub, session


def _is_reset(session):
    packets = []
    while (packet := session.poll_packet()) is not None:
        packets.append(wire.parse_header(packet[0]).kind)
    return session.is_over and packets[-1] is Kind.RESET


@pytest.mark.parametrize(
    "packet",
    [
        _packet(Kind.DATA, (FRAMES_MAX + 1).to_bytes(4, "big"), sequence=1),
        _packet(Kind.DATA, b"\0\0\0\1" + (1 << 62).to_bytes(8, "big"), sequence=1),
        _packet(Kind.DATA, b"\0\0\0\1" + LIMITS.message_bytes_max.to_bytes(8, "big"), sequence=2),
        _packet(Kind.DATA, bytes(WINDOW + 1), sequence=1),
        _packet(Kind.CREDIT, b"123", sequence=1),
        _packet(Kind.PING, sequence=5),
    ],
    ids=["frames", "bytes", "sequence", "window", "credit", "lost"],
)
def test_a_broken_rule_ends_the_session(packet):
    hub, session = _accepted()
    hub.handle(packet, PEER, 0)
    assert _is_reset(session)


@pytest.mark.parametrize(
    "part", [b"\0", b"\0\0\0\1", b"\0\0\0\1" + (9).to_bytes(8, "big") + b"eight..."]
)
def test_a_message_that_ends_in_the_middle_is_none(part):
    hub, session = _accepted()
    hub.handle(_packet(Kind.DATA, part, sequence=1), PEER, 0)
    hub.handle(_packet(Kind.FINISH, sequence=2), PEER, 0)
    assert _is_reset(session) and session.receive() is None


def test_sessions_are_bounded():
    hub, _ = _accepted(sessions_max=1)
    hub.handle(_packet(Kind.OPEN, wire.emit_hello(HELLO), session_id=8), PEER, 0)
    assert len(hub) == 1 and hub.poll_accepted() is None
    _, answer = hub.poll_answer()
    assert wire.parse_header(answer[0]).kind is Kind.RESET


def test_a_claim_allocates_nothing_above_the_limit():
    sizes = []

    def allocate(size):
        sizes.append(size)
        return bytearray(size)

    hub, session = _accepted(allocate=allocate)
    claim = b"\0\0\0\2" + 2 * (LIMITS.message_bytes_max - 1).to_bytes(8, "big")
    hub.handle(_packet(Kind.DATA, claim, sequence=1), PEER, 0)
    assert _is_reset(session) and sizes == []


@pytest.mark.parametrize("payload", [b"", b"x", bytes(16), b"dR\2\1" + bytes(12)])
def test_what_is_no_packet_is_dropped(payload):
    hub, _ = _accepted()
    assert hub.handle(payload, PEER, 0) is None
    assert hub.poll_answer() is None and len(hub) == 1


@pytest.mark.parametrize("kind", list(Kind))
def test_no_two_hubs_answer_each_other_for_ever(kind):
    """A packet of no session is answered at most once, whatever the answer leads to."""
    world = World(1)
    payload = _packet(kind, from_acceptor=True)
    world._flows[world.hosts[0].address, world.hosts[1].address] = [(0, payload)]
    world.run(200 * MS)
    assert not any(world._flows.values())


def test_headers_of_another_version_are_told_from_ours():
    with pytest.raises(WireError, match="version"):
        wire.parse_header(b"dR\2\1" + bytes(12))
    with pytest.raises(WireError, match="type"):
        wire.parse_header(b"dR\1\x1f" + bytes(12))
