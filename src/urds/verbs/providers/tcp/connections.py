"""Connections of the reliable port space: TCP, the MPA set-up on it, then the stream.

    initiator                       responder
    connecting -- TCP ------------> stranger (5 s, bounded numbers)
    asking     -- MPA request ----> requested: the listener's owner accepts or rejects
    established <-- MPA reply ----- established

One connection, one TCP connection, one queue pair: iWARP knows no other way, so queue pairs of
this provider are led to RTS here and nowhere else. The adapter's lock guards everything.
"""

import errno
import os
import select
import socket
import time
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from urds.errors import WireError
from urds.verbs.cm.mpa import (
    FirstFrame,
    MpaConnection,
    MpaEstablished,
    MpaEvent,
    MpaRejected,
    MpaRequested,
    MpaTerms,
)
from urds.verbs.engine.numbers import QPState, QPType
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.providers.base import (
    Address,
    Connection,
    ConnectionEvent,
    ConnectionEventKind,
    ConnectParameters,
    OnConnectionEvent,
    PortSpace,
)
from urds.verbs.providers.tcp.reactor import Timer
from urds.verbs.providers.tcp.sockets import address_of, reset
from urds.verbs.providers.tcp.stream import Stream, StreamEnd
from urds.verbs.providers.tcp.streams import make_stream

if TYPE_CHECKING:
    from urds.verbs.providers.tcp.adapter import TcpAdapter
    from urds.verbs.providers.tcp.listeners import TcpListener

SETUP_READ_BYTES: Final = 4096
_REFUSED: Final = {errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE}
_UNREACHABLE: Final = {
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENETDOWN,
}  # fmt: skip


class State(Enum):
    """Life of a connection."""

    CONNECTING = auto()
    SETTING_UP = auto()
    REQUESTED = auto()  # our own application has the request
    ESTABLISHED = auto()
    OVER = auto()


