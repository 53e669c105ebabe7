"""Shutdown of mailboxes and planes: linger, drain, orderly ends of streams, last waiters.

Messages that a peer may not have are waited for, up to a limit; streams end with a FIN and are read
to the peer's FIN, so that no reset discards data that the peer was told is delivered.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from urds.common.errors import ErrorReason
from urds.common.reentry import new_lock

if TYPE_CHECKING:
    from urds.rds.plane.python.background import ProgressThread
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.progress import Progress
    from urds.rds.plane.python.state import State

_DRAIN_POLL_S = 0.01
_LEAVING_S = 0.2  # how long a close waits for threads to leave their calls
_LEAVING_POLL_S = 0.001
_END_OF_STREAM_S = 0.1  # how long an orderly close waits for the peer's end


class Shutdown:
    """The ends of a plane and of its mailboxes. No lock is held where its methods are called."""

    def __init__(self, state: State, progress: Progress, thread: ProgressThread) -> None:
        self._state = state
        self._progress = progress
        self._thread = thread

    # -- mailboxes

    def close_mailbox(self, mailbox: Mailbox, linger_ns: int | None) -> None:
        """Unbind; linger in the foreground if asked, else in the background."""
        state, sends = self._state, mailbox.sends
        if linger_ns and state.wait_queue.waits_here():
            linger_ns = None  # in a handler that interrupted a wait: in the background
        if linger_ns and not state.virtual:
            mailbox.request_acks()
            self._progress.wait(
                lambda: None if sends.holds_messages() and not mailbox.closed else True,
                sends.room_waiters,
                linger_ns,
                mailbox,
            )
        with state.lock:
            is_open = not mailbox.closed
            if is_open:
                self._unbind(mailbox, linger_ns)
            externals = sends.external_paths()
        if is_open and linger_ns is not None:
            for path in externals:
                path.transport.cancel(mailbox, None)
        self._progress.flush_batches()
        self._progress.finish_pass()
        if mailbox.descriptor is not None:
            mailbox.descriptor.close()

    def _unbind(self, mailbox: Mailbox, linger_ns: int | None) -> None:
        """Leave the port; keep queued messages for their linger time, or cancel them. Lock held."""
        state, sends = self._state, mailbox.sends
        state.hosts[mailbox.local].remove_mailbox(mailbox.port)
        mailbox.shut()
        if linger_ns is None and sends.holds_messages():
            state.lingering[mailbox] = state.clock_ns() + state.limits.linger_ns
            state.thread.want()
        else:
            for path in sends.paths():
                path.cancel(sends, None)

    def _paths(self) -> list[Any]:
        """Return the paths with streams."""
        with self._state.lock:
            return [path for host in self._state.hosts.values() for path in host.paths]

    def _externals(self) -> list[Any]:
        with self._state.lock:
            return [path for host in self._state.hosts.values() for path in host.externals]

    def _holds(self, path: Any) -> bool:
        with self._state.lock:
            held: bool = path.holds()
            return held

    # -- the plane

    def drain(self, drain_ns: int) -> int:
        """Send queued messages and wait for their acknowledgement; return the messages left."""
        state, progress = self._state, self._progress
        if state.closed:
            return 0
        deadline_ns = state.clock_ns() + drain_ns
        paths = self._paths()
        with state.lock:
            for path in paths:
                path.core.request_ack()
        every = [*paths, *self._externals()]
        while (
            any(self._holds(path) for path in every)
            and state.clock_ns() < deadline_ns
            and not state.virtual
        ):
            for path in paths:
                path.writer.flush()
            progress.serve_ready(_DRAIN_POLL_S)
            progress.serve_due()
        with state.lock:
            return sum(sum(path.counts()) for path in every)

    def close(self, drain_ns: int) -> int:
        """Drain, end the streams in order, wake all threads; return the messages left."""
        if self._state.closed:
            return 0
        left = self.drain(drain_ns)
        self.end_streams()
        self._shut_all()
        self._wait_until_empty()
        return left

    def fail(self) -> None:
        """Fail every call with EIO, wake all threads, end the streams: the control plane failed."""
        self._state.closed_reason = ErrorReason.NODE_FAILED
        self._shut_all()
        self.end_streams()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: fail every call, close copies, change nothing shared.

        It takes no lock, since the lock's holder is not in the child. It makes no `epoll_ctl` and
        no `shutdown`: the poll set and the connections are the parent's.
        """
        state = self._state
        state.closed = True
        state.closed_reason = ErrorReason.AFTER_FORK
        state.lock, state.holds_lock = new_lock()
        state.wait_queue.abandon_in_child(state.lock)
        self._thread.abandon_in_child()
        for host in state.hosts.values():
            for mailbox in host.mailboxes.values():
                mailbox.abandon_in_child()
            for path in host.paths:
                path.abandon_in_child()
        self._progress.abandon_in_child()

    def _shut_all(self) -> None:
        state = self._state
        with state.lock:
            state.closed = True
            for host in state.hosts.values():
                for mailbox in list(host.mailboxes.values()):
                    host.remove_mailbox(mailbox.port)
                    mailbox.shut()
            state.thread.want(now=True)
        self._progress.deliver()
        self._progress.finish_pass()

    def _wait_until_empty(self) -> None:
        """Wait, up to a limit, until every waiter has left: none may find descriptors closed."""
        deadline = time.monotonic() + _LEAVING_S
        while time.monotonic() < deadline:
            with self._state.lock:
                if self._state.wait_queue.is_empty():
                    return
            time.sleep(_LEAVING_POLL_S)

    def end_streams(self, flush_ns: int = 0) -> None:
        """End every stream in order; wake no thread.

        The local direction ends, the peer's is read to its end: acknowledged data is kept. Messages
        received so far are acknowledged first, or their senders would get them reported as given
        up; later ones are not, since no socket will take them. `flush_ns` has no effect: no node
        has this plane.
        """
        streams = []
        for path in self._paths():
            with self._state.lock:
                path.core.acknowledge()
            path.writer.flush()
            stream = path.detach()
            if stream is not None:
                with suppress(OSError):
                    stream.shutdown(socket.SHUT_WR)
                streams.append(stream)
        deadline = time.monotonic() + _END_OF_STREAM_S
        for stream in streams:
            poll = select.poll()
            poll.register(stream.fileno(), select.POLLIN)
            with suppress(OSError):
                while (left_s := deadline - time.monotonic()) > 0 and poll.poll(left_s * 1000):
                    if not stream.recv(65536):
                        break
            stream.close()
