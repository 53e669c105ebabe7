"""`urds recv`: bind a port and print the messages that come, the other side of `urds send`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Final

import urds
from urds.cli.output import Exit, Output, complain, is_terminal
from urds.cli.parser import Command, check_ranges, find_address, json_option, option
from urds.cli.rds.send import PORT_MIN
from urds.common.ip_sockets import host_port
from urds.rds.addresses import SocketAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class RecvOptions:
    """Options of `urds recv`."""

    local: str = option(metavar="ADDRESS", default=MISSING, help="Local address to bind.")
    port: int = option(
        metavar="PORT", default=MISSING, low=PORT_MIN, high=65_535, help="RDS port to bind."
    )
    count: int | None = option("-c", "--count", low=1, help="End after so many messages.")
    timeout_s: float | None = option(
        "-w", "--timeout", metavar="SECONDS", low=0, high=31_536_000,
        help="End after so long without a message; without it, only Ctrl-C ends.",
    )  # fmt: skip
    allow: Sequence[str] = option(
        "--allow", metavar="NETWORK", default=(),
        help="Peers outside loopback and the own subnet, beside URDS_ALLOW. May be repeated.",
    )  # fmt: skip
    verbose: bool = option("-v", "--verbose", default=False, help="Print each message's source.")
    json_wanted: bool = json_option()


def run(options: RecvOptions) -> Exit:
    """Receive until the count or the timeout; `Exit.FAILED` if too few messages came.

    Raises UsageError, SettingError for a network that is none, OSError: the address is not free.
    """
    check_ranges(options)
    settings = urds.configure(allow=[*urds.configure().allow, *options.allow])
    received = 0
    with urds.Socket() as sock:
        sock.bind((str(find_address(options.local)), options.port))
        sock.settimeout(options.timeout_s)
        while options.count is None or received < options.count:
            try:
                payload, source = sock.recvfrom(settings.max_message_bytes)
            except (TimeoutError, BlockingIOError):  # the latter with a timeout of 0
                break
            received += 1
            _show(options, payload, source)
    if received >= (options.count or 1):
        return Exit.OK
    came = (
        "no message" if options.count is None else f"{received} of {options.count} messages; none"
    )
    complain("urds recv", f"{came} for {options.timeout_s:g} s")
    return Exit.FAILED


def _show(options: RecvOptions, payload: bytes, source: SocketAddress) -> None:
    """Print a message as a line: to a pipe its bytes, to a terminal without control characters."""
    text = payload.decode(errors="backslashreplace")
    output = Output(json_wanted=options.json_wanted)
    output.record({"from": source[0], "port": source[1], "bytes": len(payload), "text": text})
    front = f"{host_port(source)} " if options.verbose else ""
    if is_terminal():
        output.line(front + "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text))
    elif not options.json_wanted:
        sys.stdout.buffer.write(front.encode() + payload + b"\n")
        sys.stdout.buffer.flush()


COMMAND: Final = Command(
    about="""
    Binds ADDRESS and PORT and prints each message that comes as a line. Peers are those of this
    host, of the subnet of the address and of --allow. The exit code is 0 once the count is there
    or, without one, if a message came before the timeout, else 1.
    """,
    examples=(
        ("urds recv 10.0.0.2 4000", "until Ctrl-C"),
        ("urds recv -c 1 -w 30 10.0.0.2 4000", "one message, within 30 seconds"),
        ("urds recv -v --allow 10.1.0.0/16 10.0.0.2 4000", "from another subnet as well"),
    ),
    options=RecvOptions,
    run=run,
)
