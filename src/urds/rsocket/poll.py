"""rpoll and rselect: waiting for rsockets and ordinary descriptors together.

A look asks each member of the set once, which is what a call with a set as argument costs anyhow.
After that only those that tell of a change are asked again: a wake-up costs what changed, not what
is watched. Nothing is armed and no lock is held while a thread sleeps.

How a thread sleeps depends on the set. Rsockets of one device alone: it drives that device itself
(`devices.wait`), and nobody has to wake it. Otherwise it sleeps in poll(2) on the ordinary
descriptors and a bell, while the devices are attended by threads of their own.

Source: rsocket.md 13, table of conditions; 18, rule 1. Why no wake-up is missed: `watching`.
"""

from __future__ import annotations

import errno
import math
import select
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from urds.rsocket import calls, devices
from urds.rsocket.watching import IN, OUT, Bell, Pollable, Watcher, attended, is_pollable, revents

if TYPE_CHECKING:
    from urds.rsocket.opening import Opening


class HasFileno(Protocol):
    """A file, or a socket of any kind."""

    def fileno(self) -> int:
        """Return its descriptor."""


File = int | HasFileno
AnyFile = TypeVar("AnyFile", bound=File)
Found = dict[int, int]  # revents by place in the set; only what is ready

_MS: Final = 1000


def rpoll(
    files: Iterable[tuple[AnyFile, int]], timeout_ms: float | None = None
) -> list[tuple[AnyFile, int]]:
    """Wait until some of the pairs (file, events) are ready and return them with their revents.

    Files are rsockets, their numbers, ordinary descriptors or what has one, mixed as you like;
    events those of `select`: POLLIN, POLLOUT and so on. Level-triggered. POLLERR, POLLHUP and
    POLLNVAL (no such descriptor) come unasked. A negative number is passed over, as in poll(2).
    `timeout_ms` 0 does not wait, `None` or a negative one waits for ever; none is cut short.
    Several threads may poll the same sockets.
    """
    members = list(files)
    is_endless = timeout_ms is None or timeout_ms < 0
    found = _poll(members, None if is_endless else (timeout_ms or 0) / _MS)
    return [(members[place][0], found[place]) for place in sorted(found)]


def rselect(
    readers: Iterable[AnyFile],
    writers: Iterable[AnyFile],
    exceptional: Iterable[AnyFile],
    timeout_s: float | None = None,
) -> tuple[list[AnyFile], list[AnyFile], list[AnyFile]]:
    """Wait as `select.select` does, for rsockets, their numbers and ordinary descriptors.

    `timeout_s` 0 does not wait, `None` waits for ever. The third answer holds whatever has more
    to tell than data and room: an error, a hang-up, urgent data. Any descriptor may be given, 0
    and those from 1024 up too. Raises OSError: EBADF, one is not open; ValueError: negative time.
    """
    if timeout_s is not None and timeout_s < 0:
        raise ValueError(f"a timeout of {timeout_s} s")
    asked = [list(readers), list(writers), list(exceptional)]
    events = (select.POLLIN, select.POLLOUT, select.POLLPRI)
    members = [(file, event) for each, event in zip(asked, events, strict=True) for file in each]
    found = _poll(members, timeout_s)
    for place, (file, _) in enumerate(members):
        is_negative = isinstance(file, int) and file < 0
        if is_negative or found.get(place, 0) & select.POLLNVAL:
            raise OSError(errno.EBADF, f"no open descriptor: {file}")
    answers: tuple[list[AnyFile], list[AnyFile], list[AnyFile]] = ([], [], [])
    for place in sorted(found):
        file, event = members[place]
        # As in the kernel's select: an end is there to be read, an error also to be written into.
        if event == select.POLLIN and found[place] & (IN | select.POLLHUP | select.POLLERR):
            answers[0].append(file)
        elif event == select.POLLOUT and found[place] & (OUT | select.POLLERR):
            answers[1].append(file)
        elif event == select.POLLPRI:
            answers[2].append(file)
    return answers


def find(file: File) -> Pollable | int:
    """Return the rsocket that a number or an object means, else the number of a descriptor.

    Raises what `fileno` of the object raises.
    """
    if isinstance(file, int):
        return calls.socket_of(file) or file
    if is_pollable(file):
        return file
    number = file.fileno()
    return calls.socket_of(number) or number


def _poll(members: Sequence[tuple[File, int]], timeout_s: float | None) -> Found:
    watch = _Watch(members)
    found = watch.look()
    if not found and watch.openings:
        # What lies at the device is there to be read, even if nobody has taken it in yet.
        for opening in watch.openings:
            opening.adapter.progress()
        found = watch.look()
    if found or timeout_s == 0:
        return found
    with watch:
        return watch.look() or watch.wait(timeout_s)


