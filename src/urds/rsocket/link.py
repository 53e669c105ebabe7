"""One connected stream: a queue pair, its connection, and the core that says what goes over it.

A link never waits. Calls of the application take the adapter's lock, change the core, and carry
away what it has to say; completions come in through the opening, which settles the links they
concern once the device's call is over. `on_change` tells whoever shows or waits for readiness.

A connect tries the devices in their order: the next one when nobody listens on the one before.
"""

import errno
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple

from urds.errors import RemoteProtocolError
from urds.rsocket.alarms import alarms
from urds.rsocket.opening import Opening
from urds.rsocket.stream import Memory, Post, Shut, Stream, StreamSettings
from urds.verbs.engine.numbers import QPState, WCOpcode, WCStatus, WROpcode
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.requests import Request
from urds.verbs.engine.work import WC, SendWR
from urds.verbs.providers.base import (
    Address,
    Connection,
    ConnectionEvent,
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
)

LINGER_S: Final = 30.0  # how long a closed link goes on sending what was accepted
BORROW_BYTES_MIN: Final = 1 << 14  # shorter octets are copied: that is cheaper than to ask
_NS: Final = 1_000_000_000
_CONNECTED: Final = (QPState.RTR, QPState.RTS, QPState.SQD)
# What the end of a connect means. Source: rsocket.md 2.4 and 11.
_CONNECT_ERRNO: Final = {
    ConnectionEventKind.REFUSED: errno.ECONNREFUSED,
    ConnectionEventKind.REJECTED: errno.ECONNREFUSED,
    ConnectionEventKind.UNREACHABLE: errno.ETIMEDOUT,
    ConnectionEventKind.ERROR: errno.ECONNABORTED,
    ConnectionEventKind.DISCONNECTED: errno.ECONNABORTED,
    ConnectionEventKind.BROKEN: errno.ECONNRESET,
}


class LinkState(Enum):
    """The life of a link. OVER is where it stays."""

    IDLE = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    OVER = auto()


class Readiness(NamedTuple):
    """What poll would say: POLLIN, POLLOUT, POLLHUP, POLLERR."""

    readable: bool
    writable: bool
    hung_up: bool
    failed: bool


def parameters_with(private_data: bytes) -> ConnectParameters:
    """Return what an rsocket says when it connects or accepts. Source: rsocket.md 2.2."""
    return ConnectParameters(
        private_data=private_data,
        responder_resources=0,
        initiator_depth=0,
        retry_count=7,
        rnr_retry_count=7,
    )


