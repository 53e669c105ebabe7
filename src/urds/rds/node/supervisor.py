"""The supervisor: holds node socket and descriptors of sockets, and keeps a worker running.

It has no thread and no protocol, and parses nothing of a client, so it has no reason to end. A
worker that dies is replaced at once: programs have their control sockets still, since copies of the
node's ends are here, and go on. After the third death in ten seconds there is a pause, which grows.
Workers are forked from a process that has loaded the code, the `fork_server`. An upgrade starts
another one of these, whose first worker waits for the end of the old one.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import stat
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from urds.common.event_log import EventLog
from urds.common.socket_class import KernelSocket
from urds.common.version import VERSION
from urds.rds.node.channel import Message, close_all
from urds.rds.node.children import ForkServerProcess, Worker
from urds.rds.node.events import NodeEvent, tell
from urds.rds.node.kept import KeptSockets
from urds.rds.node.notify import Notifier
from urds.rds.node.plan import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    Plan,
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
_SERVER_PAUSE_MAX_S: Final = 60.0


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
        self._arguments = worker
        self._kept = KeptSockets(notifier, log)
        self._server: ForkServerProcess | None = None
        self._child: Worker | None = None
        self._next_server: ForkServerProcess | None = None  # of an upgrade
        self._next: Worker | None = None  # forked there
        self._started_s, self._began_s = time.time(), time.monotonic()
        self._starts = self._deaths_total = 0
        self._deaths: deque[float] = deque()
        self._pause_s = 0.0
        self._start_at_s = 0.0  # when there may be a worker
        self._server_pause_s = self._server_at_s = 0.0
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
        self._kept.take_stored(found)

    def run(self) -> int:
        """Keep a worker until a signal, a request or having nothing to do ends the node."""
        raise_descriptor_limit()
        self._take_signals()
        values = self._plan.place, os.getpid(), VERSION
        tell(self._log, NodeEvent.NODE_STARTED, *values)
        try:
            while not self._is_over():
                self._pass()
        finally:
            self._end_all()
        tell(self._log, NodeEvent.NODE_STOPPED, self._stop_reason)
        return self._code

    # -- fork servers and workers

    def _advance(self, now_s: float) -> None:
        """Have what is missing and may be: a fork server, and a worker once that is ready."""
        if self._stop_reason:
            return
        if self._server is None and self._server_at_s <= now_s:
            try:
                self._server = self._start_server()
            except OSError as failure:  # no descriptor, process or memory for it now
                if not self._has_served:
                    self._stop(_unstarted(failure), EXIT_FAILED)
                    return
                self._pause_server(0, _unstarted(failure), now_s)
        if self._child is None and self._start_at_s <= now_s:
            self._child = self._fork(self._server)
        if self._next is None:
            self._next = self._fork(self._next_server)

    def _start_server(self) -> ForkServerProcess:
        """Start a fork server. Raises OSError, which must not end a node that serves."""
        server = ForkServerProcess(self._arguments, self._plan, self._listener)
        tell(self._log, NodeEvent.FORK_SERVER_STARTED, server.pid)
        return server

    def _fork(self, server: ForkServerProcess | None) -> Worker | None:
        """Have a server that is ready fork a worker; a server that cannot is replaced."""
        if server is None or not server.is_ready:
            return None
        try:
            child = server.fork()
        except OSError as failure:
            server.failure = str(failure)
            self._note_server_end(server)
            return None
        tell(self._log, NodeEvent.WORKER_STARTED, child.pid)
        return child

    def _begin(self, child: Worker) -> None:
        """Have a worker that is ready serve: it gets all sockets, then starts."""
        child.has_begun = True
        self._starts += 1
        self._kept.begin_worker(child.formats)
        for cookie, kept in self._kept:
            child.channel.send_soon("kept", kept.descriptors, socket=cookie, record=kept.record)
        child.channel.send_soon("begin", facts=self._facts())

    def _facts(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "fork_server": 0 if self._server is None else self._server.pid,
            "started_s": self._started_s,  # Unix time
            "starts": self._starts,
            "deaths": self._deaths_total,
            "upgrade_error": self._upgrade_error,
            "upgrades_failed": self._upgrades_failed,
        }

    def _tell_facts(self) -> None:
        if self._child is not None and self._child.has_begun:
            self._child.channel.send_soon("facts", facts=self._facts())

    def _upgrade(self) -> None:
        if self._next_server is None and not self._stop_reason:
            self._upgrade_error = ""
            try:
                self._next_server = self._start_server()
            except OSError as failure:
                self._fail_upgrade(_unstarted(failure))

    def _fail_upgrade(self, reason: str) -> None:
        self._upgrade_error = reason
        self._upgrades_failed += 1
        tell(self._log, NodeEvent.UPGRADE_FAILED, reason)
        self._discard_next()
        self._tell_facts()

    def _discard_next(self) -> None:
        if self._next is not None:
            self._next.discard()
        if self._next_server is not None:
            self._next_server.discard()
        self._next = self._next_server = None

    def _end_child(self) -> None:
        if self._child is not None and not self._child.is_ending:
            self._child.is_ending = True
            is_last = bool(self._stop_reason) and not self._notifier.is_there
            self._child.channel.send_soon("end", is_last=is_last)
            self._kill_at_s = time.monotonic() + _END_WAIT_S

    def _note_ready(self, child: Worker) -> None:
        child.is_ready = True
        if child is self._child:
            self._begin(child)
        elif obstacle := self._kept.obstacle(child.formats):
            self._fail_upgrade(f"{obstacle}: upgrade once they are closed")
        elif self._child is None:  # during the pause after deaths
            self._take_next(child)
        else:
            self._end_child()

    def _take_next(self, child: Worker) -> None:
        """Have the worker of an upgrade serve; later ones come from its fork server as well."""
        before = self._server
        self._child, self._server = child, self._next_server
        self._next = self._next_server = None
        self._server_pause_s = 0.0
        self._begin(child)
        if before is not None:
            before.discard()

    def _note_end(self, child: Worker) -> None:
        """Take the end of a worker: it is replaced, unless the node ends."""
        self._hear(child)  # what it said last counts
        status = child.end()
        if child is self._next:
            self._next = None
            self._fail_upgrade(f"the new worker ended with {_shown(status)}")
            return
        now_s = self._stopped_s = time.monotonic()
        self._child, self._kill_at_s = None, None
        if self._stop_reason:
            return
        ready = self._next if self._next is not None and self._next.is_ready else None
        if child.is_ending and ready is not None:
            tell(self._log, NodeEvent.WORKER_UPGRADED, child.pid, ready.pid)
        else:
            self._count_death(child.pid, status, now_s)
        if ready is not None and not self._stop_reason:
            self._take_next(ready)

    def _note_server_end(self, server: ForkServerProcess) -> None:
        """Take the end of a fork server, which its workers survive: another one is started."""
        status = server.discard()
        now_s = time.monotonic()
        if server is self._next_server:
            reason = f"the new fork server ended with {_shown(status)}"
            self._fail_upgrade(server.failure or reason)
            return
        self._server = None
        if self._child is not None:
            if now_s - server.started_s > _SERVER_PAUSE_MAX_S:
                self._server_pause_s = 0.0
            self._pause_server(server.pid, server.failure or _shown(status), now_s)
        elif status == EXIT_USAGE and not self._has_served:
            self._stop("the worker cannot start", EXIT_USAGE)
        else:
            self._count_death(server.pid, status, now_s)

    def _pause_server(self, pid: int, reason: str, now_s: float) -> None:
        """Start the next fork server after a pause, each twice as long as the one before."""
        longest_s = _PAUSE_MAX_S if self._child is None else _SERVER_PAUSE_MAX_S
        self._server_pause_s = min(max(_PAUSE_FIRST_S, 2 * self._server_pause_s), longest_s)
        self._server_at_s = now_s + self._server_pause_s
        tell(self._log, NodeEvent.FORK_SERVER_ENDED, pid, reason, self._server_pause_s)
        self._tell_facts()

    def _count_death(self, pid: int, status: int | None, now_s: float) -> None:
        """Note that there is no worker; from the third time in ten seconds on there is a pause."""
        self._deaths_total += 1
        self._deaths.append(now_s)
        while self._deaths and self._deaths[0] < now_s - _DEATHS_S:
            self._deaths.popleft()
        many = len(self._deaths) >= self._deaths_max
        if many and not self._has_served:
            self._stop("no worker could start", EXIT_FAILED)
            return
        self._pause_s = min(max(_PAUSE_FIRST_S, 2 * self._pause_s), _PAUSE_MAX_S) if many else 0.0
        tell(self._log, NodeEvent.WORKER_DIED, pid, _shown(status), self._pause_s)
        self._start_at_s = self._server_at_s = now_s + self._pause_s

    # -- the loop

    def _is_over(self) -> bool:
        return bool(self._stop_reason) and self._child is None

    def _pass(self) -> None:
        now_s = time.monotonic()
        self._handle_timeout(now_s)
        self._advance(now_s)
        if self._is_over():  # it could not even begin
            return
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        children, servers = self._children(), self._servers()
        watched: list[Worker | ForkServerProcess] = [*children, *servers]
        for one in watched:
            poll.register(one.watch, select.POLLIN)
            writes = select.POLLOUT if one.channel.has_waiting else 0
            poll.register(one.channel.fileno(), select.POLLIN | writes)
        ready = {descriptor for descriptor, _ in poll.poll(self._wait_ms(now_s))}
        if self._signals in ready:
            self._handle_signals()
        for child in children:
            if child not in self._children():
                continue  # discarded a moment ago
            if child.watch in ready:
                self._note_end(child)
            elif child.channel.fileno() in ready:
                child.channel.flush()
                self._hear(child)
        for server in servers:
            if server not in self._servers():
                continue
            if ready & {server.watch, server.channel.fileno()}:
                server.hear()
            if server.watch in ready:
                self._note_server_end(server)

    def _children(self) -> list[Worker]:
        return [one for one in (self._child, self._next) if one is not None]

    def _servers(self) -> list[ForkServerProcess]:
        return [one for one in (self._server, self._next_server) if one is not None]

    @property
    def _server_is_ready(self) -> bool:
        return self._server is not None and self._server.is_ready

    def _wait_ms(self, now_s: float) -> float:
        """Return until when nothing is due; what is ready to be forked has been by now."""
        deadlines = [self._kill_at_s]
        if not self._stop_reason and self._server is None:
            deadlines.append(self._server_at_s)
        elif not self._stop_reason and self._child is None and self._server_is_ready:
            deadlines.append(self._start_at_s)
        if self._notifier.watchdog_s is not None:
            deadlines.append(self._fed_s + self._notifier.watchdog_s / 3)
        if self._next_server is not None and not (self._next and self._next.is_ready):
            deadlines.append(self._next_server.started_s + _UPGRADE_WAIT_S)
        due_s = min((one for one in deadlines if one is not None), default=now_s + 60)
        return max(0.0, due_s - now_s) * 1000 + 1

    def _handle_timeout(self, now_s: float) -> None:
        if self._kill_at_s is not None and self._kill_at_s <= now_s and self._child is not None:
            self._kill_at_s = None
            self._child.kill()
        server, is_ready = self._next_server, self._next is not None and self._next.is_ready
        due_s = now_s - _UPGRADE_WAIT_S
        if server is not None and not is_ready and server.started_s <= due_s:
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

    def _hear(self, child: Worker) -> None:
        while True:
            try:
                found = child.channel.receive()
            except (EOFError, OSError):
                return  # its end is seen by its pidfd
            if found is None:
                return
            self._take(child, *found)

    def _take(self, child: Worker, message: Message, descriptors: list[int]) -> None:
        what, cookie = message["what"], message.get("socket", 0)
        if what == "keep":
            if message["is_cut"]:
                close_all(descriptors)
                reason = "the supervisor has no descriptor left: it will not outlive its worker"
                tell(self._log, NodeEvent.SOCKET_LOST, f"{cookie:x}", reason)
                return
            self._kept.keep(cookie, descriptors, message["record"])
        elif what == "note":
            self._kept.note(cookie, message["record"])
        elif what == "forget":
            self._kept.forget(cookie)
        elif what == "ready":
            child.formats = tuple(message.get("formats", ()))
            self._note_ready(child)
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

    def _note_serving(self, child: Worker, sockets: int) -> None:
        now_s = time.monotonic()
        child.alive_s = now_s
        since_s = self._began_s if self._stopped_s is None else self._stopped_s
        pause_ms = round((now_s - since_s) * 1000)
        tell(self._log, NodeEvent.WORKER_SERVING, child.pid, sockets, pause_ms)
        if not self._has_served:
            self._has_served = True
            self._notifier.tell("READY=1", f"MAINPID={os.getpid()}")
        self._notifier.tell(f"STATUS=worker {child.pid}, {sockets} sockets taken over")

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
        self._notifier.tell("STOPPING=1")
        if not self._notifier.is_there:  # a manager's restart goes on with the same socket
            with suppress(OSError):
                os.unlink(self._plan.place)  # noqa: PTH108 - a text
        self._discard_next()
        self._end_child()

    def _end_all(self) -> None:
        for child in self._children():
            child.discard()
        for server in self._servers():  # later: it knows how they ended
            server.discard()
        self._kept.close()
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


def _shown(status: int | None) -> str:
    if status is None:
        return "an unknown status"
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit code {status}"


def _unstarted(failure: OSError) -> str:
    return f"no fork server can start: {failure.strerror or failure}"
