"""The worker: the control plane, the plane, and the requests of clients. It may die at any time.

The main thread serves requests, and the control thread drives the plane; there is no other but for
lines of the log. It is forked from the fork server, which `main` runs, with node socket and channel
open. What must outlive it lies in the supervisor's descriptors: it hands them over before a client
learns of them.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from urds.common.errors import PlaneError, SettingError
from urds.common.event_log import EventLog, Level
from urds.common.records import replace
from urds.common.socket_class import KernelSocket
from urds.rds.node.channel import SHARED, Channel, Message, close_all
from urds.rds.node.connections import Connections
from urds.rds.node.events import NodeEvent, tell
from urds.rds.node.fork_server import ForkServer
from urds.rds.node.plan import EXIT_OK, EXIT_USAGE, Plan, raise_descriptor_limit
from urds.rds.node.service import Service
from urds.rds.node.settings import NodeSettings
from urds.rds.node.sockets import NodeSocket, shut

if TYPE_CHECKING:
    from urds.rds.node.plane_calls import PlaneCalls
    from urds.rds.runtime.peer_events import PeerEvent

_ALIVE_S: Final = 1.0
_TEND_S: Final = 0.5
_CONNECTIONS_MAX: Final = 4096
_EVENTS_PER_PASS: Final = 256

MakeCalls = Callable[[], "PlaneCalls"]
# Load what these calls need, which is done once for all workers. Raises SettingError, PlaneError.
Prepare = Callable[[NodeSettings], MakeCalls]


class SupervisorChannel:
    """See `service.SupervisorCalls`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def keep(self, cookie: int, text: str, descriptors: Sequence[int]) -> None:
        """Keep the descriptors and the record of a new socket. Raises OSError."""
        self._channel.send("keep", descriptors, socket=cookie, record=text)

    def note(self, cookie: int, text: str) -> None:
        """Keep another record of a socket."""
        self._channel.send("note", socket=cookie, record=text)

    def forget(self, cookie: int) -> None:
        """Close the copies of a socket that is over."""
        self._channel.send("forget", socket=cookie)

    def ask(self, what: str) -> None:
        """Ask for an upgrade or for the end."""
        self._channel.send(what)


