"""`urds rsocket rstream`: ping-pong and bandwidth of a stream socket, after rstream.

Without `-s` and `--serve` the server is a process of its own here; with `-s HOST` this is the
client of a server elsewhere, which has the same options. Two connections, one after another: one
for latency, with inline data, one for bandwidth, without. Source: rsocket.md section 15.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

from urds.cli.exits import Exit, UsageError
from urds.cli.output import TITLE, Output
from urds.cli.rsocket_addresses import FORMATS, local_address, resolved
from urds.cli.rsocket_processes import own_server, serve_child, tell_port
from urds.cli.rsocket_sides import Side
from urds.cli.rsocket_transfers import (
    HEADING,
    SIZE_MAX,
    Manner,
    Plan,
    Row,
    Stream,
    bandwidth_plan,
    latency_plan,
    line,
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
_BUFFER_BYTES: Final = 512 << 10
_CUSTOM_SIZE: Final = 1000
_CUSTOM_TRANSFERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RstreamOptions:
    """Options of `urds rsocket rstream`, rstream's letters in the command line."""

    # Letter of a -T, and the word that stands for it.
    TESTS: ClassVar[dict[str, str]] = {
        "s": "socket", "a": "async", "b": "blocking", "f": "fork", "n": "nonblocking",
        "r": "resolve", "v": "verify",
    }  # fmt: skip
    IOMAP_SLOTS: ClassVar[int] = 0

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
        return letter in self.tests or self.TESTS.get(letter) in self.tests

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

    def side(self, stream: Stream, *, is_client: bool, size_bytes_max: int) -> Side:
        """Return a connected side that does what these options say."""
        return Side(
            stream,
            is_client=is_client,
            is_verified=self.has("v"),
            is_kernel=self.is_kernel,
            size_bytes_max=size_bytes_max,
        )

    def check(self) -> None:
        """Raise UsageError for what cannot be."""
        for name in self.tests:
            if name not in self.TESTS and name not in self.TESTS.values():
                raise UsageError(f"-T {name}, one of {', '.join(self.TESTS)}")
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
    """Measure and print the table, or serve one client.

    The server of its own runs the module of the options, which calls `serve_child`.
    """
    options.check()
    choose_devices(device_names(options.device))
    if options.is_server:
        serve(replace(options, port=options.port or PORT))
    elif options.host is not None:
        _measure(options, options.host, options.port or PORT)
    else:
        with own_server(type(options).__module__, replace(options, is_server=True)) as port:
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


def prepare(sock: AnySocket, options: RstreamOptions) -> None:
    """Set the options of a socket that is connected or will be."""
    space_bytes = options.buffer_bytes or _BUFFER_BYTES
    for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, name, space_bytes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.keepalive_s is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, options.keepalive_s)


def prepare_rdma(sock: AnySocket, options: RstreamOptions, *, is_latency: bool) -> None:
    """Choose what an rsocket can be told only before it connects or listens."""
    if not options.is_kernel:
        from urds import rsocket

        inline_bytes = 64 if is_latency else 0
        if options.inline_bytes is not None:
            inline_bytes = options.inline_bytes
        sock.setsockopt(rsocket.SOL_RDMA, rsocket.RDMA_INLINE, inline_bytes)
        if options.IOMAP_SLOTS:
            sock.setsockopt(rsocket.SOL_RDMA, rsocket.RDMA_IOMAPSIZE, options.IOMAP_SLOTS)


def _phases(options: RstreamOptions) -> Iterator[tuple[bool, list[Plan]]]:
    latency, bandwidth = plans(options)
    if latency:
        yield True, latency
    if bandwidth:
        yield False, bandwidth


def _largest(wanted: list[Plan]) -> int:
    return max(plan.size_bytes for plan in wanted)


# -- the client


def _measure(options: RstreamOptions, host: str, port: int) -> None:
    output = Output(json_wanted=options.json_wanted)
    if not options.json_wanted:
        output.line(HEADING, TITLE)
    rows: list[Row] = []
    target = resolved(host, port, options.address_format, by_verbs=options.has("r"))
    for is_latency, wanted in _phases(options):
        with _connected(options, target, is_latency=is_latency) as stream:
            side = options.side(stream, is_client=True, size_bytes_max=_largest(wanted))
            for plan in wanted:
                rows.append(side.measure(plan))
                if not options.json_wanted:
                    output.line(line(rows[-1]))
    if options.json_wanted:
        output.document([asdict(row) for row in rows])


@contextmanager
def _connected(
    options: RstreamOptions, target: tuple[int, Any], *, is_latency: bool
) -> Iterator[Stream]:
    family, address = target
    with new_socket(is_kernel=options.is_kernel, family=family) as sock:
        prepare(sock, options)
        prepare_rdma(sock, options, is_latency=is_latency)
        if options.bind is not None:
            sock.bind(local_address(options.bind, 0, family)[1])
        sock.connect(address)
        yield Stream(sock, options.manner)
        sock.shutdown(socket.SHUT_RDWR)


# -- the server


def serve(options: RstreamOptions, *, wait_s: float | None = None) -> None:
    """Listen, and serve one client's connections; the figures stay with the client."""
    family, address = local_address(options.bind or "", options.port or 0, None)
    listener = new_socket(is_kernel=options.is_kernel, family=family)
    prepare(listener, options)
    prepare_rdma(listener, options, is_latency=True)
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
        side = options.side(stream, is_client=False, size_bytes_max=_largest(wanted))
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
