"""Rules of rds(7) that the tables and scenarios beside this file do not show one by one.

What is expected where the page is silent: docs/reference/rds.md 3.2-3.6 (linux v6.1).
"""

import errno
import socket
import struct
import time

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from tests.rds.sockets.recording import DONTWAIT, poll_bits
from tests.rds.sockets.remote import RemotePeer
from tests.support.errnos import refused
from urds.rds.constants import SOL_SOCKET, MessageFlag, SockOpt
from urds.rds.runtime.process import process

pytestmark = pytest.mark.each_carrier

NEAR, FAR = host(1), host(2)
SO_SNDBUF, SO_RCVBUF, SO_RCVTIMEO = 7, 8, 20
WAIT_S = 20.0


@pytest.mark.rule("rds7-pf-rds", "rds7-sol-rds", "rds7-sysctl-sol-rds")
def test_the_numbers_that_were_read_from_files_are_fixed(new_socket: NewSocket) -> None:
    assert (urds.PF_RDS, urds.SOL_RDS) == (21, 276)
    sock = new_socket()
    assert sock.family == urds.PF_RDS
    sock.setsockopt(urds.SOL_RDS, SockOpt.RECVERR, 1)
    assert sock.getsockopt(urds.SOL_RDS, SockOpt.RECVERR) == 1
    assert refused(sock.setsockopt, urds.SOL_RDS + 1, SockOpt.RECVERR, 1) == errno.ENOPROTOOPT


# -- names


@pytest.mark.rule("rds7-bind-unique")
def test_an_address_and_port_have_one_socket(new_socket: NewSocket) -> None:
    first, second = new_socket(1, 4000), new_socket()
    assert refused(second.bind, (NEAR, 4000)) == errno.EADDRINUSE
    second.bind((FAR, 4000))
    first.close()
    assert new_socket(1, 4000).getsockname() == (NEAR, 4000)


# -- messages


@pytest.mark.rule("rds7-no-oob")
def test_nothing_is_sent_or_received_out_of_band(new_socket: NewSocket) -> None:
    """A receive with MSG_OOB gives nothing and leaves the queue alone, as Linux was seen to do."""
    sock = new_socket(1, 4000)
    out_of_band = int(MessageFlag.OOB)
    assert refused(sock.sendto, b"urgent", out_of_band, (NEAR, 4000)) == errno.EOPNOTSUPP
    sock.sendto(b"plain", (NEAR, 4000))
    assert sock.recvmsg(100, 0, out_of_band) == (b"", [], 0, None)
    assert sock.recvmsg(100) == (b"plain", [], 0, (NEAR, 4000))
    assert refused(sock.recv, 100, DONTWAIT) == errno.EAGAIN


# -- queues


@pytest.mark.rule("rds7-account-payload", "rds7-empty-message")
def test_empty_messages_weigh_nothing_at_the_receiver(new_socket: NewSocket) -> None:
    receiver, sender = new_socket(), new_socket(1)
    receiver.setsockopt(SOL_SOCKET, SO_RCVBUF, 1)  # 1152 bytes is the least there is
    receiver.bind((FAR, 5000))
    for _ in range(3000):
        sender.sendto(b"", DONTWAIT, (FAR, 5000))
    time.sleep(0.01)  # a port is looked at again after a millisecond
    assert sender.sendto(b"x" * 1000, DONTWAIT, (FAR, 5000)) == 1000
    receiver.settimeout(WAIT_S)
    assert [len(receiver.recv(2000)) for _ in range(3001)] == [0] * 3000 + [1000]


@pytest.mark.rule(
    "rds7-send-limit", "rds7-queued-until-acked", "rds7-queue-accounts", "rds7-ack-purges"
)
def test_a_full_send_queue_has_room_when_its_messages_were_acknowledged(
    new_socket: NewSocket,
) -> None:
    """The receiver is a urds node in another process, so that only its RDS can acknowledge."""
    sender = new_socket()
    sender.setsockopt(SOL_SOCKET, SO_SNDBUF, 8192)
    sender.bind((NEAR, 0))
    while "POLLOUT" in poll_bits(sender):
        sender.sendto(bytes(1000), DONTWAIT, (FAR, 5000))
    time.sleep(0.05)
    assert refused(sender.sendto, b"x", DONTWAIT, (FAR, 5000)) == errno.EAGAIN
    with RemotePeer() as peer:
        receiver = peer.socket()
        receiver.bind((FAR, 5000))
        receiver.settimeout(WAIT_S)
        sender.settimeout(WAIT_S)
        assert sender.sendto(b"last", (FAR, 5000)) == 4
        received = [receiver.recv(2000) for _ in range(10)]
        assert received == [bytes(1000)] * 9 + [b"last"]
        deadline = time.monotonic() + WAIT_S
        while any(row.send_queued_bytes for row in process.backend().snapshot().mailboxes):
            assert time.monotonic() < deadline, "an acknowledged message leaves the queue"
            time.sleep(0.01)


@pytest.mark.rule("rds7-addresses")
def test_ends_are_named_by_addresses_of_af_inet(new_socket: NewSocket) -> None:
    """Sixteen bytes as `struct sockaddr_in` has them, and the pairs of Python."""
    data = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 5000) + socket.inet_aton(FAR)
    receiver, sender = new_socket(2, 5000), new_socket(1)
    assert sender.sendmsg([b"x"], [], 0, data.ljust(16, b"\0")) == 1
    name, port = sender.getsockname()
    assert name == NEAR
    assert 2 <= port <= 65535
    assert receiver.recvfrom(10) == (b"x", (name, port))
