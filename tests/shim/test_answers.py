"""The calls of `tests/interop/test_same_answers.py` under the hooks, beside those of `urds` itself.

The interop tests hold the same rows of `urds` against kernels; so what is equal here is Linux's
answer, or one of the differences that those rows state.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import address
from tests.interop import test_same_answers as same
from tests.shim.conftest import Programs

SCRIPT = Path(__file__).with_name("answers.py")
RUN_S_MAX = 100
GROUPS = {
    "unbound": (same.FRESH, same.UNBOUND_ROWS),
    "bind": (same.FRESH, same.BIND_ROWS),
    "options": (same.FRESH, same.OPTION_ROWS),
    "options-of-bound": (same.FRESH + same.BIND, same.BOUND_OPTION_ROWS),
    "send": (same.FRESH + same.BIND, same.SEND_ROWS),
    "receive": (same.FRESH + same.BIND, same.RECEIVE_ROWS),
    "poll": (same.FRESH + same.BIND, same.POLL_ROWS),
}
FLAG = re.compile(r"<MsgFlag[^:]*: (\d+)>")


@pytest.mark.parametrize("name", GROUPS)
def test_answers_under_the_hooks_are_those_of_urds(name: str, programs: Programs) -> None:
    prepare, rows = GROUPS[name]
    wanted = json.dumps([[prepare, [row.source for row in rows]]])
    outcomes = []
    for where, last in (("inprocess", 30), ("kernel", 31)):
        variables = programs.variables()  # again: the first run may take longer than a node waits
        hidden = {"LD_PRELOAD", "URDS_NODE"} if where == "inprocess" else set()
        done = subprocess.run(
            [sys.executable, SCRIPT, address(last), where], input=wanted, capture_output=True,
            env={key: one for key, one in variables.items() if key not in hidden}, text=True,
            timeout=RUN_S_MAX, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        # `urds` gives flags of its own type, which is an integer too.
        text = FLAG.sub(r"\1", done.stdout.replace(address(last), "local"))
        found = json.loads(text)[0]
        outcomes.append(found)
    wrong = [
        f"{row.source}\n    of urds {ours}\n    here    {here}"
        for row, ours, here in zip(rows, *outcomes, strict=True)
        if here != ours
    ]
    assert not wrong, f"{len(wrong)} of {len(rows)} answers differ:\n" + "\n".join(wrong)
