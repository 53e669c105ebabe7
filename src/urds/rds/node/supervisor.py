"""The supervisor: holds node socket and descriptors of sockets, and keeps a worker running.

It has no thread and no protocol, and parses nothing of a client, so it has no reason to end. A
worker that dies is replaced at once: programs have their control sockets still, since copies of the
node's ends are here, and go on. After the third death in ten seconds there is a pause, which grows.
An upgrade starts the new worker first, which waits, its imports done, for the end of the old one.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from urds.common.event_log import EventLog
from urds.common.records import field, record, replace
from urds.common.socket_class import KernelSocket
from urds.common.version import VERSION
from urds.rds.node.channel import SHARED, Channel, Message, close_all
from urds.rds.node.events import NodeEvent, tell
from urds.rds.node.notify import Notifier
from urds.rds.node.plan import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    Plan,
    child_environment,
    raise_descriptor_limit,
)

TAKEN: Final = "already"  # the end of what a second start says
WORKER: Final = ("-m", "urds.rds.node.worker")
_BACKLOG: Final = 1024
DEATHS_MAX: Final = 3
_DEATHS_S: Final = 10.0
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 10.0
_END_WAIT_S: Final = 15.0  # longer than `drain_s`
_UPGRADE_WAIT_S: Final = 30.0
_STORE_PREFIX: Final = "urds-socket-"


@record(frozen=False, eq=False)
class Kept:
    """The descriptors of one socket, and its record, which is the worker's."""

    descriptors: list[int]
    record: str
    memory: int = -1  # of the record, in the manager's store


@record(frozen=False, eq=False)
class Child:
    """One worker."""

    process: subprocess.Popen[bytes]
    channel: Channel
    watch: int  # a pidfd
    started_s: float
    is_ready: bool = False  # waits for `begin`
    has_begun: bool = False
    is_serving: bool = False
    is_ending: bool = False
    alive_s: float = field(default=0.0)
    failure: str = ""  # why it cannot start, as it says
    formats: tuple[str, ...] = ()  # of memory that it can take over; none: it did not say

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid


