"""Nodes in processes of their own, as the test that drives them sees them."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import carriers, planes

ANSWER_S = 90.0
_ROOT = Path(__file__).resolve().parents[4]


class NodeProcess:
    """A process that runs `tests.rds.transports.tcp.agent`, with `prefix` before its command."""

    def __init__(
        self,
        address: str,
        *,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.address = address
        places = {"PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}", "PATH": os.environ["PATH"]}
        command = [*prefix, sys.executable, "-m", "tests.rds.transports.tcp.agent"]
        command += [address, json.dumps(settings)]
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**places, **planes.chosen(), **carriers.chosen(), **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ask("counters")  # it listens now

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self._process.pid

    @property
    def rss_bytes(self) -> int:
        """Return the memory that the process has in use. Source: proc(5), statm."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    @property
    def descriptor_count(self) -> int:
        """Return how many descriptors the process has open."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    @property
    def cpu_s(self) -> float:
        """Return the processor time that the process has used. Source: proc(5), stat."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, name: str, **arguments: Any) -> Any:
        """Make one request and wait for its answer."""
        self.start(name, **arguments)
        return self.finish()

    def start(self, name: str, **arguments: Any) -> None:
        """Make a request; `finish` fetches the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()

    def finish(self) -> Any:
        """Wait for the answer to the request that `start` made, for a minute and a half."""
        assert self._process.stdout is not None
        answered, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        assert answered, f"no answer of {self.address} within {ANSWER_S:g} s"
        line = self._process.stdout.readline()
        assert line, f"the process of {self.address} ended"
        return json.loads(line)

    def kill(self) -> None:
        """End the process with no chance to say anything."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End the process in order; it has ten seconds."""
        if self._process.poll() is None:
            try:
                self._process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()
