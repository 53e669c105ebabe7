"""The path to one peer over RDMA: what a plane, a device and the control plane share.

The path joins three sides. Senders queue messages, which the plane charges; a link posts the core's
work and delivers what arrives, with its adapter's lock held; the control plane attaches and
detaches links. `lock`, one for all paths of a node, guards the cores: it is taken inside an
adapter's lock, and the plane's, which no call here needs, is taken inside it. `link` changes in
the control thread only, under the locks of the link's adapter and of the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Final, Protocol

from urds.common.errors import ErrorReason, os_error
from urds.rds.constants import MAX_MESSAGE_BYTES, RdmaStatus
from urds.rds.control.rdma_events import Attach, PeerKey
from urds.rds.plane.contract import (
    Buffer,
    Mailbox,
    Operation,
    PathActivity,
)
from urds.rds.plane.message_transport import Charge
from urds.rds.transports.peer_history import PeerName
from urds.rds.transports.rdma.core import ConnectionCore, CoreLimits
from urds.rds.transports.rdma.courier import CoreLock
from urds.rds.transports.rdma.path_rows import PathRows

if TYPE_CHECKING:
    from urds.common.types import IPAddress
    from urds.rds.plane.contract import Plane
    from urds.rds.plane.python.counters import Counters
    from urds.rds.transports.rdma.counters import RdmaCounters
    from urds.rds.transports.rdma.link import Link

_ACKNOWLEDGE_NS: Final = 1_000_000  # what an acknowledgement waits for a message to ride on


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

    def plan(self, path: RdmaPath, wait_ns: int) -> None:
        """Have a path acknowledge so much later, unless it does so before."""
        if path in self._times:
            return
        at_ns = self._now_ns() + wait_ns
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


class RdmaPath(PathRows):
    """A `MessageTransport` over one RDMA connection, which comes and goes."""

    core: ConnectionCore
    link: Link | None

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
        self.core = ConnectionCore(
            limits, node.message_counters, node.counters, self, sequence_first=sequence_first
        )
        self.outside = node.plane.external_path(
            local=local,
            peer=self.peer,
            tos=key.tos,
            message_bytes_max=min(limits.message_bytes_max, MAX_MESSAGE_BYTES),
            transport=self,
        )
        self.core.outgoing.gatherer = self.outside
        self.mailboxes: set[Mailbox] = set()  # routed here; control lock
        self.is_paused = False  # a mailbox is over its hard bound
        self.link: Link | None = None
        self.failure = ""  # why the last attempt to connect failed
        self._node = node
        self._full = False
        self._limits = limits
        self._may_answer_ping = may_answer_ping
        self._is_wanted = False
        self._acknowledges_unasked = False  # an own node: it waits for what it sent last

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
                    self._reconcile(sender)
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
        self._check_full()
        self._want()
        return charge

    def _reconcile(self, sender: Mailbox) -> None:
        """Refund what was charged and not queued: a signal's handler came between. Lock held."""
        messages, payload_bytes = self.outside.held(sender)
        for known, known_bytes in (
            self.core.outgoing.held(sender),
            self.core.outgoing.freed.get(sender, (0, 0)),
        ):
            messages, payload_bytes = messages - known, payload_bytes - known_bytes
        if messages:
            self.outside.refund(sender, messages=messages, payload_bytes=payload_bytes)

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
            self.finish_freed()
        self._node.plane.finish_pass()
        return count

    def end_linger(self, mailbox: Mailbox) -> tuple[int, int]:
        """Cancel what a closed mailbox has left; return how many were unsent, unacknowledged."""
        with self.lock:
            counts = self.core.outgoing.counts(mailbox)
            self._node.message_counters.send_linger_over += sum(counts)
        self.cancel(mailbox, None)
        return counts

    def _check_full(self) -> None:
        full = self.core.outgoing.message_count() >= self._limits.messages_max
        if full is not self._full:
            self._full = full
            self.outside.set_full(full)

    def finish_freed(self) -> None:
        """Refund freed messages to their owners, and report room on the path. Lock held."""
        freed = self.core.outgoing.freed
        while freed:
            owner, (messages, freed_bytes) = freed.popitem()
            self.outside.refund(owner, messages=messages, payload_bytes=freed_bytes)
        if self._full:
            self._check_full()

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
            self.is_paused = False
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
        if courier is not None and courier.acknowledge():
            return
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
        """Give back what is done, see to acknowledgements, and have a courier go on.

        The lock of a link's adapter is held.
        """
        with self.lock:
            self.finish_freed()
            if self.core.has_ack_pending and self._acknowledges_unasked:
                # The last messages of a burst ask for nothing.
                self._node.acknowledgements.plan(self, _ACKNOWLEDGE_NS)
            if link is not None and self.lock.courier is not None:
                link.give()

    def plan_acknowledgement(self) -> None:
        """Have what a courier has received acknowledged soon."""
        with self._node.lock:
            self._node.acknowledgements.plan(self, _ACKNOWLEDGE_NS)

    def count_up(self) -> None:
        """Have the core's numbers and counters as they are."""
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
                self.is_paused = self._is_wanted = False
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
                self.is_paused = self._is_wanted = False
                self.core.detach()
                self.finish_freed()
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
            self.finish_freed()
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
            self.finish_freed()
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

    # -- as the core's surroundings; the lock of the cores is held

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> None:
        """Put a whole message into its mailbox; one far over its buffer pauses the path."""
        if not self.outside.deliver(source_port, target_port, payload, extension):
            self.is_paused = True

    def take_map(self, data: bytes) -> None:
        """Put the peer's congestion map in force; monitors are told of cleared ports alone.

        Source: linux v6.12 net/rds/ib_recv.c (rds_ib_cong_recv); docs/reference/rds.md 3.7.
        """
        self.outside.take_peer_map(data)

    def map_bytes(self) -> bytes:
        """Return the local map as it is now."""
        return self.outside.local_map()

    def may_answer_ping(self, port: int) -> bool:
        """Tell whether a pong may be sent: this node answers pings, and the target has room."""
        return self._may_answer_ping and not self.outside.peer_is_congested(port)

    def key_used(self, target_port: int, key: int) -> None:
        """Note that the peer's operation has used a region of the socket that its message is for.

        Another socket's regions are not the peer's to use up. Source: linux v6.12 net/rds/rdma.c
        (rds_rdma_unuse).
        """
        self._node.note_key_used(self.local, target_port, key)

    def operation_ended(self, owner: Mailbox, operation: Operation) -> None:
        """Tell the sender how its operation ended."""
        owner.note_operation(operation)
