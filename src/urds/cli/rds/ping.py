"""`urds ping`: ask an address whether RDS answers there, and how fast, as rds-ping does.

Eight sockets on automatic ports take rounds; each round one sends an empty message to port 0 of the
target, which the target's RDS answers itself, no program needed. A reply is matched by its socket,
so at most one ping per socket is under way: a round whose socket still waits sends nothing. Before
the first round a ping on a ninth socket, which no figure counts, makes the connection: its time is
that of connecting. Without an answer, the connection's own state says why.
Source: rds-tools rds-ping(1), its lines and exit codes; the summary is ours.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import MISSING, dataclass
from ipaddress import IPv4Address, ip_address
from random import Random
from statistics import pstdev
from typing import Final

import urds
from urds.cli.output import BAD, QUIET, Exit, Output, UsageError, complain
from urds.cli.parser import Command, check_ranges, find_address, json_option, option
from urds.common.types import IPAddress
from urds.rds.constants import RDS_TCP_PORT

SOCKETS: Final = 8
_CONNECTOR: Final = SOCKETS  # the index of the ninth
_ROUND_TRIPS_MAX: Final = 100_000  # that percentiles are taken of; the last ones
_TELL_S: Final = 0.9  # between two lines about missing answers: rounds of 1 s are not exact
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
        self.connected_usec: int | None = None
        self.round_trips_usec: deque[int] = deque(maxlen=_ROUND_TRIPS_MAX)
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

    def fail(self, index: int) -> None:
        """Undo a refused send: nothing is under way."""
        self._waiting[index] = False

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
            self.round_trips_usec.append(usec)
        return Reply(number, usec, duplicate)

    def waiting_ns(self, now_ns: int) -> tuple[int, int] | None:
        """Return number and age of the oldest ping under way, None without one."""
        waits = [self._last[index] for index, waiting in self._waiting.items() if waiting]
        number, sent_ns = min(waits, default=(0, 0))
        return (number, now_ns - sent_ns) if waits else None

    @property
    def loss_percent(self) -> float:
        """How much of what was sent has no answer."""
        return 100 * (self.sent - self.received) / self.sent if self.sent else 0.0

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
    rounds, began_ns = Rounds(), time.monotonic_ns()
    with ExitStack() as closing:
        sockets = _bind_all(options, target, closing)
        local = sockets[0].getsockname()[0]
        try:
            _ping(options, str(target), sockets, rounds, output)
        finally:
            _summarise(output, rounds, target=str(target), local=local)
        if not rounds.received:
            reason = why(urds.connections(), str(target), (time.monotonic_ns() - began_ns) / _NS)
            complain("urds ping", f"no answer from {target}: {reason}")
    return Exit.OK if rounds.received else Exit.FAILED


def _ping(
    options: PingOptions, target: str, sockets: list[urds.Socket], rounds: Rounds, output: Output
) -> None:
    interval_ns = round(options.interval_s * _NS)
    index_of = {sock: index for index, sock in enumerate(sockets)}
    began_ns = told_ns = time.monotonic_ns()
    due_ns = began_ns + min(interval_ns, _NS)  # connected sooner, the first round begins sooner
    with suppress(OSError):  # the first ping will be refused as well, and say so
        sockets[_CONNECTOR].sendto(b"", (target, urds.PING_PORT))
    while True:
        due = (now_ns := time.monotonic_ns()) >= due_ns
        if rounds.is_over(options.count, due=due):
            return
        if due:
            due_ns = max(due_ns + interval_ns, now_ns)
            waiting = rounds.waiting_ns(now_ns)
            if waiting is not None and now_ns - told_ns >= _TELL_S * _NS:
                told_ns = now_ns
                _tell_unanswered(*waiting, target, output)
            index = rounds.begin(now_ns)
            if index is not None and not _send(sockets[index], target, rounds.sent, output):
                rounds.fail(index)
        wait_s = max(0, due_ns - time.monotonic_ns()) / _NS
        readable, _, _ = select.select(sockets, [], [], wait_s)
        for sock in readable:
            if index_of[sock] != _CONNECTOR:
                _take_replies(sock, index_of[sock], target, rounds, output)
            elif _is_answered(sock) and rounds.connected_usec is None:
                rounds.connected_usec = (time.monotonic_ns() - began_ns) // 1000
                if not rounds.rounds:
                    due_ns = time.monotonic_ns()


def _send(sock: urds.Socket, target: str, number: int, output: Output) -> bool:
    """Send a ping; print why that was refused, and return false."""
    began_ns = time.monotonic_ns()
    try:
        sock.sendto(b"", (target, urds.PING_PORT))
    except OSError as failure:
        reason = failure.strerror or str(failure)
        usec = (time.monotonic_ns() - began_ns) // 1000
        output.record({"number": number, "usec": usec, "error": reason})
        output.line(f" {number:3}: {usec} usec ERROR: {reason}", BAD)
        return False
    return True


def _is_answered(sock: urds.Socket) -> bool:
    try:
        sock.recvfrom(0)
    except BlockingIOError:
        return False
    return True


def _tell_unanswered(number: int, age_ns: int, target: str, output: Output) -> None:
    age_s, reason = age_ns / _NS, why(urds.connections(), target, age_ns / _NS)
    output.record({"number": number, "unanswered_s": age_s, "reason": reason})
    output.line(f" {number:3}: no answer yet after {age_s:.1f} s: {reason}", BAD)


def why(connections: Sequence[urds.ConnectionInfo], target: str, age_s: float) -> str:
    """Return in words why a ping of that age has no answer, by the connection to its target."""
    one = _connection_to(target, connections)
    if one is None:
        return "no connection was begun"
    text = outage(connections, target)
    if text:
        return text
    state_s, seconds = one.state_s or 0.0, f"for {one.state_s or 0.0:.1f} s"
    silent_s = state_s if one.last_received_s is None else one.last_received_s
    if one.state is urds.ConnectionState.UP and silent_s < age_s:
        return f"connected {seconds}, and it sends; it may answer no pings (its ping_enable)"
    text = f"connected {seconds}, but silent for {silent_s:.1f} s"
    return f"{text}: its process may hang or be stopped"


def outage(connections: Sequence[urds.ConnectionInfo], target: str) -> str:
    """Return in words why nothing reaches the target; nothing if there is a connection, or none."""
    one = _connection_to(target, connections)
    if one is None:
        return ""
    if one.state is urds.ConnectionState.CONNECTING:
        text = f"connecting for {one.state_s or 0.0:.1f} s, attempts: {one.attempts}"
    elif one.state is urds.ConnectionState.DOWN:
        text = "not connected"
    else:
        return ""
    return f"{text}; {one.last_error}" if one.last_error else text


def _connection_to(
    target: str, connections: Sequence[urds.ConnectionInfo]
) -> urds.ConnectionInfo | None:
    """Return the first path to a peer, if it was wanted."""
    found = [one for one in connections if str(one.peer) == target]
    return min(found, key=lambda one: one.path, default=None)


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
    usecs = sorted(rounds.round_trips_usec)
    average = sum(usecs) // len(usecs) if usecs else None
    deviation = round(pstdev(usecs)) if usecs else None
    middle, high = (_percentile(usecs, percent) if usecs else None for percent in (50, 99))
    output.record(
        {
            "target": target,
            "local": local,
            "sent": rounds.sent,
            "received": rounds.received,
            "duplicates": rounds.duplicates,
            "loss_percent": round(rounds.loss_percent, 1),
            "connected_usec": rounds.connected_usec,
            "usec_min": usecs[0] if usecs else None,
            "usec_average": average,
            "usec_max": usecs[-1] if usecs else None,
            "usec_deviation": deviation,
            "usec_p50": middle,
            "usec_p99": high,
        }
    )
    line = f"{local} to {target}: {rounds.sent} sent, {rounds.received} received"
    if rounds.duplicates:
        line += f", {rounds.duplicates} duplicates"
    line += f", {rounds.loss_percent:.3g}% loss"
    if rounds.connected_usec is not None:
        line += f", connected in {rounds.connected_usec / 1000:.3g} ms"
    output.line(line, QUIET if usecs else BAD)
    if usecs:
        line = f"min/avg/max/mdev {usecs[0]}/{average}/{usecs[-1]}/{deviation} usec"
        output.line(f"{line}, p50/p99 {middle}/{high} usec", QUIET)


def _percentile(in_order: Sequence[int], percent: int) -> int:
    """Return the value that so much of all does not exceed."""
    return in_order[max(0, -(-len(in_order) * percent // 100) - 1)]


def _bind_all(options: PingOptions, target: IPAddress, closing: ExitStack) -> list[urds.Socket]:
    """Bind the sockets to one local address; Ctrl-C or the end cancels their pings."""
    first = bind_from(target, options.local, closing)
    local = first.getsockname()[0]
    sockets = [first, *(_bind(local, closing) for _ in range(SOCKETS))]
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
    kernel's or urds. Prints a line per reply, and why there is none; the exit code is 0 if
    there was at least one, else 1.
    """,
    examples=(
        ("urds ping 10.0.0.2", "once a second, until Ctrl-C"),
        ("urds ping -c 5 -i 100ms fd00::2", "five times, ten a second"),
        ("urds ping -c 1 -I 10.0.0.1 10.0.0.2", "from a chosen address"),
    ),
    options=PingOptions,
    run=run,
)
