"""The header and its checksum, by the values of the reference."""

import pytest

from tests.support.checksum import internet_checksum
from urds.common.errors import WireError
from urds.rds.constants import HeaderFlag
from urds.rds.wire.checksum import header_checksum, header_intact
from urds.rds.wire.header import HEADER, HEADER_BYTES, Header

# The checksum of this header was verified by hand against RFC 1071: e0b6.
PLAIN = bytes.fromhex(
    "0000000000000001 0000000000000000 00000005 0fa1 0fa2 00 00 00000000 0000" + "00" * 16
)
CHECKED = bytes.fromhex(
    "0000000000000001 0000000000000000 00000005 0fa1 0fa2 00 00 00000000 e0b6" + "00" * 16
)
RECORD = Header(sequence=1, payload_bytes=5, source_port=4001, target_port=4002)


@pytest.mark.rule("wire-header-size")
def test_the_layout_has_48_bytes() -> None:
    assert HEADER.size == HEADER_BYTES == 48


def test_a_record_without_checksum_is_written_with_zero() -> None:
    assert RECORD.emit() == PLAIN
    assert Header.parse(PLAIN) == RECORD


@pytest.mark.rule("wire-checksum")
def test_the_checksum_is_the_one_of_the_reference() -> None:
    assert RECORD.emit(checksum=True) == CHECKED
    assert Header.parse(CHECKED).checksum == 0xE0B6
    assert header_checksum(1, 0, 5, 4001, 4002, 0) == 0xE0B6


@pytest.mark.rule("wire-header-fields", "wire-len", "wire-padding", "wire-exthdr-space")
def test_each_field_stands_at_its_offset() -> None:
    data = bytes(range(1, 31)) + bytes(2) + bytes(range(33, 49))
    assert Header.parse(data) == Header(
        sequence=0x0102030405060708,
        ack=0x090A0B0C0D0E0F10,
        payload_bytes=0x11121314,
        source_port=0x1516,
        target_port=0x1718,
        flags=HeaderFlag(0x19),
        credit=0x1A,
        padding=0x1B1C1D1E,
        checksum=0,
        extension=bytes(range(33, 49)),
    )


def test_a_wrong_checksum_is_refused_with_both_values() -> None:
    wrong = CHECKED[:30] + b"\xe0\xb7" + CHECKED[32:]
    with pytest.raises(WireError, match="0xe0b7, computed 0xe0b6"):
        Header.parse(wrong)


def test_a_wrong_checksum_passes_where_it_is_not_verified() -> None:
    wrong = CHECKED[:30] + b"\xe0\xb7" + CHECKED[32:]
    assert Header.parse(wrong, verify=False).checksum == 0xE0B7
    assert Header.parse(wrong, verify=False).emit() == wrong


def test_zero_is_not_checked() -> None:
    assert header_intact(HEADER.unpack(PLAIN))


def test_a_sum_of_all_ones_is_sent_as_ffff_and_not_as_unchecked() -> None:
    """The words sum to 0xffff, so RFC 1071 would write 0, which means unchecked."""
    data = Header(sequence=0xFFFF).emit(checksum=True)
    assert internet_checksum(Header(sequence=0xFFFF).emit()) == 0
    assert data[30:32] == b"\xff\xff"
    assert internet_checksum(data) == 0  # what Linux verifies
    assert header_intact(HEADER.unpack(data))


def test_a_header_of_zeros_has_the_checksum_ffff() -> None:
    assert Header().emit(checksum=True)[30:32] == b"\xff\xff"
    assert internet_checksum(bytes(HEADER_BYTES)) == 0xFFFF


def test_an_odd_byte_is_the_upper_half_of_a_word() -> None:
    assert internet_checksum(b"\x12") == internet_checksum(b"\x12\x00") == 0xEDFF


@pytest.mark.parametrize("count", [0, 47, 49])
def test_another_number_of_bytes_is_refused(count: int) -> None:
    with pytest.raises(WireError, match=f"header of {count} bytes, not 48"):
        Header.parse(bytes(count))


@pytest.mark.rule("rds7-message-length", "wire-addresses-and-ports")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sequence", 1 << 64),
        ("sequence", -1),
        ("ack", 1 << 64),
        ("payload_bytes", 1 << 32),
        ("source_port", 65536),
        ("target_port", 65536),
        ("credit", 256),
        ("padding", 1 << 32),
        ("checksum", 65536),
    ],
)
def test_a_value_wider_than_its_field_is_refused(field: str, value: int) -> None:
    with pytest.raises(WireError, match=f"header: {value} is not in 0 to"):
        Header(**{field: value}).emit()


def test_an_extension_space_of_another_size_is_refused() -> None:
    with pytest.raises(WireError, match="15 bytes, not 16"):
        Header(extension=bytes(15)).emit()


def test_an_unknown_flag_stays() -> None:
    data = Header(flags=HeaderFlag(0xC0)).emit()
    assert data[24] == 0xC0
    assert Header.parse(data).flags == 0xC0


def test_the_message_names_the_value_that_does_not_fit() -> None:
    """The greatest value that fits is not blamed."""
    with pytest.raises(WireError, match="header: 65536 is not in 0 to 65535"):
        Header(sequence=(1 << 64) - 1, source_port=65535, target_port=65536).emit()
