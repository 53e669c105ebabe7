"""The path to one peer over RDMA: what a plane, a device and the control plane share.

The path joins three sides. Senders queue messages, which the plane charges; a link posts the core's
work and delivers what arrives, with its adapter's lock held; the control plane attaches and
detaches links. `lock`, one for all paths of a node, guards the cores: it is taken inside an
adapter's lock, and the plane's, which no call here needs, is taken inside it. `link` changes in
the control thread only, under the locks of the link's adapter and of the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from threading import RLock
from typing import TYPE_CHECKING, Final, Protocol

from urds.common.errors import ErrorReason, os_error
from urds.rds.constants import MAX_MESSAGE_BYTES, RdmaStatus
from urds.rds.control.rdma_events import Attach, PeerKey
from urds.rds.plane.contract import (
    Buffer,
    Carrier,
    Mailbox,
    MessageRow,
    Operation,
    PathActivity,
    PathRow,
    RdmaRow,
)
from urds.rds.plane.message_transport import Charge
from urds.rds.transports.peer_history import PeerName
from urds.rds.transports.rdma.charges import Charges
from urds.rds.transports.rdma.core import ConnectionCore, CoreLimits
from urds.rds.transports.rdma.courier import CoreLock
from urds.rds.transports.rdma.receiving import ACK_DELAY_NS
from urds.rds.transports.rdma.surroundings import Surroundings

if TYPE_CHECKING:
    from urds.common.types import IPAddress
    from urds.rds.plane.contract import Plane
    from urds.rds.plane.python.counters import Counters
    from urds.rds.transports.rdma.counters import RdmaCounters
    from urds.rds.transports.rdma.frames import MessageEntry
    from urds.rds.transports.rdma.link import Link

_ROWS_MAX: Final = 65536  # of each message table


class Shared(Protocol):
    """What all paths of a node share: `node.RdmaNode`."""

    plane: Plane
    lock: RLock  # of the cores and the counters
    counters: RdmaCounters
    message_counters: Counters
    acknowledgements: Acknowledgements
    now_ns: Callable[[], int]

    def is_inside(self) -> bool:
        """Tell whether the calling thread holds a lock of a device, the cores or the regions."""

    def want(self, path: RdmaPath) -> None:
        """Have the control thread connect. Lock held."""

    def note_key_used(self, local: IPAddress, port: int, key: int) -> None:
        """Note that a message to a mailbox names a key that its sender has used. Lock held."""

    def report_protocol_error(
        self, path: RdmaPath, link: Link, reason: str, wrong_key: bool
    ) -> None:
        """Have the control thread end a connection. An adapter's lock is held."""


class Acknowledgements:
    """When paths acknowledge what they have received; the lock of the cores is held."""

    def __init__(self, now_ns: Callable[[], int], wake: Callable[[], None]) -> None:
        self._now_ns = now_ns
        self._wake = wake
        self._times: dict[RdmaPath, int] = {}
        self._comes_ns: int | None = None  # when the control thread comes

    def plan(self, path: RdmaPath) -> None:
        """Have a path acknowledge after `ACK_DELAY_NS`, unless it does so before."""
        if path in self._times:
            return
        at_ns = self._now_ns() + ACK_DELAY_NS
        self._times[path] = at_ns
        if self._comes_ns is None or at_ns < self._comes_ns:
            self._comes_ns = at_ns
            self._wake()

    def take(self, now_ns: int) -> tuple[list[RdmaPath], int | None]:
        """Take the paths whose time has come; return also when the next one is due."""
        due = []
        # All wait equally long, so the first is due first.
        for path, at_ns in tuple(self._times.items()):
            if at_ns > now_ns:
                break
            due.append(path)
            del self._times[path]
        self._comes_ns = next(iter(self._times.values()), None)
        return due, self._comes_ns

    def forget(self, path: RdmaPath) -> None:
        """Forget a path that is closed."""
        self._times.pop(path, None)


