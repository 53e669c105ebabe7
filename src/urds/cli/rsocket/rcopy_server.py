"""The server of `urds rsocket rcopy`: writes what clients send, below one folder and nowhere else.

A file is written under a name of its own and gets the wanted one when it is whole: size and SHA-256
are right and the bytes are on the disk. A copy that ends before that is removed, so no half a file
ever has the final name. One client at a time, which has to keep a pace: half a minute for the
request, and for each MiB. Clients are of this host and of the networks of --allow, up to
--max-bytes for each file, and none is replaced without --overwrite.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import tempfile
import time
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path, PurePosixPath
from typing import IO, Final

from urds.cli.output import complain
from urds.cli.processes import serve_child, tell_port
from urds.cli.rsocket.rcopy_wire import (
    CHUNK_BYTES,
    DIGEST_BYTES,
    RcopyOptions,
    Reply,
    Request,
    received,
    wait_until,
)
from urds.cli.rsocket.sockets import (
    AnySocket,
    listening,
    local_address,
    new_memory,
    new_socket,
)
from urds.common.errors import WireError

_TOOL: Final = "urds rsocket rcopy"
_PACE_S: Final = 30.0  # for the request, for each MiB, and for the digest
_LEAVING_S: Final = 5.0


def serve(options: RcopyOptions, *, wait_s: float | None = None) -> None:
    """Serve clients one after another until Ctrl-C; with a `wait_s`, one that comes in time."""
    server = _Server(options)
    family, address = local_address(options.bind or "", options.port or 0, None)
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
        host: IPv4Address | IPv6Address = ip_address(peer.partition("%")[0])
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
            sock.sendall(Reply(0).emit())
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
    sock.sendall(Reply(0, request.size_bytes).emit())
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
    sock.sendall(Reply(failure.errno or errno.EIO).emit())
    sock.shutdown(socket.SHUT_WR)
    _await_end(sock)


def _await_end(sock: AnySocket) -> None:
    until_s = time.monotonic() + _LEAVING_S
    place = memoryview(bytearray(CHUNK_BYTES))
    try:
        wait_until(sock, until_s)
        while sock.recv_into(place):
            wait_until(sock, until_s)
    except (TimeoutError, ConnectionError):
        pass


if __name__ == "__main__":
    sys.exit(serve_child(_TOOL, RcopyOptions, serve))
