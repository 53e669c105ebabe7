"""Local addresses of a node: the sockets of this process belong to another one.

There is no thread, no clock and no connection here. What a socket waits for is told by its
descriptor; an event loop watches those of all sockets in one epoll set.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Final, NoReturn, cast

from urds.common.errors import ErrorReason, os_error
from urds.common.logs import LogQueue
from urds.common.types import IPAddress
from urds.rds.constants import Transport
from urds.rds.plane.choose import choose
from urds.rds.plane.contract import Mailbox, MailboxSettings, Plane, Snapshot
from urds.rds.runtime import processes
from urds.rds.runtime.places import is_served
from urds.rds.settings import Settings

if TYPE_CHECKING:
    from urds.rds.plane.attached import AttachedMailbox
    from urds.rds.runtime.processes import Endpoint, Report
    from urds.rds.transports.rdma.regions import RegionTable

_NAP_FIRST_S: Final = 0.0002
_NAP_MAX_S: Final = 0.01
_S: Final = 1_000_000_000
_ITIMERSPEC: Final = Struct("qqqq")
_LOOK_S: Final = 0.005  # at a peer that is full, while there is room here
_EVENTS_MAX: Final = 256
_REASONS: Final = {  # of bind
    errno.EADDRINUSE: ErrorReason.ADDRESS_IN_USE,
    errno.EADDRNOTAVAIL: ErrorReason.NOT_LOCAL,
    errno.ENOPROTOOPT: ErrorReason.TRANSPORT_MISSING,
    errno.EINVAL: ErrorReason.RESERVED_PORT,
}


class Attached:
    """See `backend.Backend`; the node is at `place`."""

    def __init__(self, settings: Settings, place: str) -> None:
        self.settings = settings
        self.place = place
        self.choice = choose()
        self._watched = Watched(self)
        self.plane = cast("Plane", self._watched)  # what event loops use of one
        self._mailboxes: weakref.WeakSet[AttachedMailbox] = weakref.WeakSet()
        self._lingering: set[Endpoint] = set()  # closed, with messages on their way
        self._log = LogQueue().part("control")

    def bind(
        self,
        *,
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None,
    ) -> Mailbox:
        """Make a socket at the node and bind it; see `Backend.bind`.

        Raises OSError besides: EMFILE, ENOBUFS, EACCES by the node's quotas and users; ENOENT and
        ECONNREFUSED if the node has ended.
        """
        from urds.rds.plane.attached import AttachedMailbox

        try:
            mailbox = AttachedMailbox.make(
                self.place,
                settings,
                self._watched,
                address=address,
                port=port,
                transport=transport,
            )
        except OSError as refused:
            reason = _REASONS.get(refused.errno or 0)
            if reason is None:
                raise
            detail = f"{address} port {port}, by the node at {self.place}"
            if reason is ErrorReason.ADDRESS_IN_USE:  # the node does not tell which
                detail += "; a socket of it has the port, or a process without it the address"
            raise os_error(reason, detail) from refused
        self._mailboxes.add(mailbox)
        return mailbox

    def transport_of(self, mailbox: Mailbox) -> Transport:
        """Return TCP."""
        return Transport.TCP

    def regions(self) -> RegionTable:
        """Refuse: memory for RDMA is in another process."""
        self._refuse()

    def connected(self, mailbox: Mailbox, peer: IPAddress) -> bool:
        """Refuse: as `regions`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise os_error(ErrorReason.NOT_SUPPORTED, "sockets of a node are over TCP")

    def note(self, mailbox: Mailbox, peer: Endpoint | None, linger_s: int | None) -> None:
        """Write them into the memory of the socket: the node lists the one and obeys the other."""
        cast("AttachedMailbox", mailbox).note(peer, linger_s)

    def connected_peers(self) -> Mapping[Endpoint, Endpoint]:
        """Return where the sockets of the node are connected to. Raises OSError."""
        return self._report().connected

    def closed(self, mailbox: Mailbox) -> None:
        """Keep it for `drain` while its messages are on their way; the node sees its end."""
        if cast("AttachedMailbox", mailbox).unacknowledged():
            self._lingering.add((mailbox.local, mailbox.port))

    def is_inside(self) -> bool:
        """Return False: no lock is held while Python runs."""
        return False

    def abandoned(self, mailbox: Mailbox, linger_ns: int | None = None) -> None:
        """Close; the node goes on with what is queued."""
        mailbox.close(0 if linger_ns == 0 else None)

    def close(self, *, at_exit: bool = False) -> int:
        """Close all sockets; at the end of the process the kernel does. No message is left here."""
        if not at_exit:
            for mailbox in list(self._mailboxes):
                mailbox.close()
            self._watched.close()
        return 0

    def end_if_unused(self) -> bool:
        """Return False: without a thread nothing has to end."""
        return False

    def abandon_in_child(self) -> None:
        """Go on: both processes have the sockets. The epoll set is the parent's."""
        self._watched.renew()

    def drain(self, timeout_s: float) -> int:
        """Wait until everything is acknowledged; return the messages left. See `urds.drain`."""
        until_s, nap_s = time.monotonic() + timeout_s, _NAP_FIRST_S
        while True:
            left = sum(one.unacknowledged() for one in list(self._mailboxes) if one.fileno() >= 0)
            left += self._count_lingering()
            left_s = until_s - time.monotonic()
            if not left or left_s <= 0:
                return left
            time.sleep(min(nap_s, left_s))
            nap_s = min(2 * nap_s, _NAP_MAX_S)

    def _count_lingering(self) -> int:
        """Return how many messages of closed sockets the node still has to bring to their peers."""
        if not self._lingering:
            return 0
        opened = {(one.local, one.port) for one in self._mailboxes if one.fileno() >= 0}
        try:
            tables = self.snapshot()
        except OSError:
            if is_served(self.place):  # its worker is about to be replaced
                return len(self._lingering)
            self._lingering.clear()
            return 0
        rows = (*tables.send_queue, *tables.retransmit_queue)
        found = Counter((row.local, row.local_port) for row in rows)
        self._lingering = {one for one in self._lingering if found[one] and one not in opened}
        return sum(found[one] for one in self._lingering)

    def snapshot(self) -> Snapshot:
        """Return the tables of the whole node. Raises OSError."""
        return self._report().snapshot

    def counters(self) -> Mapping[str, int]:
        """Return the counters of the whole node. Raises OSError."""
        return self._report().counters

    def _report(self) -> Report:
        return processes.report_of_node(self.place)

    def warn_of(self, variables: Iterable[str]) -> None:
        """Log the names of environment variables that nothing reads."""
        for variable in variables:
            self._log.warning("variable %s: no such setting, ignored", variable)


