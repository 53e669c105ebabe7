"""What the two sides of `urds rsocket rcopy` say to each other, and their options.

A request names the file and its size; the server answers, takes exactly that many octets and a
SHA-256 of them, and answers again once the file has its name, or at any time with what went wrong.
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

from urds.cli.exits import UsageError
from urds.cli.rsocket_ways import AnySocket, device_names
from urds.errors import WireError

Network = IPv4Network | IPv6Network

PORT: Final = 7427
MAX_BYTES: Final = 1 << 30  # of one file that a server takes, unless it is told otherwise
CHUNK_BYTES: Final = 1 << 20
DIGEST_BYTES: Final = 32
NAME_BYTES_MAX: Final = 1024
_MAGIC: Final = b"urc1"
_REQUEST: Final = Struct(">4s2xHQ")  # magic, octets of the name, octets of the file
_REPLY: Final = Struct(">4s2xHQ")  # magic, errno or 0, octets that the file has, 0 before the end
REQUEST_BYTES: Final = _REQUEST.size
REPLY_BYTES: Final = _REPLY.size


@dataclass(frozen=True, slots=True, kw_only=True)
class RcopyOptions:
    """Options of `urds rsocket rcopy`."""

    source: str | None = None
    target: str | None = None  # HOST or HOST:NAME
    is_server: bool = False
    into: str | None = None  # the folder below which a server writes
    bind: str | None = None
    allow: Sequence[str] = ()  # networks whose hosts a server takes files from, beside its own host
    max_bytes: int | None = None  # of one file that a server takes
    overwrite: bool = False  # whether a server replaces files
    port: int | None = None
    is_kernel: bool = False
    device: str = ""
    json_wanted: bool = False

    def check(self) -> None:
        """Raise UsageError for what cannot be."""
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
        if self.max_bytes is not None and self.max_bytes < 0:
            raise UsageError(f"--max-bytes {self.max_bytes}, from 0")
        self.allowed()
        if self.port is not None and not 1 <= self.port <= 65_535:
            raise UsageError(f"-p {self.port}, from 1 to 65535")
        device_names(self.device)

    def allowed(self) -> list[Network]:
        """Return the networks of `allow`. Raises UsageError for what is none."""
        try:
            return [ip_network(one, strict=False) for one in self.allow]
        except ValueError as wrong:
            raise UsageError(f"--allow: {wrong}") from None


@dataclass(frozen=True, slots=True)
class Request:
    """What the client wants to copy."""

    name: str
    size_bytes: int

    def emit(self) -> bytes:
        """Return the octets. Raises UsageError for a name that is too long."""
        name = self.name.encode()
        if not 1 <= len(name) <= NAME_BYTES_MAX:
            raise UsageError(f"name of {len(name)} octets, from 1 to {NAME_BYTES_MAX}")
        return _REQUEST.pack(_MAGIC, len(name), self.size_bytes) + name

    @classmethod
    def receive(cls, sock: AnySocket, *, until_s: float | None = None) -> Request:
        """Read a request, until a time at most. Raises WireError for what is none, OSError."""
        octets = received(sock, REQUEST_BYTES, until_s=until_s)
        magic, name_bytes, size_bytes = _REQUEST.unpack(octets)
        if magic != _MAGIC:
            raise WireError(f"a request begins with {magic.hex()}, not {_MAGIC.hex()}")
        if not 1 <= name_bytes <= NAME_BYTES_MAX:
            raise WireError(f"name of {name_bytes} octets, from 1 to {NAME_BYTES_MAX}")
        try:
            return cls(received(sock, name_bytes, until_s=until_s).decode(), size_bytes)
        except UnicodeDecodeError:
            raise WireError("a name that is no UTF-8") from None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server says."""

    errno: int
    size_bytes: int = 0

    def emit(self) -> bytes:
        """Return the octets."""
        return _REPLY.pack(_MAGIC, self.errno, self.size_bytes)

    @classmethod
    def parse(cls, octets: bytes) -> Reply:
        """Read a reply. Raises OSError: the server speaks something else."""
        magic, code, size_bytes = _REPLY.unpack(octets)
        if magic != _MAGIC:
            raise OSError("the server is not rcopy's")
        return cls(code, size_bytes)


def received(sock: AnySocket, count: int, *, until_s: float | None = None) -> bytes:
    """Return exactly so many octets.

    `until_s` is when all must be here, by time.monotonic(); None leaves the socket's timeout, for
    each part that comes. Raises ConnectionError: the stream ended before; TimeoutError.
    """
    octets = bytearray(count)
    place = memoryview(octets)
    while place:
        if until_s is not None:
            wait_until(sock, until_s)
        arrived = sock.recv_into(place)
        if not arrived:
            raise ConnectionError("the other side has closed the connection")
        place = place[arrived:]
    return bytes(octets)


def wait_until(sock: AnySocket, until_s: float) -> None:
    """Let the next call on a socket wait until a time at most. Raises TimeoutError: it is over."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "the client is too slow")
    sock.settimeout(left_s)
