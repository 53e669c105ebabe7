"""TCP and RDMA in one process: whichever is bound first, both are served, shown and ended.

Both are on one plane, with one mailbox for each socket and one control thread; a program sees no
difference. What is here holds on either plane.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Final

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.rds.sockets.test_forks import code_of_child
from tests.support.backends import in_use
from tests.support.waiting import ends_with
from urds.rds.constants import SOL_RDS, SockOpt, Transport
from urds.rds.plane.contract import Carrier
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.processes import Report, ask
from urds.rds.settings import Settings

NEAR, FAR = 1, 2
TCP, IB = Transport.TCP, Transport.IB
ORDERS: Final = [(TCP, IB), (IB, TCP)]
PAIRS: Final = [*ORDERS, (TCP, TCP), (IB, IB)]
IDS: Final = ["tcp to rdma", "rdma to tcp", "tcp to tcp", "rdma to rdma"]
PORT: Final = 4000
WAIT_S: Final = 10.0
MANY: Final = 10_000  # messages of 1 KiB, far beyond all buffers
DEVICES: Final = ["shm0"]
VALUES: Final = {"drain_s": 0, "rdma_devices": DEVICES, "info_socket": False}


def bound(number: int, transport: Transport, port: int | None = None) -> urds.Socket:
    """Return a socket of a host that is bound over a transport."""
    sock = urds.Socket()
    sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, transport)
    sock.bind((host(number), PORT + transport if port is None else port))
    sock.settimeout(WAIT_S)
    return sock


class Pair:
    """Two nodes in this process, with a socket of each transport in both."""

    def __init__(self, order: tuple[Transport, Transport]) -> None:
        self.nodes = []
        self.sockets: list[dict[Transport, urds.Socket]] = []
        for number in (NEAR, FAR):
            node = InProcess(Settings.load(VALUES, environ={}))
            self.nodes.append(node)
            with in_use(node):
                self.sockets.append({one: bound(number, one) for one in order})
        self.near, self.far = self.sockets

    def close(self) -> None:
        for sock in (*self.near.values(), *self.far.values()):
            sock.close()
        for node in self.nodes:
            node.close()


@pytest.fixture(params=ORDERS, ids=["tcp first", "rdma first"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Give two nodes whose sockets were bound in that order."""
    made = Pair(request.param)
    yield made
    made.close()


@pytest.fixture
def node() -> Iterator[InProcess]:
    """Give one node with a device."""
    with backend_with(rdma_devices=DEVICES) as made:
        yield made


def exchange(one: urds.Socket, other: urds.Socket, text: bytes) -> None:
    """Send a message there and another one back."""
    for source, target in ((one, other), (other, one)):
        source.sendto(text, target.getsockname())
        assert target.recvfrom(100) == (text, source.getsockname())


def test_messages_go_over_either_whichever_came_first(pair: Pair) -> None:
    for transport in (TCP, IB):
        exchange(pair.near[transport], pair.far[transport], b"over %d" % transport)


def made(kind: str) -> list[object]:
    """Return the objects of this process that are of a class of that name of a plane."""
    gc.collect()
    return [
        one
        for one in gc.get_objects()
        if type(one).__name__ == kind and type(one).__module__.startswith("urds.rds.plane.")
    ]


def control_threads() -> int:
    """Count the threads of this process that are of RDS, without those of devices."""
    own = ("urds-driver", "urds-rdma")
    return sum(thread.name.startswith(own) for thread in threading.enumerate())


