"""Calls that every kind of socket of ours has alike, and what it does not have."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NoReturn, Self

INT: Final = Struct("=i")


class SocketCalls(socket.socket):
    """A socket without a descriptor of the kernel's behind it; what waits obeys `settimeout`."""

    __slots__ = ()

    _timeout_s: float | None

    def _refuse(self, call: str) -> NoReturn:
        """Raise OSError: EBADF once closed, else EOPNOTSUPP."""
        raise NotImplementedError

    def connect_ex(self, address: Any, /) -> int:
        """Connect; return 0 or the errno. A name that cannot be resolved still raises."""
        try:
            self.connect(address)
        except socket.gaierror:
            raise
        except OSError as refused:
            return refused.errno or errno.EAGAIN  # a timeout of Python has none
        return 0

    @property
    def timeout(self) -> float | None:
        """What `settimeout` set."""
        return self._timeout_s

    def gettimeout(self) -> float | None:
        """Return what `settimeout` set."""
        return self._timeout_s

    def setblocking(self, flag: bool, /) -> None:
        """Wait for ever (True) or never."""
        self.settimeout(None if flag else 0.0)

    def getblocking(self) -> bool:
        """Tell whether calls may wait."""
        return self._timeout_s != 0

    def get_inheritable(self) -> bool:
        """Return False: a child of a fork cannot use the parent's sockets."""
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        """Take False only."""
        if inheritable:
            self._refuse("set_inheritable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refused(call: str) -> Callable[..., NoReturn]:
    """Return a method that refuses (EOPNOTSUPP), whatever it is given."""

    def method(self: SocketCalls, *_: object, **__: object) -> NoReturn:
        self._refuse(call)

    method.__name__ = call
    method.__doc__ = "Refuse (EOPNOTSUPP)."
    return method


def c_int(value: int) -> int:
    """Return an integer. Raises OverflowError, as `socket.socket`, if it is none of C."""
    if not -(1 << 31) <= value < 1 << 31:
        raise OverflowError(f"{value} is not a C int")
    return value


def option_value(data: bytes, buffer_bytes: int) -> Any:
    """Return an option as `getsockopt` does: as an integer, or as bytes with a buffer."""
    if buffer_bytes:
        return data
    return int.from_bytes(data.ljust(INT.size, b"\0"), sys.byteorder, signed=True)
