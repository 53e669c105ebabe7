"""The bytes of rsockets: private data, words, entries of tables, headers of datagrams."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from urds.common.errors import WireError
from urds.rsocket.wire.datagram import (
    QP_HEADER_V4_BYTES,
    QP_HEADER_V6_BYTES,
    UDP_HEADER_V4_BYTES,
    UDP_HEADER_V6_BYTES,
    DatagramOp,
    QpHeader,
    UdpHeader,
)
from urds.rsocket.wire.stream import (
    ARGUMENT_MAX,
    CONNECT_DATA_BYTES,
    CREDIT_HAS_ENTRY,
    CREDIT_LIMIT_MASK,
    IOMAP_ENTRY_BYTES,
    SGE_BYTES,
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

DATA = ConnectData(
    flags=ConnectFlag.IOMAP | ConnectFlag.BIG_ENDIAN | ConnectFlag.URDS,
    credits=0x0203,
    iomap_slots=256,
    target_sgl=Sge(0x1112131415161718, 0x191A1B1C, 16),
    data_buffer=Sge(0x2122232425262728, 0x292A2B2C, 0x2D2E2F30),
)
DATA_BYTES = bytes.fromhex(
    "01 83 0203 000000 811112131415161718 191a1b1c 000000102122232425262728 292a2b2c 2d2e2f30"
)


# -- private data


@pytest.mark.rule(
    "rsocket-connect-buffer",
    "rsocket-connect-sgl",
    "rsocket-connect-reserved",
    "rsocket-connect-credits",
)
def test_the_layout_of_connect_data() -> None:
    assert len(DATA_BYTES) == CONNECT_DATA_BYTES
    assert DATA.emit() == DATA_BYTES
    assert ConnectData.parse(DATA_BYTES) == DATA


def test_padding_and_reserved_bytes_are_passed_over() -> None:
    """A later sender may use what is reserved; what we send there is zero."""
    reserved = DATA_BYTES[:4] + b"\1\2\3" + DATA_BYTES[7:]
    assert ConnectData.parse(reserved + bytes(156)) == DATA


@pytest.mark.parametrize("byte_count", [0, 1, CONNECT_DATA_BYTES - 1])
def test_too_few_bytes_are_refused(byte_count: int) -> None:
    with pytest.raises(WireError, match=f"{byte_count} bytes, less than 40"):
        ConnectData.parse(DATA_BYTES[:byte_count])


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_read_for_the_core_to_judge(version: int) -> None:
    data = bytes([version]) + DATA_BYTES[1:]
    assert ConnectData.parse(data) == replace(DATA, version=version)
    assert replace(DATA, version=version).emit() == data


def test_unknown_flags_are_kept() -> None:
    data = DATA_BYTES[:1] + b"\x7c" + DATA_BYTES[2:]
    record = ConnectData.parse(data)
    assert record.flags == 0x7C
    assert not record.flags & (ConnectFlag.URDS | ConnectFlag.IOMAP | ConnectFlag.BIG_ENDIAN)
    assert record.emit() == data


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        (replace(DATA, version=256), 256),
        (replace(DATA, flags=ConnectFlag(256)), 256),
        (replace(DATA, credits=1 << 16), 1 << 16),
        (replace(DATA, credits=-1), -1),
        (replace(DATA, iomap_slots=1 << 16), 1 << 16),
        (replace(DATA, iomap_slots=-1), -1),
        (replace(DATA, target_sgl=Sge(1 << 64, 0, 2)), 1 << 64),
        (replace(DATA, data_buffer=Sge(0, 1 << 32, 2)), 1 << 32),
        (replace(DATA, data_buffer=Sge(0, 0, 1 << 32)), 1 << 32),
    ],
)
def test_a_field_that_does_not_fit_is_refused(changed: ConnectData, value: int) -> None:
    with pytest.raises(WireError, match=f"{value}.* in 0 to"):
        changed.emit()


@pytest.mark.parametrize(
    ("slot_count", "scaled", "told"),
    [
        (0, 0, 0),
        (1, 1, 1),
        (128, 0x80, 128),
        (129, 0x80, 128),
        (255, 0x80, 128),
        (256, 0x81, 256),
        (511, 0x81, 256),
        (32_511, 0xFE, 32_256),
        (32_512, 0xFF, 32_512),
        (32_767, 0xFF, 32_512),
        (32_768, 0xFF, 32_512),
        (33_024, 0xFF, 32_512),
        (65_535, 0xFF, 32_512),
    ],
)
def test_the_scale_of_the_iomap(slot_count: int, scaled: int, told: int) -> None:
    """From 32,768 on the original's byte tells too few; ours tells the most there is."""
    assert scale_slots(slot_count) == scaled
    assert slots_of(scaled) == told
    data = replace(DATA, iomap_slots=slot_count).emit()
    assert data[7] == scaled
    assert ConnectData.parse(data).iomap_slots == told <= slot_count


