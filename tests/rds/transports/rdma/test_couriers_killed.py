"""A node with couriers survives its peer, which is killed often: between messages, and amid them.

What a courier has of a dead peer goes back to the core, which gives it up or sends it to the next
life: no message comes twice or in another order, and nothing is left of the dead.
`TEST_KILL_SEEDS=20` kills more often, by hand.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rds.transports.rdma.couriers_victim import DEVICE, numbers_of, payload_of
from tests.rds.transports.rdma.hostile_peer import subnet
from tests.rds.transports.rdma.killed_peer import PORT, backend_for, socket_at
from tests.support.children import Forks
from tests.support.waiting import wait_until
from urds.rds.constants import MSG_DONTWAIT
from urds.rds.runtime.process import process
from urds.rds.transports.rdma.courier import Courier

SEEDS = range(int(os.environ.get("TEST_KILL_SEEDS", "1")))  # more of them by hand
KILLS = 25  # for each role and each order of addresses
BURST = 24
PAUSES_S = (0.0, 0.0005, 0.002, 0.01)
FEW_LIVES = 5  # after which what is kept does not grow


@pytest.fixture(scope="module")
def victims() -> Iterator[Forks]:
    made = Forks("tests.rds.transports.rdma.couriers_victim")
    yield made
    made.close()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often a courier had the numbers."""
    counted: Counter[str] = Counter()
    give = Courier.give

    def noted(courier: Courier, core: object) -> None:
        give(courier, core)  # type: ignore[arg-type]  # as it came
        counted["given"] += courier.is_given

    monkeypatch.setattr(Courier, "give", noted)
    return counted


class Survivor:
    """The node of this process."""

    def __init__(self, address: str, peer: str) -> None:
        self.backend = backend_for(DEVICE)
        self.sock = socket_at(address)
        self.sock.settimeout(20)
        self.address, self.peer = address, peer
        self.sent = 0
        self.got: dict[int, list[int]] = {}  # by the peer's life

    def send(self, count: int) -> None:
        """Send messages with the next numbers."""
        for _ in range(count):
            self.sock.sendto(payload_of(0, self.sent), (self.peer, PORT))
            self.sent += 1

    def send_nowait(self, count: int) -> None:
        """Send as many of them as have room."""
        for _ in range(count):
            try:
                self.sock.sendto(payload_of(0, self.sent), MSG_DONTWAIT, (self.peer, PORT))
            except OSError as refused:
                if refused.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise
                return
            self.sent += 1

    def take(self, life: int, count: int) -> None:
        """Receive until so many messages of a life are here; those of others are kept as well."""
        while len(self.got.get(life, ())) < count:
            came, number = numbers_of(self.sock.recv(1 << 20))
            self.got.setdefault(came, []).append(number)

    def holds(self) -> bool:
        """Tell whether messages wait for the peer or for its word."""
        rows = self.backend.snapshot().paths
        return any(row.unsent_messages or row.unacknowledged_messages for row in rows)

    def kept(self) -> tuple[int, int, int]:
        """Return what is here: links, keys, descriptors."""
        node = self.backend._driver.rdma.node
        assert node is not None
        [device] = node.devices
        with self.backend._driver.lock, device.adapter.lock:
            counts = (len(device.links), device.adapter.region_count)
        return (*counts, len(os.listdir("/proc/self/fd")))


@contextmanager
def surviving(*, is_lower: bool) -> Iterator[Survivor]:
    address = subnet()
    here, there = (address(1), address(2)) if is_lower else (address(2), address(1))
    before = process.use(None)  # type: ignore[arg-type]  # its holder has it again
    made = Survivor(here, there)
    try:
        if type(made.backend.plane).__module__ != "urds.rds.plane.native":
            pytest.skip("only the compiled plane has couriers")
        yield made
    finally:
        made.backend.close()
        process.use(before)


def logged(log: Path) -> list[int]:
    """Return the numbers that a life wrote; the last line may be half."""
    text = log.read_text() if log.exists() else ""
    return [int(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def check_kept(here: Survivor, kept: list[tuple[int, int, int]]) -> None:
    """See that nothing is left of the dead."""
    wait_until(lambda: here.kept()[0] == 0)
    few, now = kept[FEW_LIVES], here.kept()
    assert now[1] <= few[1]
    assert now[2] <= few[2] + 1, "descriptors"
    assert not here.backend.counters()["control_faults"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_lower", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_sender_survives_its_receiver(
    victims: Forks, given: Counter[str], seed: int, is_lower: bool, tmp_path: Path
) -> None:
    """Messages that were sent right behind a kill come to the next life, or are given up."""
    rng = random.Random(seed)
    with surviving(is_lower=is_lower) as here:
        logs = [tmp_path / str(life) for life in range(KILLS)]
        kept: list[tuple[int, int, int]] = []
        for life, log in enumerate(logs):
            (number,) = victims.start(here.peer, here.address, life, 0, log)
            here.take(life, 1)  # it is back
            first = here.sent
            here.send(BURST)
            if life % 2 == 0:  # amid messages in the other lives
                due = set(range(first, here.sent))
                wait_until(lambda log=log, due=due: due <= set(logged(log)))
                wait_until(lambda: not here.holds())
            else:
                time.sleep(rng.choice(PAUSES_S))
            kept.append(here.kept())
            assert victims.kill(number), "it does not end by itself"
            here.send_nowait(rng.randrange(BURST))
        came = [logged(log) for log in logs]
        assert all(one == sorted(set(one)) for one in came), "twice, or overtaken"
        arrived = Counter(number for one in came for number in one)
        assert not [number for number, times in arrived.items() if times > 1], "to two lives"
        for life in range(0, KILLS, 2):
            assert len(came[life]) >= BURST
        assert given["given"] >= KILLS
        check_kept(here, kept)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_lower", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_receiver_survives_its_sender(
    victims: Forks, given: Counter[str], seed: int, is_lower: bool, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    with surviving(is_lower=is_lower) as here:
        kept: list[tuple[int, int, int]] = []
        for life in range(KILLS):
            is_endless = life % 2 == 1  # it is killed amid messages
            count = -1 if is_endless else BURST
            (number,) = victims.start(here.peer, here.address, life, count, tmp_path / str(life))
            here.take(life, rng.randrange(1, 4 * BURST) if is_endless else BURST + 1)
            kept.append(here.kept())
            assert victims.kill(number), "it does not end by itself"
        for life, came in here.got.items():
            assert came == list(range(len(came))), f"of life {life}"
            assert life % 2 or len(came) == BURST + 1
        assert given["given"] >= KILLS
        check_kept(here, kept)
