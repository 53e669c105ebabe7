"""The processes of `urds demo`: started, led and ended by the coordinator.

Commands go down each one's standard input, reports come up its standard output, lines of JSON both;
`demo_host` says which. A thread per process reads the reports into one queue.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, Any, Final

from urds.cli.children import environment
from urds.cli.demo_host import Plan

_END_S: Final = 3.0


class DemoError(OSError):
    """A host ended early, or did not answer in time."""


class Hosts:
    """The processes and what they say."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._said: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._children: list[subprocess.Popen[str]] = []
        self._plans = plans

    def start(self) -> None:
        """Start one process per plan, out of reach of the terminal's Ctrl-C."""
        for index, plan in enumerate(self._plans):
            child = subprocess.Popen(
                [sys.executable, "-m", "urds.cli.demo_host"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
                start_new_session=True,
            )
            self._children.append(child)
            assert child.stdout is not None
            threading.Thread(target=self._listen, args=(index, child.stdout), daemon=True).start()
            self.say(index, asdict(plan))

    def say(self, index: int, command: Mapping[str, object]) -> None:
        """Send one host a command."""
        pipe = self._children[index].stdin
        assert pipe is not None
        with suppress(BrokenPipeError):  # it ended; `collect` tells
            pipe.write(json.dumps(command) + "\n")
            pipe.flush()

    def collect(self, event: str, wait_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield what the hosts say until each has said `event`.

        Raises DemoError when one fails, ends, or takes longer than `wait_s`.
        """
        missing = set(range(len(self._plans)))
        deadline_s = time.monotonic() + wait_s
        while missing:
            try:
                index, words = self._said.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                silent = ", ".join(self._plans[one].address for one in sorted(missing))
                raise DemoError(f"no `{event}` from {silent} within {wait_s:g} s") from None
            if words["event"] == "failed":
                raise DemoError(words["reason"])
            if words["event"] == "ended":
                raise DemoError(f"host {self._plans[index].address} ended early")
            if words["event"] == event:
                missing.discard(index)
            yield index, words

    def end(self) -> None:
        """End the processes: politely, then by force."""
        for child in self._children:
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.close()
        deadline_s = time.monotonic() + _END_S
        for child in self._children:
            try:
                child.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _listen(self, index: int, pipe: IO[str]) -> None:
        for line in pipe:
            self._said.put((index, json.loads(line)))
        self._said.put((index, {"event": "ended"}))


@contextmanager
def running(plans: Sequence[Plan]) -> Iterator[Hosts]:
    """Start one process per plan; end them all, whatever happens."""
    hosts = Hosts(plans)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.end()
