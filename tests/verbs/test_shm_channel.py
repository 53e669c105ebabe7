"""Channels of the shm provider: what they hold, what goes over them, and when memory goes back."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import planes
from tests.verbs.shm_world import PATIENCE_NS, Side, joined
from urds.common.implementation import PYTHON
from urds.verbs.engine.numbers import QPAttrMask, QPState, WCStatus, WROpcode
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.engine.work import SendWR
from urds.verbs.providers.shm import channels
from urds.verbs.providers.shm.channels import Channel
from urds.verbs.providers.shm.messages import MAGIC, Hello, emit_message
from urds.verbs.providers.shm.rendezvous import Rendezvous


@pytest.fixture
def pair(place: Path) -> Iterator[tuple[Side, Side]]:
    left, right = joined(place)
    right.receive(8)
    left.send(8)
    right.poll()
    left.poll()
    yield left, right
    left.close()
    right.close()


def channel_of(side: Side) -> Channel:
    (channel,) = side.adapter.peers
    return channel


def slots_sent(side: Side) -> int:
    return side.adapter.channel_counters().slots_sent


def test_a_channel_is_a_socket_and_a_memory_file(pair: tuple[Side, Side]) -> None:
    """Python's mmap keeps a descriptor of its own; there is no other of the channel."""
    left, _ = pair
    of_memory = 1 if planes.in_use() == PYTHON else 0
    links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    channel_files = [link for link in links if "urds-verbs-channel" in link]
    assert len(channel_files) == 2 * of_memory  # of each side of this process
    own = links.count(f"socket:[{os.fstat(channel_of(left).socket.fileno()).st_ino}]")
    assert own + of_memory <= 2
    assert own == 1


def test_a_mapped_write_has_no_slot_and_no_answer(pair: tuple[Side, Side]) -> None:
    left, right = pair
    left.write(1000, key=right.region.rkey)
    left.poll()
    left.wait_mapped()
    before = slots_sent(left), slots_sent(right)
    left.view[:1000] = data = os.urandom(1000)
    with right.adapter.lock:  # no thread there takes part
        left.write(1000, key=right.region.rkey, at=5000)
        with left.adapter.lock:
            assert [wc.status for wc in left.cq.poll(2)] == [WCStatus.SUCCESS]
    assert (slots_sent(left), slots_sent(right)) == before
    assert right.view[5000:6000] == data


def test_a_mapped_write_with_immediate_is_one_slot(pair: tuple[Side, Side]) -> None:
    left, right = pair
    left.write(1000, key=right.region.rkey)
    left.poll()
    left.wait_mapped()
    right.receive(0, wr_id=5)
    before = slots_sent(left)
    wr = SendWR(1, WROpcode.RDMA_WRITE_WITH_IMM, left.piece(1000), imm_data=77)
    wr.rkey, wr.remote_addr = right.region.rkey, 0x10_0000
    left.post(wr)
    (got,) = right.poll()
    assert (got.wr_id, got.imm_data, got.byte_len) == (5, 77, 1000)
    assert left.poll()[0].status == WCStatus.SUCCESS
    assert slots_sent(left) == before + 1 and left.placed == 1


def test_in_a_conversation_no_acknowledgement_goes_alone(pair: tuple[Side, Side]) -> None:
    """Each answer brings the one for what it answers; the last has none to ride on."""
    left, right = pair
    with left.adapter.lock, right.adapter.lock:
        before = slots_sent(left), slots_sent(right)
        for _ in range(10):
            left.receive(8)
            right.receive(8)
            left.send(8)
            right.adapter.progress()
            right.send(8)
            left.adapter.progress()
            assert [wc.status for wc in left.cq.poll(4)] == [WCStatus.SUCCESS] * 2
        # With the locks held: the progress thread may send the last one as soon as they are free.
        assert (slots_sent(left) - before[0], slots_sent(right) - before[1]) == (10, 10)
        assert right.adapter.channel_counters().slots_received == slots_sent(left)


def test_an_acknowledgement_that_waits_goes_before_a_sleep(pair: tuple[Side, Side]) -> None:
    left, right = pair
    right.receive(8)
    with right.adapter.lock:
        left.send(8)
        right.adapter.progress()
        assert right.adapter.acks_waiting and not len(left.cq)
    right.adapter.wait(lambda: False, 1_000_000)
    assert not right.adapter.acks_waiting
    assert left.poll()[0].status == WCStatus.SUCCESS


def test_who_finds_nothing_sends_it_by_its_second_look(pair: tuple[Side, Side]) -> None:
    left, right = pair
    right.receive(8)
    with right.adapter.lock:
        left.send(8)
        pending = []
        for _ in range(3):
            right.adapter.progress()
            pending.append(right.adapter.acks_waiting)
    assert pending == [1, 1, 0]


@pytest.mark.parametrize("end", ["close", "remove", "error", "reset"])
def test_an_end_does_not_overtake_it(pair: tuple[Side, Side], end: str) -> None:
    """What was executed counts, although its queue pair goes before there was a quiet moment."""
    left, right = pair
    right.receive(8)
    with right.adapter.lock:
        left.send(8)
        right.adapter.progress()
        assert right.adapter.acks_waiting
        if end == "close":
            right.close()
        elif end == "remove":
            right.adapter.remove(right.qp)
        else:
            state = QPState.ERR if end == "error" else QPState.RESET
            right.qp.modify(QPAttr(qp_state=state), QPAttrMask.STATE, 0)
            right.adapter.progress_qp(right.qp)
    assert left.poll()[0].status == WCStatus.SUCCESS


