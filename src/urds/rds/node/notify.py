"""What systemd gives a service and wants to know: sockets, state, watchdog, kept descriptors.

Source: sd_listen_fds(3), sd_notify(3), sd_pid_notify_with_fds(3), systemd.service(5)
FileDescriptorStoreMax=. Without systemd everything here does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from urds.common.passed_files import send_with_files
from urds.common.socket_class import KernelSocket

_FIRST: Final = 3
_US: Final = 1_000_000
_SEND_WAIT_S: Final = 5.0


def listen_descriptors() -> list[tuple[str, int]]:
    """Return the descriptors that the manager passed, with their names; for one caller.

    They are not for children any more, nor are the variables.
    """
    count, pid = os.environ.pop("LISTEN_FDS", ""), os.environ.pop("LISTEN_PID", "")
    named = os.environ.pop("LISTEN_FDNAMES", "")
    if not count.isdecimal() or pid != str(os.getpid()):
        return []
    names = named.split(":") if named else []
    names += [""] * (int(count) - len(names))
    found = list(zip(names, range(_FIRST, _FIRST + int(count)), strict=False))
    for _, descriptor in found:
        os.set_inheritable(descriptor, False)
    return found


class Notifier:
    """Tells the manager, if there is one. Whatever happens to a line, nothing is raised."""

    def __init__(self) -> None:
        """Take the place from the environment, where children shall not find it."""
        place = os.environ.pop("NOTIFY_SOCKET", "")
        watched, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        self._place = f"\0{place[1:]}" if place.startswith("@") else place
        is_watched = watched.isdecimal() and pid in ("", str(os.getpid()))
        self.watchdog_s = int(watched) / _US if self._place and is_watched else None

    @property
    def is_there(self) -> bool:
        """Whether a manager listens."""
        return bool(self._place)

    def tell(self, *lines: str, descriptors: Sequence[int] = ()) -> None:
        """Send lines such as `READY=1`."""
        if not self._place:
            return
        with suppress(OSError), KernelSocket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.settimeout(_SEND_WAIT_S)
            end.connect(self._place)
            send_with_files(end, "\n".join(lines).encode(), descriptors)

    def store(self, name: str, descriptors: Sequence[int]) -> None:
        """Have the manager keep descriptors for the next start, under one name, in this order.

        Also those whose other end is closed: messages may lie in them.
        """
        for index, descriptor in enumerate(descriptors):
            lines = "FDSTORE=1", f"FDNAME={name}-{index}", "FDPOLL=0"
            self.tell(*lines, descriptors=[descriptor])

    def remove(self, name: str, count: int) -> None:
        """Have the manager close what it kept under a name."""
        for index in range(count):
            self.tell("FDSTOREREMOVE=1", f"FDNAME={name}-{index}")
