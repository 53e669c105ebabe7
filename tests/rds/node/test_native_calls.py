"""What a node asks of the compiled plane: sizes that fit, errors with their numbers."""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address

import pytest

from tests.support import planes
from urds.rds.constants import RDS_TCP_PORT
from urds.rds.control.events import FanOut
from urds.rds.node import native_calls
from urds.rds.node.native_calls import NativeCalls
from urds.rds.node.plane_calls import Opened
from urds.rds.plane.choose import NATIVE, native_module
from urds.rds.plane.contract import MailboxSettings
from urds.rds.settings import Settings

pytestmark = pytest.mark.skipif(planes.in_use() != NATIVE, reason="of the compiled plane")


@pytest.mark.parametrize("greatest", [4608, 100_000, 212_992, 1_073_741_823])
def test_a_socket_memory_fits_whatever_buffers_are_allowed(greatest: int) -> None:
    settings = Settings.load({"wmem_max": greatest, "rmem_max": greatest})
    sizes = native_calls.memory_sizes(settings)
    made = native_module().open_socket(sizes, b"/nowhere/node.sock", False)
    memory_bytes = os.fstat(made[2]).st_size
    for descriptor in made:
        os.close(descriptor)
    assert memory_bytes > 8 * greatest


def test_what_is_rejected_has_its_error_number() -> None:
    """It is the answer to a program; without a number that would be EIO."""
    sizes = native_calls.memory_sizes(Settings())
    with pytest.raises(OSError, match="Invalid argument") as refused:
        native_module().open_socket((3, *sizes[1:]), b"", False)
    assert refused.value.errno == errno.EINVAL


def test_words_of_options_lie_in_a_new_memory() -> None:
    sizes, words = native_calls.memory_sizes(Settings()), bytes(range(72))
    made = native_module().open_socket(sizes, b"", False, words)
    found = os.pread(made[2], 128, OPTIONS_AT)
    for descriptor in made:
        os.close(descriptor)
    assert found == words.ljust(128, b"\0")
    with pytest.raises(OSError, match="Invalid argument"):
        native_module().open_socket(sizes, b"", False, bytes(129))


OPTIONS_AT = 1280  # docs/protocol/socket-memory.md
NODE, PEER = "127.61.7.1", "127.61.7.2"
WAIT_S = 30.0


Worker = Callable[[Sequence[int], Sequence[int]], tuple[NativeCalls, Sequence[int]]]


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Give what begins workers; at the end none of them is left, however a test ends."""
    begun: list[NativeCalls] = []

    def begin(shared: Sequence[int], kept: Sequence[int]) -> tuple[NativeCalls, Sequence[int]]:
        begun.append(NativeCalls(Settings()))
        return begun[-1], restored(begun[-1], shared, kept)

    yield begin
    for calls in begun:
        calls.break_off(is_last=True)  # a second time has no effect


def restored(calls: NativeCalls, shared: Sequence[int], kept: Sequence[int]) -> Sequence[int]:
    """Begin with one bound socket, of an earlier worker if there was one."""
    shared = calls.begin(shared)
    calls.bind(kept, IPv4Address(NODE), 4000, MailboxSettings(), None)
    calls.finish_restore()
    return [os.dup(one) for one in shared]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open a socket at a worker that has no part in what follows."""
    calls = NativeCalls(Settings())
    made = calls.open("/nowhere/node.sock", nonblock=False)
    calls.break_off(is_last=True)
    yield made
    os.close(made.user_end)


def test_the_next_worker_connects_to_the_peers_of_the_one_before(
    opened: Opened, worker: Worker
) -> None:
    """No message waits, and the peer does not try: a bare listener is there, and never speaks."""
    with socket.create_server((PEER, RDS_TCP_PORT)) as listener:
        listener.settimeout(WAIT_S)
        first, shared = worker((), opened.kept)
        # It asks the node to connect, being the higher address, and is told off at once.
        with suppress(ConnectionResetError):
            socket.create_connection((NODE, RDS_TCP_PORT), WAIT_S, (PEER, 0)).close()
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1), "the node greets on it"
            first.break_off(is_last=False)
        second, _ = worker(shared, opened.kept)
        again, (address, _) = listener.accept()
        with again:
            assert address == NODE
            assert again.recv(1), "the next worker greets on it"
        second.break_off(is_last=True)


def test_a_peer_that_was_not_connected_is_left_alone(opened: Opened, worker: Worker) -> None:
    with socket.create_server((PEER, RDS_TCP_PORT)) as listener:
        first, shared = worker((), opened.kept)
        first.break_off(is_last=False)
        second, _ = worker(shared, opened.kept)
        assert second.drain(0) == 0
        second.break_off(is_last=True)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_the_next_worker_begins_with_as_many_paths(opened: Opened, worker: Worker) -> None:
    local, peer = IPv4Address(NODE), IPv4Address(PEER)
    first, shared = worker((), opened.kept)
    driver = first._driver  # a handshake of a peer with several paths would do the same
    with driver.lock:
        host = driver.hosts[local]
        driver.actions.carry_out(host, FanOut(peer, 4))
    first.break_off(is_last=False)
    second, shared = worker(shared, opened.kept)
    driver = second._driver
    with driver.lock:
        host = driver.hosts[local]
        driver.make_route(next(iter(host.mailboxes)), peer)
        assert host.endpoint.connection(peer, 0).npaths == host.peers[peer].npaths == 4
    second.break_off(is_last=False)
