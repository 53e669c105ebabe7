"""`urds rsocket rstream`: ping-pong and bandwidth of a stream socket, after rstream.

Without `-s` and `--serve` the server is a process of its own here; with `-s HOST` this is the
client of a server elsewhere, which has the same options. Two connections, one after another: one
for latency, with inline data, one for bandwidth, without. Source: rsocket.md section 15.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from urds.cli.exits import Exit, UsageError
from urds.cli.output import TITLE, Output
from urds.cli.rsocket_addresses import FORMATS, local_address, resolved
from urds.cli.rsocket_processes import own_server, serve_child, tell_port
from urds.cli.rsocket_transfers import (
    HEADING,
    SIZE_MAX,
    SYNC_BYTES,
    Manner,
    Plan,
    Row,
    Stream,
    bandwidth_plan,
    latency_plan,
    line,
    measured,
    sizes,
)
from urds.cli.rsocket_ways import (
    LOOPBACK,
    AnySocket,
    choose_devices,
    device_names,
    listening,
    new_socket,
)

PORT: Final = 7471
_MODULE: Final = "urds.cli.rsocket_rstream"
_BUFFER_BYTES: Final = 512 << 10
_CUSTOM_SIZE: Final = 1000
_CUSTOM_TRANSFERS: Final = 1000
_PATTERN_BYTES: Final = 251  # a prime: a shift by any power of two is seen
# Letter, the word that stands for it, what it does.
TESTS: Final = {
    "s": "socket", "a": "async", "b": "blocking", "f": "fork", "n": "nonblocking",
    "r": "resolve", "v": "verify",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RstreamOptions:
    """Options of `urds rsocket rstream`, rstream's letters in the command line."""

    host: str | None = None
    is_server: bool = False
    bind: str | None = None
    address_format: str = "name"
    buffer_bytes: int | None = None
    inline_bytes: int | None = None
    iterations: int | None = None
    transfers: int | None = None
    size: str | None = None  # octets, or "all"
    port: int | None = None
    keepalive_s: int | None = None
    tests: Sequence[str] = ()
    device: str = ""
    json_wanted: bool = False

    def has(self, letter: str) -> bool:
        """Tell whether a `-T` is given, by its letter or its word."""
        return letter in self.tests or TESTS[letter] in self.tests

    @property
    def is_kernel(self) -> bool:
        """Tell whether sockets are the kernel's; a forked server can have no others."""
        return self.has("s") or self.has("f")

    @property
    def manner(self) -> Manner:
        """Return how both sides wait."""
        if self.has("a"):
            return Manner.POLL
        return Manner.SPIN if self.has("n") else Manner.BLOCK

    def check(self) -> None:
        """Raise UsageError for what cannot be."""
        for name in self.tests:
            if name not in TESTS and name not in TESTS.values():
                raise UsageError(f"-T {name}, one of {', '.join(TESTS)}")
        if sum(map(self.has, "abn")) > 1:
            raise UsageError("-T a, b and n exclude each other")
        if self.address_format not in FORMATS:
            raise UsageError(f"-f {self.address_format}, one of {', '.join(FORMATS)}")
        if self.host is not None and self.is_server:
            raise UsageError("either --serve, or -s with the host of the server")
        if self.size not in (None, "all") and not str(self.size).isdecimal():
            raise UsageError(f"-S {self.size}, a number of octets or all")
        self._check_ranges()
        device_names(self.device)

    def _check_ranges(self) -> None:
        size_bytes = int(self.size) if self.size not in (None, "all") else None
        for name, value, lowest, highest in (
            ("-S", size_bytes, 1, SIZE_MAX),
            ("-C", self.transfers, 1, 10_000_000),
            ("-I", self.iterations, 1, 10_000_000),
            ("-B", self.buffer_bytes, 1, 1 << 30),
            ("-i", self.inline_bytes, 0, 65_534),
            ("-k", self.keepalive_s, 1, 32_767),
            ("-p", self.port, 1, 65_535),
        ):
            if value is not None and not lowest <= value <= highest:
                raise UsageError(f"{name} {value}, from {lowest} to {highest}")


def run(options: RstreamOptions) -> Exit:
    """Measure and print the table, or serve one client."""
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


# -- both sides


def plans(options: RstreamOptions) -> tuple[list[Plan], list[Plan]]:
    """Return what is measured on the latency connection, and on the bandwidth connection."""
    if options.size in (None, "all") and options.iterations is options.transfers is None:
        chosen = sizes(is_all=options.size == "all")
        return [latency_plan(size) for size in chosen], [bandwidth_plan(size) for size in chosen]
    chosen = sizes(is_all=True) if options.size == "all" else (int(options.size or _CUSTOM_SIZE),)
    transfers = options.transfers or _CUSTOM_TRANSFERS
    custom = [Plan("custom", size, transfers, options.iterations or 1) for size in chosen]
    return ([], custom) if transfers > 1 else (custom, [])


