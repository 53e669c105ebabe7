"""Connections and listeners of the reliable port space: TCP, the MPA set-up on it, the stream.

    initiator                       responder
    CONNECTING -- TCP ------------> pending connection (5 s, bounded numbers)
    SETTING_UP -- MPA request ----> REQUESTED: the listener's owner accepts or rejects
    ESTABLISHED <-- MPA reply ----- ESTABLISHED

One connection, one TCP connection, one queue pair: iWARP has no other way, so queue pairs of
this provider go to RTS here and nowhere else. The adapter's lock guards everything.
"""

import errno
import os
import select
import socket
import time
from collections import Counter
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from urds.common.errors import WireError
from urds.common.ip_sockets import address_of
from urds.common.timers import Timer
from urds.common.types import HostPort
from urds.verbs.cm.mpa import (
    MpaConnection,
    MpaEstablished,
    MpaEvent,
    MpaFirstFrame,
    MpaRejected,
    MpaRequested,
    MpaTerms,
)
from urds.verbs.engine.attributes import QPAttr
from urds.verbs.engine.numbers import PEER_ACCESS
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    Listener,
    OnConnectionEvent,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)
from urds.verbs.providers.packet_connection import packed, take_to_rts
from urds.verbs.providers.tcp.codec import Decoder, Encoder, OutstandingReads
from urds.verbs.providers.tcp.fpdu import CRC_BYTES, LENGTH_BYTES, UNTAGGED_BYTES
from urds.verbs.providers.tcp.sockets import prepare, reset
from urds.verbs.providers.tcp.stream import IwarpStream

if TYPE_CHECKING:
    from urds.verbs.providers.tcp.adapter import TcpAdapter

SETUP_READ_BYTES: Final = 4096
ACCEPTS_MAX: Final = 16  # of one turn, so that a flood does not starve the streams
# Payload of one packet, and so of one FPDU between urds nodes: the largest multiple of 32 that
# an FPDU holds. No FPDU needs padding then, and 64 KiB are two of them.
PACKET_BYTES_MAX: Final = 65_504
_OVERHEAD_BYTES: Final = LENGTH_BYTES + UNTAGGED_BYTES + 3 + CRC_BYTES
_PLAIN_BYTES_MIN: Final = 256  # whatever a path says its segments are
_REFUSED: Final = {errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE}
_UNREACHABLE: Final = {
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENETDOWN,
}  # fmt: skip


class TcpState(Enum):
    """States of a connection."""

    CONNECTING = auto()
    SETTING_UP = auto()
    REQUESTED = auto()  # our own application has the request
    ESTABLISHED = auto()
    OVER = auto()


