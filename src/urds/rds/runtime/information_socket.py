"""The Unix socket at which a process serves its report to `urds info`.

A process is the host of its addresses and no other process can look inside. So each opens a Unix
socket that only its own user can reach; a connection gets one report and ends. The report travels
as a sealed memory file: passing a descriptor never waits, however long the report and however slow
the reader, so the control thread can serve it between two events. A process that ended without
closing its socket leaves a file behind; the next process that starts removes it. What asks is
`processes`.

Nothing here may keep a program from working: without a place for the socket there is none. Every
process imports this with its first bind, so paths are texts, without `pathlib`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from struct import Struct
from typing import Final

from urds.common.passed_files import send_with_files
from urds.rds.settings import AUTO

GREETING: Final = b"urds report 3\n"  # goes with the descriptor; the number is the format's
SUFFIX: Final = ".sock"
_CONNECTIONS_PER_PASS: Final = 8
_BACKLOG: Final = 16
_REMOVED_MAX: Final = 64  # at one start
_PEER_CREDENTIALS: Final = Struct("3i")  # pid, uid, gid
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def folder(named: str = AUTO) -> str:
    """Return where the sockets of this user's processes are by default; it need not exist."""
    if named != AUTO:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return f"{runtime}/urds"
    return f"{os.environ.get('TMPDIR', '/tmp')}/urds-{os.getuid()}"


def is_ours(place: str | os.PathLike[str], *, all_users: bool = False) -> bool:
    """Tell whether a folder belongs to this user, or to any one, alone; a link to one does not."""
    try:
        found = os.lstat(place)
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and (all_users or found.st_uid == os.getuid())
        and not stat.S_IMODE(found.st_mode) & 0o077
    )


class InformationSocket:
    """A listener for the control thread: `fileno` to watch, `handle_ready` when it is readable."""

    def __init__(self, place: str, listener: socket.socket, report: Callable[[], bytes]) -> None:
        self._place = place
        self._listener = listener
        self._report = report

    @classmethod
    def open(cls, report: Callable[[], bytes], directory: str = AUTO) -> InformationSocket | None:
        """Listen at this process's place; None where that is impossible."""
        with suppress(OSError), ExitStack() as undo:
            # No descriptor, no folder, a read-only one, or a path too long for a socket.
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            undo.callback(listener.close)
            place = _place_for(os.getpid(), folder(directory))
            listener.bind(place)
            os.chmod(place, 0o600)  # noqa: PTH101 - a text
            listener.listen(_BACKLOG)
            undo.pop_all()
            return cls(place, listener, report)
        return None

    def fileno(self) -> int:
        """Return the descriptor of the listener."""
        return self._listener.fileno()

    def handle_ready(self) -> None:
        """Answer waiting connections, at most eight; never blocks."""
        for _ in range(_CONNECTIONS_PER_PASS):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none left, or no descriptors: the rest is served next time
                return
            with connection, suppress(OSError):  # the reader may be gone already
                if _is_allowed(connection):
                    self._answer(connection)

    def close(self) -> None:
        """Stop listening and remove the socket's file."""
        if self._listener.fileno() >= 0:
            self._listener.close()
            with suppress(FileNotFoundError):
                os.unlink(self._place)  # noqa: PTH108 - a text

    def abandon_in_child(self) -> None:
        """After a fork, in the child: close the copy; the file stays the parent's."""
        self._listener.close()

    def _answer(self, connection: socket.socket) -> None:
        descriptor = os.memfd_create("urds-report", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(self._report())
            os.lseek(descriptor, 0, os.SEEK_SET)  # the reader gets this position with the file
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            send_with_files(connection, GREETING, [descriptor])
        finally:
            os.close(descriptor)


def _place_for(pid: int, at: str) -> str:
    """Return the path for a process, free to bind. Raises OSError."""
    with suppress(FileExistsError):
        os.mkdir(at, 0o700)  # noqa: PTH102 - a text
    if not is_ours(at):
        raise PermissionError(f"{at} is not a folder of this user alone")
    place = f"{at}/{pid}{SUFFIX}"
    # The earlier owner of this pid has ended, unless it is this process with a second backend.
    if os.path.exists(place) and not _is_served(place):  # noqa: PTH110 - a text
        with suppress(FileNotFoundError):
            os.unlink(place)  # noqa: PTH108 - a text
    with suppress(OSError):
        _remove_left(at)
    return place


def _remove_left(at: str) -> None:
    """Remove sockets of processes that have ended, a few at a time. Raises OSError.

    A process of another container with this folder is not seen here, but it listens.
    """
    removed = 0
    for name in os.listdir(at):  # noqa: PTH208 - a text
        pid = name.removesuffix(SUFFIX)
        if pid == name or not pid.isdecimal() or _is_alive(int(pid)) or _is_served(f"{at}/{name}"):
            continue
        with suppress(FileNotFoundError):
            os.unlink(f"{at}/{name}")  # noqa: PTH108 - a text
        removed += 1
        if removed == _REMOVED_MAX:
            return


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


def _is_served(place: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(place) != errno.ECONNREFUSED


def _is_allowed(connection: socket.socket) -> bool:
    """Tell whether the other end is this user or root; the folder's mode ensures the same."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return _PEER_CREDENTIALS.unpack(data)[1] in {0, os.getuid()}
