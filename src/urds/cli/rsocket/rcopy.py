"""`urds rsocket rcopy`: copy a file over a stream, checked by size and digest.

`rcopy SOURCE HOST[:NAME]` is the client of a server that `rcopy --serve --into FOLDER` is;
`rcopy SOURCE --into FOLDER` starts that server in a process of its own. Messages: `rcopy_wire`;
the server: `rcopy_server`. Source: docs/reference/rsocket.md 15.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Final

from urds.cli.output import GOOD, Exit, Output, Progress, UsageError
from urds.cli.parser import Command
from urds.cli.processes import own_server
from urds.cli.rsocket.rcopy_wire import (
    CHUNK_BYTES,
    MAX_BYTES,
    PORT,
    REPLY_BYTES,
    RcopyOptions,
    Reply,
    Request,
    received,
)
from urds.cli.rsocket.sockets import (
    LOOPBACK,
    AnySocket,
    choose_devices,
    device_names,
    new_socket,
    resolved,
)

_SERVER_MODULE: Final = "urds.cli.rsocket.rcopy_server"
_STALLED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied, and how fast."""

    source: str
    name: str
    size_bytes: int
    sha256: str
    seconds: float
    gb_per_s: float


def run(options: RcopyOptions) -> Exit:
    """Copy a file, or serve until Ctrl-C."""
    options.check()
    choose_devices(device_names(options.device))
    if options.is_server:
        from urds.cli.rsocket.rcopy_server import serve

        max_bytes = MAX_BYTES if options.max_bytes is None else options.max_bytes
        serve(replace(options, port=options.port or PORT, max_bytes=max_bytes))
        return Exit.OK
    source = Path(options.source or "")
    with _opened(source) as file:
        if options.target is not None:
            host, name = split(options.target)
            _copy(options, file, source, host, options.port or PORT, name)
        else:
            # Both ends are the user's own: no limit, and a file is replaced, as cp does.
            own = replace(options, is_server=True, overwrite=True)
            with own_server(_SERVER_MODULE, own) as port:
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


@contextmanager
def _opened(source: Path) -> Iterator[FileIO]:
    if source.is_dir():
        raise UsageError(f"{source} is a directory; rcopy copies one file")
    try:
        file = source.open("rb", buffering=0)
    except OSError as failure:
        raise OSError(f"{source}: {failure.strerror}") from None
    with file:
        yield file


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
        _reply(sock, request)
        with Progress(quiet=options.json_wanted) as progress:
            digest = _send(sock, file, request, progress)
        sock.sendall(digest)
        _reply(sock, request)
        seconds = time.perf_counter() - start_s
        sock.shutdown(socket.SHUT_RDWR)
    _print(
        options,
        Copied(
            str(source), request.name, size_bytes, digest.hex(), seconds,
            size_bytes * 8 / seconds / 1e9,
        ),
    )  # fmt: skip


def _send(sock: AnySocket, file: FileIO, request: Request, progress: Progress) -> bytes:
    """Send the content; return its digest. Raises OSError: the server's error meanwhile."""
    digest, sent_bytes = hashlib.sha256(), 0
    chunk = memoryview(bytearray(CHUNK_BYTES))
    while sent_bytes < request.size_bytes:
        count = file.readinto(chunk[: request.size_bytes - sent_bytes])
        if not count:
            raise OSError(f"the file became shorter: {sent_bytes} of {request.size_bytes} bytes")
        if _has_word(sock):  # a full disk, say: the server does not wait for the rest
            _reply(sock, request)
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


def _reply(sock: AnySocket, request: Request) -> None:
    """Read the server's reply. Raises OSError: its error."""
    reply = Reply.parse(received(sock, REPLY_BYTES))
    if reply.errno:
        raise OSError(reply.errno, f"{request.name} at the server: {os.strerror(reply.errno)}")
    if reply.size_bytes not in (0, request.size_bytes):
        raise OSError(f"the server has {reply.size_bytes} bytes of {request.size_bytes}")


def _print(options: RcopyOptions, copied: Copied) -> None:
    output = Output(json_wanted=options.json_wanted)
    if options.json_wanted:
        output.document(asdict(copied))
        return
    output.line(
        f"{copied.size_bytes} bytes in {copied.seconds:.2f} seconds = {copied.gb_per_s:.2f} Gb/sec"
    )
    output.line(f"{copied.name}: size and SHA-256 are those of {copied.source}", GOOD)


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
