"""Exit codes, and how each end of a tool becomes one: no traceback for what a user can do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import IntEnum

from urds.cli.output import complain
from urds.errors import PlaneError, SettingError


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1  # no answer, or not what was asked for
    USAGE = 2  # arguments or settings that cannot be
    INTERRUPTED = 130  # Ctrl-C: 128 and the number of SIGINT, as shells have it


class UsageError(ValueError):
    """Arguments that cannot be; the text says what they may be."""


def guarded(tool: str, run: Callable[[], Exit]) -> Exit:
    """Carry out a tool; name its failure on one line of standard error."""
    try:
        code = run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except (UsageError, SettingError, PlaneError) as wrong:
        complain(tool, str(wrong))
        return Exit.USAGE
    except OSError as failure:
        complain(tool, failure.strerror or str(failure))
        return Exit.FAILED
    return code
