"""Connects that no honest peer makes: private data of any kind, other names, floods, no words.

Refused or harmless, counted, and forgotten; neighbours and later connections go on.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from ipaddress import ip_address

import pytest

from tests.rdma.hostile_peer import (
    REPEATED,
    Siege,
    Stranger,
    congestion_map,
    message,
    wait_until,
)
from tests.rdma.victim import INBOX_PORT
from urds.transport.rdma.peer import REJECTION
from urds.verbs.providers.base import ConnectionEventKind
from urds.wire.connect_data import CONNECT_DATA_V4_BYTES, ConnectData, accepted_version

MIB = 1 << 20
U32, U64 = (1 << 32) - 1, (1 << 64) - 1
REFUSALS = ("rdma_refused_address", "rdma_refused_version")


def answers(strangers: list[Stranger]) -> list[bool]:
    """Wait for the answers to what strangers asked; return who was let in."""
    wait_until(lambda: all(one.is_up or one.is_over for one in strangers))
    for one in strangers:
        if not one.is_up:
            assert one.ends == [ConnectionEventKind.REJECTED]
            assert one.rejection[: len(REJECTION)] == REJECTION
    return [one.is_up for one in strangers]


# -- private data


def test_private_data_of_every_length_and_content(siege: Siege) -> None:
    """Too few octets, or zeros, are no offer, which Linux takes for 4.0; the rest is judged."""
    chance = random.Random(5)
    lengths = [*range(CONNECT_DATA_V4_BYTES + 2), 56, 100, 150]
    strangers = [siege.stranger() for _ in lengths]
    before = siege.victim.ask("counters")
    for stranger, length in zip(strangers, lengths, strict=True):
        stranger.connect(chance.randbytes(length))
    let_in = answers(strangers)
    # A device may pad what is short, with zeros: then random octets name other addresses.
    refused = let_in.count(False)
    assert all(not one for one, length in zip(let_in, lengths, strict=True) if length >= 32)
    assert let_in[0], "no private data at all"
    after = siege.victim.ask("counters")
    assert sum(after[name] - before[name] for name in REFUSALS) == refused
    for stranger in strangers:
        if stranger.is_up:
            stranger.send(*congestion_map(), *message(b"well"))
    got = siege.victim.ask("collect", count=let_in.count(True))
    assert got == [b"well".hex()] * let_in.count(True)


def test_flipped_bits_in_private_data(siege: Siege) -> None:
    """Whoever is let in by them is who the connection says he is; the others are refused."""
    chance = random.Random(6)
    asked: list[tuple[Stranger, bool]] = []
    for _ in range(60):
        stranger = siege.stranger()
        octets = bytearray(stranger.data(generation=77).emit())
        for _ in range(chance.choice((1, 1, 3))):
            octets[chance.randrange(len(octets))] ^= 1 << chance.randrange(8)
        read = ConnectData.parse(bytes(octets), ipv6=False)
        named = str(read.source) == stranger.address and str(read.target) == stranger.victim
        stranger.connect(bytes(octets))
        asked.append((stranger, named and accepted_version(read) is not None))
    assert answers([stranger for stranger, _ in asked]) == [due for _, due in asked]


@pytest.mark.parametrize("which", ["source", "target"])
def test_addresses_in_private_data_are_those_of_the_connection(siege: Siege, which: str) -> None:
    others = [siege.neighbour.address, siege.address(), "0.0.0.0", "255.255.255.255"]
    strangers = [siege.stranger() for _ in others]
    with siege.counted(rdma_refused_address=len(others)):
        for stranger, other in zip(strangers, others, strict=True):
            stranger.connect(stranger.data(**{which: ip_address(other)}).emit())
        assert not any(answers(strangers))


def test_versions_are_answered_as_linux_answers_them(siege: Siege) -> None:
    versions = [(3, 1), (3, 0), (3, 2), (2, 1), (1, 0), (0, 0), (4, 0), (4, 1), (5, 0), (255, 255)]
    strangers = [siege.stranger() for _ in versions]
    taken = [(3, 1), (0, 0), (4, 0), (4, 1)]  # 0 is no version
    with siege.counted(rdma_refused_version=len(versions) - len(taken)):
        for stranger, (major, minor) in zip(strangers, versions, strict=True):
            stranger.connect(stranger.data(major=major, minor=minor).emit())
        assert answers(strangers) == [version in taken for version in versions]


@pytest.mark.parametrize("acknowledged", [1, U64])
def test_private_data_acknowledge_nothing_that_a_stranger_was_not_sent(
    siege: Siege, acknowledged: int
) -> None:
    """A number beyond all of ours is about another life; the message is sent all the same."""
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


def messages(stranger: Stranger) -> list[bytes]:
    """Return the payloads of messages of one frame that came."""
    frames = zip(stranger.headers(), list(stranger.frames), strict=False)
    return [frame[48:] for header, frame in frames if header.target_port == INBOX_PORT]


# -- in the name of another


def test_who_can_connect_from_an_address_is_that_host(siege: Siege) -> None:
    """As over TCP. Its own connection ends, and nothing it sends is lost or comes twice."""
    siege.victim.ask("logged")
    for generation in (None, 1, U32):
        impostor = siege.stranger(siege.neighbour.address)
        for _ in range(3):
            impostor.connect(impostor.data(generation=generation).emit())
            wait_until(lambda one=impostor: one.is_up or one.is_over)
            if impostor.is_up:
                impostor.send(*congestion_map(), *message(b"impostor", flags=REPEATED))
                break
            impostor.vanish()
            impostor = siege.stranger(siege.neighbour.address)
        siege.others_are_well()
        impostor.vanish()
        siege.victim.ask("collect", count=0)
    siege.others_are_well()


def test_the_same_stranger_from_two_processes(siege: Siege) -> None:
    """Two adapters at one address: the later one's connection is the one that counts."""
    address = siege.address()
    first = siege.connected(address, generation=1)
    time.sleep(1.1)  # a young connection is not given up for a request that may be older
    with siege.counted(ib_listen_closed_stale=1):
        second = siege.connected(address, generation=1)
        siege.until_cut(first)
    second.send(*congestion_map(), *message(b"second"))
    assert siege.victim.ask("collect", count=1) == [b"second".hex()]
    third = siege.stranger(address)
    with siege.counted(rdma_peer_restarts=1):
        third.connect(third.data(generation=2).emit())
        wait_until(lambda: third.is_up)
        siege.until_cut(second)


