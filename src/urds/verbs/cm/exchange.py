"""What a connection manager does with messages and deadlines, and how connections end.

The half of the core below its calls; `core` has the theory and the sources.
"""

import errno
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Final

from urds.verbs.cm.deadlines import Deadlines
from urds.verbs.cm.messages import (
    OPENING_BYTES,
    PRIVATE_DATA_BYTES_MAX,
    Message,
    MessageKind,
    Offer,
    Reason,
)
from urds.verbs.cm.peers import PeerKey, Peers
from urds.verbs.cm.records import (
    Address,
    CmConnection,
    CmEvent,
    CmEventKind,
    CmListener,
    CmSettings,
    CmState,
    CmStats,
    Route,
)

if TYPE_CHECKING:
    from random import Random

_ANY_HOSTS: Final = ("0.0.0.0", "::")
_END_OF_REASON: Final = {
    Reason.CONSUMER: CmEventKind.REJECTED,
    Reason.INVALID_SERVICE: CmEventKind.REFUSED,
    Reason.NO_RESOURCES: CmEventKind.REFUSED,
}
_REPEATED: Final = (CmState.REQUEST_SENT, CmState.REPLY_SENT, CmState.LEAVING)
RequestKey = tuple[bytes, int]  # the requester's opening, its id or its queue pair


