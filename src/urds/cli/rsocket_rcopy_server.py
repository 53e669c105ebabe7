"""The server of `urds rsocket rcopy`: writes what clients send, below one folder and nowhere else.

A file is written under a name of its own and gets the wanted one when it is whole: size and
SHA-256 are right and the octets are on the disk. Whatever ends a copy before that removes it, so
nobody ever sees half a file under the final name. One client at a time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO, Final

from urds.cli.output import complain
from urds.cli.rsocket_addresses import local_address
from urds.cli.rsocket_processes import serve_child, tell_port
from urds.cli.rsocket_rcopy_wire import (
    CHUNK_BYTES,
    DIGEST_BYTES,
    RcopyOptions,
    Reply,
    Request,
    received,
)
from urds.cli.rsocket_ways import AnySocket, listening, new_memory, new_socket
from urds.errors import WireError

_TOOL: Final = "rsocket rcopy"
_STALLED_S: Final = 30.0
_LEAVING_S: Final = 5.0


def serve(options: RcopyOptions, *, wait_s: float | None = None) -> None:
    """Serve clients one after another until Ctrl-C; with a `wait_s`, one that comes in time."""
    root = Path(options.into or ".").resolve()
    family, address = local_address(options.bind or "", options.port or 0, None)
    listener = new_socket(is_kernel=options.is_kernel, family=family)
    with listening(listener, address) as listener:
        tell_port(listener.getsockname()[1], json_wanted=options.json_wanted)
        listener.settimeout(wait_s)
        chunk = new_memory(CHUNK_BYTES, is_kernel=options.is_kernel)
        while True:
            sock = listener.accept()[0]
            with sock:
                sock.settimeout(_STALLED_S)
                _serve_one(sock, root, chunk)
            if wait_s is not None:
                return


def _serve_one(sock: AnySocket, root: Path, chunk: memoryview) -> None:
    try:
        request = Request.receive(sock)
        try:
            _take(sock, request, root, chunk)
        except OSError as failure:
            complain(_TOOL, f"{request.name}: {failure.strerror or failure}")
            _refuse(sock, failure)
    except (WireError, OSError) as failure:  # of this client; the next one may be better
        complain(_TOOL, str(failure))


def _take(sock: AnySocket, request: Request, root: Path, chunk: memoryview) -> None:
    """Receive one file. Raises OSError: what the client is to be told."""
    target = placed(request.name, root)
    descriptor, name = tempfile.mkstemp(prefix=".rcopy-", dir=target.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            sock.sendall(Reply(0).emit())
            digest = _write(sock, file, request.size_bytes, chunk)
            if received(sock, DIGEST_BYTES) != digest:
                raise OSError(errno.EBADMSG, "the digest is not that of what arrived")
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sock.sendall(Reply(0, request.size_bytes).emit())
    _await_end(sock)


def placed(name: str, root: Path) -> Path:
    """Return where a file of this name goes. Raises OSError: not below the root, or a folder."""
    wanted = PurePosixPath(name)
    if wanted.is_absolute() or ".." in wanted.parts or "\0" in name or not wanted.name:
        raise OSError(errno.EACCES, "a name that leads out of the folder")
    # A link below the root may still lead out of it: judge where it really leads.
    try:
        folder = (root / wanted).parent.resolve(strict=True)
    except RuntimeError:  # what Python before 3.13 says
        raise OSError(errno.ELOOP, "a name that leads in circles") from None
    if not folder.is_relative_to(root):
        raise OSError(errno.EACCES, "a name that leads out of the folder")
    target = folder / wanted.name
    if target.is_dir():
        raise OSError(errno.EISDIR, "a folder has this name")
    return target


def _write(sock: AnySocket, file: IO[bytes], size_bytes: int, chunk: memoryview) -> bytes:
    """Write so many octets from the stream, by way of `chunk`; return their digest."""
    digest, left_bytes = hashlib.sha256(), size_bytes
    while left_bytes:
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
    return digest.digest()


def _refuse(sock: AnySocket, failure: OSError) -> None:
    """Tell the client, and let it read that before the connection goes."""
    sock.sendall(Reply(failure.errno or errno.EIO).emit())
    sock.shutdown(socket.SHUT_WR)
    _await_end(sock)


def _await_end(sock: AnySocket) -> None:
    sock.settimeout(_LEAVING_S)
    place = memoryview(bytearray(CHUNK_BYTES))
    try:
        while sock.recv_into(place):
            pass
    except (TimeoutError, ConnectionError):
        pass


if __name__ == "__main__":
    sys.exit(serve_child(_TOOL, RcopyOptions, serve))