class Supervisor:
    """One node; `run` returns its exit code."""

    def __init__(
        self,
        plan: Plan,
        listener: socket.socket,
        log: EventLog,
        notifier: Notifier,
        *,
        worker: Sequence[str] = WORKER,
        deaths_max: int = DEATHS_MAX,
    ) -> None:
        """Begin; `plan` has everything but the descriptors, `worker` is Python's arguments.

        From the death number `deaths_max` within ten seconds on there are pauses.
        """
        self._deaths_max = deaths_max
        self._plan, self._listener = plan, listener
        self._log, self._notifier = log, notifier
        self._command = (sys.executable, "-P", *worker)
        self._kept: dict[int, Kept] = {}
        self._formats: tuple[str, ...] = ()  # of the memory of what is kept
        self._child: Child | None = None
        self._next: Child | None = None  # of an upgrade
        self._started_s = time.time()
        self._starts = self._deaths_total = 0
        self._deaths: deque[float] = deque()
        self._pause_s = 0.0
        self._start_at_s: float | None = None
        self._stopped_s: float | None = None  # when the last worker ended
        self._stop_reason = ""
        self._code = EXIT_OK
        self._has_served = False
        self._upgrade_error, self._upgrades_failed = "", 0
        self._kill_at_s: float | None = None
        self._fed_s = 0.0
        self._signals, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def take_stored(self, found: Sequence[tuple[str, int]]) -> None:
        """Take back what the manager kept over a restart of the service."""
        parts: dict[str, dict[int, int]] = {}
        for name, descriptor in found:
            group, _, index = name.rpartition("-")
            parts.setdefault(group, {})[int(index)] = descriptor
        for group, numbered in parts.items():
            descriptors = [numbered[index] for index in sorted(numbered)]
            try:
                cookie = int(group.removeprefix(_STORE_PREFIX), 16)
                memory, *rest = descriptors
                text = os.pread(memory, os.fstat(memory).st_size, 0).decode()
                json.loads(text)
            except (ValueError, OSError):
                close_all(descriptors)
                continue
            self._kept[cookie] = Kept(rest, text, memory)

    def run(self) -> int:
        """Keep a worker until a signal, a request or having nothing to do ends the node."""
        raise_descriptor_limit()
        self._take_signals()
        values = self._plan.place, os.getpid(), VERSION
        tell(self._log, NodeEvent.NODE_STARTED, *values)
        self._child = self._start()
        try:
            while not self._is_over():
                self._pass()
        finally:
            self._end_all()
        tell(self._log, NodeEvent.NODE_STOPPED, self._stop_reason)
        return self._code

    # -- workers

    def _start(self) -> Child:
        channel, other = Channel.pair()
        with other:
            passed = self._listener.fileno(), other.fileno()
            plan = replace(self._plan, listener=passed[0], channel=passed[1])
            process = subprocess.Popen(
                [*self._command, plan.text()],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                env=child_environment(),
            )
        self._starts += 1
        tell(self._log, NodeEvent.WORKER_STARTED, process.pid)
        now_s = time.monotonic()
        return Child(process, channel, os.pidfd_open(process.pid), now_s, alive_s=now_s)

    def _begin(self, child: Child) -> None:
        """Have a worker that is ready serve: it gets all sockets, then starts."""
        child.has_begun = True
        if not _are_equal(self._formats, child.formats):
            self._let_go(child.formats)
        self._formats = child.formats
        for cookie, kept in sorted(self._kept.items(), key=lambda one: one[0]):  # SHARED first
            child.channel.send_soon("kept", kept.descriptors, socket=cookie, record=kept.record)
        child.channel.send_soon("begin", facts=self._facts())

    def _let_go(self, formats: Sequence[str]) -> None:
        """Close what is kept: the next worker is of another release, and cannot take it over."""
        reason = f"the next worker has {_listed(formats)}, it is {_listed(self._formats)}"
        for cookie in list(self._kept):
            if cookie != SHARED:
                tell(self._log, NodeEvent.SOCKET_LOST, f"{cookie:x}", reason)
            self._forget(cookie)

    def _is_in_the_way(self, child: Child) -> bool:
        """Tell whether sockets are kept that the worker of an upgrade could not take over."""
        return bool(self._kept.keys() - {SHARED}) and not _are_equal(self._formats, child.formats)

    def _facts(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "started": self._started_s,
            "starts": self._starts,
            "deaths": self._deaths_total,
            "upgrade_error": self._upgrade_error,
            "upgrades_failed": self._upgrades_failed,
        }

    def _upgrade(self) -> None:
        if self._next is None and not self._stop_reason:
            self._upgrade_error = ""
            self._next = self._start()

    def _fail_upgrade(self, reason: str) -> None:
        self._upgrade_error = reason
        self._upgrades_failed += 1
        tell(self._log, NodeEvent.UPGRADE_FAILED, reason)
        self._discard(self._next)
        self._next = None
        if self._child is not None and self._child.has_begun:
            self._child.channel.send_soon("facts", facts=self._facts())

    def _discard(self, child: Child | None) -> None:
        if child is None:
            return
        with suppress(ProcessLookupError):
            child.process.kill()
        child.process.wait()
        os.close(child.watch)
        child.channel.close()

    def _end_child(self) -> None:
        if self._child is not None and not self._child.is_ending:
            self._child.is_ending = True
            is_last = bool(self._stop_reason) and not self._notifier.is_there
            self._child.channel.send_soon("end", is_last=is_last)
            self._kill_at_s = time.monotonic() + _END_WAIT_S

    def _note_end(self, child: Child) -> None:
        """Take the end of a worker: it is replaced, unless the node ends."""
        self._hear(child)  # what it said last counts
        status = child.process.wait()
        os.close(child.watch)
        child.channel.close()
        now_s = time.monotonic()
        if child is self._next:
            self._next = None
            self._fail_upgrade(child.failure or f"the new worker ended with {_shown(status)}")
            return
        self._child, self._kill_at_s = None, None
        self._stopped_s = now_s
        if self._stop_reason:
            return
        if child.is_ending and self._next is not None:
            tell(self._log, NodeEvent.WORKER_UPGRADED, child.pid, self._next.pid)
            self._promote()
            return
        if status == EXIT_USAGE and not self._has_served:
            self._stop("the worker cannot start", EXIT_USAGE)
            return
        self._deaths_total += 1
        self._deaths.append(now_s)
        while self._deaths and self._deaths[0] < now_s - _DEATHS_S:
            self._deaths.popleft()
        many = len(self._deaths) >= self._deaths_max
        if many and not self._has_served:
            self._stop("no worker could start", EXIT_FAILED)
            return
        self._pause_s = min(max(_PAUSE_FIRST_S, 2 * self._pause_s), _PAUSE_MAX_S) if many else 0.0
        tell(self._log, NodeEvent.WORKER_DIED, child.pid, _shown(status), self._pause_s)
        if self._next is not None:
            self._promote()
        else:
            self._start_at_s = now_s + self._pause_s

    def _promote(self) -> None:
        """Have the worker of an upgrade serve, or as soon as it is ready."""
        self._child, self._next = self._next, None
        if self._child is not None and self._child.is_ready:
            self._begin(self._child)

    # -- the loop

    def _is_over(self) -> bool:
        return bool(self._stop_reason) and self._child is None

    def _pass(self) -> None:
        now_s = time.monotonic()
        self._handle_timeout(now_s)
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        children = [one for one in (self._child, self._next) if one is not None]
        for child in children:
            poll.register(child.watch, select.POLLIN)
            writes = select.POLLOUT if child.channel.has_waiting else 0
            poll.register(child.channel.fileno(), select.POLLIN | writes)
        ready = {descriptor for descriptor, _ in poll.poll(self._wait_ms(now_s))}
        if self._signals in ready:
            self._handle_signals()
        for child in children:
            if child.watch in ready:
                self._note_end(child)
            elif child.channel.fileno() in ready:
                child.channel.flush()
                self._hear(child)

    def _wait_ms(self, now_s: float) -> float:
        deadlines = [self._start_at_s, self._kill_at_s]
        if self._notifier.watchdog_s is not None:
            deadlines.append(self._fed_s + self._notifier.watchdog_s / 3)
        if self._next is not None and not self._next.is_ready:
            deadlines.append(self._next.started_s + _UPGRADE_WAIT_S)
        due_s = min((one for one in deadlines if one is not None), default=now_s + 60)
        return max(0.0, due_s - now_s) * 1000 + 1

    def _handle_timeout(self, now_s: float) -> None:
        if self._start_at_s is not None and self._start_at_s <= now_s:
            self._start_at_s = None
            self._child = self._start()
        if self._kill_at_s is not None and self._kill_at_s <= now_s and self._child is not None:
            self._kill_at_s = None
            self._child.process.kill()
        one = self._next
        due_s = now_s - _UPGRADE_WAIT_S
        if one is not None and not one.is_ready and one.started_s <= due_s:
            self._fail_upgrade(f"the new worker was not ready within {_UPGRADE_WAIT_S:g} s")
        self._feed_watchdog(now_s)

    def _feed_watchdog(self, now_s: float) -> None:
        """Tell the manager that all is well, while the worker says so."""
        every_s = self._notifier.watchdog_s
        if every_s is None or now_s < self._fed_s + every_s / 3:
            return
        self._fed_s = now_s
        if self._child is None or now_s - self._child.alive_s < every_s:
            self._notifier.tell("WATCHDOG=1")

    def _hear(self, child: Child) -> None:
        while True:
            try:
                found = child.channel.receive()
            except (EOFError, OSError):
                return  # its end is seen by its pidfd
            if found is None:
                return
            self._take(child, *found)

    def _take(self, child: Child, message: Message, descriptors: list[int]) -> None:
        what, cookie = message["what"], message.get("socket", 0)
        if what == "keep":
            if message["is_cut"]:
                close_all(descriptors)
                reason = "the supervisor has no descriptor left: it will not outlive its worker"
                tell(self._log, NodeEvent.SOCKET_LOST, f"{cookie:x}", reason)
                return
            self._keep(cookie, Kept(descriptors, message["record"]))
        elif what == "note" and cookie in self._kept:
            self._kept[cookie].record = message["record"]
            self._write_record(self._kept[cookie])
        elif what == "forget" and cookie in self._kept:
            self._forget(cookie)
        elif what == "ready":
            child.is_ready = True
            child.formats = tuple(message.get("formats", ()))
            if child is self._child:
                self._begin(child)
            elif self._is_in_the_way(child):
                self._fail_upgrade(
                    f"sockets have {_listed(self._formats)}, the new worker has "
                    f"{_listed(child.formats)}: upgrade once they are closed"
                )
            else:  # of an upgrade
                self._end_child()
        elif what == "failed":
            child.failure = message["reason"]
        elif what == "serving":
            self._note_serving(child, message["sockets"])
        elif what == "alive":
            child.alive_s = time.monotonic()
        elif what == "upgrade":
            self._upgrade()
        elif what == "stop":
            self._stop("a request", EXIT_OK)
        elif what == "idle":
            self._stop("nothing to do", EXIT_OK)

    def _note_serving(self, child: Child, sockets: int) -> None:
        now_s = time.monotonic()
        child.is_serving, child.alive_s = True, now_s
        since_s = child.started_s if self._stopped_s is None else self._stopped_s
        pause_ms = round((now_s - since_s) * 1000)
        tell(self._log, NodeEvent.WORKER_SERVING, child.pid, sockets, pause_ms)
        if not self._has_served:
            self._has_served = True
            self._notifier.tell("READY=1", f"MAINPID={os.getpid()}")
        self._notifier.tell(f"STATUS=worker {child.pid}, {sockets} sockets taken over")

    # -- what is kept

    def _keep(self, cookie: int, kept: Kept) -> None:
        self._kept[cookie] = kept
        if self._notifier.is_there:
            kept.memory = os.memfd_create("urds-record", os.MFD_CLOEXEC)
            self._write_record(kept)
            self._notifier.store(f"{_STORE_PREFIX}{cookie:x}", [kept.memory, *kept.descriptors])

    def _write_record(self, kept: Kept) -> None:
        if kept.memory >= 0:
            data = kept.record.encode()
            os.pwrite(kept.memory, data, 0)
            os.ftruncate(kept.memory, len(data))

    def _forget(self, cookie: int) -> None:
        kept = self._kept.pop(cookie)
        close_all(kept.descriptors)
        if kept.memory >= 0:
            os.close(kept.memory)
            self._notifier.remove(f"{_STORE_PREFIX}{cookie:x}", 1 + len(kept.descriptors))

    # -- signals and the end

    def _take_signals(self) -> None:
        """Have signals wake the loop; SIGHUP is an upgrade, which reads the configuration anew."""
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, lambda *_: None)

    def _handle_signals(self) -> None:
        with suppress(BlockingIOError):
            for number in os.read(self._signals, 64):
                if number == signal.SIGHUP:
                    self._upgrade()
                elif number == signal.SIGTERM:
                    self._stop("SIGTERM", EXIT_OK)
                elif number == signal.SIGINT:
                    self._stop("Ctrl-C", EXIT_INTERRUPTED)

    def _stop(self, reason: str, code: int) -> None:
        """End in order: no program finds the node any more, then the worker ends."""
        if self._stop_reason:
            return
        self._stop_reason, self._code = reason, code
        self._start_at_s = None
        self._notifier.tell("STOPPING=1")
        if not self._notifier.is_there:  # a manager's restart goes on with the same socket
            with suppress(OSError):
                os.unlink(self._plan.place)  # noqa: PTH108 - a text
        self._discard(self._next)
        self._next = None
        self._end_child()

    def _end_all(self) -> None:
        for child in (self._child, self._next):
            self._discard(child)
        for kept in self._kept.values():  # a manager has its own copies
            close_all(kept.descriptors)
        self._kept.clear()
        self._listener.close()
        self._notifier.tell("STATUS=stopped")


