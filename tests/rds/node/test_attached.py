"""Sockets of this process at a real node: messages, its worker killed and upgraded meanwhile."""

import errno
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from socket import inet_aton
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import fresh_addresses  # noqa: F401 - a fixture
from tests.rds.sockets.hosts import host
from tests.rds.sockets.remote import RemotePeer
from tests.support import backends
from tests.support.waiting import wait_until
from urds.rds.constants import RDS_CONG_MONITOR, SOL_RDS, SOL_SOCKET, InfoOpt
from urds.rds.node import commands
from urds.rds.runtime.attached import Attached
from urds.rds.runtime.process import process

pytestmark = pytest.mark.skipif(
    not backends.IS_ATTACHED or bool(backends.missing()),
    reason="a node with the compiled plane: TEST_BACKEND=attached URDS_IMPL=native",
)
MESSAGES = 20_000
SO_RCVBUF, SO_LINGER = 8, 13
EVENTS = 5


@contextmanager
def attached() -> Iterator[Attached]:
    """Give a backend at a node."""
    with backends.made(drain_s=0) as made:
        assert isinstance(made, Attached)
        yield made


def bound(backend: Attached, number: int) -> urds.Socket:
    """Return a socket that a backend has."""
    before = process.use(backend)
    try:
        sock = urds.Socket()
        sock.bind((host(number), 4000))
        sock.settimeout(30)
        return sock
    finally:
        process.use(before)


def kill(backend: Attached) -> None:
    """Kill the worker of a node, and wait for the next one."""
    before = commands.status(backend.place)["worker"]
    os.kill(before, signal.SIGKILL)
    while True:
        try:
            if commands.status(backend.place)["worker"] != before:
                return
        except ConnectionError:
            pass


def upgrade(backend: Attached) -> None:
    """Have the worker of a node replaced."""
    commands.upgrade(backend.place)