def test_what_scales_to_nothing_is_refused() -> None:
    for slot_count in (-1, 65_536):
        with pytest.raises(WireError, match="0 to 65535"):
            scale_slots(slot_count)
    for scaled in (-1, 256):
        with pytest.raises(WireError, match="0 to 255"):
            slots_of(scaled)


# -- tables


@pytest.mark.rule("rsocket-sge-layout", "rsocket-connect-byte-order")
@pytest.mark.parametrize(
    ("byte_order", "data"),
    [
        ("big", "0102030405060708 090a0b0c 0d0e0f10"),
        ("little", "0807060504030201 0c0b0a09 100f0e0d"),
    ],
)
def test_an_entry_is_in_the_order_of_its_owner(byte_order: ByteOrder, data: str) -> None:
    entry = Sge(0x0102030405060708, 0x090A0B0C, 0x0D0E0F10)
    assert entry.emit(byte_order) == bytes.fromhex(data)
    for kind in (bytes, bytearray, memoryview):
        assert Sge.parse(kind(bytes.fromhex(data)), byte_order) == entry


@pytest.mark.rule("rsocket-iomap-entry")
@pytest.mark.parametrize(
    ("byte_order", "data"),
    [
        ("big", "0000000000000005 0102030405060708 090a0b0c 0d0e0f10"),
        ("little", "0500000000000000 0807060504030201 0c0b0a09 100f0e0d"),
    ],
)
def test_a_mapping_is_in_the_order_of_its_owner(byte_order: ByteOrder, data: str) -> None:
    entry = IomapEntry(5, 0x0102030405060708, 0x090A0B0C, 0x0D0E0F10)
    assert entry.emit(byte_order) == bytes.fromhex(data)
    assert IomapEntry.parse(memoryview(bytes.fromhex(data)), byte_order) == entry


@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_an_entry_of_another_size_or_range_is_refused(byte_order: ByteOrder) -> None:
    for byte_count in (0, SGE_BYTES - 1, SGE_BYTES + 1):
        with pytest.raises(WireError, match=f"{byte_count} bytes, not 16"):
            Sge.parse(bytes(byte_count), byte_order)
    for byte_count in (0, IOMAP_ENTRY_BYTES - 1, IOMAP_ENTRY_BYTES + 1):
        with pytest.raises(WireError, match=f"{byte_count} bytes, not 24"):
            IomapEntry.parse(bytes(byte_count), byte_order)
    for fields in ((-1, 0, 0), (1 << 64, 0, 0), (0, 1 << 32, 0), (0, 0, 1 << 32)):
        with pytest.raises(WireError, match="is not in 0 to"):
            Sge(*fields).emit(byte_order)
        with pytest.raises(WireError, match="is not in 0 to"):
            IomapEntry(0, *fields).emit(byte_order)
    with pytest.raises(WireError, match="is not in 0 to"):
        IomapEntry(1 << 64, 0, 0, 0).emit(byte_order)


# -- words


@pytest.mark.rule("rsocket-message-type", "rsocket-immediate-one-meaning")
@pytest.mark.parametrize(
    ("op", "argument", "imm_data"),
    [
        (Op.DATA, 0, 0),
        (Op.DATA, 1000, 0x000003E8),
        (Op.DATA, ARGUMENT_MAX, 0x1FFFFFFF),
        (Op.CREDIT, 384, 0x80000180),
        (Op.CREDIT, CREDIT_HAS_ENTRY | 0xFFFF, 0x9000FFFF),
        (Op.CREDIT, 0x1017F, 0x8001017F),  # 0xFFFF read and 384 more, as the original adds them
        (Op.IOMAP, 0, 0xC0000000),
        (Op.IOMAP, 32_511, 0xC0007EFF),
        (Op.CONTROL, Control.DISCONNECT, 0xE0000000),
        (Op.CONTROL, Control.KEEPALIVE, 0xE0000001),
        (Op.CONTROL, Control.SHUTDOWN, 0xE0000002),
    ],
)
def test_a_word(op: Op, argument: int, imm_data: int) -> None:
    assert emit_imm_data(op, argument) == imm_data
    assert parse_imm_data(imm_data) == (op, argument)


def test_a_limit_has_sixteen_bits_and_the_mark_is_above_them() -> None:
    _, argument = parse_imm_data(0x8001017F)
    assert argument & CREDIT_LIMIT_MASK == 383
    assert not argument & CREDIT_HAS_ENTRY
    assert CREDIT_HAS_ENTRY <= ARGUMENT_MAX < CREDIT_HAS_ENTRY << 1


@pytest.mark.rule("rsocket-message-type")
@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("argument", [0, 16, ARGUMENT_MAX])
def test_a_reserved_operation_is_refused(number: int, argument: int) -> None:
    with pytest.raises(WireError, match=f"operation {number}, which is reserved"):
        parse_imm_data(number << 29 | argument)


@pytest.mark.parametrize("imm_data", [0xE0000003, 0xFFFFFFFF, -1, 1 << 32])
def test_a_word_that_means_nothing_is_refused(imm_data: int) -> None:
    with pytest.raises(WireError, match="is not in 0 to"):
        parse_imm_data(imm_data)


