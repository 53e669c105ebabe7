"""Connections between their first step and their end: attempts, requests, links.

A local address names a connection by a number. It is here from its `Connect`, or from the incoming
request, until the local address ends it. An attempt asks one device after the other, the next one
if the peer does not listen there. Control lock held; callbacks of devices only make reports.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from itertools import count
from typing import TYPE_CHECKING, Final

from urds.common.types import IPAddress
from urds.rds.constants import RDS_CM_PORT, RDS_PORT
from urds.rds.control import rdma_events as events
from urds.rds.control.rdma_events import Failure, PeerKey
from urds.rds.transports.rdma.device import RdmaDevice
from urds.rds.transports.rdma.link import Link
from urds.verbs.providers.base import ConnectionEventKind, VerbsConnection, VerbsConnectionEvent

if TYPE_CHECKING:
    from urds.rds.transports.rdma.node import RdmaHost, RdmaNode

_FAILURES: Final = {
    ConnectionEventKind.REJECTED: Failure.REJECTED,
    ConnectionEventKind.REFUSED: Failure.REFUSED,
    ConnectionEventKind.UNREACHABLE: Failure.UNREACHABLE,
}

_REASONS: Final = {
    Failure.REJECTED: "rejected by the peer: it may not allow this address (its setting allow)",
    Failure.REFUSED: "refused: no RDS over RDMA listens there",
    Failure.UNREACHABLE: "the peer cannot be reached by any device",
    Failure.ERROR: "the device failed",
}


@dataclass(slots=True, eq=False)
class _Attempt:
    """A link, attached or not, and the devices on which its peer was not tried yet."""

    link: Link | None
    others: deque[RdmaDevice]


@dataclass(slots=True, eq=False)
class _Request:
    """A connect request that waits for the local address's answer."""

    device: RdmaDevice
    connection: VerbsConnection


