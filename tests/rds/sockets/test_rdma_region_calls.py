"""Memory regions by structures of C over mailboxes that only record: what they give and refuse.

The rules of docs/reference/rds.md 4.3 for GET_MR, GET_MR_FOR_DEST, FREE_MR, RDMA_MAP and RDMA_DEST.
That one check comes before another is shown by a call that breaks both.
"""

import errno
import socket
import struct
from ipaddress import ip_address

import pytest

import urds
from tests.rds.sockets.conftest import FAKE_LOCAL, FAKE_PEER, bound_over
from tests.rds.sockets.fake_backend import FakeBackend, FakeMailbox
from tests.rds.sockets.raw_rdma import (
    NOWHERE,
    Memory,
    Pages,
    free_mr,
    get_mr,
    get_region,
    rdma_dest,
    rdma_map,
    read_only_page,
    region_option,
    send,
    send_refused,
)
from tests.support.errnos import refused
from urds.common.errors import ErrorReason, os_error
from urds.rds.cmsg import destination_cookie
from urds.rds.constants import SOL_RDS, RdmaFlag, SockOpt, Transport

MIB = 1 << 20
ALL = (1 << 64) - 1
REGION_OPTIONS = (SockOpt.GET_MR, SockOpt.GET_MR_FOR_DEST)


