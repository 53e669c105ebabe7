"""RDS over RDMA delivers once and in order, and touches only what it may, whatever happens.

The worlds of `rdma_world` judge themselves; here they are run, and it is seen that they are wild.
"""

from collections import Counter

import pytest

from tests.sim.rdma_world import Plan, World
from urds.rds.constants import RdmaStatus
from urds.rds.transports.rdma.core import ConnectionCore

pytestmark = pytest.mark.sim

SEEDS = range(120)
VISITORS = Plan(visitors=True, gives_up=True, to_itself=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens(seed: int) -> None:
    World(seed).run()


@pytest.mark.parametrize("seed", range(20))
def test_two_nodes_that_restart(seed: int) -> None:
    World(seed, Plan(restarts=True, rounds=30)).run()


@pytest.mark.parametrize("seed", range(20))
def test_a_node_and_itself(seed: int) -> None:
    World(seed, Plan(nodes=1, to_itself=True)).run()


def test_peers_that_do_not_tell_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything unacknowledged comes twice then."""
    monkeypatch.setattr(ConnectionCore, "acknowledge_sequence", 0)
    repeats = 0
    for seed in range(12):
        world = World(seed, Plan(restarts=True))
        world.run()
        repeats += world.counted("recv_drop_old_seq")
    assert repeats > 12


@pytest.mark.parametrize("seed", range(20))
def test_visitors(seed: int) -> None:
    World(seed, VISITORS).run()


def test_a_seed_gives_the_same_world_twice() -> None:
    def result() -> tuple[int, int, int, list[RdmaStatus]]:
        world = World(11, Plan(nodes=3, restarts=True, to_itself=True))
        world.run()
        return world.packets, world.network.now_ns, world.judge.delivered, world.judge.statuses

    assert result() == result()


def test_much_goes_wrong() -> None:
    """Worlds in which nothing happens would prove nothing; it ends with what comes last."""
    happened: Counter[str] = Counter()
    missing = {*EXPECTED, *COUNTED, *(status.name for status in RdmaStatus), "pongs", "lost"}
    for seed in range(40):
        world = World(seed, None if seed % 10 else VISITORS)
        world.run()
        happened.update(world.happened)
        happened.update(status.name for status in world.judge.statuses)
        happened.update({"pongs": world.judge.pongs, "lost": world.network.datagrams_lost})
        happened.update({name: world.counted(name) for name in COUNTED})
        missing = {name for name in missing if not happened[name]}
        if not missing:
            break
    print(f"seed {seed} has the last of them")
    assert not missing, happened


EXPECTED = ("breaks", "cuts", "kills", "stops", "rebinds", "visits")
COUNTED = (
    "recv_paused",  # mailboxes far over their bound
    "cong_send_error",
    "send_retransmitted",
    "send_given_up",
    "send_cancelled",
    "ib_tx_ring_full",
    "ib_tx_throttle",  # frames that waited for a credit
    "ib_tx_credit_updates",
    "ib_ack_sent",
    "ib_atomic_cswp",
    "ib_atomic_fadd",
    "connect_raced",
    "listen_closed_stale",
    "peer_restarts",
    "gave_up",
    "evicted",
)