class RdmaPath:
    """A `MessageTransport` over one RDMA connection, which comes and goes."""

    def __init__(
        self,
        node: Shared,
        local: IPAddress,
        key: PeerKey,
        *,
        limits: CoreLimits,
        sequence_first: int,
        may_answer_ping: bool,
    ) -> None:
        self.local = local
        self.peer = key.peer
        self.key = key
        self.name = PeerName(local, self.peer, key.tos)
        self.index = 0
        self.lock = CoreLock(node.lock)
        self.rdma_counters = node.counters
        self.outside = node.plane.external_path(
            local=local,
            peer=self.peer,
            tos=key.tos,
            message_bytes_max=min(limits.message_bytes_max, MAX_MESSAGE_BYTES),
            transport=self,
        )
        self.around = Surroundings(
            self.outside, partial(node.note_key_used, local), answers_pings=may_answer_ping
        )
        self.core = ConnectionCore(
            limits, node.message_counters, node.counters, self.around, sequence_first=sequence_first
        )
        self.core.outgoing.gatherer = self.outside
        self.mailboxes: set[Mailbox] = set()  # routed here; control lock
        self.link: Link | None = None
        self.failure = ""  # why the last attempt to connect failed
        self._node = node
        self._charges = Charges(self.outside, self.core.outgoing, messages_max=limits.messages_max)
        self._is_wanted = False
        self._acknowledges_unasked = False  # a urds node: it waits for what it sent last

    # -- as a `MessageTransport`; no lock held

    def send(
        self,
        sender: Mailbox,
        port: int,
        payload: Buffer,
        extension: bytes,
        operations: Sequence[Operation],
        *,
        may_wait: bool,
    ) -> Charge:
        """Charge a message and queue it; post it if there is a connection, else ask for one."""
        if self._node.is_inside():
            raise os_error(ErrorReason.REENTERED)
        with self.lock:
            try:
                charge = self._queue(sender, port, payload, extension, operations, may_wait)
            except BaseException as error:
                if "reason" not in error.__dict__:  # of a signal's handler, at any place
                    self._charges.refund_unqueued(sender)
                raise
            leaves = self.link is None or self.core.wants_work()
            if not leaves:
                self.core.update_gathering()
        if charge is Charge.QUEUED or charge is Charge.ASKS:
            self.push() if leaves else self._node.plane.finish_pass()
        return charge

    def _queue(
        self,
        sender: Mailbox,
        port: int,
        payload: Buffer,
        extension: bytes,
        operations: Sequence[Operation],
        may_wait: bool,
    ) -> Charge:
        """Charge and queue a message. Lock held."""
        try:
            charge = self.outside.charge(sender, port, len(payload), may_wait=may_wait)
        except OSError as refused:
            if getattr(refused, "reason", None) is ErrorReason.PEER_CONGESTED:
                self._want()
            raise
        if charge is Charge.CONGESTED:
            self._want()  # without a connection no map would ever clear it
        if charge is not Charge.QUEUED and charge is not Charge.ASKS:
            return charge
        self.core.outgoing.queue(
            sender,
            sender.port,
            port,
            payload,
            extension,
            operations,
            # A sender whose account is half full waits for acknowledgements soon. Source:
            # docs/reference/rds.md 1.6.
            ack_required=charge is Charge.ASKS,
        )
        self._charges.update_full()
        self._want()
        return charge

    def _want(self) -> None:
        """Ask the control plane for a connection, once per outage. Lock held."""
        if self.link is None and not self._is_wanted:
            self._is_wanted = True
            self.outside.set_connected(False)
            self._node.want(self)

    def want(self) -> None:
        """Ask the control plane for a connection, once per outage."""
        with self.lock:
            self._want()

    def cancel(self, mailbox: Mailbox, port: int | None) -> int:
        """Remove a mailbox's messages, to one port or all; return how many."""
        return self._take_out(mailbox, port, RdmaStatus.CANCELED)

    def give_up(self, mailbox: Mailbox) -> int:
        """Remove a mailbox's messages: their peer is absent too long; return how many."""
        return self._take_out(mailbox, None, RdmaStatus.DROPPED)

    def _take_out(self, mailbox: Mailbox, port: int | None, status: RdmaStatus) -> int:
        counters = self._node.message_counters
        with self.lock:
            count = self.core.cancel(mailbox, port, status)
            if status is RdmaStatus.CANCELED:
                counters.send_cancelled += count
            else:
                counters.send_given_up += count
            self._charges.refund_freed()
        self._node.plane.finish_pass()
        return count

    def end_linger(self, mailbox: Mailbox) -> tuple[int, int]:
        """Cancel what a closed mailbox has left; return how many were unsent, unacknowledged."""
        with self.lock:
            counts = self.core.outgoing.counts(mailbox)
            self._node.message_counters.send_linger_over += sum(counts)
        self.cancel(mailbox, None)
        return counts

    # -- work; no lock held

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
                self._finish(link)
        else:
            self._finish(None)
        self._node.plane.finish_pass()  # also without a link: a full account shows there

    def push_soon(self) -> None:
        """Have queued messages posted soon; waits for no lock."""
        link = self.link
        if link is not None:
            link.finish_soon()

    def resume(self) -> None:
        """Receive messages again."""
        with self.lock:  # a courier may have paused it
            self.around.is_paused = False
        link = self.link
        if link is not None:
            link.device.soon(link, link.resume)

    def send_map(self) -> None:
        """Send the local congestion map, which has changed."""
        courier = self.lock.courier
        if courier is not None and courier.send_map():
            return
        with self.lock:
            self.core.map_due = self.link is not None
        self.push_soon()

    def acknowledge(self) -> None:
        """Send an acknowledgement that found no message to ride on."""
        courier = self.lock.courier
        if courier is not None and courier.is_given:
            return  # it has its own time for this
        with self.lock:
            self.core.acknowledge()
        self.push()

    def end(self, until_ns: int) -> None:
        """Acknowledge what came in, let posted messages arrive, end the connection in order."""
        link = self.link
        if link is None:
            return
        adapter = link.device.adapter
        with adapter.lock:
            with self.lock:
                self.core.acknowledge()
            link.progress()
        left_ns = max(0, until_ns - self._node.now_ns())
        adapter.wait(lambda: link.is_over or link.is_idle(), left_ns)
        self.detach()

    def abandon_in_child(self) -> None:
        """Forget the connection: it is the parent's."""
        self.lock, self.link = CoreLock(self._node.lock), None

    # -- for links; their adapter's lock held

    def finish_pass(self) -> None:
        """Tell the plane what a pass of the device changed."""
        self._finish(self.link)
        self._node.plane.finish_pass()

    def _finish(self, link: Link | None) -> None:
        """Refund what is done, plan an acknowledgement, and hand over to a courier if there is one.

        The lock of a link's adapter is held.
        """
        with self.lock:
            self._charges.refund_freed()
            self.plan_acknowledgement()
            if link is not None and self.lock.courier is not None:
                link.give()

    def plan_acknowledgement(self) -> None:
        """Have what came in acknowledged soon; the lock of the cores is held."""
        if self.core.has_ack_pending and self._acknowledges_unasked:
            # The last messages of a burst ask for nothing.
            self._node.acknowledgements.plan(self)

    def count_up(self) -> None:
        """Take back what a courier has counted and numbered, so that the core's is current."""
        with self.lock:
            pass

    def is_useful(self) -> bool:
        """Tell whether a message has passed on the connection that there is."""
        with self.lock:
            return self.core.is_useful

    def handle_protocol_error(self, link: Link, reason: str, *, wrong_key: bool = False) -> None:
        """Have the control plane end the connection: the peer broke the protocol."""
        self._node.report_protocol_error(self, link, reason, wrong_key)

    # -- for the control plane

    def attach(self, link: Link, agreed: Attach) -> None:
        """Attach an established link: the map goes first, then retransmits, then new messages."""
        with link.device.adapter.lock:
            with self.lock:
                self.link = link
                self._acknowledges_unasked = agreed.is_urds_peer
                self.around.is_paused = self._is_wanted = False
                self.outside.set_connected(True)
                self.core.attach(
                    acknowledged=agreed.acknowledged,
                    credits=agreed.credits,
                    frame_format=agreed.frame_format,
                )
            link.attach(agreed.frame_format)

    def detach(self) -> None:
        """End the link, if there is one; unacknowledged messages will be retransmitted."""
        link = self.link
        if link is None:
            return
        with link.device.adapter.lock:
            link.close()
            with self.lock:
                self.link = None
                self.around.is_paused = self._is_wanted = False
                self.core.detach()
                self._charges.refund_freed()
                if self.core.outgoing.holds():
                    self._want()
        self._node.plane.finish_pass()

    def restart_peer(self) -> int:
        """Begin another generation of the peer; return how many messages the old one took along."""
        counters = self._node.message_counters
        with self.lock:
            count = self.core.restart_peer()
            counters.peer_restarted += 1
            counters.send_given_up += count
            self._charges.refund_freed()
        self._node.plane.finish_pass()
        return count

    def drop_queue(self) -> int:
        """Drop every message; each sender gets EHOSTUNREACH once."""
        with self.lock:
            count = self.core.drop_all()
            self._node.message_counters.send_given_up += count
            for owner in self.core.outgoing.freed:
                self.outside.fail(owner)
            self._is_wanted = False
            self._charges.refund_freed()
        self._node.plane.finish_pass()
        return count

    def holds_messages(self) -> bool:
        """Tell whether messages of sockets are queued or unacknowledged. No lock held."""
        with self.lock:
            return self.core.outgoing.holds()

    def activity(self) -> PathActivity:
        """Return how far the path is; what arrives is seen by numbers and acknowledgements."""
        with self.lock:
            outgoing, incoming = self.core.outgoing, self.core.incoming
            oldest = next((entry[0] for entry in outgoing.sent_entries()), None)
            acknowledged = outgoing.sequence_next if oldest is None else oldest
            received = incoming.sequence_expected + acknowledged
            return PathActivity(received, oldest, outgoing.sequence_next)

    # -- what tables show; no lock held

    def row(self) -> PathRow:
        """Describe the path for rds-info."""
        with self.lock:
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
        with self.lock:
            return self._rows(self.core.outgoing.unsent_entries())

    def sent_rows(self) -> list[MessageRow]:
        """List what was sent and is not acknowledged."""
        with self.lock:
            return self._rows(self.core.outgoing.sent_entries())

    def _rows(self, entries: Iterable[MessageEntry]) -> list[MessageRow]:
        local, peer, tos = self.local, self.peer, self.key.tos
        return [
            MessageRow(sequence, payload_bytes, local, source_port, peer, target_port, tos)
            for sequence, payload_bytes, source_port, target_port in islice(entries, _ROWS_MAX)
        ]
