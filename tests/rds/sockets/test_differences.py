"""Each line of docs/differences.md has a test here: `test_difference_` and its name.

Those about RDMA or shm streams alone have theirs in files of their own.
"""

import ast
import errno
import os
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from unittest.mock import Mock

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket, backend_with
from tests.rds.sockets.hosts import host
from tests.rds.sockets.recording import DONTWAIT, poll_bits, readable, sockaddr6
from tests.rds.sockets.remote import RemotePeer
from tests.rds.transports.tcp.faults import silent_host
from tests.support import backends, carriers
from tests.support.planes import in_use
from tests.support.ports import sole_ipv6_host
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.constants import RDS_TCP_PORT, SOL_RDS, SOL_SOCKET, Capability, MessageFlag, SockOpt
from urds.rds.control.handshake import emit_ours
from urds.rds.control.settings import ConnectionSettings
from urds.rds.plane.choose import PYTHON
from urds.rds.plane.contract import Limits
from urds.rds.plane.python.inbox import LOOK_AGAIN_NS, Inbox
from urds.rds.plane.python.receive_side import ReceiveSide
from urds.rds.runtime import connect as streams
from urds.rds.runtime.backend import MailboxSettings
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process
from urds.rds.wire.extensions import parse_handshake

pytestmark = pytest.mark.each_carrier

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "differences.md"
SO_LINGER, SO_SNDTIMEO, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 13, 21, 32, 33
UNREACHABLE = (host(77), 4000)
EXTERNAL = ("198.51.100.1", 4000)
ARRIVAL_S = 3.0
NO_ARRIVAL_S = 0.3


def error_of(call: Callable[..., object], *arguments: object) -> OSError:
    """Return the OSError that a call raises."""
    with pytest.raises(OSError) as refused:
        call(*arguments)
    return refused.value


def congest(sender: urds.Socket, target: tuple[str, int]) -> None:
    """Send until the port is congested; the receiver has the smallest buffer."""
    deadline = time.monotonic() + ARRIVAL_S
    while time.monotonic() < deadline:
        try:
            sender.sendto(bytes(1000), DONTWAIT, target)
        except OSError as refused:
            if refused.errno == errno.ENOBUFS:
                return
        time.sleep(0.001)
    pytest.fail("no congestion")


def congested_pair(new_socket: NewSocket) -> tuple[urds.Socket, tuple[str, int]]:
    """Return a sender and the port that is full for it."""
    receiver, sender = new_socket(), new_socket(1)
    receiver.setsockopt(SOL_SOCKET, 8, 1)
    receiver.bind((host(2), 4000))
    congest(sender, (host(2), 4000))
    return sender, (host(2), 4000)


# -- calls


def test_difference_msg_nosignal(new_socket: NewSocket) -> None:
    sender, receiver = new_socket(1), new_socket(2, 4000)
    flag = int(MessageFlag.NOSIGNAL)
    assert sender.sendto(b"x", flag, (host(2), 4000)) == 1
    assert sender.sendmsg([b"y"], [], flag, (host(2), 4000)) == 1
    assert [receiver.recv(10) for _ in range(2)] == [b"x", b"y"]
    with backend_with(strict_linux=True), urds.Socket() as strict:
        strict.bind((host(3), 0))
        refused = error_of(strict.sendto, b"x", flag, (host(2), 4000))
        assert refused.errno == errno.EOPNOTSUPP


def test_difference_destinations_share(new_socket: NewSocket) -> None:
    sender, others = new_socket(1), [(host(number), 4000) for number in (78, 79)]
    sender.setsockopt(SOL_SOCKET, 7, 8192)  # doubled: 16,384 bytes
    refused = _fill(sender, UNREACHABLE)
    assert refused.errno == errno.EAGAIN, refused
    for other in others:
        assert sender.sendto(b"there is room", DONTWAIT, other)
    wait_until(lambda: "POLLOUT" in poll_bits(sender))  # a node sees it within a millisecond
    for other in (others[0], UNREACHABLE):
        refused = _fill(sender, other)
        assert refused.errno == errno.ENOBUFS, refused
    with backend_with(strict_linux=True), urds.Socket() as strict:
        strict.setsockopt(SOL_SOCKET, 7, 8192)
        strict.bind((host(3), 0))
        for other in (UNREACHABLE, others[0]):
            refused = _fill(strict, other)
            assert refused.errno == errno.EAGAIN, refused
        assert "POLLOUT" not in poll_bits(strict)


