"""Round trips of the bytes of rsockets, and no bytes that crash a parser."""

from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urds.common.errors import WireError
from urds.rsocket.wire.datagram import DatagramOp, QpHeader, UdpHeader
from urds.rsocket.wire.stream import (
    ARGUMENT_MAX,
    SLOTS_MAX,
    ByteOrder,
    ConnectData,
    ConnectFlag,
    Control,
    IomapEntry,
    Op,
    Sge,
    emit_imm_data,
    parse_imm_data,
    scale_slots,
    slots_of,
)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


sges = st.builds(Sge, unsigned(64), unsigned(32), unsigned(32))
mappings = st.builds(IomapEntry, unsigned(64), unsigned(64), unsigned(32), unsigned(32))
byte_orders: st.SearchStrategy[ByteOrder] = st.sampled_from(["little", "big"])
records = st.builds(
    ConnectData,
    version=unsigned(8),
    flags=unsigned(8).map(ConnectFlag),
    credits=unsigned(16),
    iomap_slots=unsigned(8).map(slots_of),
    target_sgl=sges,
    data_buffer=sges,
)
addresses = st.builds(IPv4Address, unsigned(32)) | st.builds(IPv6Address, unsigned(128))
headers = st.one_of(
    st.builds(UdpHeader, st.sampled_from(DatagramOp), unsigned(24), addresses),
    st.builds(QpHeader, unsigned(16), st.builds(IPv4Address, unsigned(32))),
    st.builds(QpHeader, unsigned(16), st.builds(IPv6Address, unsigned(128)), unsigned(32)),
)
# Bytes that come near: both tags, versions and lengths are frequent.
likely = st.builds(
    lambda front, rest: front + rest,
    st.sampled_from([
        *(b"", b"\1", b"\4\x08", b"\6\x18", b"\x55\x55\x55\x55"),
        *(b"\x55\x55\x55\x55\4\0\x10\0\0", b"\x55\x55\x55\x55\6\7\x1c\0\0"),
    ]),
    st.binary(max_size=64),
)  # fmt: skip


@given(records, st.binary(max_size=200))
def test_connect_data_survive_the_wire(record: ConnectData, padding: bytes) -> None:
    data = record.emit()
    assert len(data) == 40
    assert ConnectData.parse(data + padding) == record


@given(st.binary(min_size=40, max_size=40))
def test_all_forty_bytes_come_back_but_those_that_are_reserved(data: bytes) -> None:
    assert ConnectData.parse(data).emit() == data[:4] + bytes(3) + data[7:]


@given(st.integers(0, SLOTS_MAX))
def test_a_scaled_count_never_promises_more(slot_count: int) -> None:
    told = slots_of(scale_slots(slot_count))
    assert told <= slot_count
    assert slot_count - told < 256 or slot_count > 32_767
    assert scale_slots(told) == scale_slots(slot_count)


@given(sges, byte_orders)
def test_an_entry_survives_in_both_orders(entry: Sge, byte_order: ByteOrder) -> None:
    assert Sge.parse(entry.emit(byte_order), byte_order) == entry
    # The two orders are each other's reverse, field by field.
    swapped = entry.emit("little")
    fields = (swapped[:8], swapped[8:12], swapped[12:])
    assert entry.emit("big") == b"".join(field[::-1] for field in fields)


@given(mappings, byte_orders)
def test_a_mapping_survives_in_both_orders(entry: IomapEntry, byte_order: ByteOrder) -> None:
    assert IomapEntry.parse(entry.emit(byte_order), byte_order) == entry


@given(st.sampled_from([Op.DATA, Op.CREDIT, Op.IOMAP]), st.integers(0, ARGUMENT_MAX))
def test_a_word_survives(op: Op, argument: int) -> None:
    assert parse_imm_data(emit_imm_data(op, argument)) == (op, argument)


@given(unsigned(32))
def test_a_word_is_refused_or_written_again(imm_data: int) -> None:
    try:
        op, argument = parse_imm_data(imm_data)
    except WireError:
        assert imm_data >> 29 in (1, 2, 3, 5) or imm_data > 0xE0000000 + Control.SHUTDOWN
        return
    assert emit_imm_data(op, argument) == imm_data


@given(headers, st.binary(max_size=64))
def test_a_header_survives_before_any_payload(header: UdpHeader | QpHeader, payload: bytes) -> None:
    found, rest = type(header).parse(header.emit() + payload)
    assert found == header
    assert rest == payload


@pytest.mark.parametrize("parse", [UdpHeader.parse, QpHeader.parse])
@given(st.binary(max_size=64) | likely)
def test_a_header_is_refused_or_written_again(
    parse: Callable[[bytes], tuple[UdpHeader | QpHeader, memoryview]], data: bytes
) -> None:
    """But for the reserved byte over UDP, which is passed over."""
    with suppress(WireError):
        header, payload = parse(data)
        kept = data if isinstance(header, QpHeader) else data[:7] + b"\0" + data[8:]
        assert header.emit() + payload == kept