class TcpConnection(VerbsConnection):
    """One connection, on either side."""

    def __init__(
        self,
        adapter: "TcpAdapter",
        connection: socket.socket,
        state: TcpState,
        *,
        on_event: OnConnectionEvent,
        deadline_ns: int,
        qp: QueuePair | None = None,
        parameters: ConnectParameters | None = None,
        listener: "TcpListener | None" = None,
        problem: int = 0,
    ) -> None:
        self.space = PortSpace.TCP
        self.local: HostPort = ("", 0)
        self.peer: HostPort = ("", 0)
        self.on_event = on_event
        self._adapter = adapter
        self._socket = connection
        self._state = state
        self._qp = qp
        self._parameters = parameters or ConnectParameters()
        self._listener = listener
        self._is_silent = False
        self.stream: IwarpStream | None = None
        if listener is not None:
            self._name_ends()  # raises OSError if the peer is gone already: nothing to undo yet
        terms = self._terms() if qp is not None else None
        self._mpa = MpaConnection(terms, deadline_ns=deadline_ns)
        self._timer: Timer | None = adapter.loop.call_at(deadline_ns, self._handle_deadline)
        events = select.EPOLLOUT if state is TcpState.CONNECTING else select.EPOLLIN
        adapter.loop.watch(connection.fileno(), events, self._handle_socket)
        adapter.connections.add(self)
        if listener is not None:
            adapter.pending.add(self)
        if problem:
            adapter.loop.unwatch(connection.fileno())
            adapter.loop.call_soon(lambda: self._fail_connect(problem))

    # -- what the application does

    def accept(self, qp: QueuePair | None, parameters: ConnectParameters) -> None:
        """Accept a request; the queue pair is in RTS when this returns. Raises OSError."""
        if self._state is not TcpState.REQUESTED:
            raise OSError(errno.EINVAL, f"no request waits for an answer: {self._state.name}")
        self._adapter.check_connectable(qp, parameters)
        assert qp is not None
        self._parameters = parameters
        try:
            self._mpa.accept(self._terms())
        except WireError as error:
            raise OSError(errno.ENOMEM, str(error)) from None
        self._qp = qp
        self._adapter.owners[qp.qpn] = self
        self._leave_queue()
        self._transmit_setup()
        event = self._mpa.poll_event()
        assert isinstance(event, MpaEstablished)
        self._establish(event)

    def reject(self, private_data: bytes = b"") -> None:
        """Reject a request; no event follows. Raises OSError: EINVAL, ENOMEM as `accept`."""
        if self._state is not TcpState.REQUESTED:
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
        if self._state is TcpState.ESTABLISHED and self.stream is not None:
            self.stream.disconnect()
        elif self._state is TcpState.REQUESTED:
            self.reject()
        elif self._state is not TcpState.OVER:
            self._fail(ConnectionEventKind.ERROR, "given up here")

    def close(self) -> None:
        """Forget the connection; bytes sent before still go out."""
        self._is_silent = True
        if self._state is TcpState.ESTABLISHED:
            self.disconnect()
        elif self._state is not TcpState.OVER:
            reset(self._socket)
            self._fail(ConnectionEventKind.ERROR, "forgotten here")

    def abort(self) -> None:
        """Drop the connection; neither side is told."""
        self._is_silent = True
        if self.stream is not None:
            self.stream.abort()
            self._stream_ended(ConnectionEventKind.BROKEN, "the device was closed")
        elif self._state is not TcpState.OVER:
            self._close_setup()

    # -- set-up

    def _terms(self) -> MpaTerms:
        settings, parameters = self._adapter.settings, self._parameters
        return MpaTerms(
            ird=parameters.responder_resources,
            ord=parameters.initiator_depth,
            crc=settings.crc,
            urds_peer=settings.urds_extensions,
            private_data=parameters.private_data,
        )

    def _name_ends(self) -> None:
        self.local = address_of(self._socket.getsockname())
        self.peer = address_of(self._socket.getpeername())

    def _handle_socket(self, events: int) -> None:
        if self._state is TcpState.CONNECTING:
            self._handle_connected()
        elif self._state is TcpState.REQUESTED:
            self._fail(ConnectionEventKind.ERROR, "the peer did not wait for the answer")
        else:
            self._handle_setup_bytes()

    def _handle_connected(self) -> None:
        problem = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            self._fail_connect(problem)
            return
        try:
            self._name_ends()
        except OSError:
            return  # not yet: an event of an earlier use of the descriptor
        self._state = TcpState.SETTING_UP
        self._adapter.loop.change(self._socket.fileno(), select.EPOLLIN)
        self._transmit_setup()

    def _fail_connect(self, problem: int) -> None:
        self._fail(_kind_of(problem), f"connect: {os.strerror(problem)}")

    def _handle_setup_bytes(self) -> None:
        try:
            data = self._socket.recv(SETUP_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(_kind_of(error.errno or 0), f"set-up: {error}")
            return
        if not data:
            self._fail(ConnectionEventKind.ERROR, "the peer closed the connection in the set-up")
            return
        self._mpa.receive_data(data)
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
            self._transmit_setup()  # a rejection that MPA can express
            self._fail(ConnectionEventKind.ERROR, event.reason)

    def _handle_request(self, event: MpaRequested) -> None:
        assert self._listener is not None
        self._cancel_timer()
        self._adapter.pending.discard(self)
        self._state = TcpState.REQUESTED
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
        self._hand_on(VerbsConnectionEvent(ConnectionEventKind.REQUEST, self, parameters))

    def _transmit_setup(self) -> None:
        """Send frames of the set-up: smaller than any send buffer, on a fresh connection."""
        with suppress(OSError):
            while (data := self._mpa.poll_transmit()) is not None:
                self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _handle_deadline(self) -> None:
        self._timer = None
        missing = "connection" if self._state is TcpState.CONNECTING else "answer"
        self._fail(ConnectionEventKind.UNREACHABLE, f"no {missing} in time")

    def _fail(self, kind: ConnectionEventKind, reason: str, *, data: bytes = b"") -> None:
        """End a connection that was not established."""
        if self in self._adapter.pending:
            self._adapter.stats.pending_failed += 1
            self._is_silent = True  # it was never reported
        self._close_setup()
        if not self._is_silent:
            self._is_silent = True
            event = VerbsConnectionEvent(
                kind, self, ConnectParameters(private_data=data), reason=reason
            )
            self._adapter.loop.call_soon(lambda: self.on_event(event))

    def _close_setup(self) -> None:
        self._state = TcpState.OVER
        self._cancel_timer()
        self._leave_queue()
        self._adapter.loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._adapter.forget(self, self._qp)

    def _leave_queue(self) -> None:
        self._adapter.pending.discard(self)
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
        self._state = TcpState.ESTABLISHED
        is_initiator = self._listener is None
        self._adapter.loop.unwatch(self._socket.fileno())
        self.stream = self._make_stream(self._qp, agreed, is_initiator=is_initiator)
        parameters = ConnectParameters(
            private_data=agreed.private_data,
            responder_resources=agreed.ird,
            initiator_depth=agreed.ord,
        )
        event = VerbsConnectionEvent(ConnectionEventKind.ESTABLISHED, self, parameters)
        if is_initiator:
            self._hand_on(event)  # before the data that came with the reply
        else:
            self._adapter.loop.call_soon(lambda: self._hand_on(event))
        first_write = is_initiator and agreed.first_frame == MpaFirstFrame.WRITE
        remainder = self._mpa.remainder
        del self._mpa  # the set-up is over; thousands of connections live on
        self.stream.start(remainder, first_write=first_write)

    def _make_stream(
        self, qp: QueuePair, agreed: MpaEstablished, *, is_initiator: bool
    ) -> IwarpStream:
        """Take the queue pair to RTS and connect it to the socket by the codec."""
        settings, parameters = self._adapter.settings, self._parameters
        urds_peer = agreed.urds_peer
        attr = QPAttr(
            # The keys' rights decide; a queue pair in INIT keeps the rights it has.
            qp_access_flags=PEER_ACCESS,
            ah_attr=AddressVector(packed(self.peer[0]), self.peer[1]),
            max_rd_atomic=agreed.ord,
            max_dest_rd_atomic=agreed.ird,
            min_rnr_timer=settings.rnr_timer_code,
            retry_cnt=min(7, parameters.retry_count),
            rnr_retry=min(7, parameters.rnr_retry_count),
        )
        take_to_rts(qp, attr, time.monotonic_ns())
        payload_bytes_max = PACKET_BYTES_MAX
        if not urds_peer:
            # RFC 5044 section 5 asks for FPDUs that fit one TCP segment; hardware likes them so.
            segment_bytes = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            fitting = segment_bytes - _OVERHEAD_BYTES
            payload_bytes_max = max(_PLAIN_BYTES_MIN, min(PACKET_BYTES_MAX, fitting))
        reads, crc = OutstandingReads(inbound_max=max(1, agreed.ird)), agreed.crc
        return IwarpStream(
            self._adapter,
            self._socket,
            qp,
            Encoder(reads, urds_peer=urds_peer, crc=crc, payload_bytes_max=payload_bytes_max),
            Decoder(reads, target_qpn=qp.qpn, urds_peer=urds_peer, crc=crc),
            urds_peer=urds_peer,
            may_send=urds_peer or is_initiator,
            farewell_ns=settings.farewell_ns,
            on_end=self._stream_ended,
        )

    def _hand_on(self, event: VerbsConnectionEvent) -> None:
        if not self._is_silent:
            self.on_event(event)

    def _stream_ended(self, kind: ConnectionEventKind, reason: str) -> None:
        if self._state is TcpState.OVER:
            return
        self._state = TcpState.OVER
        self._adapter.forget(self, self._qp)
        if self.stream is not None and self.stream.is_open:
            self._adapter.leaving.add(self.stream)
        event = VerbsConnectionEvent(kind, self, reason=reason)
        self._adapter.loop.call_soon(lambda: self._hand_on(event))


def _kind_of(problem: int) -> ConnectionEventKind:
    if problem in _REFUSED:
        return ConnectionEventKind.REFUSED
    return ConnectionEventKind.UNREACHABLE if problem in _UNREACHABLE else ConnectionEventKind.ERROR


class PendingConnections(set[TcpConnection]):
    """Accepted connections without a whole MPA frame, counted by host."""

    def __init__(self) -> None:
        super().__init__()
        self._hosts: Counter[str] = Counter()

    def of(self, host: str) -> int:
        """Return how many come from a host."""
        return self._hosts[host]

    def add(self, connection: TcpConnection) -> None:
        """Add a connection, which knows its peer."""
        super().add(connection)
        self._hosts[connection.peer[0]] += 1

    def discard(self, connection: object) -> None:
        """Remove a connection; no error if it is not there."""
        if isinstance(connection, TcpConnection) and connection in self:
            self.remove(connection)
            host = connection.peer[0]
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]