def _fill(sock: urds.Socket, address: tuple[str, int]) -> OSError:
    """Send until it is refused; return why."""
    try:
        while True:
            sock.sendto(bytes(1000), DONTWAIT, address)
    except OSError as refused:
        return refused


@pytest.mark.rule("rds7-cancel-all", "rds7-cancel-removes", "rds7-cancel-destination")
def test_difference_cancel_all(new_socket: NewSocket) -> None:
    sender = new_socket(1)
    for payload in (b"a", b"b"):
        sender.sendto(payload, UNREACHABLE)
    sender.sendto(b"c", (UNREACHABLE[0], 4001))
    assert sender.cancel((UNREACHABLE[0], 4001)) == 1
    sender.setsockopt(SOL_RDS, SockOpt.CANCEL_SENT_TO, b"")
    assert sender.cancel() == 0
    with backend_with(strict_linux=True), urds.Socket() as strict:
        strict.bind((host(3), 0))
        refused = error_of(strict.setsockopt, SOL_RDS, SockOpt.CANCEL_SENT_TO, b"")
        assert refused.errno == errno.EINVAL


@pytest.mark.rule(
    "rds7-monitor-mask", "rds7-monitor-match", "rds7-monitor-bitmap", "rds7-monitor-readable"
)
def test_difference_monitor_mask(new_socket: NewSocket) -> None:
    """Shows that only the groups of the mask are told, and which bits they are."""
    receivers = [new_socket() for _ in range(2)]
    for number, receiver in enumerate(receivers):
        receiver.setsockopt(SOL_SOCKET, 8, 1)
        receiver.bind((host(2), 4000 + number))
    sender = new_socket(1)
    mask = urds.RDS_CONG_MONITOR_MASK(4001)
    sender.setsockopt(SOL_RDS, SockOpt.CONG_MONITOR, struct.pack("=Q", mask))
    assert sender.getsockopt(SOL_RDS, SockOpt.CONG_MONITOR, 8) == struct.pack("=Q", mask)
    for port in (4000, 4001):
        congest(sender, (host(2), port))
    for receiver in receivers:
        receiver.recv_many(100)
    assert readable(sender)
    payload, control, _, source = sender.recvmsg(100, 100)
    assert (payload, source) == (b"", None)
    assert control == [(SOL_RDS, urds.RDS_CMSG_CONG_UPDATE, struct.pack("=Q", mask))]


@pytest.mark.rule("rds7-timeouts")
def test_difference_send_timeout(new_socket: NewSocket) -> None:
    sender, target = congested_pair(new_socket)
    sender.settimeout(0.05)
    late = error_of(sender.sendto, b"x", target)
    assert late.errno == errno.ETIMEDOUT
    assert f"no room to send to {target[0]} port {target[1]}" in str(late)
    sender.settimeout(None)
    sender.setsockopt(SOL_SOCKET, SO_SNDTIMEO, struct.pack("=qq", 0, 50_000))
    assert error_of(sender.sendto, b"x", target).errno == errno.ETIMEDOUT


@pytest.mark.each_carrier(False)
def test_difference_buffer_force(new_socket: NewSocket) -> None:
    sock = new_socket()
    for force, plain in ((SO_SNDBUFFORCE, 7), (SO_RCVBUFFORCE, 8)):
        sock.setsockopt(SOL_SOCKET, force, 64 << 20)
        assert sock.getsockopt(SOL_SOCKET, plain) == 128 << 20


def test_difference_buffer_sizes() -> None:
    for strict, default, largest in ((False, 2 << 20, 128 << 20), (True, 212_992, 425_984)):
        with backend_with(strict_linux=strict), urds.Socket() as sock:
            assert sock.getsockopt(SOL_SOCKET, 7) == default
            for option in (7, 8):
                sock.setsockopt(SOL_SOCKET, option, 1 << 30)
                assert sock.getsockopt(SOL_SOCKET, option) == largest