@pytest.mark.parametrize("event", [kill, upgrade])
@pytest.mark.parametrize("nodes", [1, 2])
def test_no_message_is_lost_or_doubled(nodes: int, event: object) -> None:
    with attached() as first, attached() as second:
        places = [first, second][:nodes]
        source, target = bound(first, 1), bound(places[-1], 2)
        failures: list[BaseException] = []

        def send() -> None:
            try:
                for number in range(MESSAGES):
                    source.sendto(b"%d" % number, target.getsockname())
            except BaseException as failure:
                failures.append(failure)

        sender = threading.Thread(target=send)
        sender.start()
        for number in range(MESSAGES):
            assert target.recv(100) == b"%d" % number, failures
            if number % (MESSAGES // EVENTS) == MESSAGES // EVENTS // 2:
                for place in places:
                    event(place)  # type: ignore[operator]  # one of the two above
        sender.join(30)
        assert failures == []
        target.setblocking(False)
        with pytest.raises(BlockingIOError):
            target.recv(100)
        source.close()
        target.close()


def fill_peer(sock: urds.Socket) -> int:
    """Send until the peer is congested, each message after the last has come; return errno."""
    for _ in range(100):
        try:
            sock.sendto(bytes(1000), urds.MSG_DONTWAIT, (host(2), 4000))
        except OSError as error:
            return error.errno or 0
        wait_until(lambda: not sock.unacknowledged)
    return 0


def take_all(sock: urds.Socket) -> None:
    sock.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            sock.recv(1000)


@pytest.mark.parametrize("event", [kill, upgrade])
def test_a_socket_that_is_restored_before_its_peer_meets_its_congestion(event: Any) -> None:
    """Else it fills the account that it has for the peer, and senders to others wait with it."""
    with attached() as backend, bound(backend, 1) as sender, bound(backend, 2) as receiver:
        receiver.setsockopt(SOL_SOCKET, SO_RCVBUF, 20_000)
        assert fill_peer(sender) == errno.ENOBUFS
        take_all(receiver)
        event(backend)
        assert fill_peer(sender) == errno.ENOBUFS


def test_congestion_that_ends_while_no_worker_runs_wakes_a_poll() -> None:
    with attached() as backend, bound(backend, 2) as receiver, bound(backend, 1) as sender:
        receiver.setsockopt(SOL_SOCKET, SO_RCVBUF, 20_000)
        sender.setsockopt(SOL_RDS, RDS_CONG_MONITOR, 1)
        assert fill_peer(sender) == errno.ENOBUFS
        status = commands.status(backend.place)
        os.kill(status["pid"], signal.SIGSTOP)
        try:
            os.kill(status["worker"], signal.SIGKILL)
            take_all(receiver)
        finally:
            os.kill(status["pid"], signal.SIGCONT)
        poll = select.poll()
        poll.register(sender.fileno(), select.POLLIN)
        assert poll.poll(30_000)


def test_a_list_has_no_socket_that_was_closed_before() -> None:
    """The node may hear of a socket's end behind a request that comes later."""
    with attached() as backend:
        for _ in range(100):
            asking, *others = (bound(backend, number) for number in range(1, 9))
            for one in others:
                one.close()
            listed = asking.getsockopt(SOL_RDS, InfoOpt.SOCKETS, 1 << 16)
            asking.close()
            assert len(listed) == 28


def test_a_port_that_is_bound_anew_loses_no_message_of_the_socket_before() -> None:
    """The node frees the port for the second one before it has heard that the first is closed."""
    with attached() as backend:
        target = bound(backend, 2)
        for _ in range(100):
            with bound(backend, 1) as source:
                source.sendto(b"first", target.getsockname())
                assert target.recv(10) == b"first"
                for number in range(20):
                    source.sendto(b"%d" % number, target.getsockname())
            with bound(backend, 1):
                assert [target.recv(10) for _ in range(20)] == [b"%d" % n for n in range(20)]
        target.close()


def test_a_drain_while_the_worker_is_replaced_counts_what_lingers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise ConnectionResetError

    with attached() as backend:
        with bound(backend, 1) as sock:
            sock.sendto(b"to nobody", (host(99), 4000))
        with monkeypatch.context() as patch:
            patch.setattr(backend, "snapshot", refuse)
            assert backend.drain(0) == 1
            patch.setattr("urds.rds.runtime.attached.is_served", lambda _place: False)
            assert backend.drain(0) == 0, "there is no node any more"


@pytest.mark.parametrize("event", [kill, upgrade])
def test_what_a_closed_socket_sent_outlives_the_worker(event: object) -> None:
    """Its peer comes late, and another socket has its port by then."""
    settings = "[settings]\nlinger_s = 600.0\n"
    with backends.at_own_node(settings) as first, backends.at_own_node("") as second:
        with bound(first, 1) as source:
            for number in range(10):
                source.sendto(b"%d" % number, (host(2), 4000))
        with bound(first, 1) as again:
            event(first)  # type: ignore[operator]  # one of the two above
            with bound(second, 2) as target:
                assert [target.recv(10) for _ in range(10)] == [b"%d" % n for n in range(10)]
                target.sendto(b"back", again.getsockname())
                assert again.recv(10) == b"back"
                again.sendto(b"again", target.getsockname())
                assert target.recv(10) == b"again"
            wait_until(lambda: commands.status(first.place)["closing"] == 0)
            assert commands.status(first.place)["bound"] == 1


def test_processes_share_an_address(tmp_path: object) -> None:
    with attached() as backend:
        first, second = bound(backend, 1), None
        before = process.use(backend)
        try:
            second = urds.Socket()
            second.bind((host(1), 4001))
        finally:
            process.use(before)
        child = os.fork()
        if not child:
            try:
                os._exit(0 if first.recv(10) == b"question" else 1)
            finally:
                os._exit(2)
        second.sendto(b"question", first.getsockname())
        assert os.waitpid(child, 0)[1] == 0
        first.close()
        second.close()


def test_over_its_quota_of_memory_a_send_is_refused() -> None:
    """What lies unread counts; once it was read, a send is as before."""
    with backends.at_own_node("[quota]\nmemory = '1MiB'\n") as backend:
        near, far = bound(backend, 1), bound(backend, 2)
        far.setsockopt(SOL_SOCKET, SO_RCVBUF, 32 << 20)
        name = far.getsockname()
        taken = 0

        def is_refused(payload: bytes = b"") -> bool:
            nonlocal taken
            try:
                near.sendto(payload, name)
            except OSError as refused:
                return refused.errno == errno.ENOBUFS and "quota.memory" in str(refused)
            taken += 1
            return False

        for _ in range(400):  # 3 MB; root may have 2 MiB
            if is_refused(bytes(8000)):  # the node has looked already
                break
        wait_until(is_refused)
        for _ in range(taken):
            far.recv(8000)
        wait_until(lambda: not is_refused())
        near.close()
        far.close()


def test_the_node_lists_the_connected_peer() -> None:
    with attached() as backend:
        sock = bound(backend, 1)
        for peer in ((host(2), 4001), (host(2), 4002)):
            sock.connect(peer)
            (found,) = backend.connected_peers().items()
            assert found == ((ip_address(host(1)), 4000), (ip_address(host(2)), peer[1]))
            data = sock.getsockopt(SOL_RDS, InfoOpt.SOCKETS, 1 << 16)
            assert inet_aton(host(1)) + inet_aton(host(2)) in data
            assert peer[1].to_bytes(2, "big") in data
        sock.close()


@pytest.mark.parametrize(("linger", "is_left"), [(None, True), ((1, 0), False), ((1, 600), True)])
def test_the_node_gives_what_is_left_the_time_of_so_linger(
    linger: tuple[int, int] | None, is_left: bool
) -> None:
    """The socket of a process that ends without a word."""
    with attached() as backend:
        sock = bound(backend, 1)
        if linger is not None:
            sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("=ii", *linger))
        sock.sendto(b"to nobody", (host(99), 4000))
        mailbox: Any = sock.mailbox
        os.close(mailbox.detach())

        def queued() -> bool:
            own = ip_address(host(1))
            return any(row.local == own for row in backend.snapshot().send_queue)

        wait_until(lambda: commands.status(backend.place)["bound"] == 0)
        assert queued() == is_left


