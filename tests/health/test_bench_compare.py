"""`make bench-compare`: its arithmetic, its options, and the program that it measures with."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.health.sources import ROOT

RUN_S_MAX = 60


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    """Load the program, which is of no package."""
    spec = importlib.util.spec_from_file_location("compare", ROOT / "benches" / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def run(program: str, *options: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "benches" / program), *options],
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **settings},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("base_ns", "tree_ns", "ratio", "spread", "is_worse"),
    [
        ([100, 100, 100], [102, 103, 102], 1.02, 0.5, False),  # 3 % are allowed
        ([100, 100, 100], [104, 104, 104], 1.04, 0.0, True),
        ([100, 100, 100], [50, 50, 50], 0.5, 0.0, False),  # better is not worse
        ([90, 100, 110], [105, 105, 105], 1.05, 10.0, False),  # less than what scatters
        ([100, 100, 100], [90, 105, 120], 1.05, 14.3, False),  # of either build
        ([90, 100, 110], [115, 115, 115], 1.15, 10.0, True),
        ([100, 100, 100, 100, 900], [101] * 5, 1.01, 0.0, False),  # one bad round decides nothing
        ([100], [104], 1.04, 0.0, True),
    ],
)
def test_a_row_is_worse_beyond_three_percent_and_its_spread(
    compare: Any,
    base_ns: list[float],
    tree_ns: list[float],
    ratio: float,
    spread: float,
    is_worse: bool,
) -> None:
    figures = compare.Figures(base_ns, tree_ns)
    assert figures.ratio == pytest.approx(ratio)
    assert figures.spread_percent == pytest.approx(spread, abs=0.05)
    assert figures.is_worse is is_worse


def test_a_line_of_the_worker_is_nanoseconds_per_message(compare: Any) -> None:
    assert compare.parsed('{"spent_ns": 3000, "messages": 4, "from": "/x"}\n') == 750.0


@pytest.mark.parametrize(
    "line", ["", "Traceback", "[]", "{}", '{"spent_ns": 1, "messages": 0}', '{"spent_ns": 1}']
)
def test_any_other_line_is_an_error(compare: Any, line: str) -> None:
    with pytest.raises(ValueError, match="the worker said"):
        compare.parsed(line)


def test_words_choose_rows(compare: Any) -> None:
    assert compare.chosen("") == list(compare.ROWS)
    assert {row.plane for row in compare.chosen("native")} == {"native"}
    assert [row.name for row in compare.chosen("verbs,dat")] == [
        "python/verbs_send_64",
        "python/dat_send_64",
        "python/dat_recv_query",
    ]
    with pytest.raises(ValueError, match="--only pigeon: no row has it; there are python/rds"):
        compare.chosen("pigeon")


def test_the_table_is_aligned_and_names_what_is_worse(compare: Any) -> None:
    measured = {
        "native/short": compare.Figures([1000.0] * 3, [1100.0] * 3),
        "python/a_longer_name": compare.Figures([12.0] * 3, [12.0] * 3),
    }
    assert compare.table(measured).splitlines() == [
        "row                   base ns  tree ns  ratio  spread",
        "native/short            1,000    1,100  1.100   0.0 %  WORSE",
        "python/a_longer_name       12       12  1.000   0.0 %",
        "1 of 2 rows worse (by more than 3 % and its spread)",
    ]


def test_builds_begin_in_turn(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(build: Any, row: Any) -> float:
        asked.append(build.label)
        return 1.0 if build.label == "base" else 2.0

    monkeypatch.setattr(compare, "measure", measure)
    pair = [compare.Build(label, Path(), Path()) for label in ("base", "tree")]
    measured = compare.compare(pair, compare.ROWS[:1], 2)
    assert asked == ["base", "tree", "tree", "base"]
    figures = measured[compare.ROWS[0].name]
    assert (figures.base_ns, figures.tree_ns) == ([1.0, 1.0], [2.0, 2.0])


def test_help_has_examples_and_exit_codes() -> None:
    done = run("compare.py", "--help")
    assert done.returncode == 0
    assert "make bench-compare BASE=main~5" in done.stdout
    assert "Exit codes: 0 no row is worse" in done.stdout


@pytest.mark.parametrize("options", [["--only", "pigeon"], ["--rounds", "0"]])
def test_a_wrong_option_is_an_error(options: list[str]) -> None:
    done = run("compare.py", "HEAD", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert options[0] in done.stderr


def test_every_row_has_a_work(compare: Any) -> None:
    assert {row.work for row in compare.ROWS} == set(_works())


@pytest.mark.slow
def test_each_work_measures_this_tree() -> None:
    """Judges no figure: any is right."""
    for work in _works():
        done = run("compare_worker.py", work, "20", URDS_IMPL="python")
        assert done.returncode == 0, f"{work}: {done.stderr}"
        answer = json.loads(done.stdout)
        assert answer["messages"] == 20
        assert answer["spent_ns"] > 0, work
        assert Path(answer["from"]) == ROOT / "src" / "urds" / "__init__.py"


def _works() -> list[str]:
    text = (ROOT / "benches" / "compare_worker.py").read_text("utf-8")
    table = text.split("WORKS: ", 1)[1].split("\n}", 1)[0]
    return [line.split('"')[1] for line in table.splitlines() if line.startswith('    "')]
