"""`urds rsocket bench`, run as it is run by hand; no figure is judged."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import EXTRAS, ROOT, RUN_S_MAX, environment, interrupt, urds
from urds.cli.rsocket.bench_works.breakdown import ROWS, STUDY
from urds.cli.rsocket.bench_works.curve import SIZES, below
from urds.cli.rsocket.bench_works.probes import COPYING
from urds.cli.rsocket.bench_works.study import least

BENCH = ("rsocket", "bench")
SHORT = ("--seconds", "0.01")


def bench(*arguments: str) -> dict[str, object]:
    done = urds(*BENCH, *arguments, *SHORT, "--json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, object] = json.loads(done.out)
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_rr_and_stream_stand_beside_the_kernel(extra: str) -> None:
    done = urds(*BENCH, "--size", "64", *SHORT, extra=extra)
    assert (done.code, done.err) == (0, "")
    conditions, tables = done.out.split("TCP_RR: ")
    assert "\ncache line " in conditions and "\nwhat spins " in conditions
    rr, stream = tables.split("\n\nafterwards ")[0].split("TCP_STREAM: ")
    for table in (rr, stream):
        ways = [
            line.split()[0] for line in table.splitlines() if line.endswith(tuple("0123456789"))
        ]
        assert ways == ["kernel", "shm0", "tcp0"]
        assert "x kernel" in table


def test_figures_are_of_what_was_asked_for() -> None:
    found = bench("rr", "--size", "8", "--device", "shm")
    rows = found["rr"]
    assert isinstance(rows, list)
    assert [(row["way"], row["size_bytes"]) for row in rows] == [("kernel", 8), ("shm0", 8)]
    assert all(row["per_s"] > 0 and row["median_us"] <= row["p99_us"] for row in rows)


def test_the_conditions_stand_above_the_figures() -> None:
    processor = min(os.sched_getaffinity(0))
    place = f"{processor},{processor}"
    found = bench("rr", "--size", "8", "--device", "shm", "--place", place, "--polling", "0")
    conditions = found["conditions"]
    assert isinstance(conditions, dict)
    assert conditions["processors"] == [processor, processor]
    assert (conditions["polling_us"], conditions["floor_ns"]) == (0, None)
    assert conditions["floor_problem"] == "both ends are on one processor"
    assert conditions["spins"] == "no rsocket; the kernel's TCP sleeps"
    assert conditions["after"]["load"] >= 0
    assert all(rate > 0 for rate in conditions["copy_gb_per_s"].values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rr", "--place", "0"), "--place 0: must be two of"),
        (("rr", "--place", "0,9999"), "must be two of"),
        (("connections", "--polling", "5"), "are for rr, stream, curve and study"),
    ],
)
def test_conditions_that_cannot_be_are_refused(arguments: tuple[str, ...], words: str) -> None:
    done = urds(*BENCH, *arguments)
    assert done.code != 0
    assert words in done.err


@pytest.mark.parametrize("device", ["shm", "tcp"])
def test_the_curve_counts_copies_and_wake_ups(device: str) -> None:
    found = bench("curve", "--device", device, "--size", "1", "--size", "200000")
    curves = found["curve"]
    assert isinstance(curves, dict)
    assert list(curves) == ["kernel", f"{device}0"]
    small, large = curves[f"{device}0"]["rows"]
    assert (small["size_bytes"], large["size_bytes"]) == (1, 200_000)
    # Each byte is copied at least once; over shm0 that is all in user space.
    assert large["copies"] >= 0.99 if device == "shm" else large["copies"] > 0
    assert large["sleeps_per_mib"] >= 0


def test_a_point_below_a_smaller_size_is_found() -> None:
    rates = {64: 1.0, 128: 2.0, 256: 1.9, 512: 1.0, 1024: 2.5}
    rows = [{"size_bytes": size, "gb_per_s_max": rate} for size, rate in rates.items()]
    found = [(one["size_bytes"], one["of_size_bytes"], one["is_dip"]) for one in below(rows)]
    assert found == [(256, 128, False), (512, 128, True)]


def test_the_curve_goes_from_one_byte_to_16_mib_and_around_64_kib() -> None:
    assert (SIZES[0], SIZES[-1]) == (1, 16 << 20)
    assert {49_152, 65_536, 65_537, 98_304, 131_072} < set(SIZES)


def test_the_breakdown_is_beside_the_studys() -> None:
    found = bench("--breakdown", "--device", "shm", "--size", "1024")
    part = found["breakdown"]
    assert isinstance(part, dict)
    [column] = part["devices"]["shm0"]
    assert list(column["percent"]) == list(ROWS) == list(STUDY)
    assert sum(column["percent"].values()) == pytest.approx(100)
    assert sum(column["parts_percent"].values()) == pytest.approx(100)
    for side in ("client", "server"):
        assert set(column["per_message"][side]) == {"locks", "fences", "clocks", "engine"}
    assert column["per_message"]["client"]["locks"] > 0
    assert "getrusage" in part["method"]


def test_what_a_lock_and_a_clock_cost_is_measured_without_their_counting() -> None:
    text = (
        "from urds.cli.rsocket.bench_works import probes; probes.count_locks_and_clocks();"
        "probe = probes.probe_of('counts'); probe.start(); probes.costs([]); probe.stop();"
        "found = probe.found(); print(found['locks'], found['clocks'] < 1000)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", text], check=True, capture_output=True, text=True,
        env=environment(), timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "True"]


@pytest.mark.slow
def test_the_study_has_its_problems_in_a_table_of_markdown() -> None:
    done = urds(*BENCH, "study", "20", "--device", "shm", *SHORT)
    assert (done.code, done.err) == (0, "")
    head, rule, *rows = [line for line in done.out.splitlines() if line.startswith("|")]
    titles = [cell.strip() for cell in head.split("|")[1:-1]]
    assert titles == ["", "study", "kernel", "shm0", "goal"]
    assert rule == "|---|---|---|---|---|"
    assert {row.count("|") for row in rows} == {len(titles) + 1}
    names = [row.split("|")[1].strip() for row in rows]
    assert [name[:2] for name in names if name[1:2] == "."] == ["1.", "2.", "3.", "4."]
    assert "20 connections" in "".join(names)


def test_the_least_of_a_curve_is_of_the_best_smaller_size() -> None:
    rates = {1: 1.0, 2: 4.0, 4: 3.0, 8: 2.0, 16: 8.0, 8 << 20: 0.1}
    assert least({size: {"gb_per_s": rate} for size, rate in rates.items()}) == 0.5


def test_the_studys_columns_are_whole() -> None:
    for index in range(3):
        assert sum(shares[index] for shares in STUDY.values()) == pytest.approx(100, abs=0.5)


@pytest.mark.parametrize(("file", "name"), COPYING)
def test_a_function_that_the_copies_are_counted_in_exists(file: str, name: str) -> None:
    """Its argument, too: the last name in the reader is one of the function's."""
    [path] = [path for path in (ROOT / "src").rglob("*.py") if path.as_posix().endswith(file)]
    functions = {
        node.name: {argument.arg for argument in node.args.args}
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert functions[name] & {"part", "byte_count", "data", "packet"}


@pytest.mark.parametrize("device", ["shm", "tcp"])
def test_connections_leave_nothing(device: str) -> None:
    found = bench("connections", "20", "--device", device)
    rows = found["connections"]
    assert isinstance(rows, list)
    assert [row["way"] for row in rows] == ["kernel", f"{device}0"]
    for row in rows:
        assert row["connections"] == 20
        assert row["echoes_per_s"] > 0
        assert row["left"]["server"]["connections"] == 0
        assert row["left"]["client"]["descriptors"] <= 0


def test_ctrl_c_ends_all_processes() -> None:
    done = interrupt(*BENCH, "curve", "--device", "shm", after="kernel")
    assert (done.code, done.err) == (130, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), "nothing: must be one of rr, stream, curve, connections, study"),
        (("rr", "5"), "only connections and study have a count"),
        (("study", "--polling", "5"), "study has its own sizes"),
        (("connections", "0"), "N 0: must be from 1"),
        (("--size", "0"), "--size 0: must be from 1 to"),
        (("--seconds", "0"), "--seconds 0.0: must be from"),
        (("--device", "nosuch"), "--device nosuch: there are"),
    ],
)
def test_what_cannot_be_is_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = urds(*BENCH, *arguments)
    assert done.code == 2
    assert words in done.err
