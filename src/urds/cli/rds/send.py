"""`urds send`: send messages to a socket, and wait until its host has acknowledged them.

An acknowledgement is the peer's RDS's own: it has the message, whether or not a program there has
bound the port. `urds recv` is the other side.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, dataclass
from typing import Final

import urds
from urds.cli.output import BAD, QUIET, Exit, Output, complain
from urds.cli.parser import Command, check_ranges, find_address, json_option, option
from urds.cli.rds.ping import bind_from, outage
from urds.common.ip_sockets import host_port
from urds.rds.addresses import SocketAddress

PORT_MIN: Final = 2  # 0 answers pings, 1 is reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """Options of `urds send`."""

    target: str = option(metavar="HOST", default=MISSING, help="Address or name to send to.")
    port: int = option(
        metavar="PORT", default=MISSING, low=PORT_MIN, high=65_535, help="RDS port there."
    )
    texts: Sequence[str] = option(
        metavar="TEXT", default=(), help="Messages; without one, the lines of standard input."
    )
    count: int = option("-c", "--count", default=1, low=1, help="Send each message so often.")
    timeout_s: float = option(
        "-w", "--timeout", metavar="SECONDS", default=5.0, low=0, high=3600,
        help="How long to wait for room, and at the end for acknowledgements.",
    )  # fmt: skip
    local: str | None = option(
        "-I", "--local", metavar="ADDRESS",
        help="Local address to send from; chosen from the routes without it.",
    )  # fmt: skip
    json_wanted: bool = json_option()


def run(options: SendOptions) -> Exit:
    """Send; `Exit.FAILED` if a message was not acknowledged in time.

    Raises UsageError for wrong options, OSError: no local address, or a message is refused.
    """
    check_ranges(options)
    target = find_address(options.target)
    # As in `ping`: who names a peer allows it, and what is left is not waited for again.
    allowed = [*urds.configure().allow, str(target).partition("%")[0]]
    urds.configure(allow=allowed, linger_s=0)
    with ExitStack() as closing:
        sock = bind_from(target, options.local, closing)
        sock.settimeout(options.timeout_s)
        sent, refused = 0, None
        try:
            try:
                for payload in _payloads(options):
                    sock.sendto(payload, (str(target), options.port))
                    sent += 1
            except OSError as failure:  # of one message: those before it are on their way
                refused = failure
            urds.drain(options.timeout_s)
        finally:
            left = urds.drain(0)
            lost = urds.stats()["send_given_up"]
            there = host_port((str(target), options.port))
            _summarise(options, sock.getsockname(), there, sent, left + lost)
        why = outage(urds.connections(), str(target))
    if left:
        text = f"not acknowledged within {options.timeout_s:g} s: {left} of {sent}"
        complain("urds send", f"{text}; {why}" if why else text)
    if lost:
        complain("urds send", f"the peer restarted: {lost} of {sent} may be lost")
    if refused is not None:
        raise refused
    return Exit.FAILED if left or lost else Exit.OK


def _payloads(options: SendOptions) -> Iterator[bytes]:
    lines = (line.removesuffix(b"\n") for line in sys.stdin.buffer)
    for payload in map(os.fsencode, options.texts) if options.texts else lines:
        for _ in range(options.count):
            yield payload


def _summarise(
    options: SendOptions, local: SocketAddress, target: str, sent: int, left: int
) -> None:
    output = Output(json_wanted=options.json_wanted)
    here, counts = host_port(local), {"sent": sent, "acknowledged": sent - left}
    output.record({"local": here, "target": target, **counts})
    text = ", ".join(f"{count} {name}" for name, count in counts.items())
    output.line(f"{here} to {target}: {text}", BAD if left else QUIET)


COMMAND: Final = Command(
    about="""
    Sends each TEXT as a message, or each line of standard input, and waits until the RDS of the
    host has acknowledged all of them. It acknowledges what it has, also for a port that no socket
    has bound. The exit code is 0 if all were acknowledged, else 1.
    """,
    examples=(
        ("urds send 10.0.0.2 4000 hello", "to `urds recv 10.0.0.2 4000` there"),
        ("urds send -c 1000 10.0.0.2 4000 again", "the same message, a thousand times"),
        ("ls | urds send 10.0.0.2 4000", "a message per line"),
    ),
    options=SendOptions,
    run=run,
)
