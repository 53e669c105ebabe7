"""The command line of `python -m benches.verbs`."""

import sys

from benches.verbs.measure import VerbsBenchOptions, run
from urds.cli.parser import Command, run_alone

COMMAND = Command(
    about="""
    Latency, bandwidth and rate of SEND and WRITE for each device and size, between two processes,
    then connections per second and memory per queue pair; TCP and AF_UNIX sockets of Python go
    through the same loops in the same run. Latency of SEND is half a round trip, of WRITE the time
    until it has completed. No side spins.
    """,
    examples=(
        ("python -m benches.verbs", "everything, about a minute"),
        ("python -m benches.verbs --device shm0 --size 64", "one device and one size"),
        ("python -m benches.verbs --seconds 1 --json", "longer, for a script"),
    ),
    options=VerbsBenchOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(
        run_alone(
            "python -m benches.verbs",
            "Measure verbs and plain sockets, in the tables of perftest.",
            COMMAND,
            sys.argv[1:],
        )
    )
