"""How mailboxes and planes end: linger, drain, orderly ends of streams, nobody left inside.

Messages that a peer may not have are waited for, for a bounded time; streams end with our FIN and
are read to the peer's, so that nothing it was told to be delivered is thrown away by a reset.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from urds.errors import Refusal
from urds.reentry import new_lock

if TYPE_CHECKING:
    from urds.dataplane.carriage import CarriedPath
    from urds.dataplane.reference.mailbox import Mailbox
    from urds.dataplane.reference.plane import Plane
    from urds.dataplane.reference.stream_path import StreamPath

_DRAIN_POLL_S = 0.01
_LEAVING_S = 0.2  # how long a close waits for threads to leave their calls
_LEAVING_POLL_S = 0.001
_END_OF_STREAM_S = 0.1  # how long an orderly close waits for the peer's end
_END_OF_CARRIED_NS = 100_000_000  # how long it waits for what other transports have posted


def close_mailbox(plane: Plane, mailbox: Mailbox, linger_ns: int | None) -> None:
    """Unbind; linger in the foreground if asked, else in the background."""
    if linger_ns and plane.desk.waits_here():
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
    plane.flush_tails()
    plane.settle()
    if mailbox.descriptor is not None:
        mailbox.descriptor.close()


def _unbind(plane: Plane, mailbox: Mailbox, linger_ns: int | None) -> None:
    """Leave the port; keep what is queued for its time, or cancel it. Lock held."""
    mailbox.closed = True
    mailbox.shut(plane)
    if linger_ns is None and _has_queued(mailbox):
        plane.lingering[mailbox] = plane.clock_ns() + plane.limits.linger_ns
        plane.helper.want()
    else:
        for path in mailbox.paths():
            path.cancel(mailbox, None)
    plane.touched.add(mailbox)


def _has_queued(mailbox: Mailbox) -> bool:
    """Tell whether a message, be it empty, may not be with its peer yet. Lock held."""
    return any(path.holds(mailbox) for path in mailbox.paths())


def _ask_for(plane: Plane, mailbox: Mailbox) -> None:
    """Have the peers acknowledge what they have of a mailbox. No lock held."""
    with plane.lock:
        paths = mailbox._host.paths
        holders = tuple(path for path in paths if path.holds(mailbox))
    _ask(plane, holders)
    for path in holders:
        path.flush()


def _ask(plane: Plane, paths: Sequence[StreamPath]) -> None:
    """Have peers acknowledge what they have of the paths: somebody waits for it. No lock held."""
    with plane.lock:
        for path in paths:
            path.core.ask()


def drain(plane: Plane, drain_ns: int) -> int:
    """Send what is queued and wait for its acknowledgement; return the messages left."""
    if plane.closed:
        return 0
    deadline_ns = plane.clock_ns() + drain_ns
    paths, carried = _all_paths(plane), _all_carried(plane)
    _ask(plane, paths)
    every: list[StreamPath | CarriedPath] = [*paths, *carried]
    while _is_any_left(plane, every) and plane.clock_ns() < deadline_ns and not plane.virtual:
        for path in paths:
            path.flush()
        for one in carried:
            one.push()
        plane.serve_ready(_DRAIN_POLL_S)
        plane.serve_due()
    with plane.lock:
        return sum(sum(path.counts()) for path in every)


def _is_any_left(plane: Plane, paths: Sequence[StreamPath | CarriedPath]) -> bool:
    with plane.lock:
        return any(path.holds() for path in paths)


def close(plane: Plane, drain_ns: int) -> int:
    """Drain, end the streams in order, wake everybody; return the messages left."""
    if plane.closed:
        return 0
    left = drain(plane, drain_ns)
    end_streams(plane)
    _shut_all(plane)
    _wait_until_empty(plane)
    return left


def fail(plane: Plane) -> None:
    """Refuse everything with EIO and wake everybody, then end the streams: nobody is in control."""
    plane.closed_refusal = Refusal.NODE_FAILED
    _shut_all(plane)
    end_streams(plane)


def abandon_in_child(plane: Plane) -> None:
    """After a fork, in the child: refuse everything, close copies, touch nothing shared.

    No lock is taken, for its holder is not here. No `epoll_ctl` and no `shutdown` is made: the
    poll set and the connections are the parent's.
    """
    plane.closed = True
    plane.closed_refusal = Refusal.AFTER_FORK
    plane.lock, plane.holds_lock = new_lock()
    plane.desk.abandon_in_child(plane.lock)
    plane.interrupts.abandon_in_child()
    plane.helper.abandon_in_child()
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
                plane.touched.add(mailbox)  # who polls its descriptor must wake as well
        plane.helper.want(now=True)
    plane.deliver()
    plane.settle()


def _all_paths(plane: Plane) -> list[StreamPath]:
    with plane.lock:
        return [path for host in plane.hosts.values() for path in host.paths]


def _all_carried(plane: Plane) -> list[CarriedPath]:
    with plane.lock:
        return [path for host in plane.hosts.values() for path in host.carried]


def end_streams(plane: Plane) -> None:
    """End every connection in order, whoever carries it; nobody is woken."""
    until_ns = plane.clock_ns() + _END_OF_CARRIED_NS
    for path in _all_carried(plane):
        path.end(until_ns)
    _end_streams(_all_paths(plane))


def _wait_until_empty(plane: Plane) -> None:
    """Let every waiter leave, for a while: none may find our descriptors closed."""
    deadline = time.monotonic() + _LEAVING_S
    while time.monotonic() < deadline:
        with plane.lock:
            if plane.desk.is_empty():
                return
        time.sleep(_LEAVING_POLL_S)


def _end_streams(paths: list[StreamPath]) -> None:
    """End our direction, read the peer's to its end, close: nothing acknowledged is lost.

    What came in so far is acknowledged first, or its senders would be told that it is given up;
    what comes in from here on is not, for nobody will take it.
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
