"""What `Socket` itself does, over mailboxes that only record: names, options, waits, ends."""

import errno
import socket
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Any, cast

import pytest

import urds
from tests.rds.sockets.fake_backend import FakeBackend, FakeMailbox
from tests.rds.sockets.recording import DONTWAIT
from tests.support.errnos import refused
from tests.support.waiting import BUSY_S
from urds.common.errors import ErrorReason, SettingError, os_error
from urds.rds.constants import SOL_RDS, SOL_SOCKET, ExtensionType, SockOpt
from urds.rds.runtime.backend import ALL_GROUPS, Backend, CongestionNotice, Message
from urds.rds.runtime.process import process
from urds.rds.wire import extensions as exthdr

LOCAL = ("10.0.0.1", 4000)
PEER = ("10.0.0.2", 5000)
READ_ONLY_VIEW = memoryview(bytearray(8)).toreadonly()
STREWN_VIEW = memoryview(bytearray(8))[::2]
OTHER_WORDS = [("recvmsg_into", [5]), ("recvmsg", [-1])]  # not those of CPython


@pytest.fixture
def sock(fake: FakeBackend) -> Iterator[urds.Socket]:
    """Make a socket bound to LOCAL."""
    with urds.Socket() as made:
        made.bind(LOCAL)
        yield made


@pytest.fixture
def box(sock: urds.Socket, fake: FakeBackend) -> FakeMailbox:
    """Return the mailbox of `sock`."""
    return fake.bound[-1]


def message(payload: bytes = b"payload", **more: Any) -> Message:
    given = {"source": PEER, "extension": b"", "time_ns": 0, "trace": ()} | more
    return Message(payload, **given)


# -- names


@pytest.mark.rule("rds7-no-address-at-first")
def test_names_before_and_after_bind(fake: FakeBackend) -> None:
    with urds.socket() as sock:
        assert sock.getsockname() == (0, bytes(14))
        assert refused(sock.getpeername) == errno.ENOTCONN
        sock.connect(("fd00::2", 5000))
        assert sock.getsockname() == ("::", 0, 0, 0)
        assert sock.getpeername() == ("fd00::2", 5000, 0, 0)
        sock.connect(PEER)
        assert sock.getsockname() == ("0.0.0.0", 0)
        sock.bind(LOCAL)
        assert sock.getsockname() == LOCAL
        assert sock.getpeername() == PEER


@pytest.mark.rule("rds7-bind-once", "rds7-bind-one-address")
def test_a_bound_socket_cannot_be_bound_again(sock: urds.Socket) -> None:
    assert refused(sock.bind, ("10.0.0.1", 4001)) == errno.EINVAL


@pytest.mark.rule("rds7-bind-before-use")
def test_nothing_is_sent_before_bind(fake: FakeBackend) -> None:
    with urds.Socket() as sock:
        assert refused(sock.sendto, b"x", PEER) == errno.ENOTCONN
        assert refused(sock.send, b"x") == errno.ENOTCONN
        sock.connect(PEER)
        assert refused(sock.send, b"x") == errno.ENOTCONN
        assert refused(sock.cancel) == errno.ENOTCONN


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((2, 5, 0), errno.EAFNOSUPPORT),
        ((21, 1, 0), errno.ESOCKTNOSUPPORT),
        ((21, 5, 17), errno.ESOCKTNOSUPPORT),
        ((21, 5, 0, 3), errno.EOPNOTSUPP),
    ],
)
def test_other_kinds_of_socket_are_refused(arguments: tuple[int, ...], code: int) -> None:
    assert refused(urds.Socket, *arguments) == code


# -- sending


@pytest.mark.rule("rds7-connect", "rds7-unconnected-default")
def test_a_connected_socket_sends_to_its_peer_or_elsewhere(
    sock: urds.Socket, box: FakeMailbox
) -> None:
    assert refused(sock.send, b"x") == errno.ENOTCONN
    sock.connect(PEER)
    assert sock.send(b"one") == 3
    sock.sendall(b"two")
    sock.send(b"three", DONTWAIT)
    sock.sendmsg([b"fo", b"ur"])
    sock.sendto(b"five", ("10.0.0.3", 1))
    assert box.sent == [
        (b"one", PEER, None),
        (b"two", PEER, None),
        (b"three", PEER, 0),
        (b"four", PEER, None),
        (b"five", ("10.0.0.3", 1), None),
    ]


