"""Starts the receiving process of a test, `tests.dat.query_peer`, and asks it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from urds import dat

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0


class Peer:
    """The other process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.conn_qual = int(self._line())

    def ask(self, question: str) -> list[int]:
        """Return the answer to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def wait_for(self, *expected: int) -> None:
        """Ask for count, span and available buffers until they are so."""
        end = time.monotonic() + WAIT_S
        while (found := self.ask("query")) != [dat.DAT_SUCCESS, *expected]:
            assert time.monotonic() < end, (found, expected)
            assert found[1] <= found[2], found

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the other process has ended"
        return line


@contextmanager
def peer_process(device: str, strategy: str, buffers: int, message_bytes: int) -> Iterator[Peer]:
    """Start the receiving process."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    arguments = [device, strategy, str(buffers), str(message_bytes)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.dat.query_peer", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
    ) as process:  # fmt: skip
        try:
            yield Peer(process)
        finally:
            process.kill()


def sending_endpoint(
    ia: dat.InterfaceAdapter, memory_bytes: int
) -> tuple[dat.Endpoint, dat.LocalMemory, bytearray]:
    """Make a sender's endpoint and memory."""
    pz = ia.create_pz()
    data = bytearray(memory_bytes)
    ep = pz.create_ep(
        ia.create_evd(32, dat.EvdFlag.DTO),
        ia.create_evd(32, dat.EvdFlag.DTO),
        ia.create_evd(8, dat.EvdFlag.CONNECTION),
    )
    return ep, pz.register(data), data
