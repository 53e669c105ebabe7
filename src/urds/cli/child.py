"""A process that a command has started (`urds.cli.processes`), as seen from within.

Its starter may be gone at any moment. The process then ends without a word: what it would print
comes to a terminal on which the command has ended.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from urds.cli.output import Exit, ctrl_c_kept, interrupted


def start_line() -> Any:
    """Return what the first line of standard input says, in JSON.

    Raises SystemExit, with `Exit.FAILED`: the starter went before it had written the line.
    """
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        sys.exit(Exit.FAILED)
    return json.loads(line)


def let_ctrl_c_in() -> None:
    """Have Ctrl-C interrupt this thread, also one that came while the modules were loaded."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def run_child(main: Callable[[], int]) -> NoReturn:
    """Run the function of such a process and exit with its code; end quietly at Ctrl-C."""
    try:
        with ctrl_c_kept():
            let_ctrl_c_in()
            code = main()
    except KeyboardInterrupt:
        code = interrupted()
    sys.exit(code)