def test_an_address_without_a_socket_is_released() -> None:
    """A process without the node takes it, and gives it back; a peer of both goes on."""
    with backends.made(drain_s=0, idle_s=0.2) as backend:
        assert isinstance(backend, Attached)
        peer, sock = bound(backend, 1), bound(backend, 2)
        for number in range(3):
            sock.sendto(b"by the node %d" % number, peer.getsockname())
            assert peer.recv(100) == b"by the node %d" % number
            sock.close()
            with RemotePeer() as process_of_its_own:
                own = process_of_its_own.socket()

                def takes_it() -> bool:
                    try:
                        own.bind((host(2), 4000))  # noqa: B023 - called in this round
                    except OSError as refused:
                        if refused.errno != errno.EADDRINUSE:
                            raise
                        return False
                    return True

                wait_until(takes_it)
                own.sendto(b"by a process %d" % number, peer.getsockname())
                assert peer.recv(100) == b"by a process %d" % number
                peer.sendto(b"question", (host(2), 4000))
                own.settimeout(20)
                assert own.recv(100) == b"question"
            sock = bound(backend, 2)
            peer.sendto(b"back", sock.getsockname())
            assert sock.recv(100) == b"back"
        peer.close()
        sock.close()


def test_after_the_end_of_its_node_a_socket_says_which_one_and_what_to_do() -> None:
    with backends.at_own_node("") as backend:
        sock = bound(backend, 1)
        name = sock.getsockname()
        commands.stop(backend.place)
        advice = f"the node at {backend.place} has ended; once one runs there, make the socket anew"
        for call in (lambda: sock.recv(1), lambda: sock.sendto(b"", ("127.0.0.9", 1))):
            with pytest.raises(OSError, match=advice) as ended:
                wait_until(call)
            assert ended.value.errno == errno.EIO, ended.value
        missing = f"no node at {backend.place}: start one with `urds node --socket {backend.place}`"
        with pytest.raises(OSError, match=missing):
            bound(backend, 2)
        assert name == sock.getsockname()
        sock.close()


