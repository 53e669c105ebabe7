"""The page of interop results says what the kept results say, and knows how to say the bad."""

import json
from typing import Any

import pytest

from tools import interop_page
from tools.interop_page import Case, Run, page

CLEAN: dict[str, Any] = {
    "messages": 20_000,
    "resets": 700,
    "to_us": [0, 0, 0],
    "to_kernel": [0, 0, 0],
}
KERNELS_LOSS: dict[str, Any] = {
    **CLEAN,
    "to_us_by_kernel": [1, 0, 0],
    "to_us_evidence": ["message 7: connection 3: sequence 107 40 of 100 bytes"],
}


def run_with(*cases: Case) -> interop_page.Runs:
    """Return results in which one kernel of three has run."""
    run = Run("6.1", "6.1.0-56-amd64", "0123456789ab", "2026-11-21 12:00 UTC", 61, cases)
    return {"6.1": run, "6.12": None, "7": None}


def case(outcome: str = "passed", name: str = "lower", **counts: Any) -> Case:
    return Case("test_resets.py::test_many_each_way", name, outcome, counts)


def row(text: str, title: str) -> str:
    """Return the one line of a table that begins with `title`."""
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {title}")]
    return found


def test_the_page_says_what_the_results_say() -> None:
    """Results that are new need `make docs`."""
    assert interop_page.PAGE.read_text(encoding="utf-8") == page(interop_page.read())


def test_the_results_are_of_three_kernels() -> None:
    runs = interop_page.read()
    releases = {series: run.release for series, run in runs.items() if run}
    assert releases.keys() == set(interop_page.SERIES)
    for series, release in releases.items():
        assert release.startswith(f"{series}.")


def test_a_clean_run_is_told_in_numbers() -> None:
    text = page(run_with(case(**CLEAN)))
    told = "20,000 messages, 700 resets<br>to us 0/0/0, to the kernel 0/0/0"
    assert (
        row(text, "Many each way: lower")
        == f"| Many each way: lower | {told} | not run | not run |"
    )
    assert "\n- Nothing.\n" in text


def test_a_kernels_own_loss_is_told_apart_with_its_evidence() -> None:
    text = page(run_with(case(name="lower-we-are-told", **KERNELS_LOSS)))
    assert "to us 0/0/0 + 1/0/0," in row(text, "Many each way: lower, we are told")
    assert "    - message 7: connection 3: sequence 107 40 of 100 bytes\n" in text
    assert "- Nothing." not in text


def test_messages_may_meet_no_resets() -> None:
    counts: dict[str, Any] = {"messages": 80, "to_us": [0, 0, 0], "to_kernel": [0, 0, 0]}
    told = row(page(run_with(case(**counts))), "Many each way: lower")
    assert "| 80 messages<br>to us 0/0/0, to the kernel 0/0/0 |" in told


def test_a_failure_is_not_hidden() -> None:
    counts = {**CLEAN, "to_us": [2, 0, 0]}
    text = page(run_with(case("failed", **counts), case("passed", "higher", **CLEAN)))
    assert "**failed** 20,000 messages" in row(text, "Many each way: lower")
    assert "| **1 of 2** |" in row(text, "Many each way |")
    assert "| 1 passed, 1 failed |" in row(text, "tests")


def test_a_failure_before_anything_was_counted_is_told() -> None:
    text = page(run_with(case("failed"), case("passed", "higher", **CLEAN)))
    assert "| **1 of 2** |" in row(text, "Many each way |")


def test_two_kernels_that_lose_between_them_are_told() -> None:
    counts = {"messages": 80, "between_kernels": [3, 1]}
    text = page(run_with(Case("test_multipath.py::test_two_kernels", "", "passed", counts)))
    assert "- 6.1: two kernels lost 3 and doubled 1 of 80 messages between them" in text


def test_a_whole_run_renews_its_own_column_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATA", "REPORTS"):
        monkeypatch.setattr(interop_page, name, tmp_path / name)
        (tmp_path / name).mkdir()
    monkeypatch.setattr(interop_page, "PAGE", tmp_path / "interop.md")
    result = {"release": "r", "commit": "c", "date": "d", "seconds": 1, "cases": []}
    kept, renewed = ({"series": "6.1", **result}, {"series": "7", **result})
    (tmp_path / "DATA" / "interop-6.1.json").write_text(json.dumps(kept))
    (tmp_path / "REPORTS" / "interop-7.json").write_text(json.dumps(renewed))
    (tmp_path / "REPORTS" / "interop-6.12-short.json").write_text(json.dumps(renewed))
    assert interop_page.main() == 0
    there = sorted(path.name for path in (tmp_path / "DATA").iterdir())
    assert there == ["interop-6.1.json", "interop-7.json"]
    assert (tmp_path / "interop.md").read_text() == page(interop_page.read())
