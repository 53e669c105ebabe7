"""Processes that commands start: what they do when their starter goes, and at Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, RUN_S_MAX, environment
from urds.cli.output import Exit
from urds.cli.processes import ctrl_c_held, start

CHILDREN = (
    "urds.cli.rsocket.bench_works.child", "urds.cli.rsocket.bench_works.holders",
    "benches.verbs.server", "urds.cli.rds.demo_host", "tests.faults.host",
)  # fmt: skip
PYTHONPATH = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}

INTERRUPTED = """
import signal, sys
from urds.cli.output import Exit, guarded

def run():
    exec("import signal; signal.raise_signal(signal.SIGINT)")
    return Exit.OK

def handled():
    try:
        return run()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED

if __name__ == "__main__":
    sys.exit(guarded("it", handled if sys.argv[1:] else run))
"""

FINALISED = """
import signal, sys, time
from urds.cli.child import run_child
from urds.cli.output import guarded

class Held:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def run():
    Held()
    time.sleep(60)

if __name__ == "__main__":
    run_child(run) if sys.argv[1:] else sys.exit(guarded("it", run))
"""


@pytest.mark.parametrize("begun", ["", '{"way": "sh'], ids=["nothing", "part of it"])
@pytest.mark.parametrize("module", CHILDREN)
def test_a_child_whose_starter_went_before_its_first_line_ends_quietly(
    module: str, begun: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module], input=begun, check=False, capture_output=True, text=True,
        timeout=RUN_S_MAX, env=environment(PYTHONPATH), cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (Exit.FAILED, "", "")


@pytest.mark.parametrize("module", [*CHILDREN[:3], "urds.cli.rsocket.rstream"])
def test_ctrl_c_while_a_child_loads_its_modules_ends_it_quietly(
    module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with ctrl_c_held():
        child = start(module, "{}", folders=[ROOT])
        child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=RUN_S_MAX)
    assert (child.returncode, out) == (Exit.INTERRUPTED, "")
    assert capfd.readouterr().err == ""


def test_ctrl_c_is_held_for_this_thread_alone_and_comes_afterwards() -> None:
    held: set[int] = set()

    def hold() -> None:
        with ctrl_c_held():
            signal.raise_signal(signal.SIGINT)
            held.update(signal.sigpending())

    with pytest.raises(KeyboardInterrupt):
        hold()
    assert signal.SIGINT in held
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("way", [(), ("handled",)], ids=["by the frame of it", "by the command"])
def test_ctrl_c_in_code_that_was_a_string_is_an_exit_code_too(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    """As in the making of a dataclass, while a command loads a module."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted", *way], check=False, capture_output=True, text=True,
        timeout=RUN_S_MAX, env=environment(PYTHONPATH), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "")


@pytest.mark.parametrize("way", [(), ("child",)], ids=["a command", "a child"])
def test_ctrl_c_in_a_finaliser_ends_what_runs_without_a_word(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    """Python lets no exception out of a finaliser."""
    (tmp_path / "finalised.py").write_text(FINALISED)
    done = subprocess.run(
        [sys.executable, "-m", "finalised", *way], check=False, capture_output=True, text=True,
        timeout=RUN_S_MAX / 2, env=environment(PYTHONPATH), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "")
