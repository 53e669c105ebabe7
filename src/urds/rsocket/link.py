"""One connected stream: a queue pair, its connection, and the core that says what goes over it.

A link never waits. Calls of the application take the adapter's lock, change the core, and carry
away what it has to say; completions come in through the opening, which settles the links they
concern once the device's call is over. `on_change` tells whoever shows or waits for readiness.

A connect tries the devices in their order: the next one when nobody listens on the one before.
"""

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from urds.errors import RemoteProtocolError
from urds.rsocket.alarms import Alarm, alarms
from urds.rsocket.link_data import LinkData, LinkState, Readiness
from urds.rsocket.opening import Opening
from urds.rsocket.stream import Memory, Shut, Stream, StreamSettings
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.providers.base import (
    Address,
    Connection,
    ConnectionEvent,
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
)

LINGER_S: Final = 30.0  # how long a closed link goes on sending what was accepted
_NS: Final = 1_000_000_000
# What the end of a connect means. Source: rsocket.md 2.4 and 11.
_CONNECT_ERRNO: Final = {
    ConnectionEventKind.REFUSED: errno.ECONNREFUSED,
    ConnectionEventKind.REJECTED: errno.ECONNREFUSED,
    ConnectionEventKind.UNREACHABLE: errno.ETIMEDOUT,
    ConnectionEventKind.ERROR: errno.ECONNABORTED,
    ConnectionEventKind.DISCONNECTED: errno.ECONNABORTED,
    ConnectionEventKind.BROKEN: errno.ECONNRESET,
}


def parameters_with(private_data: bytes) -> ConnectParameters:
    """Return what an rsocket says when it connects or accepts. Source: rsocket.md 2.2."""
    return ConnectParameters(
        private_data=private_data,
        responder_resources=0,
        initiator_depth=0,
        retry_count=7,
        rnr_retry_count=7,
    )


class Link(LinkData):
    """One side of a connection, from the connect or the request on."""

    def __init__(self, openings: Sequence[Opening], settings: StreamSettings) -> None:
        """Make an idle link over the first of these devices that knows the peer."""
        super().__init__(openings, settings)
        self._connection: Connection | None = None
        self._rest: list[Opening] = []  # devices that a connect has not tried
        self._connect_timeout_ns: int | None = None
        self._is_closed = False
        self._is_disconnecting = False
        self._alarm: Alarm | None = None  # of the keepalive
        self._alarm_ns: int | None = None
        self._linger: Alarm | None = None

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
        """Ask the next device; one that cannot ask at all is passed over. Call it without locks."""
        problem = OSError(errno.ECONNREFUSED, f"nobody listens at {self.peer}")
        while self._rest:
            opening = self._rest.pop(0)
            with opening.adapter.lock:
                if self._is_closed:
                    return
                self.opening = opening
                try:
                    self._ask()
                    return
                except OSError as error:
                    problem = error
                    self._drop()
        raise problem

    def _go_on(self) -> None:
        """Ask the next device after the one before has refused."""
        before = self.opening
        try:
            self._try_next()
        except OSError as error:
            with self._locked() as opening:
                self._be_refused(error.errno or errno.ECONNREFUSED, str(error))
                opening.mark(self)
        with before.adapter.lock:
            before.mark(self)  # who waits there looks where the link is now

    @contextmanager
    def _locked(self) -> Iterator[Opening]:
        """Hold the lock of the device that the link is on, which a connect may change."""
        while True:
            opening = self.opening
            with opening.adapter.lock:
                if opening is self.opening:
                    yield opening
                    return

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
        try:
            stream, qp = self._prepare()
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

    # -- the end

    def close(self, linger_s: float | None = None) -> None:
        """Let go of the link; what was accepted leaves in the background, LINGER_S at most.

        `linger_s` 0 breaks the connection off at once. Safe twice; returns at once.
        """
        with self._locked() as opening:
            if self._is_closed:
                return
            self._is_closed = True
            self.on_change = None
            stream = self.stream
            if stream is None or self.state is not LinkState.CONNECTED or linger_s == 0:
                self._end("closed")
                return
            stream.shut_down(Shut.RDWR)
            opening.leaving.add(self)
            self._carry(stream)
            self._leave_if_done()
            if self in opening.leaving and opening.adapter.has_own_time:
                limit_ns = int((LINGER_S if linger_s is None else linger_s) * _NS)
                self._linger = alarms.call_at(time.monotonic_ns() + limit_ns, self._give_up)

    def _give_up(self) -> None:
        with self._locked() as opening:
            if self in opening.leaving:
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
        self.state = LinkState.OVER
        stream = self.stream
        if stream is None or self._is_closed or not stream.is_connected:
            self._drop()
        else:
            stream.handle_disconnected(reason, error)
            self._forget_queue_pair()
        self._leave()
        self.opening.mark(self)

    def _end(self, reason: str) -> None:
        """Be gone: no queue pair, no memory."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self.state, self.reason = LinkState.OVER, reason
        self._leave()
        self._drop()

    def _leave(self) -> None:
        """Be counted and waited for no more."""
        self.opening.leaving.discard(self)
        for alarm in (self._alarm, self._linger):
            if alarm is not None:
                alarm.cancel()
        self._alarm = self._linger = None

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
            # Not here: the lock of this device is held, and the next one has its own.
            alarms.call_at(time.monotonic_ns(), self._go_on)
            return
        self._be_refused(
            _CONNECT_ERRNO[event.kind], event.reason or f"connect to {self.peer}: {event.kind.name}"
        )
        self.opening.mark(self)

    def _be_refused(self, error: int, reason: str) -> None:
        self.error, self.reason, self.state = error, reason, LinkState.OVER

    # -- time

    def _plan_alarm(self, stream: Stream) -> None:
        deadline_ns = stream.poll_timeout()
        if deadline_ns is None or deadline_ns == self._alarm_ns:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ns = deadline_ns
        self._alarm = alarms.call_at(deadline_ns, self._ring)

    def _ring(self) -> None:
        with self._locked():
            self._alarm_ns = None
            stream = self.stream
            if stream is not None and self.state is LinkState.CONNECTED:
                stream.handle_timeout(time.monotonic_ns())
                self._carry(stream)
                self._plan_alarm(stream)


__all__ = ["Link", "LinkState", "Memory", "Readiness", "parameters_with"]
