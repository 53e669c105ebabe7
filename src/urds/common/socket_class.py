"""Which class the objects that `socket.socket(...)` makes have, in this process.

`serve` hooks the making of `socket.socket` objects, so that code which imported the class before
is served as well. Classes derived from it, and sockets made of a descriptor (so those of
`socket.fromfd`, `socketpair` and a kernel socket's `accept`), are made as before.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

# Returns the class for family, type and protocol (-1: not given), None: the kernel's.
Choice = Callable[[int, int, int], type[socket.socket] | None]

_HOOK: Final = "__new__"
_ARGUMENTS: Final = ("family", "type", "proto", "fileno")
_choices: Final[list[Choice]] = []


class KernelSocket(socket.socket):
    """A socket of the kernel, whatever `socket.socket` makes: what carries ours underneath."""

    __slots__ = ()


def serve(choice: Choice) -> None:
    """Ask `choice` for the class of each new socket of this process; idempotent."""
    if choice not in _choices:
        _choices.append(choice)
    setattr(socket.socket, _HOOK, staticmethod(_new))


def withdraw(choice: Choice) -> None:
    """Ask it no more; idempotent. Sockets already made stay as they are."""
    if choice in _choices:
        _choices.remove(choice)
    if not _choices and _HOOK in socket.socket.__dict__:
        delattr(socket.socket, _HOOK)


def _new(kind: type[socket.socket], *arguments: Any, **named: Any) -> socket.socket:
    """Make the object; Python then calls the `__init__` of whatever class it has."""
    if kind is socket.socket:
        given = named | dict(zip(_ARGUMENTS, arguments, strict=False))
        if given.get("fileno") is None:
            wanted = [given.get(name, -1) for name in _ARGUMENTS[:3]]
            chosen = next(filter(None, (choice(*wanted) for choice in _choices)), None)
            if chosen is not None:
                return chosen.__new__(chosen, *arguments, **named)
    return super(socket.socket, kind).__new__(kind)