def test_difference_zerocopy(new_socket: NewSocket) -> None:
    sender = new_socket(1)
    flag = int(MessageFlag.ZEROCOPY)
    cookie = [(SOL_RDS, urds.RDS_CMSG_ZCOPY_COOKIE, struct.pack("=I", 7))]
    target = (host(1), 4000)
    assert error_of(sender.sendmsg, [b"x"], cookie, flag, target).errno == errno.EINVAL
    sender.setsockopt(SOL_SOCKET, urds.SO_ZEROCOPY, 1)
    without_cookie = errno.EOPNOTSUPP if carriers.is_rdma() else errno.EINVAL
    assert error_of(sender.sendmsg, [b"x"], [], flag, target).errno == without_cookie
    assert error_of(sender.sendmsg, [b"x"], cookie, 0, target).errno == errno.EINVAL
    assert error_of(sender.sendmsg, [b"x"], cookie, flag, target).errno == errno.EOPNOTSUPP
    copied, kept = bytearray(8192), bytearray(8192)
    for payload, copy in ((copied, True), (kept, False)):
        assert sender.sendmsg([payload], [], 0, UNREACHABLE, copy=copy) == 8192
    copied.append(0)
    if backends.IS_ATTACHED:  # everything is copied into memory that the node shares
        kept.append(0)
        return
    with pytest.raises(BufferError):
        kept.append(0)


def arrives_after_close(
    *, linger: bytes | None = None, wait_s: float = NO_ARRIVAL_S, **settings: object
) -> bool:
    """Send to a host that is not there yet, close, let it come; tell whether the message came."""
    with RemotePeer() as peer, backend_with(**settings):
        receiver = peer.socket()
        sender = urds.Socket()
        if linger is not None:
            sender.setsockopt(SOL_SOCKET, SO_LINGER, linger)
        sender.bind((host(1), 0))
        sender.sendto(b"last words", (host(2), 4000))
        sender.close()
        receiver.bind((host(2), 4000))
        receiver.settimeout(wait_s)
        try:
            return bool(receiver.recv(100) == b"last words")
        except TimeoutError:
            return False


@pytest.mark.rule("rds7-close-cancels")
def test_difference_close_lingers() -> None:
    """Gives it longer, for a busy machine; that it is five seconds is the setting's default."""
    assert arrives_after_close(linger_s=10, wait_s=ARRIVAL_S)
    assert not arrives_after_close(linger_s=0)
    assert not arrives_after_close(strict_linux=True)
    assert urds.Settings().linger_s == 5


@pytest.mark.rule("rds7-close-cancels")
def test_difference_linger(new_socket: NewSocket) -> None:
    assert not arrives_after_close(linger=struct.pack("=ii", 1, 0))
    sender = new_socket(3)  # the first host may be another node's still
    sender.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("=ii", 1, 1))
    sender.sendto(b"x", UNREACHABLE)
    began = time.monotonic()
    sender.close()
    assert 0.9 < time.monotonic() - began < BUSY_S


def test_difference_exit_drains() -> None:
    """Ends a script right after its sends, without a close."""
    script = (
        "import sys, urds\n"
        "s = urds.Socket(); s.bind((sys.argv[1], 0))\n"
        "for n in range(100): s.sendto(b'%d' % n, (sys.argv[2], 4000))\n"
    )
    with backend_with(), urds.Socket() as receiver:
        receiver.setsockopt(SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20)
        receiver.bind((host(2), 4000))
        receiver.settimeout(ARRIVAL_S)
        command = [sys.executable, "-c", script, host(3), host(2)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, check=False, capture_output=True, timeout=60, env=environ)
        assert done.returncode == 0, done.stderr.decode()
        assert [receiver.recv(10) for _ in range(100)] == [b"%d" % n for n in range(100)]


