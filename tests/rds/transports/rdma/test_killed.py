"""A node's process is killed at any point, under traffic with operations in both directions.

Its address is taken by a restart. Nothing comes twice to one life, nor to two; what was given up
is counted, all else arrives; every operation ends with one status; nothing is left of the dead.
`TEST_KILL_SEEDS=20` kills more often, by hand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

import urds
from tests.rds.transports.rdma.hostile_peer import subnet
from tests.rds.transports.rdma.killed_peer import (
    CELLS_BYTES,
    COUNTED,
    HELLO,
    PORT,
    WRITTEN,
    backend_for,
    numbers_of,
    send,
    socket_at,
)
from tests.support.children import Forks
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.constants import MSG_DONTWAIT, RDS_PORT, RdmaStatus
from urds.rds.plane.contract import Mailbox, MailboxSettings, Operation
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.process import process
from urds.rds.settings import Settings
from urds.rds.transports.rdma.link import Link
from urds.rds.transports.rdma.sending import Outgoing
from urds.rds.transports.rdma.surroundings import Surroundings
from urds.verbs.providers.base import PortSpace
from urds.verbs.providers.shm.rendezvous import Rendezvous

SEEDS = range(int(os.environ.get("TEST_KILL_SEEDS", "1")))  # more of them by hand
DEVICES = ("shm0", "tcp0")
LIVES = 4
PAUSES_S = (0.0, 0.001, 0.005, 0.03, 0.1)


@pytest.fixture(scope="module")
def peers() -> Iterator[Forks]:
    made = Forks("tests.rds.transports.rdma.killed_peer")
    yield made
    made.close()


class Records:
    """What the survivor's transport says of messages and operations, beside its counters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given_up: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.told: Counter[int] = Counter()
        give_up, end_operation = Outgoing._give_up, Surroundings.operation_ended
        acknowledge = Outgoing.handle_acknowledged

        def note_given_up(outgoing: Outgoing, messages: Any) -> int:
            chosen = list(messages)
            self.given_up += [bytes(one.payload) for one in chosen if one.owner is not None]
            return give_up(outgoing, chosen)

        def note_acknowledged(outgoing: Outgoing, sequence: int) -> bool:
            before = [one for one in (*outgoing.unacked, *outgoing.retransmits) if one.owner]
            is_well = acknowledge(outgoing, sequence)
            self.acknowledged += [bytes(one.payload) for one in before if one.owner is None]
            return is_well

        def note_told(around: Surroundings, owner: Mailbox, operation: Operation) -> None:
            self.told[id(operation)] += 1
            end_operation(around, owner, operation)

        monkeypatch.setattr(Outgoing, "_give_up", note_given_up)
        monkeypatch.setattr(Outgoing, "handle_acknowledged", note_acknowledged)
        monkeypatch.setattr(Surroundings, "operation_ended", note_told)
        # A courier frees what is acknowledged without telling each; the victims have theirs.
        monkeypatch.setattr(Link, "_make_courier", lambda _link, _qp: None)


class Survivor:
    """The node of this process."""

    def __init__(self, device: str, address: str, peer: str) -> None:
        self.backend = backend_for(device)
        self.sock = socket_at(address)
        self.peer = (peer, PORT)
        self.cells = bytearray(CELLS_BYTES)
        self.region = self.sock.get_mr(self.cells)
        self.operations: list[urds.PendingOperation] = []
        self.sent = 0
        self.got: dict[int, list[int]] = {}  # by the peer's life
        self.cookie = 0  # of the life that said hello last
        self.life = -1

    def turn(self) -> None:
        """Send what there is room for, a bit of it, and take in what came."""
        for _ in range(4):
            try:
                made = send(self.sock, self.peer, self.cookie, 0, self.sent, MSG_DONTWAIT)
            except OSError as refused:
                if refused.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise
                break
            self.sent += 1
            if made is not None:
                self.operations.append(made)
        self.take()

    def take(self) -> None:
        """Take in what came."""
        for _ in range(64):
            try:
                payload, _, cookie = self.sock.recv_region(1 << 20, MSG_DONTWAIT)
            except BlockingIOError:
                time.sleep(0.0002)
                return
            if cookie is not None:
                assert payload.startswith(HELLO)
                self.life, self.cookie = int(payload.split()[1]), cookie
                self.sock.send_region(HELLO, self.region, self.peer)
                continue
            life, number = numbers_of(payload)
            self.got.setdefault(life, []).append(number)
            if number % 4 == 1:
                written = int.from_bytes(self.cells[WRITTEN : WRITTEN + 8], sys.byteorder)
                assert life != self.life or written >= number, "a message before its bytes"

    def run(self, wait_s: float) -> None:
        """Send and receive for a while."""
        end_s = time.monotonic() + wait_s
        while time.monotonic() < end_s:
            self.turn()

    def holds(self) -> bool:
        """Tell whether messages wait for the peer or for its word."""
        return any(
            row.unsent_messages or row.unacknowledged_messages
            for row in self.backend.snapshot().paths
        )

    def kept(self) -> tuple[int, int, int, int]:
        """Return what is here: links, attempts, keys, descriptors."""
        node = self.backend._driver.rdma.node
        assert node is not None
        [device] = node.devices
        with self.backend._driver.lock, device.adapter.lock:
            keys = device.adapter.region_count
            counts = (len(device.links), len(node._attempts._attempts), keys)
        return (*counts, len(os.listdir("/proc/self/fd")))


