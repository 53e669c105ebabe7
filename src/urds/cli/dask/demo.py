"""`urds dask demo`: one Dask job over `tcp://` and over `rds://`, while connections are reset.

Each job is a process with a cluster of its own; this one needs no Dask and shows what they say.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import IO, Any, Final

from urds.cli.output import BAD, GOOD, TITLE, Exit, Output, Progress
from urds.cli.parser import Command, check_ranges, json_option, option
from urds.cli.processes import environment

SCHEMES: Final = ("tcp", "rds")
_START_S: Final = 60.0  # for the workers to come, beside the patience
_CLOSE_S: Final = 10.0
_ROUND_TASKS_OF_WORKER: Final = 3
# Processes of one host would talk through shared memory, where there is no connection to reset.
_SETTINGS: Final = {"URDS_SHARED_MEMORY": "0", "URDS_NODE": "inprocess"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskDemoOptions:
    """Options of `urds dask demo`."""

    workers: int = option("--workers", default=3, low=2, high=16, help="How many workers.")
    rounds: int = option("--rounds", default=8, low=1, high=10_000, help="Rounds of all to all.")
    reset_every_s: float = option(
        "--reset-every", metavar="S", default=0.2, low=0, high=3600,
        help="Seconds between the resets of one worker; 0 for none.",
    )  # fmt: skip
    patience_s: float = option(
        "--patience", metavar="S", default=20.0, low=1, high=3600,
        help="Seconds after which a job counts as lost.",
    )  # fmt: skip
    only_rds: bool = option("--only-rds", default=False, help="Leave out tcp://.")
    json_wanted: bool = json_option()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the job over one protocol."""

    scheme: str
    result: str  # "right", "wrong" or "lost"
    reason: str | None  # of a lost job
    tasks: int  # done, of all to all
    tasks_total: int
    workers_lost: int
    resets: int
    seconds: float

    @property
    def is_unharmed(self) -> bool:
        """Tell whether the result was right and no worker was lost."""
        return self.result == "right" and not self.workers_lost


def run(options: DaskDemoOptions) -> Exit:
    """Print it; `Exit.FAILED` unless the job over RDS was right and lost no worker.

    Raises UsageError for an option, OSError without Dask or if a cluster does not start.
    """
    check_ranges(options)
    if find_spec("distributed") is None:
        raise OSError("Dask is not installed: in a checkout, pip install '.[dask]'")
    output = Output(json_wanted=options.json_wanted)
    output.line(
        f"One Dask job of {options.workers} workers, each a process, {options.rounds} rounds of all"
        " to all."
    )
    if options.reset_every_s:
        output.line(
            f"Each worker resets one of its TCP connections every {options.reset_every_s:g} s."
        )
    outcomes = []
    for scheme in SCHEMES[options.only_rds :]:
        with Progress(quiet=options.json_wanted) as progress:
            outcomes.append(_outcome(scheme, options, progress))
        line = summary(outcomes[-1])
        output.line(line, GOOD if outcomes[-1].is_unharmed else BAD)
    output.document([asdict(outcome) for outcome in outcomes])
    if len(outcomes) > 1:
        output.line(comparison(*outcomes), TITLE)
    return Exit.OK if outcomes[-1].is_unharmed else Exit.FAILED


def summary(outcome: Outcome) -> str:
    """Return a line about one protocol."""
    what = "job lost" if outcome.result == "lost" else f"result {outcome.result}"
    why = f" ({outcome.reason})" if outcome.reason else ""
    return (
        f"{outcome.scheme}://  {what}{why} after {outcome.seconds:.1f} s: tasks {outcome.tasks} of"
        f" {outcome.tasks_total}, workers lost {outcome.workers_lost}, resets {outcome.resets}"
    )


def comparison(tcp: Outcome, rds: Outcome) -> str:
    """Return a line about both."""
    if {tcp.result, rds.result} == {"right"}:
        return f"Both results are right; workers lost: {tcp.workers_lost} and {rds.workers_lost}."
    if rds.is_unharmed:
        return "Over RDS the job never knew; over TCP it did not end."
    return "The job over RDS was harmed, which is a fault."


def _outcome(scheme: str, options: DaskDemoOptions, progress: Progress) -> Outcome:
    """Run the job over one protocol to its end. Raises OSError if it does not start."""
    plan = {
        "scheme": scheme, "workers": options.workers, "rounds": options.rounds,
        "reset_every_s": options.reset_every_s, "patience_s": options.patience_s,
    }  # fmt: skip
    total = options.rounds * options.workers * _ROUND_TASKS_OF_WORKER
    said: dict[str, Any] = {"tasks": 0, "workers_lost": 0, "resets": 0, "seconds": 0.0}
    wait_s = _START_S + options.patience_s
    event, reason = "lost", f"no end after {wait_s:g} s"
    for words in _words(plan, wait_s):
        event, reason = words.pop("event"), words.pop("reason", None)
        if event == "failed":
            raise OSError(f"the cluster over {scheme}:// did not start: {reason}")
        said |= words
        progress.update(
            said["tasks"] / total,
            f"{scheme}://  {said['seconds']:5.1f} s  tasks {said['tasks']} of {total}"
            f"  workers lost {said['workers_lost']}  resets {said['resets']}",
        )
    if event != "done":
        result, reason = "lost", reason or "it ended"
    else:
        result = "right" if said["is_right"] else "wrong"
    said.pop("is_right", None)
    return Outcome(scheme=scheme, result=result, reason=reason, tasks_total=total, **said)


def _words(plan: dict[str, Any], wait_s: float) -> Iterator[dict[str, Any]]:
    """Run a job; yield what it says, the end included, then end all of its processes."""
    child = subprocess.Popen(
        [sys.executable, "-m", "urds.cli.dask.demo_job", json.dumps(plan)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**environment(), **_SETTINGS}, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None, "it is piped"
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(child.stdout, lines), daemon=True).start()
    until_s = time.monotonic() + wait_s
    event = ""
    try:
        while event not in ("done", "lost", "failed"):
            try:
                line = lines.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                return
            words = json.loads(line) if line else {"event": "failed", "reason": "its process ended"}
            event = words["event"]
            yield words
    finally:
        if event == "done":  # its workers may leave in order
            with suppress(subprocess.TimeoutExpired):
                child.wait(_CLOSE_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


def _listen(pipe: IO[str], lines: queue.Queue[str]) -> None:
    with suppress(ValueError):  # closed
        for line in pipe:
            lines.put(line)
    lines.put("")


COMMAND: Final = Command(
    about="""
    Workers exchange parts of an array in rounds of all to all, while each of them resets a TCP
    connection of its own every 200 ms, as a firewall that forgets it would. The same job runs over
    tcp:// and over rds://, and its result is compared with one worked out without Dask. Dask takes
    a broken comm for a dead worker: over TCP it loses its workers, over RDS none. The exit code is
    1 if the job over rds:// lost a worker or was wrong. It needs Dask: in a checkout, pip install
    '.[dask]'.
    """,
    examples=(
        ("urds dask demo", "three workers, about half a minute"),
        ("urds dask demo --workers 8 --reset-every 0.05", "more of everything"),
        ("urds dask demo --only-rds --rounds 100 --json", "for a script"),
    ),
    options=DaskDemoOptions,
    run=run,
)