def test_difference_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URDS_IDLE_S", "0.05")
    before = process.use(None)
    try:
        with urds.Socket() as sock:
            sock.bind((host(1), 0))
            sock.sendto(b"x", sock.getsockname())
        node = process.backend()
        assert node.counters()["send_queued"] == 1
        end_s = time.monotonic() + 10
        while node in process.alive:
            assert time.monotonic() < end_s, "it does not end"
            time.sleep(0.005)
        with backend_with() as another:  # as another process would
            settings = MailboxSettings()
            another.bind(
                address=ip_address(host(1)), port=4000, settings=settings, transport=None
            ).close()
        assert process.backend().counters()["send_queued"] == 0
    finally:
        made = process.use(before)
        if made is not None:
            made.close()


def test_difference_fork(new_socket: NewSocket) -> None:
    sock = new_socket(1)
    unbound = new_socket()
    child = os.fork()
    if not child:
        code = 1
        try:
            dead = [error_of(sock.recv, 1, DONTWAIT), error_of(sock.sendto, b"x", UNREACHABLE)]
            sock.close()
            unbound.bind((host(9), 4000))
            unbound.sendto(b"own", (host(9), 4000))
            alive = unbound.recv(10) == b"own"
            code = 0 if alive and all(one.errno == errno.EBADF for one in dead) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sock.sendto(b"still here", sock.getsockname())
    assert sock.recv(100) == b"still here"


SUB_INTERPRETER = """
import importlib, os, sys
try:
    interpreters = importlib.import_module("_interpreters")
except ImportError:
    interpreters = importlib.import_module("_xxsubinterpreters")
code = '''
import os, sys
sys.path[:0] = {path!r}
import urds
sock = urds.Socket()
try:
    sock.bind(({host!r}, 4000))
except RuntimeError as refused:
    assert "sub-interpreter" in str(refused)
    os.write(1, b"refused")
sock.close()
'''
one = interpreters.create()
failure = interpreters.run_string(one, code)
assert failure is None, failure
interpreters.destroy(one)
print(" and", end=" ")
import urds
with urds.Socket() as sock:
    sock.bind(({host!r}, 4000))
    print("bound")
"""


def test_difference_sub_interpreters() -> None:
    program = SUB_INTERPRETER.format(path=sys.path, host=host(1))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **carriers.chosen()},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "refused and bound\n", "")


def test_difference_handlers(new_socket: NewSocket, backend: InProcess) -> None:
    sock, other = new_socket(1), new_socket(1)
    port = other.getsockname()[1]
    with backend._driver.lock:  # as a finaliser finds it inside a bind
        failure = error_of(new_socket().bind, (host(1), 0))
        assert failure.errno == errno.EDEADLK
        assert "send or receive outside" in str(failure)
        if in_use() == PYTHON:
            with backend.plane.state.lock:
                assert error_of(sock.sendto, b"x", UNREACHABLE).errno == errno.EDEADLK
                assert error_of(sock.recv, 1).errno == errno.EDEADLK
        other.settimeout(1)
        assert other.fileno() >= 0
        other.close()
    new_socket(1, port)


def test_difference_python_ipv6() -> None:
    with sole_ipv6_host(), backend_with(), urds.Socket() as sock, urds.Socket() as other:
        sock.bind(("::1", 4000))
        other.bind(("::1", 0, 0, 0))
        other.sendto(b"six", ("::1", 4000, 0, 0))
        other.sendmsg([b"raw"], [], 0, sockaddr6("::1", 4000))
        assert sock.getsockname() == ("::1", 4000, 0, 0)
        assert [sock.recvfrom(10) for _ in range(2)] == [
            (b"six", other.getsockname()),
            (b"raw", other.getsockname()),
        ]
        assert error_of(sock.sendto, b"x", (host(1), 4000)).errno == errno.EOPNOTSUPP


@pytest.mark.each_carrier(False)
def test_difference_rdma_anywhere(backend: InProcess) -> None:
    with urds.Socket() as sock:
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, urds.RDS_TRANS_IB)
        assert sock.getsockopt(SOL_RDS, SockOpt.TRANSPORT) == 0
    with backend_with(rdma_devices=["missing0"]), urds.Socket() as sock:
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, urds.RDS_TRANS_IB)
        assert error_of(sock.bind, (host(1), 0)).errno == errno.ENOPROTOOPT