class _Waiters:
    """Those that wait for one socket: for a message, and for room."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.of_messages: deque[Callable[[], None]] = deque()
        self.of_room: deque[Callable[[], None]] = deque()
        self.looks_at_s: float | None = None  # for room at a peer, which no descriptor shows

    @property
    def interest(self) -> int:
        """What epoll has to tell."""
        mask = select.EPOLLIN if self.of_messages or self.of_room else 0
        wants_room = self.of_room and self.looks_at_s is None
        return mask | select.EPOLLOUT if wants_room else mask


class Watched:
    """What an event loop uses of a plane: a descriptor, and `progress` when it is readable."""

    batches = False

    def __init__(self, backend: Attached) -> None:
        self._backend = weakref.proxy(backend)
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._timer: Timer | None = None  # made when it is needed
        self._waiters: dict[int, _Waiters] = {}

    def fileno(self) -> int:
        """Return the epoll set."""
        return self._epoll.fileno()

    def adopt(self) -> None:
        """Do nothing: without a loop no task waits."""

    def abandon(self) -> None:
        """Do nothing."""

    def snapshot(self) -> Snapshot:
        """Return the tables of the node."""
        found: Snapshot = self._backend.snapshot()
        return found

    def subscribe(
        self, mailbox: AttachedMailbox, callback: Callable[[], None], *, room: bool
    ) -> Callable[[], None]:
        """See `Mailbox.subscribe`."""
        descriptor = mailbox.fileno()
        if descriptor < 0:
            raise os_error(ErrorReason.CLOSED)
        if not room and mailbox.has_something:
            callback()
            return lambda: None
        with self._lock:
            one = self._waiters.setdefault(descriptor, _Waiters(descriptor))
            queue = one.of_room if room else one.of_messages
            queue.append(callback)
            if room and _has_room(descriptor):
                # It is the peer that has none, or the share of it; no descriptor tells its end.
                one.looks_at_s = time.monotonic() + _LOOK_S
                self._arm()
            self._watch(one)

        def cancel() -> None:
            with self._lock:
                with suppress(ValueError):
                    queue.remove(callback)
                if self._waiters.get(descriptor) is one:
                    self._watch(one)

        return cancel

    def forget(self, descriptor: int) -> None:
        """Tell all that wait for a descriptor: it is about to be closed."""
        with self._lock:
            one = self._waiters.pop(descriptor, None)
            if one is None:
                return
            calls = [*one.of_messages, *one.of_room]
            one.of_messages.clear()
            one.of_room.clear()
            with suppress(OSError):
                self._epoll.unregister(descriptor)
        for call in calls:
            call()

    def progress(self) -> int:
        """Tell those that wait for what is there; return how many were told."""
        calls: list[Callable[[], None]] = []
        with self._lock:
            for descriptor, events in self._epoll.poll(0, _EVENTS_MAX):
                if self._timer is not None and descriptor == self._timer.descriptor:
                    self._timer.clear()
                    calls += self._looked()
                elif (one := self._waiters.get(descriptor)) is not None:
                    calls += self._told(one, events)
        for call in calls:
            call()
        return len(calls)

    def _told(self, one: _Waiters, events: int) -> list[Callable[[], None]]:
        """Take off the waiters that are told. Lock held."""
        is_over = events & (select.EPOLLHUP | select.EPOLLERR)
        calls = []
        if one.of_messages and (events & select.EPOLLIN or is_over):
            calls.append(one.of_messages.popleft())
        if one.of_room and (events & (select.EPOLLIN | select.EPOLLOUT) or is_over):
            calls.append(one.of_room.popleft())
        self._watch(one)
        return calls

    def _looked(self) -> list[Callable[[], None]]:
        """Take off the waiters for room at a peer whose time to look has come. Lock held."""
        now_s = time.monotonic()
        calls: list[Callable[[], None]] = []
        for one in list(self._waiters.values()):
            if one.looks_at_s is not None and one.looks_at_s <= now_s:
                one.looks_at_s = None
                calls += one.of_room
                one.of_room.clear()
                self._watch(one)
        self._arm()
        return calls

    def _arm(self) -> None:
        due = [one.looks_at_s for one in self._waiters.values() if one.looks_at_s is not None]
        if not due:
            return
        if self._timer is None:
            self._timer = Timer()
            self._epoll.register(self._timer.descriptor, select.EPOLLIN)
        self._timer.set(max(1e-4, min(due) - time.monotonic()))

    def _watch(self, one: _Waiters) -> None:
        """Have epoll tell what is waited for. Lock held."""
        is_known = one.descriptor in self._waiters and self._waiters[one.descriptor] is one
        if not one.interest:
            self._waiters.pop(one.descriptor, None)
            with suppress(OSError):  # never registered, or closed meanwhile
                self._epoll.unregister(one.descriptor)
            return
        if not is_known:
            self._waiters[one.descriptor] = one
        try:
            self._epoll.modify(one.descriptor, one.interest)
        except FileNotFoundError:
            self._epoll.register(one.descriptor, one.interest)

    def renew(self) -> None:
        """Leave the epoll set to the parent of a fork."""
        self.close()
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._timer = None
        self._waiters.clear()

    def close(self) -> None:
        """Close the set."""
        self._epoll.close()
        if self._timer is not None:
            os.close(self._timer.descriptor)


class Timer:
    """A descriptor that is readable when a time has passed; Python has one from 3.13 on."""

    def __init__(self) -> None:
        import ctypes

        self._library = ctypes.CDLL(None, use_errno=True)
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # which are TFD_NONBLOCK and TFD_CLOEXEC
        self.descriptor: int = self._library.timerfd_create(time.CLOCK_MONOTONIC, flags)
        if self.descriptor < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def set(self, wait_s: float) -> None:
        """Be readable after a time."""
        wait_ns = round(wait_s * _S)
        self._library.timerfd_settime(
            self.descriptor, 0, _ITIMERSPEC.pack(0, 0, wait_ns // _S, wait_ns % _S), None
        )

    def clear(self) -> None:
        """Be readable no more."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 8)


def _has_room(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & select.POLLOUT for _, events in poll.poll(0))
