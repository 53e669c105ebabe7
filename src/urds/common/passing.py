"""Descriptors passed over Unix sockets.

`socket.send_fds` and `recv_fds` ignore their flags before Python 3.14, MSG_CMSG_CLOEXEC among them.
"""

from __future__ import annotations

import socket
from array import array
from collections.abc import Sequence
from typing import Final

_INT_BYTES: Final = array("i").itemsize


def send(end: socket.socket, data: bytes, descriptors: Sequence[int] = (), flags: int = 0) -> None:
    """Send one message with descriptors; no signal where the other end is gone. Raises OSError."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
    end.sendmsg([data], rights if descriptors else [], flags | socket.MSG_NOSIGNAL)


def receive(
    end: socket.socket, bytes_max: int, descriptors_max: int, flags: int = 0
) -> tuple[bytes, list[int], bool]:
    """Take one message; return its bytes, its descriptors, and whether some of these are missing.

    They are not inheritable. Missing ones are those beyond the maximum, and those for which the
    process has no room. Raises OSError.
    """
    room = socket.CMSG_LEN(descriptors_max * _INT_BYTES)
    data, ancillary, result, _ = end.recvmsg(bytes_max, room, flags | socket.MSG_CMSG_CLOEXEC)
    found = array("i")
    for level, kind, value in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(value[: len(value) - len(value) % _INT_BYTES])
    return data, list(found), bool(result & socket.MSG_CTRUNC)
