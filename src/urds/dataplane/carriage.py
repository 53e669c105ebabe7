"""Paths whose messages another transport carries: RDS over RDMA beside the plane's own streams.

A `CarriedPath` is to a mailbox what a path with a TCP stream is: it queues messages, counts them
against the sender's account, and gives what arrives to the plane. How they travel is its own
affair. It is made by its transport and shown to the plane with `Plane.add_carried`.

Locks. The transport's own lock (an adapter's) comes *before* the plane's. So what the plane calls
with its lock held takes no other; `push` is for threads that hold no lock at all, and `push_soon`
for everybody else: it never waits for a lock.

What the transport calls in turn, with the plane's lock held: `Plane.deliver_carried` and
`Plane.note_peer_map` for what arrives, `Plane.note_freed` for each sender whose messages left,
`Plane.note_path_room` once the path has room for those who wait for it, `Plane.note_full` whenever
`full` changes, `Plane.note_wanted` when it asks for a connection and `Plane.note_attached` when it
has one, `Mailbox.note_operation` for each operation that ends, `Mailbox.fail` for the senders of
what was given up. Once the lock is free, it calls `Plane.settle`, which judges the mailboxes that
this concerned, shows their state and wakes who waits. The path counts what it queues, cancels and
gives up; the plane counts what is delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from urds.dataplane.base import Address, Buffer, MessageRow, PathRow
from urds.dataplane.operations import Operation

if TYPE_CHECKING:
    from urds.dataplane.reference.accounts import Destination
    from urds.dataplane.reference.mailbox import Mailbox


class CarriedPath(Protocol):
    """One connection to a peer, by a transport that carries whole messages."""

    local: Address
    peer: Address
    index: int  # 0: there is one connection to a peer
    full: bool  # at its bound of messages: nothing more may be queued
    message_bytes_max: int  # the longest message it carries
    room_wanted: set[Mailbox]  # senders that wait for `full` to end; told by the path
    destinations: dict[Mailbox, Destination]  # that its senders' messages count in
    absent: bool  # messages have long waited for a connection

    # -- plane's lock held

    def queue(
        self,
        sender: Mailbox,
        target_port: int,
        payload: Buffer,
        extension: bytes,
        operations: Sequence[Operation],
    ) -> None:
        """Take a message; its octets count in `sender.send_queued_bytes` until acknowledged."""

    def want(self) -> None:
        """Ask for a connection if there is none."""

    def cancel(self, mailbox: Mailbox, port: int | None) -> int:
        """Remove and count a mailbox's messages, to one port or all; return how many.

        Their operations end with CANCELED unless they have ended.
        """

    def give_up(self, mailbox: Mailbox) -> int:
        """Remove and count a mailbox's messages, whose peer is absent; return how many.

        Their operations end with DROPPED unless they have ended.
        """

    def holds(self, mailbox: Mailbox | None = None) -> bool:
        """Tell whether messages of a mailbox, or of any, are queued or unacknowledged."""

    def note_map_due(self) -> None:
        """Our congestion map changed: it goes out with the next push."""

    def counts(self, mailbox: Mailbox | None = None) -> tuple[int, int]:
        """Count a mailbox's messages, or those of all: never sent, and not acknowledged."""

    def row(self) -> PathRow:
        """Describe the path for rds-info."""

    def unsent_rows(self) -> list[MessageRow]:
        """List what was never sent."""

    def sent_rows(self) -> list[MessageRow]:
        """List what was sent and is not acknowledged."""

    # -- no lock held

    def push(self) -> None:
        """Carry what is queued, in the caller's thread, which holds no lock."""

    def push_soon(self) -> None:
        """See to it that what is queued is carried soon; never waits for a lock."""

    def resume(self) -> None:
        """Take in messages again: the mailbox that made us pause is at half. As `push_soon`."""

    def serve(self) -> None:
        """Do what `Plane.note_due` was told of: time has come. The caller holds no lock."""

    def end(self, until_ns: int) -> None:
        """Acknowledge what came in and end the connection in order; the plane closes.

        Waits no longer than to `until_ns` of the plane's clock, which all paths share.
        """

    def abandon_in_child(self) -> None:
        """Forget the connection after a fork: it is the parent's. Takes no lock."""
