"""The command line of `python -m benches.rsocket`."""

import sys

from benches.rsocket.measure import RsocketBenchOptions, run
from urds.cli.parser import Command, run_alone

COMMAND = Command(
    about="""
    rr and stream print the lines of netperf's TCP_RR and TCP_STREAM (both without a KIND), curve
    the throughput from 1 byte to 16 MiB with its dips, copies and wake-ups, connections what many
    open connections cost. --breakdown says where a sender's processor time goes, beside the table
    of the study of the original. Both ends are processes of this host.
    """,
    examples=(
        ("python -m benches.rsocket", "rr and stream"),
        ("python -m benches.rsocket rr --size 1 --seconds 5", "longer, for one byte"),
        ("python -m benches.rsocket curve --device shm --json", "the curve over shared memory"),
        ("python -m benches.rsocket connections 10000", "10,000 connections"),
        ("python -m benches.rsocket --breakdown --device shm", "where the time goes"),
    ),
    options=RsocketBenchOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(
        run_alone(
            "python -m benches.rsocket",
            "Measure rsockets over shm and tcp and the kernel's TCP, in one run.",
            COMMAND,
            sys.argv[1:],
        )
    )
