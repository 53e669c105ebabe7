"""Operations by structures of C over mailboxes that only record, and the notices that come back.

The rules of docs/reference/rds.md 4.3 for RDMA_ARGS and the atomic control messages, in the order
of the steps of sendmsg in 3.4. That one check comes before another is shown by a call that breaks
both.
"""

import errno
import struct
from collections.abc import Sequence

import pytest

import urds
from tests.rds.sockets.conftest import FAKE_PEER
from tests.rds.sockets.fake_backend import FakeMailbox
from tests.rds.sockets.raw_rdma import (
    NOWHERE,
    PAGE,
    Ancillary,
    Memory,
    Pages,
    atomic_args,
    get_region,
    iovecs,
    rdma_args,
    rdma_dest,
    rdma_map,
    read_only_page,
    send,
    send_refused,
)
from tests.support.errnos import refused
from urds.rds.constants import (
    MSG_CTRUNC,
    SO_ZEROCOPY,
    SOL_RDS,
    SOL_SOCKET,
    Cmsg,
    MessageFlag,
    RdmaFlag,
    RdmaStatus,
    SockOpt,
)
from urds.rds.plane.contract import OperationNotice
from urds.rds.runtime.backend import AtomicOperation, OperationNotices, RdmaTransfer

MIB = 1 << 20
ALL = (1 << 64) - 1
PLAIN_AND_MASKED = (
    Cmsg.ATOMIC_FADD,
    Cmsg.ATOMIC_CSWP,
    Cmsg.MASKED_ATOMIC_FADD,
    Cmsg.MASKED_ATOMIC_CSWP,
)


# -- transfers by control message


