"""Reads, writes and atomic operations without the right to: refused, nothing touched.

A wrong key or place costs the connection. Each peer that knows a key may use it, unless its region
is for one destination.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.rds.transports.rdma.hostile_peer import Siege, UnknownPeer, congestion_map, message
from tests.rds.transports.rdma.victim import CANARY, GUARD_BYTES
from urds.rds.constants import ExtensionType
from urds.rds.wire import extensions as exthdr
from urds.verbs.engine.numbers import WCStatus, WROpcode
from urds.verbs.providers.base import ConnectionEventKind

SIZE = 8192
BLANK = CANARY * SIZE
U64 = 1 << 64
# What a unknown peer may ask for. Each tells where in the region that a cookie names.
WAYS: dict[str, dict[str, Any]] = {
    "write": {"opcode": WROpcode.RDMA_WRITE, "data": b"W" * 64},
    "announced write": {"opcode": WROpcode.RDMA_WRITE_WITH_IMM, "data": b"W" * 64},
    "read": {"opcode": WROpcode.RDMA_READ, "length": 64},
    "add": {"opcode": WROpcode.MASKED_ATOMIC_FETCH_AND_ADD, "length": 8, "compare_add": 1},
    "swap": {
        "opcode": WROpcode.MASKED_ATOMIC_CMP_AND_SWP,
        "length": 8,
        "compare_mask": 0,
        "swap": 1,
    },
}
CHANGING = [way for way in WAYS if way != "read"]
SIZES = {way: max(len(what.get("data", b"")), what.get("length", 0)) for way, what in WAYS.items()}
# Of each way where it may not begin.
BEYOND: dict[str, Callable[[int], int]] = {
    "before": lambda _size: -8,
    "last bytes": lambda size: SIZE - size + 8,
    "behind": lambda _size: SIZE,
    "far": lambda _size: 1 << 40,
    "end of all": lambda _size: U64 - 8,
}


def read_of(unknown_peer: UnknownPeer, cookie: int) -> WCStatus | None:
    """Read the beginning of a region; return how that ended."""
    return status(unknown_peer, "read", cookie)


def status(unknown_peer: UnknownPeer, way: str, cookie: int, offset: int = 0) -> WCStatus | None:
    """Do one thing and wait for its end: a status, or that of the connection."""
    unknown_peer.scratch[: SIZES["read"]] = b"\0" * SIZES["read"]
    number = unknown_peer.post(cookie=cookie, offset=offset, **WAYS[way])
    deadline = 20_000
    while unknown_peer.status_of(number) is None and not unknown_peer.is_over and deadline:
        unknown_peer.device.adapter.wait(
            lambda: unknown_peer.status_of(number) is not None or unknown_peer.is_over, 1_000_000
        )
        deadline -= 1
    return unknown_peer.status_of(number)


def refused(siege: Siege, way: str, cookie: int, offset: int = 0) -> None:
    """See that a new unknown peer is refused, that nothing came to it, and that it is cut."""
    unknown_peer = siege.connected()
    ended = status(unknown_peer, way, cookie, offset)
    siege.until_cut(unknown_peer)
    if way == "read":
        assert ended is not WCStatus.SUCCESS
        assert not any(unknown_peer.scratch[: SIZES[way]]), "bytes came"
    elif ended is WCStatus.SUCCESS:  # iWARP: a write is done for its sender when it has left
        assert siege.name == "tcp0" and "write" in way


@pytest.fixture
def region(siege: Siege) -> tuple[int, int]:
    """Give a writable region of the victim: its number and its cookie."""
    number, cookie = siege.victim.ask("region", byte_count=SIZE)
    return number, cookie


def test_who_was_told_a_cookie_may_use_it(siege: Siege, region: tuple[int, int]) -> None:
    """Else the refusals of this file would show nothing."""
    number, cookie = region
    unknown_peer = siege.connected()
    assert status(unknown_peer, "write", cookie, 0) is WCStatus.SUCCESS
    assert status(unknown_peer, "add", cookie, SIZE - 8) is WCStatus.SUCCESS
    assert status(unknown_peer, "read", cookie, SIZE - 64) is WCStatus.SUCCESS
    cell = struct.pack("=Q", struct.unpack("=Q", CANARY * 8)[0] + 1)
    assert bytes(unknown_peer.scratch[:64]) == CANARY * 56 + cell
    siege.untouched(number, b"W" * 64 + CANARY * (SIZE - 72) + cell)


@pytest.mark.parametrize("way", WAYS)
def test_guessed_keys_are_refused(siege: Siege, region: tuple[int, int], way: str) -> None:
    number, cookie = region
    rng = random.Random(way)
    near = [cookie ^ 1, cookie + 256 & 0xFFFFFFFF | cookie >> 32 << 32, cookie & ~0xFF | 0]
    guesses = [one for one in (*near, rng.getrandbits(64), 0) if one != cookie]
    for guess in guesses:
        refused(siege, way, guess)
    siege.untouched(number, BLANK)
    siege.others_are_well(1)


@pytest.mark.parametrize("way", WAYS)
def test_places_outside_a_region_are_refused(
    siege: Siege, region: tuple[int, int], way: str
) -> None:
    number, cookie = region
    for offset in BEYOND.values():
        refused(siege, way, cookie, offset(SIZES[way]))
        siege.untouched(number, BLANK)


@pytest.mark.parametrize("way", CHANGING)
def test_nothing_is_written_to_a_region_for_reading(siege: Siege, way: str) -> None:
    number, cookie = siege.victim.ask("region", byte_count=SIZE, writable=False)
    refused(siege, way, cookie)
    unknown_peer = siege.connected()
    assert read_of(unknown_peer, cookie) is WCStatus.SUCCESS
    assert bytes(unknown_peer.scratch[:64]) == CANARY * 64
    siege.untouched(number, BLANK)


@pytest.mark.parametrize("way", ["add", "swap"])
def test_atomics_need_aligned_bytes(siege: Siege, region: tuple[int, int], way: str) -> None:
    number, cookie = region
    refused(siege, way, cookie, 4)
    siege.untouched(number, BLANK)


@pytest.mark.parametrize("way", WAYS)
def test_keys_that_are_over_are_refused(siege: Siege, region: tuple[int, int], way: str) -> None:
    number, cookie = region
    siege.victim.ask("free", number=number)
    refused(siege, way, cookie)
    siege.untouched(number, BLANK)


@pytest.mark.parametrize("way", WAYS)
def test_keys_of_others_are_refused(siege: Siege, way: str) -> None:
    """Of the neighbour's regions, and of memory of connections, whose keys were not told."""
    _, cookie = siege.neighbour.ask("region", byte_count=SIZE)
    refused(siege, way, cookie)
    assert siege.neighbour.ask("content", number=0) == (CANARY * (SIZE + 2 * GUARD_BYTES)).hex()
    for key in siege.victim.ask("ring_keys"):
        refused(siege, way, key)