class Worker:
    """One run: what was kept, then requests, until the supervisor says so or is gone."""

    def __init__(
        self, plan: Plan, settings: NodeSettings, calls: PlaneCalls, log: EventLog
    ) -> None:
        self._plan, self._calls, self._log = plan, calls, log
        self._channel = Channel.of_descriptor(plan.channel)
        self._epoll = select.epoll()
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._left: deque[tuple[object, str]] = deque()  # with an error, or ""
        self._unbound: dict[int, NodeSocket] = {}  # by the descriptor of the node's end
        self._idle_since_s: float | None = None
        self._is_ending = self._is_last = self._has_told_idle = False
        self._alive_at_s = self._tend_at_s = 0.0
        descriptors_max = raise_descriptor_limit()
        self.service = Service(
            place=plan.place,
            settings=settings,
            calls=calls,
            supervisor=SupervisorChannel(self._channel),
            log=log,
            watch=self._watch,
            unwatch=self._unwatch,
            descriptors_max=descriptors_max,
        )
        calls.on_left = lambda attached: self._note(attached, "")
        calls.on_client_error = self._note
        self._settings = settings
        self._connections_max = min(_CONNECTIONS_MAX, descriptors_max // 4)
        self._connections: Connections | None = None

    def run(self) -> int:
        """Wait for `begin`, then serve; return the exit code."""
        self._channel.send("ready", formats=self._calls.formats())
        if not self._begin():
            return EXIT_OK
        listener = KernelSocket(fileno=self._plan.listener)
        self._connections = Connections(
            listener,
            self.service,
            self._settings,
            self._log,
            self._epoll,
            connections_max=self._connections_max,
        )
        self._epoll.register(self._channel.fileno(), select.EPOLLIN)
        self._epoll.register(self._doorbell, select.EPOLLIN)
        self._channel.send("serving", sockets=len(self.service.sockets))
        try:
            while not self._is_ending:
                self._pass()
        finally:
            self._connections.close()
            self._calls.break_off(is_last=self._is_last)
        return EXIT_OK

    def _begin(self) -> bool:
        """Take what the supervisor kept; false if it ends instead."""
        has_begun = False
        while True:
            try:
                found = self._channel.receive(wait_s=_ALIVE_S)
            except EOFError:
                return False
            if found is None:
                continue
            message, descriptors = found
            if message["what"] in ("kept", "begin") and not has_begun:
                has_begun = True
                if self._begin_plane(message, descriptors):
                    continue
            if message["what"] == "begin":
                self._calls.finish_restore()
                self.service.facts = message["facts"]
                return True
            if message["what"] == "end":
                return False
            self._restore(message, descriptors)

    def _begin_plane(self, message: Message, descriptors: list[int]) -> bool:
        """Begin with what all sockets share; tell whether the message was that."""
        if message["what"] == "kept" and message["socket"] == SHARED:
            self._calls.begin(descriptors)
            return True
        shared = self._calls.begin(())
        self._channel.send("keep", shared, socket=SHARED, record="{}")
        return False

    def _restore(self, message: Message, descriptors: list[int]) -> None:
        try:
            self.service.restore(message["socket"], message["record"], descriptors)
        except (OSError, ValueError, LookupError, TypeError) as failure:
            # Its program sees the end of its control socket, and every other one goes on.
            reason = f"{failure!r}"
            tell(self._log, NodeEvent.SOCKET_LOST, f"{message['socket']:x}", reason)
            shut(descriptors[0])
            close_all(descriptors)
            self._channel.send("forget", socket=message["socket"])

    # -- the loop

    def _pass(self) -> None:
        assert self._connections is not None, "it serves"
        now_s = time.monotonic()
        deadlines = [self._alive_at_s, self._tend_at_s]
        if (due_s := self._connections.handle_timeout(now_s)) is not None:
            deadlines.append(due_s)
        wait_s = max(0.0, min(deadlines) - now_s)
        found = self._epoll.poll(wait_s, _EVENTS_PER_PASS)
        # What a request ends meanwhile gives its number to a socket that the next one opens.
        concerned = {descriptor: self._unbound.get(descriptor) for descriptor, _ in found}
        for descriptor, events in found:
            if descriptor == self._channel.fileno():
                self._hear()
            elif descriptor == self._doorbell:
                self._answer_doorbell()
            elif descriptor in self._connections:
                self._connections.handle_ready(descriptor)
            elif events & (select.EPOLLHUP | select.EPOLLRDHUP):
                sock = self._unbound.get(descriptor)
                if sock is not None and sock is concerned[descriptor]:
                    self.service.leave(sock)
        now_s = time.monotonic()
        if now_s >= self._tend_at_s:
            self._tend_at_s = now_s + _TEND_S
            self.service.tend()
            self._check_idle(now_s)
        if now_s >= self._alive_at_s:
            self._alive_at_s = now_s + _ALIVE_S
            self._channel.send("alive")

    def _hear(self) -> None:
        try:
            found = self._channel.receive()
        except EOFError:  # the supervisor is gone, and with it what holds the sockets
            self._is_ending = True
            return
        if found is None:
            return
        message, _ = found
        if message["what"] == "end":
            self._is_ending, self._is_last = True, message["is_last"]
        elif message["what"] == "facts":
            self.service.facts = message["facts"]

    def _note(self, attached: object, what: str) -> None:
        """Have the main thread end a socket; the control thread calls."""
        self._left.append((attached, what))
        os.eventfd_write(self._doorbell, 1)

    def _answer_doorbell(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._doorbell)
        while self._left:
            attached, what = self._left.popleft()
            sock = self.service.of_attached(attached)
            if sock is None:
                continue
            if what:
                self.service.end_broken(sock, what)
            else:
                self.service.leave(sock)

    def _watch(self, sock: NodeSocket) -> None:
        """See when an unbound socket is left; the plane sees it of a bound one."""
        descriptor = sock.opened.node_end
        self._unbound[descriptor] = sock
        self._epoll.register(descriptor, select.EPOLLRDHUP)

    def _unwatch(self, sock: NodeSocket) -> None:
        descriptor = sock.opened.node_end
        if self._unbound.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def _check_idle(self, now_s: float) -> None:
        """Tell the supervisor when there was nothing to do for `idle_exit_s`."""
        if not self._plan.idle_exit_s or self._has_told_idle:
            return
        if not self.service.is_idle or self._calls.drain(0):
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= self._plan.idle_exit_s:
            self._has_told_idle = True
            self._channel.send("idle")


def main(arguments: Sequence[str], prepare: Prepare | None = None) -> int:
    """Run the fork server of a supervisor, or a worker that it forked; return the exit code."""
    for one in (signal.SIGINT, signal.SIGHUP):  # of a terminal: the supervisor decides
        signal.signal(one, signal.SIG_IGN)
    plan = Plan.of(arguments[0])
    log = EventLog(plan.log, level=Level[plan.log_level], journal=plan.journal)
    sys.orig_argv[:] = ["urds", "node", "--socket", plan.place]  # what `urds info` shows
    log.take_logging(quiet="urds.control")  # whose lines come as events
    try:
        settings = NodeSettings.load(plan.config)
        make_calls = (prepare or _prepare)(settings)
    except (SettingError, PlaneError) as wrong:
        sys.stderr.write(f"urds node: {wrong}\n")
        with suppress(OSError):
            Channel.of_descriptor(plan.channel).send("failed", reason=str(wrong))
        return EXIT_USAGE
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the supervisor has it too, and says `end`

    def serve(channel: int) -> int:
        _tell_peers(log)
        try:
            return Worker(replace(plan, channel=channel), settings, make_calls(), log).run()
        finally:
            log.flush()

    return ForkServer(Channel.of_descriptor(plan.channel), serve).run()


def _prepare(settings: NodeSettings) -> MakeCalls:
    from urds.rds.node import native_calls

    tunables = settings.settings()
    native_calls.load()
    return lambda: native_calls.NativeCalls(tunables)


def _tell_peers(log: EventLog) -> None:
    """Tell what happens to connections as events, and not as lines of a logger as well."""
    from urds.rds.runtime.peer_events import events

    def told(event: PeerEvent) -> None:
        values: tuple[Any, ...] = (
            *(str(event.kind), event.local, event.peer, str(event.transport), event.reason),
        )
        tell(log, NodeEvent.PEER, *values, about=(event.kind, event.peer))

    events.add(told)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