def test_a_peer_of_the_other_family_is_refused_at_the_send(sock: urds.Socket) -> None:
    sock.connect(("fd00::2", 5000))
    assert refused(sock.send, b"x") == errno.EOPNOTSUPP


@pytest.mark.rule("rds7-no-oob")
def test_flags_are_checked_before_the_address_and_that_before_the_bind(fake: FakeBackend) -> None:
    with urds.Socket() as sock:
        assert refused(sock.sendto, b"x", 1, ("0.0.0.0", 1)) == errno.EOPNOTSUPP
        assert refused(sock.sendto, b"x", 0, ("0.0.0.0", 1)) == errno.EINVAL
        assert refused(sock.sendto, b"x", 0, PEER) == errno.ENOTCONN


def test_the_length_is_checked_before_the_control_messages(sock: urds.Socket) -> None:
    bad = [(SOL_RDS, 99, b"")]
    assert refused(sock.sendmsg, [bytes((1 << 20) + 1)], bad, 0, PEER) == errno.EMSGSIZE
    assert refused(sock.sendmsg, [bytes(1 << 20)], bad, 0, PEER) == errno.EINVAL


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        (1, bytes(56), errno.EINVAL),  # without local memory
        (1, struct.pack("=7Q", 0, 0, 0, 0, 1, 0, 0), errno.EFAULT),  # a list at address 0
        (2, bytes(8), errno.EINVAL),
        (3, bytes(32), errno.EOPNOTSUPP),
        (6, bytes(72), errno.EFAULT),
        (9, bytes(72), errno.EFAULT),
    ],
)
def test_control_messages_of_rdma_are_judged_over_tcp_as_well(
    sock: urds.Socket, kind: int, data: bytes, code: int
) -> None:
    assert refused(sock.sendmsg, [b"x"], [(SOL_RDS, kind, data)], 0, PEER) == code


