"""A node that a program starts because there is none: `start.ensure`."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rds.node.conftest import ROOT, WAIT_S, environment
from urds.common.errors import PlaneError
from urds.rds.node import commands, start
from urds.rds.runtime import places

PROGRAM = [sys.executable, "-P", "-m", "tests.rds.node.program"]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have nodes with a stand-in started, and this user's place in the test's folder."""
    import json

    def command(options: start.StartOptions) -> list[str]:
        return [*PROGRAM, json.dumps({"place": options.place, "idle_exit_s": 0.5})]

    monkeypatch.setattr(start, "_command", command)
    monkeypatch.setattr(start, "check_plane", lambda: None)
    monkeypatch.setattr(places, "SYSTEM_PLACE", str(tmp_path / "host.sock"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path


def test_one_is_started_where_none_is(stand_in: Path) -> None:
    place = start.ensure()
    assert place == places.user_place()
    assert start.ensure() == place
    assert commands.status(place)["starts"] == 1
    commands.stop(place)


def test_it_ends_when_it_has_nothing_to_do(stand_in: Path) -> None:
    from tests.rds.node.conftest import wait_until

    place = start.ensure(str(stand_in / "node.sock"))
    wait_until(lambda: not places.is_served(place))


def test_many_at_once_start_one(stand_in: Path) -> None:
    with ThreadPoolExecutor(5) as pool:
        found = {one.result(WAIT_S) for one in [pool.submit(start.ensure) for _ in range(5)]}
    assert found == {places.user_place()}
    assert commands.status(*found)["starts"] == 1
    commands.stop(*found)


def test_why_there_is_none_is_one_line(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "import sys; sys.exit('urds node: it does not begin')"
    monkeypatch.setattr(start, "_command", lambda _: [sys.executable, "-c", line])
    with pytest.raises(OSError, match=r"^\[Errno 111\] it does not begin$"):
        start.ensure(str(stand_in / "node.sock"))


def test_without_the_compiled_plane_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("URDS_IMPL", "python")
    with pytest.raises(PlaneError, match="needs the compiled data plane"):
        start.ensure(str(tmp_path / "node.sock"))


def test_a_node_does_not_use_another_one() -> None:
    """The variables of the program that starts it name a node; it has its addresses itself."""
    program = (
        "from urds.rds.node.plan import child_environment\n"
        "import os, sys\nsys.exit('URDS_NODE' in child_environment())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment(), "URDS_NODE": "/x"}, cwd=ROOT,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "URDS_NODE" not in os.environ or os.environ["URDS_NODE"] != "/x"
