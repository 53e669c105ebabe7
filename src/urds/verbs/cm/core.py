"""Connections over a service that loses, repeats and reorders datagrams: the manager's core.

A value machine: calls, octets and `now_ns` go in; octets to a route and events come out. It knows
no queue pair, only the numbers that the two sides tell each other.

    requester                    listener
    connect  -> REQ  ----------> REQUEST to the owner
                     <---------- MRA, to a repeated REQ while the owner thinks
    ESTABLISHED      <---------- REP  <- accept        (or REJ <- reject)
             -> RTU  ----------> ESTABLISHED           (data does the same: an RTU may be lost)
    either:  -> DREQ ----------> DISCONNECTED
    DISCONNECTED     <---------- DREP

What waits for an answer is sent again, at doubling intervals and a bounded number of times, so
every message may come twice: a REQ that was answered gets its answer again, a REP another RTU, a
DREQ of an unknown connection a DREP. Answers to strangers are never longer than the question
and cost no memory. A datagram space knows SIDR_REQ and SIDR_REP alone: the connection is over for
the core once it is established.

Source: verbs-and-roce.md 14.3 for behaviour; where we leave it, the comment says so.
"""

import errno
from collections.abc import KeysView
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any

from urds.errors import WireError
from urds.verbs.cm.exchange import Exchange, check_private_data
from urds.verbs.cm.messages import Message, MessageKind, Offer, Reason
from urds.verbs.cm.records import (
    Address,
    CmConnection,
    CmEvent,
    CmEventKind,
    CmListener,
    CmState,
    Route,
)


