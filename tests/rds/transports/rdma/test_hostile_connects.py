"""Connects that no honest peer makes: private data of any kind, other names, floods, no words.

Refused or harmless, counted, and forgotten; neighbours and later connections go on.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from ipaddress import ip_address

import pytest

from tests.rds.transports.rdma.hostile_peer import (
    REPEATED,
    Siege,
    UnknownPeer,
    congestion_map,
    message,
)
from tests.rds.transports.rdma.victim import INBOX_PORT
from tests.support.waiting import wait_until
from urds.rds.control.rdma_peer import REJECTION
from urds.rds.wire.private_data import CONNECT_DATA_V4_BYTES, ConnectData, accepted_version
from urds.verbs.providers.base import ConnectionEventKind

MIB = 1 << 20
U32, U64 = (1 << 32) - 1, (1 << 64) - 1
RESTS_MAX = 20
REJECTS = ("rdma_refused_address", "rdma_refused_version")


def answers(unknown_peers: list[UnknownPeer]) -> list[bool]:
    """Wait for the answers to what unknown peers asked; return who was let in."""
    wait_until(lambda: all(one.is_up or one.is_over for one in unknown_peers))
    for one in unknown_peers:
        if not one.is_up:
            assert one.ends == [ConnectionEventKind.REJECTED]
            assert one.rejection[: len(REJECTION)] == REJECTION
    return [one.is_up for one in unknown_peers]


# -- private data


def test_private_data_of_every_length_and_content(siege: Siege) -> None:
    """Too few bytes, or zeros, are no offer, which Linux takes for 4.0; the rest is judged."""
    rng = random.Random(5)
    lengths = [*range(CONNECT_DATA_V4_BYTES + 2), 56, 100, 150]
    unknown_peers = [siege.unknown_peer() for _ in lengths]
    before = siege.victim.ask("counters")
    for unknown_peer, length in zip(unknown_peers, lengths, strict=True):
        unknown_peer.connect(rng.randbytes(length))
    let_in = answers(unknown_peers)
    # A device may pad what is short, with zeros: then random bytes name other addresses.
    refused = let_in.count(False)
    assert all(not one for one, length in zip(let_in, lengths, strict=True) if length >= 32)
    assert let_in[0], "no private data at all"
    after = siege.victim.ask("counters")
    assert sum(after[name] - before[name] for name in REJECTS) == refused
    for unknown_peer in unknown_peers:
        if unknown_peer.is_up:
            unknown_peer.send(*congestion_map(), *message(b"well"))
    got = siege.victim.ask("collect", count=let_in.count(True))
    assert got == [b"well".hex()] * let_in.count(True)


def test_flipped_bits_in_private_data(siege: Siege) -> None:
    """An accepted peer is the one that its connection names; the others are rejected."""
    rng = random.Random(6)
    asked: list[tuple[UnknownPeer, bool]] = []
    for _ in range(60):
        unknown_peer = siege.unknown_peer()
        data = bytearray(unknown_peer.data(generation=77).emit())
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        read = ConnectData.parse(bytes(data), ipv6=False)
        named = str(read.source) == unknown_peer.address and str(read.target) == unknown_peer.victim
        unknown_peer.connect(bytes(data))
        asked.append((unknown_peer, named and accepted_version(read) is not None))
    assert answers([unknown_peer for unknown_peer, _ in asked]) == [due for _, due in asked]


@pytest.mark.parametrize("which", ["source", "target"])
def test_addresses_in_private_data_are_those_of_the_connection(siege: Siege, which: str) -> None:
    others = [siege.neighbour.address, siege.address(), "0.0.0.0", "255.255.255.255"]
    unknown_peers = [siege.unknown_peer() for _ in others]
    with siege.counted(rdma_refused_address=len(others)):
        for unknown_peer, other in zip(unknown_peers, others, strict=True):
            unknown_peer.connect(unknown_peer.data(**{which: ip_address(other)}).emit())
        assert not any(answers(unknown_peers))


def test_versions_are_answered_as_linux_answers_them(siege: Siege) -> None:
    versions = [(3, 1), (3, 0), (3, 2), (2, 1), (1, 0), (0, 0), (4, 0), (4, 1), (5, 0), (255, 255)]
    unknown_peers = [siege.unknown_peer() for _ in versions]
    taken = [(3, 1), (0, 0), (4, 0), (4, 1)]  # 0 is no version
    with siege.counted(rdma_refused_version=len(versions) - len(taken)):
        for unknown_peer, (major, minor) in zip(unknown_peers, versions, strict=True):
            unknown_peer.connect(unknown_peer.data(major=major, minor=minor).emit())
        assert answers(unknown_peers) == [version in taken for version in versions]


@pytest.mark.parametrize("acknowledged", [1, U64])
def test_private_data_acknowledge_nothing_that_a_unknown_peer_was_not_sent(
    siege: Siege, acknowledged: int
) -> None:
    """A number beyond all of ours is about another generation; the message is sent all the same."""
    address = siege.address()
    assert siege.victim.ask("send", target=address, payload="abcd") == 1
    first = siege.returned(address, ack_sequence=acknowledged, generation=5)
    wait_until(lambda: bool(messages(first)))
    first.vanish()
    second = siege.returned(address, ack_sequence=acknowledged, generation=5)
    if acknowledged == U64:
        wait_until(lambda: bool(messages(second)))
        assert messages(second) == [b"\xab\xcd"]
    siege.others_are_well(1)


def messages(unknown_peer: UnknownPeer) -> list[bytes]:
    """Return the payloads of messages of one frame that came."""
    frames = zip(unknown_peer.headers(), list(unknown_peer.frames), strict=False)
    return [frame[48:] for header, frame in frames if header.target_port == INBOX_PORT]


# -- in the name of another


def test_who_can_connect_from_an_address_is_that_host(siege: Siege) -> None:
    """As over TCP. Its own connection ends, and nothing it sends is lost or comes twice."""
    siege.victim.ask("logged")
    for generation in (None, 1, U32):
        impostor = siege.unknown_peer(siege.neighbour.address)
        for _ in range(3):
            impostor.connect(impostor.data(generation=generation).emit())
            wait_until(lambda one=impostor: one.is_up or one.is_over)
            if impostor.is_up:
                impostor.send(*congestion_map(), *message(b"impostor", flags=REPEATED))
                break
            impostor.vanish()
            impostor = siege.unknown_peer(siege.neighbour.address)
        siege.others_are_well()
        impostor.vanish()
        siege.victim.ask("collect", count=0)
    siege.others_are_well()


def test_the_same_unknown_peer_from_two_processes(siege: Siege) -> None:
    """Two adapters at one address: the later one's connection is the one that counts."""
    address = siege.address()
    first = siege.connected(address, generation=1)
    time.sleep(1.1)  # a young connection is not given up for a request that may be older
    with siege.counted(ib_listen_closed_stale=1):
        second = siege.connected(address, generation=1)
        siege.until_cut(first)
    second.send(*congestion_map(), *message(b"second"))
    assert siege.victim.ask("collect", count=1) == [b"second".hex()]
    third = siege.unknown_peer(address)
    with siege.counted(rdma_peer_restarts=1):
        third.connect(third.data(generation=2).emit())
        wait_until(lambda: third.is_up)
        siege.until_cut(second)