@pytest.mark.each_carrier(False)
def test_difference_regions_not_pinned() -> None:
    """Shows it where the kernel counts what a process has pinned or locked."""

    def pinned_kib() -> list[int]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith(("VmPin", "VmLck"))]

    memory = bytearray(1 << 20)
    before = pinned_kib()
    with backend_with(rdma_devices=["shm0"]), urds.Socket() as sock:
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, urds.RDS_TRANS_IB)
        sock.bind((host(1), 0))
        with sock.get_mr(memory):
            assert pinned_kib() == before


def test_difference_info_length(new_socket: NewSocket) -> None:
    sockets = [new_socket(1) for _ in range(40)]
    data = sockets[0].getsockopt(SOL_RDS, urds.RDS_INFO_SOCKETS, 1 << 16)
    assert len(data) == 40 * 28
    refused = error_of(sockets[0].getsockopt, SOL_RDS, urds.RDS_INFO_SOCKETS, 1024)
    assert refused.errno == errno.ENOSPC
    assert "1120 bytes needed" in str(refused)


def test_difference_info_counters(new_socket: NewSocket) -> None:
    data = new_socket(1).getsockopt(SOL_RDS, urds.RDS_INFO_COUNTERS, 1 << 16)
    names = [data[at : at + 32].rstrip(b"\0").decode() for at in range(0, len(data), 40)]
    assert {"recv_drop_no_sock", "cong_send_error", "recv_drop_too_long"} <= set(names)


# -- the descriptor


@pytest.mark.usefixtures("backend")
def test_difference_descriptor() -> None:
    with urds.Socket() as sock:
        sock.bind((host(1), 4000))
        for call in (sock.detach, sock.dup, sock.makefile):
            assert error_of(call).errno == errno.EOPNOTSUPP
        sock.sendto(b"message", (host(1), 4000))
        assert readable(sock)
        assert os.read(sock.fileno(), 100) != b"message"
        assert error_of(sock.ioctl, 0x541B).errno == errno.ENOTTY
        assert sock.recv(100) == b"message"


def test_difference_poll_wrband(new_socket: NewSocket) -> None:
    assert poll_bits(new_socket(1)) == "POLLOUT|POLLWRNORM|POLLWRBAND"


def test_difference_poll_first(new_socket: NewSocket) -> None:
    """A map came before the first poll; nothing is to be read, so nothing is told."""
    sender, _ = congested_pair(new_socket)
    fresh = new_socket(1)
    assert "POLLIN" not in poll_bits(fresh)
    assert error_of(fresh.recv, 10, DONTWAIT).errno == errno.EAGAIN
    assert sender.fileno() != fresh.fileno()


def test_difference_epoll_edges(new_socket: NewSocket) -> None:
    """A second message has no edge of its own; EAGAIN makes the next one tell again."""
    sock, target = new_socket(1), (host(1), 4000)
    receiver = new_socket(1, 4000)
    with select.epoll() as edges:
        edges.register(receiver, select.EPOLLIN | select.EPOLLET)
        for _ in range(2):
            sock.sendto(b"x", target)
            assert edges.poll(ARRIVAL_S) == [(receiver.fileno(), select.EPOLLIN)]
            sock.sendto(b"x", target)
            assert urds.drain(ARRIVAL_S) == 0, "the second one has arrived"
            assert edges.poll(0) == []
            assert receiver.recv(10, DONTWAIT) == b"x"
            assert receiver.recv(10, DONTWAIT) == b"x"
            assert error_of(receiver.recv, 10, DONTWAIT).errno == errno.EAGAIN


def test_difference_epoll_early(new_socket: NewSocket) -> None:
    sock = new_socket()
    early, late = select.epoll(), select.epoll()
    number = sock.fileno()
    early.register(sock, select.EPOLLIN)
    sock.bind((host(1), 4000))
    late.register(sock, select.EPOLLIN)
    assert sock.fileno() == number
    sock.sendto(b"x", (host(1), 4000))
    assert select.select([sock], [], [], ARRIVAL_S)[0] == [sock]
    assert late.poll(0) == [(number, select.EPOLLIN)]
    assert early.poll(0) == []
    early.close()
    late.close()


# -- hosts and peers


