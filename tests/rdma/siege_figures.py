"""What a siege costs, by hand: `PYTHONPATH=src python -m tests.rdma.siege_figures shm0`.

Prints the neighbour's round trips (median and 99th of a hundred) alone and during each flood, and
the victim's memory and descriptors for what strangers make it keep. SECURITY.md has the figures.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from itertools import count

from tests.rdma.hostile_peer import Siege, Stranger, message, wait_until
from tests.rdma.test_hostile_load import flood

ROUND_TRIPS = 500
MIB = 1 << 20


def during(siege: Siege, what: str, act: Callable[[threading.Event], None]) -> None:
    """Measure round trips of the neighbour while something happens, and memory behind it."""
    ended = threading.Event()
    thread = threading.Thread(target=act, args=(ended,), daemon=True)
    before = siege.victim.rss_bytes, siege.victim.descriptor_count
    thread.start()
    time.sleep(0.3)
    took_ns = sorted(siege.others_are_well(ROUND_TRIPS))
    ended.set()
    thread.join(30)
    median_us, late_us = took_ns[len(took_ns) // 2] / 1e3, took_ns[len(took_ns) * 99 // 100] / 1e3
    grown = (siege.victim.rss_bytes - before[0]) / MIB
    descriptors = siege.victim.descriptor_count - before[1]
    print(
        f"{siege.name} {what}: median {median_us:.0f} us, 99th {late_us:.0f} us, "
        f"memory {grown:+.1f} MiB, descriptors {descriptors:+}",
        flush=True,
    )
    siege.dismiss()


def keep_sending(
    stranger: Stranger, frames: Callable[[int], bytes]
) -> Callable[[threading.Event], None]:
    """Return what sends frames until the end."""

    def act(ended: threading.Event) -> None:
        numbers = count(1)
        while not ended.is_set() and not stranger.is_over:
            flood(stranger, [frames(next(numbers)) for _ in range(400)], window=1)

    return act


def keep_connecting(siege: Siege) -> Callable[[threading.Event], None]:
    """Return what connects from new addresses until the end, sixteen at a time."""

    def act(ended: threading.Event) -> None:
        for turn in count():
            if ended.is_set():
                return
            crowd = [siege.stranger(receives=0) for _ in range(16)]
            for stranger in crowd:
                stranger.connect(stranger.data(major=2 + turn % 2).emit())
            wait_until(lambda crowd=crowd: all(one.is_up or one.is_over for one in crowd))
            for stranger in crowd:
                stranger.vanish()

    return act


def keep_breaking(siege: Siege) -> Callable[[threading.Event], None]:
    """Return what connects and breaks the protocol until the end."""

    def act(ended: threading.Event) -> None:
        while not ended.is_set():
            stranger = siege.connected()
            stranger.send(b"")
            siege.until_cut(stranger)
            stranger.vanish()

    return act


def main() -> None:
    """Print all figures of the devices named."""
    for name in sys.argv[1:] or ["shm0", "tcp0"]:
        siege = Siege(name)
        before = siege.victim.rss_bytes, siege.victim.descriptor_count
        crowd = [siege.connected(receives=1) for _ in range(100)]
        rss = (siege.victim.rss_bytes - before[0]) / len(crowd) / 1024
        descriptors = siege.victim.descriptor_count - before[1]
        print(f"{name} idle peer: {rss:.0f} KiB; descriptors of 100: {descriptors:+}")
        siege.dismiss()
        during(siege, "nobody", lambda ended: None)
        during(
            siege,
            "messages to no port",
            keep_sending(siege.connected(), lambda n: message(b"", sequence=n, target_port=9)[0]),
        )
        during(
            siege,
            "pings, answers not taken",
            keep_sending(
                siege.connected(receives=0), lambda n: message(b"", sequence=n, target_port=0)[0]
            ),
        )
        during(
            siege,
            "pings, answers taken",
            keep_sending(siege.connected(), lambda n: message(b"", sequence=n, target_port=0)[0]),
        )
        during(siege, "connects", keep_connecting(siege))
        during(siege, "breaches", keep_breaking(siege))
        during(siege, "nobody", lambda ended: None)
        one = siege.address()
        crowd = [siege.connected(one, receives=1, tos=tos) for tos in range(256)]
        print(f"{name} 256 connections of one host: links {siege.victim.ask('kept')['links']}")
        siege.close()


if __name__ == "__main__":
    main()