def test_send_many_counts_what_went_and_keeps_no_error(
    sock: urds.Socket, box: FakeMailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock.connect(PEER)
    assert sock.send_many([(b"a", PEER), (b"b", None)]) == 2
    assert [payload for payload, _, _ in box.sent] == [b"a", b"b"]
    assert sock.send_many([]) == 0

    def sendto(payload: bytes, _: object) -> int:
        if payload == b"full":
            raise os_error(ErrorReason.QUEUE_FULL)
        return len(payload)

    monkeypatch.setattr(box, "sendto", sendto)
    given = [(b"a", PEER), (b"full", PEER), (b"b", PEER)]
    assert sock.send_many(given) == 1
    rest = iter(given)
    assert sock.send_many(rest) == 1
    assert next(rest) == given[2]  # nothing is read ahead
    assert refused(sock.send_many, given[1:]) == errno.EAGAIN
    assert refused(sock.send_many, iter(given[1:])) == errno.EAGAIN


# -- receiving


def test_recvmsg_tells_everything(sock: urds.Socket, box: FakeMailbox) -> None:
    extension = exthdr.emit([exthdr.Extension(ExtensionType.RDMA_DEST, (5, 6))])
    box.queue.append(message(extension=extension, time_ns=10**9, trace=((2, 77),)))
    payload, control, flags, source = sock.recvmsg(100, 1000)
    assert (payload, flags, source) == (b"payload", 0, PEER)
    assert [(level, kind) for level, kind, _ in control] == [(276, 2), (1, 29), (276, 11)]
    assert all(type(kind) is int for _, kind, _ in control)


@pytest.mark.rule("rds7-update-alone", "rds7-update-8-bytes", "rds7-control-level")
def test_a_notice_comes_alone_and_is_lost_without_room(sock: urds.Socket, box: FakeMailbox) -> None:
    box.queue.extend([CongestionNotice(1 << 8), CongestionNotice(1), message()])
    update = (SOL_RDS, 5, (1 << 8).to_bytes(8, "little"))
    assert sock.recvmsg(100, 100) == (b"", [update], 0, None)
    assert sock.recvmsg(100) == (b"", [], socket.MSG_CTRUNC, None)
    assert sock.recvmsg(100)[0] == b"payload"


@pytest.mark.rule(
    "rds7-truncate", "rds7-truncate-return", "rds7-truncate-asked", "rds7-peek-length"
)
def test_a_short_buffer_cuts_and_tells(sock: urds.Socket, box: FakeMailbox) -> None:
    box.queue.extend([message()] * 4)
    assert sock.recvmsg(3) == (b"pay", [], socket.MSG_TRUNC, PEER)
    into = bytearray(3)
    assert sock.recv_into(into) == 3
    assert into == b"pay"
    ask = socket.MSG_PEEK | socket.MSG_TRUNC
    assert sock.recv_into(bytearray(0), 0, ask) == 7
    first, second = bytearray(2), bytearray(10)
    assert sock.recvmsg_into([first, second]) == (7, [], 0, PEER)
    assert (first, second[:5]) == (b"pa", b"yload")


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        *(
            (call, [buffer])
            for call in ("recv_into", "recvfrom_into")
            for buffer in (b"read-only", READ_ONLY_VIEW, STREWN_VIEW, "text", 5, None)
        ),
        *(
            ("recvmsg_into", [buffers])
            for buffers in (
                [bytearray(2), b"read-only"], [bytearray(2), READ_ONLY_VIEW], [STREWN_VIEW],
                ["text"], [None], bytearray(2), 5,
            )
        ),
        *(
            (call, [bytearray(2), count])
            for call in ("recv_into", "recvfrom_into")
            for count in (-1, 3, 1.5, "2", None)
        ),
        *(("recvmsg_into", [[bytearray(2)], count]) for count in (-1, 1.5, "2", None)),
        *(("recvmsg", [10, count]) for count in (-1, 1.5, "2", None)),
        *(("recvmsg", [count]) for count in (-1, 1.5, "2", None)),
    ],
)  # fmt: skip
def test_buffers_are_judged_before_a_message_is_taken(
    sock: urds.Socket, box: FakeMailbox, call: str, arguments: list[Any]
) -> None:
    """With the error that a socket of the kernel raises, and its words."""
    box.queue.append(message())
    kernel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with kernel, other:
        other.send(b"payload")
        with pytest.raises((TypeError, ValueError)) as theirs:
            getattr(kernel, call)(*arguments)
    with pytest.raises(theirs.type) as ours:
        getattr(sock, call)(*arguments)
    if (call, arguments) not in OTHER_WORDS:
        assert str(ours.value).startswith(str(theirs.value))
    assert (len(box.queue), box.waits) == (1, [])


def test_an_empty_buffer_of_any_format_takes_nothing(sock: urds.Socket, box: FakeMailbox) -> None:
    box.queue.extend([message()] * 2)
    assert sock.recv_into(array("d")) == 0
    assert sock.recvmsg_into([array("d"), array("H", [0])])[0] == 2


def test_a_count_below_one_is_refused(sock: urds.Socket, box: FakeMailbox) -> None:
    with pytest.raises(ValueError, match="count_max"):
        sock.recv_many(0)
    assert not box.waits


def test_recv_many_takes_what_is_there(sock: urds.Socket, box: FakeMailbox) -> None:
    box.queue.extend([message(b"%d" % number) for number in range(5)])
    assert sock.recv_many(3) == [(b"0", PEER), (b"1", PEER), (b"2", PEER)]


@pytest.mark.rule("rds7-blocking-default", "rds7-nonblocking", "rds7-timeout-zero")
def test_how_long_a_receive_waits(sock: urds.Socket, box: FakeMailbox) -> None:
    box.queue.extend([message()] * 5)
    sock.recvmsg(1)
    sock.recvmsg(1, 0, DONTWAIT)
    sock.settimeout(1.5)
    sock.recvmsg(1)
    sock.settimeout(None)
    sock.setsockopt(SOL_SOCKET, 20, struct.pack("=qq", 2, 0))
    sock.recvmsg(1)
    sock.setblocking(False)
    sock.recvmsg(1)
    assert box.waits == [None, 0, 1_500_000_000, 2_000_000_000, 0]
    assert box.configured[-1].receive_wait_ns == 0
    assert refused(sock.recvmsg, 1) == errno.EAGAIN
    sock.settimeout(0.5)
    assert refused(sock.recvmsg, 1) == errno.ETIMEDOUT


