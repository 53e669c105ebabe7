"""A part of the suite that is ended at its limit: when that is a failure."""

import sys
import time
from pathlib import Path

import pytest

from tools import suite
from tools.suite import NATIVE, Part

REPORT = '<testsuites><testsuite name="pytest" errors="0" failures="{}"/></testsuites>'
# Writes what it is given where pytest would, then goes on until it is interrupted.
FAKE = """import pathlib, sys, time
path = next(one for one in sys.argv if one.startswith("--junitxml=")).partition("=")[2]
text = sys.argv[1]
pathlib.Path(path).write_text(text) if text else None
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(suite, "REPORTS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("may_be_cut", "text", "code"),
    [
        (False, REPORT.format(0), 1),
        (True, REPORT.format(0), 0),
        (True, REPORT.format(1), 1),
        (True, "", 1),  # not even a report
    ],
)
def test_an_end_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, may_be_cut: bool, text: str, code: int
) -> None:
    monkeypatch.setattr(suite, "COLLECTION_S", 0)
    part = Part("one", NATIVE, limit_s=1, workers=0, may_be_cut=may_be_cut)
    end_s = time.monotonic() + 60
    assert suite.run(part, [sys.executable, "-c", FAKE, text], end_s) == code


def test_more_of_the_same_is_left_out_where_no_time_is_left(reports: Path) -> None:
    part = Part("one", NATIVE, may_be_cut=True)
    assert suite.run(part, ["no-such-program"], time.monotonic() + 1) == 0
    assert not list(reports.iterdir())