@pytest.mark.rule("rsocket-data-length")
@pytest.mark.parametrize("argument", [-1, ARGUMENT_MAX + 1])
def test_an_argument_out_of_range_is_refused(argument: int) -> None:
    with pytest.raises(WireError, match=f"{argument} of DATA is not in 0 to 536870911"):
        emit_imm_data(Op.DATA, argument)


# -- headers of datagrams

V4, V6 = IPv4Address("10.1.2.3"), IPv6Address("fd00::7")
V6_HEX = "fd000000000000000000000000000007"
UDP_HEADERS = [
    (UdpHeader(DatagramOp.DATA, 0x123456, V4), "55555555 04 00 10 00 00123456 0a010203"),
    (UdpHeader(DatagramOp.CONTROL, 0xFFFFFF, V4), "55555555 04 07 10 00 00ffffff 0a010203"),
    (UdpHeader(DatagramOp.DATA, 0, V6), "55555555 06 00 1c 00 00000000" + V6_HEX),
]
QP_HEADERS = [
    (QpHeader(0x1234, V4), "04 08 1234 0a010203"),
    (QpHeader(7174, V6), "06 18 1c06 00000000" + V6_HEX),
    (QpHeader(65_535, V6, 0x01020304), "06 18 ffff 01020304" + V6_HEX),
]


@pytest.mark.rule(
    "rsocket-udp-tag",
    "rsocket-udp-fields",
    "rsocket-udp-operation",
    "rsocket-udp-qpn-low",
    "rsocket-ud-header",
)
@pytest.mark.parametrize(("header", "data"), [*UDP_HEADERS, *QP_HEADERS])
def test_the_layout_of_a_header(header: UdpHeader | QpHeader, data: str) -> None:
    assert header.emit() == bytes.fromhex(data)
    found, payload = type(header).parse(bytes.fromhex(data) + b"payload")
    assert found == header
    assert payload == b"payload"
    assert type(header).parse(bytes.fromhex(data))[1] == b""


def test_the_payload_is_a_view() -> None:
    data = bytearray(QP_HEADERS[0][0].emit() + b"payload")
    _, payload = QpHeader.parse(data)
    data[-1:] = b"D"
    assert payload == b"payloaD"


@pytest.mark.parametrize(("header", "data"), [*UDP_HEADERS, *QP_HEADERS])
def test_a_header_cut_short_is_refused(header: UdpHeader | QpHeader, data: str) -> None:
    whole = bytes.fromhex(data)
    assert len(whole) in (
        *(UDP_HEADER_V4_BYTES, UDP_HEADER_V6_BYTES),
        *(QP_HEADER_V4_BYTES, QP_HEADER_V6_BYTES),
    )
    for byte_count in range(len(whole)):
        with pytest.raises(WireError, match=f"{byte_count} bytes, less than"):
            type(header).parse(whole[:byte_count])


@pytest.mark.rule("rsocket-udp-tag", "rsocket-udp-operation")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("55555554 04 00 10 00 00123456 0a010203", "tag 0x55555554"),
        ("55555555 05 00 10 00 00123456 0a010203", "IP version 5"),
        ("55555555 04 00 1c 00 00123456 0a010203", "length 28 of an IPv4 header is not 16"),
        ("55555555 06 00 10 00 00123456" + V6_HEX, "length 16 of an IPv6 header is not 28"),
        ("55555555 04 01 10 00 00123456 0a010203", "operation 1"),
        ("55555555 04 00 10 00 01000000 0a010203", "16777216 is not in 0 to 16777215"),
    ],
)
def test_a_bad_header_over_udp_is_refused(data: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        UdpHeader.parse(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("00 08 1234 0a010203", "IP version 0"),
        ("04 18 1234 0a010203", "length 24 of an IPv4 header is not 8"),
        ("06 08 1c06 00000000" + V6_HEX, "length 8 of an IPv6 header is not 24"),
    ],
)
def test_a_bad_header_over_a_queue_pair_is_refused(data: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        QpHeader.parse(bytes.fromhex(data))


def test_the_reserved_byte_over_udp_is_passed_over() -> None:
    header, data = UDP_HEADERS[0]
    changed = bytearray.fromhex(data)
    changed[7] = 0xFF
    assert UdpHeader.parse(changed)[0] == header


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (UdpHeader(DatagramOp.DATA, 1 << 24, V4), 1 << 24),
        (UdpHeader(DatagramOp.DATA, -1, V6), -1),
        (QpHeader(65_536, V4), 65_536),
        (QpHeader(1, V6, 1 << 32), 1 << 32),
        (QpHeader(1, V4, 1), 1),
    ],
)
def test_a_header_that_does_not_fit_is_refused(header: UdpHeader | QpHeader, value: int) -> None:
    with pytest.raises(WireError, match=f"{value}"):
        header.emit()
