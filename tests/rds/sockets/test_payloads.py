"""Whose memory a payload is: the caller's again once a send has returned."""

import errno
import itertools
import socket
from collections.abc import Callable
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from tests.rds.sockets.remote import RemotePeer
from tests.support import backends, carriers
from tests.support.waiting import wait_until
from urds.rds.constants import SOL_SOCKET
from urds.rds.options import SO_RCVBUFFORCE, SO_SNDBUFFORCE

pytestmark = pytest.mark.each_carrier

MESSAGES = 40
TARGET = (host(2), 4000)
SIZES = [8191, 8192, 60_000]
SENDS: dict[str, Callable[[urds.Socket, Any], int]] = {
    "sendto": lambda sock, payload: sock.sendto(payload, TARGET),
    "send": lambda sock, payload: sock.send(payload),
    "sendmsg": lambda sock, payload: sock.sendmsg([payload]),
    "gathered": lambda sock, payload: sock.sendmsg([payload[:10], memoryview(payload)[10:]]),
    "send_many": lambda sock, payload: sock.send_many([(payload, TARGET)]),
}


def send_from_one_buffer(sock: urds.Socket, send: str, byte_count: int) -> None:
    """Send messages that each repeat their number, all from the same memory."""
    sock.connect(TARGET)
    buffer = bytearray(byte_count)
    for number in range(MESSAGES):
        buffer[:] = bytes([number + 1]) * byte_count
        SENDS[send](sock, buffer)
        buffer.append(0)  # it is not held on to
        buffer.pop()
    buffer[:] = bytes(byte_count)


def wrong(got: list[bytes], byte_count: int) -> list[int]:
    return [at for at, one in enumerate(got) if one != bytes([at + 1]) * byte_count]


@pytest.mark.parametrize("byte_count", SIZES)
@pytest.mark.parametrize("send", [*SENDS])
def test_a_buffer_may_be_used_again_within_a_process(
    new_socket: NewSocket, send: str, byte_count: int
) -> None:
    sender, receiver = new_socket(1), new_socket(2, 4000)
    sender.setsockopt(SOL_SOCKET, SO_SNDBUFFORCE, MESSAGES * byte_count)
    receiver.setsockopt(SOL_SOCKET, SO_RCVBUFFORCE, MESSAGES * byte_count)
    send_from_one_buffer(sender, send, byte_count)
    receiver.settimeout(10)
    assert wrong([receiver.recv(byte_count + 1) for _ in range(MESSAGES)], byte_count) == []


def test_a_buffer_may_be_used_again_towards_another_process(new_socket: NewSocket) -> None:
    with RemotePeer() as peer:
        receiver = peer.socket()
        receiver.setsockopt(SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        receiver.bind(TARGET)
        receiver.settimeout(10)
        for send, data in itertools.product(SENDS, SIZES):
            sender = new_socket(1)
            sender.setsockopt(SOL_SOCKET, SO_SNDBUFFORCE, MESSAGES * data)
            send_from_one_buffer(sender, send, data)
            got = [receiver.recv(data + 1) for _ in range(MESSAGES)]
            assert (send, data, wrong(got, data)) == (send, data, [])
            sender.close()


def test_a_buffer_to_be_kept_is_held_until_it_is_acknowledged(new_socket: NewSocket) -> None:
    with RemotePeer() as peer:
        receiver, sender = peer.socket(), new_socket(1)
        buffer = bytearray(b"a" * 60_000)
        sender.sendmsg([buffer], [], 0, TARGET, copy=False)
        with pytest.raises(BufferError):
            buffer.append(0)
        receiver.bind(TARGET)
        receiver.settimeout(10)
        assert receiver.recv(60_000) == buffer
        wait_until(lambda: is_free(buffer))


def test_the_longest_message_of_rds_needs_no_setting(new_socket: NewSocket) -> None:
    payload = bytes(range(256)) * 4096
    with RemotePeer() as peer:
        receiver, sender = peer.socket(), new_socket(1)
        receiver.bind(TARGET)
        receiver.settimeout(10)
        assert sender.sendto(payload, TARGET) == 1 << 20
        assert receiver.recv(2 << 20) == payload
        limits = (
            r"1048577 bytes, limit 1048576: raise .* over RDMA and to a kernel 1048576 is the most"
        )
        with pytest.raises(OSError, match=limits) as refused:
            sender.sendto(bytes((1 << 20) + 1), TARGET)
        assert refused.value.errno == errno.EMSGSIZE


def test_a_longer_message_needs_one_setting_of_its_sender(new_socket: NewSocket) -> None:
    payload = bytes(range(256)) * (5 << 12)
    with RemotePeer() as peer:
        receiver, sender = peer.socket(), new_socket(1)
        receiver.bind(TARGET)
        receiver.settimeout(10)
        sender.setsockopt(SOL_SOCKET, socket.SO_SNDBUF, len(payload))
        if carriers.is_rdma():
            with pytest.raises(OSError, match=r"takes 1048576: .*1 MiB for a kernel or RDMA"):
                sender.sendto(payload, TARGET)
            return
        assert sender.sendto(payload, TARGET) == 5 << 20
        assert receiver.recv(8 << 20) == payload
        sender.setsockopt(SOL_SOCKET, socket.SO_SNDBUF, 64 << 20)
        with pytest.raises(OSError, match=r"limit 8388608: raise .*max_message_bytes") as refused:
            sender.sendto(bytes((8 << 20) + 1), TARGET)
        assert refused.value.errno == errno.EMSGSIZE


def test_a_peer_that_takes_less_is_named(new_socket: NewSocket) -> None:
    with RemotePeer(max_message_bytes="2M") as peer:
        receiver, sender = peer.socket(), new_socket(1)
        receiver.bind(TARGET)
        sender.setsockopt(SOL_SOCKET, socket.SO_SNDBUF, 5 << 20)
        limit = 1 << 20 if carriers.is_rdma() else 2 << 20
        if backends.IS_ATTACHED:  # the node sees it, so the next send is told
            sender.sendto(bytes(5 << 20), TARGET)
            wait_until(lambda: sender.unacknowledged == 0)
            with pytest.raises(OSError) as refused:
                sender.sendto(b"", TARGET)
            assert refused.value.errno == errno.EMSGSIZE
            return
        with pytest.raises(OSError, match=rf"{TARGET[0]} takes {limit}: its max_message_bytes"):
            sender.sendto(bytes(5 << 20), TARGET)


def is_free(buffer: bytearray) -> bool:
    """Tell whether nothing holds the memory. Any call of the plane gives back what ended."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    return True