class Attempts:
    """All connections of a node, by number."""

    def __init__(self, node: RdmaNode) -> None:
        self._node = node
        self._numbers = count(1)
        self._attempts: dict[int, _Attempt] = {}
        self._requests: dict[int, _Request] = {}

    def next_number(self) -> int:
        """Return a number that no connection had."""
        return next(self._numbers)

    # -- requests

    def handle_request(
        self, host: RdmaHost, device: RdmaDevice, event: VerbsConnectionEvent
    ) -> None:
        """Note a connect request; inside its device's call, the control lock not held."""
        if event.kind is not ConnectionEventKind.REQUEST:
            return
        number, connection = self.next_number(), event.connection
        self._requests[number] = _Request(device, connection)
        connection.on_event = lambda _end: self._node.report(
            lambda: self._forget_request(number, connection)
        )
        peer = ip_address(connection.peer[0])
        data = event.parameters.private_data
        self._node.report(
            lambda: host.endpoint.handle_request(number, peer, data, self._node.now_ns())
        )

    def _forget_request(self, number: int, connection: VerbsConnection) -> None:
        """Drop a request that went before it was answered."""
        request = self._requests.get(number)
        if request is not None and request.connection is connection:
            del self._requests[number]

    def accept(self, host: RdmaHost, key: PeerKey, number: int) -> None:
        """Answer a request with a link."""
        request = self._requests.pop(number, None)
        attempt = self._attempts[number] = _Attempt(None, deque())
        problem = "the request was withdrawn"
        if request is not None:
            with request.device.adapter.lock:
                try:
                    link = attempt.link = self._new_link(host, key, number, request.device)
                    link.accept(request.connection, self._node.offer(host, key))
                    return
                except OSError as refused:
                    problem = str(refused)
                    request.connection.close()
        self._node.log.debug("cannot accept %s: %s", key.peer, problem)
        self._drop(number)
        self._report_failure(host, key, number, Failure.ERROR)

    def reject(self, number: int, private_data: bytes) -> None:
        """Reject a request."""
        request = self._requests.pop(number, None)
        if request is not None:
            with request.device.adapter.lock:
                try:
                    request.connection.reject(private_data)
                except OSError:  # it has ended; the report is on its way
                    request.connection.close()

    # -- attempts

    def connect(self, host: RdmaHost, key: PeerKey, number: int) -> None:
        """Begin to connect; the result is reported to the local address."""
        attempt = self._attempts[number] = _Attempt(None, deque(self._node.devices))
        self._ask(host, key, number, attempt)

    def _ask(self, host: RdmaHost, key: PeerKey, number: int, attempt: _Attempt) -> None:
        """Ask a device to connect; one that cannot ask at all is skipped."""
        while attempt.others:
            device = attempt.others.popleft()
            with device.adapter.lock:
                try:
                    link = attempt.link = self._new_link(host, key, number, device)
                    link.connect(
                        (str(host.address), 0),
                        (str(key.peer), port_of(key.peer, device)),
                        self._node.offer(host, key),
                    )
                    return
                except OSError as problem:
                    self._node.log.debug(
                        "%s cannot connect to %s: %s", device.name, key.peer, problem
                    )
                    self._close_link(attempt)
        self._drop(number)
        self._report_failure(host, key, number, Failure.UNREACHABLE)

    def _fail(self, host: RdmaHost, key: PeerKey, number: int, failure: Failure) -> None:
        """Ask the next device after one where the peer does not listen, or report the failure."""
        attempt = self._attempts.get(number)
        if attempt is None:
            return
        if failure is Failure.REFUSED and attempt.others:
            self._close_link(attempt)
            self._ask(host, key, number, attempt)
            return
        self._drop(number)
        self._report_failure(host, key, number, failure)

    def _report_failure(self, host: RdmaHost, key: PeerKey, number: int, failure: Failure) -> None:
        path = self._node.path(host, key)
        path.failure = failure.name.lower()
        self._node.peers.note_failed(path.name, 0, _REASONS[failure])
        host.endpoint.handle_failed(key, number, failure, self._node.now_ns())

    def _new_link(self, host: RdmaHost, key: PeerKey, number: int, device: RdmaDevice) -> Link:
        limits = self._node.settings.core
        link = Link(
            device,
            self._node.path(host, key),
            number,
            send_ring=limits.send_ring,
            receive_ring=limits.receive_ring,
        )
        link.on_event = partial(self._handle_event, host, key)
        return link

    def _handle_event(
        self, host: RdmaHost, key: PeerKey, link: Link, event: VerbsConnectionEvent
    ) -> None:
        """Handle an event of a connection; inside its device's call, the control lock not held."""
        node, endpoint = self._node, host.endpoint
        number = link.number
        recover = partial(node.start_over, host, key)
        if event.kind is ConnectionEventKind.ESTABLISHED:
            link.is_established = True
            data = event.parameters.private_data
            node.report(
                lambda: endpoint.handle_established(key, number, data, node.now_ns()), recover
            )
            return
        link.is_over = True
        if link.is_established:
            useful = link.path.is_useful()
            reason = f"{event.kind.name.lower().replace('_', ' ')} by the peer or its device"

            def end() -> None:
                node.peers.expect_loss(link.path.name, reason)
                endpoint.handle_ended(key, number, node.now_ns(), useful=useful)

            node.report(end, recover)
            return
        failure = _FAILURES.get(event.kind, Failure.ERROR)
        node.report(lambda: self._fail(host, key, number, failure), recover)

    # -- links

    def attach(self, host: RdmaHost, action: events.Attach) -> None:
        """Hand an established link to its path."""
        attempt = self._attempts.get(action.number)
        if attempt is not None and attempt.link is not None:
            path = self._node.path(host, action.key)
            if path.link is not None:  # a fault of this node has lost its end
                self.end(host, action.key, path.link.number)
            path.failure = ""
            self._node.on_attached(path, path.activity().received)
            if not action.key.passive:
                self._node.peers.note_attached(path.name)
                self._node.peers.note_up(path.name)
            path.attach(attempt.link, action)

    def end(self, host: RdmaHost, key: PeerKey, number: int) -> None:
        """End a link, attached or not, or a request that will not be answered."""
        request = self._requests.pop(number, None)
        if request is not None:
            with request.device.adapter.lock:
                request.connection.close()
        attempt = self._attempts.get(number)
        path = host.paths.get(key)
        if path is not None and attempt is not None and path.link is attempt.link:
            self._node.on_ended(path)
            path.detach()
        self._drop(number)

    def close(self) -> None:
        """End every link."""
        for number in list(self._attempts):
            self._drop(number)

    def _drop(self, number: int) -> None:
        attempt = self._attempts.pop(number, None)
        if attempt is not None:
            self._close_link(attempt)

    def _close_link(self, attempt: _Attempt) -> None:
        link, attempt.link = attempt.link, None
        if link is not None:
            with link.device.adapter.lock:
                link.close()


def port_of(address: IPAddress, device: RdmaDevice) -> int:
    """Return the port at which a node listens for RDMA connections to an address.

    iWARP shares TCP's ports, where 16385 is RDS over TCP's, so it has 18634 for IPv6 as well.
    Source: linux v6.12 net/rds/rdma_transport.c; docs/reference/rds.md 1.1.
    """
    return RDS_CM_PORT if address.version == 6 and device.provider != "tcp" else RDS_PORT
