# PYTHON_ARGCOMPLETE_OK
"""The entry of the command `urds`, and the table of its commands."""

from __future__ import annotations

import sys
from typing import Final

from urds.cli import parser
from urds.cli.output import Exit, guarded, open_standard_streams
from urds.cli.parser import Group

ABOUT: Final = "Reliable Datagram Sockets in user space."
GROUPS: Final = (
    Group(
        "",
        "",
        {
            "demo": "Run hosts that lose connections and no message.",
            "ping": "Ask an address whether RDS answers, as rds-ping.",
            "send": "Send messages to a socket and wait for their acknowledgement.",
            "recv": "Bind a port and print the messages that come.",
            "info": "Show processes, counters and tables, as rds-info.",
            "config": "Show each setting, its value and its source.",
            "node": "Own addresses for all programs of a host or user, or ask a node.",
            "run": "Run an unmodified program on sockets of a node.",
            "stress": "Load two hosts and check every message, as rds-stress.",
        },
        package="urds.cli.rds",
    ),
    Group(
        "verbs",
        "Software RDMA verbs.",
        {
            "devices": "Show the devices of this host, as ibv_devinfo.",
            "bench": "Measure the calls: round trips, one way, writes beside copies.",
        },
        package="urds.cli.verbs",
    ),
    Group(
        "dat",
        "uDAPL 1.2 in user space: an example, a test of two endpoints, and load.",
        {
            "demo": "Show receive buffers while messages overtake each other.",
            "test": "Test two endpoints and check the data, as dtest.",
            "load": "Run transactions, a full pipeline, or objects up to a limit, as dapltest.",
        },
        package="urds.cli.dat",
    ),
    Group(
        "dask",
        "Dask over RDS: what a job survives.",
        {"demo": "Run a Dask job over tcp:// and rds:// while connections are reset."},
        package="urds.cli.dask",
    ),
    Group(
        "rsocket",
        "Sockets over RDMA: rstream, riostream, udpong, rcopy, and a bench.",
        {
            "rstream": "Measure latency and bandwidth of a stream, in rstream's table.",
            "riostream": "Measure writes into a mapped buffer of the peer, in rstream's table.",
            "udpong": "Measure datagrams: rate, losses and latency, in udpong's table.",
            "rcopy": "Copy a file over a stream, and check its size and digest.",
            "bench": "Measure streams beside the kernel's TCP and a study of the original.",
        },
        package="urds.cli.rsocket",
    ),
)


def main() -> int:
    """Run the command line of this process; return its exit code.

    Raises SystemExit for help, version and wrong usage.
    """
    open_standard_streams()
    # Commands handle their own failures; here it is Ctrl-C while modules load, or a full disk.
    return guarded("urds", lambda: Exit(parser.main(ABOUT, GROUPS, sys.argv[1:])))
