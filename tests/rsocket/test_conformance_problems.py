"""The problems that the study measured, each shown to be gone by what is counted, never by speed.

docs/reference/rsocket.md 17, 18: connections, copies, locks, waits for buffer updates, reads of the
clock.
"""

import gc
import os
import select
import socket
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.rsocket.ends import Ends, ends, send_all
from tests.rsocket.socket_pairs import DEVICES, HOST, WAIT_S, Pair, Task, pair_over, using
from urds import rsocket
from urds.cli.rsocket.bench_works.probes import probe_of
from urds.rsocket import create_connection, create_server
from urds.rsocket.core.stream.records import Memory
from urds.rsocket.link import devices
from urds.rsocket.link.stream_link import StreamLink
from urds.rsocket.socket import Socket

CONNECTIONS = 100
# Both ends of one idle connection, as the interpreter counts it: two windows of 8 KiB are in it.
IDLE_BYTES_MAX = 50_000
CLOCKS = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns")
DESCRIPTORS_EACH = {"shm0": 0, "udp0": 0, "tcp0": 2}  # the kernel's connection has two ends here


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- problem 1: connections


@contextmanager
def many(count: int) -> Iterator[list[Socket]]:
    """Open connections of one process with itself; gives both ends of all."""
    made: list[Socket] = []
    with create_server((HOST, 0), backlog=64) as listener:
        listener.settimeout(WAIT_S)
        for _ in range(count):
            made.append(create_connection(listener.getsockname(), WAIT_S))
            made.append(listener.accept()[0])
            made[-1].settimeout(WAIT_S)
        try:
            yield made
        finally:
            for one in made:
                one.close()


def held(count: int) -> tuple[int, int]:
    """Return the descriptors and bytes of this process while so many connections are open."""
    with many(count) as made:
        gc.collect()
        before = descriptors()
        made[0].fileno()
        assert descriptors() <= before + 2, "one more, for who asks"
        return before, tracemalloc.get_traced_memory()[0]


@pytest.mark.rule("rsocket-problem-connections")
@pytest.mark.parametrize("device", DEVICES)
def test_an_idle_connection_costs_its_window_and_no_descriptor(device: str) -> None:
    with using(device):
        tracemalloc.start()
        try:
            held(2)
            few, many_ = held(10), held(10 + CONNECTIONS)
        finally:
            tracemalloc.stop()
        assert many_[0] - few[0] <= DESCRIPTORS_EACH[device] * CONNECTIONS
        assert (many_[1] - few[1]) / CONNECTIONS < IDLE_BYTES_MAX


@pytest.mark.rule("rsocket-problem-connections", "rsocket-one-cq")
@pytest.mark.parametrize("device", DEVICES)
def test_all_connections_share_one_completion_queue_and_one_queue_of_receives(device: str) -> None:
    with using(device), many(4) as made:
        [context] = devices.contexts()
        pairs = [one.link._send_queue.qp for one in made]
        assert {id(qp.send_cq) for qp in pairs} == {id(context._completions)}
        assert {id(qp.recv_cq) for qp in pairs} == {id(context._completions)}
        assert {id(qp.srq) for qp in pairs} == {id(context._receives)}


# -- problem 2: copies


def copied_by_engines(both: Ends) -> int:
    """Return the bytes that compiled engines copied so far; a probe sees those of Python's."""
    adapters = (both.here.adapter, both.there.adapter)
    return sum(one.costs()["bytes"] for one in adapters if hasattr(one, "costs"))


def copies_of(both: Ends, source: StreamLink, sink: StreamLink, data: bytes) -> float:
    """Send everything; return how many bytes were copied for each, by streams and device."""
    stats = [source.stream.stats, sink.stream.stats]  # type: ignore[union-attr]  # connected
    before = sum(one.bytes_copied_in + one.bytes_copied_out for one in stats)
    before += copied_by_engines(both)
    probe = probe_of("copies")
    probe.start()
    try:
        assert send_all(both, source, data, sink) == data
    finally:
        probe.stop()
    after = sum(one.bytes_copied_in + one.bytes_copied_out for one in stats)
    after += copied_by_engines(both)
    return (after - before + sum(probe.found().values())) / len(data)


@pytest.mark.rule("rsocket-problem-copies")
def test_large_bytes_are_copied_once_on_each_side() -> None:
    """From the sender's memory into the window, and out of it: no send ring, no receive ring."""
    with ends("shm0") as both:
        source, sink = both.connect()
        data = bytes(range(256)) * (1 << 13)
        # First the window grows, and the sender's side learns where it is.
        copies = [copies_of(both, source, sink, data) for _ in range(12)]
        assert 1.99 <= min(copies) <= 2.01, copies
        assert source.stream is not None
        assert source.stream.stats.bytes_zero_copy > 10 * len(data)


