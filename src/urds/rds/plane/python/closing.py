"""Shutdown of mailboxes and planes: linger, drain, orderly ends of streams, last waiters.

Messages that a peer may not have are waited for, up to a limit; streams end with a FIN and are read
to the peer's FIN, so that no reset discards data that the peer was told is delivered.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from urds.common.errors import ErrorReason
from urds.common.reentry import new_lock

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane
    from urds.rds.plane.python.stream_path import StreamPath

_DRAIN_POLL_S = 0.01
_LEAVING_S = 0.2  # how long a close waits for threads to leave their calls
_LEAVING_POLL_S = 0.001
_END_OF_STREAM_S = 0.1  # how long an orderly close waits for the peer's end
_END_OF_TRANSPORT_NS = 100_000_000  # how long it waits for posted work of message transports


def close_mailbox(plane: Plane, mailbox: Mailbox, linger_ns: int | None) -> None:
    """Unbind; linger in the foreground if asked, else in the background."""
    if linger_ns and plane.wait_queue.waits_here():
        linger_ns = None  # in a handler that interrupted a wait: in the background
    if linger_ns and not plane.virtual:
        _ask_for(plane, mailbox)
        plane.wait(
            lambda: None if _has_queued(mailbox) and not mailbox.closed else True,
            mailbox.room_waiters,
            linger_ns,
            flush=mailbox,
        )
    with plane.lock:
        if not mailbox.closed:
            _unbind(plane, mailbox, linger_ns)
    plane.flush_batches()
    plane.finish_pass()
    if mailbox.descriptor is not None:
        mailbox.descriptor.close()


def _unbind(plane: Plane, mailbox: Mailbox, linger_ns: int | None) -> None:
    """Leave the port; keep queued messages for their linger time, or cancel them. Lock held."""
    mailbox.closed = True
    mailbox.shut(plane)
    if linger_ns is None and _has_queued(mailbox):
        plane.lingering[mailbox] = plane.clock_ns() + plane.limits.linger_ns
        plane.progress_thread.want()
    else:
        for path in mailbox.paths():
            path.cancel(mailbox, None)
    plane.touched.add(mailbox)


def _has_queued(mailbox: Mailbox) -> bool:
    """Return whether a message, even an empty one, may not be with its peer yet. Lock held."""
    return any(path.holds(mailbox) for path in mailbox.paths())


def _ask_for(plane: Plane, mailbox: Mailbox) -> None:
    """Request acknowledgements of a mailbox's messages. No lock held."""
    with plane.lock:
        paths = mailbox._host.paths
        holders = tuple(path for path in paths if path.holds(mailbox))
    _ask(plane, holders)
    for path in holders:
        path.flush()


def _ask(plane: Plane, paths: Sequence[StreamPath]) -> None:
    """Request acknowledgements on the paths, for a thread that waits for them. No lock held."""
    with plane.lock:
        for path in paths:
            path.core.ask()


def drain(plane: Plane, drain_ns: int) -> int:
    """Send queued messages and wait for their acknowledgement; return the messages left."""
    if plane.closed:
        return 0
    deadline_ns = plane.clock_ns() + drain_ns
    paths, transports = _all_paths(plane)
    _ask(plane, paths)
    every: list[StreamPath | MessageTransport] = [*paths, *transports]
    while _is_any_left(plane, every) and plane.clock_ns() < deadline_ns and not plane.virtual:
        for path in paths:
            path.flush()
        for one in transports:
            one.push()
        plane.serve_ready(_DRAIN_POLL_S)
        plane.serve_due()
    with plane.lock:
        return sum(sum(path.counts()) for path in every)


def _is_any_left(plane: Plane, paths: Sequence[StreamPath | MessageTransport]) -> bool:
    with plane.lock:
        return any(path.holds() for path in paths)


def close(plane: Plane, drain_ns: int) -> int:
    """Drain, end the streams in order, wake all threads; return the messages left."""
    if plane.closed:
        return 0
    left = drain(plane, drain_ns)
    end_streams(plane)
    _shut_all(plane)
    _wait_until_empty(plane)
    return left


def fail(plane: Plane) -> None:
    """Fail every call with EIO, wake all threads, end the streams: the control plane failed."""
    plane.closed_reason = ErrorReason.NODE_FAILED
    _shut_all(plane)
    end_streams(plane)


def abandon_in_child(plane: Plane) -> None:
    """After a fork, in the child: fail every call, close copies, change nothing shared.

    It takes no lock, since the lock's holder is not in the child. It makes no `epoll_ctl` and no
    `shutdown`: the poll set and the connections are the parent's.
    """
    plane.closed = True
    plane.closed_reason = ErrorReason.AFTER_FORK
    plane.lock, plane.holds_lock = new_lock()
    plane.wait_queue.abandon_in_child(plane.lock)
    plane.interrupts.abandon_in_child()
    plane.progress_thread.abandon_in_child()
    for host in plane.hosts.values():
        for mailbox in host.inboxes.values():
            mailbox.abandon_in_child()
        for path in host.all_paths():
            path.abandon_in_child()
    plane.poll_set.close()


def _shut_all(plane: Plane) -> None:
    with plane.lock:
        plane.closed = True
        for host in plane.hosts.values():
            for mailbox in list(host.inboxes.values()):
                mailbox.closed = True
                mailbox.shut(plane)
                plane.touched.add(mailbox)  # a thread that polls its descriptor must wake as well
        plane.progress_thread.want(now=True)
    plane.deliver()
    plane.finish_pass()


def _all_paths(plane: Plane) -> tuple[list[StreamPath], list[MessageTransport]]:
    with plane.lock:
        hosts = list(plane.hosts.values())
        paths = [path for host in hosts for path in host.paths]
        return paths, [path for host in hosts for path in host.transports]


def end_streams(plane: Plane) -> None:
    """End every connection in order, over any transport; wake no thread."""
    until_ns = plane.clock_ns() + _END_OF_TRANSPORT_NS
    paths, transports = _all_paths(plane)
    for transport in transports:
        transport.end(until_ns)
    _end_streams(paths)


def _wait_until_empty(plane: Plane) -> None:
    """Wait, up to a limit, until every waiter has left: none may find descriptors closed."""
    deadline = time.monotonic() + _LEAVING_S
    while time.monotonic() < deadline:
        with plane.lock:
            if plane.wait_queue.is_empty():
                return
        time.sleep(_LEAVING_POLL_S)


def _end_streams(paths: list[StreamPath]) -> None:
    """End the local direction, read the peer's to its end, close: acknowledged data is kept.

    Messages received so far are acknowledged first, or their senders would get them reported as
    given up; later ones are not, since no socket will take them.
    """
    streams = []
    for path in paths:
        with path.plane.lock:
            path.core.acknowledge()
        path.flush()
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
