"""Measure what attacks over TCP cost the victim's other peers: `make attacks`.

Prints, for each plane, the round trips of a neighbour alone and during each attack of
`tests.rds.transports.tcp.siege`: medians over interleaved rounds, with the ratio to `burn`, a
process that keeps
a processor busy and does not touch the victim. Victim, neighbour and attacker are processes of
their own. By name it also measures the full sizes of what `test_hostile_floods` tries in small.
SECURITY.md has the figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from statistics import median
from typing import Any

from tests.rds.transports.tcp.siege import ATTACKS, UNBOUND_PORT, Siege, connect, small_frames
from tests.support.siege import MIB, Figures, measured

NET = "127.8.77"
ALONE, BURN = "alone", "burn"
PEERS = 5000
CONNECTIONS = 10_000
MESSAGES = 1_000_000
SILENCE_S = 30.0
TRACED = {"PYTHONTRACEMALLOC": "1"}


def main() -> None:
    """Print the figures of the attacks and sizes named, or of all attacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=ATTACKS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--measure-s", type=float, default=1.0, help="of one attack in a round")
    parser.add_argument("--planes", default="python,native", help="those that are there")
    options = parser.parse_args()
    unknown = set(options.names) - {*ATTACKS, *SIZES}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(KNOWN)}")
    attacks = [name for name in ATTACKS if name in {*options.names, BURN}]
    if len(attacks) > 1:
        for plane in options.planes.split(","):
            if plane == "native" and find_spec("urds_native") is None:
                print("native: left out, urds_native is not installed")
                continue
            _round_trips(plane, attacks, rounds=options.rounds, measure_s=options.measure_s)
    for name, measure in SIZES.items():
        if name in options.names:
            measure()


def _round_trips(plane: str, attacks: list[str], *, rounds: int, measure_s: float) -> None:
    """Print the neighbour's round trips alone and during each attack, all in each round."""
    siege = _siege(environ={"URDS_IMPL": plane})
    took: dict[str, list[Figures]] = {name: [] for name in (ALONE, *attacks)}
    try:
        for number in range(rounds):
            _progress(f"{plane}: round {number + 1} of {rounds}")
            for name, rows in took.items():
                attack = None if name == ALONE else siege.under(name)
                rows.append(measured(siege, attack, measure_s=measure_s))
    finally:
        siege.close()
        _progress("")
    print(table(plane, took), flush=True)


def table(plane: str, took: Mapping[str, Sequence[Figures]]) -> str:
    """Return the medians over the rounds, with the ratio of each round to its `burn`."""
    lines = [f"{plane:<16}{'p50 us':>8}{'p99 us':>9}{'x burn p50':>12}{'x burn p99':>12}{'MiB':>8}"]
    for name, rows in took.items():
        p50, p99 = (
            median(values)
            for values in zip(*((row.median_ns, row.late_ns) for row in rows), strict=True)
        )
        beside = list(zip(rows, took[BURN], strict=True))
        of_p50 = median(row.median_ns / burn.median_ns for row, burn in beside)
        of_p99 = median(row.late_ns / burn.late_ns for row, burn in beside)
        grown = max(row.grown_bytes for row in rows) / MIB
        lines.append(
            f"{name:<16}{p50 / 1e3:>8.0f}{p99 / 1e3:>9.0f}"
            f"{of_p50:>12.1f}{of_p99:>12.1f}{grown:>+8.1f}"
        )
    return "\n".join(lines)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _siege(**settings: Any) -> Siege:
    return Siege(lambda host: f"{NET}.{host}", buffer_bytes=106_496, **settings)


def many_connections() -> None:
    """Print what ten thousand connections with a byte a second each cost, and how they end."""
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
        f"{counters['refused_pending']} refused, {counters['pending_silent']} closed after "
        f"{SILENCE_S:.0f} s; descriptors {descriptors:+} at most, {left:+} at last; "
        f"memory {(victim.rss_bytes - before[0]) / MIB:+.1f} MiB; an honest connection took "
        f"{sorted(waited_s)[len(waited_s) // 2] * 1e3:.1f} ms, {max(waited_s) * 1e3:.0f} at most",
        flush=True,
    )
    siege.close()


def many_messages() -> None:
    """Print what a million messages to an unbound port cost."""
    siege = _siege()
    victim = siege.victim
    data = small_frames(UNBOUND_PORT)
    in_one = data.count(b"\0\7\0\x09")
    with connect(f"{NET}.5", victim.address) as unknown_peer:
        time.sleep(1.5)  # the handshake is over
        before = victim.rss_bytes, victim.cpu_s
        for _ in range(MESSAGES // in_one):
            unknown_peer.sendall(data)
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
KNOWN = (*ATTACKS, *SIZES)


if __name__ == "__main__":
    main()
