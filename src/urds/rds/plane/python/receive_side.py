"""The receive side of the plane: congestion, ends of operations, messages of message transports.

*When a local port's bit in the congestion map changes.* The bit is checked at the end of a pass or
a tick, not per message: with Linux's rule, at once, eight fast senders to a small buffer cost more
bytes of maps than of messages. Far over its buffer a mailbox pauses the paths that fill it, because
its peer ignores the map.

*Operations.* The transport sets the status of each of a message's operations and calls
`note_operation`. Notices go ahead of messages and congestion notices; a closed mailbox collects
none, and a wait for one of its operations raises. Source: linux v6.12 net/rds/recv.c
(rds_notify_queue_get); docs/reference/rds.md 3.5.

*Message transports* (`rds.plane.message_transport`). Such a path belongs to a host like one with a
stream: it shares the host's congestion map and its peer's map, it may be at its limit of messages,
and a mailbox far over its buffer pauses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.common.errors import os_error
from urds.common.types import IPAddress
from urds.rds.plane.contract import Operation, OperationNotice, OperationNotices

if TYPE_CHECKING:
    from urds.rds.plane.contract import SocketAddress
    from urds.rds.plane.python.inbox import Inbox, Pausable
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane
    from urds.rds.wire.congestion_map import CongestionMap

_GROUPS = 64


def own_map(plane: Plane, address: IPAddress) -> CongestionMap:
    """Return the map of a local address. Plane's lock held."""
    return plane._host(address).congested


def finish_pass(plane: Plane) -> None:
    """Check the mailboxes that a pass touched, send changed maps, show states. No lock held."""
    with plane.lock:
        touched, plane.touched = plane.touched, set()
        now_ns = plane.clock_ns()
        changed = tuple(one for one in touched if update_congestion(plane, one, now_ns))
        paths = [path for mailbox in changed for path in plane.hosts[mailbox.local].paths]
        transports, plane.maps_due = plane.maps_due, set()
        for mailbox in touched:
            note_resumed(plane, mailbox)
        # A changed local map concerns senders of this process: show their state as well.
        touched, plane.touched = touched | plane.touched, set()
    try:
        for path in paths:
            path.flush()
        for one in transports:
            one.push_soon()
        while plane.resuming:
            paused = next(iter(plane.resuming))
            paused.resume()
            plane.resuming.discard(paused)  # last: a second resume does no harm
        for mailbox in touched:
            mailbox.sync()
    except BaseException:  # work that an interrupt prevented is due again
        plane.maps_due |= transports
        raise


def update_congestion(plane: Plane, mailbox: Mailbox, now_ns: int) -> bool:
    """Check a mailbox's congestion; return whether the local map changed. Lock held."""
    if not mailbox.closed:
        mailbox.check_congestion(now_ns)
    if mailbox.look_again_ns() is not None:
        plane.looks.add(mailbox)
        plane.progress_thread.want()
    on = mailbox.congested
    if mailbox.closed or own_map(plane, mailbox.local).test(mailbox.port) == on:
        return False
    show(plane, mailbox, on=on)  # also if an interrupt kept an earlier change from the map
    return True


def show(plane: Plane, mailbox: Mailbox, *, on: bool) -> None:
    """Set or clear a port's bit in the local map; the next flush sends it. Lock held."""
    host = plane.hosts[mailbox.local]
    for path in host.paths:
        path.core.map_due = path.core.attached
        path.flush_soon()
    for transports in host.transports:
        transports.note_map_due()
    plane.maps_due.update(host.transports)
    groups = 0 if on else 1 << mailbox.port % _GROUPS
    for other in plane.hosts.values():
        for sender in other.inboxes.values():
            if sender.sends_by_loop_to(mailbox.local):
                sender.note_map(groups)
                plane.touched.add(sender)
    # Last (`interrupts`): until then the map differs from the mailbox, and is checked again.
    (host.congested.set if on else host.congested.clear)(mailbox.port)


def note_resumed(plane: Plane, mailbox: Mailbox) -> None:
    """Have paths resumed whose mailbox is at half of its hard bound or closed. Lock held."""
    if not mailbox.pausing:
        return
    limits = plane.limits
    bound = limits.receive_hard_factor * mailbox.buffer_bytes + limits.receive_hard_bytes
    if mailbox.hard_bytes() <= bound // 2 or mailbox.closed:
        plane.resuming |= mailbox.pausing
        mailbox.pausing.clear()


NOTICES_MAX = 65_536  # of one mailbox; a peer that never requests them costs no more


def note_operation(mailbox: Mailbox, operation: Operation) -> None:
    """Wake the waiters for an ended operation; keep its notice. Lock held."""
    plane = mailbox._plane
    assert operation.status is not None, "an operation ends with a status"
    mailbox.operation_waiters.tell_all(plane.wait_queue)
    if mailbox.closed or not operation.wants_notice:
        return
    if len(mailbox.notices) >= NOTICES_MAX:
        plane.counters.recv_drop_notices_full += 1
        return
    mailbox.notices.append(OperationNotice(operation.token, operation.status))
    plane.note_arrival(mailbox, 1)


def take_notices(mailbox: Mailbox, notices_max: int) -> OperationNotices:
    """Take the oldest notices, one at least. Lock held."""
    notices = mailbox.notices
    count = min(max(1, notices_max), len(notices))
    return OperationNotices(notices.popleft() for _ in range(count))


def wait_operation(mailbox: Mailbox, operation: Operation, wait_ns: int | None) -> bool:
    """Wait until an operation has ended; return whether it has."""
    plane = mailbox._plane

    def attempt() -> bool | None:
        if operation.status is not None:
            return True
        if mailbox.closed:
            raise os_error(plane.closed_reason)
        return None

    ended = plane.wait(attempt, mailbox.operation_waiters, wait_ns, flush=mailbox)
    plane.driven = True
    plane.finish_pass()
    return ended is True


def put_message(
    plane: Plane, inbox: Inbox, payload: bytes, source: SocketAddress, extension: bytes
) -> None:
    """Queue and count a message that came without a stream. Lock held."""
    if inbox.detailed or extension:
        inbox.put((payload, source, extension, plane.wall_ns(), plane.clock_ns()))
    else:
        inbox.put((payload, source))
    plane.counters.recv_queued += 1
    plane.counters.recv_bytes_added_to_sock += len(payload)
    plane.note_arrival(inbox, 1)


def pause(plane: Plane, path: Pausable, inbox: Inbox) -> None:
    """Have a path resumed when the mailbox is at half of its hard bound. Lock held."""
    inbox.pausing.add(path)
    plane.counters.recv_paused += 1