PROGRAM = """
import sys
from pathlib import Path
from tests.support import planes
from tests.verbs.shm_world import Side
side = Side(Path(sys.argv[1]))
side.receive(8)
side.adapter.lock.acquire()  # so that no other thread acknowledges
print(side.listen().local[1], flush=True)
while not len(side.cq):
    side.adapter.progress()
assert side.adapter.acks_waiting
"""  # it has the message, and ends


def test_a_program_that_just_ends_has_acknowledged_what_it_took(place: Path) -> None:
    side = Side(place)
    command = [sys.executable, "-c", PROGRAM, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        side.connect("127.0.0.1", int(peer.stdout.readline()))
        side.send(8)
        assert side.poll()[0].status == WCStatus.SUCCESS
    side.close()


def test_a_channel_at_rest_gives_its_memory_back(pair: tuple[Side, Side]) -> None:
    left, right = pair
    for number in range(30):
        right.receive(40_000)
        left.view[:4] = number.to_bytes(4, "big")
        left.send(40_000)
        right.poll()
        left.poll()
    held = resident_bytes()
    right.adapter.wait(lambda: False, 10_000_000)  # it tells what it has freed, and sleeps
    with left.adapter.lock, right.adapter.lock:
        for side in (left, right):
            trims = side.adapter.channel_counters().trims
            side.adapter.peers.trim()  # it was written to since the last look
            assert side.adapter.channel_counters().trims == trims
            side.adapter.peers.trim()
            assert side.adapter.channel_counters().trims == trims + 1
    assert held > 1 << 20 and resident_bytes() <= 2 * 16_384  # of both sides
    for _ in range(3):
        right.receive(40_000)
        left.send(40_000)
        assert right.poll()[0].status == left.poll()[0].status == WCStatus.SUCCESS
    assert right.view[:4] == left.view[:4]


def resident_bytes() -> int:
    """Return how much memory the mappings of the channel have, of both sides of this process."""
    found, is_channel = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first:
            is_channel = "urds-verbs-channel" in line
        elif first == "Rss:" and is_channel:
            found += int(rest[0]) * 1024
    return found


def test_what_was_not_read_is_kept(pair: tuple[Side, Side]) -> None:
    left, right = pair
    right.receive(8)
    with right.adapter.lock:
        left.send(8)
        with left.adapter.lock:
            for _ in range(3):
                left.adapter.peers.trim()
            assert left.adapter.channel_counters().trims == 0
    assert right.poll()[0].status == WCStatus.SUCCESS


def test_looks_at_rest_are_planned_while_there_is_something_to_give_back(
    pair: tuple[Side, Side],
) -> None:
    left, right = pair
    peers = left.adapter.peers
    for side in (right, left):
        side.adapter.wait(lambda: False, 10_000_000)
    with left.adapter.lock:
        assert peers._trim_timer is not None
        for _ in range(3):
            peers._trim_timer = None
            peers.trim()
        assert peers._trim_timer is None and left.adapter.channel_counters().trims == 1
    right.receive(8)
    left.send(8)
    right.poll()
    left.adapter.wait(lambda: False, 10_000_000)
    with left.adapter.lock:
        assert peers._trim_timer is not None


def test_the_word_that_a_peer_has_ended_is_an_end(place: Path) -> None:
    """Whether or not its socket does: what it wrote before arrives."""
    left, right = joined(place, liar=True)
    right.receive(8)
    left.send(8)
    right.poll()
    right.receive(8)
    with right.adapter.lock:
        left.send(8)
        channel_of(left).writer.end()
        channel_of(left).ring_doorbell()
    (got,) = right.poll()
    assert got.status == WCStatus.SUCCESS
    counters = right.adapter.channel_counters
    assert right.adapter.wait(lambda: counters().peers_gone == 1, PATIENCE_NS)
    left.close()
    right.close()


def test_two_looks_tell_that_a_peer_was_killed(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first one a processor may not have heard of it yet."""
    left, right = pair
    right.receive(8)
    left.send(8)
    right.poll()
    channel = next(iter(left.adapter.peers))
    assert channel._pid == os.getpid()
    assert not channel.look_for_end()
    monkeypatch.setattr(channels, "is_ending", lambda pid: pid == os.getpid())
    assert [channel.look_for_end() for _ in range(3)] == [False, True, True]
    monkeypatch.setattr(channels, "is_ending", lambda pid: False)
    assert not channel.look_for_end()


def test_a_context_of_version_1_is_sent_away_in_both_directions(place: Path) -> None:
    """What a release before this one says, and what it does with our greeting."""
    side = Side(place)
    there = Rendezvous(b"o" * 16, place)
    connection = there.connect(side.adapter.gid)
    connection.setblocking(True)
    old = emit_message(Hello(b"URDSSHM1", 1 << 20, b"o" * 16))
    files = [os.memfd_create("old"), os.eventfd(0), os.eventfd(0)]
    socket.send_fds(connection, [old], files)
    assert connection.recv(10) == b""
    side.lead(side.qp, b"o" * 16, 77)
    side.send(8)
    assert select.select([there.socket], [], [], 10)[0]
    heard = there.accept()
    assert heard is not None
    heard.setblocking(True)
    assert heard.recv(100) == emit_message(Hello(MAGIC, 1 << 20, side.adapter.gid))
    heard.close()  # as it does with a magic that it does not know
    assert side.poll()[0].status != WCStatus.SUCCESS
    assert side.adapter.wait(lambda: side.qp.state is QPState.ERR, PATIENCE_NS)
    for descriptor in files:
        os.close(descriptor)
    connection.close()
    there.close()
    side.close()
