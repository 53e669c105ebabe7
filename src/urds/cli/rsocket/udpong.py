"""`urds rsocket udpong`: datagrams of one size after another, their losses and their latency.

Source: rsocket.md section 15. A client logs in, and for each size starts a run, sends its data and
ends it; the server answers each of these and says at the end how many it got. With `-T e` the
server echoes each datagram, and the next one follows the echo. Whatever is lost of login, start
and end is repeated; data are not: they are counted.
"""

from __future__ import annotations

import errno
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Any, Final

from urds.cli.exits import Exit, UsageError
from urds.cli.output import TITLE, Output, complain
from urds.cli.rsocket_addresses import local_address, resolved
from urds.cli.rsocket_processes import is_abandoned, own_server, serve_child, tell_port
from urds.cli.rsocket_transfers import number, octets
from urds.cli.rsocket_ways import (
    LOOPBACK,
    AnySocket,
    choose_devices,
    device_names,
    new_socket,
)

PORT: Final = 7174
SIZES: Final = (64, 128, 192, 256, 384, 512, 768, 1024, 1536)
_MODULE: Final = "urds.cli.rsocket_udpong"
_SIZE_MAX: Final = 2000  # a slot of 2048 octets, less the longest header. rsocket.md section 10
_TRANSFERS: Final = 1000
_ANSWER_WAIT_S: Final = 0.2  # then login, start and end are repeated
_ANSWERS_MISSED_MAX: Final = 25
_ECHO_WAIT_S: Final = 0.1  # an echo that takes longer counts as lost
_LOSSES_MAX: Final = 100  # echoes in a row: then the server is gone
_CLIENTS_MAX: Final = 1024
_ROOM_WAITS_MAX: Final = 30
# Operation, client, round, nothing, count or number; the rest is filling.
_MESSAGE: Final = Struct(">BBBxI")
TESTS: Final = {"s": "socket", "a": "async", "b": "blocking", "n": "nonblocking", "e": "echo"}


class Op(IntEnum):
    """What a datagram is."""

    LOGIN = 0
    START = 1
    DATA = 2
    ECHO = 3  # data that is to come back
    END = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpongOptions:
    """Options of `urds rsocket udpong`, udpong's letters in the command line."""

    host: str | None = None
    is_server: bool = False
    bind: str | None = None
    buffer_bytes: int | None = None
    transfers: int | None = None
    size: str | None = None
    port: int | None = None
    tests: Sequence[str] = ()
    device: str = ""
    json_wanted: bool = False

    def has(self, letter: str) -> bool:
        """Tell whether a `-T` is given, by its letter or its word."""
        return letter in self.tests or TESTS[letter] in self.tests

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes that are measured."""
        return SIZES if self.size in (None, "all") else (int(self.size or 0),)

    def check(self) -> None:
        """Raise UsageError for what cannot be."""
        for name in self.tests:
            if name not in TESTS and name not in TESTS.values():
                raise UsageError(f"-T {name}, one of {', '.join(TESTS)}")
        if sum(map(self.has, "abn")) > 1:
            raise UsageError("-T a, b and n exclude each other")
        if self.host is not None and self.is_server:
            raise UsageError("either --serve, or -s with the host of the server")
        if self.size not in (None, "all") and not str(self.size).isdecimal():
            raise UsageError(f"-S {self.size}, a number of octets or all")
        for name, value, lowest, highest in (
            *(("-S", size, _MESSAGE.size, _SIZE_MAX) for size in self.sizes),
            ("-C", self.transfers, 1, 10_000_000),
            ("-B", self.buffer_bytes, 1, 1 << 30),
            ("-p", self.port, 1, 65_535),
        ):
            if value is not None and not lowest <= value <= highest:
                raise UsageError(f"{name} {value}, from {lowest} to {highest}")
        device_names(self.device)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: octets and rates are of datagrams that arrived."""

    name: str
    size_bytes: int
    transfers: int
    total_bytes: int
    seconds: float
    gb_per_s: float
    usec_per_transfer: float
    lost: int


HEADING: Final = (
    f"{'name':<10}{'bytes':<8}{'xfers':<8}{'total':<8}"
    f"{'time':>9}{'Gb/sec':>10}{'usec/xfer':>12}{'lost':>8}"
)


def run(options: UdpongOptions) -> Exit:
    """Measure and print the table, or serve clients until Ctrl-C."""
    options.check()
    choose_devices(device_names(options.device))
    if options.is_server:
        serve(replace(options, port=options.port or PORT))
    elif options.host is not None:
        _measure(options, options.host, options.port or PORT)
    else:
        with own_server(_MODULE, replace(options, is_server=True)) as port:
            _measure(options, LOOPBACK, port)
    return Exit.OK