class Exchange:
    """The connections of one opening, and what is on its way out."""

    def __init__(self, *, random: "Random", settings: CmSettings | None = None) -> None:
        self.settings = settings or CmSettings()
        self.stats = CmStats()
        # A number of its own for each opening, as a node GUID tells adapters apart; a process
        # that is started anew is another one.
        self.opening = random.randbytes(OPENING_BYTES)
        self._random = random
        self._outgoing: deque[tuple[Route, bytes]] = deque()
        self._events: deque[CmEvent] = deque()
        self._listeners: dict[tuple[int, str, int], CmListener] = {}
        self._connections: dict[int, CmConnection] = {}
        self._routes: Counter[Route] = Counter()  # connections per route
        self._requests: dict[RequestKey, CmConnection] = {}
        self._queue_pairs: dict[RequestKey, CmConnection] = {}
        # Answers to requests that are over; empty: none is due. A late duplicate of a request
        # must not become a new connection, and a lost refusal has to be said again.
        self._past: OrderedDict[RequestKey, bytes] = OrderedDict()
        self._pending = 0
        self._deadlines: Deadlines[int] = Deadlines()
        self._peer_deadlines: Deadlines[PeerKey] = Deadlines()
        self._peers = Peers(
            opening=self.opening,
            settings=self.settings,
            stats=self.stats,
            random=random,
            deadlines=self._peer_deadlines,
            send=self._send,
        )

    # -- messages

    def _receive_request(
        self, message: Message, route: Route, local: Address, peer: Address, now_ns: int
    ) -> None:
        key = (message.opening, message.local_id)
        known = self._requests.get(key)
        if known is not None or key in self._past:
            self.stats.requests_repeated += 1
            self._answer_again(message, route, known)
            return
        listener = self._listener(message.space, local)
        refusal = self._refusal(listener)
        if listener is None or refusal is not Reason.NONE:
            answer = self._answer_to(message, MessageKind.REJ, refusal)
            self._send(route, answer)
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
            opening=message.opening,
            listener=listener,
            owner=listener.owner,
        )
        self._add(connection)
        self._requests[key] = connection
        if not connection.is_datagram:
            self._queue_pairs[message.opening, message.offer.qpn] = connection
        listener.pending += 1
        self._pending += 1
        self._deadlines.set(connection.local_id, now_ns + self.settings.request_wait_ns)
        self._tell(connection, CmEventKind.REQUEST, message)

    def _answer_again(self, message: Message, route: Route, known: CmConnection | None) -> None:
        if known is None:
            self._put_octets(route, self._past[message.opening, message.local_id])
        elif known.route != route:
            self.stats.dropped_unknown += 1
        elif known.state is CmState.REQUESTED:
            self._put(known, self._message(known, MessageKind.MRA).emit())
        elif known.state is CmState.REPLY_SENT:
            self._put(known, known.octets)
        # Established or leaving: the requester has had its answer.

    def _refusal(self, listener: CmListener | None) -> Reason:
        """Tell why a request is refused at once; NONE: it is not."""
        if listener is None:
            self.stats.refused_no_listener += 1
            return Reason.INVALID_SERVICE
        if listener.pending >= listener.backlog:
            self.stats.refused_backlog += 1
        elif self._pending >= self.settings.pending_max:
            self.stats.refused_pending += 1
        elif len(self._connections) >= self.settings.connections_max:
            self.stats.refused_connections += 1
        else:
            return Reason.NONE
        return Reason.NO_RESOURCES

    def _replace_stale(self, message: Message, route: Route) -> None:
        # Linux rejects the new request as well (reason 10). A peer that connects a queue pair
        # again has no use for its old connection, so the new one may go on: a queue pair can be
        # reset and connected again though the goodbye of its first life was lost.
        stale = self._queue_pairs.get((message.opening, message.offer.qpn))
        if stale is not None and stale.route == route and message.kind is MessageKind.REQ:
            self.stats.stale += 1
            self._lose(stale, "peer has connected this queue pair anew")

    def _find(self, message: Message, route: Route) -> CmConnection | None:
        """Return the connection a message is about, if it may speak of it."""
        if message.remote_id:
            connection = self._connections.get(message.remote_id)
        else:  # the requester gives up before it heard our number
            connection = self._requests.get((message.opening, message.local_id))
        if connection is None or connection.route != route:
            return None
        if connection.opening and connection.opening != message.opening:
            return None
        # A refusal by one who keeps no record has no id of its own.
        if connection.remote_id and message.local_id not in (0, connection.remote_id):
            return None
        return connection

    def _answer_unknown(self, message: Message, route: Route) -> None:
        self.stats.dropped_unknown += 1
        if message.kind is MessageKind.DREQ:
            self._send(route, self._answer_to(message, MessageKind.DREP))
        elif message.kind is MessageKind.REP:
            self._send(route, self._answer_to(message, MessageKind.REJ, Reason.INVALID_COMM_ID))

    def _receive_known(self, connection: CmConnection, message: Message, now_ns: int) -> None:
        kind, state = message.kind, connection.state
        if kind is MessageKind.REJ:
            self._receive_rejection(connection, message)
        elif kind is MessageKind.DREQ:
            self._receive_goodbye(connection, message, now_ns)
        elif kind is MessageKind.DREP and state is CmState.LEAVING:
            self._end(connection, CmEventKind.DISCONNECTED, message)
        elif kind is MessageKind.MRA and state is CmState.REQUEST_SENT:
            connection.tries = min(connection.tries, self.settings.tries_max - 1)
        elif kind is MessageKind.RTU and state is CmState.REPLY_SENT:
            self._establish(connection, message, now_ns)
        elif kind in (MessageKind.REP, MessageKind.SIDR_REP) and connection.is_requester:
            self._receive_reply(connection, message, now_ns)
        else:
            self.stats.dropped_misplaced += 1

    def _receive_reply(self, connection: CmConnection, message: Message, now_ns: int) -> None:
        if connection.is_datagram != (message.kind is MessageKind.SIDR_REP):
            self.stats.dropped_misplaced += 1
            return
        if connection.state is CmState.REQUEST_SENT:
            connection.remote_id, connection.opening = message.local_id, message.opening
            connection.peer_offer = message.offer
            self._establish(connection, message, now_ns)
        elif connection.state is not CmState.ESTABLISHED:
            return  # we are leaving: the listener's side learns that from our DREQ
        if message.kind is MessageKind.REP:
            self._put(connection, self._message(connection, MessageKind.RTU).emit())

    def _receive_rejection(self, connection: CmConnection, message: Message) -> None:
        state, words = connection.state, message.reason.name.lower().replace("_", " ")
        if state is CmState.REQUEST_SENT:
            kind = _END_OF_REASON.get(message.reason, CmEventKind.ERROR)
            self._end(connection, kind, message, words)
        else:
            self._lose(connection, f"peer says: {words}")

    def _receive_goodbye(self, connection: CmConnection, message: Message, now_ns: int) -> None:
        self._put(connection, self._message(connection, MessageKind.DREP).emit())
        if connection.state is CmState.REPLY_SENT:
            self._establish(connection, None, now_ns)  # who says goodbye had our answer
        if connection.state not in (CmState.ESTABLISHED, CmState.LEAVING):
            self._lose(connection, "peer has left already")
        elif message.reason is Reason.BROKEN and connection.state is CmState.ESTABLISHED:
            self._lose(connection, "peer's queue pair failed")
        else:
            self._end(connection, CmEventKind.DISCONNECTED, message)

    # -- deadlines

    def _handle_due(self, connection: CmConnection, now_ns: int) -> None:
        state = connection.state
        if state is CmState.REQUESTED:
            self._tell(connection, CmEventKind.ERROR, reason="not answered in time")
            self._turn_down(connection, Reason.TIMEOUT)
        elif not self._is_given_up(connection, now_ns):
            self.stats.repeats += connection.tries > 0
            self._repeat(connection, now_ns)
        elif state is CmState.REQUEST_SENT:
            self._cancel(connection, CmEventKind.UNREACHABLE, "no answer")
        elif state is CmState.REPLY_SENT:
            self._put_rejection(connection, Reason.TIMEOUT)
            self._end(connection, CmEventKind.ERROR, reason="the answer was not confirmed")
        else:
            self._end(connection, CmEventKind.DISCONNECTED, reason="peer did not confirm")

    def _is_given_up(self, connection: CmConnection, now_ns: int) -> bool:
        late = connection.give_up_ns is not None and now_ns >= connection.give_up_ns
        return connection.tries >= self.settings.tries_max or (
            late and connection.state is CmState.REQUEST_SENT
        )

    def _repeat(self, connection: CmConnection, now_ns: int) -> None:
        """Send what waits for an answer, and plan when to do so again."""
        assert connection.state in _REPEATED, connection.state
        self._put(connection, connection.octets)
        wait_ns = min(self.settings.retry_first_ns << connection.tries, self.settings.retry_max_ns)
        connection.tries += 1
        deadline_ns = now_ns + wait_ns
        if connection.give_up_ns is not None and connection.state is CmState.REQUEST_SENT:
            deadline_ns = min(deadline_ns, max(connection.give_up_ns, now_ns))
        self._deadlines.set(connection.local_id, deadline_ns)

    # -- changes of state

    def _establish(self, connection: CmConnection, message: Message | None, now_ns: int) -> None:
        connection.state, connection.octets = CmState.ESTABLISHED, b""
        self._deadlines.cancel(connection.local_id)
        self.stats.established += 1
        self._tell(connection, CmEventKind.ESTABLISHED, message)
        if connection.is_datagram:
            self._drop(connection)
        else:
            self._peers.join(connection, now_ns)

    def _leave(
        self, connection: CmConnection, reason: Reason, now_ns: int, wait_ns: int = 0
    ) -> None:
        connection.octets = self._message(connection, MessageKind.DREQ, reason=reason).emit()
        connection.state, connection.tries = CmState.LEAVING, 0
        self._peers.leave(connection)
        if wait_ns:
            self._deadlines.set(connection.local_id, now_ns + wait_ns)
        else:
            self._repeat(connection, now_ns)

    def _turn_down(
        self, connection: CmConnection, reason: Reason, private_data: bytes = b""
    ) -> None:
        """Refuse a request that the owner had, and remember the answer for its duplicates."""
        rejection = self._message(
            connection, MessageKind.REJ, reason=reason, private_data=private_data
        )
        octets = rejection.emit()
        self._put(connection, octets)
        self._remember(connection, octets)
        self._drop(connection)

    def _cancel(self, connection: CmConnection, kind: CmEventKind, reason: str) -> None:
        """Give a request of ours up, and tell the listener in case it hears us."""
        self._put_rejection(connection, Reason.TIMEOUT)
        self._end(connection, kind, reason=reason)

    def _lose(self, connection: CmConnection, reason: str) -> None:
        """End a connection that the peer does not hold any more, if it ever did."""
        if connection.state is CmState.ESTABLISHED:
            self.stats.broken += 1
            self._end(connection, CmEventKind.BROKEN, reason=reason)
        elif connection.state is CmState.LEAVING:
            self._end(connection, CmEventKind.DISCONNECTED, reason=reason)
        else:
            self._end(connection, CmEventKind.ERROR, reason=reason)

    def _end(
        self,
        connection: CmConnection,
        kind: CmEventKind,
        message: Message | None = None,
        reason: str = "",
    ) -> None:
        self._tell(connection, kind, message, reason)
        self._drop(connection)

    def _answered(self, connection: CmConnection) -> None:
        """Count a request no more among those that wait for the owner."""
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
        for table, number in (
            (self._requests, connection.remote_id),
            (self._queue_pairs, connection.peer_offer.qpn),
        ):
            key = (connection.opening, number)
            if table.get(key) is connection:
                del table[key]

    def _remember(self, connection: CmConnection, octets: bytes = b"") -> None:
        if not connection.is_requester:
            self._past.setdefault((connection.opening, connection.remote_id), octets)
            while len(self._past) > self.settings.past_max:
                self._past.popitem(last=False)

    # -- leaves

    def _listener(self, space: int, local: Address) -> CmListener | None:
        host, port = local
        exact = self._listeners.get((space, host, port))
        return exact or self._listeners.get((space, _ANY_HOSTS[":" in host], port))

    def _new_id(self) -> int:
        while True:  # ends: at most `connections_max` of 2**32 numbers are in use
            number = self._random.getrandbits(32)
            if number and number not in self._connections:
                return number

    def _message(
        self,
        connection: CmConnection,
        kind: MessageKind,
        *,
        offer: Offer | None = None,
        private_data: bytes = b"",
        reason: Reason = Reason.NONE,
    ) -> Message:
        return Message(
            kind=kind,
            opening=self.opening,
            local_id=connection.local_id,
            remote_id=connection.remote_id,
            private_data=private_data,
            offer=offer or Offer(),
            reason=reason,
        )

    def _answer_to(
        self, message: Message, kind: MessageKind, reason: Reason = Reason.NONE
    ) -> Message:
        """Answer somebody of whom no record is kept."""
        return Message(
            kind=kind,
            opening=self.opening,
            local_id=message.remote_id,
            remote_id=message.local_id,
            reason=reason,
        )

    def _put_rejection(self, connection: CmConnection, reason: Reason) -> None:
        self._put(connection, self._message(connection, MessageKind.REJ, reason=reason).emit())

    def _put(self, connection: CmConnection, octets: bytes) -> None:
        self._put_octets(connection.route, octets)

    def _send(self, route: Route, message: Message) -> None:
        self._put_octets(route, message.emit())

    def _put_octets(self, route: Route, octets: bytes) -> None:
        if octets:
            self._outgoing.append((route, octets))

    def _tell(
        self,
        connection: CmConnection,
        kind: CmEventKind,
        message: Message | None = None,
        reason: str = "",
    ) -> None:
        if not connection.is_silent:
            self._events.append(CmEvent(kind, connection, message, reason))


def check_private_data(octets: bytes) -> None:
    """Raise OSError ENOMEM for private data over the limit."""
    if len(octets) > PRIVATE_DATA_BYTES_MAX:
        raise OSError(
            errno.ENOMEM,
            f"private data of {len(octets)} octets, limit {PRIVATE_DATA_BYTES_MAX}",
        )
