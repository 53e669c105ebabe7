"""Run a command of a make target and print its time beside its budget.

    python tools/timed.py --name check --budget-s 60 -- pytest tests/common

The budget is for two cores. Exceeding it is printed and is no failure: a slow machine is no fault
of the change under test. The exit code is the command's own.
"""

import argparse
import subprocess
import sys
import time


def main() -> int:
    """Run the command after `--`; return its exit code."""
    parser = argparse.ArgumentParser(description="Run a command and compare it with its budget.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--budget-s", type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    started_s = time.monotonic()
    try:
        code = subprocess.run(options.command, check=False, stdin=subprocess.DEVNULL).returncode
    except KeyboardInterrupt:
        code = 130
    used_s = time.monotonic() - started_s
    over = ", OVER BUDGET" if used_s > options.budget_s else ""
    print(f"{options.name}: {used_s:.0f} s of {options.budget_s} s{over}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
