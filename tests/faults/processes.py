"""The processes of a fault run, as the coordinator leads them: lines of JSON down and up."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.faults.board import Board
from tests.faults.host import HostPlan
from tests.faults.proxy import ProxyPlan

_ANSWER_S: Final = 30.0
_END_S: Final = 5.0
_ROOT: Final = Path(__file__).resolve().parents[2]


class FaultRunError(Exception):
    """A process of the run failed, or did not answer: there is nothing to judge."""


class Child:
    """A process that answers; the terminal's Ctrl-C does not reach it."""

    def __init__(self, command: Sequence[str], errors: Path) -> None:
        others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        places = os.pathsep.join((str(_ROOT / "src"), str(_ROOT), *others))
        tunables = {name: text for name, text in os.environ.items() if name.startswith("URDS_")}
        variables = {"PYTHONPATH": places, "PATH": os.environ["PATH"], **tunables}
        self._errors = errors
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    def say(self, **words: object) -> None:
        """Send one line."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.check()

    def hear(self) -> Any:
        """Wait for the next line. Raises FaultRunError without one in 30 s."""
        assert self.process.stdout is not None
        answered, _, _ = select.select([self.process.stdout], [], [], _ANSWER_S)
        line = self.process.stdout.readline() if answered else ""
        if answered and not line:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
            self.check()
        if not line:
            raise FaultRunError(f"process {self.process.pid} gave no answer in {_ANSWER_S:g} s")
        return json.loads(line)

    def check(self) -> None:
        """Raise FaultRunError, with the last lines of its complaint, if the process ended."""
        code = self.process.poll()
        if code is not None:
            lines = self._errors.read_text(errors="replace").strip().splitlines()[-8:]
            raise FaultRunError("\n".join([f"a process ended with {code}", *lines]))

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal; wait for the end after one that kills."""
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait(_END_S)
            self._close_pipes()

    def close(self) -> None:
        """End the process: with its input, then by force."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


class HostLife:
    """One life of a host: its process and the board, which outlives it."""

    def __init__(self, plan: HostPlan, *, prefix: Sequence[str]) -> None:
        self.plan = plan
        self.board = Board(Path(plan.board), plan.peers)
        command = [*prefix, sys.executable, "-m", "tests.faults.host"]
        self.started_s = time.monotonic()  # corrected when it says `ready`
        self.ended_s: float | None = None
        self.child = Child(command, Path(f"{plan.board}.err"))
        self.child.say(**asdict(plan))

    @property
    def address(self) -> str:
        """Return the address of the host."""
        return self.plan.address

    @property
    def is_alive(self) -> bool:
        """Tell whether it still runs unkilled."""
        return self.ended_s is None

    def await_ready(self) -> None:
        """Wait until its socket is bound. Raises FaultRunError if it cannot be."""
        words = self.child.hear()
        if words["event"] == "failed":
            raise FaultRunError(f"{self.address}: {words['reason']}")
        self.started_s = time.monotonic()

    def report(self) -> dict[str, Any]:
        """Return its counters, its log lines, and its remarks about messages."""
        self.child.say(report=True)
        answer: dict[str, Any] = self.child.hear()
        return answer

    def close(self) -> None:
        """End the process, if it lives, and forget the counts."""
        if self.is_alive:
            self.child.close()
        self.board.close()

    def kill(self) -> None:
        """End it with no chance to say anything."""
        self.child.signal(signal.SIGKILL)
        self.ended_s = time.monotonic()


class ProxyProcess:
    """The proxy between two hosts."""

    def __init__(self, plan: ProxyPlan, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.faults.proxy", json.dumps(asdict(plan))]
        self.child = Child(command, folder / "proxy.err")
        self.counts: dict[str, int] = self.child.hear()

    def order(self, **words: object) -> None:
        """Give one order, and note the counts after it."""
        self.child.say(**words)
        self.counts = self.child.hear()
