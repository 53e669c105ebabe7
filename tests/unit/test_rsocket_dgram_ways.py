"""What our sockets say of their devices, as octets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urds.errors import WireError
from urds.rsocket.wire.datagram_ways import WAYS_MAX, DatagramWay, DatagramWays

OPENING = bytes(range(8))
TWO = DatagramWays(OPENING, (DatagramWay("shm", 7174), DatagramWay("tcp", 40_000)))
TWO_OCTETS = bytes.fromhex(
    "75726473 01 02 0000 0001020304050607"  # urds, version, count, opening
    "73686d0000000000 1c06 0000"
    "7463700000000000 9c40 0000"
)

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=8)
ways = st.builds(DatagramWay, names, st.integers(1, 0xFFFF))
said = st.builds(
    DatagramWays,
    st.binary(min_size=8, max_size=8),
    st.lists(ways, max_size=WAYS_MAX).map(tuple),
)


def test_two_ways_are_these_octets() -> None:
    assert TWO.emit() == TWO_OCTETS
    assert DatagramWays.parse(TWO_OCTETS) == TWO


@given(said)
def test_what_is_written_is_read(what: DatagramWays) -> None:
    assert DatagramWays.parse(what.emit()) == what


@given(st.binary(max_size=64))
def test_any_octets_are_read_or_refused(octets: bytes) -> None:
    try:
        read = DatagramWays.parse(octets)
    except WireError:
        return
    assert len(read.emit()) == len(octets)


@pytest.mark.parametrize(
    ("octets", "complaint"),
    [
        (TWO_OCTETS[:15], "15 octets, not 16"),
        (b"Urds" + TWO_OCTETS[4:], "begin with"),
        (TWO_OCTETS[:4] + b"\x02" + TWO_OCTETS[5:], "version 2"),
        (TWO_OCTETS[:-1], "2 ways in 39 octets"),
        (TWO_OCTETS + b"\0", "2 ways in 41 octets"),
        (TWO_OCTETS[:5] + b"\x09" + TWO_OCTETS[6:], "9 ways, limit 8"),
        (TWO_OCTETS.replace(b"shm", b"s-m"), "way b's-m'"),
        (TWO_OCTETS.replace(b"\x1c\x06", b"\0\0"), "at port 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(octets: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        DatagramWays.parse(octets)


@pytest.mark.parametrize(
    "what",
    [
        DatagramWays(bytes(7)),
        DatagramWays(OPENING, (DatagramWay("shm", 0),)),
        DatagramWays(OPENING, (DatagramWay("shm", 0x10000),)),
        DatagramWays(OPENING, (DatagramWay("ninechars", 1),)),
        DatagramWays(OPENING, (DatagramWay("", 1),)),
        DatagramWays(OPENING, (DatagramWay("shm", 1),) * 9),
    ],
)
def test_what_does_not_fit_is_not_written(what: DatagramWays) -> None:
    with pytest.raises(WireError):
        what.emit()
