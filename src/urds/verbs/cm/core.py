"""The connection manager's core: connections over datagrams that are lost, repeated and reordered.

A value machine: calls, bytes and `now_ns` go in; bytes to a route and events come out. It knows
no queue pair, only the numbers that the two sides exchange.

    requester                    listener
    connect  -> REQ  ----------> REQUEST to the owner
                     <---------- MRA, to a repeated REQ before the owner has answered
    ESTABLISHED      <---------- REP  <- accept        (or REJ <- reject)
             -> RTU  ----------> ESTABLISHED           (data does the same: an RTU may be lost)
    either:  -> DREQ ----------> DISCONNECTED
    DISCONNECTED     <---------- DREP

Messages that wait for an answer are retried, at doubling intervals and a bounded number of times,
so every message may come twice: a REQ that was answered gets its answer again, a REP another RTU,
a DREQ of an unknown connection a DREP. Answers to unknown senders are never longer than the request
and cost no memory. A datagram space uses SIDR_REQ and SIDR_REP alone: the core forgets the
connection once it is established.

Source: docs/reference/verbs-and-roce.md 14.3 for behaviour; comments name the differences.
"""

import errno
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, KeysView
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any, Final

from urds.common.errors import WireError
from urds.common.timers import Deadlines
from urds.common.types import HostPort
from urds.verbs.cm.messages import (
    CONTEXT_GUID_BYTES,
    NAMES_CONTEXT,
    PRIVATE_DATA_BYTES_MAX,
    CmMessage,
    CmMessageKind,
    Offer,
    RejectReason,
)
from urds.verbs.cm.records import (
    CmConnection,
    CmEvent,
    CmEventKind,
    CmListener,
    CmSettings,
    CmState,
    CmStats,
    PeerMonitor,
    Route,
)

if TYPE_CHECKING:
    from random import Random

_ANY_HOSTS: Final = ("0.0.0.0", "::")
_END_OF_REASON: Final = {
    RejectReason.CONSUMER: CmEventKind.REJECTED,
    RejectReason.INVALID_SERVICE: CmEventKind.REFUSED,
    RejectReason.NO_RESOURCES: CmEventKind.REFUSED,
}
_END_OF_LOSS: Final = {
    CmState.ESTABLISHED: CmEventKind.BROKEN,
    CmState.DREQ_SENT: CmEventKind.DISCONNECTED,
}
_REPEATED: Final = (CmState.REQ_SENT, CmState.REP_SENT, CmState.DREQ_SENT)
RequestKey = tuple[Hashable, int]  # the requester's device context, or its route, and its id
QueuePairKey = tuple[bytes, int]  # a device context and a queue pair of it


def check_private_data(data: bytes) -> None:
    """Raise OSError ENOMEM for private data over the limit."""
    if len(data) > PRIVATE_DATA_BYTES_MAX:
        raise OSError(
            errno.ENOMEM,
            f"private data of {len(data)} bytes, limit {PRIVATE_DATA_BYTES_MAX}",
        )


def _check_answer(call: str, connection: CmConnection, private_data: bytes) -> None:
    check_private_data(private_data)
    if connection.state is not CmState.REQUESTED:
        raise OSError(errno.EINVAL, f"{call} of a connection {connection.state.name}")