@pytest.mark.parametrize("order", ORDERS, ids=["tcp first", "rdma first"])
def test_both_are_on_one_plane_with_one_mailbox_per_socket_and_one_thread(
    order: tuple[Transport, Transport],
) -> None:
    # Held, so that what earlier tests left is not collected, and counted as less, in between.
    before = made("Plane"), made("Mailbox")
    threads = control_threads()
    with closing(Pair(order)) as pair:
        for one in (TCP, IB):
            for other in (TCP, IB):
                exchange(pair.near[one], pair.far[other], b"from any to any")
        after = made("Plane"), made("Mailbox")
        sockets = len(pair.near) + len(pair.far)
        counts = [len(now) - len(then) for now, then in zip(after, before, strict=True)]
        assert [*counts, control_threads() - threads] == [2, sockets, 2]
        for node in pair.nodes:
            assert len(node.plane.snapshot().mailboxes) == 2
            transports = {str(row.transport) for row in node.snapshot().paths}
            assert str(Carrier.RDMA) in transports and len(transports) == 2


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=IDS)
def test_no_counter_counts_a_message_twice(
    pair: Pair, source: Transport, target: Transport
) -> None:
    """By which transport it ever comes: each event of a message is counted once in the process."""
    sender, receiver = pair.far[source], pair.near[target]
    exchange(sender, receiver, b"the connections are up")
    before = [node.counters() for node in pair.nodes]
    for number in range(10):
        sender.sendto(b"%d" % number, receiver.getsockname())
    for number in range(10):
        assert receiver.recv(10) == b"%d" % number
    near, far = (
        {name: count - then[name] for name, count in node.counters().items()}
        for node, then in zip(pair.nodes, before, strict=True)
    )
    assert (near["recv_queued"], near["recv_delivered"]) == (10, 10)
    assert far["recv_queued"] == 0
    # Handshakes of the connections, which may still be under way, are counted here as well.
    assert 10 <= far["send_queued"] < 15 and near["send_queued"] < 5
    payload_bytes = len(b"0123456789")
    assert near["recv_bytes_added_to_sock"] == payload_bytes
    assert near["recv_bytes_freed_fromsock"] == payload_bytes


def test_one_snapshot_and_one_set_of_counters_has_both(pair: Pair) -> None:
    for transport, count in ((TCP, 2), (IB, 3)):
        for _ in range(count):
            exchange(pair.near[transport], pair.far[transport], b"x")
    snapshot, counters = pair.nodes[0].snapshot(), pair.nodes[0].counters()
    assert sorted(row.port for row in snapshot.mailboxes) == [PORT + IB, PORT + TCP]
    assert snapshot.rdma_in_use
    assert len({str(row.transport) for row in snapshot.paths}) == 2
    assert counters["recv_delivered"] == 5
    assert counters["rdma_ups"] == 1


def test_another_process_is_told_of_both(node: InProcess) -> None:
    with bound(NEAR, TCP), bound(NEAR, IB):
        report = ask(os.getpid())
        assert isinstance(report, Report)
        assert sorted(row.port for row in report.snapshot.mailboxes) == [PORT + IB, PORT + TCP]
        assert report.snapshot.rdma_in_use


def stream(source: urds.Socket, target: urds.Socket, count: int) -> Callable[[], list[int]]:
    """Send numbers in a thread; return what receives them all."""

    def send() -> None:
        for number in range(count):
            source.sendto(number.to_bytes(4, "big"), target.getsockname())

    def receive() -> list[int]:
        taken = [int.from_bytes(target.recv(10), "big") for _ in range(count)]
        thread.join()
        return taken

    thread = threading.Thread(target=send)
    thread.start()
    return receive


