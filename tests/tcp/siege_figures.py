"""What a siege over TCP costs, by hand: `PYTHONPATH=src python -m tests.tcp.siege_figures [NAME]`.

Prints the neighbour's round trips alone and during each attack of `tests.tcp.siege`, with their
ratio, and the victim's memory and descriptors; then the full sizes of what `test_hostile_floods`
tries in small. SECURITY.md has the figures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.siege import MIB, during
from tests.tcp.siege import ATTACKS, UNBOUND_PORT, Siege, connect, small_frames

NET = "127.8.77"
PEERS = 5000
CONNECTIONS = 10_000
MESSAGES = 1_000_000
SILENCE_S = 30.0
TRACED = {"PYTHONTRACEMALLOC": "1"}


def main() -> None:
    """Print the figures of the attacks and sizes named, or of all."""
    names = sys.argv[1:] or [*ATTACKS, *SIZES]
    attacks = [name for name in ATTACKS if name in names]
    if attacks:
        _round_trips(attacks)
    for name, measure in SIZES.items():
        if name in names:
            measure()


def _round_trips(attacks: list[str]) -> None:
    """Print the neighbour's round trips alone and during each attack."""
    siege = _siege()
    alone = during(siege, "nobody")
    for name in attacks:
        during(siege, name, siege.under(name), alone=alone)
    during(siege, "nobody", alone=alone)
    siege.close()


def _siege(**settings: Any) -> Siege:
    return Siege(lambda host: f"{NET}.{host}", buffer_bytes=106_496, **settings)


def many_connections() -> None:
    """Print what ten thousand connections with an octet a second each cost, and how they end."""
    siege = _siege()
    victim = siege.victim
    before = victim.rss_bytes, victim.descriptor_count
    waited_s, descriptors = [], 0
    end_s = time.monotonic() + SILENCE_S
    with siege.under("slow-loris", CONNECTIONS):
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            with suppress(OSError), connect(f"{NET}.249", victim.address) as honest:
                honest.recv(1)
            waited_s.append(time.monotonic() - began_s)
            descriptors = max(descriptors, victim.descriptor_count - before[1])
            time.sleep(0.5)
        time.sleep(SILENCE_S)
        left = victim.descriptor_count - before[1]
    counters = victim.ask("counters")
    print(
        f"{counters['accepts']} of {CONNECTIONS} connections accepted, "
        f"{counters['refused_strangers']} refused, {counters['strangers_silent']} closed after "
        f"{SILENCE_S:.0f} s; descriptors {descriptors:+} at most, {left:+} at last; "
        f"memory {(victim.rss_bytes - before[0]) / MIB:+.1f} MiB; an honest connection took "
        f"{sorted(waited_s)[len(waited_s) // 2] * 1e3:.1f} ms, {max(waited_s) * 1e3:.0f} at most",
        flush=True,
    )
    siege.close()


def many_messages() -> None:
    """Print what a million messages to a port that nobody has cost."""
    siege = _siege()
    victim = siege.victim
    octets = small_frames(UNBOUND_PORT)
    in_one = octets.count(b"\0\7\0\x09")
    with connect(f"{NET}.5", victim.address) as stranger:
        time.sleep(1.5)  # the handshake is over
        before = victim.rss_bytes, victim.cpu_s
        for _ in range(MESSAGES // in_one):
            stranger.sendall(octets)
        while victim.ask("counters")["recv_drop_no_sock"] < MESSAGES:
            time.sleep(0.01)
        cpu_s = victim.cpu_s - before[1]
    print(
        f"{MESSAGES} messages to no port: {cpu_s * 1e6 / MESSAGES:.2f} us of a core each, "
        f"memory {(victim.rss_bytes - before[0]) / MIB:+.1f} MiB, "
        f"{len(victim.ask('logged'))} lines logged",
        flush=True,
    )
    siege.close()


def many_peers() -> None:
    """Print what peers that said one word and stay cost, and those that leave."""
    siege = _siege(environ=TRACED if "traced" in sys.argv else None)
    victim = siege.victim
    before = victim.rss_bytes, victim.ask("traced_bytes")
    with siege.under("peers", PEERS):
        seen = -1
        while seen < (seen := victim.ask("counters")["handshake_timeouts"]):
            time.sleep(5.0)
        counters = victim.ask("counters")
        held = counters["first_frames"]
        rss, traced = victim.rss_bytes - before[0], victim.ask("traced_bytes") - before[1]
        took_ns = siege.others_are_well(200)
    print(
        f"{PEERS} hosts: {held} held, {counters['refused_peers']} refused; each "
        f"{rss / held / 1024:.1f} KiB of memory, {traced / held / 1024:.1f} KiB traced; median "
        f"of the neighbour {sorted(took_ns)[100] / 1e3:.0f} us",
        flush=True,
    )
    siege.close()


SIZES: dict[str, Callable[[], None]] = {
    "many-connections": many_connections,
    "many-messages": many_messages,
    "many-peers": many_peers,
}


if __name__ == "__main__":
    main()
