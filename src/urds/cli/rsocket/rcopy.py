"""`urds rsocket rcopy`: copy a file over a stream, checked by size and digest.

`rcopy SOURCE HOST[:NAME]` is the client of a server that `rcopy --serve --into FOLDER` is;
`rcopy SOURCE --into FOLDER` starts that server in a process of its own.

A request names the file and its size; the server answers, takes exactly that many bytes and a
SHA-256 of them, and answers again once the file has its name, or at any time with an error.
Numbers are big-endian.

The server writes a file under a name of its own, which gets the wanted one when it is whole: size
and SHA-256 are right and the bytes are on the disk. A copy that ends before that is removed, so no
half a file ever has the final name. One client at a time, which has to keep a pace: half a minute
for the request, and for each MiB. Clients are of this host and of the networks of --allow, up to
--max-bytes for each file, and none is replaced without --overwrite.
Source: docs/reference/rsocket.md 15.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path, PurePosixPath
from struct import Struct
from typing import IO, Final

from urds.cli.output import GOOD, Exit, Output, Progress, UsageError, complain
from urds.cli.parser import Command, check_ranges, json_option, option
from urds.cli.processes import own_server, serve_child, tell_port
from urds.cli.rsocket.sockets import (
    LOOPBACK,
    AnySocket,
    bind_option,
    choose_devices,
    device_names,
    device_option,
    listening,
    local_address,
    new_memory,
    new_socket,
    port_option,
    resolved,
)
from urds.common.errors import WireError

Network = IPv4Network | IPv6Network

PORT: Final = 7427
MAX_BYTES: Final = 1 << 30  # of one file that a server takes, by default
CHUNK_BYTES: Final = 1 << 20
DIGEST_BYTES: Final = 32
NAME_BYTES_MAX: Final = 1024
_MODULE: Final = "urds.cli.rsocket.rcopy"
_TOOL: Final = "urds rsocket rcopy"
_MAGIC: Final = b"urc1"
_REQUEST: Final = Struct(">4s2xHQ")  # magic, bytes of the name, bytes of the file
_REPLY: Final = Struct(">4s2xHQ")  # magic, errno or 0, bytes that the file has, 0 before the end
_STALLED_S: Final = 30.0
_PACE_S: Final = 30.0  # for the request, for each MiB, and for the digest
_LEAVING_S: Final = 5.0


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


# -- the messages


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
        data = received(sock, _REQUEST.size, until_s=until_s)
        magic, name_bytes, size_bytes = _REQUEST.unpack(data)
        if magic != _MAGIC:
            raise WireError(f"a request begins with {magic.hex()}, not {_MAGIC.hex()}")
        if not 1 <= name_bytes <= NAME_BYTES_MAX:
            raise WireError(f"name of {name_bytes} bytes, from 1 to {NAME_BYTES_MAX}")
        try:
            return cls(received(sock, name_bytes, until_s=until_s).decode(), size_bytes)
        except UnicodeDecodeError:
            raise WireError("a name that is no UTF-8") from None


def reply(code: int, size_bytes: int = 0) -> bytes:
    """Return the server's reply."""
    return _REPLY.pack(_MAGIC, code, size_bytes)


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


# -- the client


def run(options: RcopyOptions) -> Exit:
    """Copy a file, or serve until Ctrl-C."""
    options.check()
    choose_devices(device_names(options.device))
    if options.is_server:
        max_bytes = MAX_BYTES if options.max_bytes is None else options.max_bytes
        serve(replace(options, max_bytes=max_bytes))
        return Exit.OK
    source = Path(options.source or "")
    if source.is_dir():
        raise UsageError(f"{source} is a directory; rcopy copies one file")
    try:
        file = source.open("rb", buffering=0)
    except OSError as failure:
        raise OSError(f"{source}: {failure.strerror}") from None
    with file:
        if options.target is not None:
            host, name = split(options.target)
            _copy(options, file, source, host, options.port or PORT, name)
        else:
            # Both ends are the user's own: no limit, and a file is replaced, as cp does.
            own = replace(options, is_server=True, overwrite=True)
            with own_server(_MODULE, own) as port:
                _copy(options, file, source, LOOPBACK, port, "")
    return Exit.OK


def split(target: str) -> tuple[str, str]:
    """Return host and name of HOST[:NAME]; an IPv6 address with a name stands in brackets."""
    if target.startswith("["):
        host, _, name = target[1:].partition("]")
        return host, name.removeprefix(":")
    if target.count(":") > 1:
        return target, ""
    host, _, name = target.partition(":")
    return host, name


