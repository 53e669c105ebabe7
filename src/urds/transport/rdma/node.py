"""RDS over RDMA in one process: devices, local addresses, peers, and the turn of the control thread.

A node carries out what the endpoints decide, and tells them what the devices say. All of it runs in
the control thread, or with its lock held: callbacks of devices only put reports down and wake it.
Nothing waits here. Ports: RDMA-CM 18634 for IPv4, 16385 for IPv6; iWARP shares TCP's ports, where
16385 is RDS over TCP's, so it has 18634 for both.
Source: linux v6.12 net/rds/rdma_transport.c; rds.md 1.1, 4.1.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final

from urds.dataplane.base import Address, Mailbox, Wanted
from urds.errors import Refusal, os_error
from urds.proto.settings import EndpointSettings
from urds.transport.rdma import events
from urds.transport.rdma.core import CoreLimits
from urds.transport.rdma.counters import RdmaCounters
from urds.transport.rdma.device import RdmaDevice
from urds.transport.rdma.endpoint import RdmaEndpoint
from urds.transport.rdma.events import Failure, PeerKey
from urds.transport.rdma.link import Link
from urds.transport.rdma.path import RdmaPath
from urds.transport.rdma.regions import RegionTable
from urds.transport.rdma.settings import PeerSettings
from urds.transport.rdma.stats import RdmaStats
from urds.verbs.providers.base import (
    Connection,
    ConnectionEvent,
    ConnectionEventKind,
    Listener,
)

if TYPE_CHECKING:
    from urds.dataplane.reference.plane import Plane

PORT_V4: Final = 18634
PORT_V6: Final = 16385
_FAILURES: Final = {
    ConnectionEventKind.REJECTED: Failure.REJECTED,
    ConnectionEventKind.REFUSED: Failure.REFUSED,
    ConnectionEventKind.UNREACHABLE: Failure.UNREACHABLE,
}
_log = logging.getLogger("urds")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What all connections of a node share."""

    peer: PeerSettings
    core: CoreLimits = field(default_factory=CoreLimits)
    ping_enable: bool = True