class CmCore(Exchange):
    """All connections of one opening of a device."""

    # -- calls of the owner

    def listen(self, *, local: Address, space: int, backlog: int, owner: Any = None) -> CmListener:
        """Listen at an address of `space`. Raises OSError: EADDRINUSE."""
        key = (space, *local)
        if key in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{local[0]} port {local[1]} has a listener")
        listener = CmListener(space, *local, backlog=max(1, backlog), owner=owner)
        self._listeners[key] = listener
        return listener

    def unlisten(self, listener: CmListener) -> None:
        """Refuse requests from now on; those that the owner has stay valid."""
        self._listeners.pop((listener.space, listener.host, listener.port), None)

    def connect(
        self,
        *,
        route: Route,
        space: int,
        local: Address,
        peer: Address,
        request: Message,
        now_ns: int,
        give_up_ns: int | None = None,
        owner: Any = None,
    ) -> CmConnection:
        """Ask for a connection; `request` holds addresses, offer and private data.

        `give_up_ns` is a time of the clock, beside the bounded tries. Raises OSError ENOMEM for
        private data over the limit or too many connections.
        """
        check_private_data(request.private_data)
        if len(self._connections) >= self.settings.connections_max:
            raise OSError(
                errno.ENOMEM, f"{len(self._connections)} connections, as many as there may be"
            )
        connection = CmConnection(
            self._new_id(), route, space, True, local, peer, CmState.REQUEST_SENT, request.offer
        )
        connection.owner, connection.give_up_ns = owner, give_up_ns
        kind = MessageKind.SIDR_REQ if connection.is_datagram else MessageKind.REQ
        connection.octets = Message(
            kind=kind,
            opening=self.opening,
            local_id=connection.local_id,
            space=space,
            source=request.source,
            source_port=request.source_port,
            target=request.target,
            target_port=request.target_port,
            offer=request.offer,
            private_data=request.private_data,
        ).emit()
        self._add(connection)
        self.stats.requests_sent += 1
        self._repeat(connection, now_ns)
        return connection

    def accept(
        self, connection: CmConnection, *, offer: Offer, private_data: bytes, now_ns: int
    ) -> None:
        """Answer a request. Raises OSError: EINVAL if it waits for none, ENOMEM as `connect`."""
        check_private_data(private_data)
        if connection.state is not CmState.REQUESTED:
            raise OSError(errno.EINVAL, f"accept of a connection {connection.state.name}")
        self._answered(connection)
        connection.offer = offer
        kind = MessageKind.SIDR_REP if connection.is_datagram else MessageKind.REP
        reply = self._message(connection, kind, offer=offer, private_data=private_data)
        connection.octets = reply.emit()
        if connection.is_datagram:
            # Nobody confirms it: a repeated request gets the answer from what is remembered.
            self._put(connection, connection.octets)
            self._remember(connection, connection.octets)
            self._establish(connection, None, now_ns)
            return
        connection.state, connection.tries = CmState.REPLY_SENT, 0
        self._repeat(connection, now_ns)

    def reject(self, connection: CmConnection, *, private_data: bytes = b"") -> None:
        """Refuse a request; no event follows. Raises OSError as `accept`."""
        check_private_data(private_data)
        if connection.state is not CmState.REQUESTED:
            raise OSError(errno.EINVAL, f"reject of a connection {connection.state.name}")
        self._turn_down(connection, Reason.CONSUMER, private_data)

    def disconnect(self, connection: CmConnection, *, now_ns: int) -> None:
        """End a connection in order; DISCONNECTED follows, or ERROR where none was yet."""
        if connection.state is CmState.REQUESTED:
            self._turn_down(connection, Reason.CONSUMER)
        elif connection.state is CmState.REQUEST_SENT:
            self._cancel(connection, CmEventKind.ERROR, "given up here")
        elif connection.state in (CmState.REPLY_SENT, CmState.ESTABLISHED):
            self._leave(connection, Reason.NONE, now_ns)

    def fail(self, connection: CmConnection, *, reason: str, now_ns: int) -> None:
        """Break a connection whose queue pair failed: BROKEN here at once, there soon.

        The peer hears of it a little later, so that the queue pair's last answer, which says why,
        is there first.
        """
        if connection.state in (CmState.REPLY_SENT, CmState.ESTABLISHED):
            self.stats.broken += 1
            self._tell(connection, CmEventKind.BROKEN, reason=reason)
            connection.is_silent = True
            self._leave(connection, Reason.BROKEN, now_ns, self.settings.error_grace_ns)

    def forget(self, connection: CmConnection, *, now_ns: int) -> None:
        """Give no more events of a connection, and end it if it lives.

        A request that is forgotten was not rejected by anybody: its sender finds nobody here.
        """
        connection.is_silent, connection.owner = True, None
        if connection.state is CmState.REQUESTED:
            self._turn_down(connection, Reason.INVALID_SERVICE)
        else:
            self.disconnect(connection, now_ns=now_ns)

    def close(self) -> None:
        """Say goodbye to everybody once and forget everything."""
        for connection in list(self._connections.values()):
            if connection.state is CmState.REQUEST_SENT:
                self._put_rejection(connection, Reason.TIMEOUT)
            elif connection.state is CmState.REQUESTED:
                self._put_rejection(connection, Reason.INVALID_SERVICE)
            else:
                self._put(connection, self._message(connection, MessageKind.DREQ).emit())
            connection.is_silent = True
            self._drop(connection)
        self._listeners.clear()
        self._events.clear()

    # -- hints of the driver

    def handle_data(self, connection: CmConnection, now_ns: int) -> bool:
        """Note that a packet for the queue pair arrived from its route; true: it establishes."""
        if connection.life is not None:
            connection.life.heard_ns, connection.life.is_hasty = now_ns, False
        elif connection.state is CmState.REPLY_SENT:
            self.stats.established_by_data += 1
            self._establish(connection, None, now_ns)
            return True
        return False

    def handle_unreachable(self, route: Route, now_ns: int) -> None:
        """Note that a host says nobody is at a route: refuse requests, doubt connections."""
        for connection in self._of(route):
            if connection.state is CmState.REQUEST_SENT:
                self._end(connection, CmEventKind.REFUSED, reason="nobody is there")
            elif connection.state is CmState.LEAVING:
                self._end(connection, CmEventKind.DISCONNECTED, reason="peer is gone")
        self._peers.handle_doubt(route, now_ns)

    def handle_route_lost(self, route: Route) -> None:
        """End all connections of a route: the link knows that the peer is gone."""
        for connection in self._of(route):
            self._lose(connection, "peer is gone")

    def routes(self) -> KeysView[Route]:
        """Return the routes that connections use."""
        return self._routes.keys()

    def _of(self, route: Route) -> list[CmConnection]:
        if route not in self._routes:
            return []
        return [each for each in self._connections.values() if each.route == route]

    # -- the five calls

    def receive_data(
        self,
        octets: bytes,
        *,
        source: Route,
        local: Address | None = None,
        peer: Address | None = None,
        now_ns: int,
    ) -> None:
        """Take one message from the route `source`.

        `local` and `peer` are the addresses at which and from which it arrived, where the
        provider knows: they count more than what the requester believes, for there may be a
        relay between. None: as a request says.
        """
        try:
            message = Message.parse(octets)
        except WireError:
            self.stats.dropped_malformed += 1
            return
        for connection in self._peers.handle_message(message, source, now_ns):
            self._lose(connection, "peer was started anew")
        kind = message.kind
        if kind in (MessageKind.REQ, MessageKind.SIDR_REQ):
            self._receive_request(
                message,
                source,
                local or (_host(message.target), message.target_port),
                peer or (_host(message.source), message.source_port),
                now_ns,
            )
        elif kind not in (MessageKind.ALIVE, MessageKind.ALIVE_ANSWER):
            known = self._find(message, source)
            if known is None:
                self._answer_unknown(message, source)
            else:
                self._receive_known(known, message, now_ns)

    def handle_timeout(self, now_ns: int) -> None:
        """Do what is due."""
        while (local_id := self._deadlines.pop_due(now_ns)) is not None:
            self._handle_due(self._connections[local_id], now_ns)
        while (key := self._peer_deadlines.pop_due(now_ns)) is not None:
            for connection in self._peers.handle_due(key, now_ns):
                # It may live after all, behind a bad path: then it has to hear of this.
                self.fail(connection, reason="peer does not answer", now_ns=now_ns)

    def poll_timeout(self) -> int | None:
        """Return the next deadline, None if nothing waits."""
        first_ns, second_ns = self._deadlines.next_ns(), self._peer_deadlines.next_ns()
        if first_ns is None or (second_ns is not None and second_ns < first_ns):
            return second_ns
        return first_ns

    @property
    def has_news(self) -> bool:
        """Return whether a message or an event waits to be polled."""
        return bool(self._outgoing or self._events)

    def poll_transmit(self) -> tuple[Route, bytes] | None:
        """Return the next message and where it goes."""
        return self._outgoing.popleft() if self._outgoing else None

    def poll_event(self) -> CmEvent | None:
        """Return the next event."""
        return self._events.popleft() if self._events else None


@lru_cache(1024)
def _host(octets: bytes) -> str:
    address = IPv6Address(octets)
    return str(address.ipv4_mapped or address)