@pytest.mark.rule("rds7-bind-before-use")
def test_a_receive_before_bind_waits_for_it(fake: FakeBackend) -> None:
    with urds.Socket() as sock:
        assert refused(sock.recv, 10, DONTWAIT) == errno.EAGAIN
        sock.settimeout(0.01)
        assert refused(sock.recv, 10) == errno.ETIMEDOUT
        sock.settimeout(BUSY_S)
        got: list[object] = []
        thread = threading.Thread(target=lambda: got.append(refused(sock.recvmsg, 10)))
        thread.start()
        time.sleep(0.02)
        sock.bind(LOCAL)
        thread.join(BUSY_S)
        assert got == [errno.ETIMEDOUT]  # the mailbox was asked, and was empty
        assert fake.bound[-1].waits == [BUSY_S * 10**9]


# -- options


def test_options_reach_the_mailbox(sock: urds.Socket, box: FakeMailbox) -> None:
    assert box.configured[0].monitor_mask == ALL_GROUPS
    sock.setsockopt(SOL_SOCKET, 7, 5000)
    sock.setsockopt(SOL_SOCKET, 8, 6000)
    sock.setsockopt(SOL_RDS, SockOpt.CONG_MONITOR, (5).to_bytes(8, "little"))
    sock.setsockopt(SOL_SOCKET, 29, 1)
    sock.setsockopt(SOL_RDS, SockOpt.MSG_RXPATH_LATENCY, bytes([2, 0, 2, 0]))
    told = box.configured[-1]
    assert (told.send_bytes_max, told.receive_bytes_max) == (5000, 6000)
    assert (told.monitor, told.monitor_mask) == (True, 5)
    assert (told.timestamps, told.traces) == (True, (0, 2))


def test_options_set_before_bind_count(fake: FakeBackend) -> None:
    with urds.Socket() as sock:
        sock.setsockopt(SOL_SOCKET, 7, 5000)
        sock.settimeout(0)
        sock.bind(LOCAL)
        assert fake.bound[-1].configured[0].send_bytes_max == 5000
        assert fake.bound[-1].configured[0].send_wait_ns == 0


@pytest.mark.rule("rds7-cancel-address")
def test_a_cancel_reaches_the_mailbox(sock: urds.Socket, box: FakeMailbox) -> None:
    data = struct.pack("=H2s4s8x", 2, (5000).to_bytes(2, "big"), bytes([10, 0, 0, 2]))
    sock.setsockopt(SOL_RDS, SockOpt.CANCEL_SENT_TO, data)
    sock.setsockopt(SOL_RDS, SockOpt.CANCEL_SENT_TO, None, 0)
    assert sock.cancel() == 3
    assert sock.cancel(("fd00::1", 1)) == 3
    peer = IPv4Address("10.0.0.2")
    everything = (None, None)
    v6 = (IPv6Address("fd00::1"), 1)
    assert box.cancelled == [(peer, 5000), everything, everything, v6]


def test_values_of_options_come_in_the_forms_of_the_socket_module(sock: urds.Socket) -> None:
    sock.setsockopt(SOL_RDS, SockOpt.RECVERR, True)
    assert sock.getsockopt(SOL_RDS, SockOpt.RECVERR) == 1
    sock.setsockopt(SOL_RDS, SockOpt.RECVERR, bytearray(4))
    assert sock.getsockopt(SOL_RDS, SockOpt.RECVERR, 4) == bytes(4)
    assert refused(sock.setsockopt, SOL_RDS, SockOpt.RECVERR, None, 4) == errno.EFAULT
    with pytest.raises(OverflowError):
        sock.setsockopt(SOL_RDS, SockOpt.RECVERR, 1 << 31)
    assert refused(sock.getsockopt, SOL_RDS, SockOpt.RECVERR, -1) == errno.EINVAL


