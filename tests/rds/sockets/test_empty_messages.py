"""Messages without payload cannot stop two live programs that send to each other first.

No buffer counts them, so no congestion map stops who sends them; were a queue of them too long, its
path would pause, and with it the acknowledgements that the program here waits for.
`EMPTY_MESSAGES=1000000` makes the run by hand.
"""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.rds.sockets import remote
from tests.rds.sockets.hosts import host
from tests.rds.sockets.remote import RemotePeer
from tests.support import carriers

COUNT = int(os.environ.get("EMPTY_MESSAGES", "200000"))  # 134,000 took the bound of a queue
MEMORY_BYTES_MAX = 32 << 20
PORT = 4000
STREAMS = [name for name in (carriers.TCP, carriers.SHM) if name in carriers.here()]


def rss_bytes() -> int:
    """Return the memory that this process has in use. Source: proc(5), statm."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def exchange(sock: Any, target: tuple[str, int], count: int) -> tuple[int, int]:
    """Send messages without payload, and only then take as many; return how memory grew by both."""
    before = rss_bytes()
    for _ in range(count):
        sock.sendto(b"", target)
    grown_bytes = rss_bytes() - before
    for _ in range(count):
        assert sock.recvfrom(1) == (b"", target)
    return grown_bytes, rss_bytes() - before


@pytest.mark.parametrize("carrier", STREAMS, indirect=True)
def test_two_programs_that_send_before_they_receive_finish(
    carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ANSWER_S", 100.0)
    addresses = [(host(number), PORT) for number in (1, 2)]
    grown_bytes: list[tuple[int, int]] = []

    def run(sock: remote.RemoteSocket, target: tuple[str, int]) -> None:
        grown_bytes.append(sock.run(exchange, target, COUNT))

    with RemotePeer() as one, RemotePeer() as other:
        socks = [one.socket(), other.socket()]
        for sock, address in zip(socks, addresses, strict=True):
            sock.bind(address)
            sock.settimeout(30.0)
        for sock, target in zip(socks, reversed(addresses), strict=True):
            sock.sendto(b"connect", target)
        for sock in socks:
            sock.recv(10)
        threads = [
            threading.Thread(target=run, args=(sock, target))
            for sock, target in zip(socks, reversed(addresses), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(grown_bytes) == 2, "a program was stopped"
    assert max(max(grown) for grown in grown_bytes) < MEMORY_BYTES_MAX, grown_bytes
