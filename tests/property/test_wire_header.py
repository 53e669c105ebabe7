"""The header for all values: round trips, one reading for record and data plane, the checksum."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.support.checksum import internet_checksum
from urds.common.errors import WireError
from urds.rds.constants import HeaderFlag
from urds.rds.wire.checksum import header_checksum, header_intact
from urds.rds.wire.header import HEADER, HEADER_BYTES, Header


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


any_bytes = st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES)
headers = st.builds(
    Header,
    sequence=unsigned(64),
    ack=unsigned(64),
    payload_bytes=unsigned(32),
    source_port=unsigned(16),
    target_port=unsigned(16),
    flags=unsigned(8).map(HeaderFlag),
    credit=unsigned(8),
    padding=unsigned(32),
    extension=st.binary(min_size=16, max_size=16),
)


@given(headers)
def test_a_header_survives_the_wire(header: Header) -> None:
    assert Header.parse(header.emit()) == header


@given(any_bytes)
def test_bytes_survive_the_record(data: bytes) -> None:
    assert Header.parse(data, verify=False).emit() == data


@given(any_bytes)
def test_record_and_data_plane_read_alike(data: bytes) -> None:
    record = Header.parse(data, verify=False)
    assert HEADER.unpack_from(data) == (
        record.sequence,
        record.ack,
        record.payload_bytes,
        record.source_port,
        record.target_port,
        record.flags,
        record.credit,
        record.padding,
        record.checksum,
        int.from_bytes(record.extension[:8], "big"),
        int.from_bytes(record.extension[8:], "big"),
    )


@given(any_bytes)
@example(bytes(HEADER_BYTES))
def test_record_and_data_plane_verify_alike(data: bytes) -> None:
    """And both as Linux does: 0 passes, else the sum over all bytes must be 0xffff."""
    intact = data[30:32] == b"\0\0" or internet_checksum(data) == 0
    assert header_intact(HEADER.unpack(data)) == intact
    if intact:
        Header.parse(data)
    else:
        with pytest.raises(WireError):
            Header.parse(data)


@given(headers)
@example(Header())
@example(Header(sequence=0xFFFF))
@example(Header(flags=HeaderFlag(0xFF), credit=0xFF))
def test_the_sum_of_integers_is_the_sum_of_bytes(header: Header) -> None:
    """The one difference is stated: where RFC 1071 gives 0, we write its other zero."""
    fields = HEADER.unpack(header.emit())
    value = header_checksum(*fields[:8], *fields[9:])
    assert value == (internet_checksum(header.emit()) or 0xFFFF)
    assert internet_checksum(header.emit(checksum=True)) == 0


@given(unsigned(64), unsigned(64), unsigned(32), unsigned(16), unsigned(16), unsigned(8))
def test_the_short_form_for_a_hot_loop_is_the_same(
    sequence: int, ack: int, payload_bytes: int, source: int, target: int, flags: int
) -> None:
    short = 65535 - (sequence + ack + payload_bytes + source + target + (flags << 8)) % 65535
    assert short == header_checksum(sequence, ack, payload_bytes, source, target, flags)


@pytest.mark.rule("wire-checksum")
@given(headers, st.integers(0, HEADER_BYTES * 8 - 1))
def test_one_flipped_bit_is_refused(header: Header, bit: int) -> None:
    """Holds while the checksum field is not 0 afterwards: zero is "not checked"."""
    data = bytearray(header.emit(checksum=True))
    data[bit // 8] ^= 1 << bit % 8
    assume(any(data[30:32]))
    with pytest.raises(WireError, match="checksum"):
        Header.parse(bytes(data))


@given(headers)
def test_a_computed_checksum_is_never_zero(header: Header) -> None:
    assert any(header.emit(checksum=True)[30:32])


@given(st.binary(max_size=64).filter(lambda data: len(data) != HEADER_BYTES))
def test_no_other_number_of_bytes_is_a_header(data: bytes) -> None:
    with pytest.raises(WireError, match=f"header of {len(data)} bytes, not 48"):
        Header.parse(data)
