"""The messages between the two sides of `urds rsocket rcopy`, and their options.

A request names the file and its size; the server answers, takes exactly that many bytes and a
SHA-256 of them, and answers again once the file has its name, or at any time with an error.
Numbers are big-endian.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from struct import Struct
from typing import Final

from urds.cli.output import UsageError
from urds.cli.parser import check_ranges, json_option, option
from urds.cli.rsocket.sockets import (
    AnySocket,
    bind_option,
    device_names,
    device_option,
    port_option,
)
from urds.common.errors import WireError

Network = IPv4Network | IPv6Network

PORT: Final = 7427
MAX_BYTES: Final = 1 << 30  # of one file that a server takes, by default
CHUNK_BYTES: Final = 1 << 20
DIGEST_BYTES: Final = 32
NAME_BYTES_MAX: Final = 1024
_MAGIC: Final = b"urc1"
_REQUEST: Final = Struct(">4s2xHQ")  # magic, bytes of the name, bytes of the file
_REPLY: Final = Struct(">4s2xHQ")  # magic, errno or 0, bytes that the file has, 0 before the end
REQUEST_BYTES: Final = _REQUEST.size
REPLY_BYTES: Final = _REPLY.size


@dataclass(frozen=True, slots=True, kw_only=True)
class RcopyOptions:
    """Options of `urds rsocket rcopy`."""

    source: str | None = option(metavar="FILE", help="The file to copy.")
    target: str | None = option(
        metavar="HOST[:NAME]", help="Where a server is, and the name there."
    )
    is_server: bool = option(
        "--serve", default=False, help="Be the server, until Ctrl-C; one client at a time."
    )
    into: str | None = option(
        "--into", metavar="FOLDER", help="The folder below which the server writes."
    )
    allow: Sequence[str] = option(
        "--allow", metavar="NETWORK", default=(),
        help="Hosts that may copy to the server; else this host alone. May be repeated.",
    )  # fmt: skip
    max_bytes: int | None = option(
        "--max-bytes", low=0, help="Largest file the server takes; 1 GiB without it."
    )
    overwrite: bool = option("--overwrite", default=False, help="Let the server replace files.")
    bind: str | None = bind_option()
    port: int | None = port_option(PORT)
    is_kernel: bool = option("--kernel", default=False, help="Use TCP sockets of the kernel.")
    device: str = device_option()
    json_wanted: bool = json_option()

    def check(self) -> None:
        """Raise UsageError for wrong options."""
        if self.is_server:
            if self.source is not None or self.into is None:
                raise UsageError("--serve needs --into FOLDER, and no file")
        elif self.source is None:
            raise UsageError("which file? urds rsocket rcopy FILE HOST, or FILE --into FOLDER")
        elif (self.target is None) == (self.into is None):
            raise UsageError("either HOST[:NAME] to copy to, or --into FOLDER of this host")
        if self.into is not None and not Path(self.into).is_dir():
            raise UsageError(f"--into {self.into}: no such folder")
        if not self.is_server and (self.allow or self.max_bytes is not None or self.overwrite):
            raise UsageError("--allow, --max-bytes and --overwrite are for --serve")
        check_ranges(self)
        self.allowed()
        device_names(self.device)

    def allowed(self) -> list[Network]:
        """Return the networks of `allow`. Raises UsageError for an invalid one."""
        try:
            return [ip_network(one, strict=False) for one in self.allow]
        except ValueError as wrong:
            raise UsageError(f"--allow: {wrong}") from None


@dataclass(frozen=True, slots=True)
class Request:
    """The client's request."""

    name: str
    size_bytes: int

    def emit(self) -> bytes:
        """Return the bytes. Raises UsageError for a name that is too long."""
        name = self.name.encode()
        if not 1 <= len(name) <= NAME_BYTES_MAX:
            raise UsageError(f"name of {len(name)} bytes, from 1 to {NAME_BYTES_MAX}")
        return _REQUEST.pack(_MAGIC, len(name), self.size_bytes) + name

    @classmethod
    def receive(cls, sock: AnySocket, *, until_s: float | None = None) -> Request:
        """Read a request, until a time at most. Raises WireError for an invalid one, OSError."""
        data = received(sock, REQUEST_BYTES, until_s=until_s)
        magic, name_bytes, size_bytes = _REQUEST.unpack(data)
        if magic != _MAGIC:
            raise WireError(f"a request begins with {magic.hex()}, not {_MAGIC.hex()}")
        if not 1 <= name_bytes <= NAME_BYTES_MAX:
            raise WireError(f"name of {name_bytes} bytes, from 1 to {NAME_BYTES_MAX}")
        try:
            return cls(received(sock, name_bytes, until_s=until_s).decode(), size_bytes)
        except UnicodeDecodeError:
            raise WireError("a name that is no UTF-8") from None


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's reply."""

    errno: int
    size_bytes: int = 0

    def emit(self) -> bytes:
        """Return the bytes."""
        return _REPLY.pack(_MAGIC, self.errno, self.size_bytes)

    @classmethod
    def parse(cls, data: bytes) -> Reply:
        """Read a reply. Raises OSError: the server uses another protocol."""
        magic, code, size_bytes = _REPLY.unpack(data)
        if magic != _MAGIC:
            raise OSError("the server is not rcopy's")
        return cls(code, size_bytes)


def received(sock: AnySocket, count: int, *, until_s: float | None = None) -> bytes:
    """Return exactly so many bytes.

    `until_s` is when all must be here, by time.monotonic(); None leaves the socket's timeout, for
    each part that comes. Raises ConnectionError: the stream ended before; TimeoutError.
    """
    data = bytearray(count)
    place = memoryview(data)
    while place:
        if until_s is not None:
            wait_until(sock, until_s)
        arrived = sock.recv_into(place)
        if not arrived:
            raise ConnectionError("the other side has closed the connection")
        place = place[arrived:]
    return bytes(data)


def wait_until(sock: AnySocket, until_s: float) -> None:
    """Let the next call on a socket wait until a time at most. Raises TimeoutError: it is over."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "the client is too slow")
    sock.settimeout(left_s)
