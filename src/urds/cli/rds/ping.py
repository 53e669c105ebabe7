"""`urds ping`: ask an address whether RDS answers there, and how fast, as rds-ping does.

Eight sockets on automatic ports take rounds; each round one sends an empty message to port 0 of the
target, which the target's RDS answers itself, no program needed. A reply is matched by its socket,
so at most one ping per socket is under way: a round whose socket still waits sends nothing.
Source: rds-tools rds-ping(1), its lines and exit codes; the summary is ours.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import MISSING, dataclass
from ipaddress import IPv4Address, ip_address
from random import Random
from typing import Final

import urds
from urds.cli.output import BAD, QUIET, Exit, Output, UsageError
from urds.cli.parser import Command, check_ranges, find_address, json_option, option
from urds.common.types import IPAddress
from urds.rds.constants import RDS_TCP_PORT

SOCKETS: Final = 8
_NS: Final = 1_000_000_000
_UNITS_S: Final = {"usec": 1e-6, "us": 1e-6, "msec": 1e-3, "ms": 1e-3}
_GUESSES: Final = 16


def parse_interval(text: str) -> float:
    """Return seconds from a number with an optional unit. Raises UsageError."""
    unit = next((unit for unit in _UNITS_S if text.endswith(unit)), "")
    try:
        interval_s = float(text.removesuffix(unit)) * _UNITS_S.get(unit, 1.0)
    except ValueError:
        interval_s = -1.0
    if not 0 < interval_s <= 3600:
        raise UsageError(
            f"interval {text!r}: a number with ms, msec, us, usec or, for seconds, no unit;"
            " more than 0, at most 3600 s"
        )
    return interval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PingOptions:
    """Options of `urds ping`; rds-ping has the same letters."""

    target: str = option(metavar="HOST", default=MISSING, help="Address or name to ask.")
    count: int | None = option("-c", "--count", low=1, help="Stop after N pings.")
    interval_s: float = option(
        "-i", "--interval", metavar="TIME", default=1.0, parse=parse_interval,
        help="Time between two pings: a number with ms, msec, us, usec, or seconds.",
    )  # fmt: skip
    local: str | None = option(
        "-I", "--local", metavar="ADDRESS",
        help="Local address to ask from; chosen from the routes without it.",
    )  # fmt: skip
    type_of_service: int | None = option(
        "-Q", "--tos", metavar="TOS", low=0, high=255,
        help="Type of service; TCP carries them all as 0.",
    )  # fmt: skip
    json_wanted: bool = json_option()


@dataclass(frozen=True, slots=True)
class Reply:
    """The last reply to one of the sockets."""

    number: int  # of the ping, from 1
    usec: int
    duplicate: bool


class Rounds:
    """Chooses the next sender and matches replies with pings, without a socket or a clock."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.duplicates = 0
        self.rounds = 0
        self.round_trips_usec_sum = 0
        self.usec_min: int | None = None
        self.usec_max = 0
        self._waiting: dict[int, bool] = {}
        self._last: dict[int, tuple[int, int]] = {}  # socket: number and time of its ping

    def begin(self, now_ns: int) -> int | None:
        """Begin a round; return the socket that sends now, None if its last ping is unanswered."""
        index = self.rounds % SOCKETS
        self.rounds += 1
        if self._waiting.get(index):
            return None
        self.sent += 1
        self._waiting[index] = True
        self._last[index] = (self.sent, now_ns)
        return index

    def fail(self, index: int) -> int:
        """Undo a refused send: nothing is under way; return the ping's number."""
        self._waiting[index] = False
        return self._last[index][0]

    def reply(self, index: int, now_ns: int) -> Reply:
        """Match a reply with the last ping of its socket."""
        number, sent_ns = self._last.get(index, (0, now_ns))
        usec = (now_ns - sent_ns) // 1000
        duplicate = not self._waiting.get(index)
        if duplicate:
            self.duplicates += 1
        else:
            self._waiting[index] = False
            self.received += 1
            self.round_trips_usec_sum += usec
            self.usec_min = usec if self.usec_min is None else min(self.usec_min, usec)
            self.usec_max = max(self.usec_max, usec)
        return Reply(number, usec, duplicate)

    def is_over(self, count: int | None, *, due: bool) -> bool:
        """Tell whether that many were answered, or had their round and the next one is due."""
        return count is not None and (self.received >= count or (due and self.rounds >= count))


def run(options: PingOptions) -> Exit:
    """Ping until the count is reached or Ctrl-C comes; print a summary either way.

    Raises UsageError for wrong options, OSError without a usable local address.
    """
    check_ranges(options)
    output = Output(json_wanted=options.json_wanted)
    target = find_address(options.target)
    # The user named it: it is allowed as a peer of this process, wherever it is. A ping without an
    # answer is over: the end does not wait for it.
    allowed = [*urds.configure().allow, str(target).partition("%")[0]]
    urds.configure(allow=allowed, linger_s=0)
    rounds = Rounds()
    with ExitStack() as closing:
        sockets = _bind_all(options, target, closing)
        local = sockets[0].getsockname()[0]
        try:
            _ping(options, str(target), sockets, rounds, output)
        finally:
            _summarise(output, rounds, target=str(target), local=local)
    return Exit.OK if rounds.received else Exit.FAILED


