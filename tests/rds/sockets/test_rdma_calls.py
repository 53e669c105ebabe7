"""The face of RDMA without structures, over mailboxes that only record."""

import array
import errno
from collections.abc import Callable
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import FAKE_PEER
from tests.rds.sockets.fake_backend import FakeBackend, FakeMailbox
from tests.support.errnos import refused
from urds.rds.cmsg import destination_cookie, destination_extension
from urds.rds.constants import MSG_DONTWAIT, MSG_OOB, RdmaStatus
from urds.rds.runtime.backend import AtomicOperation, CongestionNotice, Message, RdmaTransfer

MIB = 1 << 20
ALL = (1 << 64) - 1
COOKIE = 12 << 32 | 77
# Each call that sends, with good arguments.
CALLS: dict[str, Callable[..., Any]] = {
    "rdma_write": lambda sock, **more: sock.rdma_write(b"octets", COOKIE, **more),
    "rdma_read": lambda sock, **more: sock.rdma_read(bytearray(6), COOKIE, **more),
    "fetch_add": lambda sock, **more: sock.fetch_add(COOKIE, 1, **more),
    "compare_swap": lambda sock, **more: sock.compare_swap(COOKIE, 1, 2, **more),
}


@pytest.fixture(params=list(CALLS))
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Give each call that makes an operation."""
    return CALLS[request.param]


def transfer(box: FakeMailbox) -> RdmaTransfer:
    """Return the last operation, which is a transfer."""
    operation = box.operations[-1]
    assert isinstance(operation, RdmaTransfer)
    return operation


def atomic(box: FakeMailbox) -> AtomicOperation:
    """Return the last operation, which is an atomic one."""
    operation = box.operations[-1]
    assert isinstance(operation, AtomicOperation)
    return operation


# -- regions


def test_a_region_knows_its_cookie_and_ends_once(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    memory = bytearray(100)
    region = over_rdma.get_mr(memory)
    assert region.region_bytes == 100
    assert (region.cookie >> 32) % 4096 == 0, "it begins at the beginning of a page"
    assert not region.is_over
    region.free()
    region.free()
    assert region.is_over
    memory.append(1)


def test_a_region_ends_with_its_block_or_its_socket(
    over_rdma: urds.Socket, fake: FakeBackend
) -> None:
    with over_rdma.get_mr(bytearray(8)) as region:
        assert len(fake.table) == 1
    assert region.is_over and len(fake.table) == 0
    other = over_rdma.get_mr(bytearray(8))
    over_rdma.close()
    assert other.is_over
    other.free()


def test_a_region_that_a_peer_used_up_is_over(over_rdma: urds.Socket, fake: FakeBackend) -> None:
    region = over_rdma.get_mr(bytearray(8), use_once=True)
    fake.table.handle_key_used(over_rdma.mailbox, region.cookie & 0xFFFFFFFF)
    assert region.is_over
    region.free()


@pytest.mark.parametrize(
    "buffer", [bytearray(8), memoryview(bytearray(8)), array.array("q", [1]), bytearray(MIB)]
)
def test_any_contiguous_buffer_will_do(over_rdma: urds.Socket, buffer: Any) -> None:
    assert over_rdma.get_mr(buffer).region_bytes == memoryview(buffer).nbytes


def test_buffers_that_cannot_be_regions(over_rdma: urds.Socket, fake: FakeBackend) -> None:
    with pytest.raises(ValueError, match="writable=False"):
        over_rdma.get_mr(b"octets")
    assert over_rdma.get_mr(b"octets", writable=False).region_bytes == 6
    with pytest.raises(TypeError):
        over_rdma.get_mr(memoryview(bytearray(8))[::2])
    with pytest.raises(TypeError):
        over_rdma.get_mr(8)
    assert refused(over_rdma.get_mr, bytearray()) == errno.EINVAL
    assert refused(over_rdma.get_mr, bytearray(MIB + 1)) == errno.EMSGSIZE
    assert len(fake.table) == 1


def test_a_region_of_a_socket_that_is_closed_meanwhile_is_none(
    over_rdma: urds.Socket, fake: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close frees the socket's regions before this one is among them."""
    real = fake.table.register

    def register(*arguments: Any, **more: Any) -> int:
        over_rdma.close()
        return real(*arguments, **more)

    monkeypatch.setattr(fake.table, "register", register)
    assert refused(over_rdma.get_mr, bytearray(8)) == errno.EBADF
    assert len(fake.table) == 0


