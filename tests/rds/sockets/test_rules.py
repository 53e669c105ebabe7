"""Rules of rds(7) that take more than one call, as Linux 6.1 was seen to keep them.

The second host is in this process or in another one. Source of what is expected: the lab's
scenarios 04, 07, 08, 09, 10 and 12 (linux v6.1); docs/reference/rds.md 3.4-3.8.
"""

import errno
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from tests.rds.sockets.recording import DONTWAIT, poll_bits, readable
from tests.rds.sockets.remote import RemotePeer
from tests.support.errnos import refused
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.constants import SOL_RDS, SOL_SOCKET, SockOpt
from urds.rds.plane.contract import PathRow
from urds.rds.runtime.inprocess import InProcess

pytestmark = pytest.mark.each_carrier("shm0")

NEAR, FAR = host(1), host(2)
UNREACHABLE = (host(66), 4000)
SO_SNDBUF, SO_RCVBUF, SO_SNDTIMEO = 7, 8, 21
WAIT_S = 20.0
QUIET_S = 0.1
NewFar = Callable[..., Any]


@pytest.fixture(params=["one process", "two processes"])
def new_far(request: pytest.FixtureRequest, new_socket: NewSocket) -> Iterator[NewFar]:
    """Make sockets of the second host, bound to a port, with a small receive buffer if asked."""
    peer = RemotePeer() if request.param == "two processes" else None

    def make(port: int, receive_bytes: int | None = None) -> Any:
        sock = peer.socket() if peer else new_socket()
        if receive_bytes is not None:
            sock.setsockopt(SOL_SOCKET, SO_RCVBUF, receive_bytes)
        sock.bind((FAR, port))
        sock.settimeout(WAIT_S)
        return sock

    yield make
    if peer:
        peer.__exit__(None, None, None)


@pytest.fixture
def near(new_socket: NewSocket) -> urds.Socket:
    """Return a socket of the first host."""
    sock = new_socket(1, 4000)
    sock.settimeout(WAIT_S)
    return sock


def sends_until(code: int, sock: urds.Socket, target: tuple[str, int]) -> int:
    """Send 1000 bytes again and again until that errno; return how many were taken."""
    deadline = time.monotonic() + WAIT_S
    taken = 0
    while time.monotonic() < deadline:
        try:
            sock.sendto(bytes(1000), DONTWAIT, target)
            taken += 1
            time.sleep(0.002)
        except OSError as failure:
            if failure.errno == code:
                return taken
    raise AssertionError(f"never {errno.errorcode[code]}")


def is_under_way(row: PathRow) -> bool:
    """Tell whether messages of a path are not in their receive queues yet."""
    return bool(row.unsent_messages or row.unacknowledged_messages)


# -- the send queue


@pytest.mark.rule(
    "rds7-send-limit", "rds7-queue-full", "rds7-poll-out", "rds7-two-limits", "rds7-so-sndbuf"
)
def test_a_send_queue_takes_one_message_over_its_limit(new_socket: NewSocket) -> None:
    sock = new_socket()
    sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 8192)
    sock.bind((NEAR, 0))
    assert "POLLOUT" in poll_bits(sock)
    assert sends_until(errno.EAGAIN, sock, UNREACHABLE) == 9
    assert "POLLOUT" not in poll_bits(sock)
    assert refused(sock.sendto, bytes(9000), DONTWAIT, UNREACHABLE) == errno.EMSGSIZE
    assert refused(sock.sendto, bytes(8192), DONTWAIT, UNREACHABLE) == errno.EAGAIN
    assert refused(sock.sendto, b"", DONTWAIT, UNREACHABLE) == errno.EAGAIN
    assert sock.sendto(b"to itself", DONTWAIT, sock.getsockname()) == 9  # another destination


@pytest.mark.rule("rds7-so-sndtimeo", "rds7-timeouts", "rds7-queue-full")
def test_a_wait_for_room_ends_with_its_time(new_socket: NewSocket) -> None:
    sock = new_socket()
    sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 8192)
    sock.setsockopt(SOL_SOCKET, SO_SNDTIMEO, struct.pack("=qq", 0, 100_000))
    sock.bind((NEAR, 0))
    sends_until(errno.EAGAIN, sock, UNREACHABLE)
    began = time.monotonic()
    assert refused(sock.sendto, b"x", UNREACHABLE) == errno.ETIMEDOUT
    assert 0.09 < time.monotonic() - began < BUSY_S


@pytest.mark.rule("rds7-queue-accounts", "rds7-queued-until-acked", "rds7-cancel-removes")
def test_a_cancel_makes_room_at_once(new_socket: NewSocket) -> None:
    sock = new_socket()
    sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 8192)
    sock.bind((NEAR, 0))
    sends_until(errno.EAGAIN, sock, UNREACHABLE)
    waiter = threading.Thread(target=sock.sendto, args=(b"x", UNREACHABLE))
    waiter.start()
    assert sock.cancel(UNREACHABLE) == 9
    waiter.join(WAIT_S)
    assert not waiter.is_alive()
    assert "POLLOUT" in poll_bits(sock)


