"""Every program in `examples/` ends well within 30 s."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, environment

RUN_S_MAX = 30
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("dask_")
)  # those of Dask need its extra, and run in `make dask`


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda program: program.name)
def test_an_example_runs(program: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(program)],
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_example_is_there() -> None:
    """A newcomer starts at `one_message.py`: the README says so."""
    assert ROOT / "examples" / "one_message.py" in EXAMPLES
