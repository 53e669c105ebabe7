# PYTHON_ARGCOMPLETE_OK
"""The entry of the command `urds`, and the table of its commands."""

from __future__ import annotations

import sys
from typing import Final

from urds.cli import parser
from urds.cli.output import Exit
from urds.cli.parser import Entry, Group

ABOUT: Final = "Reliable Datagram Sockets in user space."
GROUPS: Final = (
    Group(
        "",
        "",
        (
            Entry("demo", "urds.cli.rds.demo", "Run hosts that lose connections and no message."),
            Entry("ping", "urds.cli.rds.ping", "Ask an address whether RDS answers, as rds-ping."),
            Entry("info", "urds.cli.rds.info", "Show counters and tables, as rds-info."),
            Entry(
                "stress",
                "urds.cli.rds.stress.command",
                "Load two hosts and check every message, as rds-stress.",
            ),
        ),
    ),
    Group(
        "dat",
        "uDAPL 1.2 in user space: an example, a test of two endpoints, and load.",
        (
            Entry(
                "demo",
                "urds.cli.dat.demo",
                "Show receive buffers while messages overtake each other.",
            ),
            Entry("test", "urds.cli.dat.test", "Test two endpoints and check the data, as dtest."),
            Entry(
                "load",
                "urds.cli.dat.load",
                "Run transactions, a full pipeline, or objects up to a limit, as dapltest.",
            ),
        ),
    ),
    Group(
        "rsocket",
        "Sockets over RDMA: rstream, riostream, udpong and rcopy.",
        (
            Entry(
                "rstream",
                "urds.cli.rsocket.rstream",
                "Measure latency and bandwidth of a stream, in rstream's table.",
            ),
            Entry(
                "riostream",
                "urds.cli.rsocket.riostream",
                "Measure writes into a mapped buffer of the peer, in rstream's table.",
            ),
            Entry(
                "udpong",
                "urds.cli.rsocket.udpong",
                "Measure datagrams: rate, losses and latency, in udpong's table.",
            ),
            Entry(
                "rcopy",
                "urds.cli.rsocket.rcopy",
                "Copy a file over a stream, and check its size and digest.",
            ),
        ),
    ),
)


def main() -> int:
    """Run the command line of this process; return its exit code.

    Raises SystemExit for help, version and wrong usage.
    """
    try:
        return parser.main(ABOUT, GROUPS, sys.argv[1:])
    except KeyboardInterrupt:  # while modules load; commands handle their own
        return Exit.INTERRUPTED
