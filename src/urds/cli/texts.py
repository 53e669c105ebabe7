"""The words of the help, which both fronts show, and the version."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Final, NamedTuple

ABOUT: Final = "Reliable Datagram Sockets in user space."

Examples = tuple[tuple[str, str], ...]  # a command, and what it is for


class Letter(NamedTuple):
    """An option of one letter, after the tool that it comes from."""

    letter: str
    name: str  # the field of the tool's record
    metavar: str  # a flag has none
    default: str | int | float | None
    text: str


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

VERBS: Final = "Software verbs: what the devices of this host reach."
VERBS_BENCH: Final = (
    "Measure verbs beside plain sockets, in the tables of perftest.\n\n"
    "Latency, bandwidth and rate of SEND and WRITE for each device and size, between two processes,"
    " then connections per second and memory per queue pair; TCP and AF_UNIX sockets of Python go"
    " through the same loops in the same run. Latency of SEND is half a round trip, of WRITE the"
    " time until it has completed. Nobody spins."
)
VERBS_BENCH_EXAMPLES: Final = (
    ("urds verbs bench", "everything, about a minute"),
    ("urds verbs bench --device shm0 --size 64", "one device and one size"),
    ("urds verbs bench --seconds 1 --json", "longer, for a script"),
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

DAT_TEST: Final = (
    "Send, receive, write and read between two endpoints, and check what arrives.\n\n"
    "Options and steps are dtest's. With -s this is the server, with -h HOST the client; with"
    " neither both run here, the server in a process of its own. Both sides need the same options."
    " An adapter serves the address that dat.conf gives it, 127.0.0.1 without a file. The exit code"
    " is 0 if everything was right, else 1."
)
DAT_TEST_EXAMPLES: Final = (
    ("urds dat test", "both sides over shared memory"),
    ("urds dat test -P tcp0 -t -b 65536", "over TCP, with times"),
    ("urds dat test -P tcp0 -s", "a server, for one client"),
    ("urds dat test -P tcp0 -h 127.0.0.1 -p", "its client, polling"),
    ("urds dat test -W -a -b 65536", "answered writes of 1, 2, 4 ... 65536 octets"),
)
DAT_LOAD: Final = (
    "Many transactions, a full pipeline, or objects until a limit, in one process.\n\n"
    "After dapltest's tests of the same letters. T does sends, RDMA reads and writes on every"
    " endpoint; P keeps a pipeline of one operation full, then measures it alone; L makes objects"
    " of each kind until one is refused, and frees them. The exit code is 1 if not all were freed."
)
DAT_LOAD_EXAMPLES: Final = (
    ("urds dat load -T T -w 8", "transactions on eight endpoints"),
    ("urds dat load -T P -o RR -b 65536", "RDMA reads of 64 KiB"),
    ("urds dat load -T L -m 200 --json", "limits, for a script"),
)
_ADAPTER: Final = Letter(
    "P", "ia_name", "IA", "shm0", "Adapter: shm0, tcp0, udp0, or a name of dat.conf."
)
DAT_LOAD_OPTIONS: Final = (
    Letter("T", "kind", "T|P|L", "T", "Transactions, performance or limits."),
    _ADAPTER,
    Letter("i", "iterations", "N", 100, "Iterations, 1 to 1000000."),
    Letter("w", "endpoints", "N", 1, "Endpoints of each side, 1 to 256 (T)."),
    Letter("b", "size_bytes", "OCTETS", 4096, "Octets of each transfer, 1 to 16777216."),
    Letter("p", "pipeline", "N", 16, "Transfers under way, 1 to 1024 (P)."),
    Letter("o", "operation", "RW|RR", "RW", "RDMA write or RDMA read (P)."),
    Letter("m", "attempts", "N", 1000, "Objects of each kind at most, 1 to 100000 (L)."),
    Letter("q", "poll", "", False, "Poll for completions instead of waiting."),
)
DAT_TEST_OPTIONS: Final = (
    _ADAPTER,
    Letter("h", "host", "HOST", None, "Be the client of the server at this address or name."),
    Letter("s", "is_server", "", False, "Be the server, for one client."),
    Letter("b", "size_bytes", "OCTETS", 64, "Octets of each transfer, 1 to 67108864."),
    Letter("B", "bursts", "N", 10, "How many transfers of each kind, 1 to 10000."),
    Letter("c", "use_cno", "", False, "Wait for receives through a notification point."),
    Letter("p", "poll", "", False, "Poll instead of waiting."),
    Letter("d", "delay_s", "S", 0.0, "Seconds that the server waits before it accepts, 0 to 60."),
    Letter("w", "write_only", "", False, "Stream RDMA writes only."),
    Letter("W", "write_ping_pong", "", False, "Answer RDMA writes with RDMA writes only."),
    Letter("u", "one_way", "", False, "With -w: the client writes, the server does not."),
    Letter("a", "all_sizes", "", False, "With -W: sizes 1, 2, 4 and so on up to that of -b."),
    Letter("i", "increment_bytes", "OCTETS", 0, "With -W: sizes by this step up to that of -b."),
    Letter("D", "validate", "", False, "Check the octets of each ping-pong."),
    Letter("S", "signal_rate", "N", 10, "Ask for one completion per so many requests, 1 to 10000."),
    Letter("t", "times", "", False, "Print what the single calls took."),
    Letter("v", "verbose", "", False, "Print the addresses of both ends, and times as -t does."),
    Letter("q", "qpn", "N", None, "Refused: adapters here have no ucm addresses."),
    Letter("l", "lid", "N", None, "Refused, as -q."),
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
    "device": "Device to measure; may be given more than once. All of them without it.",
    "sizes": "Octets of a message, 1 to 16777216; may be given more than once.",
    "figure_seconds": "How long each figure is measured.",
    "connections": "How many connections are made, 1 to 10000.",
    "conn_qual": "Connection qualifier of the server, 1 to 65535.",
    "usage": "Show this message and exit.",
    "pid": "This process only.",
    "verbose": "More columns, and all paths of each connection.",
    "json": "Print JSON.",
    "version": "Print version and data plane, and exit.",
}


def version() -> str:
    """Return the line of `--version`."""
    try:
        own = metadata.version("urds")
    except metadata.PackageNotFoundError:
        own = "(not installed)"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"urds {own} ({_plane()}), Python {python}, {platform.system()} {platform.release()}"


def _plane() -> str:
    """Return which data plane carries messages here, and why not the compiled one."""
    from urds.backend import plane_in_use
    from urds.errors import PlaneError, SettingError

    try:
        plane, reason = plane_in_use()
    except (SettingError, PlaneError) as refused:
        return f"no plane: {refused}"
    return f"{plane} plane" if plane == "native" else f"{plane} plane: {reason}"


def examples(lines: Examples) -> str:
    """Return examples as lines, aligned."""
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"  {command.ljust(width)}   {what}" for command, what in lines)
