"""What an unknown peer can make us log."""

import logging
import subprocess
import sys

import pytest

from tests.support.clocks import give_time
from urds.common import logs
from urds.common.logs import LogLimit, LogQueue

SECOND = 1_000_000_000


def test_ten_lines_in_five_seconds() -> None:
    limit = LogLimit()
    assert [limit.admits(0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert limit.admits(5 * SECOND)
    assert limit.note() == " (2 more like this not shown)"
    assert limit.note() == ""


def test_a_part_has_a_logger_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    log = LogQueue()
    with caplog.at_level(logging.DEBUG, "urds"):
        log.part("control").info("up")
        log.warning("all")
        log.flush()
    assert [(one.name, one.getMessage()) for one in caplog.records] == [
        ("urds.control", "up"),
        ("urds", "all"),
    ]


@pytest.mark.parametrize("of_part", [logging.NOTSET, logging.DEBUG, logging.ERROR])
@pytest.mark.parametrize("of_all", [logging.NOTSET, logging.INFO, logging.WARNING])
@pytest.mark.parametrize("of_root", [logging.NOTSET, logging.INFO, logging.WARNING])
@pytest.mark.parametrize("disabled", [logging.NOTSET, logging.INFO])
def test_a_line_that_its_logger_would_drop_is_not_queued(
    caplog: pytest.LogCaptureFixture, of_part: int, of_all: int, of_root: int, disabled: int
) -> None:
    caplog.set_level(of_root)
    caplog.set_level(of_all, "urds")
    caplog.set_level(of_part, "urds.control")
    logging.disable(disabled)
    try:
        log = LogQueue().part("control")
        for level in (logging.DEBUG, logging.INFO):
            queued = log.put(level, "up")
            assert queued is logging.getLogger("urds.control").isEnabledFor(level)
        assert log.put(logging.WARNING, "lost")
        log.flush()
    finally:
        logging.disable(logging.NOTSET)


def test_equal_lines_are_shown_once_a_minute_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    give_time(monkeypatch, logs, monotonic_ns=lambda: now_ns)
    log = LogQueue()
    for second in range(0, 70, 2):
        now_ns = second * SECOND
        log.warning_once("%s refused", "one")
        log.flush()
    log.warning_once("%s refused", "another")
    log.flush()
    assert caplog.messages == [
        "one refused",
        "one refused (29 more like this not shown)",
        "another refused",
    ]


def test_equal_lines_of_many_peers_are_remembered_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("urds.common.logs._EQUAL_MAX", 2)
    log = LogQueue()
    for peer in (1, 2, 3, 3, 1):  # the third made the first be forgotten
        log.warning_once("%d refused", peer)
    log.flush()
    assert caplog.messages == ["1 refused", "2 refused", "3 refused", "1 refused"]


def test_lines_that_are_not_shown_import_no_logging() -> None:
    """As `logging` shows warnings where nothing is set up; a program that has it sees the rest."""
    program = """
import sys
from urds.common.logs import LogQueue
log = LogQueue()
log.info("up")
log.debug("an attempt")
log.flush()
assert "logging" not in sys.modules
log.warning("lost")
log.flush()
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
log.info("up again")
log.flush()
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (run.stderr, run.stdout) == ("lost\n", "INFO:urds:up again\n")


def test_without_a_descriptor_to_load_logging_a_line_names_the_fault() -> None:
    program = """
import sys
sys.modules["logging"] = None  # importing it fails
from urds.common.logs import LogQueue
log = LogQueue()
log.warning("100 % lost")
log.error("a fault of %s", "ours", problem=ValueError("7 of 6"))
log.flush()
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert run.stderr == "100 % lost\na fault of ours: ValueError('7 of 6')\n"
