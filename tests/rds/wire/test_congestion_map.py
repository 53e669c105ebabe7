"""The congestion map as a set of ports and as bytes."""

import sys

import pytest

from urds.common.errors import WireError
from urds.rds.wire.congestion_map import CongestionMap


@pytest.mark.rule("wire-congestion-bits")
@pytest.mark.parametrize(
    ("port", "offset", "byte"),
    [(0, 0, 0x01), (1, 0, 0x02), (7, 0, 0x80), (8, 1, 0x01), (5000, 625, 0x01), (5100, 637, 0x10),
     (65535, 8191, 0x80)],
)  # fmt: skip
def test_a_port_has_its_bit(port: int, offset: int, byte: int) -> None:
    data = CongestionMap([port]).emit()
    assert len(data) == 8192
    assert data[offset] == byte
    assert data.count(0) == 8191
    assert list(CongestionMap.parse(data)) == [port]


def test_set_and_clear_tell_what_is_news() -> None:
    ports = CongestionMap()
    assert ports.set(4000)
    assert not ports.set(4000)
    assert ports.test(4000)
    assert not ports.test(4001)
    assert ports.clear(4000)
    assert not ports.clear(4000)
    assert not ports.test(4000)


def test_clear_leaves_the_other_ports_of_the_byte() -> None:
    ports = CongestionMap([8, 9])
    ports.clear(8)
    assert list(ports) == [9]


@pytest.mark.parametrize(
    "empty", [CongestionMap()] + [CongestionMap.parse(kind(8192)) for kind in (bytes, bytearray)]
)
def test_an_empty_map_takes_no_memory(empty: CongestionMap) -> None:
    assert not empty
    assert sys.getsizeof(empty) < 100
    assert not empty.data
    assert empty.emit() is CongestionMap().emit()


def test_a_map_that_became_empty_gives_its_memory_back() -> None:
    ports = CongestionMap([4000, 65535])
    ports.clear(4000)
    assert ports
    ports.clear(65535)
    assert not ports
    assert not ports.data


@pytest.mark.parametrize("count", [0, 8191, 8193])
def test_another_number_of_bytes_is_refused(count: int) -> None:
    with pytest.raises(WireError, match=f"{count} bytes, not 8192"):
        CongestionMap.parse(bytes(count))


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    ports = CongestionMap([1])
    for call in (ports.set, ports.clear, ports.test):
        with pytest.raises(WireError, match=f"port {port} is not in 0 to 65535"):
            call(port)


def test_a_map_does_not_share_the_bytes_it_was_read_from() -> None:
    data = bytearray(8192)
    data[0] = 1
    ports = CongestionMap.parse(data)
    data[0] = 0
    assert list(ports) == [0]


@pytest.mark.parametrize("before", [[], [1, 65535]])
def test_a_bad_size_replaces_nothing(before: list[int]) -> None:
    ports = CongestionMap(before)
    with pytest.raises(WireError, match="8191 bytes, not 8192"):
        ports.replace(bytes(8191))
    assert list(ports) == before


def test_kept_bytes_show_every_change() -> None:
    """The path of a message tests its bit there."""
    ports = CongestionMap()
    data = ports.data
    assert ports.replace(CongestionMap([4000]).emit()) == 0
    assert data[500] == 1
    ports.set(4001)
    assert data[500] == 3
    assert ports.replace(bytes(8192)) == 1 << 4000 % 64 | 1 << 4001 % 64
    assert not data
    ports.set(4001)
    assert data[500] == 2


def test_ports_64_apart_share_a_bit_of_the_monitor_mask() -> None:
    assert CongestionMap([0, 64, 65]).monitor_mask() == 0b11
    assert CongestionMap([63, 65535]).monitor_mask() == 1 << 63
    assert CongestionMap().monitor_mask() == 0


def test_equal_maps_hold_the_same_ports() -> None:
    assert CongestionMap([1, 2]) == CongestionMap([2, 1])
    assert CongestionMap([1]) != CongestionMap()
    assert CongestionMap([1]) != {1}
    assert repr(CongestionMap([2, 1])) == "CongestionMap([1, 2])"


def test_a_memoryview_is_read() -> None:
    assert not CongestionMap.parse(memoryview(bytes(8192)))
    assert len(CongestionMap.parse(memoryview(b"\xff" * 8192))) == 65536