def test_a_region_is_sent_and_received(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    region = over_rdma.get_mr(bytearray(8))
    assert over_rdma.send_region(b"request", region, FAKE_PEER) == 7
    assert box.sent[-1][:2] == (b"request", FAKE_PEER)
    assert destination_cookie(box.extensions[-1]) == region.cookie
    box.queue += [
        Message(b"request", FAKE_PEER, destination_extension(COOKIE), 0, ()),
        Message(b"plain", FAKE_PEER, b"", 0, ()),
        CongestionNotice(3),
    ]
    assert over_rdma.recv_region(4) == (b"requ", FAKE_PEER, COOKIE)
    assert over_rdma.recv_region(100) == (b"plain", FAKE_PEER, None)
    assert over_rdma.recv_region(100) == (b"", None, None)
    assert refused(over_rdma.recv_region, 100, int(MSG_DONTWAIT)) == errno.EAGAIN
    with pytest.raises(ValueError, match="negative"):
        over_rdma.recv_region(-1)


def test_only_a_living_region_of_this_socket_is_sent(
    over_rdma: urds.Socket, box: FakeMailbox, fake: FakeBackend
) -> None:
    region = over_rdma.get_mr(bytearray(8))
    region.free()
    assert refused(over_rdma.send_region, b"x", region, FAKE_PEER) == errno.EINVAL
    assert not box.sent


# -- transfers


def test_one_buffer_or_several_are_written(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    over_rdma.rdma_write(b"octets", COOKIE, FAKE_PEER, offset=5)
    operation = transfer(box)
    assert (operation.key, operation.remote_address) == (77, 17)
    assert operation.is_write and not operation.fence
    assert [bytes(piece) for piece in operation.pieces] == [b"octets"]
    numbers = array.array("H", [1, 2])
    over_rdma.rdma_write([b"ab", b"", bytearray(b"c"), numbers], COOKIE, FAKE_PEER)
    assert [bytes(piece) for piece in transfer(box).pieces] == [b"ab", b"c", bytes(numbers)]


def test_what_is_read_comes_into_the_buffers_themselves(
    over_rdma: urds.Socket, box: FakeMailbox
) -> None:
    buffer = bytearray(4)
    over_rdma.rdma_read(buffer, COOKIE, FAKE_PEER)
    transfer(box).pieces[0][:] = b"abcd"
    assert buffer == b"abcd"
    assert not transfer(box).is_write


def test_a_message_after_a_read_waits_for_it_unless_told(
    over_rdma: urds.Socket, box: FakeMailbox
) -> None:
    over_rdma.rdma_read(bytearray(1), COOKIE, FAKE_PEER, payload=b"done")
    assert transfer(box).fence
    over_rdma.rdma_read(bytearray(1), COOKIE, FAKE_PEER, payload=b"done", fence=False)
    assert not transfer(box).fence


@pytest.mark.parametrize("name", ["rdma_write", "rdma_read"])
@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ([], errno.EINVAL),
        ([0, 0], errno.EINVAL),
        ([MIB, 1], errno.EMSGSIZE),
        ([1] * 1025, errno.EMSGSIZE),
    ],
)
def test_sizes_that_cannot_be(
    over_rdma: urds.Socket, box: FakeMailbox, name: str, sizes: list[int], code: int
) -> None:
    buffers = [bytearray(size) for size in sizes]
    assert refused(getattr(over_rdma, name), buffers, COOKIE, FAKE_PEER) == code
    assert not box.sent


@pytest.mark.parametrize("sizes", [[1], [MIB], [1] * 1024, [0] * 2000 + [1]])
def test_sizes_that_can(over_rdma: urds.Socket, box: FakeMailbox, sizes: list[int]) -> None:
    over_rdma.rdma_write([bytes(size) for size in sizes], COOKIE, FAKE_PEER)
    assert transfer(box).payload_bytes == sum(sizes)


def test_buffers_that_cannot_be_transferred(over_rdma: urds.Socket) -> None:
    with pytest.raises(ValueError, match="bytes is read-only"):
        over_rdma.rdma_read(b"octets", COOKIE, FAKE_PEER)
    for wrong in (5, [5], "text", memoryview(bytearray(8))[::2]):
        with pytest.raises(TypeError):
            over_rdma.rdma_write(wrong, COOKIE, FAKE_PEER)


# -- atomic operations


@pytest.mark.parametrize(
    ("addend", "operand"), [(1, 1), (ALL, ALL), (-1, ALL), (-(1 << 63), 1 << 63)]
)
def test_an_add_is_modulo_64_bits(
    over_rdma: urds.Socket, box: FakeMailbox, addend: int, operand: int
) -> None:
    over_rdma.fetch_add(COOKIE, addend, FAKE_PEER, offset=8, no_carry_mask=1 << 31)
    operation = atomic(box)
    assert (operation.key, operation.remote_address) == (77, 20)
    assert (operation.is_compare, operation.operand) == (False, operand)
    assert operation.no_carry_mask == 1 << 31