# -- many, and silent ones


def test_a_flood_of_connects(siege: Siege) -> None:
    """Requests at once, half of whom vanish: those beyond a backlog are refused, none stays."""
    before = siege.victim.rss_bytes, siege.victim.descriptor_count
    for turn in range(2):
        crowd = [siege.stranger(receives=1) for _ in range(60)]
        for stranger in crowd:
            stranger.connect(stranger.data().emit())
        for stranger in crowd[turn % 2 :: 2]:
            stranger.vanish()
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
def test_a_stranger_that_vanishes_while_it_connects(siege: Siege, wait_s: float) -> None:
    for _ in range(5):
        stranger = siege.stranger()
        stranger.connect(stranger.data().emit())
        time.sleep(wait_s)
        stranger.vanish()
    siege.connected()


def test_a_stranger_that_does_not_wait_for_its_refusal(siege: Siege) -> None:
    """The request is gone when it is to be answered: that is no fault of the node."""
    for _ in range(60):
        stranger = siege.stranger(receives=0)
        stranger.connect(stranger.data(major=2).emit())
        stranger.device.adapter.wait(lambda: False, 200_000)
        stranger.vanish()
    siege.connected()


def test_a_breach_is_followed_by_a_rest(siege: Siege) -> None:
    """Who broke the protocol is not let in again at once, and the wait is bounded."""
    address = siege.address()
    stranger = siege.connected(address)
    stranger.send(b"")
    siege.until_cut(stranger)
    again = siege.stranger(address)
    again.connect(again.data().emit())
    assert answers([again]) == [False]
    siege.others_are_well(1)
    siege.returned(address)


# -- those whom the victim asks


ANSWERS: dict[str, tuple[dict[str, int], str]] = {
    "version 2": ({"major": 2}, "rdma_refused_version"),
    "version 3.0": ({"minor": 0}, "rdma_refused_version"),
    "other source": ({"source": 1}, "rdma_refused_address"),
    "other target": ({"target": 1}, "rdma_refused_address"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_in_disorder_is_refused_and_not_hammered(siege: Siege, case: str) -> None:
    changes, counter = ANSWERS[case]
    stranger = siege.stranger()
    good = stranger.data()
    stranger.listen(
        replace(
            good,
            **{
                name: ip_address(int(getattr(good, name)) + 64) if value == 1 else value
                for name, value in changes.items()
            },
        ).emit()
    )
    before = siege.victim.ask("counters")
    assert siege.victim.ask("send", target=stranger.address, payload="abcd") == 1
    wait_until(lambda: siege.victim.ask("counters")[counter] > before[counter])
    time.sleep(0.3)
    assert siege.victim.ask("counters")[counter] - before[counter] < 30
    assert not messages(stranger)
    stranger.answers_with = good.emit()
    wait_until(lambda: messages(stranger) == [b"\xab\xcd"])


def test_an_answer_that_breaks_the_protocol_at_once(siege: Siege) -> None:
    stranger = siege.stranger()
    stranger.listen(stranger.data().emit())
    before = siege.victim.ask("counters")
    assert siege.victim.ask("send", target=stranger.address, payload="abcd") == 1
    ends = 0
    deadline_s = time.monotonic() + 0.5
    while time.monotonic() < deadline_s:
        if stranger.is_up and len(stranger.ends) == ends:
            stranger.send(b"")
            wait_until(lambda seen=ends: len(stranger.ends) > seen)
            ends = len(stranger.ends)
            stranger.answer = None
        time.sleep(0.001)
    breaches = siege.victim.ask("counters")["rdma_breaches"] - before["rdma_breaches"]
    assert 0 < breaches < 20
    siege.others_are_well(1)
