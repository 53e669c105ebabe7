"""What a node tells its operator: each event with its id, level and fields.

docs/events.md is the table for readers; a test holds it to this one.
"""

from __future__ import annotations

from enum import Enum
from typing import Self

from urds.common.event_log import EventLog, Level


class NodeEvent(Enum):
    """One kind of event; `about` of `tell` is what it is limited by."""

    NODE_STARTED = "node-started", Level.INFO, ("place", "pid", "version")
    NODE_STOPPED = "node-stopped", Level.INFO, ("reason",)
    FORK_SERVER_STARTED = "fork-server-started", Level.INFO, ("fork_server",)
    FORK_SERVER_ENDED = "fork-server-ended", Level.WARNING, ("fork_server", "reason", "pause_s")
    WORKER_STARTED = "worker-started", Level.INFO, ("worker",)
    WORKER_SERVING = "worker-serving", Level.INFO, ("worker", "sockets", "pause_ms")
    WORKER_DIED = "worker-died", Level.ERROR, ("worker", "status", "pause_s")
    WORKER_UPGRADED = "worker-upgraded", Level.INFO, ("before", "worker")
    UPGRADE_FAILED = "upgrade-failed", Level.ERROR, ("reason",)
    SOCKET_OPENED = "socket-opened", Level.DEBUG, ("socket", "uid", "pid")
    SOCKET_BOUND = "socket-bound", Level.DEBUG, ("socket", "uid", "address", "port")
    SOCKET_LEFT = "socket-left", Level.DEBUG, ("socket", "uid")
    SOCKET_BROKEN = "socket-broken", Level.WARNING, ("socket", "uid", "what")
    SOCKET_LOST = "socket-lost", Level.ERROR, ("socket", "reason")
    REQUEST_REJECTED = "request-rejected", Level.WARNING, ("uid", "pid", "operation", "reason")
    REQUEST_FAULT = "request-fault", Level.ERROR, ("uid", "operation", "traceback")
    CLIENT_SILENT = "client-silent", Level.WARNING, ("uid", "pid", "wait_s")
    QUOTA_REACHED = "quota-reached", Level.WARNING, ("uid", "reason")
    PEER = "peer", Level.INFO, ("kind", "local", "peer", "transport", "reason")
    LOG = "log", Level.INFO, ("logger", "text")

    def __new__(cls, name: str, level: Level, fields: tuple[str, ...]) -> Self:
        """Make a member; its value is its id."""
        member = object.__new__(cls)
        member._value_ = name
        member.level, member.fields = level, fields
        return member

    level: Level
    fields: tuple[str, ...]


def tell(log: EventLog, event: NodeEvent, *values: object, about: object = "") -> None:
    """Write a line of an event, with the values of its fields in their order."""
    log.put(event.value, event.level, dict(zip(event.fields, values, strict=True)), str(about))
