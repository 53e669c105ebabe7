"""Profile one side of urds while it works, with cProfile.

    python benches/profile_ours.py sender
    python benches/profile_ours.py receiver --payload-bytes 65536 --sort cumulative

cProfile makes every Python call dearer and leaves C calls as they are: it shows where the calls
are, not what the rate is. The other side runs unprofiled, in a process of its own.
"""

import argparse
import cProfile
import multiprocessing
import pstats
import sys
from multiprocessing.connection import Connection

from peers.base import Address, Window
from peers.ours import Urds

_OPEN_WAIT_S = 10.0
_END_WAIT_S = 60.0
_LINES = 30


def main() -> int:
    """Profile the side that is named; return 1 if urds is not there or a side hangs."""
    parser = argparse.ArgumentParser(description="Profile one side of urds.")
    parser.add_argument("side", choices=["sender", "receiver"])
    parser.add_argument("--payload-bytes", type=int, default=64)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--sort", default="tottime", choices=["tottime", "cumulative", "ncalls"])
    options = parser.parse_args()
    if problem := Urds.missing():
        print(f"urds: {problem}", file=sys.stderr)
        return 1
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, options.payload_bytes, options.count, options.side, options.sort)
    receiver = context.Process(target=_receive, args=arguments, daemon=True)
    receiver.start()
    theirs.close()
    sender = None
    try:
        if not ours.poll(_OPEN_WAIT_S):
            print(f"the receiver did not open within {_OPEN_WAIT_S:g} s", file=sys.stderr)
            return 1
        arguments = (ours.recv(), *arguments[1:])
        sender = context.Process(target=_send, args=arguments, daemon=True)
        sender.start()
        receiver.join(_END_WAIT_S)
        sender.join(_OPEN_WAIT_S)
        return int(receiver.exitcode != 0 or sender.exitcode != 0)
    finally:
        for process in (receiver, sender):
            if process is not None and process.is_alive():
                print(f"{process.name} was cut", file=sys.stderr)
                process.kill()
                process.join()


def _receive(ready: Connection, payload_bytes: int, count: int, side: str, sort: str) -> None:
    peer = Urds(payload_bytes)
    ready.send(peer.open_receiver(1))
    profile = cProfile.Profile()
    if side == "receiver":
        profile.enable()
    elapsed_ns = peer.receive(count, Window(1, count))
    profile.disable()
    print(f"{(count - 1) * 1e9 / max(1, elapsed_ns):,.0f} messages/s, one side profiled")
    if side == "receiver":
        pstats.Stats(profile).sort_stats(sort).print_stats(_LINES)


def _send(address: Address, payload_bytes: int, count: int, side: str, sort: str) -> None:
    peer = Urds(payload_bytes)
    peer.open_sender(address, 0)
    profile = cProfile.Profile()
    if side == "sender":
        profile.enable()
    peer.put(count)
    profile.disable()
    if side == "sender":
        pstats.Stats(profile).sort_stats(sort).print_stats(_LINES)


if __name__ == "__main__":
    sys.exit(main())