def _copy(
    options: RcopyOptions, file: FileIO, source: Path, host: str, port: int, name: str
) -> None:
    size_bytes = os.fstat(file.fileno()).st_size
    request = Request(name or source.name, size_bytes)
    family, address = resolved(host, port, "name")
    with new_socket(is_kernel=options.is_kernel, family=family) as sock:
        sock.settimeout(_STALLED_S)
        start_s = time.perf_counter()
        sock.connect(address)
        sock.sendall(request.emit())
        read_reply(sock, request)
        with Progress(quiet=options.json_wanted) as progress:
            digest = _send(sock, file, request, progress)
        sock.sendall(digest)
        read_reply(sock, request)
        seconds = time.perf_counter() - start_s
        sock.shutdown(socket.SHUT_RDWR)
    gb_per_s = size_bytes * 8 / seconds / 1e9
    copied = {
        "source": str(source), "name": request.name, "size_bytes": size_bytes,
        "sha256": digest.hex(), "seconds": seconds, "gb_per_s": gb_per_s,
    }  # fmt: skip
    output = Output(json_wanted=options.json_wanted)
    output.document(copied)
    output.line(f"{size_bytes} bytes in {seconds:.2f} seconds = {gb_per_s:.2f} Gb/sec")
    output.line(f"{request.name}: size and SHA-256 are those of {source}", GOOD)


def _send(sock: AnySocket, file: FileIO, request: Request, progress: Progress) -> bytes:
    """Send the content; return its digest. Raises OSError: the server's error meanwhile."""
    digest, sent_bytes = hashlib.sha256(), 0
    chunk = memoryview(bytearray(CHUNK_BYTES))
    while sent_bytes < request.size_bytes:
        count = file.readinto(chunk[: request.size_bytes - sent_bytes])
        if not count:
            raise OSError(f"the file became shorter: {sent_bytes} of {request.size_bytes} bytes")
        if _has_word(sock):  # a full disk, say: the server does not wait for the rest
            read_reply(sock, request)
        sock.sendall(chunk[:count])
        digest.update(chunk[:count])
        sent_bytes += count
        progress.update(
            sent_bytes / request.size_bytes, f"{sent_bytes} of {request.size_bytes} bytes"
        )
    return digest.digest()


