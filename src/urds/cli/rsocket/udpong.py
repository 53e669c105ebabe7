"""`urds rsocket udpong`: datagrams of one size after another, their losses and their latency.

Source: docs/reference/rsocket.md 15. A client logs in, and for each size starts a run, sends its
data and ends it; the server answers each of these and says at the end how many it got. With `-T e`
the server echoes each datagram, and the next one follows the echo. The client retries a lost login,
start or end; lost data are not sent again: they are counted.
"""

from __future__ import annotations

import errno
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, ClassVar, Final

from urds.cli.output import Exit, complain
from urds.cli.parser import Command
from urds.cli.processes import is_abandoned, serve_child, tell_port
from urds.cli.rsocket.measure import (
    MeasureOptions,
    Row,
    heading,
    run_sides,
    size_text,
    tests_option,
)
from urds.cli.rsocket.sockets import AnySocket, local_address, new_socket, resolved

PORT: Final = 7174
HEADING: Final = heading(without="iterations")
SIZES: Final = (64, 128, 192, 256, 384, 512, 768, 1024, 1536)
_SIZE_MAX: Final = (
    2000  # a slot of 2048 bytes, less the longest header. docs/reference/rsocket.md 10
)
_TRANSFERS: Final = 1000
_ANSWER_WAIT_S: Final = 0.2  # then login, start and end are retried
_ANSWERS_MISSED_MAX: Final = 25
_ECHO_WAIT_S: Final = 0.1  # an echo that takes longer counts as lost
_LOSSES_MAX: Final = 100  # echoes in a row: then the server is gone
_CLIENTS_MAX: Final = 1024
_ROOM_WAITS_MAX: Final = 30
# Operation, client, round, nothing, count or number; the rest is filling.
_MESSAGE: Final = Struct(">BBBxI")


class Op(IntEnum):
    """What a datagram is."""

    LOGIN = 0
    START = 1
    DATA = 2
    ECHO = 3  # data that is to come back
    END = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpongOptions(MeasureOptions):
    """Options of `urds rsocket udpong`."""

    TESTS: ClassVar[dict[str, str]] = {
        "s": "socket", "a": "async", "b": "blocking", "n": "nonblocking", "e": "echo",
    }  # fmt: skip
    SIZE_LIMITS: ClassVar[tuple[int, int]] = (_MESSAGE.size, _SIZE_MAX)
    PORT: ClassVar[int] = PORT

    tests: Sequence[str] = tests_option(
        "s kernel sockets, a poll, b blocking (the default), n non-blocking, e echo."
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes that are measured."""
        return SIZES if self.size in (None, "all") else (int(self.size or 0),)


def run(options: UdpongOptions) -> Exit:
    """Measure and print the table, or serve clients until Ctrl-C."""
    return run_sides(options, serve, _rows, HEADING)


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
        # The descriptor of an rsocket has a cost from the first request for it on.
        poll = select.poll()
        poll.register(self.sock.fileno(), events)
        poll.poll(wait_s * 1000)


# -- the client


def _rows(options: UdpongOptions, host: str, port: int) -> Iterator[Row]:
    is_first = True
    family, address = resolved(host, port, "name")
    with new_socket(is_kernel=options.has("s"), family=family, kind=socket.SOCK_DGRAM) as sock:
        if options.bind is not None:
            sock.bind(local_address(options.bind, 0, family)[1])
        client = _Client(_Datagrams(sock, options), address)
        client.log_in()
        for size_bytes in options.sizes:
            try:
                row = _row(client, size_bytes, options)
            except OSError as failure:
                if failure.errno != errno.EMSGSIZE or is_first:
                    raise
                # A device's datagrams end where its MTU does; what it carries has been measured.
                complain(
                    "urds rsocket udpong", f"{size_text(size_bytes)} left out: {failure.strerror}"
                )
            else:
                yield row
            is_first = False


def _row(client: _Client, size_bytes: int, options: UdpongOptions) -> Row:
    transfers = options.transfers or _TRANSFERS
    is_echo = options.has("e")
    name = "custom" if options.transfers or options.size not in (None, "all") else (
        f"{size_text(size_bytes)}_{'lat' if is_echo else 'bw'}"
    )  # fmt: skip
    client.start(transfers)
    start_s = time.perf_counter()
    arrived = (client.echoes if is_echo else client.stream)(size_bytes, transfers)
    seconds = time.perf_counter() - start_s
    directions = 2 if is_echo else 1
    total_bytes = arrived * size_bytes * directions
    return Row(
        name=name,
        size_bytes=size_bytes,
        transfers=transfers,
        total_bytes=total_bytes,
        seconds=seconds,
        gb_per_s=total_bytes * 8 / seconds / 1e9,
        usec_per_transfer=seconds * 1e6 / max(1, arrived * directions),
        lost=transfers - arrived,
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
        """Return the value of the answer to `op`; late answers to others are ignored."""
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
    """The server's record of a client."""

    identifier: int
    of_round: int = 0
    arrived: int = 0


def serve(options: UdpongOptions, *, wait_s: float | None = None) -> None:
    """Answer clients until Ctrl-C; with a `wait_s`, only while the parent process exists."""
    port = options.port or (PORT if wait_s is None else 0)
    family, address = local_address(options.bind or "", port, None)
    clients: dict[Any, _Known] = {}
    with new_socket(is_kernel=options.has("s"), family=family, kind=socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        tell_port(sock.getsockname()[1], json_wanted=options.json_wanted)
        datagrams = _Datagrams(sock, options)
        while True:
            if (found := datagrams.receive(_ANSWER_WAIT_S)) is not None:
                _answer(datagrams, clients, *found)
            elif wait_s is not None and is_abandoned():
                return


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


COMMAND: Final = Command(
    about="""
    Sizes from 64 to 1536 bytes. Bytes and rates are of what arrived; lost counts the rest:
    datagrams have no flow control. With -T e the server echoes each one, usec/xfer is one way, and
    an echo that takes longer than 0.1 s is lost. Without -s and --serve the server is a process of
    its own on this host.
    """,
    examples=(
        ("urds rsocket udpong", "rates and losses"),
        ("urds rsocket udpong -T e -C 100", "latency"),
        ("urds rsocket udpong -T s", "the same by UDP of the kernel"),
    ),
    options=UdpongOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(serve_child("urds rsocket udpong", UdpongOptions, serve))
