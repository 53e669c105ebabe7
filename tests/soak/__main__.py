"""Soak: a mix of processes for an hour, every message checked, memory and descriptors watched.

    make soak
    python -m tests.soak --minutes 60 --json > soak.json

Nine processes on addresses of one network below 127: RDS over TCP with requests, bursts and tasks,
RDS over RDMA and rsockets over shared memory. Connections are reset, sockets closed and opened,
one process is killed or ended again and again. Progress goes to the standard error output. Ctrl-C
ends the soak with the summary so far. The exit code is 0 if nothing was wrong and nothing grew.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Final

from tests.soak import summary
from tests.soak.processes import RoleProcess
from tests.soak.role import HOSTS, Plan

_TURN_S: Final = 0.1
_SEED: Final = 6
_SERVERS: Final = ("server", "rdma-server", "stream-server")


def main() -> int:
    """Run the soak; return the exit code."""
    options = _options()
    # A shell that starts it in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes = [RoleProcess(_plan(role, options)) for role in HOSTS]
    began_s = time.monotonic()
    try:
        _lead(processes, began_s, options)
    except KeyboardInterrupt:
        print("ended early", file=sys.stderr)
    elapsed_s = time.monotonic() - began_s
    for is_server in (False, True):  # who asks ends first, with its answers
        parts = [one for one in processes if (one.plan.role in _SERVERS) is is_server]
        for process in parts:
            process.end()
        for process in parts:
            process.close()
    found = summary.summary(processes, elapsed_s, window_s=options.line_every_s)
    print(json.dumps(found, indent=1) if options.json else summary.text(found))
    return 0 if summary.is_good(found) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Soak urds.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    parser.add_argument("--network", default="127.60.0", help="first three numbers of addresses")
    parser.add_argument("--cpu-share", type=float, default=0.25, help="of one core, in all")
    parser.add_argument("--reset-every-s", type=float, default=20.0, help="in each process")
    parser.add_argument("--restart-every-s", type=float, default=45.0)
    parser.add_argument("--socket-life-s", type=float, default=10.0)
    parser.add_argument("--sample-every-s", type=float, default=5.0)
    parser.add_argument("--line-every-s", type=float, default=60.0)
    return parser.parse_args()


def _plan(role: str, options: argparse.Namespace) -> Plan:
    # Half of the work is done by who answers; the other half is shared among those who ask.
    askers = len(HOSTS) - len(_SERVERS)
    return Plan(
        role=role,
        network=options.network,
        seed=_SEED,
        cpu_share=options.cpu_share / 2 / askers,
        reset_every_s=options.reset_every_s,
        socket_life_s=options.socket_life_s,
        report_every_s=min(5.0, options.line_every_s),
    )


def _lead(processes: list[RoleProcess], began_s: float, options: argparse.Namespace) -> None:
    """Look, restart and tell, each at its time, until the end."""
    restarted = next(one for one in processes if one.plan.role == "restarted")
    end_s = began_s + options.minutes * 60
    sample_s = line_s = began_s
    restart_s = began_s + options.restart_every_s
    while (now_s := time.monotonic()) < end_s:
        if now_s >= sample_s:
            sample_s += options.sample_every_s
            for process in processes:
                process.check()
                process.sample(now_s - began_s)
        if now_s >= restart_s:
            restart_s += options.restart_every_s
            restarted.restart(kill=restarted.restarts % 3 > 0)  # every third ends in order
        if now_s >= line_s:
            line_s += options.line_every_s
            print(summary.progress(processes, now_s - began_s), file=sys.stderr, flush=True)
        time.sleep(_TURN_S)


if __name__ == "__main__":
    sys.exit(main())
