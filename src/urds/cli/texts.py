"""The words of the help, which both fronts show, and the version."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Final

ABOUT: Final = "Reliable Datagram Sockets in user space."

Examples = tuple[tuple[str, str], ...]  # a command, and what it is for

# One line, an empty one, then paragraphs; each front breaks them to its width.
DEMO: Final = (
    "Show hosts that lose their connections and no message.\n\n"
    "Each host is a process with an address of its own in 127/8. Every one sends numbered, hashed"
    " messages to every other, and resets all of its TCP connections on purpose, again and again."
    " The summary counts what was lost (nothing), and the exit code is 1 if anything was."
)
DEMO_EXAMPLES: Final = (
    ("urds demo", "four hosts, about 8 seconds"),
    ("urds demo --hosts 8 --reset-every 0.05", "more of everything"),
    ("urds demo --seconds 3 --seed 1 --json", "for a script"),
)

PING: Final = (
    "Ask an address whether RDS answers there, and how fast.\n\n"
    "Works as rds-ping: empty messages to port 0 of the target, which its RDS answers itself, be it"
    " a kernel or urds. A line per reply; the exit code is 0 if there was at least one, else 1."
)
PING_EXAMPLES: Final = (
    ("urds ping 10.0.0.2", "once a second, until Ctrl-C"),
    ("urds ping -c 5 -i 100ms fd00::2", "five times, ten a second"),
    ("urds ping -c 1 -I 10.0.0.1 10.0.0.2", "from a chosen address"),
)

INFO: Final = (
    "Show counters and tables of this user's urds processes.\n\n"
    "Tables, columns and letters are those of rds-info; without a letter all are shown. Each"
    " process that has bound a socket answers for itself. Counters are sums over the processes;"
    " --pid chooses one."
)
INFO_EXAMPLES: Final = (
    ("urds info", "everything"),
    ("urds info -n -v", "all paths, and what waits on each"),
    ("urds info -c --pid 4711 --json", "for a script"),
)

DAT: Final = "uDAPL 1.2 in user space: what its calls do, and a test between two processes."
DAT_DEMO: Final = (
    "Show receive buffers while messages overtake each other.\n\n"
    "The worked example of dat_ep_recv_query(3DAT) on a simulated network: of the messages 19 to 23"
    " some arrive before others, and after each step the endpoint tells how many buffers it holds"
    " and over how many messages they reach, for both ways to take buffers from a shared queue. The"
    " exit code is 1 if a count is not the one that the page gives."
)
DAT_DEMO_EXAMPLES: Final = (
    ("urds dat demo", "both tables"),
    ("urds dat demo --json", "for a script"),
)

OPTIONS: Final = {
    "hosts": "How many hosts, 2 to 16.",
    "seconds": "How long they send.",
    "size": "Octets of each message, 24 to 65536.",
    "reset_every": "Seconds between the resets of one host, on average; 0 for none.",
    "seed": "Repeat the content of an earlier run.",
    "first": "Address of the first host; the others follow it.",
    "target": "Address or name to ask.",
    "count": "Stop after so many.",
    "interval": "Time between two pings: a number with ms, msec, us, usec, or seconds.",
    "local": "Local address to ask from; guessed from the routes if absent.",
    "tos": "Type of service, 0 to 255; TCP carries them all as 0.",
    "pid": "This process only.",
    "verbose": "More columns, and all paths of each connection.",
    "json": "Print JSON.",
}


def version() -> str:
    """Return the line of `--version`."""
    try:
        own = metadata.version("urds")
    except metadata.PackageNotFoundError:
        own = "(not installed)"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"urds {own}, Python {python}, {platform.system()} {platform.release()}"


def examples(lines: Examples) -> str:
    """Return examples as lines, aligned."""
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"  {command.ljust(width)}   {what}" for command, what in lines)