def test_a_swap_has_masks_of_all_bits_unless_told(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    over_rdma.compare_swap(COOKIE, 1, 2, FAKE_PEER)
    assert (atomic(box).compare_mask, atomic(box).swap_mask) == (ALL, ALL)
    over_rdma.compare_swap(COOKIE, 1, 2, FAKE_PEER, compare_mask=3, swap_mask=4)
    operation = atomic(box)
    assert (operation.is_compare, operation.operand, operation.swap) == (True, 1, 2)
    assert (operation.compare_mask, operation.swap_mask) == (3, 4)


def test_the_old_value_is_known_after_success_only(
    over_rdma: urds.Socket, box: FakeMailbox
) -> None:
    pending = over_rdma.fetch_add(COOKIE, 1, FAKE_PEER)
    atomic(box).result[:] = array.array("Q", [ALL - 1]).tobytes()  # in host order
    for status in (None, RdmaStatus.DROPPED, RdmaStatus.REMOTE_ERROR):
        atomic(box).status = status
        with pytest.raises(LookupError):
            _ = pending.old_value
    atomic(box).status = RdmaStatus.SUCCESS
    assert pending.old_value == ALL - 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"expected": -1},
        {"expected": ALL + 1},
        {"new": -1},
        {"compare_mask": ALL + 1},
        {"swap_mask": -1},
        {"offset": -1},
        {"offset": ALL + 1},
        {"cookie": -1},
        {"cookie": ALL + 1},
    ],
)
def test_numbers_beyond_64_bits_are_refused(
    over_rdma: urds.Socket, box: FakeMailbox, wrong: dict[str, int]
) -> None:
    given: dict[str, Any] = {
        "cookie": COOKIE,
        "expected": 1,
        "new": 2,
        "address": FAKE_PEER,
    } | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        over_rdma.compare_swap(**given)
    assert not box.sent


@pytest.mark.parametrize(
    "wrong", [{"addend": ALL + 1}, {"addend": -(1 << 63) - 1}, {"no_carry_mask": -1}]
)
def test_addends_beyond_64_bits_are_refused(over_rdma: urds.Socket, wrong: dict[str, int]) -> None:
    given: dict[str, Any] = {"cookie": COOKIE, "addend": 1, "address": FAKE_PEER} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        over_rdma.fetch_add(**given)


# -- all of them


def test_without_payload_the_peer_hears_nothing(
    over_rdma: urds.Socket, box: FakeMailbox, call: Callable[..., Any]
) -> None:
    call(over_rdma, address=FAKE_PEER)
    assert box.operations[-1].silent and box.sent[-1][0] == b""
    call(over_rdma, address=FAKE_PEER, payload=b"")
    assert not box.operations[-1].silent
    call(over_rdma, address=FAKE_PEER, payload=b"done")
    assert box.sent[-1][0] == b"done"
    assert not box.operations[-1].notify, "how it ended is in what the call returned"


def test_the_default_destination_will_do(
    over_rdma: urds.Socket, box: FakeMailbox, call: Callable[..., Any]
) -> None:
    assert refused(call, over_rdma) == errno.ENOTCONN
    over_rdma.connect(FAKE_PEER)
    call(over_rdma)
    assert box.sent[-1][1] == FAKE_PEER


def test_flags_and_timeouts_are_those_of_sends(
    over_rdma: urds.Socket, box: FakeMailbox, call: Callable[..., Any]
) -> None:
    assert (
        refused(lambda: call(over_rdma, address=FAKE_PEER, flags=int(MSG_OOB))) == errno.EOPNOTSUPP
    )
    call(over_rdma, address=FAKE_PEER, flags=int(MSG_DONTWAIT))
    over_rdma.settimeout(2)
    call(over_rdma, address=FAKE_PEER)
    assert [wait_ns for _, _, wait_ns in box.sent] == [0, 2_000_000_000]
    too_long = bytes((1 << 20) + 1)
    assert refused(lambda: call(over_rdma, address=FAKE_PEER, payload=too_long)) == errno.EMSGSIZE


def test_over_tcp_each_says_how_to_choose_rdma(
    over_tcp: urds.Socket, call: Callable[..., Any]
) -> None:
    for one in (lambda: call(over_tcp, address=FAKE_PEER), lambda: over_tcp.get_mr(bytearray(8))):
        with pytest.raises(OSError, match="SO_RDS_TRANSPORT") as problem:
            one()
        assert problem.value.errno == errno.EOPNOTSUPP


def test_before_bind_and_after_close_nothing_goes(
    fake: FakeBackend, over_rdma: urds.Socket, call: Callable[..., Any]
) -> None:
    with urds.Socket() as unbound:
        assert refused(lambda: call(unbound, address=FAKE_PEER)) == errno.ENOTCONN
        assert refused(unbound.get_mr, bytearray(8)) == errno.ENOTCONN
    over_rdma.close()
    assert refused(lambda: call(over_rdma, address=FAKE_PEER)) == errno.EBADF


def test_waiting_for_an_operation(
    over_rdma: urds.Socket, box: FakeMailbox, call: Callable[..., Any]
) -> None:
    pending = call(over_rdma, address=FAKE_PEER)
    box.waits.clear()
    assert pending.status is None
    with pytest.raises(TimeoutError):
        pending.wait(1.5)
    with pytest.raises(TimeoutError):
        pending.wait(0)
    assert box.waits == [1_500_000_000, 0]
    assert "pending" in repr(pending)
    box.operations[-1].status = RdmaStatus.REMOTE_ERROR
    assert pending.wait() is pending.status is RdmaStatus.REMOTE_ERROR
    assert box.waits == [1_500_000_000, 0], "it had ended: no caller waited"
    assert "REMOTE_ERROR" in repr(pending)