class TcpConnection(Connection):
    """One connection, on either side."""

    def __init__(
        self,
        adapter: "TcpAdapter",
        connection: socket.socket,
        state: State,
        *,
        on_event: OnConnectionEvent,
        deadline_ns: int,
        qp: QueuePair | None = None,
        parameters: ConnectParameters | None = None,
        listener: "TcpListener | None" = None,
        problem: int = 0,
    ) -> None:
        self.space = PortSpace.TCP
        self.local: Address = ("", 0)
        self.peer: Address = ("", 0)
        self.on_event = on_event
        self._adapter = adapter
        self._socket = connection
        self._state = state
        self._qp = qp
        self._parameters = parameters or ConnectParameters()
        self._listener = listener
        self._is_silent = False
        self._stream: Stream | None = None
        if listener is not None:
            self._name_ends()  # raises OSError for one who is gone already: nothing to undo yet
        terms = self._terms() if qp is not None else None
        self._mpa = MpaConnection(terms, deadline_ns=deadline_ns)
        self._timer: Timer | None = adapter.reactor.call_at(deadline_ns, self._handle_deadline)
        events = select.EPOLLOUT if state is State.CONNECTING else select.EPOLLIN
        adapter.reactor.watch(connection.fileno(), events, self._handle_socket)
        adapter.connections.add(self)
        if listener is not None:
            adapter.strangers.add(self)
        if problem:
            adapter.reactor.unwatch(connection.fileno())
            adapter.reactor.call_soon(
                lambda: self._fail(_kind_of(problem), f"connect: {_words(problem)}")
            )

    @property
    def stream(self) -> Stream | None:
        """Return the stream, once established."""
        return self._stream

    # -- what the application does

    def accept(self, qp: QueuePair | None, parameters: ConnectParameters) -> None:
        """Answer a request; the queue pair is in RTS when this returns. Raises OSError."""
        if self._state is not State.REQUESTED:
            raise OSError(errno.EINVAL, f"no request waits for an answer: {self._state.name}")
        self._adapter.check_connectable(qp, parameters)
        assert qp is not None
        self._parameters = parameters
        try:
            self._mpa.accept(self._terms())
        except WireError as error:
            raise OSError(errno.ENOMEM, str(error)) from None
        self._qp = qp
        self._adapter.own(self, qp)
        self._leave_queue()
        self._transmit_setup()
        event = self._mpa.poll_event()
        assert isinstance(event, MpaEstablished)
        self._establish(event)

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse a request; no event follows. Raises OSError: EINVAL, ENOMEM as `accept`."""
        if self._state is not State.REQUESTED:
            raise OSError(errno.EINVAL, f"no request waits for an answer: {self._state.name}")
        try:
            self._mpa.reject(private_data)
        except WireError as error:
            raise OSError(errno.ENOMEM, str(error)) from None
        self._transmit_setup()
        self._is_silent = True
        self._close_setup()

    def disconnect(self) -> None:
        """End the connection; DISCONNECTED follows, ERROR where none was established yet."""
        if self._state is State.ESTABLISHED and self._stream is not None:
            if self._stream.is_reading:
                # The queue pair is in the middle of a packet: let it finish first.
                self._adapter.reactor.call_soon(self._stream.disconnect)
            else:
                self._stream.disconnect()
        elif self._state is State.REQUESTED:
            self.reject()
        elif self._state is not State.OVER:
            self._fail(ConnectionEventKind.ERROR, "given up here")

    def close(self) -> None:
        """Forget the connection; what was sent before still leaves."""
        self._is_silent = True
        if self._state is State.ESTABLISHED:
            self.disconnect()
        elif self._state is not State.OVER:
            reset(self._socket)
            self._fail(ConnectionEventKind.ERROR, "forgotten here")

    def abort(self) -> None:
        """Drop the connection without a word, to either side."""
        self._is_silent = True
        if self._stream is not None:
            self._stream.abort()
            self._stream_ended(StreamEnd.BROKEN, "the device was closed")
        elif self._state is not State.OVER:
            self._close_setup()

    # -- set-up

    def _terms(self) -> MpaTerms:
        settings, parameters = self._adapter.settings, self._parameters
        return MpaTerms(
            ird=parameters.responder_resources,
            ord=parameters.initiator_depth,
            crc=settings.crc,
            own=settings.own,
            private_data=parameters.private_data,
        )

    def _name_ends(self) -> None:
        self.local = address_of(self._socket.getsockname())
        self.peer = address_of(self._socket.getpeername())

    def _handle_socket(self, events: int) -> None:
        if self._state is State.CONNECTING:
            self._handle_connected()
        elif self._state is State.REQUESTED:
            self._handle_impatience()
        else:
            self._handle_setup_octets()

    def _handle_connected(self) -> None:
        problem = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            self._fail(_kind_of(problem), f"connect: {_words(problem)}")
            return
        try:
            self._name_ends()
        except OSError:
            return  # not yet: an event of an earlier life of the descriptor
        self._state = State.SETTING_UP
        self._adapter.reactor.change(self._socket.fileno(), select.EPOLLIN)
        self._transmit_setup()

    def _handle_setup_octets(self) -> None:
        try:
            octets = self._socket.recv(SETUP_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(_kind_of(error.errno or 0), f"set-up: {error}")
            return
        if not octets:
            self._fail(ConnectionEventKind.ERROR, "the peer closed the connection in the set-up")
            return
        self._mpa.receive_data(octets)
        event = self._mpa.poll_event()
        if event is not None:
            self._handle_event(event)

    def _handle_event(self, event: MpaEvent) -> None:
        if isinstance(event, MpaEstablished):
            self._establish(event)
        elif isinstance(event, MpaRequested):
            self._handle_request(event)
        elif isinstance(event, MpaRejected):
            self._fail(
                ConnectionEventKind.REJECTED, "rejected by the peer", data=event.private_data
            )
        else:
            self._transmit_setup()  # a refusal that MPA has words for
            self._fail(ConnectionEventKind.ERROR, event.reason)

    def _handle_request(self, event: MpaRequested) -> None:
        assert self._listener is not None
        self._cancel_timer()
        self._adapter.strangers.discard(self)
        self._state = State.REQUESTED
        if not self._listener.take_request(self):
            self._adapter.stats.requests_refused += 1
            self._is_silent = True
            reset(self._socket)
            self._close_setup()
            return
        # What the initiator wants to make is what we shall serve, and the other way round.
        parameters = ConnectParameters(
            private_data=event.private_data,
            responder_resources=event.ord,
            initiator_depth=event.ird,
        )
        self._tell(ConnectionEventKind.REQUEST, parameters)

    def _handle_impatience(self) -> None:
        """Notice a peer that goes, or speaks, before our application has answered."""
        self._fail(ConnectionEventKind.ERROR, "the peer did not wait for the answer")

    def _transmit_setup(self) -> None:
        """Send frames of the set-up: less than any send buffer holds, on a fresh connection."""
        with suppress(OSError):
            while (octets := self._mpa.poll_transmit()) is not None:
                self._socket.send(octets, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _handle_deadline(self) -> None:
        self._timer = None
        if self._state is State.CONNECTING:
            self._fail(ConnectionEventKind.UNREACHABLE, "no connection in time")
        else:
            self._fail(ConnectionEventKind.UNREACHABLE, "no answer in time")

    def _fail(self, kind: ConnectionEventKind, reason: str, *, data: bytes = b"") -> None:
        """End a connection that never was one."""
        if self in self._adapter.strangers:
            self._adapter.stats.strangers_failed += 1
            self._is_silent = True  # nobody here has heard of it
        self._close_setup()
        if not self._is_silent:
            self._is_silent = True
            event = ConnectionEvent(kind, self, ConnectParameters(private_data=data), reason=reason)
            self._adapter.reactor.call_soon(lambda: self.on_event(event))

    def _close_setup(self) -> None:
        self._state = State.OVER
        self._cancel_timer()
        self._leave_queue()
        self._adapter.reactor.unwatch(self._socket.fileno())
        self._socket.close()
        self._adapter.forget(self, self._qp)

    def _leave_queue(self) -> None:
        self._adapter.strangers.discard(self)
        if self._listener is not None:
            self._listener.requests.discard(self)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the stream

    def _establish(self, agreed: MpaEstablished) -> None:
        assert self._qp is not None
        self._cancel_timer()
        self._state = State.ESTABLISHED
        is_initiator = self._listener is None
        self._adapter.reactor.unwatch(self._socket.fileno())
        self._stream = make_stream(
            self._adapter,
            self._socket,
            self._qp,
            agreed,
            self._parameters,
            peer=self.peer,
            is_initiator=is_initiator,
            on_end=self._stream_ended,
        )
        if is_initiator:
            self._adapter.stats.connections_made += 1
        else:
            self._adapter.stats.connections_taken += 1
        parameters = ConnectParameters(
            private_data=agreed.private_data,
            responder_resources=agreed.ird,
            initiator_depth=agreed.ord,
        )
        event = ConnectionEvent(ConnectionEventKind.ESTABLISHED, self, parameters)
        if is_initiator:
            self._hand_on(event)  # before the data that came with the reply
        else:
            self._adapter.reactor.call_soon(lambda: self._hand_on(event))
        first_write = is_initiator and agreed.first_frame == FirstFrame.WRITE
        remainder = self._mpa.remainder
        del self._mpa  # the set-up is over; thousands of connections live on
        self._stream.start(remainder, first_write=first_write)

    def _hand_on(self, event: ConnectionEvent) -> None:
        if not self._is_silent:
            self.on_event(event)

    def _tell(self, kind: ConnectionEventKind, parameters: ConnectParameters) -> None:
        self._hand_on(ConnectionEvent(kind, self, parameters))

    def _stream_ended(self, end: StreamEnd, reason: str) -> None:
        if self._state is State.OVER:
            return
        self._state = State.OVER
        self._adapter.forget(self, self._qp)
        if self._stream is not None and self._stream.is_open:
            self._adapter.leave(self._stream)
        kind = ConnectionEventKind[end.name]
        event = ConnectionEvent(kind, self, reason=reason)
        self._adapter.reactor.call_soon(lambda: self._hand_on(event))


def _kind_of(problem: int) -> ConnectionEventKind:
    if problem in _REFUSED:
        return ConnectionEventKind.REFUSED
    return ConnectionEventKind.UNREACHABLE if problem in _UNREACHABLE else ConnectionEventKind.ERROR


def _words(problem: int) -> str:
    return os.strerror(problem)


def is_connectable(qp: QueuePair) -> bool:
    """Tell whether a queue pair may be given to a connection."""
    return qp.qp_type is QPType.RC and qp.state in (QPState.RESET, QPState.INIT)


def deadline(timeout_ns: int) -> int:
    """Return the time of the clock that lies so far ahead."""
    return time.monotonic_ns() + timeout_ns
