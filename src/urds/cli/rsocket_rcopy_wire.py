"""What the two sides of `urds rsocket rcopy` say to each other, and their options.

A request names the file and its size; the server answers, takes exactly that many octets and a
SHA-256 of them, and answers again once the file has its name, or at any time with what went wrong.
Numbers are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from urds.cli.exits import UsageError
from urds.cli.rsocket_ways import AnySocket, device_names
from urds.errors import WireError

PORT: Final = 7427
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
        if self.port is not None and not 1 <= self.port <= 65_535:
            raise UsageError(f"-p {self.port}, from 1 to 65535")
        device_names(self.device)


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
    def receive(cls, sock: AnySocket) -> Request:
        """Read a request. Raises WireError for octets that are none, OSError."""
        magic, name_bytes, size_bytes = _REQUEST.unpack(received(sock, REQUEST_BYTES))
        if magic != _MAGIC:
            raise WireError(f"a request begins with {magic.hex()}, not {_MAGIC.hex()}")
        if not 1 <= name_bytes <= NAME_BYTES_MAX:
            raise WireError(f"name of {name_bytes} octets, from 1 to {NAME_BYTES_MAX}")
        try:
            return cls(received(sock, name_bytes).decode(), size_bytes)
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
        magic, errno, size_bytes = _REPLY.unpack(octets)
        if magic != _MAGIC:
            raise OSError("the server is not rcopy's")
        return cls(errno, size_bytes)


def received(sock: AnySocket, count: int) -> bytes:
    """Return exactly so many octets. Raises ConnectionError: the stream ended before."""
    octets = bytearray(count)
    place = memoryview(octets)
    while place:
        arrived = sock.recv_into(place)
        if not arrived:
            raise ConnectionError("the other side has closed the connection")
        place = place[arrived:]
    return bytes(octets)
