"""The private data of an RDMA connect, and the version that Linux answers."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from urds.common.errors import WireError
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.private_data import (
    CONNECT_DATA_V4_BYTES,
    CONNECT_DATA_V6_BYTES,
    ConnectData,
    accepted_version,
)

V4 = ConnectData(
    source=IPv4Address("10.0.0.1"),
    target=IPv4Address("10.0.0.2"),
    tos=5,
    ack_sequence=0x0102030405060708,
    credits=0x090A0B0C,
)
V6 = replace(V4, source=IPv6Address("fd00::1"), target=IPv6Address("fd00::2"))
TAIL = "03 01 0003 05 000000 0102030405060708 090a0b0c 00000000"
V4_BYTES = bytes.fromhex("0a000001 0a000002" + TAIL)
V6_BYTES = bytes.fromhex(f"fd{'00' * 14}01 fd{'00' * 14}02" + TAIL)


@pytest.mark.rule("wire-ib-connect-fields")
@pytest.mark.parametrize(("record", "data"), [(V4, V4_BYTES), (V6, V6_BYTES)])
def test_the_layout(record: ConnectData, data: bytes) -> None:
    ipv6 = record is V6
    assert len(data) == (CONNECT_DATA_V6_BYTES if ipv6 else CONNECT_DATA_V4_BYTES)
    assert record.emit() == data
    assert ConnectData.parse(data, ipv6=ipv6) == record


MARKED_TAIL = "03 01 0003 05 555201 0102030405060708 090a0b0c fedcba98"


@pytest.mark.parametrize(("record", "data"), [(V4, V4_BYTES), (V6, V6_BYTES)])
def test_the_mark_stands_where_linux_has_zeros(record: ConnectData, data: bytes) -> None:
    marked = replace(record, generation=0xFEDCBA98)
    written = data[: -len(bytes.fromhex(TAIL))] + bytes.fromhex(MARKED_TAIL)
    assert marked.emit() == written
    assert ConnectData.parse(written, ipv6=record is V6) == marked


@pytest.mark.parametrize(
    ("sign", "generation", "found"),
    [
        ("555201", "00000007", 7),
        ("5552ff", "00000007", 7),  # later versions keep what is here
        ("555200", "00000007", None),
        ("555201", "00000000", None),
        ("555301", "00000007", None),
        ("000000", "00000007", None),
    ],
)
def test_what_counts_as_a_mark(sign: str, generation: str, found: int | None) -> None:
    data = V4_BYTES[:13] + bytes.fromhex(sign) + V4_BYTES[16:28] + bytes.fromhex(generation)
    record = ConnectData.parse(data, ipv6=False)
    assert replace(record, frame_format=FrameFormat.SHORT) == replace(V4, generation=found)


@pytest.mark.parametrize(("version", "taken"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 3), (255, 3)])
def test_the_version_of_the_mark_tells_the_newest_frames(version: int, taken: int) -> None:
    marked = bytearray(replace(V4, generation=7).emit())
    marked[15] = version
    assert ConnectData.parse(bytes(marked), ipv6=False).frame_format == taken
    if version == taken:
        assert replace(V4, generation=7, frame_format=FrameFormat(taken)).emit() == marked


def test_frames_without_a_generation_are_not_said() -> None:
    assert replace(V4, frame_format=FrameFormat.PACKED).emit() == V4_BYTES


@pytest.mark.parametrize("generation", [0, 1 << 32])
def test_a_generation_out_of_range_is_refused(generation: int) -> None:
    with pytest.raises(WireError, match=str(generation)):
        replace(V4, generation=generation).emit()


def test_padding_behind_the_record_is_passed_over() -> None:
    assert ConnectData.parse(V4_BYTES + bytes(164), ipv6=False) == V4


@pytest.mark.parametrize(("data", "ipv6"), [(V4_BYTES[:-1], False), (V6_BYTES[:-1], True)])
def test_too_few_bytes_are_refused(data: bytes, ipv6: bool) -> None:
    with pytest.raises(WireError, match=f"{len(data)} bytes, less than {len(data) + 1}"):
        ConnectData.parse(data, ipv6=ipv6)


def test_two_families_are_refused() -> None:
    with pytest.raises(WireError, match="two families"):
        replace(V4, target=IPv6Address("::1")).emit()


def test_a_value_wider_than_its_field_is_refused() -> None:
    with pytest.raises(WireError, match="4294967296"):
        replace(V4, credits=1 << 32).emit()


@pytest.mark.rule("wire-ib-major", "wire-ib-minor-mask")
@pytest.mark.parametrize(
    ("major", "minor", "minor_mask", "answer"),
    [
        (3, 1, 0x0003, (3, 1)),
        (3, 1, 0x0000, (3, 1)),
        (3, 0, 0x0001, None),
        (3, 2, 0x0007, None),
        (4, 1, 0x0003, (4, 1)),
        (4, 1, 0x0001, (4, 0)),
        (4, 2, 0x0004, None),
        (0, 0, 0x0003, (4, 0)),
        (5, 0, 0x0003, None),
    ],
)
def test_the_version_that_linux_answers(
    major: int, minor: int, minor_mask: int, answer: tuple[int, int] | None
) -> None:
    offer = replace(V4, major=major, minor=minor, minor_mask=minor_mask)
    assert accepted_version(offer) == answer


def test_an_offer_without_data_is_taken_for_4_0() -> None:
    assert accepted_version(None) == (4, 0)
