"""Bytes of rds-stress: options, headers, patterns. Source: docs/reference/rds.md 5.6."""

from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urds.cli.rds.stress.wire import (
    HEADER_BYTES,
    LONG_BYTES,
    NO_RDMA,
    SHORT_BYTES,
    Parameters,
    Rdma,
    RdmaPart,
    form_bytes,
    message_pattern,
    rdma_pattern,
)
from urds.common.errors import WireError

TOLD = Parameters(
    depth=0x0102,
    request_bytes=0x10000,
    ack_bytes=0x40,
    rdma_bytes=0x1000,
    send_address=IPv4Address("10.0.0.2"),
    receive_address=IPv4Address("10.0.0.1"),
    base_port=4000,
    tasks=3,
    run_s=0x0A0B0C0D,
    verify=True,
    show_perfdata=True,
    use_congestion_monitor=True,
    rdma_use_get_mr=True,
    rdma_cache_mrs=True,
    simplex=True,
    rdma_mode=2,
    rdma_vector=5,
    rdma_alignment=7,
    connect_retries=9,
)
# Field by field in the order of the record: seven of 32 bits with two of 16 after the sixth, 15
# of 8, three of 32.
SHORT = bytes.fromhex(
    "00000102 00010000 00000040 00001000 0a000002 0a000001 0fa0 0003 0a0b0c0d"
    "00 00 00 01 00 01 01 00 01 01 01 00 00 01 02"
    "00000005 00000007 00000009"
)
LONG = b"2.0.7" + bytes(11) + SHORT + bytes([32, 0])


def test_the_short_form_has_59_bytes() -> None:
    assert len(SHORT) == SHORT_BYTES == 59
    assert TOLD.emit() == SHORT
    assert Parameters.parse(SHORT) == TOLD


def test_a_type_of_service_needs_the_long_form_of_77_bytes() -> None:
    assert len(LONG) == LONG_BYTES == 77
    with_service = replace(TOLD, type_of_service=32)
    assert with_service.emit() == LONG
    assert Parameters.parse(LONG) == with_service


def test_the_long_form_of_another_version_is_known_too() -> None:
    """rds-stress knows its own only; a version begins with a digit, which no depth does."""
    other = b"3.11.4-rc1" + LONG[10:]
    assert form_bytes(other[:16]) == LONG_BYTES
    assert Parameters.parse(other) == replace(TOLD, type_of_service=32)
    assert form_bytes(SHORT[:16]) == SHORT_BYTES


@pytest.mark.parametrize("data", [b"", SHORT[:15], SHORT[:-1], SHORT + b"\0", LONG[:-1]])
def test_options_of_another_size_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="not 59 or 77"):
        Parameters.parse(data)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"request_bytes": 62}, "-q 62: must be from 63"),
        ({"ack_bytes": (1 << 20) + 1}, "-a 1048577: must be from 63 to 1048576"),
        ({"tasks": 0}, "-t 0: must be from 1 to 256"),
        ({"depth": 16_385}, "-d 16385: must be from 1 to 16384"),
        ({"depth": 16_384, "tasks": 2}, "-t times -d 32768"),
        ({"base_port": 65_533}, "-p 65533: must be from 1 to 65532"),
        ({"rdma_mode": 3}, "-M 3: must be from 0 to 2"),
        ({"rdma_vector": 513}, "-I 513: must be from 1 to 512"),
        ({"rdma_bytes": 1 << 20}, "-D times -I 5242880"),
        ({"rdma_alignment": 4097}, "--rdma-alignment 4097"),
        ({"depth": 300, "request_bytes": 1 << 20, "tasks": 10}, "bytes of all buffers"),
        ({"is_async": True}, "--async needs the RDS of UEK"),
        ({"rdma_use_once": True}, "exclude each other"),
        ({"rdma_use_get_mr": False}, "needs --rdma-use-get-mr 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_from_a_peer_as_from_the_user(
    values: dict[str, int], words: str
) -> None:
    with pytest.raises(WireError) as refused:
        Parameters.parse(replace(TOLD, **values).emit())  # type: ignore[arg-type]  # as the names say
    assert words in str(refused.value)


@given(st.binary(min_size=59, max_size=59) | st.binary(min_size=77, max_size=77))
def test_any_bytes_are_options_that_can_be_or_refused(data: bytes) -> None:
    try:
        told = Parameters.parse(data)
    except WireError:
        return
    told.check()
    assert Parameters.parse(told.emit()) == told


def test_the_rdma_part_fills_a_header_of_63_bytes() -> None:
    part = RdmaPart(
        operation=Rdma.WRITE,
        address=0x0102030405060708,
        offset=0,
        pattern=0x11 << 32 | 0x22,
        key=0x33 << 32 | 0x44,
        rdma_bytes=0x55,
        vector=0x66,
        retry=1,
        remote_error=2,
        pending=3,
    )
    data = bytes.fromhex(
        "02 0102030405060708 0000000000000000 0000001100000022 0000003300000044"
        "00000055 00000066 01 02 03"
    )
    assert part.emit() == data
    assert RdmaPart.parse(bytes(19) + data + b"payload") == part
    assert bytes(44) == NO_RDMA
    with pytest.raises(WireError, match="62 bytes, a header has 63"):
        RdmaPart.parse(bytes(62))


def test_the_pattern_begins_anew_but_for_one_in_each_256_bytes() -> None:
    """The first is 11; then 41 * (k + 3), and one more for each 256 bytes before."""
    pattern = message_pattern(1024)
    assert pattern[:4] == bytes([11, 41 * 14 & 255, 41 * (62 + 3) & 255, 41 * (105 + 3) & 255])
    for index in range(1, 1024):
        assert pattern[index] == (41 * (pattern[index - 1] + 3) + index // 256) % 256
    assert pattern[:256] != pattern[256:512]  # swapped blocks show
    assert message_pattern(0) == b""


def test_memory_is_filled_with_the_pattern_of_the_request_in_host_order() -> None:
    assert (
        rdma_pattern(1, 20) == (1).to_bytes(8, "little") * 2
        or rdma_pattern(1, 20) == (1).to_bytes(8, "big") * 2
    )
    assert HEADER_BYTES == 63