class _Datagrams:
    """A socket and how its side waits: in the call (blocking), in poll, or not at all."""

    def __init__(self, sock: AnySocket, options: UdpongOptions) -> None:
        self.sock = sock
        self._blocks = not options.has("a") and not options.has("n")
        self._spins = options.has("n")
        self._place = memoryview(bytearray(_SIZE_MAX))
        sock.setblocking(False)
        if options.buffer_bytes is not None:
            for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, name, options.buffer_bytes)

    def send(self, data: memoryview, address: Any) -> None:
        """Send one datagram; wait while there is no room. Raises TimeoutError: there is none."""
        for _ in range(_ROOM_WAITS_MAX):
            try:
                self.sock.sendto(data, address)
                return
            except (BlockingIOError, TimeoutError):
                self._wait(select.POLLOUT, 1.0)
        raise TimeoutError(f"no room for a datagram in {_ROOM_WAITS_MAX} s")

    def receive(self, wait_s: float) -> tuple[memoryview, Any] | None:
        """Return the next datagram and its source, `None` if none came in time."""
        if self._blocks:
            self.sock.settimeout(wait_s)
        deadline_s: float | None = None
        while True:
            try:
                count, source = self.sock.recvfrom_into(self._place)
            except TimeoutError:
                return None
            except BlockingIOError:
                now_s = time.monotonic()
                deadline_s = deadline_s or now_s + wait_s
                if now_s >= deadline_s:
                    return None
                if not self._spins:
                    self._wait(select.POLLIN, deadline_s - now_s)
                continue
            return self._place[:count], source

    def _wait(self, events: int, wait_s: float) -> None:
        # The descriptor of an rsocket costs something from the moment on that it is asked for.
        poll = select.poll()
        poll.register(self.sock.fileno(), events)
        poll.poll(wait_s * 1000)


# -- the client


def _measure(options: UdpongOptions, host: str, port: int) -> None:
    output = Output(json_wanted=options.json_wanted)
    if not options.json_wanted:
        output.line(HEADING, TITLE)
    rows: list[Row] = []
    family, address = resolved(host, port, "name")
    with new_socket(is_kernel=options.has("s"), family=family, kind=socket.SOCK_DGRAM) as sock:
        if options.bind is not None:
            sock.bind(local_address(options.bind, 0, family)[1])
        client = _Client(_Datagrams(sock, options), address)
        client.log_in()
        for size_bytes in options.sizes:
            try:
                rows.append(_row(client, size_bytes, options))
            except OSError as refusal:
                if refusal.errno != errno.EMSGSIZE or not rows:
                    raise
                # A device's datagrams end where its MTU does; what it carries has been measured.
                complain("rsocket udpong", f"{octets(size_bytes)} left out: {refusal.strerror}")
                continue
            if not options.json_wanted:
                output.line(_line(rows[-1]))
    if options.json_wanted:
        output.document([asdict(row) for row in rows])


def _row(client: _Client, size_bytes: int, options: UdpongOptions) -> Row:
    transfers = options.transfers or _TRANSFERS
    is_echo = options.has("e")
    name = "custom" if options.transfers or options.size not in (None, "all") else (
        f"{octets(size_bytes)}_{'lat' if is_echo else 'bw'}"
    )  # fmt: skip
    client.start(transfers)
    start_s = time.perf_counter()
    arrived = (client.echoes if is_echo else client.stream)(size_bytes, transfers)
    seconds = time.perf_counter() - start_s
    directions = 2 if is_echo else 1
    total_bytes = arrived * size_bytes * directions
    return Row(
        name, size_bytes, transfers, total_bytes, seconds, total_bytes * 8 / seconds / 1e9,
        seconds * 1e6 / max(1, arrived * directions), transfers - arrived,
    )  # fmt: skip


def _line(row: Row) -> str:
    return (
        f"{row.name:<10}{octets(row.size_bytes):<8}{number(row.transfers):<8}"
        f"{octets(row.total_bytes):<8}{row.seconds:>8.2f}s{row.gb_per_s:>10.2f}"
        f"{row.usec_per_transfer:>12.2f}{row.lost:>8}"
    )