# -- many, and silent ones


def test_a_flood_of_connects(siege: Siege) -> None:
    """Requests at once, half of which vanish: those beyond a backlog are refused, none stays."""
    before = siege.victim.rss_bytes, siege.victim.descriptor_count
    for turn in range(2):
        crowd = [siege.unknown_peer(receives=1) for _ in range(60)]
        for unknown_peer in crowd:
            unknown_peer.connect(unknown_peer.data().emit())
        for unknown_peer in crowd[turn % 2 :: 2]:
            unknown_peer.vanish()
        siege.others_are_well(3)
        rest = [one for one in crowd if one._connection is not None]
        wait_until(lambda rest=rest: all(one.is_up or one.is_over for one in rest))
        assert all(one.is_up for one in rest)
        siege.dismiss()
    assert not siege.victim.ask("kept")["requests"]
    assert siege.victim.rss_bytes - before[0] < 32 * MIB
    # An attempt to find one of those who vanished has a descriptor for a moment.
    wait_until(lambda: siege.victim.descriptor_count <= before[1] + 2)


@pytest.mark.parametrize("wait_s", [0.0, 0.0002, 0.001, 0.004, 0.02])
def test_a_unknown_peer_that_vanishes_while_it_connects(siege: Siege, wait_s: float) -> None:
    for _ in range(5):
        unknown_peer = siege.unknown_peer()
        unknown_peer.connect(unknown_peer.data().emit())
        time.sleep(wait_s)
        unknown_peer.vanish()
    siege.connected()


