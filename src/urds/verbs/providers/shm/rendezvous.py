"""Where the contexts of one user meet: a private directory with sockets and names.

`<gid>.context` is the socket of a context. `<space>-<ip>-<port>.<version>.listener` is the name of
a listening address; it holds the gid of the context that listens. The version is that of the
channel, so contexts of another one find no listener here, as if there were none, and a caller goes
on to its next device. (Version 1 has no version in its names.) Its owner keeps a lock on the
open file, which the kernel drops when the process dies, however it dies. So a name without a
lock is stale: the next listener takes it over, and a look-up ignores it. A socket whose process
died rejects connections; files like that are swept when a context opens.

Access is for one user: the directory must belong to it, with mode 0700, and both ends of each
connection check the other's credentials. Locks: F_OFD_SETLK of fcntl(2), Linux 3.15.
"""

import errno
import fcntl
import os
import random
import socket
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from urds.verbs.providers.shm.messages import GID_BYTES, VERSION

DIRECTORY_VARIABLE: Final = "XDG_RUNTIME_DIR"
BACKLOG: Final = 64
EPHEMERAL_PORTS: Final = range(49152, 65536)
_PORT_TRIES: Final = 64
_PATH_BYTES_MAX: Final = 107  # sockaddr_un holds 108 with the zero
_SWEEP_AGE_S: Final = 10.0  # younger files may not be complete yet
_WILDCARDS: Final = ("0.0.0.0", "::")
# struct flock where off_t has 64 bits: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("@hhqqi4x")
_CREDENTIALS: Final = struct.Struct("=iII")


def default_directory() -> Path:
    """Return where contexts of this user meet: $XDG_RUNTIME_DIR/urds-verbs or /tmp/urds-UID."""
    runtime = os.environ.get(DIRECTORY_VARIABLE)
    if runtime and Path(runtime).is_absolute():
        return Path(runtime) / "urds-verbs"
    return Path("/tmp") / f"urds-{os.geteuid()}"


def open_directory(path: Path) -> int:
    """Make the directory if it is missing and open it. Raises PermissionError if it is not ours.

    A link, another owner or any right for others would admit other users.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as failure:  # as after `su`, or in a container: the session is another one's
        text = f"{failure.strerror}: have {DIRECTORY_VARIABLE} name a folder of this user, or none"
        raise OSError(failure.errno, text, str(path)) from None
    try:
        descriptor = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise PermissionError(errno.EACCES, "no directory, or a link to one", str(path)) from None
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(
            errno.EACCES,
            f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}; "
            f"expected {os.geteuid()}, 0700",
            str(path),
        )
    return descriptor


def check_same_user(connection: socket.socket) -> None:
    """Raise PermissionError if the other end of a connection is another user's process."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    check_user(pid, uid, own_uid=os.geteuid())


def check_user(pid: int, uid: int, *, own_uid: int) -> None:
    """Raise PermissionError for every user but this one, root as well."""
    if uid != own_uid:
        raise PermissionError(errno.EACCES, f"process {pid} is of user {uid}, not {own_uid}")


class ListenerName:
    """The name of one listening address, held while it is open."""

    def __init__(self, directory: int, name: str, descriptor: int, port: int) -> None:
        self.port = port
        self._directory, self._name, self._descriptor = directory, name, descriptor

    def close(self) -> None:
        """Remove the name. Safe twice."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
            self.abandon()

    def abandon(self) -> None:
        """Close without removing the name: in the child of a fork it is the parent's."""
        os.close(self._descriptor)
        self._descriptor = -1


