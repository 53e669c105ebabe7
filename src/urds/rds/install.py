"""Have `socket.socket(socket.AF_RDS, …)` make sockets of `urds`, in this process.

`install` hooks the making of `socket.socket` objects, so that code which imported the class before
is served as well. Only AF_RDS changes; every other family is made as before.
"""

from __future__ import annotations

import socket
from typing import Any

from urds.rds.constants import AF_RDS
from urds.rds.socket import Socket

_HOOK = "__new__"


def install() -> None:
    """Make every new AF_RDS socket of this process one of `urds`; idempotent."""
    if _HOOK not in socket.socket.__dict__:
        setattr(socket.socket, _HOOK, staticmethod(_new))


def uninstall() -> None:
    """Let `socket.socket` ask the kernel again; sockets already made stay as they are."""
    if _HOOK in socket.socket.__dict__:
        delattr(socket.socket, _HOOK)


def _new(kind: type[socket.socket], *arguments: Any, **named: Any) -> socket.socket:
    """Make the object; Python then calls the `__init__` of whatever class it has."""
    family = arguments[0] if arguments else named.get("family", -1)
    descriptor = arguments[3] if len(arguments) > 3 else named.get("fileno")
    if kind is socket.socket and family == AF_RDS and descriptor is None:
        kind = Socket
    return super(socket.socket, kind).__new__(kind)
