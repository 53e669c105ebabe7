"""A peer's process is killed at any point: what arrived is read, then the connection is broken.

docs/reference/rsocket.md 19, point 10. Several are killed at a time, under traffic, each at a point
that the seed chooses, beside a connection to a process that lives. Afterwards nothing is left of
them here.
"""

import contextlib
import errno
import os
import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.rsocket.killed_peer import SLOTS, send_for_ever, stream
from tests.rsocket.socket_pairs import DEVICES, HOST, WAIT_S, Task, receive_exactly, using
from tests.support.children import Forks
from urds.rsocket import SOL_RDMA, RdmaOpt
from urds.rsocket.link import devices
from urds.rsocket.socket import Socket

VICTIMS = 4
SEEDS = range(int(os.environ.get("TEST_KILL_SEEDS", "1")))  # more of them by hand
STREAM = stream()


@pytest.fixture(scope="module")
def peers() -> Iterator[Forks]:
    made = Forks("tests.rsocket.killed_peer")
    yield made
    made.close()


def connected(
    peers: Forks, device: str, act: str, *, receive_bytes: int | None = None
) -> tuple[int, Socket]:
    number, port = peers.start(device, act)
    client = Socket()
    client.settimeout(WAIT_S)
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.setsockopt(SOL_RDMA, RdmaOpt.IOMAPSIZE, SLOTS)
    client.connect((HOST, port))
    return number, client


class Bystander:
    """A connection to a process that lives: each turn must come back whole."""

    def __init__(self, client: Socket) -> None:
        self._client = client
        self._rng = random.Random(3)
        self.slowest_s = 0.0

    def talk(self) -> None:
        began_s = time.monotonic()
        data = self._rng.randbytes(self._rng.choice((1, 1000, 60_000)))
        task = Task(lambda: self._client.sendall(data))
        assert receive_exactly(self._client, len(data)) == data
        task.result()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)


class Marks:
    """What this process has: compared before and after."""

    def __init__(self) -> None:
        [self._opening] = devices.contexts()

    def now(self) -> tuple[int, int, int, int]:
        context = self._opening
        with context.adapter.lock:
            counts = (len(context.links), len(context._regions), context.memory_bytes)
        return (*counts, len(os.listdir("/proc/self/fd")))

    def until_as(self, before: tuple[int, int, int, int]) -> None:
        """Wait until nothing is left that was not there before."""
        end_s = time.monotonic() + WAIT_S
        while any(now > then for now, then in zip(self.now(), before, strict=True)):
            assert time.monotonic() < end_s, (self.now(), before)
            devices.wait([self._opening], lambda: False, 0.02)


@contextlib.contextmanager
def world(peers: Forks, device: str) -> Iterator[tuple[Bystander, Marks]]:
    """Connect to a process that lives, and compare what is there before and after."""
    with using(device):
        # With a size of its own its ring does not grow meanwhile.
        number, client = connected(peers, device, "echo", receive_bytes=1 << 17)
        bystander = Bystander(client)
        with client:
            for _ in range(10):
                bystander.talk()
            marks = Marks()
            before = marks.now()
            yield bystander, marks
            bystander.talk()
            marks.until_as(before)
        peers.kill(number)


def error_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def read_to_the_end(client: Socket) -> tuple[int, int | None]:
    """Read the stream; return how many bytes it was and what error ended it."""
    count = 0
    twice = STREAM + STREAM
    while True:
        try:
            data = client.recv(1 << 17)
        except OSError as error:
            return count, error.errno
        if not data:
            return count, None
        at = count % len(STREAM)
        assert twice[at : at + len(data)] == data, f"other bytes from {count} on"
        count += len(data)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_arrived_is_read_and_then_the_connection_is_broken(
    peers: Forks, device: str, seed: int
) -> None:
    rng = random.Random(seed)
    with world(peers, device) as (bystander, _), contextlib.ExitStack() as closing:
        victims = [connected(peers, device, "flow") for _ in range(VICTIMS)]
        for _, client in victims:
            closing.enter_context(client)
        readers = [Task(lambda one=one: read_to_the_end(one)) for _, one in victims]
        writers = [Task(lambda one=one: error_of(lambda: send_for_ever(one))) for _, one in victims]
        for number, _ in victims:
            time.sleep(rng.choice((0, 0.002, 0.03, 0.1)))
            peers.kill(number)
            bystander.talk()
        for reader, writer in zip(readers, writers, strict=True):
            assert reader.result()[1] == errno.ECONNRESET, f"seed {seed}"
            assert writer.result() in (errno.ECONNRESET, errno.EPIPE), f"seed {seed}"
        for _, client in victims:
            assert error_of(lambda one=client: one.send(b"anybody?")) == errno.ECONNRESET
            assert client.recv(10) == b"", "the error is told once, then it is the end"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_peer_is_killed_while_bytes_go_to_its_own_places(
    peers: Forks, device: str, seed: int
) -> None:
    """Memory of `allocate` and mapped buffers of the dead: written to until the news comes."""
    rng = random.Random(seed)
    data = rng.randbytes(1 << 20)

    def write(client: Socket) -> None:
        while True:
            client.sendall(data)
            client.write_mapped(data[: 1 << 15], 100)
            client.recv(4, socket.MSG_WAITALL)

    with world(peers, device) as (bystander, _), contextlib.ExitStack() as closing:
        victims = [connected(peers, device, "place") for _ in range(VICTIMS)]
        for _, client in victims:
            closing.enter_context(client)
        writers = [Task(lambda one=one: error_of(lambda: write(one))) for _, one in victims]
        for number, _ in victims:
            time.sleep(rng.choice((0, 0.01, 0.1)))
            peers.kill(number)
            bystander.talk()
        for writer in writers:
            assert writer.result() == errno.ECONNRESET, f"seed {seed}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_peer_is_killed_while_others_connect_to_it(peers: Forks, device: str, seed: int) -> None:
    """A connect is refused, or made and broken off; it does not stay under way for ever."""
    rng = random.Random(seed)
    with world(peers, device) as (bystander, _):
        for _ in range(3):
            number, port = peers.start(device, "flow")
            clients = [Socket() for _ in range(4)]
            for client in clients:
                client.setblocking(False)
                assert client.connect_ex((HOST, port)) in {0, errno.EINPROGRESS}
            time.sleep(rng.choice((0, 0.0005, 0.002, 0.01)))
            peers.kill(number)
            bystander.talk()
            for client in clients:
                client.settimeout(WAIT_S)
                assert read_to_the_end(client)[1] in (errno.ECONNRESET, errno.ENOTCONN)
                client.close()


@pytest.mark.parametrize("device", DEVICES)
def test_a_peer_is_killed_before_what_it_sent_is_read(peers: Forks, device: str) -> None:
    with world(peers, device):
        number, client = connected(peers, device, "flow")
        with client:
            Task(lambda: client.recv(1, socket.MSG_PEEK)).result()
            context = devices.contexts()[0]
            stream = client.link.stream
            devices.wait([context], lambda: stream.receive_ring.readable_bytes > 3000, WAIT_S)
            arrived = stream.receive_ring.readable_bytes
            peers.kill(number)
            devices.wait([context], lambda: client.readiness().hung_up, WAIT_S)
            count, error = read_to_the_end(client)
            assert count >= arrived and error == errno.ECONNRESET
