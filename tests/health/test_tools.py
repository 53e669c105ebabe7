"""The tools behind the make targets: what they count, and what they say where something lacks."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.order import begin_with_long_files
from tools import environment, rules, summary
from tools.rules import Results, Rule, state
from tools.summary import Counts

JUNIT = """<testsuites><testsuite>
<testcase name="a"/>
<testcase name="b"><failure/></testcase>
<testcase name="c"><error/><skipped/></testcase>
<testcase name="d"><skipped/></testcase>
</testsuite></testsuites>"""


def run_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, list[str]]:
    """Return the exit code and the lines printed."""
    monkeypatch.setattr(sys, "argv", ["summary.py", *arguments])
    code = summary.main()
    return code, capsys.readouterr().out.splitlines()


def test_a_case_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(JUNIT)
    assert summary.read(tmp_path / "a.xml") == Counts(passed=1, failed=2, skipped=1)


def test_a_test_tried_twice_counts_once_by_its_last_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entries are those that pytest-rerunfailures leaves: a first try has no child.

    `e` failed and then failed to clean up; it was tried once.
    """
    (tmp_path / "a.xml").write_text(
        """<testsuites><testsuite>
<testcase classname="t" name="a"/><testcase classname="t" name="a"/>
<testcase classname="t" name="b"/><testcase classname="t" name="b"><failure/></testcase>
<testcase classname="t" name="c"/><testcase classname="u" name="c"/>
<testcase classname="t" name="d"/><testcase classname="t" name="d"><failure/></testcase>
<testcase classname="t" name="d"><error/></testcase>
<testcase classname="t" name="e"><failure/></testcase>
<testcase classname="t" name="e"><error/></testcase>
</testsuite></testsuites>"""
    )
    code, lines = run_summary(monkeypatch, capsys, str(tmp_path / "a.xml"))
    assert code == 0
    assert lines[-2:] == ["tried twice: 3 (t.a, t.b, t.d)", "3 passed, 3 failed, 0 skipped"]


def test_the_last_line_is_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.xml", "b.xml"):
        (tmp_path / name).write_text(JUNIT)
    files = [str(tmp_path / name) for name in ("a.xml", "b.xml")]
    code, lines = run_summary(monkeypatch, capsys, *files)
    assert (code, lines[-1]) == (0, "2 passed, 4 failed, 2 skipped")


@pytest.mark.parametrize(
    "junit", [JUNIT, "<testsuites/>", "<testcase><skipped/></testcase>", "", None]
)
def test_a_run_that_must_be_whole_and_is_not(
    junit: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A skip, no test at all, a broken file and no file are failures, and still counted."""
    if junit is not None:
        (tmp_path / "interop.xml").write_text(junit)
    code, lines = run_summary(monkeypatch, capsys, "--ran", str(tmp_path / "interop.xml"))
    assert code == 1
    assert lines[-1].endswith("skipped")


def test_without_ensurepip_one_line_names_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ensurepip" else find(name)
    )
    monkeypatch.setattr(sys, "argv", ["environment.py", "--at", str(tmp_path / "venv"), "demo"])
    assert environment.main() == environment.NO_VENV
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "python3-venv" in lines[0]


def test_ctrl_c_while_packages_come_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "_install", interrupt)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(sys, "argv", ["environment.py", "--at", str(tmp_path / "v"), "build"])
    assert environment.main() == 130


def test_a_rule_is_as_good_as_its_worst_case() -> None:
    results = Results()
    for test, outcome in [
        ("t.py::a[1]", "passed"),
        ("t.py::a[2]", "failed"),
        ("t.py::b", "passed"),
    ]:
        results.add(test, ["rule"], outcome)
    assert results.tests == {"rule": {"t.py::a": "failed", "t.py::b": "passed"}}


@pytest.mark.parametrize(
    ("outcomes", "wanted"),
    [
        ([], "not done"),
        (["not run"], "not run"),
        (["not run", "skipped"], "skipped"),
        (["not run", "skipped", "passed"], "passed"),
        (["passed", "failed", "skipped"], "failed"),
    ],
)
def test_a_rule_has_passed_if_a_test_passed_and_none_failed(
    outcomes: list[str], wanted: str
) -> None:
    tests = {f"t.py::{number}": outcome for number, outcome in enumerate(outcomes)}
    assert state(Rule("rule", "Section", "Says something."), {"rule": tests}) == wanted


def test_only_tests_that_carry_the_marker_show_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result from before a marker went is not told any more; a marked test always is."""
    file = tmp_path / "tests" / "test_it.py"
    file.parent.mkdir()
    file.write_text(
        '@pytest.mark.rule("one", "two")\ndef test_a(): ...\n'
        'class TestB:\n    @pytest.mark.rule("two")\n    def test_b(self): ...\n'
    )
    kept = {"tests/test_it.py::test_a": "passed", "tests/test_it.py::test_unmarked": "passed"}
    results = tmp_path / "rules.json"
    results.write_text(json.dumps({"one": kept, "gone": kept}))
    monkeypatch.setattr(rules, "ROOT", tmp_path)
    monkeypatch.setattr(rules, "RESULTS", results)
    assert rules.shown() == {
        "one": {"tests/test_it.py::test_a": "passed"},
        "two": {
            "tests/test_it.py::test_a": "not run",
            "tests/test_it.py::TestB::test_b": "not run",
        },
    }


def test_a_target_keeps_the_exit_code_of_its_command() -> None:
    """Also prints the budget, in the words that a reader of the log looks for."""
    timed = [sys.executable, "tools/timed.py", "--name", "check", "--budget-s", "60", "--"]
    command = [*timed, sys.executable, "-c", "raise SystemExit(7)"]
    root = Path(environment.__file__).resolve().parents[1]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    assert (done.returncode, done.stdout) == (7, "check: 0 s of 60 s\n")


def test_workers_begin_with_long_files() -> None:
    class Item:
        def __init__(self, name: str, *, is_slow: bool = False) -> None:
            self.path, self._is_slow = Path(name), is_slow

        def get_closest_marker(self, name: str) -> object:
            return name if self._is_slow and name == "slow" else None

    items: list[Any] = [Item("few"), Item("many"), Item("many"), Item("long", is_slow=True)]
    items += [Item("many"), Item("long")]
    begin_with_long_files(items)
    assert [item.path.name for item in items] == ["long", "long", "many", "many", "many", "few"]
