"""Repoll: epoll for rsockets and ordinary descriptors. Each wait costs what is ready.

Rsockets are in a `ReadyList`, kept as they change; librdmacm asks all of them at each wait, by a
thread per instance. Ordinary descriptors are in a set of the kernel. So is the doorbell, which is
readable while a member is on the list and a thread sleeps, or the instance's own descriptor is in
use. Rsockets of one device alone need neither: a thread that waits for them makes the device
progress itself.

A member that tells of a change is asked at once, and is put on the list if it is ready: most
changes are about what no call waits for, and wake none. A wait asks those on the list again,
reports which still are ready, and puts them back at its end: level-triggered, and each member
comes in its order. So a wait costs what is ready, not what is registered.

Source: docs/reference/rsocket.md 13, 18 rule 1; epoll(7) for the flags.
"""

from __future__ import annotations

import errno
import math
import select
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from urds.common.forks import renewed
from urds.common.progress import progress_thread
from urds.common.seconds import polling_time
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DeviceContext, attended
from urds.rsocket.poll import POLL_MS_MAX, File, find, revents
from urds.rsocket.socket import Socket
from urds.rsocket.waiting import Doorbell, Watcher

Event = tuple[Any, int]  # what was registered as `data`, else the number; and its events


@dataclass(slots=True, eq=False)
class Member:
    """One registered rsocket."""

    socket: Socket
    number: int | None  # as registered; `None`: an object, whose number is asked for late
    events: int
    data: Any
    is_armed: bool = True  # false after the one report of EPOLLONESHOT
    claim: object = None  # call that has that report
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

    The lock guards everything here. A thread that holds it asks no socket, so that callbacks, which
    come with the lock of a device held, may take it.

    `on_list` is called with the lock held whenever the list may have become empty or not;
    `on_ready` without, after a member became ready: the lock of its device may be held.
    """

    def __init__(self, on_list: Callable[[], None], on_ready: Callable[[Member], None]) -> None:
        self.lock = renewed(threading.Lock())
        self.devices: Counter[DeviceContext] = Counter()  # how many members each can change
        self.idle_count = 0  # members that are at no device yet
        self._members: dict[Socket, Member] = {}
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

    def find(self, socket: Socket) -> Member:
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

    def take(self, events_max: int, call: object = None) -> list[Event]:
        """Ask those on the list once, and report at most so many events to `call`.

        An exception of a signal handler may leave some of them neither reported nor on the list:
        behind it `put_back` has to follow.
        """
        found: list[Event] = []
        left_count = len(self._listed)
        while left_count > 0 and len(found) < events_max:
            with self.lock:
                count = min(left_count, events_max - len(found), len(self._listed))
                asked = [self._listed.popitem(last=False)[0] for _ in range(count)]
            left_count -= count or left_count
            self._ask(asked, found, call)
        return found

    def put_back(self, call: object) -> None:
        """Take back what `call` was to report, and ask all members: any may be off the list."""
        for member in self.members():
            with self.lock:
                if member.claim is call:
                    member.is_armed, member.claim = True, None
            self.note(member)

    def _ask(self, asked: list[Member], found: list[Event], call: object) -> None:
        """Report the ready ones among members taken from the list, and put them back."""
        kept = []
        for member in asked:
            mask = member.mask()
            if mask & select.POLLNVAL:
                self.remove(member)  # closed
            elif mask and self._claim(member, call):
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

    def _claim(self, member: Member, call: object) -> bool:
        """Tell whether to report a member: one with EPOLLONESHOT once until it is armed again."""
        if not member.events & select.EPOLLONESHOT:
            return True
        with self.lock:
            if was_armed := member.is_armed:
                member.is_armed, member.claim = False, call
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


EPOLL_CTL_ADD: Final = 1
EPOLL_CTL_DEL: Final = 2
EPOLL_CTL_MOD: Final = 3
EVENTS_MAX: Final = 1023  # of one wait that names no limit, as in select.epoll
_DEFAULT: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLPRI
_MS: Final = 1000


class Repoll:
    """A set of rsockets and ordinary descriptors to wait for; used as `select.epoll` is.

    Safe from any thread, also while others wait. It keeps the objects that it was given alive
    until they are closed or unregistered.
    """

    def __init__(self) -> None:
        self.closed = False
        self._list = ReadyList(self._sync_doorbell, self._notify_progress)
        self._descriptors: dict[int, Any] = {}  # ordinary ones, with their data
        self._kernel: select.epoll | None = None
        self._doorbell: Doorbell | None = None
        self._is_shown = False  # others may look at the descriptor
        self._is_outside = False  # and count on the devices to progress by themselves
        self._sleeper_count = 0
        self._progress_context: DeviceContext | None = None  # by threads that wait
        self._progress_count = 0
        self._poll_count = 0
        self._cut_calls: set[object] = set()  # by an exception, and not mended yet
        self._attending = ExitStack()
        self._attended: set[DeviceContext] = set()

    # -- members

    def register(self, file: File, eventmask: int = _DEFAULT, data: Any = None) -> None:
        """Watch an rsocket, its number, or an ordinary file for events (EPOLLIN and so on).

        EPOLLERR and EPOLLHUP come unasked; EPOLLET and EPOLLONESHOT do what they do in epoll(7).
        Reports name it by `data`, or by its number if that is None. Raises OSError: EEXIST, it
        is here; EBADF; EPERM, a descriptor that cannot be polled; ValueError: closed.
        """
        self._demand_open()
        found = find(file)
        if isinstance(found, int):
            self._open_kernel().register(found, eventmask)
            self._descriptors[found] = data
        else:
            number = file if isinstance(file, int) else None
            found.readiness()  # raises EBADF
            self._list.add(Member(found, number, eventmask, data))
        self._notify()

    def modify(self, file: File, eventmask: int, data: Any = None) -> None:
        """Watch for other events, and name it otherwise. Arms it again after EPOLLONESHOT.

        Raises OSError: ENOENT, it is not here; EBADF; ValueError: closed.
        """
        self._demand_open()
        found = find(file)
        if isinstance(found, int):
            self._open_kernel().modify(found, eventmask)
            self._descriptors[found] = data
        else:
            self._list.modify(self._list.find(found), eventmask, data)

    def unregister(self, file: File) -> None:
        """Watch it no more. Raises OSError: ENOENT, it is not here; EBADF; ValueError: closed."""
        self._demand_open()
        found = find(file)
        if isinstance(found, int):
            self._open_kernel().unregister(found)
            self._descriptors.pop(found, None)
        else:
            self._list.remove(self._list.find(found))

    # -- waiting

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[Event]:
        """Wait `timeout` seconds (`None` or negative: for ever) for events and return them.

        At most `maxevents` (-1: EVENTS_MAX); the others come with the next call. An empty list:
        the time is over. Raises ValueError: closed, also meanwhile; a bad `maxevents`;
        NaN. TypeError: no number.
        """
        if maxevents == 0 or maxevents < -1:
            raise ValueError(f"maxevents must be greater than 0, got {maxevents}")
        self._demand_open()
        timeout_s = polling_time(timeout, "timeout")
        call = object()  # stands for this one
        if self._cut_calls:
            self._mend()
        try:
            return self._wait(call, timeout_s, EVENTS_MAX if maxevents < 0 else maxevents)
        except BaseException:
            self._cut_calls.add(call)  # the next one goes on where a second exception ends this
            self._mend()
            raise

    def _wait(self, call: object, timeout_s: float | None, events_max: int) -> list[Event]:
        found = self._take(events_max, call)
        if not found:
            for context in list(self._list.devices):
                context.adapter.progress()
            found = self._take(events_max, call)
        if found or timeout_s == 0:
            return found
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not found and (end_s is None or time.monotonic() < end_s):
            found = self._progress(end_s, events_max, call) or self._sleep(end_s, events_max, call)
            self._demand_open()
        return found

    def _mend(self) -> None:
        """Put back what calls have taken that an exception cut short."""
        for call in list(self._cut_calls):
            self._list.put_back(call)
            self._cut_calls.discard(call)

    def fileno(self) -> int:
        """Return a descriptor that is readable while something is ready, for select and epoll.

        From the first call on, threads of their own make the devices of the members progress.
        """
        number = self.show()
        self._is_outside = True
        self._attend()
        return number

    def show(self) -> int:
        """Return the descriptor of `fileno`, but do not have the devices driven for it.

        Unless a thread waits, what a device has not taken in shows a little later then.
        """
        self._demand_open()
        number = self._open_kernel().fileno()
        with self._list.lock:
            self._is_shown = True
            self._sync_doorbell()
        return number

    def close(self) -> None:
        """Release everything; a thread that waits gets a ValueError. Safe twice."""
        with self._list.lock:
            if self.closed:
                return
            self.closed = True
            if not self._sleeper_count:
                self._release()
            elif self._doorbell is not None:
                self._doorbell.ring()  # the last one to wake releases
        for member in self._list.members():
            self._list.remove(member)
        self._notify()
        self._unattend()

    def __enter__(self) -> Repoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- taking

    def _take(self, events_max: int, call: object) -> list[Event]:
        """Ask those on the list, and the kernel; return at most so many events."""
        if not self._descriptors:
            return self._list.take(events_max, call)
        self._poll_count += 1  # alternately: neither may starve the other
        if self._poll_count % 2:
            found = self._ask_kernel(0, events_max)
            return found + self._list.take(events_max - len(found), call)
        found = self._list.take(events_max, call)
        if len(found) < events_max:
            found += self._ask_kernel(0, events_max - len(found))
        return found

    def _ask_kernel(self, timeout_s: float, events_max: int) -> list[Event]:
        kernel, doorbell = self._open_kernel(), self._doorbell
        if timeout_s > 0:
            # Never too short, but for what the kernel does not take: the caller asks again.
            timeout_s = min(math.ceil(timeout_s * _MS), POLL_MS_MAX) / _MS
        found: list[Event] = []
        for number, mask in kernel.poll(timeout_s, events_max):
            if doorbell is None or number != doorbell.fileno():
                data = self._descriptors.get(number)
                found.append((number if data is None else data, mask))
        return found

    # -- sleeping

    def _can_progress(self) -> bool:
        members = self._list
        return len(members.devices) == 1 and not members.idle_count and not self._descriptors

    def _progress(self, end_s: float | None, events_max: int, call: object) -> list[Event]:
        """Make the one device of all members progress until a member is on the list.

        Returns at once if there is not one device alone, and early if that changes.
        """
        with self._list.lock:
            if not self._can_progress():
                return []
            (self._progress_context,) = driven = tuple(self._list.devices)
            self._progress_count += 1
            is_needless = bool(self._attended) and not (self._is_outside or self._sleeper_count)
        if is_needless:
            self._unattend()
        left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
        try:
            devices.wait(driven, self._is_to_return, left_s)
        finally:
            with self._list.lock:
                self._progress_count -= 1
        return self._list.take(events_max, call)

    def _is_to_return(self) -> bool:
        return bool(self._list) or self.closed or not self._can_progress()

    def _notify_progress(self, member: Member) -> None:
        """Have threads that make the member's device progress ask again."""
        if not self._progress_count:
            return
        if member.contexts == (self._progress_context,):
            self._notify()
        else:  # the lock of another device may be held, and then this one's may not be taken
            progress_thread.call_soon(self._notify)

    def _notify(self) -> None:
        """Have threads that make a device progress ask again. No lock of another device is held."""
        driven = self._progress_context
        if driven is not None and self._progress_count:
            with driven.adapter.lock:
                driven.adapter.notify()

    def _sleep(self, end_s: float | None, events_max: int, call: object) -> list[Event]:
        """Sleep in the kernel's set until the doorbell or a descriptor is ready."""
        with self._list.lock:
            if self.closed or self._can_progress():
                return []
        self._open_kernel()
        self._attend()
        with self._list.lock:
            self._sleeper_count += 1
            self._sync_doorbell()
        try:
            left_s = -1.0 if end_s is None else max(0.0, end_s - time.monotonic())
            found = self._ask_kernel(left_s, events_max)
            return found + self._list.take(events_max - len(found), call)
        finally:
            with self._list.lock:
                self._sleeper_count -= 1
                if self.closed and not self._sleeper_count:
                    self._release()
                self._sync_doorbell()

    def _attend(self) -> None:
        """Have all devices of the members progress by their own threads."""
        with self._list.lock:
            new = tuple(one for one in self._list.devices if one not in self._attended)
            self._attended.update(new)
        if new:
            self._attending.enter_context(attended(new))

    def _unattend(self) -> None:
        """Leave the devices to the threads that wait."""
        with self._list.lock:
            attending, self._attending = self._attending, ExitStack()
            self._attended.clear()
        attending.close()

    # -- inside

    def _demand_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on a closed Repoll")

    def _open_kernel(self) -> select.epoll:
        with self._list.lock:
            self._demand_open()
            if self._kernel is None:
                self._doorbell = Doorbell()
                self._kernel = select.epoll()
                self._kernel.register(self._doorbell.fileno(), select.EPOLLIN)
            return self._kernel

    def _sync_doorbell(self) -> None:
        """Ring or quiet. Lock held."""
        if self._doorbell is not None and not self.closed:
            if self._list and (self._is_shown or self._sleeper_count):
                self._doorbell.ring()
            else:
                self._doorbell.quiet()

    def _release(self) -> None:
        """Close our descriptors; no thread sleeps on them. Lock held."""
        kernel, doorbell, self._kernel, self._doorbell = self._kernel, self._doorbell, None, None
        if kernel is not None and doorbell is not None:
            kernel.close()
            doorbell.close()


