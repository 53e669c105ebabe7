"""Threads that wait in every way there is, on both sides of a stream: nothing is lost or stuck.

Two planes in one process, each with its helper, joined by two paths over TCP; or two nodes with a
connection over RDMA. Every sender numbers its
messages; every message is answered for by count and order at its receiver. *Stuck* is a second in
which messages are pending and none arrives. The seed decides who pauses when; it is printed.
"""

import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from struct import Struct

import pytest

from tests.parity.planes import Remote
from tests.rds.sockets.hosts import host
from tests.support.planes import PLANES, in_use
from tests.support.waiting import BUSY_S
from urds.common.types import IPAddress
from urds.rds.plane.contract import (
    Agreement,
    Hold,
    Limits,
    Mailbox,
    MailboxSettings,
)
from urds.rds.runtime.inprocess import InProcess
from urds.rds.settings import Settings
from urds.rds.transports.tcp import TcpStream
from urds.rds.types import AckMode

HERE, THERE = ip_address("127.0.85.1"), ip_address("127.0.85.2")
NUMBER = Struct(">HI")  # sender, number
SILENCE_S = 1.0
RUN_S = 2.5
END_S = 20.0
WAYS = ("blocking", "timed", "select", "poll", "epoll", "nonblocking")


class Node:
    """A plane with its helper's thread and a path to the other node."""

    def __init__(self, local: IPAddress, peer: IPAddress) -> None:
        self.local, self.peer = local, peer
        self.plane = PLANES[in_use()](limits=Limits(), resolve=self._resolve)
        self._closed = False
        self.path = self.plane.path(local=local, peer=peer, index=0, sequence_first=1)
        self.thread = threading.Thread(target=self._help, daemon=True)
        self.thread.start()

    def _resolve(self, mailbox: Mailbox, peer: IPAddress) -> None:
        mailbox.route(peer, self.path)

    def _help(self) -> None:
        while not self._closed:
            self.plane.help(None)

    def mailbox(self, port: int, **settings: object) -> Mailbox:
        return self.plane.mailbox(local=self.local, port=port, settings=MailboxSettings(**settings))

    def close(self) -> None:
        self._closed = True
        self.plane.close(0)
        self.plane.wake()
        self.thread.join(5)
        assert not self.thread.is_alive(), "the helper did not end"
        self.plane.release()


def join(here: Node, there: Node) -> None:
    """Give both paths a fresh stream; a former one is superseded."""
    with socket.create_server((str(HERE), 0)) as listener:
        near = socket.create_connection(listener.getsockname()[:2])
        far, _ = listener.accept()
    here.path.attach(TcpStream.take(near), hold=Hold.NOTHING)
    there.path.attach(TcpStream.take(far), hold=Hold.NOTHING)


def joined() -> tuple[Node, Node]:
    """Return two nodes with a stream between them, which know each other for own ones."""
    nodes = Node(HERE, THERE), Node(THERE, HERE)
    join(*nodes)
    for node in nodes:
        node.path.agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=True))
    return nodes


class RdmaNode:
    """A backend with one RDMA device."""

    def __init__(self, number: int, device: str) -> None:
        self.local = ip_address(host(number))
        settings = {"drain_s": 0, "transport": "ib", "rdma_devices": [device]}
        soon = {"reconnect_max_delay_ms": 20}
        self.backend = InProcess(Settings.load({**settings, **soon}, environ={}))

    def mailbox(self, port: int, **settings: object) -> Mailbox:
        return self.backend.bind(
            address=self.local, port=port, settings=MailboxSettings(**settings), transport=None
        )

    def close(self) -> None:
        self.backend.close()


class Counters:
    """What was sent and what arrived, and when something last arrived."""

    def __init__(self, senders: int) -> None:
        self.sent = [0] * senders
        self.got = [0] * senders
        self.wrong: list[str] = []
        self.last_s = time.monotonic()
        self.silence_s = 0.0

    def arrived(self, payload: bytes) -> None:
        sender, number = NUMBER.unpack_from(payload)
        if number != self.got[sender]:
            self.wrong.append(f"sender {sender}: {number} instead of {self.got[sender]}")
        self.got[sender] = number + 1
        self.last_s = time.monotonic()

    def watch(self) -> None:
        """Note the longest silence while something was pending."""
        if sum(self.sent) > sum(self.got):
            self.silence_s = max(self.silence_s, time.monotonic() - self.last_s)
        else:
            self.last_s = time.monotonic()

    def done(self) -> bool:
        return self.sent == self.got


def wait_ready(descriptor: int, way: str, mask: int) -> None:
    """Wait up to 50 ms, as programs do that look at something else in between."""
    if way == "select":
        reads, writes = ([descriptor], []) if mask == select.POLLIN else ([], [descriptor])
        select.select(reads, writes, [], 0.05)
    elif way == "epoll":
        with select.epoll() as poll:
            poll.register(descriptor, mask)
            poll.poll(0.05)
    else:
        poll = select.poll()
        poll.register(descriptor, mask)
        poll.poll(50)


