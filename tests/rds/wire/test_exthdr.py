"""Extension headers: the parser's rules as a table, the handshake and the mark."""

import pytest

from urds.common.errors import WireError
from urds.rds.constants import Capability, ExtensionType, RdmaBytesFlag
from urds.rds.wire.extensions import (
    Extension,
    Handshake,
    Mark,
    emit,
    emit_handshake,
    parse,
    parse_handshake,
)


def entry(name: str, *values: int) -> Extension:
    """Return the extension of the type called `name`."""
    return Extension(ExtensionType[name], values)


def space(written: str) -> bytes:
    """Return 16 bytes that begin as `written` in hexadecimal."""
    return bytes.fromhex(written).ljust(16, b"\0")


# What stands in the space, what Linux 7.0 (with UEK's 7 and 9) reads, which rule it shows.
PARSER_RULES: list[tuple[str, str, list[Extension]]] = [
    ("all zero: nothing", "", []),
    ("one extension", "05 0008", [entry("NPATHS", 8)]),
    (
        "the probe of 7.0",
        "05 0008 06 11223344 08 00",
        [entry("NPATHS", 8), entry("GEN_NUM", 0x11223344), entry("SPORT_IDX", 0)],
    ),
    ("order is kept", "06 00000001 05 0002", [entry("GEN_NUM", 1), entry("NPATHS", 2)]),
    ("type 0 stops, what follows is not read", "05 0008 00 06 11223344", [entry("NPATHS", 8)]),
    ("type 16 stops", "10 05 0008", []),
    ("type 255 stops, what stood before counts", "05 0001 ff 06 11223344", [entry("NPATHS", 1)]),
    ("an unknown type has no data", "0f 05 0004", [Extension(15), entry("NPATHS", 4)]),
    (
        "data of an unknown type are read as types",
        "0a 05 0004",
        [Extension(10), entry("NPATHS", 4)],
    ),
    ("a type at the last byte without data", "0a" * 16, [Extension(10)] * 16),
    (
        "data may end with the space",
        "0a" * 13 + "05 0003",
        [*[Extension(10)] * 13, entry("NPATHS", 3)],
    ),
    ("data past the end are not read", "0a" * 14 + "05 00", [Extension(10)] * 14),
    ("a type at the last byte with data", "0a" * 15 + "05", [Extension(10)] * 15),
    (
        "eight bytes of data past the end",
        "03" + "01" * 8 + "03" + "01" * 6,
        [entry("RDMA_DEST", 0x01010101, 0x01010101)],
    ),
    ("a repeated type is read twice", "05 0001 05 0002", [entry("NPATHS", 1), entry("NPATHS", 2)]),
    (
        "the dummy byte of SPORT_IDX is data, not the end",
        "08 00 05 0008",
        [entry("SPORT_IDX", 0), entry("NPATHS", 8)],
    ),
]

EACH_TYPE: list[tuple[ExtensionType, Extension, str]] = [
    (ExtensionType.VERSION, entry("VERSION", 0x0301), "01 00000301"),
    (ExtensionType.RDMA, entry("RDMA", 0x1300), "02 00001300"),
    (
        ExtensionType.RDMA_DEST,
        entry("RDMA_DEST", 0x1300, 16),
        "03 00001300 00000010",
    ),
    (
        ExtensionType.RDMA_BYTES,
        entry("RDMA_BYTES", 8192, RdmaBytesFlag.WRITE),
        "04 00002000 01 000000",
    ),
    (ExtensionType.NPATHS, entry("NPATHS", 8), "05 0008"),
    (ExtensionType.GEN_NUM, entry("GEN_NUM", 0x11223344), "06 11223344"),
    (ExtensionType.CAP_BITS, entry("CAP_BITS", 1), "07 00000001"),
    (ExtensionType.SPORT_IDX, entry("SPORT_IDX", 0), "08 00"),
    (ExtensionType.CSUM, entry("CSUM", 0xDEADBEEF, 1), "09 deadbeef 01 000000"),
]


@pytest.mark.rule("wire-exthdr-none", "wire-exthdr-layout")
@pytest.mark.parametrize(
    ("written", "expected"),
    [(written, expected) for _, written, expected in PARSER_RULES],
    ids=[rule for rule, _, _ in PARSER_RULES],
)
def test_the_parser_has_the_rules_of_linux(written: str, expected: list[Extension]) -> None:
    assert parse(space(written)) == tuple(expected)


@pytest.mark.rule(
    "wire-exthdr-layout",
    "wire-exthdr-version",
    "wire-exthdr-rdma",
    "wire-exthdr-rdma-dest",
    "wire-exthdr-npaths",
    "wire-exthdr-gen-num",
)
@pytest.mark.parametrize(("number", "record", "written"), EACH_TYPE)
def test_each_type_has_its_layout(number: ExtensionType, record: Extension, written: str) -> None:
    data = space(written)
    assert data[0] == number
    assert emit([record]) == data
    assert parse(data) == (record,)