@dataclass(slots=True, eq=False)
class RdmaHost:
    """One local address: its endpoint, its listeners, the paths to its peers."""

    address: Address
    endpoint: RdmaEndpoint
    paths: dict[PeerKey, RdmaPath] = field(default_factory=dict)
    listeners: list[tuple[RdmaDevice, Listener]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Attempt:
    """A link that is not attached yet, and where else its peer may be."""

    link: Link | None
    others: deque[RdmaDevice]


@dataclass(slots=True, eq=False)
class _Request:
    """A connect request that waits for the endpoint's answer."""

    device: RdmaDevice
    connection: Connection


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
    ) -> None:
        self.plane = plane
        self.devices = tuple(devices)
        self.counters = RdmaCounters()
        self.stats = RdmaStats()
        self.hosts: dict[Address, RdmaHost] = {}
        self.faults = 0
        self.on_fault: Callable[[], None] = _raise_again
        self.regions = RegionTable(lambda: self.devices, self._later)
        self._settings = settings
        self._random = random
        self._sequence_first = sequence_first
        self._now_ns = now_ns
        self._numbers = count(1)
        self._links: dict[int, _Attempt] = {}  # attached ones too
        self._requests: dict[int, _Request] = {}
        self._reports: deque[Callable[[], None]] = deque()
        self._paths: dict[RdmaPath, RdmaHost] = {}

    # -- addresses and routes

    def open(self, address: Address, settings: EndpointSettings) -> RdmaHost:
        """Listen at an address on all devices. Raises OSError: EADDRINUSE, EADDRNOTAVAIL."""
        host = self.hosts.get(address)
        if host is not None:
            return host
        host = RdmaHost(
            address,
            RdmaEndpoint(
                local=address,
                settings=settings,
                peer_settings=self._settings.peer,
                random=self._random,
                stats=self.stats,
                next_number=lambda: next(self._numbers),
                may_evict=lambda key: self._take_routes(address, key),
            ),
        )
        try:
            for device in self.devices:
                self._listen(host, device)
        except OSError as refused:
            self._stop_listening(host)
            if refused.errno == errno.EADDRINUSE:
                detail = f"another process is the RDMA host of {address}"
                raise os_error(Refusal.ADDRESS_IN_USE, detail) from refused
            raise os_error(Refusal.NOT_LOCAL, f"{address}: {refused}") from refused
        self.hosts[address] = host
        return host

    def _listen(self, host: RdmaHost, device: RdmaDevice) -> None:
        with device.adapter.lock:
            listener = device.listen(
                (str(host.address), port_of(host.address, device)),
                partial(self._handle_request, host, device),
            )
            host.listeners.append((device, listener))

    def _stop_listening(self, host: RdmaHost) -> None:
        for device, listener in host.listeners:
            with device.adapter.lock:
                listener.close()
        host.listeners.clear()

    def resolve(self, mailbox: Mailbox, peer: Address) -> RdmaPath:
        """Route a mailbox to a peer. Raises OSError: EACCES, EUSERS."""
        host = self.hosts[mailbox.local]
        tos = mailbox.settings.tos
        key = host.endpoint.key_for(peer, tos, self._now_ns())
        self._carry_out(host)  # an eviction for it is over before its peer can be resolved anew
        path = self._path(host, key)
        path.mailboxes.add(mailbox)  # type: ignore[arg-type]  # the plane's own, as in `route`
        mailbox.route(peer, path)
        return path

    def forget_mailbox(self, mailbox: Mailbox) -> None:
        """Drop a mailbox that is closed: its routes and its regions."""
        self.regions.free_all(mailbox)
        host = self.hosts.get(mailbox.local)
        for path in host.paths.values() if host is not None else ():
            path.mailboxes.discard(mailbox)

    def connected(self, mailbox: Mailbox, peer: Address) -> bool:
        """Tell whether there is a connection; if not, ask for one."""
        path = self.resolve(mailbox, peer)
        with self.plane.lock:
            if path.link is None:
                path.want()
        self.plane.deliver()
        return path.link is not None

    def _path(self, host: RdmaHost, key: PeerKey) -> RdmaPath:
        path = host.paths.get(key)
        if path is None:
            path = host.paths[key] = RdmaPath(
                self.plane,
                self.plane.host(host.address),
                key,
                limits=self._settings.core,
                counters=self.counters,
                sequence_first=self._sequence_first(),
                may_answer_ping=self._settings.ping_enable,
                on_key_used=self.regions.handle_key_used,
                on_wanted=lambda wanted: self.plane.emit(Wanted(wanted)),  # type: ignore[arg-type]  # a CarriedPath
                on_breach=self._report_breach,
            )
            self._paths[path] = host
            self.plane.add_carried(path)
        return path

    def _take_routes(self, address: Address, key: PeerKey) -> bool:
        """Take the routes to an idle peer away; false if a message came in for it before that."""
        path = self.hosts[address].paths.get(key)
        if path is None:
            return True
        if path.holds_messages():
            return False
        for mailbox in path.mailboxes:
            mailbox.route(key.peer, None)
        return not path.holds_messages()

    # -- what the plane and the devices say

    def owns(self, path: object) -> bool:
        """Tell whether a path is one of ours."""
        return path in self._paths

    def handle_wanted(self, path: RdmaPath) -> None:
        """Seek a connection: the first message was queued without one."""
        host = self._paths.get(path)
        if host is not None:
            host.endpoint.handle_wanted(path.key, self._now_ns())

    def _later(self, action: Callable[[], None]) -> None:
        """Have the control thread do something; plane's lock held, others perhaps."""
        self._reports.append(action)
        self.plane.interrupt()

    def _report(self, report: Callable[[], None]) -> None:
        """Have the control thread take a report; a device's lock held, the plane's not."""
        self._reports.append(report)
        self.plane.wake()

    def _handle_request(self, host: RdmaHost, device: RdmaDevice, event: ConnectionEvent) -> None:
        if event.kind is not ConnectionEventKind.REQUEST:
            return
        number = next(self._numbers)
        connection = event.connection
        self._requests[number] = _Request(device, connection)
        connection.on_event = lambda _end: self._report(
            lambda: self._forget_request(number, connection)
        )
        peer = ip_address(connection.peer[0])
        octets = event.parameters.private_data
        self._report(
            lambda: host.endpoint.handle_request(number, peer, octets, self._now_ns())
        )

    def _forget_request(self, number: int, connection: Connection) -> None:
        """Drop a request that went before it was answered."""
        request = self._requests.get(number)
        if request is not None and request.connection is connection:
            del self._requests[number]

    def _handle_event(
        self, host: RdmaHost, key: PeerKey, link: Link, event: ConnectionEvent
    ) -> None:
        """Take what a connection says; inside its device's call."""
        number, octets = link.number, event.parameters.private_data
        if event.kind is ConnectionEventKind.ESTABLISHED:
            link.is_established = True
            self._report(
                lambda: host.endpoint.handle_established(key, number, octets, self._now_ns())
            )
            return
        link.is_over = True
        if link.is_established:
            self._report(lambda: host.endpoint.handle_ended(key, number, self._now_ns()))
            return
        failure = _FAILURES.get(event.kind, Failure.ERROR)
        self._report(lambda: self._fail_attempt(host, key, number, failure, octets))

    def _fail_attempt(
        self, host: RdmaHost, key: PeerKey, number: int, failure: Failure, octets: bytes
    ) -> None:
        """Ask the next device after one where nobody listens, or report the failure."""
        attempt = self._links.get(number)
        if attempt is None:
            return
        if failure is Failure.REFUSED and attempt.others:
            self._close_link(attempt)
            self._ask(host, key, number, attempt)
            return
        self._drop_link(number)
        host.endpoint.handle_failed(key, number, failure, octets, self._now_ns())

    def _report_breach(self, path: RdmaPath, link: Link, reason: str) -> None:
        host = self._paths.get(path)
        if host is None:
            return
        _log.warning("connection of %s cut: %s", path.peer, reason)
        self._report(
            lambda: host.endpoint.handle_breach(path.key, link.number, self._now_ns())
        )

    # -- the turn of the control thread

    def turn(self, now_ns: int) -> int | None:
        """Take reports, run due timers, carry out actions; return when the next timer is due."""
        for _ in range(len(self._reports)):
            self._guarded(self._reports.popleft())
        deadlines = []
        for host in list(self.hosts.values()):
            due_ns = host.endpoint.poll_timeout()
            if due_ns is not None and due_ns <= now_ns:
                self._guarded(partial(host.endpoint.handle_timeout, now_ns))
            self._carry_out(host)
            deadlines.append(host.endpoint.poll_timeout())
        if self._reports:
            return now_ns
        return min((at_ns for at_ns in deadlines if at_ns is not None), default=None)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do something; an exception that nobody expected is the guard's of the control thread."""
        try:
            action()
        except Exception:  # noqa: BLE001 - see `on_fault`
            self.faults += 1
            self.on_fault()

    def _carry_out(self, host: RdmaHost) -> None:
        """Do what the endpoint decided; after a fault the peer's connection starts over."""
        faults = self.faults
        while (action := host.endpoint.poll_event()) is not None:
            self._guarded(partial(self._do, host, action))
            key = getattr(action, "key", None)
            if self.faults > faults and key is not None:
                faults = self.faults
                host.endpoint.handle_fault(key, self._now_ns())

    def _do(self, host: RdmaHost, action: events.Action) -> None:
        if isinstance(action, events.Connect):
            attempt = self._links[action.number] = _Attempt(None, deque(self.devices))
            self._ask(host, action.key, action.number, attempt)
        elif isinstance(action, events.Accept):
            self._accept(host, action.key, action.number)
        elif isinstance(action, events.Reject):
            self._reject(action.number, action.private_data)
        elif isinstance(action, events.Attach):
            self._attach(host, action)
        elif isinstance(action, events.Detach | events.Abandon):
            self._detach(host, action.key, action.number)
        else:
            self._note(host, action)

    def _ask(self, host: RdmaHost, key: PeerKey, number: int, attempt: _Attempt) -> None:
        """Ask a device to connect; one that cannot ask at all is passed over."""
        while attempt.others:
            device = attempt.others.popleft()
            with device.adapter.lock:
                try:
                    link = attempt.link = self._new_link(host, key, number, device)
                    link.connect(
                        (str(host.address), 0),
                        (str(key.peer), port_of(key.peer, device)),
                        self._offer(host, key),
                    )
                    return
                except OSError as problem:
                    _log.debug("%s cannot connect to %s: %s", device.name, key.peer, problem)
                    self._close_link(attempt)
        self._drop_link(number)
        host.endpoint.handle_failed(key, number, Failure.UNREACHABLE, b"", self._now_ns())

    def _accept(self, host: RdmaHost, key: PeerKey, number: int) -> None:
        request = self._requests.pop(number, None)
        attempt = self._links[number] = _Attempt(None, deque())
        problem = "the request was withdrawn"
        if request is not None:
            with request.device.adapter.lock:
                try:
                    link = attempt.link = self._new_link(host, key, number, request.device)
                    link.accept(request.connection, self._offer(host, key))
                    return
                except OSError as refused:
                    problem = str(refused)
                    request.connection.close()
        _log.debug("cannot accept %s: %s", key.peer, problem)
        self._drop_link(number)
        host.endpoint.handle_failed(key, number, Failure.ERROR, b"", self._now_ns())

    def _offer(self, host: RdmaHost, key: PeerKey) -> bytes:
        """Return our private data. Credits are granted for every receive that is posted."""
        core = self._path(host, key).core
        with self.plane.lock:
            credits = core.offer(self._settings.core.receive_ring)
            acknowledged = core.acknowledge_sequence
        return host.endpoint.offer(key, acknowledged=acknowledged, credits=credits)

    def _new_link(self, host: RdmaHost, key: PeerKey, number: int, device: RdmaDevice) -> Link:
        limits = self._settings.core
        link = Link(
            device,
            self._path(host, key),
            number,
            send_ring=limits.send_ring,
            receive_ring=limits.receive_ring,
        )
        link.on_event = partial(self._handle_event, host, key)
        return link

    def _reject(self, number: int, private_data: bytes) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            with request.device.adapter.lock:
                request.connection.reject(private_data)

    def _attach(self, host: RdmaHost, action: events.Attach) -> None:
        attempt = self._links.get(action.number)
        if attempt is not None and attempt.link is not None:
            self._path(host, action.key).attach(
                attempt.link,
                acknowledged=action.acknowledged,
                credits=action.credits,
                is_own=action.is_own,
            )

    def _detach(self, host: RdmaHost, key: PeerKey, number: int) -> None:
        """End a link, be it attached or not, or a request that nobody will answer."""
        request = self._requests.pop(number, None)
        if request is not None:
            with request.device.adapter.lock:
                request.connection.close()
        attempt = self._links.get(number)
        path = host.paths.get(key)
        if path is not None and attempt is not None and path.link is attempt.link:
            path.detach()
        self._drop_link(number)

    def _close_link(self, attempt: _Attempt) -> None:
        link, attempt.link = attempt.link, None
        if link is not None:
            with link.device.adapter.lock:
                link.close()

    def _drop_link(self, number: int) -> None:
        attempt = self._links.pop(number, None)
        if attempt is not None:
            self._close_link(attempt)

    def _note(self, host: RdmaHost, action: events.Action) -> None:
        """Do what concerns a path's queue, or log a notice."""
        if isinstance(action, events.RestartPeer):
            lost = self._path(host, action.key).restart_peer()
            if lost:
                _log.warning("%s restarted: %d messages went down with it", action.key.peer, lost)
        elif isinstance(action, events.GiveUp):
            dropped = self._path(host, action.key).drop_queue()
            seconds = action.down_ns / 1e9
            _log.warning(
                "%s unreachable for %.1f s: dropped %d messages", action.key.peer, seconds, dropped
            )
        elif isinstance(action, events.Forget):
            self._forget(host, action.key)
        elif isinstance(action, events.Refused):
            _log.warning("RDMA connection of %s refused: %s", action.peer, action.reason.name)
        elif isinstance(action, events.PeerKnown):
            kind = "urds" if action.is_own else "linux"
            _log.info("%s is %s over RDMA, version %s", action.key.peer, kind, action.version)

    def _forget(self, host: RdmaHost, key: PeerKey) -> None:
        path = host.paths.pop(key, None)
        if path is None:
            return
        for mailbox in path.mailboxes:
            mailbox.route(key.peer, None)
        path.detach()
        path.drop_queue()
        self.plane.remove_carried(path)
        del self._paths[path]

    # -- ends

    def break_connections(self) -> int:
        """End every connection of this process, as a fault would; return how many."""
        links = [path.link for path in self._paths if path.link is not None]
        for link in links:
            with link.device.adapter.lock:
                if link.connection is not None:
                    link.connection.disconnect()
        return len(links)

    def stop_listening(self) -> None:
        """Take no more requests."""
        for host in self.hosts.values():
            self._stop_listening(host)

    def close(self) -> None:
        """Close every link and device; the plane has ended its paths."""
        self.stop_listening()
        for number in list(self._links):
            self._drop_link(number)
        for device in self.devices:
            device.close()

    def abandon_in_child(self) -> None:
        """Leave everything to the parent; called in the child of a fork."""
        for device in self.devices:
            device.is_abandoned = True


def port_of(address: Address, device: RdmaDevice) -> int:
    """Return the port at which a node listens for RDMA connections to an address."""
    return PORT_V6 if address.version == 6 and device.provider != "tcp" else PORT_V4


def _raise_again() -> None:
    """Let a fault out where no guard was given."""
    raise  # noqa: PLE0704 - called in an `except`
