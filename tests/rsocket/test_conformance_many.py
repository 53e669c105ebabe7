"""Many connections open, an echo on each, all closed: nothing is left.

docs/reference/rsocket.md 19, point 15.

300 in the suite; 10,000 by hand, where the kernel allows as many descriptors as tcp0 needs:

    TEST_RSOCKET_CONNECTIONS=10000 python -m pytest --timeout 1800 \
        tests/rsocket/test_conformance_many.py
"""

import gc
import os
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from itertools import pairwise

import pytest

from tests.rsocket.socket_pairs import DEVICES, HOST, WAIT_S, receive_exactly, using
from urds.rsocket import create_connection, create_server
from urds.rsocket.link import devices
from urds.rsocket.socket import Socket

COUNT = int(os.environ.get("TEST_RSOCKET_CONNECTIONS", "300"))
# A cancelled alarm of 30 s, what the connection manager remembers for a while; the link alone,
# without its window, would be 2,000.
LEFT_BYTES_EACH_MAX = 900


def echo_on_each(count: int) -> None:
    """Open, send and answer on each, and close."""
    clients: list[Socket] = []
    servers: list[Socket] = []
    with create_server((HOST, 0), backlog=128) as listener:
        listener.settimeout(WAIT_S)
        for _ in range(count):
            clients.append(create_connection(listener.getsockname(), WAIT_S))
            accepted, _ = listener.accept()
            accepted.settimeout(WAIT_S)
            servers.append(accepted)
        for number, client in enumerate(clients):
            client.sendall(b"%08d" % number)
        for number, server in enumerate(servers):
            data = receive_exactly(server, 8)
            assert data == b"%08d" % number
            server.sendall(data[::-1])
        for number, client in enumerate(clients):
            assert receive_exactly(client, 8) == (b"%08d" % number)[::-1]
        for one in (*clients, *servers):
            one.close()


def held() -> dict[str, int]:
    """Return what this process holds of connections, once all have ended."""
    [context] = devices.contexts()
    adapter = context.adapter
    # Over tcp the goodbyes of the kernel's connections come last.
    unfinished = (context.links, context.leaving, getattr(adapter, "leaving", ()))
    assert devices.wait([context], lambda: not any(map(len, unfinished)), WAIT_S)
    gc.collect()
    return {
        "queue pairs": len(context.links),
        "windows": context.memory_bytes,
        "registrations": len(context._regions),
        "entries of the device": len(getattr(context.adapter, "entries", ())),
        **descriptors(),
    }


def descriptors() -> Counter[str]:
    """Count the descriptors of this process by what they are of."""
    kinds: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the folder itself
            kinds[os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]] += 1
    return kinds


def grown(before: dict[str, int]) -> dict[str, int]:
    """Return what is more than before; threads that still close something get time for it."""
    end_s = time.monotonic() + WAIT_S
    while True:
        more = {name: count for name, count in held().items() if count > before.get(name, 0)}
        if not more or time.monotonic() > end_s:
            return more
        time.sleep(0.05)


@pytest.mark.rule("rsocket-problem-connections")
@pytest.mark.parametrize("device", DEVICES)
def test_many_connections_leave_nothing(device: str) -> None:
    with using(device):
        echo_on_each(20)  # the device, and what it keeps for the next
        before = held()
        echo_on_each(COUNT)
        assert grown(before) == {}


@pytest.mark.slow
@pytest.mark.rule("rsocket-problem-connections")
@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_as_it_was(device: str) -> None:
    """Round after round; one of them may end before the device has forgotten its connections."""
    count = max(40, COUNT // 10)
    with using(device):
        tracemalloc.start()
        try:
            levels = []
            for _ in range(4):
                echo_on_each(count)
                held()
                levels.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    grown = [more - less for less, more in pairwise(levels)]
    assert min(grown) / count < LEFT_BYTES_EACH_MAX, grown
