"""`urds rsocket rstream`: ping-pong and bandwidth of a stream socket, after rstream.

Without `-s` and `--serve` the server is a process of its own here; with `-s HOST` this is the
client of a server elsewhere, which has the same options. Two connections, one after another: one
for latency, with inline data, one for bandwidth, without. Source: docs/reference/rsocket.md 15.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

from urds.cli.output import TITLE, Exit, Output, UsageError
from urds.cli.parser import Command, json_option, option
from urds.cli.processes import own_server, serve_child, tell_port
from urds.cli.rsocket.sockets import (
    FORMATS,
    LOOPBACK,
    AnySocket,
    MeasureOptions,
    choose_devices,
    device_names,
    listening,
    local_address,
    new_socket,
    port_option,
    resolved,
    tests_option,
)
from urds.cli.rsocket.streams import (
    HEADING,
    SIZE_MAX,
    Manner,
    Plan,
    Row,
    Side,
    Stream,
    bandwidth_plan,
    latency_plan,
    line,
    sizes,
)

PORT: Final = 7471
_BUFFER_BYTES: Final = 512 << 10
_CUSTOM_SIZE: Final = 1000
_CUSTOM_TRANSFERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RstreamOptions(MeasureOptions):
    """Options of `urds rsocket rstream`."""

    TESTS: ClassVar[dict[str, str]] = {
        "s": "socket", "a": "async", "b": "blocking", "f": "fork", "n": "nonblocking",
        "r": "resolve", "v": "verify",
    }  # fmt: skip
    SIZE_LIMITS: ClassVar[tuple[int, int]] = (1, SIZE_MAX)
    IOMAP_SLOTS: ClassVar[int] = 0

    address_format: str = option(
        "-f", metavar="FORMAT", default="name", help="The host is a name, ip, or ipv6."
    )
    inline_bytes: int | None = option(
        "-i", metavar="BYTES", low=0, high=65_534, help="Inline data; 64 and 0 without it."
    )
    iterations: int | None = option("-I", low=1, high=10_000_000, help="Iterations of each row.")
    port: int | None = port_option(PORT)
    keepalive_s: int | None = option(
        "-k", metavar="SECONDS", low=1, high=32_767, help="Send keepalives after so much silence."
    )
    tests: Sequence[str] = tests_option(
        "s kernel sockets, a poll, b blocking (the default), n non-blocking, f forked server"
        " (implies s), r resolve by verbs, v verify."
    )
    json_wanted: bool = json_option()

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
        """Return a connected side with these options."""
        return Side(
            stream,
            is_client=is_client,
            is_verified=self.has("v"),
            is_kernel=self.is_kernel,
            size_bytes_max=size_bytes_max,
        )

    def check(self) -> None:
        """Raise UsageError for wrong options."""
        if self.address_format not in FORMATS:
            raise UsageError(f"-f {self.address_format}: must be one of {', '.join(FORMATS)}")
        # In full: a class with slots is made anew, and `super()` would mean the first one.
        MeasureOptions.check(self)


def run(options: RstreamOptions) -> Exit:
    """Measure and print the table, or serve one client.

    The child server runs the module of the options, which calls `serve_child`.
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
    """Return the measurements of the latency connection, and of the bandwidth connection."""
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
    """Set the options of an rsocket that take effect before it connects or listens only."""
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


COMMAND: Final = Command(
    about="""
    Total counts both directions; usec/xfer of a latency row is one way. Without -s and --serve the
    server is a process of its own on this host. Both sides need the same options. Calls wait; with
    -T n those that would wait are repeated at once, which rstream does by itself and which needs a
    processor for each side. With -T s the same program measures the kernel's TCP.
    """,
    examples=(
        ("urds rsocket rstream", "rsockets over shared memory, about a minute"),
        ("urds rsocket rstream -T s", "the same by the kernel's TCP"),
        ("urds rsocket rstream --device tcp -T b -S 65536 -C 100", "one size over TCP, blocking"),
        ("urds rsocket rstream --device tcp --serve -b 10.0.0.2", "a server, for one client"),
        ("urds rsocket rstream --device tcp -s 10.0.0.2", "its client"),
    ),
    options=RstreamOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(serve_child("urds rsocket rstream", RstreamOptions, serve))