# -- the calls over numbers

_instances: dict[int, Repoll] = {}  # by the number that `repoll_create` gave


def repoll_create(flags: int = 0) -> int:
    """Make an instance and return its number, readable while something is ready.

    `flags`: 0 or EPOLL_CLOEXEC, which is always on. Raises OSError: EINVAL, EMFILE.
    """
    if flags & ~select.EPOLL_CLOEXEC:
        raise OSError(errno.EINVAL, f"flags {flags:#x}, known is EPOLL_CLOEXEC")
    instance = Repoll()
    number = instance.show()
    _instances[number] = instance
    return number


def repoll_ctl(number: int, operation: int, file: File, event: int | Event = 0) -> None:
    """Add (EPOLL_CTL_ADD), change (EPOLL_CTL_MOD) or remove (EPOLL_CTL_DEL) a member.

    `event`: events, or the pair (data, events) of which `repoll_wait` returns the first.
    Raises OSError: EEXIST, ENOENT, EBADF, EPERM; EINVAL for the instance itself, or no operation.
    """
    instance = _instance(number)
    if isinstance(file, int) and file < 0:
        raise OSError(errno.EBADF, f"no descriptor: {file}")
    if file == number:
        raise OSError(errno.EINVAL, f"{number} cannot watch itself")
    data, events = (None, event) if isinstance(event, int) else event
    if operation == EPOLL_CTL_ADD:
        instance.register(file, events, data)
    elif operation == EPOLL_CTL_MOD:
        instance.modify(file, events, data)
    elif operation == EPOLL_CTL_DEL:
        instance.unregister(file)
    else:
        raise OSError(errno.EINVAL, f"operation {operation}, known are 1, 2 and 3")


def repoll_wait(number: int, maxevents: int, timeout_ms: float = -1) -> list[Event]:
    """Wait for events and return at most `maxevents` pairs (data or number, events).

    `timeout_ms` 0 does not wait, a negative one waits for ever. Raises OSError: EBADF, also when
    it is closed meanwhile; EINVAL for a `maxevents` below 1.
    """
    instance = _instance(number)
    if maxevents < 1:
        raise OSError(errno.EINVAL, f"maxevents {maxevents}, at least 1")
    timeout_s = polling_time(timeout_ms, "timeout_ms", per_s=_MS)
    try:
        return instance.poll(timeout_s, maxevents)
    except ValueError as error:
        raise OSError(errno.EBADF, f"{number} was closed meanwhile") from error


def close_instance(number: int) -> bool:
    """Close what `repoll_create` made; false: this number is none. For `rclose`."""
    instance = _instances.pop(number, None)
    if instance is not None:
        instance.close()
    return instance is not None


def _instance(number: int) -> Repoll:
    instance = _instances.get(number)
    if instance is None:
        raise OSError(errno.EBADF, f"{number} is no Repoll")
    return instance