class Link:
    """One side of a connection, from the connect or the request on."""

    def __init__(self, openings: Sequence[Opening], settings: StreamSettings) -> None:
        """Make an idle link over the first of these devices that knows the peer."""
        self.openings = list(openings)
        self.opening = self.openings[0]
        self.settings = settings
        self.state = LinkState.IDLE
        self.error = 0
        self.reason = ""  # of the end, for people
        self.local: Address | None = None
        self.peer: Address | None = None
        self.on_change: Callable[[], None] | None = None
        self.stream: Stream | None = None
        self._qp: QueuePair | None = None
        self._connection: Connection | None = None
        self._rest: list[Opening] = []  # devices that a connect has not tried
        self._connect_timeout_ns: int | None = None
        self._borrowed: list[tuple[Request, Post]] = []
        self._early: list[int] = []  # words of the peer before its offer
        self._is_closed = False
        self._is_disconnecting = False
        self._alarm_ns: int | None = None

    # -- connecting

    def connect(
        self, peer: Address, *, local: Address | None = None, timeout_s: float | None = None
    ) -> None:
        """Ask for a connection and return at once; `state` and `error` tell how it went.

        Raises OSError for what can be told at once: EINVAL, EADDRNOTAVAIL, ENOMEM.
        """
        self.peer, self.local = peer, local
        self._connect_timeout_ns = None if timeout_s is None else int(timeout_s * _NS)
        self._rest = list(self.openings)
        self.state = LinkState.CONNECTING
        try:
            self._try_next()
        except OSError:
            self.state = LinkState.IDLE
            raise

    def _try_next(self) -> None:
        """Ask the next device; one that cannot ask at all is passed over."""
        problem = OSError(errno.ECONNREFUSED, f"nobody listens at {self.peer}")
        while self._rest:
            self.opening = self._rest.pop(0)
            with self.opening.adapter.lock:
                try:
                    self._ask()
                    return
                except OSError as error:
                    problem = error
                    self._drop()
        raise problem

    def _ask(self) -> None:
        opening = self.opening
        assert self.peer is not None, "who connects has a peer"
        stream, qp = self._prepare()
        opening.stats.connects += 1
        self._connection = opening.adapter.connect(
            qp,
            self.peer,
            PortSpace.TCP,
            parameters_with(stream.offer()),
            on_event=self._handle_event,
            local=self.local,
            timeout_ns=self._connect_timeout_ns,
        )

    def _prepare(self) -> tuple[Stream, QueuePair]:
        self.stream = Stream(self.settings, self.opening)
        self._qp = self.opening.queue_pair(self, self.settings.send_queue)
        return self.stream, self._qp

    def answer(self, connection: Connection, private_data: bytes) -> None:
        """Accept a request, whose private data are an rsocket's; lock held.

        Raises RemoteProtocolError for those that are not, OSError as `Connection.accept`; then
        nothing is left of the link, and the request waits for its answer.
        """
        stream, qp = self._prepare()
        try:
            offer = stream.offer()
            stream.adopt(private_data)
            self.state = LinkState.CONNECTING
            self._connection, connection.on_event = connection, self._handle_event
            self.local, self.peer = connection.local, connection.peer
            self.opening.stats.accepts += 1
            connection.accept(qp, parameters_with(offer))
        except (RemoteProtocolError, OSError):
            self._connection = None
            self._drop()
            raise

    # -- data

    def send(self, data: memoryview, *, may_borrow: bool = True) -> int:
        """Take octets to send and return how many: 0 if there is no room. Never waits.

        Octets from BORROW_BYTES_MIN up are written from the caller's memory, which is his again
        on return. Raises OSError: ECONNRESET, ENOTCONN.
        """
        with self.opening.adapter.lock:
            stream = self._connected()
            taken = stream.send(data, may_borrow=may_borrow and len(data) >= BORROW_BYTES_MIN)
            if taken:
                self._carry(stream)
            return taken

    def receive_into(self, view: memoryview, *, peek: bool = False) -> int:
        """Copy octets that are there and return how many: 0 for none, or at the end. Never waits.

        Raises OSError: ENOTCONN; what broke the connection, once all that arrived was taken.
        """
        with self.opening.adapter.lock:
            stream = self._connected()
            taken = stream.receive_into(view, peek=peek)
            if taken:
                self._carry(stream)
            elif len(view):
                self._check_whole(stream)
            return taken

    def receive(self, byte_count_max: int, *, peek: bool = False) -> bytes:
        """Return octets that are there, in one copy; otherwise as `receive_into`."""
        with self.opening.adapter.lock:
            stream = self._connected()
            octets = stream.receive(byte_count_max, peek=peek)
            if octets:
                self._carry(stream)
            elif byte_count_max:
                self._check_whole(stream)
            return octets

    def _check_whole(self, stream: Stream) -> None:
        """Raise OSError if the connection broke and nothing is left of what arrived."""
        if stream.error and not stream.readable_bytes:
            raise OSError(stream.take_error(), self.reason or "the connection is broken")

    def shut_down(self, how: Shut) -> None:
        """End one direction or both. Raises OSError: ENOTCONN."""
        with self.opening.adapter.lock:
            stream = self._connected()
            stream.shut_down(how)
            self._carry(stream)
            self._tell()

    def carry(self) -> None:
        """Post what calls to `stream` gave it to say. Lock held."""
        if self.stream is not None:
            self._carry(self.stream)

    def _connected(self) -> Stream:
        stream = self.stream
        if self.opening.is_abandoned:
            raise OSError(errno.EBADF, "the socket belongs to the parent of this process")
        if stream is None or self.state in (LinkState.IDLE, LinkState.CONNECTING):
            raise OSError(errno.ENOTCONN, f"the socket is not connected ({self.state.name})")
        return stream

    def _carry(self, stream: Stream) -> None:
        qp = self._qp
        if qp is None or qp.state is not QPState.RTS or self.state is LinkState.CONNECTING:
            return
        posted = False
        while (post := stream.poll_transmit()) is not None:
            self._post(qp, post)
            posted = True
        if not posted:
            return
        self.opening.adapter.kick(qp)
        if self._borrowed:
            for request, post in self._borrowed:
                stream.stats.octets_copied_in += request.detach()
                post.octets = b""
            self._borrowed.clear()

    def _post(self, qp: QueuePair, post: Post) -> None:
        wr = SendWR(
            0,
            WROpcode.RDMA_WRITE if post.word is None else WROpcode.RDMA_WRITE_WITH_IMM,
            imm_data=post.word or 0,
            remote_addr=post.address,
            rkey=post.rkey,
            octets=post.octets,
        )
        request = qp.post_send(wr, 0)  # only datagrams and timers look at the time
        if post.is_borrowed and request is not None:
            self._borrowed.append((request, post))

    # -- readiness

    def readiness(self) -> Readiness:
        """Tell what may be done without waiting. Safe without the lock."""
        stream = self.stream
        if self.state is LinkState.CONNECTING or self.state is LinkState.IDLE:
            return Readiness(False, False, self.state is LinkState.IDLE, False)
        if stream is None:
            return Readiness(True, True, True, bool(self.error))
        failed = bool(stream.error or self.error)
        is_over = self.state is LinkState.OVER
        return Readiness(
            stream.is_readable or is_over or failed,
            stream.is_writable or is_over or failed,
            is_over or not (stream.can_read or stream.can_write),
            failed,
        )

    @property
    def is_ended(self) -> bool:
        """Return whether no more octets will come and all were taken."""
        return self.stream is None or self.stream.is_ended

    def take_error(self) -> int:
        """Return the errno of what went wrong and forget it: SO_ERROR."""
        with self.opening.adapter.lock:
            error, self.error = self.error, 0
            if not error and self.stream is not None:
                error = self.stream.take_error()
            return error

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # -- the end

    def close(self, linger_s: float | None = None) -> None:
        """Let go of the link; what was accepted leaves in the background, LINGER_S at most.

        `linger_s` 0 breaks the connection off at once. Safe twice; returns at once.
        """
        with self.opening.adapter.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.on_change = None
            stream = self.stream
            is_open = self.state is LinkState.CONNECTED and stream is not None
            if not is_open or linger_s == 0:
                self._end("closed")
                return
            assert stream is not None
            stream.shut_down(Shut.RDWR)
            self.opening.leaving.add(self)
            self._carry(stream)
            self._leave_if_done()
            if self in self.opening.leaving and self.opening.adapter.has_own_time:
                limit_s = LINGER_S if linger_s is None else linger_s
                alarms.call_at(time.monotonic_ns() + int(limit_s * _NS), self._give_up)

    def _give_up(self) -> None:
        with self.opening.adapter.lock:
            if self in self.opening.leaving:
                self._end("what was sent did not leave in time")

    def _leave_if_done(self) -> None:
        """Disconnect once the peer has been told and everything sent has arrived."""
        stream, connection = self.stream, self._connection
        if stream is None or connection is None or self._is_disconnecting:
            return
        if stream.wants_disconnect:
            self._is_disconnecting = True
            connection.disconnect()

    def cut(self, reason: str) -> None:
        """Break the connection off: the peer broke the protocol. Lock held, outside the engine."""
        self.opening.stats.cut_links += 1
        self._lose(errno.ECONNRESET, reason)

    def _lose(self, error: int, reason: str) -> None:
        """Be over; what has arrived stays readable."""
        self.reason = reason
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self.stream is not None:
            self.stream.handle_disconnected(reason, error)
        self.state = LinkState.OVER
        if self._is_closed:
            self._drop()
        else:
            self._forget_queue_pair()
        self.opening.leaving.discard(self)
        self._tell()

    def _end(self, reason: str) -> None:
        """Be gone: no queue pair, no memory."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self.state, self.reason = LinkState.OVER, reason
        self.opening.leaving.discard(self)
        self._drop()

    def _drop(self) -> None:
        self._forget_queue_pair()
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def _forget_queue_pair(self) -> None:
        qp, self._qp = self._qp, None
        if qp is not None:
            self.opening.forget(qp)

    # -- what the device says; lock held

    def handle_received(self, wc: WC) -> None:
        """Take the completion of a receive."""
        stream = self.stream
        if stream is None or wc.status is not WCStatus.SUCCESS:
            return  # the connection tells
        if wc.opcode is not WCOpcode.RECV_RDMA_WITH_IMM:
            self._spoil(f"{wc.opcode.name} where a write with immediate data was due")
            return
        if not stream.is_connected:
            # The peer may be there first: its words wait until the event brings its offer.
            if len(self._early) == self.settings.receive_queue:
                self._spoil("more words before the offer than there are credits")
                return
            self._early.append(wc.imm_data)
            return
        self._take_word(stream, wc.imm_data)

    def _take_word(self, stream: Stream, word: int) -> None:
        try:
            stream.receive_data(word)
        except RemoteProtocolError as error:
            self._spoil(str(error))

    def handle_sent(self, wc: WC) -> None:
        """Take the completion of a request."""
        stream = self.stream
        if stream is None:
            return
        if wc.status is WCStatus.SUCCESS:
            stream.handle_sent()
        elif wc.status is not WCStatus.WR_FLUSH_ERR:
            self._spoil(f"a write failed: {wc.status.name}")

    def _spoil(self, reason: str) -> None:
        """Note that the link is to be cut: inside the engine nothing can be."""
        self.opening.adapter.call_soon(partial(self.cut, reason))

    def settle(self) -> None:
        """Say what is to be said, and tell what has changed."""
        stream = self.stream
        if stream is not None:
            self._carry(stream)
            self._leave_if_done()
            self._plan_alarm(stream)
        self._tell()

    def _handle_event(self, event: ConnectionEvent) -> None:
        """Take an event of the connection.

        Data may be right behind the one that connects: the stream is ready for it on return. All
        others are acted on outside of the call that brings them.
        """
        if event.connection is not self._connection:
            return
        if event.kind is ConnectionEventKind.ESTABLISHED:
            self._establish(event)
        else:
            self.opening.adapter.call_soon(partial(self._handle_end, event))

    def _handle_end(self, event: ConnectionEvent) -> None:
        if event.connection is not self._connection:
            return
        if self.state is LinkState.CONNECTING:
            self._fail_connect(event)
        elif self.state is LinkState.CONNECTED:
            # In order means that the peer's last word came before: then the stream is over already.
            self._lose(errno.ECONNRESET, event.reason or f"connection ended: {event.kind.name}")
        self.opening.mark(self)

    def _establish(self, event: ConnectionEvent) -> None:
        stream, connection = self.stream, self._connection
        assert stream is not None and connection is not None, "connecting links have both"
        try:
            if not stream.is_connected:
                stream.adopt(event.parameters.private_data)
        except RemoteProtocolError as error:
            self.error = errno.EOPNOTSUPP
            self._spoil(f"private data of {self.peer}: {error}")
            return
        self.state = LinkState.CONNECTED
        self.local, self.peer = connection.local, connection.peer
        early, self._early = self._early, []
        for word in early:
            self._take_word(stream, word)
        self.opening.mark(self)

    def _fail_connect(self, event: ConnectionEvent) -> None:
        self._connection = None
        self._drop()
        if event.kind is ConnectionEventKind.REFUSED and self._rest:
            try:
                self._try_next()
            except OSError as error:
                self._be_refused(error.errno or errno.ECONNREFUSED, str(error))
            return
        self._be_refused(
            _CONNECT_ERRNO[event.kind], event.reason or f"connect to {self.peer}: {event.kind.name}"
        )

    def _be_refused(self, error: int, reason: str) -> None:
        self.error, self.reason, self.state = error, reason, LinkState.OVER

    # -- time

    def _plan_alarm(self, stream: Stream) -> None:
        deadline_ns = stream.poll_timeout()
        if deadline_ns is None or deadline_ns == self._alarm_ns:
            return
        self._alarm_ns = deadline_ns
        alarms.call_at(deadline_ns, self._ring)

    def _ring(self) -> None:
        with self.opening.adapter.lock:
            self._alarm_ns = None
            stream = self.stream
            if stream is not None and self.state is LinkState.CONNECTED:
                stream.handle_timeout(time.monotonic_ns())
                self._carry(stream)
                self._plan_alarm(stream)


__all__ = ["Link", "LinkState", "Memory", "Readiness", "parameters_with"]
