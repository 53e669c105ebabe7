"""Where the node sockets are: the host's, and one of each user and network namespace.

A node has the addresses of one network namespace, so the name of a user's socket ends with the
namespace's cookie. Its folder is checked as that of `information_socket` is: of this user alone.
Every program asks here at its first bind, so paths are texts, without `pathlib`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from urds.common.socket_class import KernelSocket
from urds.rds.runtime.information_socket import is_ours

SYSTEM_PLACE: Final = "/run/urds/node.sock"
_SO_NETNS_COOKIE: Final = 71  # Source: linux v5.14 include/uapi/asm-generic/socket.h
_COOKIE_BYTES: Final = 8
_NAMESPACE_FILE: Final = "/proc/thread-self/ns/net"


def namespace() -> str:
    """Return the name of the network namespace that this thread is in: its cookie, in hex.

    Before Linux 5.14 it is the number of the namespace's file.
    """
    with KernelSocket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        data = probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES)
        return f"{int.from_bytes(data, 'little'):x}"
    return f"{os.stat(_NAMESPACE_FILE).st_ino:x}"  # noqa: PTH116 - a text


def user_folder() -> str:
    """Return the folder of this user's node sockets; it need not exist.

    A relative XDG_RUNTIME_DIR counts as none, as its specification says; TMPDIR does not count, so
    that programs with different ones find the same node.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/urds" if runtime.startswith("/") else f"/tmp/urds-{os.getuid()}"


def user_place() -> str:
    """Return where this user's node of this network namespace listens, if there is one."""
    return f"{user_folder()}/node-{namespace()}.sock"


def make_folder(place: str) -> None:
    """Make the folder of a user's socket. Raises OSError if it is not of this user alone."""
    folder = os.path.dirname(place)  # noqa: PTH120 - a text
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102 - a text
    except FileExistsError:
        pass
    except OSError as failure:
        raise OSError(failure.errno, f"{folder}: {failure.strerror}") from failure
    if not is_ours(folder):
        raise PermissionError(f"{folder} is not a folder of this user alone (mode 0700)")


def served() -> Iterator[str]:
    """Yield where nodes listen for this thread: the host's, then this user's."""
    if is_served(SYSTEM_PLACE):
        yield SYSTEM_PLACE
    place = user_place()
    if is_ours(os.path.dirname(place)) and is_served(place):  # noqa: PTH120 - a text
        yield place


def find() -> str | None:
    """Return where a node listens for this thread: the host's, else this user's; None: nowhere."""
    return next(served(), None)


def is_served(place: str) -> bool:
    """Tell whether a node accepts at a place, or would if it had less to do."""
    if not os.path.exists(place):  # noqa: PTH110 - a text
        return False
    with KernelSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(place)
        except BlockingIOError:  # its queue is full
            return True
        except OSError:
            return False
    return True