def _ping(
    options: PingOptions, target: str, sockets: list[urds.Socket], rounds: Rounds, output: Output
) -> None:
    interval_ns = round(options.interval_s * _NS)
    index_of = {sock: index for index, sock in enumerate(sockets)}
    due_ns = time.monotonic_ns()
    while True:
        due = (now_ns := time.monotonic_ns()) >= due_ns
        if rounds.is_over(options.count, due=due):
            return
        if due:
            due_ns = max(due_ns + interval_ns, now_ns)
            index = rounds.begin(now_ns)
            if index is not None:
                try:
                    sockets[index].sendto(b"", (target, urds.PING_PORT))
                except OSError as failure:
                    reason = failure.strerror or str(failure)
                    number, usec = rounds.fail(index), (time.monotonic_ns() - now_ns) // 1000
                    output.record({"number": number, "usec": usec, "error": reason})
                    output.line(f" {number:3}: {usec} usec ERROR: {reason}", BAD)
        wait_s = max(0, due_ns - time.monotonic_ns()) / _NS
        readable, _, _ = select.select(sockets, [], [], wait_s)
        for sock in readable:
            _take_replies(sock, index_of[sock], target, rounds, output)


def _take_replies(
    sock: urds.Socket, index: int, target: str, rounds: Rounds, output: Output
) -> None:
    with suppress(BlockingIOError):
        while True:
            _, source = sock.recvfrom(0)
            reply = rounds.reply(index, time.monotonic_ns())
            said = {"number": reply.number, "usec": reply.usec, "from": source[0]}
            output.record({**said, "duplicate": reply.duplicate})
            output.line(format_reply(reply, source[0], target))


def format_reply(reply: Reply, source: str, target: str) -> str:
    """Return the line of rds-ping for a reply."""
    line = f" {reply.number:3}: {reply.usec} usec"
    if source != target:
        line += f" ({source})"
    return line + (" DUP!" if reply.duplicate else "")


def _summarise(output: Output, rounds: Rounds, *, target: str, local: str) -> None:
    average = rounds.round_trips_usec_sum // rounds.received if rounds.received else None
    output.record(
        {
            "target": target,
            "local": local,
            "sent": rounds.sent,
            "received": rounds.received,
            "duplicates": rounds.duplicates,
            "usec_min": rounds.usec_min,
            "usec_average": average,
            "usec_max": rounds.usec_max if rounds.received else None,
        }
    )
    line = f"{local} to {target}: {rounds.sent} sent, {rounds.received} received"
    if rounds.duplicates:
        line += f", {rounds.duplicates} duplicates"
    if rounds.received:
        line += f", min/avg/max {rounds.usec_min}/{average}/{rounds.usec_max} usec"
    output.line(line, QUIET if rounds.received else BAD)


def _bind_all(options: PingOptions, target: IPAddress, closing: ExitStack) -> list[urds.Socket]:
    """Bind the sockets to one local address; Ctrl-C or the end cancels their pings."""
    first = bind_from(target, options.local, closing)
    local = first.getsockname()[0]
    sockets = [first, *(_bind(local, closing) for _ in range(SOCKETS - 1))]
    for sock in sockets:
        sock.setblocking(False)
        if options.type_of_service is not None:
            sock.ioctl(urds.SIOCRDSSETTOS, options.type_of_service)
    return sockets


def candidates(target: IPAddress, outgoing: IPAddress, random: Random) -> Iterator[str]:
    """Yield local addresses from which to reach the target, the likeliest first.

    First comes the one that the routes choose (`outgoing`). Each process that binds needs an
    address, so where the target is an IPv4 address of this machine, others of 127/8 follow.
    """
    if outgoing != target:
        yield str(outgoing)
    if outgoing == target or target.is_loopback:
        if target.version == 6:
            yield str(target)  # there is no second one: this process answers itself
            return
        base = int(IPv4Address("127.0.0.0"))
        for _ in range(_GUESSES):
            yield str(IPv4Address(base + random.randrange(1 << 8, (1 << 24) - 1)))


def outgoing_address(target: IPAddress) -> IPAddress:
    """Return the local address that the routing table chooses, by a UDP socket that sends nothing.

    Raises OSError: there is no route.
    """
    family = socket.AF_INET if target.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(target), RDS_TCP_PORT))
        except OSError as failure:
            raise OSError(failure.errno, f"{failure.strerror}: no route to {target}") from failure
        return ip_address(str(probe.getsockname()[0]))


def bind_from(target: IPAddress, local: str | None, closing: ExitStack) -> urds.Socket:
    """Return a socket at the local address that the user named, else at the first free candidate.

    `closing` cancels what it has not delivered, and closes it. Raises UsageError, OSError.
    """
    if local is not None:
        return _bind(str(find_address(local)), closing)
    taken: OSError | None = None
    for one in candidates(target, outgoing_address(target), Random()):
        try:
            return _bind(one, closing)
        except OSError as failure:
            if failure.errno != errno.EADDRINUSE:
                raise
            taken = failure
    assert taken is not None, "there is at least one candidate"
    raise OSError(taken.errno, f"{taken.strerror}; choose another local address with -I") from taken


def _bind(local: str, closing: ExitStack) -> urds.Socket:
    sock = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
    closing.callback(sock.close)
    sock.bind((local, 0))
    closing.callback(sock.cancel)  # runs before the close, which so waits for no absent target
    return sock


COMMAND: Final = Command(
    about="""
    Works as rds-ping: empty messages to port 0 of the target, which its RDS answers itself, a
    kernel's or urds. Prints a line per reply; the exit code is 0 if there was at least one,
    else 1.
    """,
    examples=(
        ("urds ping 10.0.0.2", "once a second, until Ctrl-C"),
        ("urds ping -c 5 -i 100ms fd00::2", "five times, ten a second"),
        ("urds ping -c 1 -I 10.0.0.1 10.0.0.2", "from a chosen address"),
    ),
    options=PingOptions,
    run=run,
)