@pytest.mark.parametrize("way", WAYS)
def test_a_region_for_one_destination_is_refused_to_who_was_told_its_cookie(
    siege: Siege, way: str
) -> None:
    address = siege.address()
    number, cookie = siege.victim.ask("region", byte_count=SIZE, peer=address)
    refused(siege, way, cookie)
    siege.untouched(number, BLANK)
    meant = siege.connected(address)
    assert status(meant, "write", cookie) is WCStatus.SUCCESS
    assert read_of(meant, cookie) is WCStatus.SUCCESS
    siege.untouched(number, b"W" * 64 + CANARY * (SIZE - 64))


@pytest.mark.parametrize("way", WAYS)
def test_a_key_alone_is_not_enough(siege: Siege, region: tuple[int, int], way: str) -> None:
    """The page at which the region begins is drawn as well; it is in the cookie alone."""
    number, cookie = region
    key, page = cookie & 0xFFFFFFFF, cookie >> 44
    for other in (page ^ 8, page ^ 1 << 10, page ^ 1 << 19, 1 << 20):
        refused(siege, way, key | (cookie >> 32) % 4096 << 32, other << 12)
    siege.untouched(number, BLANK)


@pytest.mark.rule("wire-rdma-use-once")
def test_a_region_for_one_use_is_over_with_the_message_that_says_so(siege: Siege) -> None:
    number, cookie = siege.victim.ask("region", byte_count=SIZE, use_once=True)
    unknown_peer = siege.connected()
    assert status(unknown_peer, "write", cookie) is WCStatus.SUCCESS
    used = exthdr.emit([exthdr.Extension(ExtensionType.RDMA, (cookie & 0xFFFFFFFF,))])
    unknown_peer.send(*congestion_map(), *message(b"used", extension=used))
    assert siege.victim.ask("collect", count=1) == [b"used".hex()]
    siege.until(lambda: siege.victim.ask("is_over", number=number) is True)
    siege.until(lambda: not siege.victim.ask("knows", key=cookie & 0xFFFFFFFF))
    for way in WAYS:
        refused(siege, way, cookie)
    siege.untouched(number, b"W" * 64 + CANARY * (SIZE - 64))


def test_who_says_that_keys_were_used_ends_only_regions_for_one_use(siege: Siege) -> None:
    """An extension names any key: guesses belong to none business, other regions stay."""
    number, cookie = siege.victim.ask("region", byte_count=SIZE)
    rng = random.Random(1)
    unknown_peer = siege.connected()
    keys = [cookie & 0xFFFFFFFF, 0, (1 << 32) - 1, *(rng.getrandbits(32) for _ in range(20))]
    for sequence, key in enumerate(keys, 1):
        used = exthdr.emit([exthdr.Extension(ExtensionType.RDMA, (key,))])
        unknown_peer.send(*message(b"used", sequence=sequence, extension=used))
    assert len(siege.victim.ask("collect", count=len(keys))) == len(keys)
    assert status(unknown_peer, "write", cookie) is WCStatus.SUCCESS
    siege.untouched(number, b"W" * 64 + CANARY * (SIZE - 64))


