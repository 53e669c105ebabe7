"""Faults on purpose, for tests and demonstrations: nothing here is used by a running node."""

from __future__ import annotations

import ctypes
import os
import socket
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_UNSPECIFIED: Final = bytes(16)  # a socket address of family AF_UNSPEC


def reset_in_place(stream: socket.socket) -> None:
    """Make both ends of a TCP connection see a reset while its descriptor stays open.

    Received but unread bytes are thrown away, although TCP acknowledged them: as harsh as a
    fault can be. Raises OSError. Source: connect(2), AF_UNSPEC dissolves the association.
    """
    if _libc.connect(stream.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
