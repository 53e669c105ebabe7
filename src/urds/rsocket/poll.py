"""rpoll and rselect: waiting for rsockets and ordinary descriptors together.

A look asks each member of the set once, which is what a call with a set as argument costs anyhow.
After that only those that tell of a change are asked again: a wake-up costs what changed, not what
is watched. Nothing is armed and no lock is held while a thread sleeps.

How a thread sleeps depends on the set. Rsockets of one device alone: it makes that device
progress itself (`devices.wait`), and no thread has to wake it. Otherwise it sleeps in poll(2) on
the ordinary descriptors and a doorbell, while the devices are attended by threads of their own.

Source: docs/reference/rsocket.md 13, table of conditions; 18, rule 1. Why no wake-up is missed:
`waiting`.
"""

from __future__ import annotations

import errno
import math
import os
import select
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar, Union

from urds.common.seconds import polling_time, waiting_time
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DeviceContext, attended
from urds.rsocket.socket import Socket
from urds.rsocket.waiting import Doorbell, Watcher, Watchers

if TYPE_CHECKING:
    from _typeshed import HasFileno

File = Union[int, "HasFileno"]  # or a socket of any kind
AnyFile = TypeVar("AnyFile", bound=File)
Found = dict[int, int]  # revents by place in the set; only what is ready

_MS: Final = 1000
POLL_MS_MAX: Final = (1 << 31) - 1  # what the kernel takes at once
IN: Final = select.POLLIN | select.POLLRDNORM
OUT: Final = select.POLLOUT | select.POLLWRNORM
ALWAYS: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL  # reported unasked too