@pytest.fixture
def asked(fake: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Return what the table of regions is asked for, instead of having it made."""
    noted: list[dict[str, object]] = []

    def register(*_: object, **given: object) -> int:
        noted.append(given)
        return 7

    monkeypatch.setattr(fake.table, "register", register)
    return noted


# -- the type of service is chosen before bind


def test_the_type_of_service_is_chosen_once(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    assert over_rdma.ioctl(urds.SIOCRDSGETTOS) == 0
    assert over_rdma.ioctl(urds.SIOCRDSSETTOS, 0x105) == 5  # a byte: kernel parity
    assert over_rdma.ioctl(urds.SIOCRDSGETTOS) == 5
    assert box.configured[-1].tos == 5
    assert refused(over_rdma.ioctl, urds.SIOCRDSSETTOS, 6) == errno.EINVAL
    assert box.configured[-1].tos == 5


def test_the_type_of_service_is_chosen_before_the_first_send(over_rdma: urds.Socket) -> None:
    assert over_rdma.ioctl(urds.SIOCRDSSETTOS, 0) == 0
    over_rdma.sendto(b"x", ("10.0.0.2", 5000))
    assert refused(over_rdma.ioctl, urds.SIOCRDSSETTOS, 5) == errno.EINVAL
    assert over_rdma.ioctl(urds.SIOCRDSGETTOS) == 0


def test_tcp_carries_every_type_of_service_as_0(over_tcp: urds.Socket) -> None:
    assert over_tcp.ioctl(urds.SIOCRDSSETTOS, 5) == 0
    assert over_tcp.ioctl(urds.SIOCRDSSETTOS, 6) == 0
    over_tcp.sendto(b"x", ("10.0.0.2", 5000))
    assert refused(over_tcp.ioctl, urds.SIOCRDSSETTOS, 7) == errno.EINVAL


def test_without_a_transport_there_is_no_type_of_service(fake: FakeBackend) -> None:
    with urds.Socket() as sock:
        assert refused(sock.ioctl, urds.SIOCRDSSETTOS, 5) == errno.ENOTTY
        assert sock.ioctl(urds.SIOCRDSGETTOS) == 0
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(Transport.IB))
        assert sock.ioctl(urds.SIOCRDSSETTOS, 5) == 5
        sock.bind(FAKE_LOCAL)
        assert fake.bound[-1].configured[-1].tos == 5


# -- regions by setsockopt


@pytest.mark.parametrize("option", REGION_OPTIONS)
def test_a_region_gives_its_cookie(
    over_rdma: urds.Socket, fake: FakeBackend, option: SockOpt
) -> None:
    memory, place = Memory(100), Memory(8)
    value = region_option(option, memory.address, 100, place.address, RdmaFlag.READWRITE)
    over_rdma.setsockopt(SOL_RDS, option, value)
    cookie = place.number()
    assert (cookie >> 32) % 4096 == memory.address % 4096
    assert fake.table.owns(fake.bound[-1], cookie)
    over_rdma.setsockopt(SOL_RDS, SockOpt.FREE_MR, free_mr(cookie, RdmaFlag.INVALIDATE))
    assert len(fake.table) == 0


@pytest.mark.parametrize("option", REGION_OPTIONS)
def test_a_cookie_may_go_nowhere(
    over_rdma: urds.Socket, fake: FakeBackend, option: SockOpt
) -> None:
    memory = Memory(1)
    over_rdma.setsockopt(SOL_RDS, option, region_option(option, memory.address, 1, 0, 0))
    assert len(fake.table) == 1


@pytest.mark.parametrize("option", REGION_OPTIONS)
def test_a_region_needs_rdma(fake: FakeBackend, over_tcp: urds.Socket, option: SockOpt) -> None:
    good = region_option(option, Memory(8).address, 8, 0, 0)
    bad = region_option(option, NOWHERE, 0, 0, 0)
    assert refused(over_tcp.setsockopt, SOL_RDS, option, good[:-1]) == errno.EINVAL
    assert refused(over_tcp.setsockopt, SOL_RDS, option, good) == errno.EOPNOTSUPP
    assert refused(over_tcp.setsockopt, SOL_RDS, option, bad) == errno.EOPNOTSUPP
    with urds.Socket() as unbound:
        assert refused(unbound.setsockopt, SOL_RDS, option, good + b"\0") == errno.EINVAL
        assert refused(unbound.setsockopt, SOL_RDS, option, good) == errno.ENOTCONN


def test_a_closed_socket_makes_no_region(over_rdma: urds.Socket) -> None:
    over_rdma.close()
    assert refused(over_rdma.setsockopt, SOL_RDS, SockOpt.GET_MR, bytes(3)) == errno.EBADF


@pytest.mark.parametrize("option", REGION_OPTIONS)
@pytest.mark.parametrize(
    ("address", "byte_count", "code"),
    [
        (8, 0, errno.EINVAL),
        (NOWHERE, 1 << 32, errno.EINVAL),
        (ALL, 2, errno.EINVAL),  # the sum wraps
        (ALL - 4095, 1, errno.EINVAL),  # its last page would
        (NOWHERE, MIB + 4097, errno.EMSGSIZE),  # before EFAULT
        (NOWHERE + 4095, MIB + 2, errno.EMSGSIZE),
        (NOWHERE, MIB + 4096, errno.EFAULT),
        (NOWHERE, 8, errno.EFAULT),
        (0, 8, errno.EFAULT),
    ],
)
def test_memory_that_can_be_no_region(
    over_rdma: urds.Socket,
    fake: FakeBackend,
    option: SockOpt,
    address: int,
    byte_count: int,
    code: int,
) -> None:
    value = region_option(option, address, byte_count, 0, 0)
    assert refused(over_rdma.setsockopt, SOL_RDS, option, value) == code
    assert len(fake.table) == 0


def test_a_region_of_a_mebibyte_and_a_page_fits(over_rdma: urds.Socket) -> None:
    pages = Pages(MIB + 4096)
    value = region_option(SockOpt.GET_MR, pages.address, MIB + 4096, 0, 0)
    over_rdma.setsockopt(SOL_RDS, SockOpt.GET_MR, value)


def test_memory_that_cannot_be_written_is_no_region_even_for_reading(
    over_rdma: urds.Socket,
) -> None:
    with read_only_page() as address:
        value = region_option(SockOpt.GET_MR, address, 8, 0, 0)
        assert refused(over_rdma.setsockopt, SOL_RDS, SockOpt.GET_MR, value) == errno.EFAULT


@pytest.mark.parametrize("option", REGION_OPTIONS)
def test_a_region_whose_cookie_cannot_be_given_is_none(
    over_rdma: urds.Socket, fake: FakeBackend, option: SockOpt
) -> None:
    value = region_option(option, Memory(8).address, 8, NOWHERE, 0)
    assert refused(over_rdma.setsockopt, SOL_RDS, option, value) == errno.EFAULT
    assert len(fake.table) == 0


@pytest.mark.parametrize(
    ("flags", "writable", "use_once"),
    [
        (0, False, False),
        (RdmaFlag.READWRITE, True, False),
        (RdmaFlag.USE_ONCE, False, True),
        (RdmaFlag.READWRITE | RdmaFlag.USE_ONCE | RdmaFlag.INVALIDATE, True, True),
    ],
)
def test_flags_say_what_a_region_allows(
    over_rdma: urds.Socket,
    asked: list[dict[str, object]],
    flags: int,
    writable: bool,
    use_once: bool,
) -> None:
    get_region(over_rdma, Memory(8), flags)
    assert [(one["writable"], one["use_once"]) for one in asked] == [(writable, use_once)]


@pytest.mark.parametrize(
    ("destination", "peer"),
    [
        (struct.pack("=H2s4s", socket.AF_INET, b"\x0f\xa0", bytes([10, 0, 0, 9])), "10.0.0.9"),
        (
            struct.pack("=H2s4x16sI", socket.AF_INET6, b"\x0f\xa0", bytes(15) + b"\x07", 0),
            "::7",
        ),
        (
            struct.pack(
                "=H2s4x16sI", socket.AF_INET6, bytes(2), bytes(10) + b"\xff\xff\x0a\0\0\x09", 0
            ),
            "10.0.0.9",
        ),
        (b"", None),
        (struct.pack("=H2s4s", socket.AF_UNIX, b"ab", b"cdef"), None),
    ],
    ids=["v4", "v6", "mapped", "none", "other family"],
)
def test_a_region_may_be_for_one_destination(
    over_rdma: urds.Socket,
    asked: list[dict[str, object]],
    destination: bytes,
    peer: str | None,
) -> None:
    """What is no address is for the holder of the cookie: Linux does not look at it."""
    place = Memory(8)
    value = destination.ljust(128, b"\0") + get_mr(Memory(8).address, 8, place.address)
    over_rdma.setsockopt(SOL_RDS, SockOpt.GET_MR_FOR_DEST, value)
    assert [one["peer"] for one in asked] == [None if peer is None else ip_address(peer)]


def test_a_region_that_a_message_makes_is_for_its_destination(
    over_rdma: urds.Socket, asked: list[dict[str, object]]
) -> None:
    memory = Memory(8)
    send(over_rdma, rdma_map(memory.address, 8))
    over_rdma.get_mr(bytearray(8))
    over_rdma.get_mr(bytearray(8), ("10.0.0.9", 0))
    peers = [one["peer"] for one in asked]
    assert peers == [ip_address(FAKE_PEER[0]), None, ip_address("10.0.0.9")]


def test_what_cannot_be_freed(over_rdma: urds.Socket, fake: FakeBackend) -> None:
    option = (SOL_RDS, SockOpt.FREE_MR)
    assert refused(over_rdma.setsockopt, *option, free_mr(1)[:-1]) == errno.EINVAL
    assert refused(over_rdma.setsockopt, *option, free_mr(12345)) == errno.EINVAL
    cookie = get_region(over_rdma, Memory(8))
    with bound_over(Transport.IB) as other:
        assert refused(other.setsockopt, *option, free_mr(cookie)) == errno.EINVAL
    over_rdma.setsockopt(*option, free_mr(cookie))
    assert refused(over_rdma.setsockopt, *option, free_mr(cookie)) == errno.EINVAL


def test_cookie_0_frees_what_is_unused_where_there_is_rdma(
    over_rdma: urds.Socket, over_tcp: urds.Socket, fake: FakeBackend
) -> None:
    get_region(over_rdma, Memory(8))
    over_rdma.setsockopt(SOL_RDS, SockOpt.FREE_MR, free_mr(0))
    assert len(fake.table) == 1
    assert refused(over_tcp.setsockopt, SOL_RDS, SockOpt.FREE_MR, free_mr(0)) == errno.EINVAL
    with urds.Socket() as unbound:
        assert refused(unbound.setsockopt, SOL_RDS, SockOpt.FREE_MR, free_mr(0)) == errno.EINVAL


def test_regions_go_with_their_socket(over_rdma: urds.Socket, fake: FakeBackend) -> None:
    get_region(over_rdma, Memory(8))
    over_rdma.close()
    assert len(fake.table) == 0


# -- cookies and regions by control message


def test_a_cookie_of_ours_goes_along(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    cookie = get_region(over_rdma, Memory(64))
    send(over_rdma, rdma_dest(cookie))
    assert destination_cookie(box.extensions[0]) == cookie


def test_an_unknown_cookie_or_one_of_another_socket_does_not(
    over_rdma: urds.Socket, over_tcp: urds.Socket
) -> None:
    cookie = get_region(over_rdma, Memory(64))
    assert send_refused(over_tcp, rdma_dest(cookie)) == errno.EINVAL
    for unknown_peer in (0, 5, cookie ^ 1):
        assert send_refused(over_rdma, rdma_dest(unknown_peer)) == errno.EINVAL
    with bound_over(Transport.IB) as other:
        assert send_refused(other, rdma_dest(cookie)) == errno.EINVAL


def test_a_region_is_made_with_its_message(
    over_rdma: urds.Socket, box: FakeMailbox, fake: FakeBackend
) -> None:
    memory, place = Memory(64), Memory(8)
    send(over_rdma, rdma_map(memory.address, 64, place.address, RdmaFlag.READWRITE))
    cookie = place.number()
    assert destination_cookie(box.extensions[0]) == cookie
    assert fake.table.owns(box, cookie)
    assert [str(peer) for peer in fake.asked_to_connect] == ["10.0.0.2"]


def test_a_region_waits_for_the_connection(
    over_rdma: urds.Socket, box: FakeMailbox, fake: FakeBackend
) -> None:
    """Bad memory is told before; the wait is the caller's, for the connection was asked for."""
    fake.is_connected = False
    assert send_refused(over_rdma, rdma_map(NOWHERE, 64)) == errno.EFAULT
    assert not fake.asked_to_connect
    memory = Memory(64)
    assert send_refused(over_rdma, rdma_map(memory.address, 64)) == errno.EAGAIN
    assert len(fake.asked_to_connect) == 1
    assert len(fake.table) == 0 and not box.sent


@pytest.mark.parametrize(
    "reason", [ErrorReason.QUEUE_FULL, ErrorReason.PEER_CONGESTED, ErrorReason.TIMED_OUT]
)
def test_a_region_goes_if_its_message_does_not(
    over_rdma: urds.Socket, box: FakeMailbox, fake: FakeBackend, reason: ErrorReason
) -> None:
    box.error = os_error(reason)
    memory, place = Memory(64), Memory(8)
    code = send_refused(over_rdma, rdma_map(memory.address, 64, place.address))
    assert code == os_error(reason).errno
    assert place.number(), "it was made"
    assert len(fake.table) == 0


def test_a_region_goes_if_a_signal_ends_the_send(
    over_rdma: urds.Socket, box: FakeMailbox, fake: FakeBackend
) -> None:
    box.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        send_refused(over_rdma, rdma_map(Memory(64).address, 64))
    assert len(fake.table) == 0


def test_a_region_of_a_failed_message_stays_if_it_was_there_before(
    over_rdma: urds.Socket, box: FakeMailbox, fake: FakeBackend
) -> None:
    cookie = get_region(over_rdma, Memory(64))
    box.error = os_error(ErrorReason.QUEUE_FULL)
    assert send_refused(over_rdma, rdma_dest(cookie)) == errno.EAGAIN
    assert fake.table.owns(box, cookie)


def test_a_region_whose_cookie_cannot_be_written_sends_nothing(
    over_rdma: urds.Socket, box: FakeMailbox, fake: FakeBackend
) -> None:
    memory = Memory(64)
    assert send_refused(over_rdma, rdma_map(memory.address, 64, NOWHERE)) == errno.EFAULT
    assert len(fake.table) == 0 and not box.sent


def test_tcp_makes_no_region_whatever_its_memory(over_tcp: urds.Socket) -> None:
    assert send_refused(over_tcp, rdma_map(0, 0)) == errno.EOPNOTSUPP