class _Client:
    """One client of a server."""

    def __init__(self, datagrams: _Datagrams, server: Any) -> None:
        self._datagrams = datagrams
        self._server = server
        self._identifier = self._round = 0
        self._out = memoryview(bytearray(_SIZE_MAX))

    def log_in(self) -> None:
        """Get a number. Raises TimeoutError: no server."""
        self._identifier = self._ask(Op.LOGIN, 0)

    def start(self, count: int) -> None:
        """Begin a run."""
        self._round = (self._round + 1) % 256
        self._ask(Op.START, count)

    def stream(self, size_bytes: int, count: int) -> int:
        """Send so many datagrams; return how many the server got."""
        data = self._out[:size_bytes]
        for _ in range(count):
            self._fill(data, Op.DATA, 0)
            self._datagrams.send(data, self._server)
        return self._ask(Op.END, count)

    def echoes(self, size_bytes: int, count: int) -> int:
        """Send one after another, each after the echo of the last; return how many came back."""
        data, arrived, lost_in_a_row = self._out[:size_bytes], 0, 0
        for index in range(count):
            self._fill(data, Op.ECHO, index)
            self._datagrams.send(data, self._server)
            if self._await(Op.ECHO, index, _ECHO_WAIT_S) is None:
                lost_in_a_row += 1
                if lost_in_a_row >= _LOSSES_MAX:
                    raise TimeoutError(f"no echo of {_LOSSES_MAX} datagrams")
            else:
                arrived, lost_in_a_row = arrived + 1, 0
        self._ask(Op.END, count)
        return arrived

    def _ask(self, op: Op, value: int) -> int:
        message = memoryview(bytearray(_MESSAGE.size))
        self._fill(message, op, value)
        for _ in range(_ANSWERS_MISSED_MAX):
            self._datagrams.send(message, self._server)
            if (answer := self._await(op, None, _ANSWER_WAIT_S)) is not None:
                return answer
        raise TimeoutError(f"no answer to {op.name.lower()} from {self._server[0]}")

    def _fill(self, data: memoryview, op: Op, value: int) -> None:
        _MESSAGE.pack_into(data, 0, op, self._identifier, self._round, value)

    def _await(self, op: Op, value: int | None, wait_s: float) -> int | None:
        """Return the value of the answer to `op`; late answers to others are passed over."""
        while (found := self._datagrams.receive(wait_s)) is not None:
            if found[0].nbytes < _MESSAGE.size:
                continue
            kind, _, of_round, got = _MESSAGE.unpack_from(found[0])
            if (kind, of_round) == (op, self._round) and value in (None, got):
                return int(got)
        return None


# -- the server


@dataclass(slots=True)
class _Known:
    """What the server knows of a client."""

    identifier: int
    of_round: int = 0
    arrived: int = 0


def serve(options: UdpongOptions, *, wait_s: float | None = None) -> None:
    """Answer clients until Ctrl-C; with a `wait_s`, only as long as there is who started this."""
    family, address = local_address(options.bind or "", options.port or 0, None)
    clients: dict[Any, _Known] = {}
    with _bound(options, family, address) as datagrams:
        while True:
            if (found := datagrams.receive(_ANSWER_WAIT_S)) is not None:
                _answer(datagrams, clients, *found)
            elif wait_s is not None and is_abandoned():
                return


@contextmanager
def _bound(options: UdpongOptions, family: int, address: Any) -> Iterator[_Datagrams]:
    with new_socket(is_kernel=options.has("s"), family=family, kind=socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        tell_port(sock.getsockname()[1], json_wanted=options.json_wanted)
        yield _Datagrams(sock, options)


def _answer(
    datagrams: _Datagrams, clients: dict[Any, _Known], message: memoryview, source: Any
) -> None:
    if message.nbytes < _MESSAGE.size:
        return
    op, _, of_round, value = _MESSAGE.unpack_from(message)
    if op == Op.LOGIN and len(clients) < _CLIENTS_MAX:
        clients.setdefault(source, _Known(len(clients) % 256))
    known = clients.get(source)
    if known is None:
        return
    if op == Op.START and of_round != known.of_round:
        known.of_round, known.arrived = of_round, 0
    if op in (Op.DATA, Op.ECHO):
        known.arrived += of_round == known.of_round
    if op == Op.ECHO:
        datagrams.send(message, source)
    elif op in (Op.LOGIN, Op.START, Op.END):
        value = {Op.LOGIN: known.identifier, Op.START: value, Op.END: known.arrived}[Op(op)]
        answer = _MESSAGE.pack(op, known.identifier, of_round, value)
        datagrams.send(memoryview(answer), source)


if __name__ == "__main__":
    sys.exit(serve_child("rsocket udpong", UdpongOptions, serve))
