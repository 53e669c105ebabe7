"""What a user is told of connections: their state, since when, and why there is none.

The planes' tables say what a path has; the control planes know the rest. Both meet here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from urds.common.records import record, replace
from urds.common.types import IPAddress
from urds.rds.control.state import ConnectionReport, ConnectionState
from urds.rds.plane.contract import Carrier, ConnectionFacts, PathRow, Snapshot
from urds.rds.runtime.looks import Seen
from urds.rds.transports.peer_history import PeerHistory

# How a path is, what is remembered of its connection, and what the looks at it have shown.
Found = tuple[ConnectionReport, PeerHistory, Seen]

_S: Final = 1_000_000_000


@record
class ConnectionInfo:
    """One connection of this process; of several paths to a peer, each is one.

    Times are seconds before the call that returned the record, but `next_attempt_s` lies ahead.
    """

    local: IPAddress
    peer: IPAddress
    path: int  # its index
    transport: Carrier
    tos: int  # type of service; over TCP 0
    state: ConnectionState
    state_s: float | None  # for how long; None: it was never anything else
    attempts: int  # to connect, in the present outage
    next_attempt_s: float | None
    last_error: str  # why an attempt failed or the connection ended last; "" if none did
    last_error_s: float | None
    last_received_s: float | None  # to within a second; None: never
    unsent_messages: int
    unacknowledged_messages: int
    oldest_unacknowledged_s: float | None  # at least so long, to within a second


def infos(paths: Sequence[PathRow]) -> list[ConnectionInfo]:
    """Return the records of the paths of a snapshot."""
    return [_info(row, row.connection) for row in paths if row.connection]


def _info(row: PathRow, facts: ConnectionFacts) -> ConnectionInfo:
    return ConnectionInfo(
        local=row.local,
        peer=row.peer,
        path=row.index,
        transport=row.transport,
        tos=row.tos,
        state=ConnectionState(facts.state),
        state_s=facts.state_s,
        attempts=facts.attempts,
        next_attempt_s=facts.next_attempt_s,
        last_error=facts.last_error,
        last_error_s=facts.last_error_s,
        last_received_s=facts.last_received_s,
        unsent_messages=row.unsent_messages,
        unacknowledged_messages=row.unacknowledged_messages,
        oldest_unacknowledged_s=facts.oldest_unacknowledged_s,
    )


def with_facts(snapshot: Snapshot, find: Callable[[PathRow], Found | None], at_ns: int) -> Snapshot:
    """Add to each path of a snapshot what the control planes know, as `find` says."""
    rows = [replace(row, connection=_facts(find(row), at_ns)) for row in snapshot.paths]
    return replace(snapshot, paths=rows)


def _facts(found: Found | None, at_ns: int) -> ConnectionFacts | None:
    """Return what is known of one path; None if it is gone meanwhile."""
    if found is None:
        return None
    report, history, seen = found
    attempt_at_ns = report.attempt_at_ns
    return ConnectionFacts(
        state=report.state,
        state_s=_ago_s(report.since_ns, at_ns),
        attempts=report.attempts,
        next_attempt_s=None if attempt_at_ns is None else max(0, attempt_at_ns - at_ns) / _S,
        last_error=history.error,
        last_error_s=_ago_s(history.error_ns, at_ns),
        last_received_s=_ago_s(seen.received_ns, at_ns),
        oldest_unacknowledged_s=None if seen.mark is None else _ago_s(seen.mark_ns, at_ns),
    )


def _ago_s(then_ns: int | None, at_ns: int) -> float | None:
    return None if then_ns is None else max(0, at_ns - then_ns) / _S
