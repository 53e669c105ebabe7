"""What processes pass to one another over a Unix socket: sealed memory, and messages with files."""

from __future__ import annotations

import fcntl
import os
import socket
from array import array
from collections.abc import Sequence
from typing import Final

# Numbers: a flag of Python's own kind takes a microsecond or more to add to others.
_RIGHTS: Final = (int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS))
_NOSIGNAL: Final = int(socket.MSG_NOSIGNAL)
_CLOSE_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_INT_BYTES: Final = array("i").itemsize
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed_file(name: str, file_bytes: int) -> int:
    """Make a memory file of zeroes with a fixed size; return its descriptor. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, file_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def send_with_files(
    connection: socket.socket, data: bytes, descriptors: Sequence[int] = (), flags: int = 0
) -> int:
    """Send a message and descriptors; return how many bytes were taken. Raises OSError.

    `socket.send_fds` of CPython 3.11 to 3.13 drops the flags, as `socket.recv_fds` does.
    """
    rights = [(*_RIGHTS, array("i", descriptors))] if descriptors else []
    return connection.sendmsg([data], rights, int(flags) | _NOSIGNAL)


def receive_with_files(
    connection: socket.socket, byte_count_max: int, files_max: int, flags: int = 0
) -> tuple[bytes, list[int], int]:
    """Return a message, descriptors that no other program inherits, and flags. Raises OSError.

    MSG_CTRUNC among the flags: descriptors are missing, those beyond `files_max` or those for
    which the process has no room.
    """
    room = socket.CMSG_LEN(files_max * _INT_BYTES)
    flags = int(flags) | _CLOSE_ON_EXEC
    data, messages, told, _ = connection.recvmsg(byte_count_max, room, flags)
    descriptors = array("i")
    for level, kind, raw in messages:
        if (level, kind) == _RIGHTS:
            descriptors.frombytes(raw[: len(raw) - len(raw) % _INT_BYTES])
    return data, list(descriptors), told
