"""The tools of `urds rsocket`, as both fronts show them: words, examples and options.

Each tool names its module and record of options; a field of that record is an option here, and no
front knows more than this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from urds.cli.exits import Exit
from urds.cli.texts import Examples

ABOUT: Final = "Sockets over RDMA: tools after rstream, riostream, udpong and rcopy, and benches."


@dataclass(frozen=True, slots=True)
class Option:
    """One option, or a positional argument if it has no flags."""

    name: str  # the field of the tool's record
    flags: tuple[str, ...]
    metavar: str
    text: str
    kind: type = str  # bool: a flag; else what the text of the option becomes
    default: Any = None
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of the group."""

    name: str
    about: str
    examples: Examples
    module: str
    record: str
    options: tuple[Option, ...]

    def run(self, values: dict[str, Any]) -> Exit:
        """Run the tool with the values of its options."""
        module = import_module(f"urds.cli.{self.module}")
        record = getattr(module, self.record)
        run: Callable[[Any], Exit] = module.run
        return run(record(**values))


_DEVICE: Final = Option(
    "device", ("--device",), "NAMES", "Devices: shm, tcp, or both by a comma.", default=""
)
_SERVE: Final = Option("is_server", ("--serve",), "", "Be the server, for one client.", bool)
_HOST: Final = Option("host", ("-s",), "HOST", "Be the client of the server at this host.")
_BIND: Final = Option("bind", ("-b",), "ADDRESS", "Local address; a server's is else 127.0.0.1.")
_BUFFER: Final = Option("buffer_bytes", ("-B",), "OCTETS", "Send and receive buffer.", int)
_ITERATIONS: Final = Option("iterations", ("-I",), "N", "Iterations of each row.", int)
_TRANSFERS: Final = Option("transfers", ("-C",), "N", "Transfers per iteration.", int)
_SIZE: Final = Option("size", ("-S",), "OCTETS", "Octets of a transfer, or all.")


def _port(port: int) -> Option:
    text = f"Port, {port} without it; a server of its own takes a free one."
    return Option("port", ("-p",), "PORT", text, int)


def _tests(text: str) -> Option:
    return Option("tests", ("-T",), "TEST", f"{text} May be repeated.", is_repeated=True)


RSTREAM: Final = Tool(
    "rstream",
    "Measure latency and bandwidth of a stream, in rstream's table.\n\n"
    "Total counts both directions; usec/xfer of a latency row is one way. Without -s and --serve"
    " the server is a process of its own on this host. Both sides need the same options. Calls"
    " wait; with -T n those that would wait are repeated at once, which rstream does by itself and"
    " which needs a processor for each side. With -T s the same program measures the kernel's TCP.",
    (
        ("urds rsocket rstream", "rsockets over shared memory, about a minute"),
        ("urds rsocket rstream -T s", "the same by the kernel's TCP"),
        ("urds rsocket rstream --device tcp -T b -S 65536 -C 100", "one size over TCP, blocking"),
        ("urds rsocket rstream --device tcp --serve -b 10.0.0.2", "a server, for one client"),
        ("urds rsocket rstream --device tcp -s 10.0.0.2", "its client"),
    ),
    "rsocket_rstream",
    "RstreamOptions",
    (
        _HOST,
        _SERVE,
        _BIND,
        Option(
            "address_format", ("-f",), "FORMAT", "The host is a name, ip, or ipv6.", default="name"
        ),
        _BUFFER,
        Option("inline_bytes", ("-i",), "OCTETS", "Inline data; 64 and 0 without it.", int),
        _ITERATIONS,
        _TRANSFERS,
        _SIZE,
        _port(7471),
        Option("keepalive_s", ("-k",), "SECONDS", "Send keepalives after so much silence.", int),
        _tests(
            "s kernel sockets, a poll, b blocking (the default), n non-blocking, f forked server"
            " (implies s), r resolve by verbs, v verify."
        ),
        _DEVICE,
    ),
)

RIOSTREAM: Final = Tool(
    "riostream",
    "Measure writes into a mapped buffer of the peer, in rstream's table.\n\n"
    "As rstream, by riomap and riowrite: the octets go straight into the buffer that the other side"
    " has mapped, and whoever waits looks at its last octet, for nothing tells of a mapped write."
    " Kernel sockets have nothing like it.",
    (
        ("urds rsocket riostream", "mapped writes over shared memory"),
        ("urds rsocket riostream --device tcp -S 65536 -C 100 -T v", "one size over TCP, verified"),
    ),
    "rsocket_riostream",
    "RiostreamOptions",
    tuple(
        _tests("b wait for the device (the default), n spin, r resolve by verbs, v verify.")
        if option.name == "tests"
        else option
        for option in RSTREAM.options
    ),
)

