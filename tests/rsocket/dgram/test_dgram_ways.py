"""What our sockets say of their devices, as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urds.common.errors import WireError
from urds.rsocket.wire.datagram import DEVICES_MAX, DatagramDevicePort, DatagramDevices

OPENING = bytes(range(8))
TWO = DatagramDevices(OPENING, (DatagramDevicePort("shm", 7174), DatagramDevicePort("tcp", 40_000)))
TWO_BYTES = bytes.fromhex(
    "75726473 01 02 0000 0001020304050607"  # urds, version, count, opening
    "73686d0000000000 1c06 0000"
    "7463700000000000 9c40 0000"
)

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=8)
device_ports = st.builds(DatagramDevicePort, names, st.integers(1, 0xFFFF))
said = st.builds(
    DatagramDevices,
    st.binary(min_size=8, max_size=8),
    st.lists(device_ports, max_size=DEVICES_MAX).map(tuple),
)


def test_two_ways_are_these_bytes() -> None:
    assert TWO.emit() == TWO_BYTES
    assert DatagramDevices.parse(TWO_BYTES) == TWO


@given(said)
def test_what_is_written_is_read(what: DatagramDevices) -> None:
    assert DatagramDevices.parse(what.emit()) == what


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read = DatagramDevices.parse(data)
    except WireError:
        return
    assert len(read.emit()) == len(data)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (TWO_BYTES[:15], "15 bytes, not 16"),
        (b"Urds" + TWO_BYTES[4:], "begin with"),
        (TWO_BYTES[:4] + b"\x02" + TWO_BYTES[5:], "version 2"),
        (TWO_BYTES[:-1], "2 ways in 39 bytes"),
        (TWO_BYTES + b"\0", "2 ways in 41 bytes"),
        (TWO_BYTES[:5] + b"\x09" + TWO_BYTES[6:], "9 ways, limit 8"),
        (TWO_BYTES.replace(b"shm", b"s-m"), "way b's-m'"),
        (TWO_BYTES.replace(b"\x1c\x06", b"\0\0"), "at port 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(data: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        DatagramDevices.parse(data)


@pytest.mark.parametrize(
    "what",
    [
        DatagramDevices(bytes(7)),
        DatagramDevices(OPENING, (DatagramDevicePort("shm", 0),)),
        DatagramDevices(OPENING, (DatagramDevicePort("shm", 0x10000),)),
        DatagramDevices(OPENING, (DatagramDevicePort("ninechars", 1),)),
        DatagramDevices(OPENING, (DatagramDevicePort("", 1),)),
        DatagramDevices(OPENING, (DatagramDevicePort("shm", 1),) * 9),
    ],
)
def test_what_does_not_fit_is_not_written(what: DatagramDevices) -> None:
    with pytest.raises(WireError):
        what.emit()
