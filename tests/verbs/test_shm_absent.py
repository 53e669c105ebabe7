"""Requests over `shm0` of queue pairs led by hand, whose peer's process is stopped or killed."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.verbs.shm_kills import End, Nursery, content
from tests.verbs.shm_world import PATIENCE_NS, Side
from urds.verbs.engine.numbers import QPState, WCStatus

TIMEOUT: Final = 13  # 33.6 ms
WAITS: Final = 8  # `Side.lead` has 7 for `retry_cnt`
LATE_S: Final = 20.0  # of a loaded machine
PATIENCE_S: Final = WAITS * (4096 << TIMEOUT) / 1e9
RETRY, FLUSHED = WCStatus.RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR
RECEIVES: Final = (0, 1)  # of which each has the place of its number


def state_of(task: Path) -> str:
    """Return the letter of the state of a thread."""
    return (task / "stat").read_text().rpartition(") ")[2][0]


class Peer:
    """A process that takes messages, and the queue pair that leads to it, with receives posted."""

    def __init__(self, nursery: Nursery, side: Side, place: Path, timeout: int) -> None:
        self._pid, self._connection = nursery.start()
        self._process = os.pidfd_open(self._pid)
        self.end = end = End(side)
        told = end.describe(role="reader", directory=str(place))
        self._connection.send(json.dumps(told).encode())
        end.lead(json.loads(self._connection.recv(1000)), timeout)
        for receive in RECEIVES:
            end.receive(receive)
        self._connection.send(b"!")
        end.send(content(0))
        while not end.done:
            end.wait(lambda: False)
            end.take()

    def stop(self) -> None:
        """Stop it: what is posted from now on gets no answer."""
        signal.pidfd_send_signal(self._process, signal.SIGSTOP)
        end_s = time.monotonic() + LATE_S
        tasks = Path(f"/proc/{self._pid}/task")
        while any(state_of(task) != "T" for task in tasks.iterdir()):
            assert time.monotonic() < end_s
            time.sleep(0.001)

    def kill(self) -> None:
        """Kill it, and wait until its end is known."""
        adapter = self.end.side.adapter
        signal.pidfd_send_signal(self._process, signal.SIGKILL)
        assert adapter.wait(lambda: len(adapter.peers) == 0, PATIENCE_NS)

    def close(self) -> None:
        """End it, if it has not ended, and close what leads to it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        os.close(self._process)
        self._connection.close()

    def ended(self, count: int) -> list[WCStatus]:
        """Wait for so many completions, and return how they ended."""
        return [wc.status for wc in self.end.side.poll(count)]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], Peer]]:
    nursery = Nursery()
    side = Side(tmp_path / "meet")
    peers: list[Peer] = []

    def make_peer(timeout: int) -> Peer:
        peers.append(Peer(nursery, side, tmp_path / "meet", timeout))
        return peers[-1]

    yield make_peer
    for peer in peers:
        peer.close()
    side.close()
    nursery.close()


@pytest.mark.parametrize("fate", ["stopped", "stopped, then killed", "killed"])
def test_requests_to_a_peer_that_is_not_there_end_in_time(
    make: Callable[[int], Peer], fate: str
) -> None:
    """After `timeout` and `retry_cnt`, whether the link tells that the peer has ended or not."""
    peer = make(TIMEOUT)
    if fate == "killed":
        peer.kill()
    else:
        peer.stop()
    began_s = time.monotonic()
    peer.end.send(content(1))
    peer.end.send(content(2))
    if fate == "stopped, then killed":
        peer.kill()
    assert peer.ended(4) == [RETRY, FLUSHED, FLUSHED, FLUSHED]
    assert time.monotonic() - began_s >= PATIENCE_S * 0.99


def test_who_waits_for_a_killed_peer_without_a_request_is_told_as_late(
    make: Callable[[int], Peer],
) -> None:
    peer = make(TIMEOUT)
    began_s = time.monotonic()
    peer.kill()
    assert peer.ended(2) == [FLUSHED] * 2
    assert peer.end.qp.state is QPState.ERR
    assert time.monotonic() - began_s >= PATIENCE_S * 0.99


def test_without_a_timeout_the_end_of_the_peer_is_the_end(make: Callable[[int], Peer]) -> None:
    """No timer would ever end it."""
    peer = make(0)
    peer.stop()
    peer.end.send(content(1))
    peer.kill()
    assert peer.end.qp.state is QPState.ERR
    assert peer.ended(3) == [FLUSHED] * 3