class _Side:
    """One connected side: sends first, or second."""

    def __init__(self, stream: Stream, *, is_client: bool, is_verified: bool) -> None:
        self._stream = stream
        self._is_client = is_client
        self._is_verified = is_verified
        self._sent = memoryview(bytearray(_pattern(SYNC_BYTES)))
        self._got = memoryview(bytearray(SYNC_BYTES))

    def measure(self, plan: Plan) -> Row:
        """Do what a plan says, from a moment that both sides share."""
        if plan.size_bytes > len(self._sent):
            self._sent = memoryview(bytearray(_pattern(plan.size_bytes)))
            self._got = memoryview(bytearray(plan.size_bytes))
        turns = (self._send, self._receive) if self._is_client else (self._receive, self._send)
        for turn in turns:
            turn(SYNC_BYTES, 1)
        start_s = time.perf_counter()
        for _ in range(plan.iterations):
            for turn in turns:
                turn(plan.size_bytes, plan.transfers)
        return measured(plan, time.perf_counter() - start_s)

    def _send(self, size_bytes: int, count: int) -> None:
        data = self._sent[:size_bytes]
        for _ in range(count):
            self._stream.send(data)

    def _receive(self, size_bytes: int, count: int) -> None:
        place = self._got[:size_bytes]
        for number in range(count):
            self._stream.receive(place)
            if self._is_verified:
                if place != self._sent[:size_bytes]:
                    raise OSError(f"transfer {number} of {size_bytes} octets is not what was sent")
                place[:] = bytes(size_bytes)


def _pattern(size_bytes: int) -> bytes:
    return (bytes(range(_PATTERN_BYTES)) * (size_bytes // _PATTERN_BYTES + 1))[:size_bytes]


def prepare(sock: AnySocket, options: RstreamOptions) -> None:
    """Set the options of a socket that is connected or will be."""
    space_bytes = options.buffer_bytes or _BUFFER_BYTES
    for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, name, space_bytes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.keepalive_s is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, options.keepalive_s)


def prepare_inline(sock: AnySocket, options: RstreamOptions, *, is_latency: bool) -> None:
    """Choose the inline data of an rsocket that has not begun: later there is no choice."""
    if not options.is_kernel:
        from urds import rsocket

        inline_bytes = 64 if is_latency else 0
        if options.inline_bytes is not None:
            inline_bytes = options.inline_bytes
        sock.setsockopt(rsocket.SOL_RDMA, rsocket.RDMA_INLINE, inline_bytes)


def _phases(options: RstreamOptions) -> Iterator[tuple[bool, list[Plan]]]:
    latency, bandwidth = plans(options)
    if latency:
        yield True, latency
    if bandwidth:
        yield False, bandwidth


# -- the client


def _measure(options: RstreamOptions, host: str, port: int) -> None:
    output = Output(json_wanted=options.json_wanted)
    if not options.json_wanted:
        output.line(HEADING, TITLE)
    rows: list[Row] = []
    target = resolved(host, port, options.address_format, by_verbs=options.has("r"))
    for is_latency, wanted in _phases(options):
        with _connected(options, target, is_latency=is_latency) as side:
            for plan in wanted:
                rows.append(side.measure(plan))
                if not options.json_wanted:
                    output.line(line(rows[-1]))
    if options.json_wanted:
        output.document([asdict(row) for row in rows])


@contextmanager
def _connected(
    options: RstreamOptions, target: tuple[int, Any], *, is_latency: bool
) -> Iterator[_Side]:
    family, address = target
    with new_socket(is_kernel=options.is_kernel, family=family) as sock:
        prepare(sock, options)
        prepare_inline(sock, options, is_latency=is_latency)
        if options.bind is not None:
            sock.bind(local_address(options.bind, 0, family)[1])
        sock.connect(address)
        stream = Stream(sock, options.manner)
        yield _Side(stream, is_client=True, is_verified=options.has("v"))
        sock.shutdown(socket.SHUT_RDWR)


# -- the server


def serve(options: RstreamOptions, *, wait_s: float | None = None) -> None:
    """Listen, and serve one client's connections; the figures stay with the client."""
    family, address = local_address(options.bind or "", options.port or 0, None)
    listener = new_socket(is_kernel=options.is_kernel, family=family)
    prepare(listener, options)
    prepare_inline(listener, options, is_latency=True)
    with listening(listener, address) as listener:
        tell_port(listener.getsockname()[1], json_wanted=options.json_wanted)
        listener.settimeout(wait_s)
        for _, wanted in _phases(options):
            sock = listener.accept()[0]
            if options.has("f"):
                _serve_forked(sock, wanted, options)
            else:
                _serve_connection(sock, wanted, options)


def _serve_connection(sock: AnySocket, wanted: list[Plan], options: RstreamOptions) -> None:
    with sock:
        stream = Stream(sock, options.manner)
        side = _Side(stream, is_client=False, is_verified=options.has("v"))
        for plan in wanted:
            side.measure(plan)
        # The client ends first: what it still reads must not meet a reset.
        _drain(stream)


def _drain(stream: Stream) -> None:
    try:
        stream.receive(memoryview(bytearray(1)))
    except (ConnectionError, TimeoutError):
        pass


def _serve_forked(sock: AnySocket, wanted: list[Plan], options: RstreamOptions) -> None:
    child = os.fork()
    if child == 0:
        code = Exit.FAILED
        try:
            _serve_connection(sock, wanted, options)
            code = Exit.OK
        finally:
            os._exit(code)
    sock.close()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(f"the forked server ended with exit code {status}")


if __name__ == "__main__":
    sys.exit(serve_child("rsocket rstream", RstreamOptions, serve))
