"""The processes of a node as its supervisor sees them: fork servers, and workers forked there."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

from urds.common.records import field, record, replace
from urds.rds.node.channel import Channel, Message, close_all
from urds.rds.node.plan import Plan, child_environment

_FORK_WAIT_S: Final = 5.0
_STATUS_WAIT_S: Final = 1.0
_KILL_WAIT_MS: Final = 10_000


@record(frozen=False, eq=False)
class Worker:
    """One worker."""

    pid: int
    watch: int  # a pidfd
    channel: Channel
    server: ForkServerProcess
    is_ready: bool = False  # waits for `begin`
    formats: tuple[str, ...] = ()  # of memory that it can take over; none: it did not say
    has_begun: bool = False
    is_ending: bool = False
    alive_s: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.watch, signal.SIGKILL)

    def end(self) -> int | None:
        """Close what is open of one that has ended; return its status, None if it is not known."""
        status = self.server.status_of(self.pid)
        os.close(self.watch)
        self.channel.close()
        return status

    def discard(self) -> None:
        """Kill it, and wait until it has ended."""
        self.kill()
        poll = select.poll()
        poll.register(self.watch, select.POLLIN)
        poll.poll(_KILL_WAIT_MS)
        self.end()


class ForkServerProcess:
    """One fork server."""

    def __init__(self, arguments: Sequence[str], plan: Plan, listener: socket.socket) -> None:
        """Start it, as a new program with these arguments of Python. Raises OSError."""
        with ExitStack() as undo:
            self.channel, other = Channel.pair()
            undo.callback(self.channel.close)
            with other:
                passed = listener.fileno(), other.fileno()
                text = replace(plan, listener=passed[0], channel=passed[1]).text()
                self._process = subprocess.Popen(
                    [sys.executable, "-P", *arguments, text],
                    pass_fds=passed,
                    stdin=subprocess.DEVNULL,
                    env=child_environment(),
                )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self.watch = os.pidfd_open(self.pid)
            undo.pop_all()
        self.started_s = time.monotonic()
        self.is_ready = False
        self.failure = ""  # why it cannot start, as it says
        self._ended: dict[int, int] = {}  # statuses of its workers
        self._is_gone = False

    def fork(self) -> Worker:
        """Have it fork a worker. Raises OSError: it cannot, or does not answer."""
        channel, other = Channel.pair()
        try:
            with other:
                self.channel.send("fork", [other.fileno()])
            while True:
                message, descriptors = self._receive(_FORK_WAIT_S)
                if message["what"] == "forked":
                    return Worker(message["worker"], descriptors[0], channel, self)
                if message["what"] == "unforked":
                    raise OSError(None, message["reason"])
                self._take(message)
        except BaseException:
            channel.close()
            raise

    def hear(self) -> None:
        """Take what it said."""
        with suppress(OSError):
            while True:
                self._take_next(0)

    def status_of(self, worker: int) -> int | None:
        """Return how a worker ended that has ended: its exit code, or the negative signal."""
        with suppress(OSError):
            while worker not in self._ended:
                self._take_next(_STATUS_WAIT_S)
        if worker not in self._ended:
            with suppress(ChildProcessError):  # as the first process of a container one inherits it
                os.waitpid(worker, os.WNOHANG)
        return self._ended.pop(worker, None)

    def discard(self) -> int:
        """Kill it if it has not ended; return its exit code."""
        if not self._is_gone:
            self.hear()  # what it said counts; where it read not all, its end is an error first
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self.hear()
            self._is_gone = True
            os.close(self.watch)
            self.channel.close()
        return int(self._process.returncode)

    def _receive(self, wait_s: float) -> tuple[Message, list[int]]:
        """Return its next message. Raises TimeoutError, ConnectionError."""
        if self._is_gone:
            raise ConnectionResetError
        try:
            found = self.channel.receive(wait_s)
        except EOFError as gone:
            raise ConnectionResetError from gone
        if found is None:
            raise TimeoutError(None, "the fork server says nothing")
        return found

    def _take_next(self, wait_s: float) -> None:
        message, descriptors = self._receive(wait_s)
        close_all(descriptors)  # of a worker that was forked too late to be waited for
        self._take(message)

    def _take(self, message: Message) -> None:
        what = message["what"]
        if what == "ready":
            self.is_ready = True
        elif what == "failed":
            self.failure = message["reason"]
        elif what == "ended":
            self._ended[message["worker"]] = message["status"]