def receive_whole(both: Ends, source: StreamLink, sink: StreamLink, memory: Memory) -> float:
    """Send as much as `memory` takes while it is waited for; return the copies per byte."""
    stream, size = sink.stream, memory.view.nbytes
    assert stream is not None and source.stream is not None
    with both.there.adapter.lock:
        first = stream.receive_ring.expect(memory, size)
        sink.post_pending()
    data = memoryview(bytes(range(256)) * (size // 256))
    stats = (source.stream.stats, stream.stats)
    before = stats[0].bytes_copied_in + stats[1].bytes_copied_out + copied_by_engines(both)
    probe = probe_of("copies")
    probe.start()
    sent = taken = 0
    while stream.receive_ring.expected_left or taken < first:
        sent += source.send(data[sent:]) if sent < size else 0
        taken += sink.receive_into(memory.view[taken:first])
        both.wait(partial(_may_go_on, sink, source if sent < size else None))
    probe.stop()
    with both.there.adapter.lock:
        assert stream.receive_ring.end_expect() == size - first
    assert memory.view == data
    copied = stats[0].bytes_copied_in + stats[1].bytes_copied_out
    copied += copied_by_engines(both) - before
    return (copied + sum(probe.found().values())) / size


def _may_go_on(sink: StreamLink, source: StreamLink | None) -> bool:
    assert sink.stream is not None
    is_due = sink.readiness().readable or not sink.stream.receive_ring.expected_left
    return is_due or (source is not None and source.readiness().writable)


@pytest.mark.rule("rsocket-problem-copies")
def test_a_receive_that_waits_for_a_whole_buffer_costs_one_copy() -> None:
    """Straight from the sender's memory to the receiver's: what MSG_WAITALL does.

    A second one have the bytes that the window holds when the wait begins: 256 KiB at most.
    """
    with ends("shm0") as both:
        source, sink = both.connect()
        with both.there.adapter.lock:
            memory = both.there.register(both.there.adapter.allocate(16 << 20))
        copies = [receive_whole(both, source, sink, memory) for _ in range(6)]
        assert 0.99 <= min(copies) <= 1.1, copies


# -- problem 3: locks


class CountedLock:
    """A device's lock that counts how often a thread takes it that does not have it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.takes: Counter[int] = Counter()

    def acquire(self, *arguments: Any, **keywords: Any) -> bool:
        self.takes[threading.get_ident()] += not self._lock._is_owned()
        taken: bool = self._lock.acquire(*arguments, **keywords)
        return taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


@pytest.mark.rule("rsocket-problem-locks")
@pytest.mark.parametrize("byte_count", [1, 64, 1024])
def test_a_call_that_need_not_wait_takes_one_lock_once(byte_count: int) -> None:
    with pair_over("shm0") as pair:
        pair.client.sendall(b"first")
        assert pair.server.recv(5) == b"first"
        adapter = pair.client.link.context.adapter
        counted = CountedLock(adapter.lock)
        me = threading.get_ident()
        data = bytes(byte_count)
        calls = 50
        adapter.lock = counted  # type: ignore[assignment]  # it does what a lock does
        try:
            for _ in range(calls):
                assert pair.client.send(data) == byte_count
            sending = counted.takes[me]
            devices.wait([pair.client.link.context], lambda: False, 0.05)
            before = counted.takes[me]
            for _ in range(calls):
                assert pair.server.recv(byte_count) == data
            receiving = counted.takes[me] - before
        finally:
            adapter.lock = counted._lock
        assert sending <= calls
        assert receiving <= calls


@pytest.mark.rule("rsocket-problem-locks")
@pytest.mark.parametrize("device", DEVICES)
def test_no_thread_waits_with_the_lock(device: str) -> None:
    with pair_over(device) as pair:
        task = Task(lambda: pair.server.recv(1))
        for _ in range(20):
            time.sleep(0.002)
            lock = pair.client.link.context.adapter.lock
            assert lock.acquire(timeout=2), "a thread sleeps with it"
            lock.release()
        pair.client.send(b"x")
        assert task.result() == b"x"


# -- problem 4: waits for buffer updates


def waits_each(both: Ends, message_bytes: int) -> float:
    """Move messages of one size; return how often the sender had to wait for each."""
    source, sink = both.connect()
    assert source.stream is not None
    data, stats = bytes(message_bytes), source.stream.stats
    for _ in range(max(2, (2 << 20) // message_bytes)):
        send_all(both, source, data, sink)  # the window finds its size
    before = stats.blocked_on_space + stats.blocked_on_credit
    count = max(1, (8 << 20) // message_bytes)
    for _ in range(count):
        send_all(both, source, data, sink)
    waits = stats.blocked_on_space + stats.blocked_on_credit - before
    source.close()
    sink.close()
    return waits / count


@pytest.mark.rule("rsocket-problem-events", "rsocket-monotone")
@pytest.mark.parametrize("device", ["shm0", "tcp0"])
def test_waits_for_space_do_not_grow_with_the_message(device: str) -> None:
    """Above 64 KiB, the original's half of a buffer: one wait for a message, or for a MiB of it.

    On a busy machine the peer may open its window late now and then; what grows does so each time.
    """
    with ends(device) as both:
        for size in (1 << 16, (1 << 16) + 1, 3 << 16, 1 << 18, 1 << 20, 1 << 22):
            seen: list[float] = []
            while not seen or (seen[-1] > max(1, size >> 20) and len(seen) < 4):
                seen.append(waits_each(both, size))
            assert seen[-1] <= max(1, size >> 20), (size, seen)


@pytest.mark.rule("rsocket-problem-events")
@pytest.mark.parametrize("device", ["shm0", "tcp0"])
def test_two_halves_that_stay_make_the_sender_wait(device: str) -> None:
    """The counter can tell: with the original's table and window one wait is not enough."""
    halves = {"table_entries": 2, "is_receive_fixed": True, "receive_bytes": 1 << 17}
    with ends(device, **halves) as both:
        assert waits_each(both, 1 << 20) >= 6


@pytest.mark.rule("rsocket-monotone")
def test_larger_messages_cost_fewer_requests_for_each_mib() -> None:
    with ends("shm0") as both:
        requests = []
        for size in (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22):
            source, sink = both.connect()
            assert source.stream is not None
            stats = source.stream.stats
            for _ in range(max(1, (4 << 20) // size)):
                send_all(both, source, bytes(size), sink)
            before = stats.messages_sent
            for _ in range((8 << 20) // size):
                send_all(both, source, bytes(size), sink)
            requests.append(stats.messages_sent - before)
            source.close()
            sink.close()
    # Where the window of the peer ends, a part is cut in two.
    assert all(more * 5 >= fewer * 4 for more, fewer in pairwise(requests)), requests


# -- the clock


@pytest.fixture
def clock_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """Count, from the call on, which files read a clock in this thread."""
    reads: Counter[str] = Counter()
    me = threading.get_ident()

    def counting(read: Any) -> Any:
        def counted() -> Any:
            if threading.get_ident() == me:
                reads[sys._getframe(1).f_code.co_filename] += 1
            return read()

        return counted

    def begin() -> Counter[str]:
        for name in CLOCKS:
            monkeypatch.setattr(time, name, counting(getattr(time, name)))
        return reads

    return begin


def until_there(pair: Pair, byte_count: int) -> None:
    """Wait until the server can read so much."""
    link = pair.server.link
    assert devices.wait(
        [link.context], lambda: link.stream.receive_ring.readable_bytes >= byte_count, WAIT_S
    )


@pytest.mark.rule("rsocket-problem-clock")
@pytest.mark.parametrize("device", DEVICES)
def test_no_socket_reads_the_clock_that_need_not_wait(
    device: str, clock_reads: Callable[[], Counter[str]]
) -> None:
    """With a timeout set: it is looked at by who waits. Below, a device may plan its timers."""
    calls = 30
    with pair_over(device) as pair:
        pair.client.sendall(b"first")
        assert pair.server.recv(5) == b"first"
        reads = clock_reads()
        for _ in range(calls):
            pair.client.send(b"x" * 100)
        Task(lambda: until_there(pair, 100 * calls)).result()
        for _ in range(calls):
            assert pair.server.recv(100) == b"x" * 100
        for _ in range(calls):
            with pytest.raises(BlockingIOError):
                pair.server.recv(1, socket.MSG_DONTWAIT)
        assert not [name for name in reads if "/urds/rsocket/" in name], reads


@pytest.mark.rule("rsocket-problem-clock")
@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_poll_reads_no_clock(device: str, clock_reads: Callable[[], Counter[str]]) -> None:
    """What cost the original 5 to 8 %: it asked the time at each look at its queue."""
    with pair_over(device) as pair:
        pair.client.sendall(b"first")
        assert pair.server.recv(5) == b"first"
        reads = clock_reads()
        for _ in range(100):
            assert rsocket.rpoll([(pair.server, select.POLLIN)], 0) == []
        assert not [name for name in reads if "/urds/rsocket/" in name], reads


# -- small messages


@pytest.mark.rule("rsocket-small-not-cpu-bound")
@pytest.mark.parametrize("device", DEVICES)
def test_a_burst_of_small_sends_costs_few_writes(device: str) -> None:
    """Each request costs most of a small message's time: what gathers shares one."""
    with ends(device) as both:
        source, sink = both.connect()
        assert source.stream is not None
        taken = 0
        with both.here.adapter.lock, both.there.adapter.lock:  # nothing is taken in meanwhile
            for _ in range(200):
                taken += source.send(memoryview(b"x" * 64))
        assert taken == 200 * 64
        got = bytearray()
        room = memoryview(bytearray(1 << 16))
        while len(got) < taken:
            both.wait(lambda: sink.readiness().readable)
            got += room[: sink.receive_into(room)]
        assert source.stream.stats.messages_sent <= 20
