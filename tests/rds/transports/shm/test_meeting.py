"""How two processes meet: whose process, whose address, what memory."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from urds.common.passed_files import sealed_file
from urds.rds.transports import shm

ME, PEER = ip_address("127.7.1.1"), ip_address("127.7.1.2")
PORT = 20_000 + os.getpid() % 40_000  # names are of the whole host
UNKNOWN_PEER = 12_345  # a user that has nothing
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def listening(address: IPv4Address | IPv6Address = PEER) -> Iterator[socket.socket]:
    """Listen for shm streams to an address."""
    listener = shm.listen(address, PORT)
    assert listener is not None
    with listener:
        yield listener


@contextmanager
def as_unknown_peer(act: Callable[[], socket.socket]) -> Iterator[None]:
    """Have a process of another user do something, and stay there until the end."""
    ready, ready_end = os.pipe()
    over, over_end = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.setresuid(UNKNOWN_PEER, UNKNOWN_PEER, UNKNOWN_PEER)
            kept = act()
            os.write(ready_end, b"x")
            os.close(over_end)
            os.read(over, 1)
            kept.close()
        os._exit(0)
    os.close(ready_end)
    os.close(over)
    try:
        assert os.read(ready, 1) == b"x"
        yield
    finally:
        os.close(over_end)
        os.close(ready)
        os.waitpid(child, 0)


def test_without_a_listener() -> None:
    assert shm.connect(PEER, PORT) is None


def test_a_name_is_held_by_one() -> None:
    with listening():
        assert shm.listen(PEER, PORT) is None
        other = shm.listen(PEER, PORT + 1)
        assert other is not None
        other.close()


@pytest.mark.parametrize("text", ["127.7.1.1", "::1"])
def test_a_greeting_comes_with_its_memory(text: str) -> None:
    local = ip_address(text)
    peer = PEER if local.version == 4 else local
    with listening() as listener:
        line = shm.connect(PEER, PORT)
        assert line is not None
        memory = sealed_file("test", 8192)
        greeting = shm.Greeting(local, peer, 1234, 4096)
        with line:
            shm.send_greeting(line, greeting, memory)
            taken = shm.accept(listener)
            assert taken is not None
            with pytest.raises(BlockingIOError):
                shm.accept(listener)
            with taken:
                heard, theirs = shm.receive_greeting(taken)
        assert heard == greeting
        assert os.fstat(theirs).st_ino == os.fstat(memory).st_ino
        assert fcntl.fcntl(theirs, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        assert not os.get_inheritable(theirs)
        os.close(theirs)
        os.close(memory)


def _wrong(change: str) -> tuple[bytes, int]:
    data = shm._GREETING.pack(*(b"urdslane", 1, 0, 4096, 4, ME.packed, 0, PEER.packed, 0))
    at = {"magic": 0, "version": 9, "family": 16}
    if change in at:
        data = data[: at[change]] + b"\xff" + data[at[change] + 1 :]
    foreign = ip_address("192.0.2.77").packed
    changed = {"cut": data[:-1], "empty": b"\0", "address": data.replace(ME.packed, foreign, 1)}
    return changed.get(change, data), {"none": 0, "two": 2, "many": 9}.get(change, 1)


@pytest.mark.parametrize(
    "change", ["magic", "version", "family", "cut", "empty", "address", "none", "two", "many"]
)
def test_a_wrong_greeting_is_refused_and_leaves_no_descriptor(change: str) -> None:
    data, count = _wrong(change)
    near, far = socket.socketpair()
    memory = sealed_file("test", 8192)
    before = len(os.listdir("/proc/self/fd"))
    with near, far:
        rights = array("i", [memory] * count)
        near.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if count else [])
        with pytest.raises((ValueError, OSError)):
            shm.receive_greeting(far)
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(memory)


@needs_root
def test_another_user_is_not_accepted() -> None:
    name = shm._name(PEER, PORT)

    def connection() -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        line.connect(name)
        return line

    with listening() as listener:
        with as_unknown_peer(connection):
            assert shm.accept(listener) is None
        line = shm.connect(PEER, PORT)
        assert line is not None
        line.close()


_IN_A_CONTAINER = """
import socket, sys
sys.path[:0] = sys.argv[3:]
from ipaddress import ip_address
from urds.common.passed_files import sealed_file
from urds.rds.transports import shm
line = shm.connect(ip_address(sys.argv[1]), int(sys.argv[2]))
print(line is None)
line = socket.socket(socket.AF_UNIX)
line.connect(shm._name(ip_address(sys.argv[1]), int(sys.argv[2])))
print("connected", flush=True)
sys.stdin.read()
"""


def test_the_same_user_of_another_container_is_not_accepted() -> None:
    """It shares the network, as containers with the host's do; its user is ours by number alone."""
    command = ["unshare", "--user", "--map-current-user", sys.executable, "-c"]
    arguments = [_IN_A_CONTAINER, str(PEER), str(PORT), *sys.path]
    with listening() as listener:
        container = subprocess.Popen(
            [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with container:
            assert container.stdout is not None
            assert container.stdout.readline() == "True\n", "what it found is not believed"
            assert container.stdout.readline() == "connected\n"
            assert shm.accept(listener) is None, "its look"
            assert shm.accept(listener) is None
        line = shm.connect(PEER, PORT)
        assert line is not None
        line.close()


def test_an_end_whose_process_is_gone_is_nobodys() -> None:
    """Its number may be another process's by now."""
    with listening() as listener:
        child = os.fork()
        if not child:
            line = socket.socket(socket.AF_UNIX)
            line.connect(shm._name(PEER, PORT))
            os._exit(0)
        os.waitpid(child, 0)
        assert shm.accept(listener) is None


@needs_root
def test_who_takes_our_name_is_not_believed() -> None:
    name = shm._name(PEER, PORT)

    def squat() -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen()
        return listener

    with as_unknown_peer(squat):
        assert shm.connect(PEER, PORT) is None
        assert shm.listen(PEER, PORT) is None


def test_addresses_of_this_host_are_known() -> None:
    assert shm.is_local(ip_address("127.200.3.4"))
    assert shm.is_local(ip_address("::1"))
    assert not shm.is_local(ip_address("192.0.2.77"))
    assert not shm.is_local(ip_address("2001:db8::77"))
