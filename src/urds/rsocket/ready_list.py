"""The rsockets of one `Repoll`, and the list of those that may be ready.

A member that tells of a change is asked at once, and is put on the list if it is ready: most
changes are about what no call waits for, and wake none. A wait asks those on the list again,
reports which still are ready, and puts them back at its end: level-triggered, and each member
comes in its order. So a wait costs what is ready, not what is registered.

The lock guards everything here. A thread that holds it asks no socket, so that callbacks, which
come with the lock of a device held, may take it.
"""

from __future__ import annotations

import errno
import select
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from urds.common.forks import renewed
from urds.rsocket.link.device_context import DeviceContext
from urds.rsocket.waiting import Pollable, Watcher, revents

Event = tuple[Any, int]  # what was registered as `data`, else the number; and its events


@dataclass(slots=True, eq=False)
class Member:
    """One registered rsocket."""

    socket: Pollable
    number: int | None  # as registered; `None`: an object, whose number is asked for late
    events: int
    data: Any
    is_armed: bool = True  # false after the one report of EPOLLONESHOT
    changes: int = 0  # that it told of
    contexts: tuple[DeviceContext, ...] | None = None  # as counted; `None`: not a member
    watcher: Watcher = field(init=False)

    def label(self) -> Any:
        """Return what reports call it."""
        if self.data is not None:
            return self.data
        return self.socket.fileno() if self.number is None else self.number

    def mask(self) -> int:
        """Return what is to be reported of it now."""
        return revents(self.socket, self.events) if self.is_armed else 0


class ReadyList:
    """Members and list. Any thread.

    `on_list` is called with the lock held whenever the list may have become empty or not;
    `on_ready` without, after a member became ready: the lock of its device may be held.
    """

    def __init__(self, on_list: Callable[[], None], on_ready: Callable[[Member], None]) -> None:
        self.lock = renewed(threading.Lock())
        self.devices: Counter[DeviceContext] = Counter()  # how many members each can change
        self.idle_count = 0  # members that are at no device yet
        self._members: dict[Pollable, Member] = {}
        self._listed: OrderedDict[Member, None] = OrderedDict()
        self._on_list = on_list
        self._on_ready = on_ready

    def __bool__(self) -> bool:
        """Tell whether a member may be ready."""
        return bool(self._listed)

    def members(self) -> list[Member]:
        """Return all members."""
        with self.lock:
            return list(self._members.values())

    def add(self, member: Member) -> None:
        """Begin to watch. Raises OSError: EEXIST."""
        contexts = tuple(member.socket.contexts)
        member.watcher = partial(self.note, member)
        with self.lock:
            is_new = self._members.setdefault(member.socket, member) is member
            if is_new:
                self._count(member, contexts)
        if not is_new:
            raise FileExistsError(errno.EEXIST, "the socket is registered")
        member.socket.watchers.add(member.watcher)
        self.note(member)

    def find(self, socket: Pollable) -> Member:
        """Return the member that a socket is. Raises OSError: ENOENT."""
        member = self._members.get(socket)
        if member is None:
            raise FileNotFoundError(errno.ENOENT, "the socket is not registered")
        return member

    def modify(self, member: Member, events: int, data: Any) -> None:
        """Watch for other events; armed again."""
        with self.lock:
            member.events, member.data, member.is_armed = events, data, True
        self.note(member)

    def remove(self, member: Member) -> None:
        """Watch no more. Safe twice."""
        with self.lock:
            if member.contexts is None:
                return
            del self._members[member.socket]
            self._count(member, None)
            self._listed.pop(member, None)
            self._on_list()
        member.socket.watchers.remove(member.watcher)

    def note(self, member: Member) -> None:
        """React to a change of a member; the lock of its device may be held."""
        with self.lock:
            member.changes += 1
            changes = member.changes
        is_ready = member.mask() != 0
        with self.lock:
            if is_ready and member.is_armed and member.contexts is not None:
                self._listed[member] = None
            elif member.changes == changes:  # else a later look knows better
                self._listed.pop(member, None)
            self._on_list()
        if is_ready:
            self._on_ready(member)

    def take(self, events_max: int) -> list[Event]:
        """Ask those on the list once, and report at most so many events."""
        found: list[Event] = []
        left_count = len(self._listed)
        while left_count > 0 and len(found) < events_max:
            with self.lock:
                count = min(left_count, events_max - len(found), len(self._listed))
                asked = [self._listed.popitem(last=False)[0] for _ in range(count)]
            left_count -= count or left_count
            self._ask(asked, found)
        return found

    def _ask(self, asked: list[Member], found: list[Event]) -> None:
        """Report the ready ones among members taken from the list, and put them back."""
        kept = []
        for member in asked:
            mask = member.mask()
            if mask & select.POLLNVAL:
                self.remove(member)  # closed
            elif mask and self._claim(member):
                found.append((member.label(), mask))
                if not member.events & (select.EPOLLONESHOT | select.EPOLLET):
                    kept.append(member)
        with self.lock:
            for member in asked:
                if member.contexts is not None:
                    self._count(member, tuple(member.socket.contexts))
            for member in kept:
                if member.contexts is not None:
                    self._listed[member] = None
            self._on_list()

    def _claim(self, member: Member) -> bool:
        """Tell whether to report a member: one with EPOLLONESHOT once until it is armed again."""
        if not member.events & select.EPOLLONESHOT:
            return True
        with self.lock:
            was_armed, member.is_armed = member.is_armed, False
        return was_armed

    def _count(self, member: Member, contexts: tuple[DeviceContext, ...] | None) -> None:
        """Note which devices can change a member: none of an idle one; `None`: it leaves."""
        if contexts == member.contexts:
            return
        self.idle_count += (contexts == ()) - (member.contexts == ())
        for context in contexts or ():
            self.devices[context] += 1
        for context in member.contexts or ():
            self.devices[context] -= 1
            if not self.devices[context]:
                del self.devices[context]
        member.contexts = contexts
