"""Paths over message transports: RDS over RDMA, in a plane that has streams of its own.

A `MessageTransport` is to a mailbox what a path with a TCP stream is: it queues messages, counts
them in the sender's account, and delivers received messages to the plane. The transport creates it
and registers it with `Plane.add_message_transport`.

Locks. The transport's own lock (an adapter's) comes *before* the plane's. So a method that the
plane calls with its lock held takes no other; `push` is for threads that hold no lock at all, and
`push_soon` for all others: it never waits for a lock.

The transport calls, with the plane's lock held: `State.deliver_from_transport` and
`State.note_peer_map` for received messages and maps, `SendSide.note_freed` for each sender whose
messages left, `State.note_path_room` once the path has room for waiting senders, `State.note_full`
whenever `full` changes, `State.note_wanted` when it asks for a connection and `State.note_attached`
when it has one, `SendSide.note_operation` for each operation that ends, `SendSide.fail` for the
senders of messages given up. Once the lock is free, it calls `Progress.finish_pass`, which checks
congestion of these mailboxes, updates their descriptors and wakes waiters. The path counts what it
queues, cancels and gives up; the plane counts what is delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from urds.common.types import IPAddress
from urds.rds.plane.contract import Buffer, MessageRow, Operation, PathRow

Sender = Any  # the send side of a mailbox: `rds.plane.python.send_side.SendSide`
Destination = Any  # `rds.plane.python.accounts.Destination`


class MessageTransport(Protocol):
    """One connection to a peer, by a transport of whole messages."""

    local: IPAddress
    peer: IPAddress
    index: int  # 0: a peer has one connection
    full: bool  # at its limit of messages: nothing more may be queued
    message_bytes_max: int  # the longest message it accepts
    room_wanted: set[Sender]  # senders that wait for `full` to end; woken by the path
    destinations: dict[Sender, Destination]  # that its senders' messages are counted in
    absent: bool  # messages have long waited for a connection

    # -- plane's lock held

    def queue(
        self,
        sender: Sender,
        target_port: int,
        payload: Buffer,
        extension: bytes,
        operations: Sequence[Operation],
    ) -> None:
        """Queue a message; its bytes count in `sender.send_queued_bytes` until acknowledged."""

    def want(self) -> None:
        """Ask for a connection if there is none."""

    def cancel(self, mailbox: Sender, port: int | None) -> int:
        """Remove and count a mailbox's messages, to one port or all; return how many.

        Their operations end with CANCELED unless they have ended.
        """

    def give_up(self, mailbox: Sender) -> int:
        """Remove and count a mailbox's messages to an absent peer; return how many.

        Their operations end with DROPPED unless they have ended.
        """

    def holds(self, mailbox: Sender | None = None) -> bool:
        """Return whether messages of a mailbox, or of any, are queued or unacknowledged."""

    def note_map_due(self) -> None:
        """Note that the local congestion map changed: the next push sends it."""

    def counts(self, mailbox: Sender | None = None) -> tuple[int, int]:
        """Return how many messages of a mailbox, or of all, are unsent and unacknowledged."""

    def row(self) -> PathRow:
        """Return the path's row for rds-info."""

    def unsent_rows(self) -> list[MessageRow]:
        """Return the rows of messages never sent."""

    def sent_rows(self) -> list[MessageRow]:
        """Return the rows of messages sent and not acknowledged."""

    # -- no lock held

    def push(self) -> None:
        """Send queued messages in the calling thread, which holds no lock."""

    def push_soon(self) -> None:
        """Have queued messages sent soon; never waits for a lock."""

    def resume(self) -> None:
        """Receive messages again: the mailbox that paused this path is at half. As `push_soon`."""

    def serve(self) -> None:
        """Do the work whose time `State.note_due` was given. The caller holds no lock."""

    def end(self, until_ns: int) -> None:
        """Acknowledge received messages and end the connection in order; the plane closes.

        Waits until `until_ns` of the plane's clock at most, a time common to all paths.
        """

    def abandon_in_child(self) -> None:
        """Drop the connection after a fork: it is the parent's. Takes no lock."""
