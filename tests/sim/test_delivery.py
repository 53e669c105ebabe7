"""Every message arrives once and in order, whatever happens to streams, nodes and receivers.

Safety is judged with each message that an application takes, liveness when all is whole again.
"""

import pytest

from tests.sim.simulation import HIGH, LOW, Simulation
from urds.rds.control.handshake import Handshakes
from urds.rds.control.tcp_path import TcpPath

pytestmark = pytest.mark.sim

SEEDS = range(200)


@pytest.mark.parametrize("npaths", [1, 2, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_between_own_nodes(seed: int, npaths: int) -> None:
    Simulation(seed, npaths=npaths).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_between_own_nodes_that_restart(seed: int) -> None:
    Simulation(seed, npaths=[1, 2, 8][seed % 3], restarts=(LOW, HIGH)).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_between_own_nodes_whose_clocks_are_set_at_restarts(seed: int) -> None:
    """A restart may number its messages below those of the life before."""
    Simulation(seed, npaths=[1, 2, 8][seed % 3], restarts=(LOW, HIGH), clocks_set=True).run()


@pytest.mark.parametrize("seed", [*SEEDS, 267, 552])
def test_between_own_nodes_whose_counts_of_paths_change_with_restarts(seed: int) -> None:
    """Either side restarts with fewer paths or more, while a stream may be dead without a word.

    267, 552: what was never sent fell with its path when that was closed.
    """
    clocks_set = bool(seed % 2)
    Simulation(seed, npaths=(1, 2, 8), restarts=(LOW, HIGH), clocks_set=clocks_set).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_thief_gets_no_message_of_a_peer_that_lives(seed: int) -> None:
    """It connects as the peer again and again. A path without a stream would be its: ADR 19."""
    simulation = Simulation(seed, thief=True)
    simulation.run()
    assert simulation.thief is not None
    assert not simulation.thief.taken, f"seed {seed}: the thief was handed messages"


@pytest.mark.parametrize("release", [6, 7])
@pytest.mark.parametrize("kernel", [LOW, HIGH], ids=["lower", "higher"])
@pytest.mark.parametrize("seed", SEEDS)
def test_with_a_kernel(seed: int, kernel: object, release: int) -> None:
    """Every third pair stays, in every third the kernel restarts, in every third we do."""
    restarts = [(), (LOW,), (HIGH,)][seed % 3]
    rounds = 100 if kernel in restarts else 40  # a kernel restarts when it has lived for a while
    Simulation(seed, restarts=restarts, kernels={kernel: release}, rounds=rounds).run()


def test_a_seed_gives_the_same_simulation_twice() -> None:
    def result() -> tuple[int, int, int]:
        simulation = Simulation(11, npaths=2, restarts=(LOW, HIGH))
        simulation.run()
        return simulation.world.now_ns, simulation.world.steps, simulation.flows.received

    assert result() == result()


def test_the_disturbances_happen() -> None:
    """A simulation in which nothing goes wrong would prove nothing."""
    stats = {
        "superseded": 0,
        "downs": 0,
        "refused_by_peer": 0,
        "call_back_requests_received": 0,
        "dead_stream_probes": 0,
    }
    restarts = congested = 0
    for seed in range(30):
        simulation = Simulation(seed, npaths=2, restarts=(LOW, HIGH))
        simulation.run()
        restarts += simulation.restarted
        for node in simulation.nodes.values():
            for name in stats:
                stats[name] += getattr(node.endpoint.stats, name)
            congested += node.congestions
    assert min(stats.values()) > 0, stats
    assert min(restarts, congested) > 0, (restarts, congested)


def test_honest_peers_are_asked_and_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second stream comes where the first was lost: the answer is its end, or silence."""
    asked, refused = [], 0
    ask = Handshakes.probe_liveness

    def note(handshakes: Handshakes, path: TcpPath) -> None:
        asked.append(path.index)
        ask(handshakes, path)

    monkeypatch.setattr(Handshakes, "probe_liveness", note)
    for seed in range(30):
        simulation = Simulation(seed, npaths=[1, 2, 8][seed % 3], restarts=(LOW, HIGH))
        simulation.run()
        refused += sum(n.endpoint.stats.takeovers_refused for n in simulation.nodes.values())
    assert asked and not refused


def test_kernels_restart_and_repeat() -> None:
    restarts = seen = repeats = 0
    for seed in range(30):
        simulation = Simulation(seed, restarts=(LOW,), kernels={LOW: 7}, rounds=100)
        simulation.run()
        restarts += simulation.restarted
        own = simulation.nodes[HIGH]
        seen += own.restarts_seen
        repeats += own.counters.recv_drop_old_seq
    assert min(restarts, seen, repeats) > 0, (restarts, seen, repeats)