def test_both_carry_at_once_and_survive_resets_of_both(pair: Pair) -> None:
    count, broken, over = 2000, [], threading.Event()

    def reset() -> None:
        # Ever slower, until both have had the time to connect again in between.
        while not over.wait(0.02 * (1 + len(broken) // 8)):
            broken.append(pair.nodes[len(broken) % 2].break_connections())

    breaker = threading.Thread(target=reset)
    breaker.start()
    try:
        for _ in range(200):
            receivers = [
                stream(sender[one], receiver[one], count)
                for sender, receiver in ((pair.near, pair.far), (pair.far, pair.near))
                for one in (TCP, IB)
            ]
            for receive in receivers:
                assert receive() == list(range(count))
            if len(broken) >= 4 and max(broken) >= 2:
                break
    finally:
        over.set()
        breaker.join()
    assert max(broken) >= 2, "of each transport one"


@pytest.mark.parametrize(("source", "target"), ORDERS, ids=["tcp to rdma", "rdma to tcp"])
def test_a_port_is_reached_by_the_other_transport_too(
    pair: Pair, source: Transport, target: Transport
) -> None:
    """A socket sends by its transport and receives by any: from a peer, and from this process."""
    with in_use(pair.nodes[0]):
        inner = bound(NEAR, source, 5000)
    for sender in (pair.far[source], inner):
        for number in range(3):
            sender.sendto(b"%d" % number, pair.near[target].getsockname())
        for number in range(3):
            received = pair.near[target].recvfrom(10)
            assert received == (b"%d" % number, sender.getsockname())
    inner.close()
    ports = sorted(row.port for row in pair.nodes[0].snapshot().mailboxes)
    assert ports == [PORT + IB, PORT + TCP], "no other is listed as a socket"


def test_a_region_is_told_over_either(pair: Pair) -> None:
    with pair.near[IB].get_mr(bytearray(64)) as region:
        pair.near[IB].send_region(b"here", region, pair.far[TCP].getsockname())
        payload, source, cookie = pair.far[TCP].recv_region(100)
    assert (payload, source, cookie) == (b"here", pair.near[IB].getsockname(), region.cookie)


def fill(sender: urds.Socket, receiver: urds.Socket) -> int:
    """Send numbers until there is no room; return how many."""
    for number in range(MANY):
        try:
            sender.sendto(number.to_bytes(4, "big") + bytes(1000), receiver.getsockname())
        except TimeoutError:
            return number
    return MANY


@pytest.mark.parametrize(("source", "target"), ORDERS, ids=["tcp to rdma", "rdma to tcp"])
def test_a_full_port_holds_senders_of_the_other_transport(
    pair: Pair, source: Transport, target: Transport
) -> None:
    """Nothing is lost, and it ends: what waits is within the buffer and the send queue."""
    sender, receiver = pair.far[source], pair.near[target]
    sender.settimeout(0.5)
    sent = fill(sender, receiver)
    assert sent < MANY
    taken = [int.from_bytes(receiver.recv(4), "big") for _ in range(sent)]
    assert taken == list(range(sent))
    sender.settimeout(WAIT_S)
    exchange(sender, receiver, b"again")


def test_a_source_that_moves_here_is_served_itself(pair: Pair) -> None:
    """It was the source of messages from another process before."""
    names = {one: sock.getsockname() for one, sock in pair.far.items()}
    for one, other in ORDERS:
        exchange(pair.far[one], pair.near[other], b"from there")
    for sock in pair.far.values():
        sock.close()
    pair.nodes[1].close()
    with in_use(pair.nodes[0]):
        moved = [bound(FAR, other, names[one][1]) for one, other in ORDERS]
    for sock in moved:
        for transport in (TCP, IB):
            exchange(sock, pair.near[transport], b"from here")
    exchange(*moved, b"between the two")
    assert len(pair.nodes[0].snapshot().mailboxes) == 4
    for sock in moved:
        sock.close()


def test_poll_tells_of_both(pair: Pair) -> None:
    poll = select.poll()
    for sock in pair.near.values():
        poll.register(sock, select.POLLIN)
    assert poll.poll(0) == []
    for transport in (TCP, IB, TCP):
        pair.far[transport].sendto(b"x", pair.near[transport].getsockname())
        expected = [(pair.near[transport].fileno(), select.POLLIN)]
        assert poll.poll(WAIT_S * 1000) == expected
        assert pair.near[transport].recv(10) == b"x"
        assert poll.poll(0) == []
    other = pair.near[IB]
    pair.far[TCP].sendto(b"x", other.getsockname())
    assert poll.poll(WAIT_S * 1000) == [(other.fileno(), select.POLLIN)]


def test_a_child_has_sockets_of_its_own_and_the_parent_keeps_its(node: InProcess) -> None:
    socks = [bound(NEAR, TCP), bound(NEAR, IB)]

    def refuses_and_starts_anew() -> bool:
        for sock in socks:
            with pytest.raises(OSError, match="fork"):
                sock.recv(10)
        own = [bound(number, one) for number in (3, 4) for one in (TCP, IB)]
        exchange(own[0], own[2], b"x")
        exchange(own[1], own[3], b"x")
        return True

    exchange(*socks, b"before")
    assert code_of_child(refuses_and_starts_anew) == 0
    exchange(*socks, b"after")
    for sock in socks:
        sock.close()


def test_a_close_drains_both(pair: Pair) -> None:
    """Nothing of what was sent just before is lost."""
    count = 200
    for number in range(count):
        for one in (TCP, IB):
            pair.near[one].sendto(b"%d" % number, pair.far[one].getsockname())
    assert pair.nodes[0]._driver.close(int(WAIT_S * 1e9)) == 0
    for one in (TCP, IB):
        assert [pair.far[one].recv(10) for _ in range(count)] == [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("transport", [TCP, IB])
def test_a_close_waits_for_a_peer_of_either_transport(pair: Pair, transport: Transport) -> None:
    late: list[urds.Socket] = []

    def come_late() -> None:
        time.sleep(0.3)
        with in_use(pair.nodes[1]):
            late.append(bound(3, transport, 6000))

    thread = threading.Thread(target=come_late)
    thread.start()
    pair.near[transport].sendto(b"early", (host(3), 6000))
    assert pair.nodes[0]._driver.close(int(WAIT_S * 1e9)) == 0
    thread.join()
    assert late[0].recv(10) == b"early"
    late[0].close()


@pytest.mark.parametrize("order", ORDERS, ids=["tcp first", "rdma first"])
def test_a_close_leaves_no_thread_and_no_descriptor(order: tuple[Transport, Transport]) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    Pair(order).close()  # what is made once and kept
    before = held()
    pair = Pair(order)
    for sock in pair.near.values():
        exchange(sock, pair.far[TCP], b"x")
        sock.fileno()
    pair.close()
    assert ends_with(held, before)


def test_who_waits_wakes_when_the_node_closes(node: InProcess) -> None:
    refused: list[int | None] = []

    def wait(sock: urds.Socket) -> None:
        try:
            sock.recv(10)
        except OSError as error:
            refused.append(error.errno)

    socks = [bound(NEAR, TCP), bound(NEAR, IB)]
    threads = [threading.Thread(target=wait, args=[sock]) for sock in socks]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    node.close()
    for thread in threads:
        thread.join(WAIT_S / 2)
    assert refused == [errno.EBADF, errno.EBADF]
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("part", ["progress", "take"])
def test_a_fault_where_rdma_is_controlled_fails_both(node: InProcess, part: str) -> None:
    """What still holds then is unknown: the error is loud, and no caller waits for ever."""

    def fail(*_: object) -> None:
        raise RuntimeError("a fault on purpose")

    with bound(NEAR, TCP) as tcp, bound(NEAR, IB) as rdma:
        tcp.settimeout(0.5)
        setattr(node._driver.rdma, part, fail)
        rdma.sendto(b"x", (host(FAR), PORT))
        with suppress(OSError):  # ENOBUFS, or EIO already: the map of a full port is to be sent
            for _ in range(MANY):
                tcp.sendto(bytes(4096), rdma.getsockname())
        for sock in (tcp, rdma):
            sock.settimeout(WAIT_S)
            with pytest.raises(OSError, match="failed") as refused:
                sock.recv(10)
            assert refused.value.errno == errno.EIO
