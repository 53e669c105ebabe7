"""The processes of the soak, as the program that leads them sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.soak.measures import Sample, look
from tests.soak.messages import Counters
from tests.soak.role import Plan

_ROOT: Final = Path(__file__).resolve().parents[2]
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_END_S: Final = 40.0  # an answer may be waited for when the end comes
# Over TCP or over RDMA as the role has it, whatever is set around the soak.
_ENVIRONS: Final[Mapping[str, Mapping[str, str]]] = {
    "rdma": {"URDS_TRANSPORT": "ib", "URDS_RDMA_DEVICES": "shm0"},
    "stream": {"URDS_RSOCKET_DEVICES": "shm0"},
}


class RoleProcess:
    """A process that plays one role, and what is known of it; its successors add to that."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.samples: list[Sample] = []
        self.restarts = 0
        self.failures = 0  # ends that were not asked for, or with a bad exit code
        self._ended = Counters()  # of processes before this one
        self._told = Counters()
        self._ended_cpu_s = 0.0
        self._child = self._start()

    @property
    def counters(self) -> Counters:
        """Return the counts of all processes of this role."""
        sum_of_all = Counters()
        sum_of_all.add(self._ended)
        sum_of_all.add(self._told)
        return sum_of_all

    @property
    def cpu_s(self) -> float:
        """Return the processor time of all of them as far as it was seen."""
        return self._ended_cpu_s + (self.samples[-1].cpu_s if self.samples else 0.0)

    def sample(self, at_s: float) -> None:
        """Look at memory, descriptors and threads."""
        found = look(self._child.pid, at_s, ticks_per_s=_TICKS_PER_S)
        if found is not None:
            self.samples.append(found)

    def check(self) -> None:
        """Note if the process has ended by itself; then it is not started again."""
        if self._child.poll() is not None and not self.failures:
            self.failures += 1

    def restart(self, *, kill: bool) -> None:
        """Kill the process, or end it in order, and start a successor."""
        if kill:
            self._child.kill()
            self._child.wait()
        else:
            self.close()
        self._reader.join()
        if self.samples:
            self._ended_cpu_s += self.samples[-1].cpu_s
        self.samples.clear()
        self._ended.add(self._told)
        self._told = Counters()
        self.restarts += 1
        self._child = self._start()

    def end(self) -> None:
        """Ask the process to come to its end."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()

    def close(self) -> None:
        """Wait for the end that was asked for."""
        self.end()
        try:
            code = self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        self._reader.join()
        self.failures += bool(code) and not self.failures

    def _start(self) -> subprocess.Popen[str]:
        kind = self.plan.role.partition("-")[0]
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.role", json.dumps(asdict(self.plan))],
            cwd=_ROOT,
            env={**kept, "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}", **_ENVIRONS.get(kind, {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
        self._reader = threading.Thread(target=self._read, args=(child,), daemon=True)
        self._reader.start()
        return child

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                with suppress(ValueError):  # half a line of a process that was killed
                    self._told = Counters(**json.loads(line))