UDPONG: Final = Tool(
    "udpong",
    "Measure datagrams: rate and losses, or with -T e latency, in udpong's table.\n\n"
    "Sizes from 64 to 1536 octets. Octets and rates are of what arrived; lost counts the rest:"
    " datagrams have no flow control. With -T e the server echoes each one, usec/xfer is one way,"
    " and an echo that takes longer than 0.1 s is lost. Without -s and --serve the server is a"
    " process of its own on this host.",
    (
        ("urds rsocket udpong", "rates and losses"),
        ("urds rsocket udpong -T e -C 100", "latency"),
        ("urds rsocket udpong -T s", "the same by UDP of the kernel"),
    ),
    "rsocket_udpong",
    "UdpongOptions",
    (
        _HOST,
        replace(_SERVE, text="Be the server, for any clients, until Ctrl-C."),
        _BIND,
        _BUFFER,
        replace(_TRANSFERS, text="Datagrams of each size; 1000 without it."),
        _SIZE,
        _port(7174),
        _tests("s kernel sockets, a poll, b blocking (the default), n non-blocking, e echo."),
        _DEVICE,
    ),
)

RCOPY: Final = Tool(
    "rcopy",
    "Copy a file over a stream, and check its size and digest.\n\n"
    "A server writes below the folder of --into and nowhere else. A file gets its name when it is"
    " whole and right, and half a file is never seen. A server takes files from this host and from"
    " the networks of --allow, and replaces none without --overwrite. With --into and no host the"
    " server is a process of its own on this host, and a file of that name is replaced. The exit"
    " code is 1 if the file is not there afterwards.",
    (
        ("urds rsocket rcopy big.iso --into /srv/copies", "from here to here"),
        (
            "urds rsocket rcopy --serve --into /srv/copies --device tcp -b 10.0.0.2"
            " --allow 10.0.0.0/24",
            "a server",
        ),
        ("urds rsocket rcopy big.iso 10.0.0.2:new.iso --device tcp", "its client"),
    ),
    "rsocket_rcopy",
    "RcopyOptions",
    (
        Option("source", (), "FILE", "The file to copy."),
        Option("target", (), "HOST[:NAME]", "Where a server is, and the name there."),
        replace(_SERVE, text="Be the server, until Ctrl-C; one client at a time."),
        Option("into", ("--into",), "FOLDER", "The folder below which the server writes."),
        Option(
            "allow",
            ("--allow",),
            "NETWORK",
            "Hosts that may copy to the server; else this host alone. May be repeated.",
            default=(),
            is_repeated=True,
        ),
        Option("max_bytes", ("--max-bytes",), "N", "Largest file the server takes; 1 GiB.", int),
        Option("overwrite", ("--overwrite",), "", "Let the server replace files.", bool),
        _BIND,
        _port(7427),
        Option("is_kernel", ("--kernel",), "", "Use TCP sockets of the kernel.", bool),
        _DEVICE,
    ),
)

BENCH: Final = Tool(
    "bench",
    "Measure rsockets over shm and tcp beside the kernel's TCP, in one run.\n\n"
    "rr and stream print the lines of netperf's TCP_RR and TCP_STREAM (both without a name), curve"
    " the throughput from 1 octet to 16 MiB with its dips, copies and wake-ups, connections what"
    " many open connections cost. --breakdown says where a sender's processor time goes, beside the"
    " table of the study of the original. Both ends are processes of this host.",
    (
        ("urds rsocket bench", "rr and stream"),
        ("urds rsocket bench rr --size 1 --seconds 5", "longer, for one octet"),
        ("urds rsocket bench curve --device shm --json", "the curve over shared memory"),
        ("urds rsocket bench connections 10000", "10,000 connections"),
        ("urds rsocket bench --breakdown --device shm", "where the time goes"),
    ),
    "rsocket_bench",
    "RsocketBenchOptions",
    (
        Option("kind", (), "KIND", "rr, stream, curve or connections."),
        Option("connections", (), "N", "How many connections, 1000 without it.", int),
        Option("is_breakdown", ("--breakdown",), "", "Say where the time goes.", bool),
        Option(
            "sizes", ("--size",), "OCTETS", "Octets of a message; may be repeated.", int,
            is_repeated=True,
        ),
        Option("seconds", ("--seconds",), "S", "How long each figure takes.", float, 0.5),
        replace(_DEVICE, default="shm,tcp"),
    ),
)  # fmt: skip

TOOLS: Final = (RSTREAM, RIOSTREAM, UDPONG, RCOPY, BENCH)