def receiver(mailbox: Mailbox, way: str, counters: Counters, stop: threading.Event) -> None:
    polls = way in ("select", "poll", "epoll")
    wait_ns = {"blocking": None, "timed": 3_000_000}.get(way, 0)
    while not stop.is_set():
        if polls:
            wait_ready(mailbox.fileno(), way, select.POLLIN)
        message = mailbox.receive(wait_ns=wait_ns)
        while message is not None:
            counters.arrived(message.payload)
            message = mailbox.receive(wait_ns=0)
        if way == "nonblocking":
            time.sleep(0.002)


def sender(
    mailbox: Mailbox,
    way: str,
    target: tuple[str, int],
    counters: Counters,
    index: int,
    rng: random.Random,
    sparse: bool,
    stop: threading.Event,
) -> None:
    polls = way in ("select", "poll", "epoll")
    wait_ns = {"blocking": None, "timed": 3_000_000}.get(way, 0)
    while not stop.is_set():
        payload = NUMBER.pack(index, counters.sent[index]) + bytes(rng.choice((0, 50, 2000, 9000)))
        counters.sent[index] += 1
        while True:
            try:
                mailbox.send([payload], target, wait_ns=wait_ns)
                break
            except (BlockingIOError, TimeoutError, InterruptedError):
                pass
            except OSError as failure:
                if failure.errno != 105:  # ENOBUFS: the peer's mailbox is full
                    raise
            if polls:
                wait_ready(mailbox.fileno(), way, select.POLLOUT)
            else:
                time.sleep(0.001)
        if sparse:
            time.sleep(rng.choice((0, 0.0002, 0.003, 0.02)))


