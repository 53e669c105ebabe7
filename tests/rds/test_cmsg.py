"""Control messages: what a send may carry, how results are laid out, what is cut."""

import errno
import struct

import pytest

from urds.rds import cmsg
from urds.rds.cmsg import Atomic, RdmaArgs, RdmaMap, SendRequest
from urds.rds.constants import MSG_CTRUNC, SOL_RDS, SOL_SOCKET, Cmsg, ExtensionType
from urds.rds.wire import extensions as exthdr

ARGS = struct.pack("=7Q", 1, 2, 3, 4, 5, 6, 7)
ATOMIC = struct.pack("=9Q", 1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_nothing_asks_for_nothing() -> None:
    assert cmsg.read([]) == SendRequest()


def test_other_levels_are_ignored() -> None:
    assert cmsg.read([(SOL_SOCKET, 1, bytes(4)), (41, 5, b"")]) == SendRequest()


def test_an_rdma_operation_is_read() -> None:
    wanted = RdmaArgs(
        cookie=1,
        remote_address=2,
        remote_bytes=3,
        local_vector_address=4,
        local_count=5,
        flags=6,
        user_token=7,
    )
    assert cmsg.read([(SOL_RDS, Cmsg.RDMA_ARGS, ARGS)]) == SendRequest(rdma=wanted)


def test_a_region_and_a_cookie_are_read() -> None:
    request = cmsg.read(
        [(SOL_RDS, Cmsg.RDMA_MAP, struct.pack("=4Q", 1, 2, 3, 4)), (SOL_RDS, 12, b"\7\0\0\0")]
    )
    region = RdmaMap(address=1, region_bytes=2, cookie_address=3, flags=4)
    assert request == SendRequest(region=region, zerocopy_cookie=7)


@pytest.mark.parametrize(
    "kind",
    [Cmsg.ATOMIC_FADD, Cmsg.ATOMIC_CSWP, Cmsg.MASKED_ATOMIC_FADD, Cmsg.MASKED_ATOMIC_CSWP],
)
def test_an_atomic_operation_is_read(kind: Cmsg) -> None:
    request = cmsg.read([(SOL_RDS, kind, ATOMIC)])
    assert request.atomic == Atomic(
        kind=kind,
        cookie=1,
        local_address=2,
        remote_address=3,
        operands=(4, 5, 6, 7),
        flags=8,
        user_token=9,
    )


@pytest.mark.parametrize(
    "ancillary",
    [
        [(SOL_RDS, 99, b"")],
        [(SOL_RDS, 10, bytes(16))],  # ASYNC_SEND, of another kernel
        [(SOL_RDS, Cmsg.CONG_UPDATE, bytes(8))],  # received only
        [(SOL_RDS, Cmsg.RDMA_ARGS, bytes(48))],
        [(SOL_RDS, Cmsg.RDMA_DEST, bytes(7))],
        [(SOL_RDS, Cmsg.ZCOPY_COOKIE, bytes(3))],
        [(SOL_RDS, Cmsg.ATOMIC_FADD, bytes(71))],
        [(SOL_RDS, Cmsg.RDMA_ARGS, ARGS)] * 2,
        [(SOL_RDS, Cmsg.ATOMIC_FADD, ATOMIC), (SOL_RDS, Cmsg.ATOMIC_CSWP, ATOMIC)],
        [(SOL_RDS, Cmsg.RDMA_ARGS, ARGS), (SOL_RDS, Cmsg.RDMA_DEST, bytes(8))],
        [(SOL_RDS, Cmsg.RDMA_MAP, bytes(32)), (SOL_RDS, Cmsg.ATOMIC_FADD, ATOMIC)],
        [(SOL_RDS, Cmsg.ZCOPY_COOKIE, bytes(4)), (SOL_RDS, Cmsg.RDMA_ARGS, ARGS)],
    ],
)
def test_a_send_is_refused(ancillary: list[tuple[int, int, bytes]]) -> None:
    with pytest.raises(OSError) as refused:
        cmsg.read(ancillary)
    assert refused.value.errno == errno.EINVAL


def test_received_messages_have_the_bytes_of_linux() -> None:
    """Source: golden records of linux v6.1; the latter two from docs/reference/rds.md 3.3."""
    assert cmsg.congestion_update(1 << 8) == (276, 5, bytes.fromhex("0001000000000000"))
    seconds = bytes.fromhex("fb8e006b000000007b8c050000000000")
    assert cmsg.timestamp(0x6B008EFB * 10**9 + 0x58C7B * 1000 + 999) == (1, 29, seconds)
    assert cmsg.timestamp(0, new=True)[1] == 63
    assert cmsg.latency(((0, 0), (1, 0x21F22AC579))) == (
        276,
        11,
        bytes.fromhex("0200010000000000000000000000000079c52af2210000000000000000000000"),
    )
    assert cmsg.rdma_status(7, 2) == (276, 4, struct.pack("=Qi4x", 7, 2))
    assert cmsg.rdma_destination(9) == (276, 2, struct.pack("=Q", 9))


def test_a_cookie_comes_out_of_the_extension_headers() -> None:
    data = exthdr.emit([exthdr.Extension(ExtensionType.RDMA_DEST, (0x1234, 0x10))])
    assert cmsg.destination_cookie(data) == 0x10 << 32 | 0x1234
    assert cmsg.destination_cookie(b"") is None
    assert cmsg.destination_cookie(bytes(16)) is None


@pytest.mark.parametrize(
    ("buffer_bytes", "lengths", "flags"),
    [
        (0, [], MSG_CTRUNC),
        (15, [], MSG_CTRUNC),
        (16, [0], MSG_CTRUNC),
        (20, [4], MSG_CTRUNC),
        (24, [8], MSG_CTRUNC),
        (40, [8, 0], MSG_CTRUNC),
        (48, [8, 8], MSG_CTRUNC),
        (56, [8, 16], 0),
        (4096, [8, 16], 0),
    ],
)
def test_what_does_not_fit_is_cut_and_told(
    buffer_bytes: int, lengths: list[int], flags: int
) -> None:
    messages = [cmsg.congestion_update(1), cmsg.timestamp(0)]
    laid, told = cmsg.fit(messages, buffer_bytes)
    assert [len(data) for _, _, data in laid] == lengths
    assert told == flags
