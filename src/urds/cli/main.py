"""The entry of the command `urds`: the front with typer, or the one without."""

from __future__ import annotations

import sys


def main() -> int:
    """Carry out the command line; return its exit code. May raise SystemExit, as fronts do."""
    try:
        return _front()
    except KeyboardInterrupt:  # while modules load; tools handle their own
        return 130


def _front() -> int:
    try:
        from urds.cli import commands
    except ModuleNotFoundError as missing:
        if missing.name != "typer":
            raise
        from urds.cli import plain

        return plain.main(sys.argv[1:])
    return commands.main()