class Run:
    """Two nodes, a pair of threads for every way of waiting in each direction."""

    def __init__(
        self,
        seed: int,
        nodes: tuple[Node, Node] | tuple[RdmaNode, RdmaNode],
        *,
        sparse: bool,
        run_s: float = RUN_S,
    ) -> None:
        self.nodes = nodes
        self.run_s = run_s
        self.counters = Counters(2 * len(WAYS))
        self.stop_sending, self.stop = threading.Event(), threading.Event()
        self.failures: list[BaseException] = []
        self.senders: list[threading.Thread] = []
        self.receivers: list[threading.Thread] = []
        order = random.Random(seed)
        for side, node in enumerate(self.nodes):
            other = self.nodes[1 - side]
            ways = order.sample(WAYS, len(WAYS))
            for place, (send_way, receive_way) in enumerate(zip(WAYS, ways, strict=True)):
                index = side * len(WAYS) + place
                target = (str(other.local), 100 + index)
                self._thread(self.receivers, receiver, other.mailbox(100 + index), receive_way,
                             self.counters, self.stop)  # fmt: skip
                self._thread(self.senders, sender, node.mailbox(200 + index), send_way, target,
                             self.counters, index, random.Random(seed * 100 + index), sparse,
                             self.stop_sending)  # fmt: skip

    def _thread(
        self, threads: list[threading.Thread], body: Callable[..., None], *arguments: object
    ) -> None:
        def run() -> None:
            try:
                body(*arguments)
            except OSError as failure:
                if not self.stop.is_set():
                    self.failures.append(failure)

        thread = threading.Thread(target=run, daemon=True)
        threads.append(thread)
        thread.start()

    def go(
        self,
        during: Callable[[], None] = lambda: None,
        is_enough: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let all send, for longer while not enough has happened; wait until all has arrived."""
        end = time.monotonic() + self.run_s
        latest = end + BUSY_S
        while time.monotonic() < (end if is_enough() else latest) and not self.failures:
            during()
            time.sleep(0.01)
            self.counters.watch()
        self.stop_sending.set()
        for thread in self.senders:
            thread.join(END_S)
        end = time.monotonic() + END_S
        while time.monotonic() < end and not self.counters.done():
            time.sleep(0.01)
            self.counters.watch()
            if self.counters.silence_s > 3 * SILENCE_S:
                break

    def close(self) -> None:
        self.stop.set()
        for node in self.nodes:
            node.close()
        for thread in (*self.senders, *self.receivers):
            thread.join(2)
            assert not thread.is_alive(), "a thread did not leave a closed plane"

    def verdict(self) -> str:
        missing = [
            (index, sent - got)
            for index, (sent, got) in enumerate(
                zip(self.counters.sent, self.counters.got, strict=True)
            )
            if sent != got
        ]
        return (
            f"sent {sum(self.counters.sent)}, silence {self.counters.silence_s:.2f} s,"
            f" missing {missing}, wrong {self.counters.wrong[:5]}, failures {self.failures}"
        )


@pytest.mark.slow
@pytest.mark.rule("rds7-once", "rds7-reliable-in-order")
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "heavy"])
def test_no_message_is_lost_and_no_wait_is_stuck(sparse: bool) -> None:
    seed = int(os.environ.get("TEST_SEED", "1"))
    print(f"seed {seed} (TEST_SEED)")
    run = Run(seed, joined(), sparse=sparse)
    try:
        run.go()
        assert run.counters.done() and not run.counters.wrong and not run.failures, run.verdict()
        assert run.counters.silence_s < SILENCE_S, run.verdict()
        print(run.verdict())
    finally:
        run.close()


@pytest.mark.slow
@pytest.mark.rule("rds7-once", "rds7-reliable-retry")
def test_streams_are_replaced_under_full_load() -> None:
    """A new stream every 20 ms, in the middle of writes and reads of other threads."""
    seed = int(os.environ.get("TEST_SEED", "1"))
    print(f"seed {seed} (TEST_SEED)")
    nodes = joined()
    run = Run(seed, nodes, sparse=False)
    rng = random.Random(seed)
    replaced = 0

    def replace() -> None:
        nonlocal replaced
        time.sleep(rng.random() * 0.02)
        with suppress(OSError):
            join(*nodes)
            replaced += 1

    try:
        run.go(during=replace, is_enough=lambda: replaced > 20)
        assert run.counters.done() and not run.counters.wrong and not run.failures, run.verdict()
        assert run.counters.silence_s < SILENCE_S, run.verdict()
        assert replaced > 20
        print(f"{replaced} streams, {run.verdict()}")
    finally:
        run.close()


@pytest.mark.slow
@pytest.mark.rule("rds7-once", "rds7-reliable-in-order")
@pytest.mark.parametrize(
    ("device", "sparse", "breaks"),
    [("shm0", True, False), ("shm0", False, True), ("tcp0", False, True)],
)
def test_no_wait_is_stuck_over_rdma(device: str, sparse: bool, breaks: bool) -> None:
    """Breaks the connection every 50 ms or so, if it does."""
    seed = int(os.environ.get("TEST_SEED", "1"))
    print(f"seed {seed} (TEST_SEED)")
    nodes = RdmaNode(1, device), RdmaNode(2, device)
    run = Run(seed, nodes, sparse=sparse, run_s=2.0)
    rng = random.Random(seed)

    def break_one() -> None:
        time.sleep(rng.random() * 0.08)
        rng.choice(nodes).backend.break_connections()

    def downs() -> int:
        return nodes[0].backend.counters()["rdma_downs"]

    try:
        if breaks:
            run.go(during=break_one, is_enough=lambda: downs() >= 3)
        else:
            run.go()
        assert run.counters.done() and not run.counters.wrong and not run.failures, run.verdict()
        assert run.counters.silence_s < SILENCE_S, run.verdict()
        assert (downs() >= 3) is breaks
        print(f"{downs()} breaks, {run.verdict()}")
    finally:
        run.close()


def test_an_idle_plane_costs_nothing() -> None:
    """The helper sleeps until woken: no pass, next to no processor time, in a quiet 300 ms."""
    nodes = Node(HERE, THERE), Node(THERE, HERE)
    try:
        join(*nodes)
        for node in nodes:
            node.path.agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED))
        waiting, sending = nodes[0].mailbox(1), nodes[1].mailbox(2)
        thread = threading.Thread(target=lambda: waiting.receive(wait_ns=None), daemon=True)
        thread.start()
        time.sleep(0.1)
        passes = [node.plane.snapshot().counters["progress_thread_passes"] for node in nodes]
        before = time.process_time()
        time.sleep(0.3)
        used_s = time.process_time() - before
        after = [node.plane.snapshot().counters["progress_thread_passes"] for node in nodes]
        assert after == passes
        assert used_s < 0.03
        sending.sendto(b"x", (str(HERE), 1))
        thread.join(5)
        assert not thread.is_alive()
    finally:
        for node in nodes:
            node.close()


def test_a_stream_that_takes_nothing_costs_nothing() -> None:
    """An acknowledgement is owed and cannot leave: no thread may ask again and again."""
    node = Node(HERE, THERE)
    remote = Remote()
    try:
        node.path.attach(remote.stream, hold=Hold.NOTHING)
        node.path.agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED))
        waiting, sending = node.mailbox(1), node.mailbox(2, send_bytes_max=1 << 22)
        for _ in range(8):
            sending.sendto(bytes(200_000), (str(THERE), 1))
        thread = threading.Thread(target=lambda: waiting.receive(wait_ns=None), daemon=True)
        thread.start()
        time.sleep(0.05)
        remote.say(1, b"owed", target_port=2)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.05
        remote.say(2, b"end", target_port=1)
        thread.join(5)
        assert not thread.is_alive()
    finally:
        remote.close()
        node.close()