@pytest.mark.rule("rds7-account-payload", "rds7-empty-message")
def test_empty_messages_weigh_nothing(new_socket: NewSocket) -> None:
    sock = new_socket()
    sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 8192)
    sock.bind((NEAR, 0))
    assert sock.send_many([(b"", UNREACHABLE)] * 100) == 100
    assert "POLLOUT" in poll_bits(sock)


# -- who gets what


@pytest.mark.rule("rds7-unbound-port-silent", "rds7-reliable-unbound")
def test_a_port_without_a_socket_swallows(
    near: urds.Socket, new_far: NewFar, backend: InProcess
) -> None:
    far = new_far(5000)
    near.sendto(b"nobody", (FAR, 5999))
    near.sendto(b"somebody", (FAR, 5000))
    assert far.recv(100) == b"somebody"
    assert refused(near.recv, 10, DONTWAIT) == errno.EAGAIN
    assert poll_bits(near) == "POLLOUT|POLLWRNORM|POLLWRBAND"


@pytest.mark.rule("rds7-receiver-closed")
def test_unread_messages_go_with_their_socket(near: urds.Socket, new_far: NewFar) -> None:
    far = new_far(5000)
    near.sendto(b"unread", (FAR, 5000))
    anchor = new_far(5001)
    near.sendto(b"behind", (FAR, 5001))
    assert anchor.recv(10) == b"behind"
    far.close()
    near.sendto(b"closed", (FAR, 5000))
    near.sendto(b"behind", (FAR, 5001))
    assert anchor.recv(10) == b"behind"
    again = new_far(5000)
    assert refused(again.recv, 10, DONTWAIT) == errno.EAGAIN
    near.sendto(b"new", (FAR, 5000))
    assert again.recv(10) == b"new"


@pytest.mark.rule("rds7-receive-empty", "rds7-empty-message", "rds7-receive-address")
def test_an_empty_message_arrives_with_its_source(near: urds.Socket, new_far: NewFar) -> None:
    far = new_far(5000)
    near.sendto(b"", (FAR, 5000))
    assert far.recvfrom(10) == (b"", (NEAR, 4000))


@pytest.mark.rule("wire-ping", "wire-pong")
def test_a_ping_is_answered_without_its_payload(near: urds.Socket, new_far: NewFar) -> None:
    new_far(5000)
    for payload in (b"", b"payload"):
        assert near.sendto(payload, (FAR, 0)) == len(payload)
        assert near.recvmsg(100) == (b"", [], 0, (FAR, 0))


@pytest.mark.rule(
    "rds7-order-per-pair",
    "rds7-reliable-in-order",
    "rds7-once",
    "rds7-transports",
    "rds7-receive-order",
    "rds7-unconnected-default",
)
def test_each_pair_of_sockets_keeps_its_order(
    near: urds.Socket, new_socket: NewSocket, new_far: NewFar
) -> None:
    senders = [near, new_socket(1, 4001)]
    receivers = [new_far(5000), new_far(5001)]
    for number in range(200):
        for sender in senders:
            sender.sendto(b"%d" % number, (FAR, 5000 + number % 2))
    for offset, receiver in enumerate(receivers):
        got: dict[int, list[int]] = {4000: [], 4001: []}
        for _ in range(200):
            payload, (_, port) = receiver.recvfrom(10)
            got[port].append(int(payload))
        assert list(got.values()) == [list(range(offset, 200, 2))] * 2


# -- congestion


@pytest.mark.rule(
    "rds7-congested-when-full",
    "rds7-send-congested",
    "rds7-poll-congested-out",
    "rds7-congestion-update",
    "rds7-congested-sender-stops",
    "rds7-so-rcvbuf",
    "rds7-two-limits",
    "wire-congestion-sender",
)
def test_a_full_port_is_full_for_all_senders_and_others_are_not(
    near: urds.Socket, new_socket: NewSocket, new_far: NewFar
) -> None:
    new_far(5000, receive_bytes=16384)
    other_port = new_far(5001)
    assert sends_until(errno.ENOBUFS, near, (FAR, 5000)) >= 17
    assert "POLLOUT" in poll_bits(near)
    second = new_socket(1, 4001)
    assert refused(second.sendto, b"x", DONTWAIT, (FAR, 5000)) == errno.ENOBUFS
    near.sendto(b"x", DONTWAIT, (FAR, 5001))
    assert other_port.recv(10) == b"x"