# By number; each change is one step of a dict, which Python does whole.
_sockets: Final[dict[int, Socket]] = {}


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
    found = _poll(members, polling_time(timeout_ms, "timeout_ms", per_s=_MS))
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
    and those from 1024 up too. Raises OSError: EBADF, one is not open; ValueError: negative time,
    NaN; TypeError.
    """
    timeout_s = waiting_time(timeout_s)
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


def register(socket: Socket) -> int:
    """Give a socket to the r* calls, under the number of its descriptor."""
    number = socket.fileno()
    _sockets[number] = socket
    return number


def socket_of(descriptor: int) -> Socket | None:
    """Return the socket of a number, None for a number that is none of ours."""
    socket = _sockets.get(descriptor)
    # Closed as an object, its number may be another file's by now.
    return None if socket is None or socket.closed else socket


def forget(descriptor: int) -> None:
    """Take a number back."""
    _sockets.pop(descriptor, None)


def find(file: File) -> Socket | int:
    """Return the rsocket that a number or an object means, else the number of a descriptor.

    Raises what `fileno` of the object raises.
    """
    if isinstance(file, int):
        return socket_of(file) or file
    if is_pollable(file):
        return file
    number = file.fileno()
    return socket_of(number) or number


def is_pollable(file: object) -> TypeGuard[Socket]:
    """Tell an rsocket from other objects that have a descriptor."""
    return isinstance(getattr(file, "watchers", None), Watchers)


def revents(socket: Socket, events: int) -> int:
    """Return what poll would report of a socket for `events`. POLLNVAL: closed.

    Source: docs/reference/rsocket.md 13, table of conditions. As with kernel sockets POLLRDNORM and
    POLLWRNORM go with POLLIN and POLLOUT.
    """
    if socket.closed:
        return select.POLLNVAL
    try:
        now = socket.readiness()
    except OSError:  # closed in between
        return select.POLLNVAL
    found = 0
    if now.readable:
        found |= IN
    if now.writable:
        found |= OUT
    if now.hung_up:
        found |= select.POLLHUP
    if now.failed:
        found |= select.POLLERR
    return found & (events | ALWAYS)


def _poll(members: Sequence[tuple[File, int]], timeout_s: float | None) -> Found:
    watch = _Watch(members)
    found = watch.look()
    if not found and watch.contexts:
        # What lies at the device is there to be read, even if it has not been taken in yet.
        for context in watch.contexts:
            context.adapter.progress()
        found = watch.look()
    if found or timeout_s == 0:
        return found
    with watch:
        return watch.look() or watch.wait(timeout_s)


class _Watch:
    """The set of one call. Entered, it is told which members change."""

    def __init__(self, members: Sequence[tuple[File, int]]) -> None:
        self.contexts: dict[DeviceContext, None] = {}
        self._sockets: list[tuple[int, Socket, int]] = []  # place, socket, events
        self._places: dict[int, list[tuple[int, int]]] = {}  # of a descriptor, with events
        self._changed: deque[int] = deque()  # indices into `_sockets`
        self._watchers: list[Watcher] = []
        self._doorbell: Doorbell | None = None
        self._progress_context: DeviceContext | None = None  # the device that this thread waits for
        self._has_idle = False
        for place, (file, events) in enumerate(members):
            found = find(file)
            if isinstance(found, int):
                if found >= 0:
                    self._places.setdefault(found, []).append((place, events))
                continue
            self._sockets.append((place, found, events))
            self._has_idle = self._has_idle or not found.contexts
            self.contexts.update(dict.fromkeys(found.contexts))
        self._kernel = select.poll()
        for descriptor, wanted in self._places.items():
            mask = 0
            for _, events in wanted:
                mask |= events
            self._kernel.register(descriptor, mask)
        # An idle socket may come to a device that this call does not make progress.
        self._can_progress = len(self.contexts) == 1 and not self._places and not self._has_idle

    def look(self) -> Found:
        """Ask every member."""
        found = self._look_at(range(len(self._sockets)))
        if self._places:
            found |= self._ask_kernel(0)
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
        return self._progress(end_s) if self._can_progress else self._sleep(end_s)

    def _note(self, index: int) -> None:
        """React to a change of a member. Any thread; the lock of its device may be held."""
        _, socket, events = self._sockets[index]
        if not revents(socket, events):
            return  # most changes are about what was not asked for
        is_first = not self._changed
        self._changed.append(index)
        if self._doorbell is not None:
            self._doorbell.ring()
        elif is_first and self._progress_context is not None:
            # A call that changes something without a packet wakes no other thread.
            with self._progress_context.adapter.lock:
                self._progress_context.adapter.notify()

    def _look_at(self, indices: Iterable[int]) -> Found:
        found: Found = {}
        for index in indices:
            place, socket, events = self._sockets[index]
            if mask := revents(socket, events):
                found[place] = mask
        return found

    def _look_at_changed(self) -> Found:
        return self._look_at({self._changed.popleft() for _ in range(len(self._changed))})

    def _progress(self, end_s: float | None) -> Found:
        """Make the one device of all members progress until one of them is ready."""
        (driven,) = self.contexts
        self._progress_context = driven
        while True:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            has_changed = devices.wait([driven], lambda: bool(self._changed), left_s)
            found = self._look_at_changed()
            if found or not has_changed:
                return found

    def _sleep(self, end_s: float | None) -> Found:
        """Sleep in poll(2) until a member or the doorbell is ready."""
        with ExitStack() as attending:
            doorbell = self._doorbell = Doorbell()
            attending.callback(doorbell.close)
            self._kernel.register(doorbell.fileno(), select.POLLIN)
            if self._changed:  # before there was a doorbell
                doorbell.ring()
            attending.enter_context(attended(self.contexts))
            while True:
                left_ms = None
                if end_s is not None:
                    left_ms = max(0, math.ceil((end_s - time.monotonic()) * _MS))
                    left_ms = min(left_ms, POLL_MS_MAX)
                found = self._ask_kernel(left_ms)
                doorbell.quiet()
                found |= self._look_at_changed()
                if found or left_ms == 0:
                    return found
                if self._has_idle:
                    self._attend_more(attending)

    def _attend_more(self, attending: ExitStack) -> None:
        """Have devices progress to which idle members came meanwhile."""
        for _, socket, _ in self._sockets:
            for context in socket.contexts:
                if context not in self.contexts:
                    self.contexts[context] = None
                    attending.enter_context(attended([context]))

    def _ask_kernel(self, timeout_ms: int | None) -> Found:
        found: Found = {}
        for descriptor, mask in self._kernel.poll(timeout_ms):
            for place, events in self._places.get(descriptor, ()):
                if told := mask & (events | select.POLLERR | select.POLLHUP | select.POLLNVAL):
                    found[place] = told
        return found


os.register_at_fork(after_in_child=_sockets.clear)