def test_difference_loopback_hosts(new_socket: NewSocket) -> None:
    sender, target = congested_pair(new_socket)
    assert error_of(sender.sendto, b"x", DONTWAIT, target).errno == errno.ENOBUFS
    assert sender.getsockopt(SOL_RDS, SockOpt.TRANSPORT) == carriers.transport()


def test_difference_one_process_per_address(new_socket: NewSocket) -> None:
    with RemotePeer() as peer:
        peer.socket().bind((host(2), 4000))
        refused = error_of(new_socket, 2, 4001)
        assert refused.errno == errno.EADDRINUSE
        assert host(2) in str(refused)


def test_difference_peers_allowed(new_socket: NewSocket) -> None:
    refused = error_of(new_socket(1).sendto, b"x", EXTERNAL)
    assert refused.errno == errno.EACCES
    assert ("setting allow" if backends.IS_ATTACHED else "URDS_ALLOW") in str(refused)


def test_difference_peers_max() -> None:
    with backend_with(peers_max=1), urds.Socket() as sock:
        sock.bind((host(1), 0))
        sock.sendto(b"x", UNREACHABLE)
        time.sleep(0.1)  # until the control thread knows that the first peer is wanted
        refused = error_of(sock.sendto, b"x", (host(78), 4000))
        assert refused.errno == errno.EUSERS
        assert ("peers_max" if backends.IS_ATTACHED else "1 peers") in str(refused)


@pytest.mark.rule("wire-security-backoff", "wire-security-tunable")
def test_difference_give_up() -> None:
    with backend_with(reconnect_give_up_s=0.1, reconnect_max_delay_ms=20), urds.Socket() as sock:
        sock.bind((host(1), 0))
        sock.sendto(b"x", UNREACHABLE)
        deadline = time.monotonic() + ARRIVAL_S
        failed = None
        while failed is None and time.monotonic() < deadline:
            time.sleep(0.02)
            try:
                sock.sendto(b"", UNREACHABLE)
            except OSError as refused:
                failed = refused.errno
        assert failed == errno.EHOSTUNREACH
        assert sock.sendto(b"anew", UNREACHABLE) == 4


@pytest.mark.reference
@pytest.mark.each_carrier(False)
@pytest.mark.rule("rds7-congested-when-full", "wire-congested")
def test_difference_congestion_second_look() -> None:
    inbox = Inbox(port=4000, buffer_bytes=1000)
    inbox.receive_queued_bytes = 1001
    assert inbox.check_congestion(0) is None
    assert inbox.check_congestion(LOOK_AGAIN_NS) is True
    inbox = Inbox(port=4000, buffer_bytes=1000)
    inbox.receive_queued_bytes = 4001
    assert inbox.check_congestion(0) is True


@pytest.mark.reference
@pytest.mark.each_carrier(False)
def test_difference_receive_bound(backend: InProcess) -> None:
    state = backend.plane.state
    inbox = ReceiveSide(state, Mock(), state.host(ip_address(host(1))), 4000)
    inbox.configure(MailboxSettings(receive_bytes_max=1000))
    inbox.receive_queued_bytes = 4000 + (16 << 20)
    assert not inbox.is_over_hard_bound()
    inbox.receive_queued_bytes += 1
    assert inbox.is_over_hard_bound()
    inbox.receive_queued_bytes, source = 0, ("127.0.0.1", 4001)
    inbox.put((b"payload", source))
    assert inbox.hard_bytes() == 128 + 7
    inbox.put((b"payload", source, bytes(16), 1, 1))
    assert inbox.hard_bytes() == 3 * 128 + 14
    for _ in range(100_000):
        inbox.put((b"", source))
    assert inbox.hard_bytes() == (4097 + 1) * 128 + 14
    for number in range(1000):
        inbox.put((b"", ("127.0.0.1", 4000 + number % 2)))
    assert inbox.hard_bytes() == (4097 + 1 + 1000) * 128 + 14


def test_difference_path_messages(new_socket: NewSocket) -> None:
    """A burst may pass the bound by what one write has; another socket finds it reached."""
    one, other = new_socket(1), new_socket(1)
    queued = 0
    with suppress(BlockingIOError):
        while queued < 2 * 65536:
            one.sendto(b"", DONTWAIT, UNREACHABLE)
            queued += 1
    assert 65536 <= queued < 65536 + (32 << 10) // 48 + 2
    assert error_of(other.sendto, b"", DONTWAIT, UNREACHABLE).errno == errno.EAGAIN


