"""`urds ping`: ask an address whether RDS answers there, and how fast, as rds-ping does.

Eight sockets on automatic ports take turns; each turn one sends an empty message to port 0 of the
target, which the target's RDS answers itself, no program needed. A reply is matched by its socket,
so at most one ping per socket is under way: a turn whose socket still waits sends nothing.
Source: rds-tools rds-ping(1), its lines and exit codes; the summary is ours.
"""

from __future__ import annotations

import errno
import select
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from random import Random
from typing import Final

import urds
from urds.cli.addresses import Address, candidates, find_address, outgoing_address
from urds.cli.exits import Exit, UsageError
from urds.cli.output import BAD, QUIET, Output

SOCKETS: Final = 8
_NS: Final = 1_000_000_000
_UNITS_S: Final = {"usec": 1e-6, "us": 1e-6, "msec": 1e-3, "ms": 1e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class PingOptions:
    """Whom to ask, and how often."""

    target: str
    count: int | None = None  # None: until Ctrl-C
    interval_s: float = 1.0
    local: str | None = None  # None: guessed
    type_of_service: int | None = None
    json_wanted: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back to one of the sockets."""

    number: int  # of the ping, from 1
    usec: int
    duplicate: bool


class Turns:
    """Who sends next and which ping a reply answers; the books, without a socket or a clock."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.duplicates = 0
        self.turns = 0
        self.round_trips_usec_sum = 0
        self.usec_min: int | None = None
        self.usec_max = 0
        self._waiting: dict[int, bool] = {}
        self._last: dict[int, tuple[int, int]] = {}  # socket: number and time of its ping

    def begin(self, now_ns: int) -> int | None:
        """Take a turn; return the socket that sends now, None if its last ping is unanswered."""
        index = self.turns % SOCKETS
        self.turns += 1
        if self._waiting.get(index):
            return None
        self.sent += 1
        self._waiting[index] = True
        self._last[index] = (self.sent, now_ns)
        return index

    def fail(self, index: int) -> int:
        """Take a refused send back, nothing is under way; return the ping's number."""
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
        """Tell whether that many were answered, or had their turn and the next one is due."""
        return count is not None and (self.received >= count or (due and self.turns >= count))


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


def run(options: PingOptions) -> Exit:
    """Ping until the count is reached or Ctrl-C comes; print a summary either way.

    Raises UsageError for options that cannot be, OSError when no local address can be had.
    """
    if options.count is not None and options.count < 1:
        raise UsageError(f"count {options.count}: must be 1 or more")
    if not 0 <= (options.type_of_service or 0) <= 255:
        raise UsageError(f"type of service {options.type_of_service}: must be from 0 to 255")
    output = Output(json_wanted=options.json_wanted)
    target = find_address(options.target)
    _allow(target)
    turns = Turns()
    with ExitStack() as closing:
        sockets = _bind_all(options, target, closing)
        local = sockets[0].getsockname()[0]
        try:
            _ping(options, str(target), sockets, turns, output)
        finally:
            _summarise(output, turns, target=str(target), local=local)
    return Exit.OK if turns.received else Exit.FAILED


def _allow(target: Address) -> None:
    """Let this process talk to the target, wherever it is: the user named it."""
    settings = urds.configure()
    # A ping that nobody answered is over: the end does not wait for it.
    urds.configure(allow=[*settings.allow, str(target).partition("%")[0]], linger_s=0)


def _ping(
    options: PingOptions, target: str, sockets: list[urds.Socket], turns: Turns, output: Output
) -> None:
    interval_ns = round(options.interval_s * _NS)
    index_of = {sock: index for index, sock in enumerate(sockets)}
    due_ns = time.monotonic_ns()
    while True:
        due = (now_ns := time.monotonic_ns()) >= due_ns
        if turns.is_over(options.count, due=due):
            return
        if due:
            due_ns = max(due_ns + interval_ns, now_ns)
            index = turns.begin(now_ns)
            if index is not None:
                try:
                    sockets[index].sendto(b"", (target, urds.PING_PORT))
                except OSError as failure:
                    reason = failure.strerror or str(failure)
                    _print_error(output, turns.fail(index), now_ns, reason)
        wait_s = max(0, due_ns - time.monotonic_ns()) / _NS
        readable, _, _ = select.select(sockets, [], [], wait_s)
        for sock in readable:
            _take_replies(sock, index_of[sock], target, turns, output)


def _take_replies(sock: urds.Socket, index: int, target: str, turns: Turns, output: Output) -> None:
    with suppress(BlockingIOError):
        while True:
            _, source = sock.recvfrom(0)
            reply = turns.reply(index, time.monotonic_ns())
            if output.json_wanted:
                output.record(
                    {
                        "number": reply.number,
                        "usec": reply.usec,
                        "from": source[0],
                        "duplicate": reply.duplicate,
                    }
                )
            else:
                output.line(format_reply(reply, source[0], target))


def format_reply(reply: Reply, source: str, target: str) -> str:
    """Return the line of rds-ping for a reply."""
    line = f" {reply.number:3}: {reply.usec} usec"
    if source != target:
        line += f" ({source})"
    return line + (" DUP!" if reply.duplicate else "")


def _print_error(output: Output, number: int, sent_ns: int, reason: str) -> None:
    usec = (time.monotonic_ns() - sent_ns) // 1000
    if output.json_wanted:
        output.record({"number": number, "usec": usec, "error": reason})
    else:
        output.line(f" {number:3}: {usec} usec ERROR: {reason}", BAD)


def _summarise(output: Output, turns: Turns, *, target: str, local: str) -> None:
    average = turns.round_trips_usec_sum // turns.received if turns.received else None
    if output.json_wanted:
        output.record(
            {
                "target": target,
                "local": local,
                "sent": turns.sent,
                "received": turns.received,
                "duplicates": turns.duplicates,
                "usec_min": turns.usec_min,
                "usec_average": average,
                "usec_max": turns.usec_max if turns.received else None,
            }
        )
        return
    line = f"{local} to {target}: {turns.sent} sent, {turns.received} received"
    if turns.duplicates:
        line += f", {turns.duplicates} duplicates"
    if turns.received:
        line += f", min/avg/max {turns.usec_min}/{average}/{turns.usec_max} usec"
    output.line(line, QUIET if turns.received else BAD)


def _bind_all(options: PingOptions, target: Address, closing: ExitStack) -> list[urds.Socket]:
    """Bind the sockets to one local address; Ctrl-C or the end takes their pings back."""
    sockets: list[urds.Socket] = []
    if options.local is None:
        local = _free_address(target, closing, sockets)
    else:
        local = str(find_address(options.local))
    while len(sockets) < SOCKETS:
        sockets.append(_bind(local, closing))
    for sock in sockets:
        sock.setblocking(False)
        if options.type_of_service is not None:
            sock.ioctl(urds.SIOCRDSSETTOS, options.type_of_service)
    return sockets


def _free_address(target: Address, closing: ExitStack, sockets: list[urds.Socket]) -> str:
    """Bind the first socket to the first candidate that nobody hosts. Raises OSError."""
    taken: OSError | None = None
    for local in candidates(target, outgoing_address(target), Random()):
        try:
            sockets.append(_bind(local, closing))
        except OSError as failure:
            if failure.errno != errno.EADDRINUSE:
                raise
            taken = failure
        else:
            return local
    assert taken is not None, "there is at least one candidate"
    raise OSError(taken.errno, f"{taken.strerror}; choose another local address with -I") from taken


def _bind(local: str, closing: ExitStack) -> urds.Socket:
    sock = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
    closing.callback(sock.close)
    sock.bind((local, 0))
    closing.callback(sock.cancel)  # runs before the close: nobody waits for an absent target
    return sock