def test_a_sender_with_room_learns_of_the_end_of_its_node_at_once() -> None:
    with backends.at_own_node("") as backend:
        sender, receiver = bound(backend, 1), bound(backend, 2)
        there = receiver.getsockname()
        sender.sendto(b"before", there)
        assert receiver.recv(100) == b"before"
        commands.stop(backend.place)
        end = select.poll()
        end.register(sender.fileno(), 0)
        wait_until(lambda: bool(end.poll(0)))
        for flags in (0, urds.MSG_DONTWAIT):
            with pytest.raises(OSError, match="has ended") as ended:
                sender.sendto(b"after", flags, there)
            assert ended.value.errno == errno.EIO
        for sock in (sender, receiver):
            sock.close()


def test_a_node_that_hangs_is_named() -> None:
    """Its supervisor stands still too: else that would replace the worker after a while."""
    with backends.at_own_node("") as backend:
        status = commands.status(backend.place)
        stopped = [status["pid"], status["worker"]]
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(BlockingIOError, match=f"the node at {backend.place} gave no"):
                bound(backend, 1)
        finally:
            for process in stopped:
                os.kill(process, signal.SIGCONT)


def test_another_thread_goes_on_while_a_send_asks_for_a_route() -> None:
    """It has the worker go on, which the send waits for, though that does not wait for room."""
    with backends.at_own_node("") as backend, bound(backend, 1) as sender:
        worker = commands.status(backend.place)["worker"]
        about_to_send, ended = threading.Event(), []

        def send() -> None:
            about_to_send.set()
            try:
                ended.append(sender.sendto(b"", urds.MSG_DONTWAIT, (host(99), 4000)))
            except OSError as refused:
                ended.append(refused)

        thread = threading.Thread(target=send)
        os.kill(worker, signal.SIGSTOP)
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(60)  # the thread goes on until it waits
        try:
            thread.start()
            about_to_send.wait(30)
            assert ended == []
        finally:
            sys.setswitchinterval(interval_s)
            os.kill(worker, signal.SIGCONT)
            thread.join(30)
        assert ended == [0]


def test_senders_without_room_learn_of_the_end_of_their_node() -> None:
    """One that waits, one that does not, and a receiver that does not wait: EIO, and no hang."""
    with backends.at_own_node("") as backend, ThreadPoolExecutor() as threads:
        sender, waiter, receiver = (bound(backend, last) for last in (1, 2, 3))
        there = receiver.getsockname()
        sender.setblocking(False)
        assert fill(sender, there) in {errno.EAGAIN, errno.ENOBUFS}
        waiter.settimeout(None)
        waiting = threads.submit(fill, waiter, there)
        time.sleep(0.2)
        commands.stop(backend.place)
        assert waiting.result(20) == errno.EIO
        for call in (
            lambda: sender.sendto(bytes(8192), urds.MSG_DONTWAIT, there),
            lambda: sender.recv(1, urds.MSG_DONTWAIT),
        ):
            with pytest.raises(OSError, match="has ended") as ended:
                call()
            assert ended.value.errno == errno.EIO
        for sock in (sender, waiter, receiver):
            sock.close()


def fill(sock: urds.Socket, there: Any) -> int | None:
    """Send until that is refused; return the errno."""
    while True:
        try:
            sock.sendto(bytes(8192), there)
        except OSError as refused:
            return refused.errno
