"""Completion of operations at the application: waits, and notices.

The transport sets the status of each of a message's operations and calls `note`. Notices go ahead
of messages and congestion notices; a closed mailbox collects none, and a wait for one of its
operations raises. Source: linux v6.12 net/rds/recv.c (rds_notify_queue_get); docs/reference/rds.md
3.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.common.errors import os_error
from urds.rds.plane.operations import Operation, OperationNotice, OperationNotices

if TYPE_CHECKING:
    from urds.rds.plane.python.mailbox import Mailbox

NOTICES_MAX = 65_536  # of one mailbox; a peer that never requests them costs no more


def note(mailbox: Mailbox, operation: Operation) -> None:
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
    mailbox.special = True
    plane.note_arrival(mailbox, 1)


def take(mailbox: Mailbox, notices_max: int) -> OperationNotices:
    """Take the oldest notices, one at least. Lock held."""
    notices = mailbox.notices
    count = min(max(1, notices_max), len(notices))
    return OperationNotices(notices.popleft() for _ in range(count))


def wait(mailbox: Mailbox, operation: Operation, wait_ns: int | None) -> bool:
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
