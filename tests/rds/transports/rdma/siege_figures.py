"""What a siege costs: `PYTHONPATH=src python -m tests.rds.transports.rdma.siege_figures shm0`.

Prints the neighbour's round trips alone and during each flood, with their ratio, and the victim's
memory and descriptors for what unknown peers make it keep. SECURITY.md has the figures.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

from tests.rds.transports.rdma.hostile_peer import RECEIVES, Siege, UnknownPeer, message
from tests.rds.transports.rdma.test_hostile_load import flood
from tests.support.siege import during
from tests.support.waiting import wait_until


@contextmanager
def acting(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have something go on meanwhile."""
    ended = threading.Event()
    thread = threading.Thread(target=act, args=(ended,), daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join(30)


def keep_sending(
    unknown_peer: UnknownPeer, frames: Callable[[int], bytes]
) -> Callable[[threading.Event], None]:
    """Return what sends frames until the end."""

    def act(ended: threading.Event) -> None:
        numbers = count(1)
        while not ended.is_set() and not unknown_peer.is_over:
            flood(unknown_peer, [frames(next(numbers)) for _ in range(400)], window=1)

    return act


def keep_connecting(siege: Siege) -> Callable[[threading.Event], None]:
    """Return what connects from new addresses until the end, sixteen at a time."""

    def act(ended: threading.Event) -> None:
        for turn in count():
            if ended.is_set():
                return
            crowd = [siege.unknown_peer(receives=0) for _ in range(16)]
            for unknown_peer in crowd:
                unknown_peer.connect(unknown_peer.data(major=2 + turn % 2).emit())
            wait_until(lambda crowd=crowd: all(one.is_up or one.is_over for one in crowd))
            for unknown_peer in crowd:
                unknown_peer.vanish()

    return act


def keep_breaking(siege: Siege) -> Callable[[threading.Event], None]:
    """Return what connects and breaks the protocol until the end."""

    def act(ended: threading.Event) -> None:
        while not ended.is_set():
            unknown_peer = siege.connected()
            unknown_peer.send(b"")
            siege.until_cut(unknown_peer)
            unknown_peer.vanish()

    return act


def attacks(siege: Siege) -> dict[str, Callable[[], Callable[[threading.Event], None]]]:
    """Return what makes each attack."""

    def messages(target_port: int, receives: int) -> Callable[[threading.Event], None]:
        unknown_peer = siege.connected(receives=receives)
        return keep_sending(
            unknown_peer, lambda number: message(b"", sequence=number, target_port=target_port)[0]
        )

    return {
        "messages to no port": lambda: messages(9, RECEIVES),
        "pings, answers not taken": lambda: messages(0, 0),
        "pings, answers taken": lambda: messages(0, RECEIVES),
        "connects": lambda: keep_connecting(siege),
        "protocol_errors": lambda: keep_breaking(siege),
    }


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
        measure = partial(during, siege, after=siege.dismiss)
        measure = partial(measure, alone=measure("no attack"))
        for what, make in attacks(siege).items():
            measure(what, acting(make()))
        measure("no attack")
        one = siege.address()
        crowd = [siege.connected(one, receives=1, tos=tos) for tos in range(256)]
        print(f"{name} 256 connections of one host: links {siege.victim.ask('kept')['links']}")
        siege.close()


if __name__ == "__main__":
    main()