def test_lists_come_from_the_backend(sock: urds.Socket) -> None:
    data = sock.getsockopt(SOL_RDS, urds.RDS_INFO_COUNTERS, 100)
    assert data == b"recv_queued".ljust(32, b"\0") + (7).to_bytes(8, "little")
    assert refused(sock.getsockopt, SOL_RDS, urds.RDS_INFO_COUNTERS) == errno.ENOSPC
    assert refused(sock.getsockopt, SOL_RDS, urds.RDS_INFO_IB_CONNECTIONS) == errno.ENOPROTOOPT


@pytest.mark.parametrize("value", [-1, float("nan")])
def test_a_timeout_is_not_negative(sock: urds.Socket, value: float) -> None:
    with pytest.raises(ValueError, match=r"0 or more seconds|must be a number"):
        sock.settimeout(value)


def test_timeouts_read_back(sock: urds.Socket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (sock.gettimeout(), sock.getblocking()) == (None, True)
    sock.setblocking(False)
    assert (sock.gettimeout(), sock.timeout, sock.getblocking()) == (0.0, 0.0, False)
    sock.ioctl(0x5421, 0)  # FIONBIO
    assert sock.getblocking()
    monkeypatch.setattr(socket, "getdefaulttimeout", lambda: 2.5)
    with urds.Socket() as timed:
        assert timed.gettimeout() == 2.5
    with urds.Socket(21, 5 | 0o4000) as never:
        assert never.gettimeout() == 0


# -- ends


def test_a_closed_socket_says_so(fake: FakeBackend) -> None:
    sock = urds.Socket()
    sock.bind(LOCAL)
    sock.close()
    sock.close()
    assert fake.ended == fake.bound
    assert sock.fileno() == -1
    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (sock.send, (b"x",)),
        (sock.sendto, (b"x", PEER)),
        (sock.recv, (1,)),
        (sock.recvfrom, (1,)),
        (sock.bind, (LOCAL,)),
        (sock.connect, (PEER,)),
        (sock.getsockname, ()),
        (sock.getsockopt, (1, 3)),
        (sock.setsockopt, (1, 7, 1)),
        (sock.listen, ()),
        (sock.detach, ()),
    ]
    assert [refused(call, *arguments) for call, arguments in calls] == [errno.EBADF] * len(calls)
    assert "[closed]" in repr(sock)


@pytest.mark.parametrize(
    ("linger", "strict", "wanted"),
    [
        (None, False, None),
        (None, True, 0),
        (struct.pack("=ii", 1, 3), False, 3_000_000_000),
        (struct.pack("=ii", 1, 0), False, 0),
        (struct.pack("=ii", 0, 3), False, None),
    ],
)
def test_what_close_asks_of_the_mailbox(
    linger: bytes | None, strict: bool, wanted: int | None
) -> None:
    fake = FakeBackend(urds.Settings(strict_linux=strict))
    before = process.use(cast("Backend", fake))
    try:
        with urds.Socket() as sock:
            sock.bind(LOCAL)
            if linger is not None:
                sock.setsockopt(SOL_SOCKET, 13, linger)
    finally:
        process.use(before)
    assert fake.bound[-1].lingers == [wanted]


def test_a_forgotten_socket_warns_and_leaves_its_mailbox_to_the_backend(
    fake: FakeBackend,
) -> None:
    sock = urds.Socket()
    sock.bind(LOCAL)
    holder = [sock]
    del sock
    with pytest.warns(ResourceWarning, match="unclosed <urds.Socket"):
        holder.clear()
    assert fake.forgotten == fake.bound
    assert fake.bound[-1].lingers == []  # a finaliser closes nothing itself


def test_repr_tells_names_and_makes_no_descriptor(sock: urds.Socket) -> None:
    sock.connect(PEER)
    assert repr(sock) == (
        "<urds.Socket family=AF_RDS type=SOCK_SEQPACKET"
        " laddr=('10.0.0.1', 4000) raddr=('10.0.0.2', 5000)>"
    )


def test_settings_are_fixed_once_a_socket_was_bound(sock: urds.Socket) -> None:
    with pytest.raises(SettingError, match="npaths: settings are fixed"):
        urds.configure(npaths=2)


def test_the_mailbox_is_there_for_event_loops(sock: urds.Socket, box: FakeMailbox) -> None:
    assert cast("object", sock.mailbox) is box
    with urds.Socket() as unbound:
        assert refused(lambda: unbound.mailbox) == errno.ENOTCONN
