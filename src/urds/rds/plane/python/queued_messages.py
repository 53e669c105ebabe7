"""What the queues of a path hold: messages, whose they are, and fences between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from urds.common.types import IPAddress
from urds.rds.constants import PROBE_PORT
from urds.rds.plane.contract import Buffer, Operation


class Owner(Protocol):
    """The send side of a socket, as its paths know it."""

    send_queued_bytes: int  # payloads queued or unacknowledged
    given_up: int

    def note_freed(self, path: Any, freed_bytes: int) -> None:
        """Take messages that left a path off the account; notify waiting senders."""

    def note_path_room(self, path: Any) -> None:
        """Notify waiting senders that a path is below its limit again."""

    def note_operation(self, operation: Operation) -> None:
        """Note that an operation of a message has ended."""

    def fail(self, peer: IPAddress) -> None:
        """Have the next send to a peer raise, once: messages were dropped."""


# (owner, source_port, target_port, payload, extension); owner None: the control plane's own
Unsent = tuple[Owner | None, int, int, Buffer, bytes]
# (sequence, stream position behind its last byte, owner, source_port, target_port, payload, ext)
Sent = tuple[int, int, Owner | None, int, int, Buffer, bytes]


class Fence:
    """A place in a path's queue that another path waits for.

    Fan-out moves a socket from path 0 to another; later messages there must not overtake those left
    behind. Source: linux v7.0 (mprds catch-up, see docs/protocol/rds-tcp.md).
    """

    __slots__ = ("open", "sequence")

    def __init__(self) -> None:
        self.open = False
        self.sequence: int | None = None  # set once the queue is numbered up to here


def count_of(owners: Iterable[Owner | None], wanted: Owner | None) -> int:
    """Return how many messages are an owner's, or with None any's but the control plane's."""
    return sum(one is not None and wanted in (None, one) for one in owners)


def is_probe(owner: Owner | None, source_port: int, target_port: int) -> bool:
    """Return whether a message is a handshake of the control plane."""
    return owner is None and PROBE_PORT in (source_port, target_port)


def matches(message: Unsent, owner: Owner, target_port: int | None) -> bool:
    """Return whether a message is the owner's, to one port or to any."""
    return message[0] is owner and target_port in (None, message[2])


def without(
    queue: deque[Sent], owner: Owner, target_port: int | None
) -> tuple[deque[Sent], int, int]:
    """Return the queue without the owner's messages, to one port or all; their count and bytes."""
    kept: deque[Sent] = deque()
    removed_bytes = 0
    for message in queue:
        if message[2] is owner and target_port in (None, message[4]):
            removed_bytes += len(message[5])
        else:
            kept.append(message)
    return kept, len(queue) - len(kept), removed_bytes