def test_every_type_is_in_the_table() -> None:
    assert {number for number, _, _ in EACH_TYPE} == set(ExtensionType) - {ExtensionType.NONE}


@pytest.mark.parametrize("count", [0, 15, 17])
def test_another_number_of_bytes_is_refused(count: int) -> None:
    with pytest.raises(WireError, match=f"{count} bytes, not 16"):
        parse(bytes(count))


def test_what_does_not_fit_is_left_out_and_a_shorter_one_follows() -> None:
    target = entry("RDMA_DEST", 1, 2)
    assert parse(emit([target, target, entry("NPATHS", 1)])) == (
        target,
        entry("NPATHS", 1),
    )


def test_a_full_space_has_no_terminator() -> None:
    """Nine and seven bytes fill the 16."""
    extensions = (
        entry("RDMA_DEST", 1, 2),
        entry("GEN_NUM", 3),
        entry("SPORT_IDX", 0),
    )
    assert emit(extensions)[14:] == b"\x08\x00"
    assert parse(emit(extensions)) == extensions


@pytest.mark.parametrize(
    "record",
    [
        entry("NPATHS", 65536),
        entry("GEN_NUM", -1),
        entry("RDMA", 1 << 32),
    ],
)
def test_a_value_wider_than_its_field_is_refused(record: Extension) -> None:
    with pytest.raises(WireError, match="is not in 0 to"):
        emit([record])


@pytest.mark.parametrize("number", [-1, 0, 16, 255])
def test_a_type_that_would_end_the_list_is_refused(number: int) -> None:
    with pytest.raises(WireError, match=f"type {number} is not in 1 to 15"):
        emit([Extension(number)])


@pytest.mark.parametrize(
    "record",
    [
        entry("RDMA_DEST", 1),
        Extension(ExtensionType.NPATHS),
        Extension(15, (1,)),
    ],
)
def test_another_number_of_values_is_refused(record: Extension) -> None:
    with pytest.raises(WireError, match=r"\d fields .*, not \d"):
        emit([record])


MARKED = Handshake(
    npaths=8,
    generation=0x11223344,
    sport_index=True,
    mark=Mark(Capability.ACKNOWLEDGEMENTS | Capability.CHECKSUM),
)


@pytest.mark.parametrize(
    ("handshake", "written"),
    [
        (Handshake(), ""),
        (Handshake(npaths=8), "05 0008"),
        (Handshake(npaths=1, generation=7), "05 0001 06 00000007"),
        (
            Handshake(npaths=8, generation=0x11223344, sport_index=True),
            "05 0008 06 11223344 08 00",
        ),
        (
            Handshake(npaths=1, mark=Mark(Capability.ACKNOWLEDGEMENTS)),
            "05 0001 00 00000000 00 00 00 55 52 01 0001",
        ),
        (MARKED, "05 0008 06 11223344 08 00 00 55 52 01 0003"),
    ],
)
def test_a_handshake_has_its_bytes(handshake: Handshake, written: str) -> None:
    assert emit_handshake(handshake) == space(written)
    assert parse_handshake(space(written)) == handshake


def test_linux_reads_the_same_list_with_and_without_mark() -> None:
    assert parse(emit_handshake(MARKED)) == (
        entry("NPATHS", 8),
        entry("GEN_NUM", 0x11223344),
        entry("SPORT_IDX", 0),
    )


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("05 0001 00 00000000 00 00 01 55 52 01 0001", "no terminator at offset 10"),
        ("05 0001 00 00000000 00 00 00 55 53 01 0001", "another sign"),
        ("05 0001 00 00000000 00 00 00 55 52 00 0001", "version 0"),
        ("05 0001 55 52 01 0001", "another place"),
    ],
)
def test_without_the_whole_sign_there_is_no_mark(written: str, why: str) -> None:
    assert parse_handshake(space(written)).mark is None, why


def test_a_later_version_and_unknown_capabilities_are_read() -> None:
    data = space("05 0001 00 00000000 00 00 00 55 52 02 8001")
    assert parse_handshake(data).mark == Mark(Capability(0x8001), version=2)


def test_a_generation_of_zero_is_none() -> None:
    assert parse_handshake(space("05 0008 06 00000000")) == Handshake(npaths=8)
    with pytest.raises(WireError, match="generation 0"):
        emit_handshake(Handshake(generation=0))


def test_other_extensions_do_not_disturb_a_handshake() -> None:
    assert parse_handshake(space("01 00000301 05 0002")) == Handshake(npaths=2)


def test_of_a_repeated_extension_the_last_counts() -> None:
    assert parse_handshake(space("05 0008 05 0002")).npaths == 2


@pytest.mark.parametrize(
    "mark", [Mark(Capability(0), 0), Mark(Capability(0), 256), Mark(Capability(0x10000))]
)
def test_a_mark_wider_than_its_field_is_refused(mark: Mark) -> None:
    with pytest.raises(WireError, match=r"mark: .* is not in"):
        emit_handshake(Handshake(mark=mark))
