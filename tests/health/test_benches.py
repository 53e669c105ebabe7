"""The benchmarks run, fail, stop and render as docs/benchmarks.md says.

No speed is judged here: a figure must be there, and the right peer must stand beside it.
"""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.health.sources import ROOT
from tests.support import planes
from urds.rds.plane.choose import NATIVE, PYTHON

BENCHES = ROOT / "benches"
MODULES = ("measuring", "results", "tables", "works", "pair", "page")
RUN_S_MAX = 60


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give modules of the benchmarks, which are programs and no package, for one test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHES))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in set(sys.modules) - before:
        if str(BENCHES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def start(program: str, *options: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, str(BENCHES / program), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def run(program: str, *options: str) -> tuple[int, str, str]:
    """Return the exit code and what was printed to standard output and standard error."""
    with start(program, *options) as process:
        out, err = process.communicate(timeout=RUN_S_MAX)
    return process.returncode, out, err


def test_a_run_measures_and_its_page_says_so(bench: Any, tmp_path: Path) -> None:
    """One way, beside raw TCP; the page holds the same figures and is the same twice."""
    code, out, err = run(
        "run.py", "--quick", "--rounds", "2", "--only", "urds,tcp,one_way", "--sizes", "64",
        "--json", str(tmp_path / "out.json"),
    )  # fmt: skip
    assert code == 0, out + err
    report = bench.results.Report.read(tmp_path / "out.json")
    assert {"processes", "cache line", "what spins", "a copy"} <= report.machine.keys()
    assert "cache line at the end" in report.machine
    (table,) = report.tables
    assert [line.name for line in table.lines] == ["urds", "tcp"]
    assert all(len(line.rounds) == 2 and line.median > 0 for line in table.lines)
    assert table.lines[1].ratio == pytest.approx(table.lines[0].median / table.lines[1].median)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: begin -->old<!-- figures: end -->\nafter\n")
    texts = []
    for reports in ([str(tmp_path / "out.json")], []):
        assert run("page.py", *reports, "--page", str(page))[0] == 0
        texts.append(page.read_text())
    assert texts[0] == texts[1]
    assert texts[0].startswith("before\n<!-- figures: begin -->\n### Side by side")
    assert texts[0].endswith("<!-- figures: end -->\nafter\n")
    assert f"raw TCP {table.lines[1].median:,.0f}/s" in texts[0]
    (kept,) = (tmp_path / "data" / "benchmarks").iterdir()
    assert bench.results.Report.read(kept).tables[0].lines[1].median == table.lines[1].median


def test_the_page_shows_the_newest_reports(bench: Any) -> None:
    """Of each kind and data plane; what is written around them stays short."""
    docs = ROOT / "docs"
    images = [Path(f"plots/{name}.svg") for name in ("rates", "round_trips", "peers")]
    page = (docs / "benchmarks.md").read_text("utf-8")
    figures = bench.page.render(bench.page.newest(docs / "data" / "benchmarks"), images)
    assert figures in page
    assert len(page.replace(figures, "").splitlines()) <= 180


@pytest.mark.slow
def test_one_socket_turns_to_ten_peers() -> None:
    code, out, err = run(
        "run.py", "--quick", "--rounds", "1", "--only", "urds_1,urds_10,peers_asked,peers_runs"
    )
    assert code == 0, out + err
    tables = [part for part in out.split("\n\n") if "  urds, 1 peer " in part]
    assert len(tables) == 2
    for table in tables:
        assert "  urds, 10 peers " in table
        assert "no side spins" in table


def test_dask_over_both_protocols_is_compared(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a task has a goal from above, bytes a second from below; counts have none."""
    costs = importlib.import_module("dask_costs")
    monkeypatch.setattr(costs, "find_spec", lambda _: True)
    names = {"task", *(f"echo {size}" for size in costs._SIZES)}
    names |= {
        f"{what} {n}" for what in ("shuffle", "connections", "descriptors") for n in costs._WORKERS
    }
    monkeypatch.setattr(
        costs, "_run", lambda scheme, _: dict.fromkeys(names, 150 if scheme == "rds" else 100)
    )
    tables, failed = costs.measure(2, limit_s=1)
    assert not failed and all(len(line.rounds) == 2 for table in tables for line in table.lines)
    verdicts = {table.title: table.lines[1].goal for table in tables}
    assert verdicts["Dask, a task there and back, 2 workers"] == "<= 1.2: missed"
    assert verdicts["Dask, a comm's echoes of 1 MiB"] == ">= 1: missed"
    assert verdicts["Dask, all to all of 8 workers, TCP connections at peak"] == ""
    assert "rds://" in bench.tables.render(tables[0])


def test_dask_that_is_not_installed_has_rows_that_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHES))
    costs = importlib.import_module("dask_costs")
    monkeypatch.setattr(costs, "find_spec", lambda _: None)
    tables, failed = costs.measure(1, limit_s=1)
    assert not failed
    assert {line.problem for table in tables for line in table.lines} == {
        "distributed is not installed"
    }


@pytest.mark.slow
def test_tasks_of_asyncio_are_measured() -> None:
    code, out, err = run(
        "run.py", "--quick", "--rounds", "1", "--only", "urds_asyncio,asyncio_streams,loop_one_way"
    )
    assert code == 0, out + err
    assert "  urds, asyncio " in out
    assert "  asyncio streams " in out


def test_without_shm_streams_their_rows_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the line above the table does not say that no side spins."""
    monkeypatch.setenv("URDS_IMPL", "python")
    code, out, err = run("run.py", "--quick", "--rounds", "1", "--only", "urds_node,node_one_way")
    assert code == 0, out + err
    assert out.count("a node needs the compiled plane") == 3
    chosen = "urds_memory,urds_memory_spins,seqpacket_spins,memory_round_trip"
    code, out, err = run("run.py", "--quick", "--rounds", "1", "--only", chosen)
    assert code == 0, out + err
    assert out.count("the Python plane has no shared memory") == 2
    assert "what spins says so" in out
    assert "no side spins" not in out


@pytest.mark.slow
@pytest.mark.skipif(planes.in_use() != NATIVE, reason="shm streams are of the compiled plane")
def test_shm_streams_are_measured_beside_the_ways_of_others(bench: Any, tmp_path: Path) -> None:
    code, out, err = run(
        "run.py", "--quick", "--rounds", "1", "--sizes", "64", "--json", str(tmp_path / "out.json"),
        "--only", "urds_memory,urds_memory_spins,seqpacket,memory_one_way,memory_round_trip",
    )  # fmt: skip
    assert code == 0, out + err
    tables = bench.results.Report.read(tmp_path / "out.json").tables
    names = [line.name for table in tables for line in table.lines if line.median]
    assert names.count("urds_memory") == names.count("seqpacket") == 2
    assert "urds_memory_spins" in names


@pytest.mark.slow
@pytest.mark.skipif(planes.in_use() != NATIVE, reason="nodes are of the compiled plane")
def test_programs_at_nodes_are_measured_and_their_wake_ups_counted(
    bench: Any, tmp_path: Path
) -> None:
    """The nodes are gone at the end of the run; their work is in the figures."""
    code, out, err = run(
        "run.py", "--quick", "--rounds", "1", "--sizes", "64", "--json", str(tmp_path / "out.json"),
        "--only", "urds_node,urds_two_nodes,seqpacket,node_one_way,node_round_trip",
    )  # fmt: skip
    assert code == 0, out + err
    tables = bench.results.Report.read(tmp_path / "out.json").tables
    asked = {line.name: line for line in tables[-1].lines}
    assert len(tables) == 3 and all(line.median for table in tables for line in table.lines)
    # Through a node a message has twice as many hops as without, through two nodes three times.
    wake_ups = [asked[name].wake_ups for name in ("seqpacket", "urds_node", "urds_two_nodes")]
    assert 0 < wake_ups[0] < wake_ups[1] < wake_ups[2]
    assert asked["urds_node"].cpu_ns > asked["seqpacket"].cpu_ns
    assert " wake-ups " in out


def test_what_other_processes_used_is_counted(bench: Any) -> None:
    """Sleeps and processor time of a process that does a known number of things."""
    usage = importlib.import_module("usage")
    work = "time.sleep(0.001); sum(range(100000)); print(flush=True)"
    code = f"import sys, time\nfor _ in sys.stdin: {work}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        orders, answers = process.stdin, process.stdout
        assert orders is not None and answers is not None

        def do_one() -> None:
            orders.write(b"\n")
            orders.flush()
            answers.readline()

        do_one()
        before = usage.of([process.pid])
        for _ in range(20):
            do_one()
        after = usage.of([process.pid])
        orders.close()
    assert after.wake_ups - before.wake_ups >= 20
    assert after.cpu_ns > before.cpu_ns
    assert usage.of([process.pid]) == usage.Usage(0, 0), "it has ended"


def test_help_has_examples_and_exit_codes() -> None:
    code, out, _ = run("run.py", "--help")
    assert code == 0
    assert "examples:\n" in out
    assert "exit codes:" in out


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("run.py", ["--only", "urds,carrier_pigeon"]),
        ("run.py", ["--sizes", "0"]),
        ("run.py", ["--rounds", "51"]),
        ("page.py", ["absent.json"]),
        ("page.py", [str(ROOT / "pyproject.toml")]),
    ],
)
def test_what_is_wrong_is_said(program: str, options: list[str]) -> None:
    code, out, err = run(program, *options)
    assert code == 2, out + err
    assert "Traceback" not in err
    assert err


def test_control_c_ends_a_run_and_its_processes() -> None:
    """The pipe closes when the last process that could write to it has ended."""
    with start("run.py", "--only", "urds,one_way", "--sizes", "64") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=RUN_S_MAX)
    assert process.returncode == 130
    assert err == "interrupted; all processes are ended\n"