def _has_word(sock: AnySocket) -> bool:
    sock.setblocking(False)  # Python waits on with MSG_DONTWAIT while there is a timeout
    try:
        sock.recv_into(bytearray(1), 1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    finally:
        sock.settimeout(_STALLED_S)
    return True


def read_reply(sock: AnySocket, request: Request) -> None:
    """Read the server's reply. Raises OSError: its error."""
    magic, code, size_bytes = _REPLY.unpack(received(sock, _REPLY.size))
    if magic != _MAGIC:
        raise OSError("the server is not rcopy's")
    if code:
        raise OSError(code, f"{request.name} at the server: {os.strerror(code)}")
    if size_bytes not in (0, request.size_bytes):
        raise OSError(f"the server has {size_bytes} bytes of {request.size_bytes}")


# -- the server


def serve(options: RcopyOptions, *, wait_s: float | None = None) -> None:
    """Serve clients one after another until Ctrl-C; with a `wait_s`, one that comes in time."""
    server = _Server(options)
    port = options.port or (PORT if wait_s is None else 0)
    family, address = local_address(options.bind or "", port, None)
    listener = new_socket(is_kernel=options.is_kernel, family=family)
    with listening(listener, address) as listener:
        tell_port(listener.getsockname()[1], json_wanted=options.json_wanted)
        listener.settimeout(wait_s)
        chunk = new_memory(CHUNK_BYTES, is_kernel=options.is_kernel)
        while True:
            sock, peer = listener.accept()
            with sock:
                server.serve_one(sock, str(peer[0]), chunk)
            if wait_s is not None:
                return


class _Server:
    """The limits of a server, and the hosts that it serves."""

    def __init__(self, options: RcopyOptions) -> None:
        self._root = Path(options.into or ".").resolve()
        self._allowed = options.allowed()
        self._max_bytes = options.max_bytes
        self._overwrite = options.overwrite

    def serve_one(self, sock: AnySocket, peer: str, chunk: memoryview) -> None:
        """Serve a client; its errors end its connection only."""
        try:
            if not self.allows(peer, str(sock.getsockname()[0])):
                complain(_TOOL, f"{peer} is not allowed to copy: see --allow")
                return
            request = Request.receive(sock, until_s=time.monotonic() + _PACE_S)
            try:
                self._take(sock, request, chunk)
            except OSError as failure:
                complain(_TOOL, f"{request.name}: {failure.strerror or failure}")
                _refuse(sock, failure)
        except (WireError, OSError) as failure:  # of this client; the next one may be better
            complain(_TOOL, str(failure))

    def allows(self, peer: str, local: str) -> bool:
        """Tell whether a host may copy: this one, or one of the networks."""
        host = ip_address(peer.partition("%")[0])
        if isinstance(host, IPv6Address):
            host = host.ipv4_mapped or host
        if peer == local or host.is_loopback:
            return True
        return any(host in network for network in self._allowed)

    def _take(self, sock: AnySocket, request: Request, chunk: memoryview) -> None:
        """Receive one file. Raises OSError: the error to send to the client."""
        if self._max_bytes is not None and request.size_bytes > self._max_bytes:
            limit = f"{request.size_bytes} bytes, limit {self._max_bytes} (--max-bytes)"
            raise OSError(errno.EFBIG, limit)
        target = placed(request.name, self._root)
        if not self._overwrite and os.path.lexists(target):
            raise OSError(errno.EEXIST, "a file has this name (--overwrite replaces it)")
        _receive_file(sock, request, target, chunk, overwrite=self._overwrite)


def _receive_file(
    sock: AnySocket, request: Request, target: Path, chunk: memoryview, *, overwrite: bool
) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".rcopy-", dir=target.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            sock.sendall(reply(0))
            digest = _write(sock, file, request.size_bytes, chunk)
            until_s = time.monotonic() + _PACE_S
            if received(sock, DIGEST_BYTES, until_s=until_s) != digest:
                raise OSError(errno.EBADMSG, "the digest is not that of what arrived")
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        if overwrite:
            partial.replace(target)
        else:  # unlike a rename it fails if another one has made a file of that name meanwhile
            target.hardlink_to(partial)
            partial.unlink()
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sock.sendall(reply(0, request.size_bytes))
    _await_end(sock)


def placed(name: str, root: Path) -> Path:
    """Return where a file of this name goes. Raises OSError: not below the root, or a folder."""
    wanted = PurePosixPath(name)
    if wanted.is_absolute() or ".." in wanted.parts or "\0" in name or not wanted.name:
        raise OSError(errno.EACCES, "a name that leads out of the folder")
    # A link below the root may still lead out of it: check where it really leads.
    try:
        folder = (root / wanted).parent.resolve(strict=True)
    except RuntimeError:  # raised by Python before 3.13
        raise OSError(errno.ELOOP, "a name that leads in circles") from None
    if not folder.is_relative_to(root):
        raise OSError(errno.EACCES, "a name that leads out of the folder")
    target = folder / wanted.name
    if target.is_dir():
        raise OSError(errno.EISDIR, "a folder has this name")
    return target


def _write(sock: AnySocket, file: IO[bytes], size_bytes: int, chunk: memoryview) -> bytes:
    """Write so many bytes from the stream, through `chunk`; return their digest."""
    digest, left_bytes = hashlib.sha256(), size_bytes
    due_bytes, until_s = CHUNK_BYTES, time.monotonic() + _PACE_S
    while left_bytes:
        wait_until(sock, until_s)
        # One whole chunk where that can be: rsockets place it straight into this memory.
        place = chunk[: min(left_bytes, CHUNK_BYTES)]
        count = sock.recv_into(place, 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("the client left before the end")
        rest = place[:count]
        digest.update(rest)
        while rest:
            rest = rest[file.write(rest) :]
        left_bytes -= count
        due_bytes -= count
        if due_bytes <= 0:
            due_bytes, until_s = CHUNK_BYTES, time.monotonic() + _PACE_S
    return digest.digest()


def _refuse(sock: AnySocket, failure: OSError) -> None:
    """Send the reply, and let the client read it before the connection closes."""
    sock.settimeout(_LEAVING_S)
    sock.sendall(reply(failure.errno or errno.EIO))
    sock.shutdown(socket.SHUT_WR)
    _await_end(sock)


def _await_end(sock: AnySocket) -> None:
    until_s = time.monotonic() + _LEAVING_S
    place = memoryview(bytearray(CHUNK_BYTES))
    with suppress(TimeoutError, ConnectionError):
        wait_until(sock, until_s)
        while sock.recv_into(place):
            wait_until(sock, until_s)


COMMAND: Final = Command(
    about="""
    A server writes below the folder of --into and nowhere else. A file gets its name when it is
    whole and right, and half a file is never seen. A server takes files from this host and from the
    networks of --allow, and replaces none without --overwrite. With --into and no host the server
    is a process of its own on this host, and a file of that name is replaced. The exit code is 1 if
    the file is not there afterwards.
    """,
    examples=(
        ("urds rsocket rcopy big.iso --into /srv/copies", "from here to here"),
        (
            "urds rsocket rcopy --serve --into /srv/copies --device tcp -b 10.0.0.2"
            " --allow 10.0.0.0/24",
            "a server",
        ),
        ("urds rsocket rcopy big.iso 10.0.0.2:new.iso --device tcp", "its client"),
    ),
    options=RcopyOptions,
    run=run,
)

if __name__ == "__main__":
    sys.exit(serve_child(_TOOL, RcopyOptions, serve))