class Rendezvous:
    """The directory as one context sees it."""

    def __init__(
        self,
        gid: bytes,
        path: Path | None = None,
        *,
        check_peer: Callable[[socket.socket], None] = check_same_user,
    ) -> None:
        """Open the directory, sweep it, and listen under `gid`. Raises OSError."""
        assert len(gid) == GID_BYTES
        self._gid = gid
        self._check_peer = check_peer
        self._path = path if path is not None else default_directory()
        self._directory = open_directory(self._path)
        self.refused = 0  # connections of another user
        self.swept = 0
        try:
            self._sweep()
            self.socket = self._listen()
        except OSError:
            os.close(self._directory)
            raise

    # -- contexts

    def accept(self) -> socket.socket | None:
        """Return the next connection of another context of this user, `None` if none waits."""
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError as error:
                # No descriptor left: the caller wakes again for it, later and bounded.
                if error.errno in (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS):
                    return None
                raise
            connection.setblocking(False)
            try:
                self._check_peer(connection)
            except PermissionError:
                self.refused += 1
                connection.close()
                continue
            return connection

    def connect(self, gid: bytes) -> socket.socket:
        """Connect to a context, without waiting.

        Raises OSError: ENOENT or ECONNREFUSED if there is none, EAGAIN if its backlog is full,
        EACCES if it is another user's.
        """
        connection = _new_socket()
        try:
            connection.connect(self._socket_path(_context_name(gid)))
            self._check_peer(connection)
        except OSError:
            connection.close()
            raise
        return connection

    # -- listeners

    def claim(self, space: int, host: str, port: int) -> ListenerName:
        """Reserve the name of a listening address; port 0 takes a free one.

        Raises OSError: EADDRINUSE if a living context has it, or no port is free.
        """
        if port:
            return self._claim(space, host, port)
        for candidate in random.sample(EPHEMERAL_PORTS, _PORT_TRIES):
            try:
                return self._claim(space, host, candidate)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(errno.EADDRINUSE, f"no free port among {_PORT_TRIES} tried")

    def find(self, space: int, host: str, port: int) -> bytes | None:
        """Return the gid of the living context that listens there, or on any address."""
        wildcard = _WILDCARDS[":" in host]
        for name in (_listener_name(space, host, port), _listener_name(space, wildcard, port)):
            if (gid := self._read(name)) is not None:
                return gid
        return None

    def close(self) -> None:
        """Remove the context's socket and close."""
        with suppress(OSError):
            os.unlink(_context_name(self._gid), dir_fd=self._directory)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors; in the child of a fork the socket's name is the parent's."""
        self.socket.close()
        os.close(self._directory)

    # -- inside

    def _listen(self) -> socket.socket:
        listener = _new_socket()
        try:
            listener.bind(self._socket_path(_context_name(self._gid)))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def _socket_path(self, name: str) -> str:
        path = str(self._path / name)
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            # A socket's path is short; the open directory has a short one.
            path = f"/proc/self/fd/{self._directory}/{name}"
        return path

    def _claim(self, space: int, host: str, port: int) -> ListenerName:
        name = _listener_name(space, host, port)
        while True:
            descriptor = os.open(
                name,
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=self._directory,
            )
            try:
                if not _lock(descriptor):
                    raise OSError(errno.EADDRINUSE, f"{host} port {port} has a listener")
                # Its last owner may have unlinked it between our open and our lock.
                if _is_at(descriptor, name, self._directory):
                    os.pwrite(descriptor, self._gid, 0)
                    return ListenerName(self._directory, name, descriptor, port)
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _read(self, name: str) -> bytes | None:
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory
            )
        except OSError:
            return None
        try:
            gid = os.pread(descriptor, GID_BYTES + 1, 0)
            return gid if _is_locked(descriptor) and len(gid) == GID_BYTES else None
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what dead processes left."""
        for name in os.listdir(self._directory):  # noqa: PTH208 - the open directory, not its path
            with suppress(OSError):
                found = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
                if time.time() - found.st_mtime < _SWEEP_AGE_S:
                    continue
                if name.endswith(".context") and stat.S_ISSOCK(found.st_mode):
                    self._sweep_context(name)
                elif name.endswith(".listener") and stat.S_ISREG(found.st_mode):
                    self._sweep_listener(name)

    def _sweep_context(self, name: str) -> None:
        # A connect with another socket type detects a live socket without disturbing its owner.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            if probe.connect_ex(self._socket_path(name)) == errno.ECONNREFUSED:
                os.unlink(name, dir_fd=self._directory)
                self.swept += 1

    def _sweep_listener(self, name: str) -> None:
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            if _lock(descriptor) and _is_at(descriptor, name, self._directory):
                os.unlink(name, dir_fd=self._directory)
                self.swept += 1
        finally:
            os.close(descriptor)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def _context_name(gid: bytes) -> str:
    return f"{gid.hex()}.context"


def _listener_name(space: int, host: str, port: int) -> str:
    assert "/" not in host
    return f"{space:x}-{host}-{port}.{VERSION}.listener"


def _lock(descriptor: int) -> bool:
    """Take the lock that says "alive"; return whether it was free."""
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _is_locked(descriptor: int) -> bool:
    """Return whether the lock is held, without taking it."""
    wanted = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted)
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _is_at(descriptor: int, name: str, directory: int) -> bool:
    """Return whether the open file is still the one of that name."""
    try:
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