def test_an_unknown_peer_that_does_not_wait_for_its_reject(siege: Siege) -> None:
    """The request is gone when it is to be answered: that is no fault of the node."""
    for _ in range(60):
        unknown_peer = siege.unknown_peer(receives=0)
        unknown_peer.connect(unknown_peer.data(major=2).emit())
        unknown_peer.device.adapter.wait(lambda: False, 200_000)
        unknown_peer.vanish()
    siege.connected()


def test_a_protocol_error_is_followed_by_a_rest(siege: Siege) -> None:
    """A peer that broke the protocol is not let in again at once, and the wait is bounded.

    It is of a random length, and may be over before the next request comes.
    """
    address = siege.address()
    for _ in range(RESTS_MAX):
        unknown_peer = siege.returned(address)
        unknown_peer.send(b"")
        siege.until_cut(unknown_peer)
        again = siege.unknown_peer(address)
        again.connect(again.data().emit())
        if answers([again]) == [False]:
            break
        again.vanish()
    else:
        pytest.fail(f"it was let in at once after each of {RESTS_MAX} errors")
    siege.others_are_well(1)
    siege.returned(address)


# -- peers that the victim asks


ANSWERS: dict[str, tuple[dict[str, int], str]] = {
    "version 2": ({"major": 2}, "rdma_refused_version"),
    "version 3.0": ({"minor": 0}, "rdma_refused_version"),
    "other source": ({"source": 1}, "rdma_refused_address"),
    "other target": ({"target": 1}, "rdma_refused_address"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_in_disorder_is_refused_and_not_hammered(siege: Siege, case: str) -> None:
    changes, counter = ANSWERS[case]
    unknown_peer = siege.unknown_peer()
    good = unknown_peer.data()
    unknown_peer.listen(
        replace(
            good,
            **{
                name: ip_address(int(getattr(good, name)) + 64) if value == 1 else value
                for name, value in changes.items()
            },
        ).emit()
    )
    before = siege.victim.ask("counters")
    assert siege.victim.ask("send", target=unknown_peer.address, payload="abcd") == 1
    wait_until(lambda: siege.victim.ask("counters")[counter] > before[counter])
    time.sleep(0.3)
    assert siege.victim.ask("counters")[counter] - before[counter] < 30
    assert not messages(unknown_peer)
    unknown_peer.answers_with = good.emit()
    wait_until(lambda: messages(unknown_peer) == [b"\xab\xcd"])


def test_an_answer_that_breaks_the_protocol_at_once(siege: Siege) -> None:
    unknown_peer = siege.unknown_peer()
    unknown_peer.listen(unknown_peer.data().emit())
    before = siege.victim.ask("counters")
    assert siege.victim.ask("send", target=unknown_peer.address, payload="abcd") == 1
    ends = 0
    deadline_s = time.monotonic() + 0.5
    while time.monotonic() < deadline_s:
        if unknown_peer.is_up and len(unknown_peer.ends) == ends:
            unknown_peer.send(b"")
            wait_until(lambda seen=ends: len(unknown_peer.ends) > seen)
            ends = len(unknown_peer.ends)
            unknown_peer.answer = None
        time.sleep(0.001)
    protocol_errors = (
        siege.victim.ask("counters")["rdma_protocol_errors"] - before["rdma_protocol_errors"]
    )
    assert 0 < protocol_errors < 20
    siege.others_are_well(1)