@pytest.mark.rule(
    "rds7-uncongested-update", "rds7-uncongested-sender-resumes", "rds7-poll-wakes-on-update",
)  # fmt: skip
def test_below_half_the_port_is_free_and_poll_says_so(
    near: urds.Socket, new_far: NewFar, backend: InProcess
) -> None:
    far = new_far(5000, receive_bytes=16384)
    taken = sends_until(errno.ENOBUFS, near, (FAR, 5000))
    assert "POLLIN" not in poll_bits(near)
    # All are in the queue that is read, else it is below half before the last of them has come.
    wait_until(lambda: not any(map(is_under_way, backend.snapshot().paths)))
    for _ in range(taken - 9):
        far.recv(2000)
    time.sleep(QUIET_S)
    assert refused(near.sendto, b"x", DONTWAIT, (FAR, 5000)) == errno.ENOBUFS
    for _ in range(2):
        far.recv(2000)
    assert readable(near)
    assert refused(near.recv, 10, DONTWAIT) == errno.EAGAIN  # news, and no message
    assert "POLLIN" not in poll_bits(near)
    assert near.sendto(b"x", DONTWAIT, (FAR, 5000)) == 1


@pytest.mark.rule("rds7-uncongested-sender-resumes", "rds7-blocking-default", "rds7-send-congested")
def test_a_blocked_sender_goes_on(near: urds.Socket, new_far: NewFar) -> None:
    far = new_far(5000, receive_bytes=16384)
    taken = sends_until(errno.ENOBUFS, near, (FAR, 5000))
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(near.sendto(b"x", (FAR, 5000))))
    thread.start()
    time.sleep(QUIET_S)
    assert not done
    for _ in range(taken):
        far.recv(2000)
    thread.join(WAIT_S)
    assert done == [1]
    assert far.recv(10) == b"x"


@pytest.mark.rule("rds7-monitor-bitmap", "rds7-update-alone", "rds7-monitor-match", "rds7-poll-in")
def test_a_monitor_is_told_the_group_of_the_port(near: urds.Socket, new_far: NewFar) -> None:
    """As recorded: only ENOBUFS of a non-blocking send puts a group on the list."""
    far = new_far(5000, receive_bytes=16384)
    near.setsockopt(SOL_RDS, SockOpt.CONG_MONITOR, 1)
    assert poll_bits(near) == "POLLOUT|POLLWRNORM|POLLWRBAND"
    taken = sends_until(errno.ENOBUFS, near, (FAR, 5000))
    assert refused(near.recv, 10, DONTWAIT) == errno.EAGAIN
    for _ in range(taken):
        far.recv(2000)
    assert readable(near)
    update = (SOL_RDS, 5, bytes.fromhex("0001000000000000"))
    assert near.recvmsg(100, 100) == (b"", [update], 0, None)
    assert refused(near.recvmsg, 100, 100, DONTWAIT) == errno.EAGAIN
    assert "POLLIN" not in poll_bits(near)


def test_a_full_port_still_takes_what_comes(near: urds.Socket, new_far: NewFar) -> None:
    """Empty messages count nothing, and a burst is through before the port is found full."""
    far = new_far(5000, receive_bytes=1)
    payloads = [b"%d" % number for number in range(600)]
    near.setblocking(False)
    sent = near.send_many([(payload, (FAR, 5000)) for payload in payloads])
    assert sent >= 400
    assert [far.recv(10) for _ in range(sent)] == payloads[:sent]


# -- after the end


@pytest.mark.rule("rds7-delivered-removed")
def test_what_was_delivered_cannot_be_cancelled(near: urds.Socket, new_far: NewFar) -> None:
    far = new_far(5000)
    near.sendto(b"here", (FAR, 5000))
    assert far.recv(10) == b"here"
    wait_until(lambda: near.cancel((FAR, 5000)) == 0)
    far.settimeout(QUIET_S)
    assert refused(far.recv, 10) == errno.ETIMEDOUT


@pytest.mark.rule("rds7-reliable-retry", "rds7-reliable-visible")
def test_a_message_waits_for_its_host(near: urds.Socket, new_far: NewFar) -> None:
    near.sendto(b"early", (FAR, 5000))
    assert new_far(5000).recv(10) == b"early"


@pytest.mark.parametrize("blocked", ["receive", "send"])
def test_a_close_ends_waits_with_ebadf(new_socket: NewSocket, blocked: str) -> None:
    sock = new_socket(1)
    sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 1)
    if blocked == "send":
        sends_until(errno.EAGAIN, sock, UNREACHABLE)
    call = {
        "receive": lambda: sock.recv(10),
        "send": lambda: sock.sendto(b"x", UNREACHABLE),
    }[blocked]
    got: list[int | None] = []
    thread = threading.Thread(target=lambda: got.append(refused(call)))
    thread.start()
    time.sleep(QUIET_S)
    assert not got
    sock.close()
    thread.join(WAIT_S)
    assert got == [errno.EBADF]


def test_a_name_is_looked_up_at_each_call(new_socket: NewSocket) -> None:
    sock = new_socket()
    sock.bind(("localhost", 0))
    assert sock.getsockname()[0] == "127.0.0.1"
    sock.sendto(b"one", ("localhost", sock.getsockname()[1]))
    sock.connect(("localhost", sock.getsockname()[1]))
    sock.send(b"two")
    assert [sock.recvfrom(10) for _ in range(2)] == [
        (b"one", sock.getsockname()),
        (b"two", sock.getsockname()),
    ]
