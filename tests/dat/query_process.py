"""Starts the receiving process of a test, `tests.dat.query_peer`, and asks it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.children import Child
from urds import dat

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0


class Peer(Child):
    """The other process."""

    def __init__(self, *words: object) -> None:
        super().__init__("-m", "tests.dat.query_peer", *words)
        self.conn_qual = int(self.hear())

    def ask(self, question: str) -> list[int]:
        """Return the answer to a line."""
        self.say(question)
        answer: list[int] = json.loads(self.hear())
        return answer

    def wait_for(self, *expected: int) -> None:
        """Ask for count, span and available buffers until they are so."""
        end = time.monotonic() + WAIT_S
        while (found := self.ask("query")) != [dat.DAT_SUCCESS, *expected]:
            assert time.monotonic() < end, (found, expected)
            assert found[1] <= found[2], found


@contextmanager
def peer_process(device: str, strategy: str, buffers: int, message_bytes: int) -> Iterator[Peer]:
    """Start the receiving process."""
    peer = Peer(device, strategy, buffers, message_bytes)
    try:
        yield peer
    finally:
        peer.kill()


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