def test_control_c_does_not_cut_the_start_of_a_process(bench: Any) -> None:
    """It comes when the process is known, so that it is ended with the others."""
    reached = []

    def start() -> None:
        with bench.pair.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            reached.append(signal.SIGINT in signal.sigpending())

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached == [True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_laboratory_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("KERNEL", "6.1")
    code, out, err = run("interop.py", "--quick")
    assert (code, out) == (3, "")
    assert err.startswith("the lab needs ")


class Fake:
    """A pair that answers as it is told, and writes down that it was asked."""

    note = ""

    def __init__(self, bench: Any, name: str, asked: list[str], *, fails_at: int = 99) -> None:
        self._bench, self._name, self._asked, self._fails_at = bench, name, asked, fails_at
        self._count = 0

    def measure(self, count: int) -> object:
        self._asked.append(self._name)
        self._count += 1
        if self._count == self._fails_at:
            raise self._bench.pair.PairError("broke off")
        return self._bench.pair.Sample(messages=count, elapsed_ns=count * 1000, cpu_ns=1)

    def close(self) -> None:
        self._asked.append(f"end of {self._name}")


def test_rounds_are_interleaved_and_a_failure_takes_its_figures(bench: Any) -> None:
    """Each round begins with another peer; who fails is closed, and the others go on."""
    asked: list[str] = []
    work = bench.works.Work(bench.works.Kind.ONE_WAY, 64)
    rows = {name: bench.measuring.Row(name, name) for name in ("urds", "b", "dealer_router")}

    def open_fake(name: str) -> AbstractContextManager[Any]:
        # A calibration asks once: a thousandth of a millisecond each fills the target time.
        return nullcontext(Fake(bench, name, asked, fails_at=3 if name == "b" else 99))

    openers = {name: lambda name=name: open_fake(name) for name in rows}
    pace = bench.measuring.Pace(rounds=3, target_s=400e-6, limit_s=1.0)
    bench.measuring.measure(work, rows, openers, pace)
    assert asked[3:6] == ["urds", "b", "dealer_router"]
    assert asked[6:8] == ["b", "end of b"]
    assert asked[8:] == ["dealer_router", "urds", "urds", "dealer_router"]
    table = bench.measuring.tabulate(work, rows, bench.works.goals_for(work), "python")
    text = bench.tables.render(table)
    assert "  b                     broke off" in text
    assert ">= 1: reached, native: >= 14" in text


@pytest.mark.parametrize(("ratio", "reached"), [(1.29, True), (1.31, False)])
def test_a_time_keeps_to_its_bound_from_below(bench: Any, ratio: float, reached: bool) -> None:
    """A thousand peers are judged by what they cost beside one."""
    work = bench.works.Work(bench.works.Kind.PEERS_ASKED, 64)
    rows = {}
    for name, elapsed_ns in (("urds_1", 1000), ("urds_1000", int(1000 * ratio))):
        rows[name] = bench.measuring.Row(name, name)
        rows[name].samples.append(bench.pair.Sample(1, elapsed_ns, 1, elapsed_ns, elapsed_ns))
    table = bench.measuring.tabulate(work, rows, bench.works.goals_for(work), "python")
    (verdict,) = table.lines[0].verdicts
    assert (verdict.at_most, verdict.bound, verdict.reached) == (True, 1.3, reached)


@pytest.mark.parametrize(("receiver_ns", "sender_ns"), [(900, 400), (100, 900)])
def test_a_stream_is_as_fast_as_its_slower_side(
    bench: Any, receiver_ns: int, sender_ns: int
) -> None:
    """A receiver that began late emptied its queue faster than any sender could send."""
    order = bench.pair.Order(10, bench.pair.window_for(bench.works.Kind.ONE_WAY, 10))
    answers = [bench.pair.Answer(elapsed_ns, 50) for elapsed_ns in (receiver_ns, sender_ns)]
    sample = bench.pair.sample_of(bench.works.Kind.ONE_WAY, order, answers)
    assert (sample.messages, sample.elapsed_ns, sample.cpu_ns) == (9, 900, 10)


@pytest.mark.parametrize(("ratio", "reached"), [(1.99, True), (2.01, False)])
def test_a_rate_beside_a_computing_thread_is_judged(
    bench: Any, monkeypatch: pytest.MonkeyPatch, ratio: float, reached: bool
) -> None:
    """The rate may halve; a round trip has no goal, and neither has the other plane."""
    fairness, kind = importlib.import_module("fairness"), bench.works.Kind
    monkeypatch.setattr(fairness, "plane", lambda: NATIVE)
    (verdict,) = fairness._verdicts(kind.ONE_WAY, ratio)
    assert (verdict.at_most, verdict.bound, verdict.reached) == (True, 2, reached)
    assert fairness._verdicts(kind.ROUND_TRIP, ratio) == ()
    monkeypatch.setattr(fairness, "plane", lambda: PYTHON)
    (verdict,) = fairness._verdicts(kind.ONE_WAY, ratio)
    assert verdict.reached is None


def test_every_goal_names_a_peer_of_its_work(bench: Any) -> None:
    """A goal beside a peer that is not measured there would never be judged."""
    by_name = importlib.import_module("peers").BY_NAME
    for work in bench.works.works(None):
        names = {name for name, peer in by_name.items() if peer.fits(work.kind, work.payload_bytes)}
        assert work.subject in names
        assert {goal.peer for goal in bench.works.goals_for(work)} <= names, work.title


def test_a_pool_of_workers_is_measured_over_what_is_installed() -> None:
    code, out, err = run("pool.py", "--workers", "2", "--jobs", "6", "--rounds", "1")
    assert code == 0, out + err
    head, *rows = out.splitlines()
    assert head.startswith("2 workers, 6 jobs, processor time")
    python = next(row for row in rows if row.startswith("urds, python plane"))
    assert " s (" in python and "a worker " in python
    assert len(rows) == 3, "each contender has a row, with figures or a reason"


def test_a_pool_of_no_workers_is_refused() -> None:
    code, _, err = run("pool.py", "--workers", "0")
    assert code == 2
    assert "give 1 to 250 workers" in err
