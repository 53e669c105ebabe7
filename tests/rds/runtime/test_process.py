"""The state of a process: settings from Python, one backend, a fresh one after a fork."""

import os
import subprocess
import sys
from typing import cast

import pytest

from tests.rds.sockets.fake_backend import FakeBackend
from urds.common.errors import SettingError
from urds.rds.runtime.backend import Backend
from urds.rds.runtime.process import Process
from urds.rds.settings import Settings


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Process:
    """Return a process without settings of the environment."""
    for name in ("URDS_CONFIG", "URDS_NODE", "URDS_NPATHS"):
        monkeypatch.delenv(name, raising=False)
    return Process()


def test_values_add_up_and_later_ones_win(fresh: Process) -> None:
    fresh.configure({"npaths": 2, "keepalive_count": 3})
    settings = fresh.configure({"npaths": 4})
    assert (settings.npaths, settings.keepalive_count) == (4, 3)
    assert fresh.settings() is settings


def test_a_refused_value_changes_nothing(fresh: Process) -> None:
    fresh.configure({"npaths": 2})
    with pytest.raises(SettingError):
        fresh.configure({"npaths": 3, "keepalive_count": 9})
    assert (fresh.settings().npaths, fresh.settings().keepalive_count) == (2, 5)


def test_the_environment_is_below_python(fresh: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URDS_NPATHS", "8")
    assert Process().settings().npaths == 8
    assert fresh.configure({"npaths": 1}).npaths == 1


def test_settings_are_fixed_with_the_backend(fresh: Process) -> None:
    backend = cast("Backend", FakeBackend(Settings(npaths=2)))
    assert fresh.use(backend) is None
    assert fresh.backend() is backend
    assert fresh.settings().npaths == 2
    with pytest.raises(SettingError, match="npaths: settings are fixed"):
        fresh.configure({"npaths": 4})
    assert fresh.use(None) is backend
    assert fresh.configure({"npaths": 4}).npaths == 4


def test_a_child_keeps_the_settings_and_nothing_else(fresh: Process) -> None:
    fresh.use(cast("Backend", FakeBackend(Settings(npaths=2))))
    fresh._lock.acquire()  # as if another thread of the parent held it; private on purpose
    fresh.after_fork_in_child()
    assert fresh.settings().npaths == 2
    assert fresh.connected == {}
    assert fresh.configure({"keepalive_count": 2}).keepalive_count == 2


BINDS_TWICE = """
import logging, time, urds
from urds.rds.runtime.process import process
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
urds.configure(idle_s=0)
for number in range(2):
    with urds.Socket() as sock:
        sock.bind(("127.93.11.7", 0))
    while process._backend is not None:  # the test's own: the second bind makes another backend
        time.sleep(0.01)
"""


def test_a_variable_that_nothing_reads_is_logged_once() -> None:
    """At the first bind; those of tunables and of the program itself are no news."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("URDS_")}
    given = {"URDS_MAX_MESSAGE_SIZE": "1", "URDS_NPATHS": "2", "URDS_IMPL": "python"}
    done = subprocess.run(
        [sys.executable, "-c", BINDS_TWICE], check=True, capture_output=True, text=True,
        env={**kept, **given}, timeout=60,
    )  # fmt: skip
    line = "WARNING urds variable URDS_MAX_MESSAGE_SIZE: no such setting, ignored\n"
    assert done.stderr == line
