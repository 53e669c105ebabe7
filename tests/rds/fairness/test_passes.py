"""Who has how much of one pass: counts of messages and bytes, on a clock that stands still.

Each peer has more to say than any pass takes in, so that the shares are the plane's own choice.
"""

from __future__ import annotations

import pytest

from tests.rds.fairness.conftest import MakeFlooded
from tests.rds.fairness.floods import (
    COUNTED_BYTES,
    HEADER_BYTES,
    LONG_BYTES,
    PEERS,
    SHORT_BYTES,
    Flooded,
    backlog,
)

MIB = 1 << 20
ROOMY_BYTES = 16 * MIB  # of a socket: no peer is held back by it
SHORT_PASS_BYTES = 256 << 10  # of a peer beside others
LONG_PASS_BYTES_MAX = SHORT_PASS_BYTES + LONG_BYTES  # for a long payload is read in one piece
SHORTS = backlog(MIB // (SHORT_BYTES + HEADER_BYTES), SHORT_BYTES)


@pytest.fixture(scope="module")
def longs() -> bytes:
    """Return sixteen messages of 1 MiB."""
    return backlog(16, LONG_BYTES)


def read_bytes(flooded: Flooded) -> dict[str, int]:
    """Return how many bytes of each peer were read."""
    return {peer: stream.given for peer, stream in flooded.streams.items()}


def test_each_of_many_peers_has_an_even_share(make_flooded: MakeFlooded) -> None:
    """In a window of 96,000 messages, within a factor of two: the first are not served first."""
    flooded = make_flooded([SHORTS] * PEERS, receive_bytes=ROOMY_BYTES)
    even, window = 3_000, 3_000 * PEERS
    for _ in range(20):
        flooded.turn()
        if sum(read_bytes(flooded).values()) >= window * (SHORT_BYTES + HEADER_BYTES):
            break
    shares = flooded.take(window)
    assert shares.total() == window
    assert {peer: shares[peer] for peer in flooded.peers if shares[peer] < even / 2} == {}
    assert {peer: shares[peer] for peer in flooded.peers if shares[peer] > even * 2} == {}


def test_long_messages_of_one_peer_leave_the_short_ones_their_turn(
    make_flooded: MakeFlooded, longs: bytes
) -> None:
    """Each pass serves all of them, and of the one with 1 MiB messages it reads little more."""
    flooded = make_flooded([longs, *[SHORTS] * (PEERS - 1)], receive_bytes=ROOMY_BYTES)
    before = read_bytes(flooded)
    for number in range(3):
        flooded.turn()
        after = read_bytes(flooded)
        of_long, *of_others = (after[peer] - before[peer] for peer in flooded.peers)
        assert of_long <= LONG_PASS_BYTES_MAX, f"pass {number}"
        assert min(of_others) > 0, f"pass {number}"
        assert max(of_others) <= 2 * min(of_others), f"pass {number}"
        before = after


def test_a_peer_alone_may_have_a_long_pass(make_flooded: MakeFlooded, longs: bytes) -> None:
    """No peer is waited for, and each pass costs a system call."""
    flooded = make_flooded([longs], receive_bytes=ROOMY_BYTES)
    flooded.turn()
    flooded.turn()
    assert read_bytes(flooded)[flooded.peers[0]] > 2 * LONG_BYTES


@pytest.mark.parametrize("taken_per_turn", [0, 50])
def test_what_lies_in_a_socket_is_bounded(make_flooded: MakeFlooded, taken_per_turn: int) -> None:
    """Of 32 peers that heed no map: four times SO_RCVBUF, 16 MiB, and one pass of each.

    So it is if the owner takes nothing, and if it takes slowly.
    """
    receive_bytes = 106_496
    flooded = make_flooded([SHORTS] * PEERS, receive_bytes=receive_bytes)
    pass_messages = SHORT_PASS_BYTES // (SHORT_BYTES + HEADER_BYTES) + 1
    one_pass = pass_messages * (SHORT_BYTES + COUNTED_BYTES)
    bound = 4 * receive_bytes + 16 * MIB + PEERS * one_pass
    for _ in range(12):
        flooded.turn()
        flooded.take(taken_per_turn)
    assert 16 * MIB < flooded.weight() <= bound