class _Watch:
    """The set of one call. Entered, it is told which members change."""

    def __init__(self, members: Sequence[tuple[File, int]]) -> None:
        self.openings: dict[Opening, None] = {}
        self._sockets: list[tuple[int, Pollable, int]] = []  # place, socket, events
        self._places: dict[int, list[tuple[int, int]]] = {}  # of a descriptor, with events
        self._changed: deque[int] = deque()  # indices into `_sockets`
        self._watchers: list[Watcher] = []
        self._bell: Bell | None = None
        self._driven: Opening | None = None  # the device that this thread waits for
        self._has_idle = False
        for place, (file, events) in enumerate(members):
            found = find(file)
            if isinstance(found, int):
                if found >= 0:
                    self._places.setdefault(found, []).append((place, events))
                continue
            self._sockets.append((place, found, events))
            self._has_idle = self._has_idle or not found.openings
            self.openings.update(dict.fromkeys(found.openings))
        self._kernel = select.poll()
        for descriptor, wanted in self._places.items():
            mask = 0
            for _, events in wanted:
                mask |= events
            self._kernel.register(descriptor, mask)
        # An idle socket may come to a device that nobody in this call drives.
        self._can_drive = len(self.openings) == 1 and not self._places and not self._has_idle

    def look(self) -> Found:
        """Ask every member."""
        found = self._ask_kernel(0) if self._places else {}
        for place, socket, events in self._sockets:
            if mask := revents(socket, events):
                found[place] = mask
        return found

    def __enter__(self) -> _Watch:
        for index, (_, socket, _) in enumerate(self._sockets):
            watcher = partial(self._note, index)
            self._watchers.append(watcher)
            socket.watchers.add(watcher)
        return self

    def __exit__(self, *details: object) -> None:
        for (_, socket, _), watcher in zip(self._sockets, self._watchers, strict=True):
            socket.watchers.remove(watcher)

    def wait(self, timeout_s: float | None) -> Found:
        """Sleep until a member is ready; nothing is when the time is over."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        return self._drive(end_s) if self._can_drive else self._sleep(end_s)

    def _note(self, index: int) -> None:
        """React to a change of a member. Any thread; the lock of its device may be held."""
        _, socket, events = self._sockets[index]
        if not revents(socket, events):
            return  # most changes are about what nobody asked for: they wake nobody
        is_first = not self._changed
        self._changed.append(index)
        if self._bell is not None:
            self._bell.ring()
        elif is_first and self._driven is not None:
            # Who changes something himself, without a packet, wakes nobody else.
            with self._driven.adapter.lock:
                self._driven.adapter.notify()

    def _look_at_changed(self) -> Found:
        found: Found = {}
        indices = set()
        while self._changed:
            indices.add(self._changed.popleft())
        for index in indices:
            place, socket, events = self._sockets[index]
            if mask := revents(socket, events):
                found[place] = mask
        return found

    def _drive(self, end_s: float | None) -> Found:
        """Drive the one device of all members until one of them is ready."""
        (driven,) = self.openings
        self._driven = driven
        while True:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            has_changed = devices.wait([driven], lambda: bool(self._changed), left_s)
            found = self._look_at_changed()
            if found or not has_changed:
                return found

    def _sleep(self, end_s: float | None) -> Found:
        """Sleep in poll(2) until a member or a bell is ready."""
        with ExitStack() as attending:
            bell = self._bell = Bell()
            attending.callback(bell.close)
            self._kernel.register(bell.fileno(), select.POLLIN)
            if self._changed:  # before there was a bell
                bell.ring()
            attending.enter_context(attended(self.openings))
            while True:
                left_ms = None
                if end_s is not None:
                    left_ms = max(0, math.ceil((end_s - time.monotonic()) * _MS))
                found = self._ask_kernel(left_ms)
                bell.quiet()
                found |= self._look_at_changed()
                if found or left_ms == 0:
                    return found
                if self._has_idle:
                    self._attend_more(attending)

    def _attend_more(self, attending: ExitStack) -> None:
        """Have devices driven to which idle members came meanwhile."""
        for _, socket, _ in self._sockets:
            for opening in socket.openings:
                if opening not in self.openings:
                    self.openings[opening] = None
                    attending.enter_context(attended([opening]))

    def _ask_kernel(self, timeout_ms: int | None) -> Found:
        found: Found = {}
        for descriptor, mask in self._kernel.poll(timeout_ms):
            for place, events in self._places.get(descriptor, ()):
                if told := mask & (events | select.POLLERR | select.POLLHUP | select.POLLNVAL):
                    found[place] = told
        return found