def lock(place: str) -> int:
    """Take the lock of a place, for as long as the descriptor is open. Raises OSError if taken."""
    descriptor = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(f"a node runs at {place} {TAKEN}") from None
    return descriptor


def listen(place: str, mode: int) -> socket.socket:
    """Listen at a place whose lock is held; what an ended node left there is removed.

    Raises OSError.
    """
    with ExitStack() as undo:
        listener = KernelSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(listener.close)
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(place).st_mode):
                raise FileExistsError(f"{place} is no socket")
            os.unlink(place)  # noqa: PTH108 - a text
        before = os.umask(0o777 & ~mode)
        try:
            listener.bind(place)
        finally:
            os.umask(before)
        os.chmod(place, mode)  # noqa: PTH101 - a text
        listener.listen(_BACKLOG)
        undo.pop_all()
        return listener


def inherited(descriptor: int) -> socket.socket:
    """Take the node socket that a manager passed. Raises OSError if it is none."""
    listener = KernelSocket(fileno=descriptor)
    is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if (listener.family, listener.type) != (
        socket.AF_UNIX,
        socket.SOCK_SEQPACKET,
    ) or not is_listening:
        raise OSError("the socket of the unit is not ListenSequentialPacket= of a path")
    return listener


def _are_equal(formats: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether formats of memory are the same, as far as both are told."""
    return not formats or not others or formats == others


def _listed(formats: Sequence[str]) -> str:
    return f"memory of format {', '.join(formats)}"


def _shown(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit code {status}"