class TcpListener(Listener):
    """One listening address; at most `backlog` requests wait for its owner."""

    def __init__(
        self,
        adapter: "TcpAdapter",
        listener: socket.socket,
        *,
        backlog: int,
        on_event: OnConnectionEvent,
    ) -> None:
        self.local = address_of(listener.getsockname())
        self._adapter = adapter
        self._socket = listener
        self._backlog = backlog
        self._on_event = on_event
        self._is_closed = False
        self.requests: set[TcpConnection] = set()  # that wait for the owner's answer
        adapter.loop.watch(listener.fileno(), select.EPOLLIN, self._handle_readable)
        adapter.listeners.add(self)

    def close(self) -> None:
        """Stop listening. Requests already given stay valid; pending connections are dropped."""
        if self._is_closed:
            return
        self._is_closed = True
        self._adapter.listeners.discard(self)
        self._adapter.loop.unwatch(self._socket.fileno())
        self._socket.close()

    def _handle_readable(self, _events: int) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, name = self._socket.accept()
            except OSError:
                return  # nothing more, or the peer is gone, or no descriptor is left
            if self._is_welcome(address_of(name)[0]):
                settings = self._adapter.settings
                prepare(
                    connection,
                    send_bytes=settings.send_buffer_bytes,
                    receive_bytes=settings.receive_buffer_bytes,
                )
                self._take(connection)
            else:
                self._adapter.stats.pending_dropped += 1
                reset(connection)
                connection.close()

    def _is_welcome(self, host: str) -> bool:
        settings, pending = self._adapter.settings, self._adapter.pending
        return (
            len(pending) < settings.pending_max and pending.of(host) < settings.pending_per_host_max
        )

    def _take(self, connection: socket.socket) -> None:
        try:
            TcpConnection(
                self._adapter,
                connection,
                TcpState.SETTING_UP,
                on_event=self._on_event,
                deadline_ns=time.monotonic_ns() + self._adapter.settings.pending_ns,
                listener=self,
            )
        except OSError:
            connection.close()  # gone between accept and our look at its address

    def take_request(self, connection: TcpConnection) -> bool:
        """Admit the request of a pending connection, unless closed or the backlog is full."""
        if self._is_closed or len(self.requests) >= self._backlog:
            return False
        self.requests.add(connection)
        return True
