"""Have `socket.socket(socket.AF_RDS, …)` make sockets of `urds`, in this process.

Only AF_RDS changes; every other family is made as before.
"""

from __future__ import annotations

from urds.common import socket_class
from urds.rds.constants import AF_RDS
from urds.rds.socket import Socket


def install() -> None:
    """Make every new AF_RDS socket of this process one of `urds`; idempotent."""
    socket_class.serve(_choice)


def uninstall() -> None:
    """Let `socket.socket` ask the kernel again; sockets already made stay as they are."""
    socket_class.withdraw(_choice)


def _choice(family: int, _type: int, _proto: int) -> type[Socket] | None:
    return Socket if family == AF_RDS else None
