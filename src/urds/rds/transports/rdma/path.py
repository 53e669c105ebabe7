"""The path to one peer over RDMA: what a plane, a device and the control plane share.

The path joins three sides. The plane queues messages and asks what is under way, with its lock
held; a link posts the core's work and delivers what arrives, with its adapter's lock held and the
plane's inside it; the control plane attaches and detaches links. The plane's lock guards public
attributes; `link` changes in the control thread only, under the link's adapter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from urds.rds.constants import MAX_MESSAGE_BYTES, RdmaStatus
from urds.rds.control.rdma_events import PeerKey
from urds.rds.plane.contract import (
    Buffer,
    Carrier,
    MessageRow,
    Operation,
    PathActivity,
    PathRow,
    RdmaRow,
)
from urds.rds.transports.peer_history import PeerName
from urds.rds.transports.rdma.core import ConnectionCore, CoreLimits
from urds.rds.transports.rdma.counters import RdmaCounters

if TYPE_CHECKING:
    from urds.rds.plane import contract as base
    from urds.rds.plane.python.accounts import Destination
    from urds.rds.plane.python.plane import Plane
    from urds.rds.plane.python.send_side import SendSide
    from urds.rds.plane.python.sender import Owner
    from urds.rds.plane.python.state import Host
    from urds.rds.transports.rdma.link import Link

_ROWS_MAX: Final = 65536  # of each message table
_ACKNOWLEDGE_NS: Final = 1_000_000  # what an acknowledgement waits for a message to ride on


class RdmaPath:
    """A `MessageTransport` over one RDMA connection, which comes and goes."""

    def __init__(
        self,
        plane: Plane,
        host: Host,
        key: PeerKey,
        *,
        limits: CoreLimits,
        counters: RdmaCounters,
        sequence_first: int,
        may_answer_ping: bool,
        on_key_used: Callable[[object, int], None],
        on_wanted: Callable[[RdmaPath], None],
        on_protocol_error: Callable[[RdmaPath, Link, str, bool], None],
    ) -> None:
        self.local = host.address
        self.peer = key.peer
        self.key = key
        self.name = PeerName(self.local, self.peer, key.tos)
        self.index = 0
        self.plane = plane
        self.core = ConnectionCore(
            limits, plane.state.counters, counters, self, sequence_first=sequence_first
        )
        self.rdma_counters = counters
        self.full = False
        self.message_bytes_max = min(limits.message_bytes_max, MAX_MESSAGE_BYTES)
        self.room_wanted: set[SendSide] = set()
        self.destinations: dict[SendSide, Destination] = {}  # that the sockets' messages count in
        self.absent = False  # messages have long waited for a connection
        self.mailboxes: set[base.Mailbox] = set()  # routed here; control lock
        self.is_paused = False  # a mailbox is over its hard bound
        self.link: Link | None = None
        self.failure = ""  # why the last attempt to connect failed
        self._acknowledges_unasked = False  # an own node: it waits for what it sent last
        self._acknowledgement_planned = False
        self._host = host
        self._limits = limits
        self._may_answer_ping = may_answer_ping
        self._is_wanted = False
        self._on_key_used = on_key_used
        self._on_wanted = on_wanted
        self._on_protocol_error = on_protocol_error

    # -- as a `MessageTransport`; plane's lock held

    def queue(
        self,
        sender: SendSide,
        target_port: int,
        payload: Buffer,
        extension: bytes,
        operations: Sequence[Operation],
    ) -> None:
        """Take a message; ask for a connection if there is none."""
        # A sender whose account is half full waits for acknowledgements soon. Source:
        # docs/reference/rds.md 1.6.
        ack_required = sender.wants_ack(self, len(payload))
        self.core.outgoing.queue(
            sender,
            sender.port,
            target_port,
            payload,
            extension,
            operations,
            ack_required=ack_required,
        )
        self._check_full()
        self.want()

    def want(self) -> None:
        """Ask the control plane for a connection, once per outage."""
        if self.link is None and not self._is_wanted:
            self._is_wanted = True
            self.plane.state.note_wanted(self)
            self._on_wanted(self)

    def cancel(self, mailbox: SendSide, port: int | None) -> int:
        """Remove a mailbox's messages, to one port or all; return how many."""
        count = self.core.cancel(mailbox, port)
        self.plane.state.counters.send_cancelled += count
        self._finish_taken_out(mailbox)
        return count

    def give_up(self, mailbox: SendSide) -> int:
        """Remove a mailbox's messages: their peer is absent too long; return how many."""
        count = self.core.cancel(mailbox, None, RdmaStatus.DROPPED)
        self.plane.state.counters.send_given_up += count
        self._finish_taken_out(mailbox)
        return count

    def _finish_taken_out(self, mailbox: SendSide) -> None:
        mailbox.give_back(self, self.core.outgoing.freed.pop(mailbox, 0))
        self.finish_freed()

    def holds(self, mailbox: SendSide | None = None) -> bool:
        """Tell whether messages of a mailbox, or of any, are queued or unacknowledged."""
        return self.core.outgoing.holds(mailbox)

    def note_map_due(self) -> None:
        """Send the local map with the next push."""
        self.core.map_due = self.link is not None

    def counts(self, mailbox: SendSide | None = None) -> tuple[int, int]:
        """Count a mailbox's messages, or those of all: never sent, and not acknowledged."""
        return self.core.outgoing.counts(mailbox)

    def row(self) -> PathRow:
        """Describe the path for rds-info."""
        core = self.core
        unsent = sum(1 for _ in core.outgoing.unsent_entries())
        return PathRow(
            local=self.local,
            peer=self.peer,
            index=self.index,
            transport=Carrier.RDMA,
            tos=self.key.tos,
            up=self.link is not None,
            sending=core.wants_work(),
            held=False,
            sequence_next=core.outgoing.sequence_next,
            sequence_expected=core.incoming.sequence_expected,
            unsent_messages=unsent,
            unacknowledged_messages=core.outgoing.message_count() - unsent,
            local_stream=None,
            peer_stream=None,
            header_remaining_bytes=0,
            data_remaining_bytes=0,
            stream_sent_bytes=0,
            stream_expected_bytes=0,
            stream_acknowledged_bytes=0,
            rdma=RdmaRow(self.key.passive) if self.link is None else self.link.row(),
        )

    def unsent_rows(self) -> list[MessageRow]:
        """List what was never sent."""
        return [
            self._message_row(0, *message)
            for _, *message in islice(self.core.outgoing.unsent_entries(), _ROWS_MAX)
        ]

    def sent_rows(self) -> list[MessageRow]:
        """List what was sent and is not acknowledged."""
        return [
            self._message_row(*message)
            for message in islice(self.core.outgoing.sent_entries(), _ROWS_MAX)
        ]

    def _message_row(
        self, sequence: int, payload_bytes: int, source_port: int, target_port: int
    ) -> MessageRow:
        here, there = (self.local, source_port), (self.peer, target_port)
        return MessageRow(sequence, payload_bytes, *here, *there, self.key.tos)

    def _check_full(self) -> None:
        full = self.core.outgoing.message_count() >= self._limits.messages_max
        if full is not self.full:
            self.full = full
            self.plane.state.note_full(self)

    def finish_freed(self) -> None:
        """Report freed messages to their owners, and to senders that wait at the bound."""
        for owner, freed_bytes in self.core.outgoing.freed.items():
            owner.note_freed(self, freed_bytes)
        self.core.outgoing.freed.clear()
        if self.full or self.room_wanted:
            self._check_full()
            if not self.full:
                self.plane.state.note_path_room(self)

    # -- as a `MessageTransport`; no lock held

    def push(self) -> None:
        """Post what is queued in the caller's thread, which holds no lock."""
        link = self.link
        if link is not None:
            with link.device.adapter.lock:
                try:
                    link.progress()
                except BaseException:  # of a signal's handler: what was posted is unknown
                    link.cut("a signal interrupted a send")
                    raise
            self.finish_pass()

    def push_soon(self) -> None:
        """Have queued messages posted soon; waits for no lock."""
        link = self.link
        if link is not None:
            link.finish_soon()

    def resume(self) -> None:
        """Receive messages again; waits for no lock."""
        self.is_paused = False
        link = self.link
        if link is not None:
            link.device.soon(link, link.resume)

    def serve(self) -> None:
        """Send an acknowledgement that found no message to ride on."""
        with self.plane.state.lock:
            self._acknowledgement_planned = False
            self.core.acknowledge()
        self.push()

    def end(self, until_ns: int) -> None:
        """Acknowledge what came in, let posted messages arrive, end the connection in order."""
        link = self.link
        if link is None:
            return
        adapter = link.device.adapter
        with adapter.lock:
            with self.plane.state.lock:
                self.core.acknowledge()
            link.progress()
        left_ns = max(0, until_ns - self.plane.state.clock_ns())
        adapter.wait(lambda: link.is_over or link.is_idle(), left_ns)
        self.detach()

    def abandon_in_child(self) -> None:
        """Forget the connection: it is the parent's."""
        self.link = None

    # -- for links; their adapter's lock held

    def finish_pass(self) -> None:
        """Tell the plane what a pass of the device changed."""
        with self.plane.state.lock:
            self.finish_freed()
            if self.core.has_ack_pending and self._acknowledges_unasked:
                self._plan_acknowledgement()
        self.plane.passes.finish_pass()

    def _plan_acknowledgement(self) -> None:
        """Have the last messages of a burst acknowledged, which ask for nothing. Lock held."""
        plane = self.plane
        if not self._acknowledgement_planned:
            self._acknowledgement_planned = True
            plane.state.note_due(self, plane.state.clock_ns() + _ACKNOWLEDGE_NS)

    def handle_protocol_error(self, link: Link, reason: str, *, wrong_key: bool = False) -> None:
        """Have the control plane end the connection: the peer broke the protocol."""
        self._on_protocol_error(self, link, reason, wrong_key)

    # -- for the control plane

    def attach(
        self,
        link: Link,
        *,
        acknowledged: int,
        credits: int,
        is_urds_peer: bool,
        long_frames: bool = False,
    ) -> None:
        """Attach an established link: the map goes first, then retransmits, then new messages."""
        with link.device.adapter.lock:
            with self.plane.state.lock:
                self.link = link
                self._acknowledges_unasked = is_urds_peer
                self.is_paused = self._is_wanted = False
                self.plane.state.note_attached(self)
                self.core.attach(
                    acknowledged=acknowledged, credits=credits, long_frames=long_frames
                )
            link.attach(long_frames=long_frames)

    def detach(self) -> None:
        """End the link, if there is one; unacknowledged messages will be retransmitted."""
        link = self.link
        if link is None:
            return
        with link.device.adapter.lock:
            link.close()
            with self.plane.state.lock:
                self.link = None
                self.is_paused = self._is_wanted = False
                self.core.detach()
                self.finish_freed()
                if self.core.outgoing.holds():
                    self.want()
        self.plane.passes.finish_pass()

    def restart_peer(self) -> int:
        """Begin another generation of the peer; return how many messages the old one took along."""
        with self.plane.state.lock:
            count = self.core.restart_peer()
            self.plane.state.counters.peer_restarted += 1
            self.plane.state.counters.send_given_up += count
            self.finish_freed()
        self.plane.passes.finish_pass()
        return count

    def drop_queue(self) -> int:
        """Drop every message; each sender gets EHOSTUNREACH once."""
        with self.plane.state.lock:
            count = self.core.drop_all()
            self.plane.state.counters.send_given_up += count
            for owner in self.core.outgoing.freed:
                owner.fail(self.peer)
            self._is_wanted = False
            self.finish_freed()
        self.plane.passes.finish_pass()
        return count

    def holds_messages(self) -> bool:
        """Tell whether messages of sockets are queued or unacknowledged. No lock held."""
        with self.plane.state.lock:
            return self.core.outgoing.holds()

    def activity(self) -> PathActivity:
        """Return how far the path is; what arrives is seen by numbers and acknowledgements."""
        with self.plane.state.lock:
            outgoing, incoming = self.core.outgoing, self.core.incoming
            oldest = next((entry[0] for entry in outgoing.sent_entries()), None)
            acknowledged = outgoing.sequence_next if oldest is None else oldest
            received = incoming.sequence_expected + acknowledged
            return PathActivity(received, oldest, outgoing.sequence_next)

    # -- as the core's surroundings; plane's lock held

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> None:
        """Put a whole message into its mailbox; one far over its buffer pauses the path."""
        if not self.plane.state.deliver_from_transport(
            self, source_port, target_port, payload, extension
        ):
            self.is_paused = True

    def take_map(self, data: bytes) -> None:
        """Put the peer's congestion map in force; monitors are told of cleared ports alone.

        Source: linux v6.12 net/rds/ib_recv.c (rds_ib_cong_recv); docs/reference/rds.md 3.7.
        """
        self.plane.state.note_peer_map(self._host, self.peer, data, exact=True)

    def map_bytes(self) -> bytes:
        """Return the local map as it is now."""
        return self._host.map_bytes()

    def may_answer_ping(self, port: int) -> bool:
        """Tell whether a pong may be sent: this node answers pings, and the target has room."""
        return self._may_answer_ping and not self._host.congested_at(self.peer).test(port)

    def key_used(self, target_port: int, key: int) -> None:
        """Note that the peer's operation has used a region of the socket that its message is for.

        Another socket's regions are not the peer's to use up. Source: linux v6.12 net/rds/rdma.c
        (rds_rdma_unuse).
        """
        owner = self._host.mailboxes.get(target_port)
        if owner is not None:
            self._on_key_used(owner, key)

    def operation_ended(self, owner: Owner, operation: Operation) -> None:
        """Tell the sender how its operation ended."""
        owner.note_operation(operation)