@pytest.mark.rule("rds7-message-length")
@pytest.mark.tcp_only("RDMA carries 1 MiB at most: the line says TCP")
def test_difference_long_messages() -> None:
    payload = bytes(range(256)) * (3 << 12)
    with RemotePeer() as peer, backend_with(), urds.Socket() as sender:
        receiver = peer.socket()
        receiver.bind((host(2), 4000))
        sender.setsockopt(SOL_SOCKET, 7, 8 << 20)
        sender.bind((host(1), 0))
        sender.settimeout(ARRIVAL_S)
        assert sender.sendto(payload, (host(2), 4000)) == len(payload)
        receiver.settimeout(ARRIVAL_S)
        assert receiver.recv(8 << 20) == payload
    with backend_with(strict_linux=True), urds.Socket() as sender:
        sender.setsockopt(SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
        sender.bind((host(1), 0))
        refused = error_of(sender.sendto, payload, (host(2), 4000))
        assert refused.errno == errno.EMSGSIZE
        assert "max_message_bytes" in str(refused)


@pytest.mark.each_carrier(False)
def test_difference_silent_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of streams that stood before: tests/rds/transports/tcp/test_dead_streams.py."""
    monkeypatch.setattr(streams, "_CONNECT_NS", 100_000_000)
    with (
        silent_host(UNREACHABLE[0], RDS_TCP_PORT),
        backend_with() as backend,
        urds.Socket() as sock,
    ):
        sock.bind((host(1), 0))
        sock.sendto(b"x", UNREACHABLE)
        deadline = time.monotonic() + ARRIVAL_S
        while backend.counters()["connects"] < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert backend.counters()["connects"] > 1


# -- on the wire


def test_difference_numbers_from_clock() -> None:
    """The bound leaves a minute for a clock that is set back between the two looks."""
    earliest = (time.time_ns() // 1_000_000 - 60_000) << 20
    with backend_with() as backend, urds.Socket() as sender:
        sender.bind((host(1), 0))
        sender.sendto(b"", (host(2), 4000))
        (path,) = backend.snapshot().paths
        assert earliest < path.sequence_next < 1 << 63


@pytest.mark.each_carrier(False)
def test_difference_mark() -> None:
    settings = ConnectionSettings(generation=7)
    data = emit_ours(settings, generation=False, sport_index=False)
    assert data[:10] == bytes.fromhex("05000100000000000000"), "what a kernel reads"
    mark = parse_handshake(data).mark
    assert mark is not None
    assert mark.capabilities & Capability.ACKNOWLEDGEMENTS


def test_difference_acknowledgements() -> None:
    with RemotePeer() as peer, backend_with() as backend, urds.Socket() as sender:
        peer.receive_one(sender)
        deadline = time.monotonic() + ARRIVAL_S
        while backend.snapshot().retransmit_queue and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not backend.snapshot().retransmit_queue, "the peer said that it has it"
        # Over RDMA the header of its map may say so as well.
        assert backend.counters()["ack_received"] or carriers.is_rdma()


# -- page and tests


@pytest.mark.each_carrier(False)
def test_each_line_has_a_test_and_each_test_a_line() -> None:
    lines = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    tests = {
        node.name.removeprefix("test_difference_").replace("_", "-")
        for file in (ROOT / "tests").rglob("test_*differences.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_difference_")
    }
    assert len(set(lines)) == len(lines)
    assert set(lines) == tests


@pytest.mark.each_carrier(False)
def test_difference_ping_budget() -> None:
    pings = 200
    with RemotePeer() as peer, backend_with(), urds.Socket() as sender:
        peer.socket().bind((host(2), 4000))
        sender.bind((host(1), 0))
        sender.settimeout(ARRIVAL_S)
        for _ in range(pings):
            sender.sendto(b"", (host(2), 0))
        answered = 0
        with suppress(TimeoutError):
            while answered < pings:
                sender.recv(1)
                answered += 1
                sender.settimeout(0.5)
        assert Limits().control_events_max <= answered < pings