class CmCore:
    """All connections of one device context."""

    def __init__(self, *, random: "Random", settings: CmSettings | None = None) -> None:
        self.settings = settings or CmSettings()
        self.stats = CmStats()
        # A number of its own for each context, as a node GUID tells adapters apart; a process
        # that is started anew is another one.
        self.context_guid = random.randbytes(CONTEXT_GUID_BYTES)
        self._random = random
        self._outgoing: deque[tuple[Route, bytes]] = deque()
        self._events: deque[CmEvent] = deque()
        self._listeners: dict[tuple[int, str, int], CmListener] = {}
        self._connections: dict[int, CmConnection] = {}
        self._routes: Counter[Route] = Counter()  # connections per route
        self._requests: dict[RequestKey, CmConnection] = {}
        self._queue_pairs: dict[QueuePairKey, CmConnection] = {}
        # Answers to requests that are over; empty: none is due. A late duplicate of a request
        # must not become a new connection, and a lost refusal has to be said again.
        self._past: OrderedDict[RequestKey, bytes] = OrderedDict()
        self._pending = 0
        self._deadlines: Deadlines[int] = Deadlines()
        self._peers = PeerMonitor(self.context_guid, self.settings, self.stats, random, self._put)

    # -- calls of the owner

    def listen(self, *, local: HostPort, space: int, backlog: int, owner: Any = None) -> CmListener:
        """Listen at an address of `space`. Raises OSError: EADDRINUSE."""
        key = (space, *local)
        if key in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{local[0]} port {local[1]} has a listener")
        listener = CmListener(space, *local, backlog=max(1, backlog), owner=owner)
        self._listeners[key] = listener
        return listener

    def unlisten(self, listener: CmListener) -> None:
        """Reject requests from now on; those that the owner has stay valid."""
        self._listeners.pop((listener.space, listener.host, listener.port), None)

    def connect(
        self,
        *,
        route: Route,
        space: int,
        local: HostPort,
        peer: HostPort,
        request: CmMessage,
        now_ns: int,
        give_up_ns: int | None = None,
        owner: Any = None,
    ) -> CmConnection:
        """Request a connection; `request` holds addresses, offer and private data.

        `give_up_ns` is a time of the clock, in addition to the bounded tries. Raises OSError ENOMEM
        for private data over the limit or too many connections.
        """
        check_private_data(request.private_data)
        if len(self._connections) >= self.settings.connections_max:
            raise OSError(
                errno.ENOMEM, f"{len(self._connections)} connections, as many as there may be"
            )
        connection = CmConnection(
            self._new_id(), route, space, True, local, peer, CmState.REQ_SENT, request.offer
        )
        connection.owner, connection.give_up_ns = owner, give_up_ns
        kind = CmMessageKind.SIDR_REQ if connection.is_datagram else CmMessageKind.REQ
        local_id, guid = connection.local_id, self.context_guid
        message = replace(request, kind=kind, context_guid=guid, local_id=local_id, space=space)
        connection.data = message.emit()
        self._add(connection)
        self.stats.requests_sent += 1
        self._send_with_retry(connection, now_ns)
        return connection

    def accept(
        self, connection: CmConnection, *, offer: Offer, private_data: bytes, now_ns: int
    ) -> None:
        """Answer a request. Raises OSError: EINVAL if none is pending, ENOMEM as `connect`."""
        _check_answer("accept", connection, private_data)
        self._answered(connection)
        connection.offer = offer
        kind = CmMessageKind.SIDR_REP if connection.is_datagram else CmMessageKind.REP
        connection.data = self._message(connection, kind, offer=offer, private_data=private_data)
        if connection.is_datagram:
            # There is no confirmation: a duplicate request gets the remembered answer.
            self._put(connection.route, connection.data)
            self._remember(connection, connection.data)
            self._establish(connection, None, now_ns)
            return
        connection.state, connection.tries = CmState.REP_SENT, 0
        self._send_with_retry(connection, now_ns)

    def reject(self, connection: CmConnection, *, private_data: bytes = b"") -> None:
        """Reject a request; no event follows. Raises OSError as `accept`."""
        _check_answer("reject", connection, private_data)
        self._reject_request(connection, RejectReason.CONSUMER, private_data)

    def disconnect(self, connection: CmConnection, *, now_ns: int) -> None:
        """End a connection; DISCONNECTED follows, or ERROR where none was established yet."""
        if connection.state is CmState.REQUESTED:
            self._reject_request(connection, RejectReason.CONSUMER)
        elif connection.state is CmState.REQ_SENT:
            self._cancel(connection, CmEventKind.ERROR, "given up here")
        elif connection.state in (CmState.REP_SENT, CmState.ESTABLISHED):
            self._leave(connection, RejectReason.NONE, now_ns)

    def fail(self, connection: CmConnection, *, reason: str, now_ns: int) -> None:
        """Break a connection whose queue pair failed: BROKEN here at once, at the peer soon.

        The peer is told a little later, so that the queue pair's last answer, with the reason,
        arrives first.
        """
        if connection.state in (CmState.REP_SENT, CmState.ESTABLISHED):
            self.stats.broken += 1
            self._tell(connection, CmEventKind.BROKEN, reason=reason)
            connection.is_silent = True
            self._leave(connection, RejectReason.BROKEN, now_ns, self.settings.error_grace_ns)

    def forget(self, connection: CmConnection, *, now_ns: int) -> None:
        """Emit no more events of a connection, and end it.

        A request that is forgotten was not rejected by the application: its sender gets
        INVALID_SERVICE.
        """
        connection.is_silent, connection.owner = True, None
        if connection.state is CmState.REQUESTED:
            self._reject_request(connection, RejectReason.INVALID_SERVICE)
        else:
            self.disconnect(connection, now_ns=now_ns)

    def close(self) -> None:
        """Disconnect every peer once and forget everything."""
        for connection in list(self._connections.values()):
            if connection.state is CmState.REQ_SENT:
                self._say(connection, CmMessageKind.REJ, reason=RejectReason.TIMEOUT)
            elif connection.state is CmState.REQUESTED:
                self._say(connection, CmMessageKind.REJ, reason=RejectReason.INVALID_SERVICE)
            else:
                self._say(connection, CmMessageKind.DREQ)
            connection.is_silent = True
            self._drop(connection)
        self._listeners.clear()
        self._events.clear()

    # -- hints of the driver

    def handle_data(self, connection: CmConnection, now_ns: int) -> bool:
        """Record that a packet for the queue pair came from its route; true: it establishes."""
        if connection.monitored_peer is not None:
            connection.monitored_peer.heard_ns, connection.monitored_peer.is_suspect = now_ns, False
        elif connection.state is CmState.REP_SENT:
            self.stats.established_by_data += 1
            self._establish(connection, None, now_ns)
            return True
        return False

    def handle_unreachable(self, route: Route, now_ns: int) -> None:
        """Handle a host's report that a port is closed: fail requests, check connections."""
        for connection in self._of(route):
            if connection.state is CmState.REQ_SENT:
                self._end(connection, CmEventKind.REFUSED, reason="no listener there")
            elif connection.state is CmState.DREQ_SENT:
                self._end(connection, CmEventKind.DISCONNECTED, reason="peer is gone")
        self._peers.handle_suspicion(route, now_ns)

    def handle_route_lost(self, route: Route) -> None:
        """End all connections of a route: the link reports that the peer is gone."""
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
        data: bytes,
        *,
        source: Route,
        local: HostPort | None = None,
        peer: HostPort | None = None,
        now_ns: int,
    ) -> None:
        """Process one message from the route `source`.

        `local` and `peer` are the addresses at which and from which it arrived, if the provider
        knows them: they override those in the request, for there may be a relay between.
        """
        try:
            message = CmMessage.parse(data)
        except WireError:
            self.stats.dropped_malformed += 1
            return
        if not self.settings.names_context and message.kind not in NAMES_CONTEXT:
            message = replace(message, context_guid=b"")
        for connection in self._peers.handle_message(message, source, now_ns):
            self._lose(connection, "peer was started anew")
        kind = message.kind
        if kind in (CmMessageKind.REQ, CmMessageKind.SIDR_REQ):
            self._receive_request(
                message,
                source,
                local or (_host(message.target), message.target_port),
                peer or (_host(message.source), message.source_port),
                now_ns,
            )
        elif kind not in (CmMessageKind.ALIVE, CmMessageKind.ALIVE_ANSWER):
            known = self._find(message, source)
            if known is None:
                self._answer_unknown(message, source)
            else:
                self._receive_known(known, message, now_ns)

    def handle_timeout(self, now_ns: int) -> None:
        """Run the timers that are due."""
        while (local_id := self._deadlines.pop_due(now_ns)) is not None:
            self._handle_due(self._connections[local_id], now_ns)
        while (key := self._peers.deadlines.pop_due(now_ns)) is not None:
            for connection in self._peers.handle_due(key, now_ns):
                # It may still run, behind a bad path: then it has to be told.
                self.fail(connection, reason="peer does not answer", now_ns=now_ns)

    def poll_timeout(self) -> int | None:
        """Return the next deadline, None if nothing waits."""
        first_ns, second_ns = self._deadlines.next_ns(), self._peers.deadlines.next_ns()
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

    # -- messages

    def _receive_request(
        self, message: CmMessage, route: Route, local: HostPort, peer: HostPort, now_ns: int
    ) -> None:
        key = _request_key(message, route, self.settings)
        known = self._requests.get(key)
        if known is not None or key in self._past:
            self.stats.requests_duplicate += 1
            self._answer_again(message, route, known)
            return
        listener = self._listener(message.space, local)
        reject_reason = self._reject_reason(listener)
        if listener is None or reject_reason is not RejectReason.NONE:
            self._answer_unconnected(message, route, CmMessageKind.REJ, reject_reason)
            return
        self.stats.requests_received += 1
        self._replace_stale(message, route)
        connection = CmConnection(
            local_id=self._new_id(),
            route=route,
            space=message.space,
            is_requester=False,
            local=local,
            peer=peer,
            state=CmState.REQUESTED,
            peer_offer=message.offer,
            remote_id=message.local_id,
            context_guid=message.context_guid,
            requester=key[0],
            listener=listener,
            owner=listener.owner,
        )
        self._add(connection)
        self._requests[key] = connection
        if not connection.is_datagram:
            self._queue_pairs[message.context_guid, message.offer.qpn] = connection
        listener.pending += 1
        self._pending += 1
        self._deadlines.set(connection.local_id, now_ns + self.settings.request_wait_ns)
        self._tell(connection, CmEventKind.REQUEST, message)

    def _answer_again(self, message: CmMessage, route: Route, known: CmConnection | None) -> None:
        if known is None:
            self._put(route, self._past[_request_key(message, route, self.settings)])
        elif known.route != route:
            self.stats.dropped_unknown += 1
        elif known.state is CmState.REQUESTED:
            self._say(known, CmMessageKind.MRA)
        elif known.state is CmState.REP_SENT:
            self._put(route, known.data)
        # Established or leaving: the requester has had its answer.

    def _reject_reason(self, listener: CmListener | None) -> RejectReason:
        """Return why a request is rejected at once; NONE: it is not."""
        if listener is None:
            self.stats.rejected_no_listener += 1
            return RejectReason.INVALID_SERVICE
        if listener.pending >= listener.backlog:
            self.stats.rejected_backlog += 1
        elif self._pending >= self.settings.pending_max:
            self.stats.rejected_pending += 1
        elif len(self._connections) >= self.settings.connections_max:
            self.stats.rejected_connections += 1
        else:
            return RejectReason.NONE
        return RejectReason.NO_RESOURCES

    def _replace_stale(self, message: CmMessage, route: Route) -> None:
        # Linux rejects the new request as well (reason 10). A peer that connects a queue pair
        # again has dropped its old connection, so the new one may go on: a queue pair can be
        # reset and connected again although the DREQ of its first connection was lost.
        stale = self._queue_pairs.get((message.context_guid, message.offer.qpn))
        if stale is not None and stale.route == route and message.kind is CmMessageKind.REQ:
            self.stats.stale += 1
            self._lose(stale, "peer has connected this queue pair anew")

    def _find(self, message: CmMessage, route: Route) -> CmConnection | None:
        """Return the connection of a message, if its sender belongs to it."""
        if message.remote_id:
            connection = self._connections.get(message.remote_id)
        else:  # the requester gives up before it heard our number
            connection = self._requests.get(_request_key(message, route, self.settings))
        if connection is None or connection.route != route:
            return None
        known, said = connection.context_guid, message.context_guid
        if known and said and known != said:
            return None
        # A REJ for an unknown connection has no id of its own.
        if connection.remote_id and message.local_id not in (0, connection.remote_id):
            return None
        return connection

    def _answer_unknown(self, message: CmMessage, route: Route) -> None:
        self.stats.dropped_unknown += 1
        if message.kind is CmMessageKind.DREQ:
            self._answer_unconnected(message, route, CmMessageKind.DREP)
        elif message.kind is CmMessageKind.REP:
            reason = RejectReason.INVALID_COMM_ID
            self._answer_unconnected(message, route, CmMessageKind.REJ, reason)

    def _receive_known(self, connection: CmConnection, message: CmMessage, now_ns: int) -> None:
        kind, state = message.kind, connection.state
        if kind is CmMessageKind.REJ:
            self._receive_rejection(connection, message)
        elif kind is CmMessageKind.DREQ:
            self._receive_dreq(connection, message, now_ns)
        elif kind is CmMessageKind.DREP and state is CmState.DREQ_SENT:
            self._end(connection, CmEventKind.DISCONNECTED, message)
        elif kind is CmMessageKind.MRA and state is CmState.REQ_SENT:
            connection.tries = min(connection.tries, self.settings.tries_max - 1)
        elif kind is CmMessageKind.RTU and state is CmState.REP_SENT:
            self._establish(connection, message, now_ns)
        elif kind in (CmMessageKind.REP, CmMessageKind.SIDR_REP) and connection.is_requester:
            self._receive_reply(connection, message, now_ns)
        else:
            self.stats.dropped_misplaced += 1

    def _receive_reply(self, connection: CmConnection, message: CmMessage, now_ns: int) -> None:
        if connection.is_datagram != (message.kind is CmMessageKind.SIDR_REP):
            self.stats.dropped_misplaced += 1
            return
        if connection.state is CmState.REQ_SENT:
            connection.remote_id, connection.context_guid = message.local_id, message.context_guid
            connection.peer_offer = message.offer
            self._establish(connection, message, now_ns)
        elif connection.state is not CmState.ESTABLISHED:
            return  # DREQ sent: it tells the listener's side
        if message.kind is CmMessageKind.REP:
            self._say(connection, CmMessageKind.RTU)

    def _receive_rejection(self, connection: CmConnection, message: CmMessage) -> None:
        state, words = connection.state, message.reason.name.lower().replace("_", " ")
        if state is CmState.REQ_SENT:
            kind = _END_OF_REASON.get(message.reason, CmEventKind.ERROR)
            self._end(connection, kind, message, words)
        else:
            self._lose(connection, f"peer says: {words}")

    def _receive_dreq(self, connection: CmConnection, message: CmMessage, now_ns: int) -> None:
        self._say(connection, CmMessageKind.DREP)
        if connection.state is CmState.REP_SENT:
            self._establish(connection, None, now_ns)  # a DREQ implies our answer
        if connection.state not in (CmState.ESTABLISHED, CmState.DREQ_SENT):
            self._lose(connection, "peer has left already")
        elif message.reason is RejectReason.BROKEN and connection.state is CmState.ESTABLISHED:
            self._lose(connection, "peer's queue pair failed")
        else:
            self._end(connection, CmEventKind.DISCONNECTED, message)

    # -- deadlines

    def _handle_due(self, connection: CmConnection, now_ns: int) -> None:
        state = connection.state
        if state is CmState.REQUESTED:
            self._tell(connection, CmEventKind.ERROR, reason="not answered in time")
            self._reject_request(connection, RejectReason.TIMEOUT)
        elif not self._is_given_up(connection, now_ns):
            self.stats.retries += connection.tries > 0
            self._send_with_retry(connection, now_ns)
        elif state is CmState.REQ_SENT:
            self._cancel(connection, CmEventKind.UNREACHABLE, "no answer")
        elif state is CmState.REP_SENT:
            self._say(connection, CmMessageKind.REJ, reason=RejectReason.TIMEOUT)
            self._end(connection, CmEventKind.ERROR, reason="the answer was not confirmed")
        else:
            self._end(connection, CmEventKind.DISCONNECTED, reason="peer did not confirm")

    def _is_given_up(self, connection: CmConnection, now_ns: int) -> bool:
        late = connection.give_up_ns is not None and now_ns >= connection.give_up_ns
        return connection.tries >= self.settings.tries_max or (
            late and connection.state is CmState.REQ_SENT
        )

    def _send_with_retry(self, connection: CmConnection, now_ns: int) -> None:
        """Send the message that waits for an answer, and schedule its retry."""
        assert connection.state in _REPEATED, connection.state
        self._put(connection.route, connection.data)
        wait_ns = min(self.settings.retry_first_ns << connection.tries, self.settings.retry_max_ns)
        connection.tries += 1
        deadline_ns = now_ns + wait_ns
        if connection.give_up_ns is not None and connection.state is CmState.REQ_SENT:
            deadline_ns = min(deadline_ns, max(connection.give_up_ns, now_ns))
        self._deadlines.set(connection.local_id, deadline_ns)

    # -- changes of state

    def _establish(self, connection: CmConnection, message: CmMessage | None, now_ns: int) -> None:
        connection.state, connection.data = CmState.ESTABLISHED, b""
        self._deadlines.cancel(connection.local_id)
        self.stats.established += 1
        self._tell(connection, CmEventKind.ESTABLISHED, message)
        if connection.is_datagram:
            self._drop(connection)
        else:
            self._peers.join(connection, now_ns)

    def _leave(
        self, connection: CmConnection, reason: RejectReason, now_ns: int, wait_ns: int = 0
    ) -> None:
        connection.data = self._message(connection, CmMessageKind.DREQ, reason=reason)
        connection.state, connection.tries = CmState.DREQ_SENT, 0
        self._peers.leave(connection)
        if wait_ns:
            self._deadlines.set(connection.local_id, now_ns + wait_ns)
        else:
            self._send_with_retry(connection, now_ns)

    def _reject_request(
        self, connection: CmConnection, reason: RejectReason, private_data: bytes = b""
    ) -> None:
        """Reject a request that the owner had, and remember the answer for its duplicates."""
        data = self._message(
            connection, CmMessageKind.REJ, reason=reason, private_data=private_data
        )
        self._put(connection.route, data)
        self._remember(connection, data)
        self._drop(connection)

    def _cancel(self, connection: CmConnection, kind: CmEventKind, reason: str) -> None:
        """Cancel a request of this side, and tell the listener if it can be reached."""
        self._say(connection, CmMessageKind.REJ, reason=RejectReason.TIMEOUT)
        self._end(connection, kind, reason=reason)

    def _lose(self, connection: CmConnection, reason: str) -> None:
        """End a connection that the peer no longer holds."""
        kind = _END_OF_LOSS.get(connection.state, CmEventKind.ERROR)
        self.stats.broken += kind is CmEventKind.BROKEN
        self._end(connection, kind, reason=reason)

    def _end(
        self,
        connection: CmConnection,
        kind: CmEventKind,
        message: CmMessage | None = None,
        reason: str = "",
    ) -> None:
        self._tell(connection, kind, message, reason)
        self._drop(connection)

    def _answered(self, connection: CmConnection) -> None:
        """Remove a request from those that wait for the owner."""
        if connection.state is CmState.REQUESTED and connection.listener is not None:
            connection.listener.pending -= 1
            self._pending -= 1

    def _add(self, connection: CmConnection) -> None:
        self._connections[connection.local_id] = connection
        self._routes[connection.route] += 1

    def _drop(self, connection: CmConnection) -> None:
        if self._connections.pop(connection.local_id, None) is None:
            return
        self._routes[connection.route] -= 1
        if not self._routes[connection.route]:
            del self._routes[connection.route]
        self._answered(connection)
        connection.state = CmState.OVER
        self._remember(connection)
        self._peers.leave(connection)
        self._deadlines.cancel(connection.local_id)
        request = (connection.requester, connection.remote_id)
        if self._requests.get(request) is connection:
            del self._requests[request]
        queue_pair = (connection.context_guid, connection.peer_offer.qpn)
        if self._queue_pairs.get(queue_pair) is connection:
            del self._queue_pairs[queue_pair]

    def _remember(self, connection: CmConnection, data: bytes = b"") -> None:
        if not connection.is_requester:
            self._past.setdefault((connection.requester, connection.remote_id), data)
            while len(self._past) > self.settings.past_max:
                self._past.popitem(last=False)

    # -- leaves

    def _listener(self, space: int, local: HostPort) -> CmListener | None:
        host, port = local
        exact = self._listeners.get((space, host, port))
        return exact or self._listeners.get((space, _ANY_HOSTS[":" in host], port))

    def _new_id(self) -> int:
        while True:  # ends: at most `connections_max` of 2**32 numbers are in use
            number = self._random.getrandbits(32)
            if number and number not in self._connections:
                return number

    def _message(self, connection: CmConnection, kind: CmMessageKind, **content: Any) -> bytes:
        message = CmMessage(
            kind=kind,
            context_guid=self.context_guid,
            local_id=connection.local_id,
            remote_id=connection.remote_id,
            **content,
        )
        return message.emit()

    def _say(self, connection: CmConnection, kind: CmMessageKind, **content: Any) -> None:
        self._put(connection.route, self._message(connection, kind, **content))

    def _answer_unconnected(
        self,
        message: CmMessage,
        route: Route,
        kind: CmMessageKind,
        reason: RejectReason = RejectReason.NONE,
    ) -> None:
        """Answer a message for an unknown connection."""
        answer = CmMessage(
            kind=kind,
            context_guid=self.context_guid,
            local_id=message.remote_id,
            remote_id=message.local_id,
            reason=reason,
        )
        self._put(route, answer.emit())

    def _put(self, route: Route, data: bytes) -> None:
        if data:
            self._outgoing.append((route, data))

    def _tell(
        self,
        connection: CmConnection,
        kind: CmEventKind,
        message: CmMessage | None = None,
        reason: str = "",
    ) -> None:
        if not connection.is_silent:
            self._events.append(CmEvent(kind, connection, message, reason))


def _request_key(message: CmMessage, route: Route, settings: CmSettings) -> RequestKey:
    """Return what tells the requests of all peers apart."""
    return message.context_guid if settings.names_context else route, message.local_id


@lru_cache(1024)
def _host(data: bytes) -> str:
    address = IPv6Address(data)
    return str(address.ipv4_mapped or address)