@pytest.mark.rule("rds7-control-rdma")
def test_a_transfer_is_queued_with_its_message(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    first, second = Memory(b"hello "), Memory(b"world")
    vector = iovecs([(first.address, 6), (second.address, 5)])
    flags = RdmaFlag.READWRITE | RdmaFlag.NOTIFY_ME | RdmaFlag.FENCE
    args = rdma_args(
        cookie=5 << 32 | 77, remote=(100, 11), vector=(vector.address, 2), flags=flags, token=9
    )
    assert send(over_rdma, args, payload=b"done") == 4
    assert [payload for payload, _, _ in box.sent] == [b"done"]
    (operation,) = box.operations
    assert isinstance(operation, RdmaTransfer)
    assert [bytes(piece) for piece in operation.pieces] == [b"hello ", b"world"]
    assert (operation.key, operation.remote_address, operation.token) == (77, 105, 9)
    assert (operation.is_write, operation.notify, operation.fence) == (True, True, True)
    assert (operation.silent, operation.report_failure, operation.status) == (False, False, None)


def test_a_read_gets_writable_pieces_and_the_wish_of_the_socket(
    over_rdma: urds.Socket, box: FakeMailbox
) -> None:
    over_rdma.setsockopt(SOL_RDS, SockOpt.RECVERR, 1)
    memory = Memory(4)
    vector = iovecs([(memory.address, 4)])
    flags = RdmaFlag.SILENT
    send(over_rdma, rdma_args(remote=(ALL, 4), vector=(vector.address, 1), flags=flags))
    (operation,) = box.operations
    assert isinstance(operation, RdmaTransfer)
    operation.pieces[0][:] = b"abcd"
    assert memory.data == b"abcd"
    assert (operation.is_write, operation.silent, operation.report_failure) == (False, True, True)
    assert operation.remote_address == ALL


def test_the_addresses_of_the_peer_wrap(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    memory = Memory(4)
    vector = iovecs([(memory.address, 4)])
    send(over_rdma, rdma_args(cookie=3 << 32, remote=(ALL, 4), vector=(vector.address, 1)))
    assert box.operations[0].remote_address == 2


@pytest.fixture
def data() -> Memory:
    return Memory(64)


def transfer(data: Memory, *, pieces: Sequence[tuple[int, int]], remote_bytes: int) -> Ancillary:
    """Return RDMA_ARGS with these pieces, kept as long as `data` is."""
    vector = iovecs(pieces)
    data.kept = vector  # type: ignore[attr-defined]  # its address is in use
    return rdma_args(remote=(0, remote_bytes), vector=(vector.address, len(pieces)))


def test_a_short_control_message_comes_before_lengths(over_rdma: urds.Socket) -> None:
    short = (SOL_RDS, int(Cmsg.RDMA_ARGS), bytes(55))
    assert send_refused(over_rdma, short, payload=bytes(2 * MIB)) == errno.EINVAL


def test_bytes_of_the_peer_are_counted_before_all_else(over_rdma: urds.Socket) -> None:
    """Even before a control message of an unknown kind."""
    too_much = rdma_args(remote=(0, MIB + 1), vector=(0, 0))
    unknown = (SOL_RDS, 99, b"")
    assert send_refused(over_rdma, unknown, too_much) == errno.EMSGSIZE
    assert (
        send_refused(over_rdma, rdma_args(remote=(0, MIB), vector=(0, 0)), unknown) == errno.EINVAL
    )


@pytest.mark.parametrize(
    ("count", "code"), [(0, errno.EINVAL), (1025, errno.EMSGSIZE), (1024, errno.EFAULT)]
)
def test_how_many_pieces_there_may_be(over_rdma: urds.Socket, count: int, code: int) -> None:
    args = rdma_args(remote=(0, 8), vector=(NOWHERE, count))
    assert send_refused(over_rdma, args) == code


@pytest.mark.parametrize(
    ("piece", "code"),
    [
        ((NOWHERE, 0), errno.EINVAL),
        ((ALL, 2), errno.EINVAL),
        ((NOWHERE, 1 << 32), errno.EINVAL),
        ((NOWHERE, 8), errno.EFAULT),
        ((NOWHERE, 65), errno.EFAULT),  # before the sum
    ],
)
def test_pieces_that_are_none(
    over_rdma: urds.Socket, data: Memory, piece: tuple[int, int], code: int
) -> None:
    args = transfer(data, pieces=[piece], remote_bytes=64)
    assert send_refused(over_rdma, args) == code


def test_a_bad_piece_of_the_list_comes_before_memory_that_is_not_there(
    over_rdma: urds.Socket, data: Memory
) -> None:
    args = transfer(data, pieces=[(NOWHERE, 8), (data.address, 0)], remote_bytes=64)
    assert send_refused(over_rdma, args) == errno.EINVAL


def test_local_pieces_may_be_shorter_than_the_peers_part_but_not_longer(
    over_rdma: urds.Socket, data: Memory, box: FakeMailbox
) -> None:
    pieces = [(data.address, 32), (data.address, 32)]
    assert send_refused(over_rdma, transfer(data, pieces=pieces, remote_bytes=63)) == errno.EINVAL
    for remote_bytes in (64, 100, MIB):
        send(over_rdma, transfer(data, pieces=pieces, remote_bytes=remote_bytes))
    assert len(box.operations) == 3


def test_a_piece_that_is_far_too_long_is_refused_without_a_look_at_all_of_it(
    over_rdma: urds.Socket,
) -> None:
    pages = Pages(PAGE)
    vector = iovecs([(pages.address, (1 << 32) - 1)])
    args = rdma_args(remote=(0, 16), vector=(vector.address, 1))
    assert send_refused(over_rdma, args) == errno.EINVAL


def test_what_is_read_only_can_be_sent_and_not_filled(
    over_rdma: urds.Socket, box: FakeMailbox
) -> None:
    with read_only_page() as address:
        vector = iovecs([(address, 8)])
        given = {"remote": (0, 8), "vector": (vector.address, 1)}
        assert send_refused(over_rdma, rdma_args(**given)) == errno.EFAULT  # type: ignore[arg-type]  # one dict
        send(over_rdma, rdma_args(**given, flags=RdmaFlag.READWRITE))  # type: ignore[arg-type]  # as above
    assert box.operations[0].pieces[0].readonly  # type: ignore[attr-defined]  # a transfer


def test_a_good_transfer_is_refused_by_tcp_after_every_other_check(
    over_tcp: urds.Socket, data: Memory
) -> None:
    good = transfer(data, pieces=[(data.address, 8)], remote_bytes=8)
    assert send_refused(over_tcp, good) == errno.EOPNOTSUPP
    bad = transfer(data, pieces=[(data.address, 9)], remote_bytes=8)
    assert send_refused(over_tcp, bad) == errno.EINVAL
    with pytest.raises(OSError, match="SO_RDS_TRANSPORT"):
        send(over_tcp, transfer(data, pieces=[(data.address, 8)], remote_bytes=8))


# -- atomic operations by control message


@pytest.mark.rule("rds7-control-rdma")
@pytest.mark.parametrize("kind", PLAIN_AND_MASKED)
def test_an_atomic_operation_is_queued(
    over_rdma: urds.Socket, box: FakeMailbox, kind: Cmsg
) -> None:
    place = Memory(8)
    args = atomic_args(
        kind,
        place.address,
        (1, 2, 3, 4),
        cookie=8 << 32 | 77,
        remote_address=16,
        flags=RdmaFlag.NOTIFY_ME | RdmaFlag.SILENT,
        token=9,
    )
    send(over_rdma, args)
    (operation,) = box.operations
    assert isinstance(operation, AtomicOperation)
    assert (operation.key, operation.remote_address, operation.token) == (77, 24, 9)
    assert (operation.notify, operation.silent) == (True, True)
    operation.result[:] = bytes(range(8))
    assert place.data == bytes(range(8))
    wanted = {
        Cmsg.ATOMIC_FADD: (False, 1, 0, 0, ALL, ALL),
        Cmsg.MASKED_ATOMIC_FADD: (False, 1, 0, 2, ALL, ALL),
        Cmsg.ATOMIC_CSWP: (True, 1, 2, 0, ALL, ALL),
        Cmsg.MASKED_ATOMIC_CSWP: (True, 1, 2, 0, 3, 4),
    }
    assert wanted[kind] == (
        operation.is_compare,
        operation.operand,
        operation.swap,
        operation.no_carry_mask,
        operation.compare_mask,
        operation.swap_mask,
    )


def test_the_place_for_the_old_value_is_aligned_and_there(
    over_rdma: urds.Socket, over_tcp: urds.Socket
) -> None:
    memory = Memory(16)
    aligned = memory.address + -memory.address % 8
    for at in (aligned + 1, aligned + 4, NOWHERE):
        args = atomic_args(Cmsg.ATOMIC_FADD, at, (1,))
        assert send_refused(over_rdma, args) == errno.EFAULT
        assert send_refused(over_tcp, args) == errno.EFAULT
    good = atomic_args(Cmsg.ATOMIC_FADD, aligned, (1,))
    assert send_refused(over_tcp, good) == errno.EOPNOTSUPP
    with read_only_page() as address:
        args = atomic_args(Cmsg.ATOMIC_FADD, address, (1,))
        assert send_refused(over_rdma, args) == errno.EFAULT


def test_a_message_may_have_both_kinds_and_the_transfer_comes_first(
    over_rdma: urds.Socket, box: FakeMailbox, data: Memory
) -> None:
    place = Memory(8)
    atomic = atomic_args(Cmsg.ATOMIC_FADD, place.address, (1,))
    send(over_rdma, atomic, transfer(data, pieces=[(data.address, 8)], remote_bytes=8))
    assert [type(one) for one in box.operations] == [RdmaTransfer, AtomicOperation]


# -- what does not go together


@pytest.mark.parametrize("tcp", [False, True])
def test_what_does_not_go_together(
    over_rdma: urds.Socket, over_tcp: urds.Socket, data: Memory, tcp: bool
) -> None:
    chosen = over_tcp if tcp else over_rdma
    cookie = get_region(over_rdma, data)
    place = Memory(8)
    operations = [
        transfer(data, pieces=[(data.address, 8)], remote_bytes=8),
        atomic_args(Cmsg.ATOMIC_FADD, place.address, (1,)),
    ]
    companions = [
        rdma_dest(cookie),
        rdma_map(data.address, 8),
        (SOL_RDS, int(Cmsg.ZCOPY_COOKIE), bytes(4)),
    ]
    pairs = [(one, other) for one in operations for other in companions]
    pairs += [(one, one) for one in (*operations, *companions)]
    pairs.append((companions[0], companions[1]))
    for pair in pairs:
        assert send_refused(chosen, *pair) == errno.EINVAL, pair
        assert send_refused(chosen, *reversed(pair)) == errno.EINVAL, pair


def test_zero_copy_is_for_tcp(over_rdma: urds.Socket) -> None:
    """Told before the control messages, after the length, to who has switched it on."""
    unknown = [(SOL_RDS, 99, b"")]
    zerocopy = int(MessageFlag.ZEROCOPY)
    too_long = bytes(2 * MIB)
    assert refused(over_rdma.sendmsg, [b"x"], unknown, zerocopy, FAKE_PEER) == errno.EINVAL
    over_rdma.setsockopt(SOL_SOCKET, SO_ZEROCOPY, 1)
    assert refused(over_rdma.sendmsg, [b"x"], unknown, zerocopy, FAKE_PEER) == errno.EOPNOTSUPP
    assert refused(over_rdma.sendmsg, [too_long], unknown, zerocopy, FAKE_PEER) == errno.EMSGSIZE


# -- what is received


def test_notices_come_alone_as_many_as_fit(over_rdma: urds.Socket, box: FakeMailbox) -> None:
    notices = [
        OperationNotice(2**64 - 1, RdmaStatus.SUCCESS),
        OperationNotice(7, RdmaStatus.DROPPED),
    ]
    box.queue.append(OperationNotices(notices))
    payload, control, flags, source = over_rdma.recvmsg(100, 64)
    assert (payload, flags, source) == (b"", 0, None)
    assert [(level, kind) for level, kind, _ in control] == [(SOL_RDS, Cmsg.RDMA_STATUS)] * 2
    assert [struct.unpack("=Qi4x", data) for _, _, data in control] == [
        (2**64 - 1, RdmaStatus.SUCCESS),
        (7, RdmaStatus.DROPPED),
    ]


@pytest.mark.parametrize(
    ("room", "asked"), [(0, 0), (16, 0), (31, 0), (32, 1), (63, 1), (64, 2), (320, 10)]
)
def test_the_control_buffer_says_how_many_are_asked_for(
    over_rdma: urds.Socket, box: FakeMailbox, room: int, asked: int
) -> None:
    """Where none fits one is taken all the same, and lost: kernel parity."""
    box.queue.append(OperationNotices([OperationNotice(7, RdmaStatus.SUCCESS)]))
    _, control, flags, _ = over_rdma.recvmsg(100, room)
    assert box.notices_asked == [asked]
    assert bool(flags & MSG_CTRUNC) == (room < 32)
    assert sum(len(data) == 16 for _, _, data in control) == (room >= 32)


def test_a_notice_without_control_buffer_looks_like_an_empty_message(
    over_rdma: urds.Socket, box: FakeMailbox
) -> None:
    box.queue.append(OperationNotices([OperationNotice(7, RdmaStatus.SUCCESS)]))
    assert over_rdma.recvmsg(100) == (b"", [], int(MSG_CTRUNC), None)
