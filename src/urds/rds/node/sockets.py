"""Sockets of programs as a node has them, and the records from which another worker makes them."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Any, Final

from urds.common.records import field, names, record
from urds.common.socket_class import KernelSocket
from urds.common.types import IPAddress
from urds.rds.constants import Transport
from urds.rds.node.channel import close_all
from urds.rds.node.plane_calls import Opened
from urds.rds.node.users import Endpoint, User
from urds.rds.options import Options
from urds.rds.plane.contract import ALL_GROUPS, MailboxSettings

_SO_COOKIE: Final = 57  # Source: linux v4.12 include/uapi/asm-generic/socket.h
_COOKIE_BYTES: Final = 8
_TEXTS_MAX: Final = 64  # of different options
_US: Final = 1_000
_BLOCK_BYTES: Final = 512  # of `st_blocks`
LOOKS_MIN: Final = 512  # sockets; a millisecond
LOOK_CALLS: Final = 8
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@record
class Record:
    """What the supervisor keeps of a socket beside its descriptors, as JSON."""

    uid: int
    pid: int
    name: Endpoint | None  # once bound
    is_left: bool
    options: Options

    @classmethod
    def of(cls, text: str) -> Record:
        """Read one. Raises ValueError, LookupError, TypeError if another release wrote it."""
        was = json.loads(text)
        known = names(Options)  # an upgrade may go from an older release, or back to one
        chosen = {key: value for key, value in was["options"].items() if key in known}
        chosen["traces"] = tuple(chosen["traces"])
        if chosen["transport"] is not None:
            chosen["transport"] = Transport(chosen["transport"])
        name = was["name"] and (ip_address(was["name"][0]), was["name"][1])
        return cls(was["uid"], was["pid"], name, was["is_left"], Options(**chosen))

    def text(self) -> str:
        """Write it."""
        name = self.name and [str(self.name[0]), self.name[1]]
        who = {"uid": self.uid, "pid": self.pid}
        text = json.dumps({**who, "name": name, "is_left": self.is_left})
        return f'{text[:-1]}, "options": {_text_of(self.options)}}}'


@record(frozen=False, eq=False, kw_only=True)
class NodeSocket:
    """One socket of a program."""

    cookie: int
    user: User
    pid: int  # of the process that opened it
    opened: Opened
    options: Options
    attached: Any = None  # what `PlaneCalls.bind` returned; None: not bound
    routes: Counter[IPAddress] = field(default_factory=Counter)
    is_left: bool = False  # its last descriptor was closed
    held_bytes: int | None = 0  # of memory, at the last look; None: it is over

    @property
    def endpoint(self) -> Endpoint | None:
        """Its address and port, once bound."""
        one = self.attached
        return None if one is None else (one.local, one.port)

    def text(self) -> str:
        """Return its record, from which another worker makes it again."""
        return Record(self.user.uid, self.pid, self.endpoint, self.is_left, self.options).text()


class MemoryLooks:
    """Looks what the sockets hold, a part of them at a time, and adds it up for their users.

    A program fills the memory of its socket without a word to the node, so that nothing tells of
    it. Up to LOOKS_MIN sockets are looked at in one call, each of more in LOOK_CALLS at most.
    """

    def __init__(self) -> None:
        self._left: list[NodeSocket] = []  # of this round
        self._at_once = 0

    def look(self, sockets: Iterable[NodeSocket]) -> None:
        """Look at the next part; a round begins with all of `sockets`, the newest first."""
        if not self._left:
            self._left = list(sockets)
            self._at_once = max(LOOKS_MIN, -(-len(self._left) // LOOK_CALLS))
        part = self._left[-self._at_once :]
        del self._left[-self._at_once :]
        for sock in part:
            before_bytes = sock.held_bytes
            if before_bytes is not None:
                sock.held_bytes = os.fstat(sock.opened.memory).st_blocks * _BLOCK_BYTES
                sock.user.memory_bytes += sock.held_bytes - before_bytes

    @staticmethod
    def forget(sock: NodeSocket) -> None:
        """Take a socket off, before its descriptors are closed."""
        sock.user.memory_bytes -= sock.held_bytes or 0
        sock.held_bytes = None


@lru_cache(maxsize=_TEXTS_MAX)
def _text_of(chosen: Options) -> str:
    return json.dumps({name: getattr(chosen, name) for name in names(Options)})


def settings_of(chosen: Options, *, is_strict: bool) -> MailboxSettings:
    """Return what the plane obeys; no call of a program waits here."""
    return MailboxSettings(
        send_bytes_max=chosen.send_bytes_max,
        receive_bytes_max=chosen.receive_bytes_max,
        send_wait_ns=0,
        receive_wait_ns=0,
        monitor=chosen.monitor,
        monitor_mask=ALL_GROUPS if chosen.monitor_mask is None else chosen.monitor_mask,
        timestamps=bool(chosen.timestamp),
        traces=chosen.traces,
        tos=chosen.tos,
        busy_poll_ns=chosen.busy_poll_us * _US,
        single_account=is_strict,
    )


def cookie_of(descriptor: int) -> int | None:
    """Return what names a socket for as long as the host is up; None for other files."""
    try:
        # Of which kind it is does not matter, and is not asked for.
        probe = KernelSocket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return None
    try:
        data = probe.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE_BYTES)
        return int.from_bytes(data, "little")
    except OSError:
        return None
    finally:
        probe.detach()


class Cookies:
    """The cookie of a descriptor that is asked for more than once."""

    def __init__(self) -> None:
        self._known: tuple[int, int | None] = (-1, None)

    def of(self, descriptor: int) -> int | None:
        """Return the cookie of a descriptor."""
        if self._known[0] != descriptor:
            self._known = descriptor, cookie_of(descriptor)
        return self._known[1]

    def forget(self) -> None:
        """Forget it: the descriptor is closed."""
        self._known = -1, None


class Made:
    """The descriptors that are made for an answer, closed once it is sent."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def add(self, descriptor: int) -> None:
        """Have one closed."""
        self._descriptors.append(descriptor)

    def seal(self, data: bytes) -> int:
        """Return the descriptor of a memory that holds the data and that cannot change."""
        self.add(sealed(data))
        return self._descriptors[-1]

    def take(self) -> Callable[[], None]:
        """Return what closes them; the next answer has others."""
        made, self._descriptors = self._descriptors, []
        return partial(close_all, made)


def hung_up(node_ends: Iterable[int]) -> set[int]:
    """Return those whose program's end no process has any more."""
    poll = select.poll()
    for node_end in node_ends:
        poll.register(node_end, 0)  # POLLHUP comes unasked
    return {node_end for node_end, events in poll.poll(0) if events & select.POLLHUP}


def shut(node_end: int) -> None:
    """Have the program of a socket see its end."""
    with suppress(OSError), socket.socket(fileno=os.dup(node_end)) as end:
        end.shutdown(socket.SHUT_RDWR)


def sealed(data: bytes) -> int:
    """Return the descriptor of a memory that holds the data and that cannot change."""
    descriptor = os.memfd_create("urds-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor
