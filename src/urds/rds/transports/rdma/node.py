"""RDS over RDMA in one process: devices, local addresses, peers, and the control thread's pass.

A node does what the local addresses decide, and passes device reports to them. All of it runs in
the control thread, or with its lock held: callbacks of devices only queue reports and wake it. No
call waits here. What concerns a single connection is in `attempts`.

Locks, each taken inside the ones before: the control lock; an adapter's; `lock`, which guards the
cores of all paths and the counters; the plane's.
Source: linux v6.12 net/rds/rdma_transport.c; docs/reference/rds.md 4.1.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from urds.common.errors import ErrorReason, os_error
from urds.common.logs import LogQueue, messages
from urds.common.reentry import holder_test, new_lock
from urds.common.types import IPAddress
from urds.rds.control import rdma_events as events
from urds.rds.control.events import Action, Reason, Refused
from urds.rds.control.rdma_events import PeerKey
from urds.rds.control.rdma_local_address import RdmaLocalAddress
from urds.rds.control.settings import LocalAddressSettings, PeerSettings
from urds.rds.control.state import ConnectionReport
from urds.rds.control.stats import RdmaStats
from urds.rds.plane.contract import (
    Carrier,
    GiveUp,
    LingerOver,
    LocalMapChanged,
    Mailbox,
    OfTransport,
    PathRow,
    Plane,
    Resumed,
)
from urds.rds.plane.python.counters import Counters
from urds.rds.transports.peer_history import PeerEvent, PeerHistory, PeerName, Peers
from urds.rds.transports.rdma.attempts import Attempts, port_of
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.rds.transports.rdma.device import Confine, RdmaDevice, let_out
from urds.rds.transports.rdma.link import Link, receives_at_first
from urds.rds.transports.rdma.path import Acknowledgements, RdmaPath
from urds.rds.transports.rdma.regions import RegionTable
from urds.verbs.providers.base import Listener

_EVICTED_MAX: Final = 65_536  # of one address; beyond it the oldest is forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What all connections of a node share."""

    peer: PeerSettings
    core: CoreLimits = field(default_factory=CoreLimits)
    ping_enable: bool = True


@dataclass(slots=True, eq=False)
class RdmaHost:
    """One local address: its core, its listeners, the paths to its peers."""

    address: IPAddress
    endpoint: RdmaLocalAddress
    paths: dict[PeerKey, RdmaPath] = field(default_factory=dict)
    mailboxes: dict[int, Mailbox] = field(default_factory=dict)  # that send over RDMA, by port
    listeners: list[tuple[RdmaDevice, Listener]] = field(default_factory=list)
    # What was received of evicted peers, by their generation: they may send it again.
    evicted: dict[tuple[PeerKey, int], int] = field(default_factory=dict)


class RdmaNode:
    """All RDMA connections of a process; control lock held unless a method says otherwise."""

    def __init__(
        self,
        plane: Plane,
        devices: Sequence[RdmaDevice],
        *,
        settings: NodeSettings,
        random: Random,
        sequence_first: Callable[[], int],
        now_ns: Callable[[], int],
        log: LogQueue,
        on_event: Callable[[PeerEvent], None] = lambda event: None,
        on_attached: Callable[[RdmaPath, int], None] = lambda path, received: None,
        on_ended: Callable[[RdmaPath], object] = lambda path: None,
    ) -> None:
        self.plane = plane
        self.devices = tuple(devices)
        self.lock, self._holds_lock = new_lock()
        self.counters = RdmaCounters()
        self.message_counters = Counters()
        self.stats = RdmaStats()
        self.hosts: dict[IPAddress, RdmaHost] = {}
        self.confine: Confine = let_out
        self.log = log
        self.peers = Peers(log, Carrier.RDMA, now_ns=now_ns, on_event=on_event)
        self.on_attached = on_attached  # with the path's count of what it has received
        self.on_ended = on_ended  # about to be detached
        self.regions = RegionTable(lambda: self.devices, self._later, counters=self.counters)
        self.settings = settings
        self._random = random
        self._sequence_first = sequence_first
        self.now_ns = now_ns
        self._attempts = Attempts(self)
        self._reports: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        self._paths: dict[RdmaPath, RdmaHost] = {}
        self.acknowledgements = Acknowledgements(now_ns, plane.wake)

    def is_inside(self) -> bool:
        """Tell whether the calling thread holds a lock of a device, the cores or the regions."""
        return (
            self._holds_lock()
            or self.regions.is_inside()
            or any(holder_test(device.adapter.lock)() for device in self.devices)
        )

    # -- addresses and routes

    def open(self, address: IPAddress, settings: LocalAddressSettings) -> RdmaHost:
        """Listen at an address on all devices. Raises OSError: EADDRINUSE, EADDRNOTAVAIL."""
        host = self.hosts.get(address)
        if host is not None:
            return host
        host = RdmaHost(
            address,
            RdmaLocalAddress(
                local=address,
                settings=settings,
                peer_settings=self.settings.peer,
                random=self._random,
                stats=self.stats,
                next_number=self._attempts.next_number,
                may_evict=lambda key: self._take_routes(address, key),
            ),
        )
        try:
            for device in self.devices:
                self._listen(host, device)
        except OSError as refused:
            self._stop_listening(host)
            if refused.errno == errno.EADDRINUSE:
                detail = f"another process has {address} over RDMA: end it, or bind another address"
                raise os_error(ErrorReason.ADDRESS_IN_USE, detail) from refused
            raise os_error(ErrorReason.NOT_LOCAL, f"{address}: {refused}") from refused
        self.hosts[address] = host
        return host

    def _listen(self, host: RdmaHost, device: RdmaDevice) -> None:
        with device.adapter.lock:
            listener = device.listen(
                (str(host.address), port_of(host.address, device)),
                partial(self._attempts.handle_request, host, device),
            )
            host.listeners.append((device, listener))

    def _stop_listening(self, host: RdmaHost) -> None:
        for device, listener in host.listeners:
            with device.adapter.lock:
                listener.close()
        host.listeners.clear()

    def resolve(self, mailbox: Mailbox, peer: IPAddress) -> RdmaPath:
        """Route a mailbox to a peer. Raises OSError: EACCES, EUSERS."""
        host = self.hosts[mailbox.local]
        tos = mailbox.settings.tos
        key = host.endpoint.key_for(peer, tos, self.now_ns())
        self._carry_out(host)  # an eviction for it is over before its peer can be resolved anew
        path = self.path(host, key)
        path.mailboxes.add(mailbox)
        mailbox.route(peer, path.outside)
        return path

    def add_mailbox(self, mailbox: Mailbox) -> None:
        """Take a mailbox that sends over RDMA; its address is open."""
        self.hosts[mailbox.local].mailboxes[mailbox.port] = mailbox

    def forget_mailbox(self, mailbox: Mailbox) -> None:
        """Drop a mailbox that is closed, and its routes."""
        host = self.hosts.get(mailbox.local)
        if host is not None and host.mailboxes.get(mailbox.port) is mailbox:
            del host.mailboxes[mailbox.port]
        for path in host.paths.values() if host is not None else ():
            path.mailboxes.discard(mailbox)

    def connected(self, mailbox: Mailbox, peer: IPAddress) -> bool:
        """Tell whether there is a connection; if not, ask for one."""
        path = self.resolve(mailbox, peer)
        path.want()
        return path.link is not None

    def path(self, host: RdmaHost, key: PeerKey) -> RdmaPath:
        """Return the path to a peer; the first time it is made."""
        path = host.paths.get(key)
        if path is None:
            path = host.paths[key] = RdmaPath(
                self,
                host.address,
                key,
                limits=self.settings.core,
                sequence_first=self._sequence_first(),
                may_answer_ping=self.settings.ping_enable,
            )
            self._paths[path] = host
        return path

    def _take_routes(self, address: IPAddress, key: PeerKey) -> bool:
        """Remove the routes to an idle peer; false if a message for it was queued before that."""
        path = self.hosts[address].paths.get(key)
        if path is None:
            return True
        if path.holds_messages():
            return False
        for mailbox in path.mailboxes:
            mailbox.route(key.peer, None)
        if path.holds_messages():
            return False
        self._remember(self.hosts[address], path)
        return True

    def _remember(self, host: RdmaHost, path: RdmaPath) -> None:
        """Keep the number of a peer that is about to be evicted, if its generation is known."""
        peer = host.endpoint.find(path.key)
        if peer is None or peer.generation is None or not path.core.incoming.sequence_expected:
            return
        host.evicted[path.key, peer.generation] = path.core.incoming.sequence_expected
        if len(host.evicted) > _EVICTED_MAX:
            del host.evicted[next(iter(host.evicted))]

    def _recall(self, host: RdmaHost, key: PeerKey) -> None:
        """Expect what an evicted peer has not sent yet, now that it is known to be the same."""
        peer = host.endpoint.find(key)
        if peer is None or peer.generation is None:
            return
        sequence = host.evicted.pop((key, peer.generation), None)
        if sequence is not None:
            path = self.path(host, key)
            with self.lock:
                path.core.expect(sequence)

    # -- reports of the plane and the devices

    def take(self, event: OfTransport) -> LingerOver | None:
        """Do what the plane asks of a path; return what was cancelled of a closed mailbox."""
        if isinstance(event, LocalMapChanged):
            host = self.hosts.get(event.local)
            for path in host.paths.values() if host is not None else ():
                path.send_map()
            return None
        own = event.path.transport
        if not isinstance(own, RdmaPath) or own not in self._paths:
            return None
        if isinstance(event, Resumed):
            own.resume()
        elif isinstance(event, GiveUp):
            own.give_up(event.mailbox)
        else:
            unsent, unacknowledged = own.end_linger(event.mailbox)
            if unsent or unacknowledged:
                return LingerOver(event.path, unsent, unacknowledged)
        return None

    def want(self, path: RdmaPath) -> None:
        """Have the control thread connect; the lock of the cores may be held."""
        self.report(partial(self.handle_wanted, path))

    def note_key_used(self, local: IPAddress, port: int, key: int) -> None:
        """Note that a message to a mailbox names a key that its sender has used. Lock held."""
        host = self.hosts.get(local)
        owner = None if host is None else host.mailboxes.get(port)
        if owner is not None:
            self.regions.handle_key_used(owner, key)

    def handle_wanted(self, path: RdmaPath) -> None:
        """Reconnect: the first message was queued without a connection."""
        host = self._paths.get(path)
        if host is not None:
            with self.confine(partial(self._want_again, host, path.key)):
                host.endpoint.handle_wanted(path.key, self.now_ns())

    def _want_again(self, host: RdmaHost, key: PeerKey) -> None:
        """Start over after a fault; the report that messages wait comes only once."""
        self.start_over(host, key)
        host.endpoint.handle_wanted(key, self.now_ns())

    def _later(self, action: Callable[[], None]) -> None:
        """Have the control thread do something; locks of this node may be held."""
        self._reports.append((action, _nothing))
        self.plane.wake()

    def report(self, report: Callable[[], None], recover: Callable[[], None] | None = None) -> None:
        """Have the control thread take a report; locks of this node may be held.

        After a fault in it `recover` is called: the report is lost then.
        """
        self._reports.append((report, recover or _nothing))
        self.plane.wake()

    def report_protocol_error(
        self, path: RdmaPath, link: Link, reason: str, wrong_key: bool
    ) -> None:
        """Have a connection ended on which the peer broke the protocol."""
        host = self._paths.get(path)
        if host is None:
            return
        self.log.warning("RDMA connection of %s cut: %s", path.peer, reason)
        self.peers.expect_loss(path.name, f"protocol error of the peer: {reason}")
        self.report(
            lambda: host.endpoint.handle_protocol_error(
                path.key, link.number, self.now_ns(), wrong_key=wrong_key
            ),
            partial(self.start_over, host, path.key),
        )

    # -- the pass of the control thread

    def progress(self, now_ns: int) -> int | None:
        """Take reports, run due timers, do actions; return when the next timer is due."""
        for _ in range(len(self._reports)):
            report, recover = self._reports.popleft()
            with self.confine(recover):
                report()
        with self.lock:
            acknowledging, due_ns = self.acknowledgements.take(now_ns)
        for path in acknowledging:
            path.acknowledge()
        deadlines = [due_ns]
        for host in list(self.hosts.values()):
            due_ns = host.endpoint.poll_timeout()
            if due_ns is not None and due_ns <= now_ns:
                with self.confine(partial(self._recover_timer, host)):
                    host.endpoint.handle_timeout(now_ns)
            self._carry_out(host)
            deadlines.append(host.endpoint.poll_timeout())
        if self._reports:
            return now_ns
        return min((at_ns for at_ns in deadlines if at_ns is not None), default=None)

    def _carry_out(self, host: RdmaHost) -> None:
        """Do what the local address decided; after a fault in it the peer starts over."""
        while (action := host.endpoint.poll_event()) is not None:
            with self.confine(partial(self.start_over, host, getattr(action, "key", None))):
                self._do(host, action)

    def _recover_timer(self, host: RdmaHost) -> None:
        if host.endpoint.timed_key is not None:
            host.endpoint.handle_fault(host.endpoint.timed_key, self.now_ns())

    def start_over(self, host: RdmaHost, key: PeerKey | None) -> None:
        """Have a peer start over after a fault of this node."""
        if key is not None:
            host.endpoint.handle_fault(key, self.now_ns())

    def _do(self, host: RdmaHost, action: Action) -> None:
        if isinstance(action, events.Connect):
            self.peers.note_attempt(self.path(host, action.key).name, "connecting over RDMA to")
            self._attempts.connect(host, action.key, action.number)
        elif isinstance(action, events.Accept):
            self._attempts.accept(host, action.key, action.number)
        elif isinstance(action, events.Reject):
            self._attempts.reject(action.number, action.private_data)
        elif isinstance(action, events.Attach):
            # The end of a peer evicted since follows: its messages would not be remembered.
            peer = host.endpoint.find(action.key)
            if peer is not None and peer.number == action.number:
                self._recall(host, action.key)
                self._attempts.attach(host, action)
        elif isinstance(action, events.Detach | events.Abandon):
            self._attempts.end(host, action.key, action.number)
            if isinstance(action, events.Detach) and not action.key.passive:
                self.peers.note_lost(self.path(host, action.key).name, "it ended")
        elif isinstance(action, events.Forget):
            self._forget(host, action.key)
        else:
            _note(self, host, action)

    def failure(self, local: IPAddress, peer: IPAddress) -> str:
        """Return why the last attempt to connect to a peer failed, "" if it did not."""
        host = self.hosts.get(local)
        paths = host.paths if host is not None else {}
        return next((path.failure for key, path in paths.items() if key.peer == peer), "")

    def paths(self) -> list[RdmaPath]:
        """Return all paths."""
        return list(self._paths)

    def connected_paths(self) -> list[RdmaPath]:
        """Return the paths that have a connection."""
        return [path for path in self._paths if path.link is not None]

    def find(self, row: PathRow) -> tuple[ConnectionReport, PeerHistory, RdmaPath] | None:
        """Return what is known of the path of a row; None if it is gone."""
        host = self.hosts.get(row.local)
        if host is None or row.rdma is None:
            return None
        key = PeerKey(row.peer, row.tos, row.rdma.is_passive)
        peer, path = host.endpoint.find(key), host.paths.get(key)
        if peer is None or path is None:
            return None
        return peer.report(), self.peers.of(path.name), path

    def offer(self, host: RdmaHost, key: PeerKey) -> bytes:
        """Return this side's private data. Credits are granted for every receive that is posted."""
        core = self.path(host, key).core
        with self.lock:
            credits = core.offer(receives_at_first(self.settings.core.receive_ring))
            acknowledged = core.acknowledge_sequence
        return host.endpoint.offer(key, acknowledged=acknowledged, credits=credits)

    def _forget(self, host: RdmaHost, key: PeerKey) -> None:
        path = host.paths.pop(key, None)
        if path is None:
            return
        self.peers.forget(path.name)
        for mailbox in path.mailboxes:
            mailbox.route(key.peer, None)
        path.detach()
        path.drop_queue()
        path.outside.close()
        with self.lock:
            self.acknowledgements.forget(path)
        del self._paths[path]

    def count_up(self) -> None:
        """Count what compiled couriers have counted. No lock needed."""
        for path in tuple(self._paths):
            path.count_up()

    # -- ends

    def break_connections(self) -> int:
        """End every connection of this process, as a fault would; return how many."""
        links = [path.link for path in self._paths if path.link is not None]
        for link in links:
            with link.device.adapter.lock:
                if link.connection is not None:
                    link.connection.disconnect()
        return len(links)

    def end_connections(self, wait_ns: int) -> None:
        """Acknowledge what came in and end every connection in order, within one time for all.

        No lock held.
        """
        until_ns = self.now_ns() + wait_ns
        for path in list(self._paths):
            path.end(until_ns)

    def stop_listening(self) -> None:
        """Take no more requests."""
        for host in self.hosts.values():
            self._stop_listening(host)

    def close(self) -> None:
        """Close every link and device; the plane has ended its paths."""
        self.stop_listening()
        self._attempts.close()
        for device in self.devices:
            device.close()

    def abandon_in_child(self) -> None:
        """Leave everything to the parent; called in the child of a fork."""
        self.lock, self._holds_lock = new_lock()
        self.regions.abandon_in_child()
        for path in self._paths:
            path.abandon_in_child()
        for device in self.devices:
            device.is_abandoned = True