@contextlib.contextmanager
def surviving(device: str, *, is_lower: bool) -> Iterator[Survivor]:
    address = subnet()
    here, there = (address(1), address(2)) if is_lower else (address(2), address(1))
    before = process.use(None)  # type: ignore[arg-type]  # its holder has it again
    made = Survivor(device, here, there)
    try:
        yield made
    finally:
        made.backend.close()
        process.use(before)


def read_log(path: Path) -> list[int]:
    """Return the numbers that a life wrote; the last line may be half."""
    text = path.read_text() if path.exists() else ""
    return [int(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_lower", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_is_killed_and_begins_anew(
    peers: Forks,
    device: str,
    is_lower: bool,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(seed * 2 + is_lower)
    records = Records(monkeypatch)
    with surviving(device, is_lower=is_lower) as here:
        logs = [tmp_path / f"{life}" for life in range(LIVES)]
        kept: list[tuple[int, int, int, int]] = []
        for life, log in enumerate(logs):
            words = (device, here.peer[0], here.sock.getsockname()[0], life, log)
            (number,) = peers.start(*words)
            wait_until(lambda life=life: here.take() or here.life == life)
            acknowledged_before = len(records.acknowledged)  # by lives that are over
            here.run(rng.choice(PAUSES_S))
            wait_until(lambda life=life: here.turn() or bool(here.got.get(life)))
            if life == LIVES - 1:
                break
            assert peers.kill(number), "it does not end by itself"
            here.run(rng.choice(PAUSES_S))
            kept.append(here.kept())
        wait_until(lambda: here.take() or not here.holds())
        due = set(numbers(records.acknowledged[acknowledged_before:]))
        wait_until(lambda: here.take() or due <= set(read_log(logs[-1])))
        check_messages(here, records, [read_log(log) for log in logs])
        check_operations(here, records)
        counters = here.backend.counters()
        assert not counters["control_faults"]
        assert counters["rdma_peer_restarts"] == counters["peer_restarted"] == LIVES - 1
        peers.kill(number)
        wait_until(lambda: here.kept()[:3] == (0, 0, 1))  # of keys, this socket's region alone
        assert here.kept()[3] <= kept[0][3] + 1


def test_an_attempt_that_meets_a_process_as_it_ends_fails_at_once() -> None:
    """Its name is still locked, nothing listens any more; else its restart waits half a minute."""
    address = subnet()
    here, there = address(1), address(2)
    dying = Rendezvous(random.randbytes(16))
    name = dying.claim(PortSpace.TCP, there, RDS_PORT)
    dying.socket.close()
    values = {"rdma_devices": ("shm0",), "transport": "ib", "drain_s": 0, "linger_s": 0}
    with contextlib.ExitStack() as ending:
        ending.callback(dying.close)
        ending.callback(name.close)
        backends = [InProcess(Settings.load(values, environ={})) for _ in range(2)]
        for backend in backends:
            ending.callback(backend.close)

        def bind(backend: InProcess, local: str) -> Mailbox:
            settings = MailboxSettings()
            return backend.bind(
                address=ip_address(local), port=PORT, settings=settings, transport=None
            )

        bind(backends[0], here).sendto(b"kept", (there, PORT))
        wait_until(lambda: backends[0].counters()["rdma_connect_failures"] > 0)
        name.close()
        receiver = bind(backends[1], there)
        message = receiver.receive(wait_ns=int(BUSY_S * 1e9))
        assert message is not None and message.payload == b"kept"


def numbers(payloads: list[bytes]) -> list[int]:
    """Return the numbers of our messages; what says hello has none."""
    return [numbers_of(one)[1] for one in payloads if not one.startswith(HELLO)]


def check_messages(here: Survivor, records: Records, lives: list[list[int]]) -> None:
    """See that nothing came twice or in another order, and that losses are counted.

    What a killed life has acknowledged lay in its inbox: whether it was read there, no one knows.
    """
    for came in lives:
        assert came == sorted(set(came)), "twice, or overtaken"
    arrived = Counter(number for came in lives for number in came)
    assert not [number for number, times in arrived.items() if times > 1], "to two lives"
    ends = sorted(numbers(records.acknowledged) + numbers(records.given_up))
    assert ends == list(range(here.sent)), "each message is acknowledged or given up, once"
    assert here.backend.counters()["send_given_up"] == len(records.given_up)
    assert lives[-1], "nothing came to the last life"
    for life, came in here.got.items():
        assert came == list(range(len(came))), f"of life {life}"


def check_operations(here: Survivor, records: Records) -> None:
    """See that each operation ended, and was told to its socket, once."""
    assert here.operations
    assert None not in [one.status for one in here.operations]
    assert [records.told[id(one._operation)] for one in here.operations] == [1] * len(
        here.operations
    )
    statuses = Counter(one.status for one in here.operations)
    assert statuses[RdmaStatus.SUCCESS] and not statuses[RdmaStatus.CANCELED]
    assert int.from_bytes(here.cells[COUNTED : COUNTED + 8], sys.byteorder) >= sum(
        number % 4 == 2 for came in here.got.values() for number in came
    )