def test_no_send_takes_a_key_back(siege: Siege, region: tuple[int, int]) -> None:
    """A SEND that asks for invalidation of a region: refused, and the region stays."""
    number, cookie = region
    unknown_peer = siege.connected()
    unknown_peer.post(
        WROpcode.SEND_WITH_INV, data=message(b"x")[0], invalidate_rkey=cookie & 0xFFFFFFFF
    )
    siege.until_cut(unknown_peer)
    assert siege.victim.ask("is_over", number=number) is False
    other = siege.connected()
    assert status(other, "read", cookie) is WCStatus.SUCCESS


def test_a_wrong_key_and_a_wrong_place_are_refused_alike(
    siege: Siege, region: tuple[int, int]
) -> None:
    """Else a guesser could find the key first, and then the page at which the region begins."""
    _, cookie = region
    for way in WAYS:
        ended = []
        for guess, offset in ((cookie ^ 1, 0), (cookie, SIZE), (cookie, U64 - 4096)):
            unknown_peer = siege.connected()
            ended.append((status(unknown_peer, way, guess, offset), unknown_peer.qp.state))
            siege.until_cut(unknown_peer, "no region has this key and these bytes")
            ended[-1] += tuple(unknown_peer.ends)
        assert len(set(ended)) == 1, ended


def test_a_wrong_key_is_a_protocol_error_and_its_host_rests(
    siege: Siege, region: tuple[int, int]
) -> None:
    """Whatever the type of service; what is connected stays, and others are not concerned.

    How long it rests is drawn, from a second at most: it may be over before all have asked. A
    request is accepted then, or rejected where a connection of its type of service stands.
    """
    _, cookie = region
    assert any(_rests_after_a_wrong_key(siege, cookie) for _ in range(20))


def _rests_after_a_wrong_key(siege: Siege, cookie: int) -> bool:
    """Have a new host guess, and connect again; return whether it rested for so long."""
    address = siege.address()
    guesser, other = siege.connected(address), siege.connected(address, tos=7)
    with siege.counted(rdma_wrong_keys=1, rdma_protocol_errors=1):
        read_of(guesser, cookie ^ 1)
        siege.until_cut(guesser, "no region has this key and these bytes")

    def counted(name: str) -> int:
        return int(siege.victim.ask("counters")[name])

    refused, met = "rdma_refused_quarantined", "ib_listen_closed_stale"
    before, met_before = counted(refused), counted(met)
    for count, tos in enumerate((0, 7, 9), 1):
        again = siege.unknown_peer(address)
        again.connect(again.data(tos=tos).emit())
        siege.until(lambda one=again: one.is_up or one.is_over)  # type: ignore[misc]  # bound
        if again.is_up or counted(met) > met_before:
            return False
        assert again.ends == [ConnectionEventKind.REJECTED]
        assert counted(refused) == before + count  # it is counted before the peer is told
    assert read_of(other, cookie) is WCStatus.SUCCESS
    assert siege.connected().is_up
    siege.returned(address)
    return True


def test_many_connections_of_a_host_guess_no_faster_than_one(
    siege: Siege, region: tuple[int, int]
) -> None:
    """Each guess costs half a second on average, also those that are made all at once."""
    _, cookie = region
    address = siege.address()
    guessers = [siege.connected(address, tos=tos) for tos in range(1, 33)]
    with siege.counted(rdma_wrong_keys=len(guessers)):
        began_s = time.monotonic()
        for guesser in guessers:
            guesser.post(cookie=cookie ^ 1, **WAYS["read"])
        for guesser in guessers:
            siege.until_cut(guesser)
    while time.monotonic() < began_s + 4:
        again = siege.unknown_peer(address)
        again.connect(again.data().emit())
        siege.until(lambda one=again: one.is_up or one.is_over)  # type: ignore[misc]  # bound
        assert not again.is_up, f"let in after {time.monotonic() - began_s:.1f} s"
        again.vanish()
        time.sleep(0.05)


def test_any_guess_costs_its_connection(siege: Siege, region: tuple[int, int]) -> None:
    number, cookie = region
    rng = random.Random(7)
    for _ in range(20):
        way = rng.choice(list(WAYS))
        guess = rng.getrandbits(32)
        if guess != cookie & 0xFFFFFFFF:
            refused(siege, way, guess, rng.choice((0, 8, -8, 1 << 20)))
    siege.untouched(number, BLANK)
    siege.others_are_well(1)