def _note(node: RdmaNode, host: RdmaHost, action: Action) -> None:
    """Do what concerns a path's queue, or log a notice."""
    if isinstance(action, events.RestartPeer):
        path = node.path(host, action.key)
        node.peers.note_restarted(path.name)
        lost = path.restart_peer()
        if lost:
            text = "%s restarted: %s sent to it may be lost"
            node.log.warning(text, action.key.peer, messages(lost))
    elif isinstance(action, events.GiveUp):
        dropped = node.path(host, action.key).drop_queue()
        seconds = action.down_ns / 1e9
        text = "%s unreachable for %.1f s: dropped %s that it has not acknowledged"
        node.log.warning(text, action.key.peer, seconds, messages(dropped))
        reason = f"unreachable for {seconds:.1f} s: {messages(dropped)} dropped"
        node.peers.note_given_up(node.path(host, action.key).name, reason)
    elif isinstance(action, Refused):
        hint = " (setting: URDS_ALLOW)" if action.reason is Reason.NOT_ALLOWED else ""
        reason = action.reason.name.lower().replace("_", " ") + hint
        if node.log.warning_once("RDMA connection of %s refused: %s", action.peer, reason):
            node.peers.note_refused(PeerName(host.address, action.peer), reason)
    elif isinstance(action, events.PeerKnown):
        kind = "urds" if action.is_urds_peer else "linux"
        node.log.info("%s is %s over RDMA, version %s", action.key.peer, kind, action.version)


def _nothing() -> None:
    """Recover from a report that failed: it concerned one connection, which will be missed."""
