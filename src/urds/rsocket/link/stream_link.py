"""One connected stream: a queue pair, its connection, and the core that says what goes over it.

A link never waits. Calls of the application take the adapter's lock, change the core, and post
what it has to send; completions come in through the device context at the end of a pass, which lets
the links that they concern finish then. `on_change` tells what shows or awaits readiness.

A connect tries the devices in their order: the next one when no peer listens on the one before.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from urds.common.errors import RemoteProtocolError
from urds.common.progress import progress_thread
from urds.common.timers import Timer
from urds.common.types import HostPort
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import Post, Shut, StreamSettings
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DeviceContext, Readiness
from urds.rsocket.link.native_stream import NativeStream, may_be_native
from urds.verbs.engine.numbers import QPState, WCOpcode, WCStatus, WROpcode
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.requests import SendRequest
from urds.verbs.engine.work import WC, SendWR
from urds.verbs.providers import base

if TYPE_CHECKING:
    from urds.rsocket.waiting import Watchers

LINGER_S: Final = 30.0  # how long a closed link goes on sending what was accepted
_NS: Final = 1_000_000_000
# What the end of a connect means. Source: docs/reference/rsocket.md 2.4, 11.
_CONNECT_ERRNO: Final = {
    base.ConnectionEventKind.REFUSED: errno.ECONNREFUSED,
    base.ConnectionEventKind.REJECTED: errno.ECONNREFUSED,
    base.ConnectionEventKind.UNREACHABLE: errno.ETIMEDOUT,
    base.ConnectionEventKind.ERROR: errno.ECONNABORTED,
    base.ConnectionEventKind.DISCONNECTED: errno.ECONNABORTED,
    base.ConnectionEventKind.BROKEN: errno.ECONNRESET,
}


def parameters_with(private_data: bytes) -> base.ConnectParameters:
    """Return the parameters of a connect or accept. Source: docs/reference/rsocket.md 2.2."""
    return base.ConnectParameters(
        private_data=private_data,
        responder_resources=0,
        initiator_depth=0,
        retry_count=7,
        rnr_retry_count=7,
    )


class LinkState(Enum):
    """The states of a link. OVER is final."""

    IDLE = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    OVER = auto()


@dataclass(slots=True, eq=False)
class _SendQueue:
    """The queue pair of a link, and what was posted to it from the caller's memory."""

    qp: QueuePair | None = None
    # Each with its record, where the engine gives one.
    zero_copy_posts: list[tuple[SendRequest | None, Post]] = field(default_factory=list)

    def post_all(self, stream: StreamCore, adapter: base.Adapter) -> None:
        """Post all that the stream has to send, and have it progress."""
        qp, has_posted = self.qp, False
        if qp is None or qp.state is not QPState.RTS:
            return
        while (post := stream.poll_transmit()) is not None:
            wr = SendWR(
                0,
                WROpcode.RDMA_WRITE if post.imm_data is None else WROpcode.RDMA_WRITE_WITH_IMM,
                imm_data=post.imm_data or 0,
                remote_addr=post.address,
                rkey=post.rkey,
                data=post.data,
            )
            request = qp.post_send(wr, 0)  # only datagrams and timers look at the time
            if post.is_zero_copy:
                self.zero_copy_posts.append((request, post))
            has_posted = True
        if has_posted:
            adapter.progress_qp(qp)
            if self.zero_copy_posts:
                self._detach(qp, stream)

    def _detach(self, qp: QueuePair, stream: StreamCore) -> None:
        """Give the caller its memory back: what has not left the queue pair yet is copied."""
        if any(request is None for request, _ in self.zero_copy_posts):
            stream.stats.bytes_copied_in += qp.detach_data()
        for request, post in self.zero_copy_posts:
            if request is not None:
                stream.stats.bytes_copied_in += request.detach()
            post.data = b""
        self.zero_copy_posts.clear()

    def forget(self, context: DeviceContext) -> None:
        """Drop the queue pair."""
        qp, self.qp = self.qp, None
        if qp is not None:
            context.forget(qp)


@dataclass(slots=True, eq=False)
class _LinkTimers:
    """The keepalive of a link, and the end of its lingering."""

    _keepalive: Timer | None = None
    _keepalive_ns: int | None = None
    _linger: Timer | None = None

    def plan_keepalive(self, deadline_ns: int | None, call: Callable[[], None]) -> None:
        """Call at a deadline instead of the one before; None changes nothing."""
        if deadline_ns is None or deadline_ns == self._keepalive_ns:
            return
        if self._keepalive is not None:
            self._keepalive.cancel()
        self._keepalive_ns = deadline_ns
        self._keepalive = progress_thread.call_at(deadline_ns, call)

    def note_keepalive(self) -> None:
        """Note that the keepalive has been called."""
        self._keepalive_ns = None

    def linger(self, limit_ns: int, call: Callable[[], None]) -> None:
        """Call after a time."""
        self._linger = progress_thread.call_at(time.monotonic_ns() + limit_ns, call)

    def cancel(self) -> None:
        """Call nothing any more."""
        for timer in (self._keepalive, self._linger):
            if timer is not None:
                timer.cancel()
        self._keepalive = self._linger = None


class StreamLink:
    """One side of a connection, from the connect or the request on."""

    def __init__(self, contexts: Sequence[DeviceContext], settings: StreamSettings) -> None:
        """Make an idle link over the first of these devices that knows the peer."""
        self.contexts = list(contexts)  # that can change it; once connected the one it is on
        self.context = self.contexts[0]
        self.settings = settings
        self.state = LinkState.IDLE
        self.error = 0
        self.reason = ""  # of the end, for people
        self.local: HostPort | None = None
        self.peer: HostPort | None = None
        self.on_change: Callable[[], None] | None = None
        self.stream: StreamCore | None = None
        self.native: NativeStream | None = None  # `stream` too, where it is compiled
        self._watchers: Watchers | None = None
        self._is_cut = False
        self._send_queue = _SendQueue()
        self._early_imm_data: list[int] = []  # of messages before the peer's connect data
        self._connection: base.VerbsConnection | None = None
        self._untried: list[DeviceContext] = []  # by a connect
        self._connect_timeout_ns: int | None = None
        self._is_closed = False
        self._is_disconnecting = False
        self._timers = _LinkTimers()

    # -- connecting

    def connect(
        self, peer: HostPort, *, local: HostPort | None = None, timeout_s: float | None = None
    ) -> None:
        """Ask for a connection and return at once; `state` and `error` tell how it went.

        Raises OSError for what can be told at once: EINVAL, EADDRNOTAVAIL, ENOMEM.
        """
        self.peer, self.local = peer, local
        self._connect_timeout_ns = None if timeout_s is None else int(timeout_s * _NS)
        self._untried = list(self.contexts)
        self.state = LinkState.CONNECTING
        try:
            self._try_next()
        except OSError:
            self.state = LinkState.IDLE
            raise

    def _try_next(self) -> None:
        """Ask the next device; one that cannot ask at all is passed over. Call it without locks."""
        problem = OSError(errno.ECONNREFUSED, f"nothing listens at {self.peer}")
        while self._untried:
            context = self._untried.pop(0)
            with context.adapter.lock:
                if self._is_closed:
                    return
                self.context = context
                try:
                    self._ask()
                    return
                except OSError as error:
                    problem = error
                    self._drop()
        raise problem

    def _go_on(self) -> None:
        """Ask the next device after the one before has refused."""
        before = self.context
        try:
            self._try_next()
        except OSError as error:
            with self._locked() as context:
                self.error = error.errno or errno.ECONNREFUSED
                self.reason = error.strerror or str(error)
                self.state = LinkState.OVER
                context.mark(self)
        with before.adapter.lock:
            before.mark(self)  # a call that waits there looks where the link is now

    @contextmanager
    def _locked(self) -> Iterator[DeviceContext]:
        """Hold the lock of the device that the link is on, which a connect may change."""
        while True:
            context = self.context
            with context.adapter.lock:
                if context is self.context:
                    yield context
                    return

    def _ask(self) -> None:
        context = self.context
        assert self.peer is not None, "a link that connects has a peer"
        stream, qp = self._prepare()
        context.stats.connects += 1
        self._connection = context.adapter.connect(
            qp,
            self.peer,
            base.PortSpace.TCP,
            parameters_with(stream.connect_data),
            on_event=self._handle_event,
            local=self.local,
            timeout_ns=self._connect_timeout_ns,
        )

    def _prepare(self) -> tuple[StreamCore, QueuePair]:
        stream, qp = _make_stream(self, self.context)
        self.stream, self._send_queue.qp = stream, qp
        self._follow_watchers()
        return stream, qp

    def show(self, watchers: Watchers) -> None:
        """Tell these watchers of changes from now on."""
        self._watchers, self.on_change = watchers, watchers.tell
        self._follow_watchers()

    def _follow_watchers(self) -> None:
        if self.native is not None and self._watchers is not None:
            self._watchers.follow(self.native.native.set_watched)

    def answer(self, connection: base.VerbsConnection, private_data: bytes) -> None:
        """Accept a request, whose private data are an rsocket's; lock held.

        Raises RemoteProtocolError for those that are not, OSError as `VerbsConnection.accept`; then
        nothing is left of the link, and the request waits for its answer.
        """
        try:
            stream, qp = self._prepare()
            own_data = stream.connect_data
            stream.adopt(private_data)
            self.state = LinkState.CONNECTING
            self._connection, connection.on_event = connection, self._handle_event
            self.local, self.peer = connection.local, connection.peer
            self.context.stats.accepts += 1
            connection.accept(qp, parameters_with(own_data))
        except (RemoteProtocolError, OSError):
            self._connection = None
            self._drop()
            raise

    # -- the end

    def close(self, linger_s: float | None = None) -> None:
        """Close the link; what was accepted leaves in the background, LINGER_S at most.

        `linger_s` 0 breaks the connection off at once. Safe twice; returns at once.
        """
        with self._locked() as context:
            if self._is_closed:
                return
            self._is_closed = True
            self.on_change = None
            stream = self.stream
            if stream is None or self.state is not LinkState.CONNECTED or linger_s == 0:
                self._end("closed")
                return
            context.leaving.add(self)
            stream.lifecycle.shut_down(Shut.RDWR)
            if self in context.leaving:  # a compiled stream may be over when the call returns
                self._post_all(stream)
                self._leave_if_done()
            if self in context.leaving and context.adapter.has_own_time:
                limit_ns = int((LINGER_S if linger_s is None else linger_s) * _NS)
                self._timers.linger(limit_ns, self._give_up)

    def _give_up(self) -> None:
        with self._locked() as context:
            if self in context.leaving:
                self._end("what was sent did not leave in time")

    def _leave_if_done(self) -> None:
        """Disconnect once the peer has been told and everything sent has arrived."""
        stream, connection = self.stream, self._connection
        if stream is None or connection is None or self._is_disconnecting:
            return
        if stream.wants_disconnect:
            self._is_disconnecting = True
            connection.disconnect()

    def _lose(self, error: int, reason: str) -> None:
        """Be over; what has arrived stays readable."""
        self._leave(reason)
        stream = self.stream
        if stream is None or self._is_closed or not stream.lifecycle.is_connected:
            self._drop()
        else:
            stream.handle_disconnected(reason, error)
            self._send_queue.forget(self.context)
        self.context.mark(self)

    def _end(self, reason: str) -> None:
        """Be gone: no queue pair, no memory."""
        self._leave(reason)
        self._drop()

    def _leave(self, reason: str) -> None:
        """Be over: without a connection, and waited for no more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self.state, self.reason = LinkState.OVER, reason
        self.context.leaving.discard(self)
        self._timers.cancel()

    def _drop(self) -> None:
        self._send_queue.forget(self.context)
        if self.stream is not None:
            self.stream.close()
            self.stream = self.native = None

    # -- data

    def send(self, data: memoryview, *, may_zero_copy: bool = True) -> int:
        """Take bytes to send and return how many: 0 if there is no room. Never waits.

        From 16 KiB up bytes are written from the caller's memory, which is free again on return.
        Raises OSError: ECONNRESET, ENOTCONN.
        """
        with self.context.adapter.lock:
            stream = _connected(self)
            taken = stream.send(data, may_zero_copy=may_zero_copy)
            self._post_all(stream)  # what gathered before may go even if nothing was taken
            return taken

    def receive_into(self, view: memoryview, *, peek: bool = False) -> int:
        """Copy bytes that are there and return how many: 0 for none, or at the end. Never waits.

        Raises OSError: ENOTCONN; what broke the connection, once all that arrived was taken.
        """
        with self.context.adapter.lock:
            stream = _connected(self)
            taken = stream.receive_ring.receive_into(view, peek=peek)
            _note_taken(self, stream, taken, len(view))
            return taken

    def receive(self, byte_count_max: int, *, peek: bool = False) -> bytes:
        """Return bytes that are there, in one copy; otherwise as `receive_into`."""
        with self.context.adapter.lock:
            stream = _connected(self)
            data = stream.receive_ring.receive(byte_count_max, peek=peek)
            _note_taken(self, stream, len(data), byte_count_max)
            return data

    def shut_down(self, how: Shut) -> None:
        """End one direction or both. Raises OSError: ENOTCONN."""
        with self.context.adapter.lock:
            stream = _connected(self)
            stream.lifecycle.shut_down(how)
            self._post_all(stream)
            self._tell()

    def post_pending(self) -> None:
        """Post what calls to `stream` gave it to send. Lock held."""
        if self.stream is not None:
            self._post_all(self.stream)

    def _post_all(self, stream: StreamCore) -> None:
        if self.state is LinkState.CONNECTING:
            return
        if self.native is not None:
            self.native.post_pending()
        else:
            self._send_queue.post_all(stream, self.context.adapter)

    # -- readiness

    def readiness(self) -> Readiness:
        """Tell what may be done without waiting. Safe without the lock."""
        return _readiness(self)

    @property
    def is_ended(self) -> bool:
        """Return whether no more bytes will come and all were taken."""
        return self.stream is None or self.stream.is_ended

    def take_error(self) -> int:
        """Return the errno of what went wrong and forget it: SO_ERROR."""
        with self.context.adapter.lock:
            error, self.error = self.error, 0
            if not error and self.stream is not None:
                error = self.stream.lifecycle.take_error()
            return error

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # -- what the device says; lock held

    def finish_pass(self) -> None:
        """Post what is to be sent, and tell what has changed."""
        stream = self.stream
        if stream is not None:
            self._post_all(stream)
            self._leave_if_done()
            self._timers.plan_keepalive(stream.poll_timeout(), self._keep_alive)
        self._tell()

    def _handle_event(self, event: base.VerbsConnectionEvent) -> None:
        """Take an event of the connection.

        Data may be right behind the one that connects: the stream is ready for it on return. All
        others are acted on outside of the call that brings them.
        """
        if event.connection is not self._connection:
            return
        if event.kind is base.ConnectionEventKind.ESTABLISHED:
            self._establish(event)
        else:
            self.context.adapter.call_soon(partial(self._handle_end, event))

    def _handle_end(self, event: base.VerbsConnectionEvent) -> None:
        if event.connection is not self._connection:
            return
        if self.state is LinkState.CONNECTING:
            _fail_connect(self, event)
        elif self.state is LinkState.CONNECTED:
            # In order the peer's DISCONNECT comes before: then the stream is over already.
            self._lose(errno.ECONNRESET, event.reason or f"connection ended: {event.kind.name}")

    def _establish(self, event: base.VerbsConnectionEvent) -> None:
        stream, connection = self.stream, self._connection
        assert stream is not None and connection is not None, "connecting links have both"
        try:
            if not stream.lifecycle.is_connected:
                stream.adopt(event.parameters.private_data)
        except RemoteProtocolError as error:
            self.error = errno.EOPNOTSUPP
            self._cut_soon(f"private data of {self.peer}: {error}")
            return
        self.state = LinkState.CONNECTED
        self.contexts = [self.context]
        self.local, self.peer = connection.local, connection.peer
        if self.native is not None:
            self.native.begin()
        while self._early_imm_data:
            self._take_imm_data(stream, self._early_imm_data.pop(0))
        self.context.mark(self)

    def handle_received(self, wc: WC) -> None:
        """Take the completion of a receive."""
        stream = self.stream
        if stream is None or wc.status is not WCStatus.SUCCESS:
            return  # the connection tells
        if wc.opcode is not WCOpcode.RECV_RDMA_WITH_IMM:
            self._cut_soon(f"{wc.opcode.name} where a write with immediate data was due")
        elif stream.lifecycle.is_connected:
            self._take_imm_data(stream, wc.imm_data)
        elif len(self._early_imm_data) < self.settings.receive_queue:
            # The peer may be first: its messages wait until the event brings its connect data.
            self._early_imm_data.append(wc.imm_data)
        else:
            self._cut_soon("more messages before the connect data than there are credits")

    def _take_imm_data(self, stream: StreamCore, imm_data: int) -> None:
        try:
            stream.receive_data(imm_data)
        except RemoteProtocolError as error:
            self._cut_soon(str(error))

    def handle_sent(self, wc: WC) -> None:
        """Take the completion of a request."""
        stream = self.stream
        if stream is None:
            return
        if wc.status is WCStatus.SUCCESS:
            stream.handle_sent()
        elif wc.status is not WCStatus.WR_FLUSH_ERR:
            self._cut_soon(f"a write failed: {wc.status.name}")

    def handle_news(self) -> None:
        """Hear that the compiled stream has changed. Lock held."""
        native = self.native
        if native is None:
            return
        cut = native.native.take_cut()
        if cut is not None and not self._is_cut:
            self._is_cut = True
            self._cut_soon(cut)
        self.context.mark(self)

    def _cut_soon(self, reason: str) -> None:
        """Break off a connection whose peer broke the protocol, after the call that says so."""
        self.context.stats.cut_links += 1
        self.context.adapter.call_soon(partial(self._lose, errno.ECONNRESET, reason))

    # -- time

    def _keep_alive(self) -> None:
        with self._locked():
            self._timers.note_keepalive()
            stream = self.stream
            if stream is not None and self.state is LinkState.CONNECTED:
                stream.handle_timeout(time.monotonic_ns())
                self._post_all(stream)
                self._timers.plan_keepalive(stream.poll_timeout(), self._keep_alive)


def _readiness(link: StreamLink) -> Readiness:
    stream = link.stream
    if link.state is LinkState.CONNECTING or link.state is LinkState.IDLE:
        return Readiness(False, False, link.state is LinkState.IDLE, False)
    if stream is None:
        return Readiness(True, True, True, bool(link.error))
    failed = bool(stream.lifecycle.error or link.error)
    is_over = link.state is LinkState.OVER
    return Readiness(
        stream.is_readable or is_over or failed,
        stream.is_writable or is_over or failed,
        is_over or not (stream.lifecycle.can_read or stream.lifecycle.can_write),
        failed,
    )


def _make_stream(link: StreamLink, context: DeviceContext) -> tuple[StreamCore, QueuePair]:
    """Make stream and queue pair of a link, compiled where the device's engine is."""
    settings = link.settings
    if not may_be_native(context, settings):
        stream = link.stream = StreamCore(settings, context)  # given back if there is no queue pair
        return stream, context.queue_pair(link, settings.send_queue)
    qp = context.queue_pair(link, settings.send_queue)
    try:
        link.native = NativeStream(context, qp, settings)
    except OSError:
        context.forget(qp)
        raise
    context.hear_stream(qp.qpn, link.handle_news)
    return cast(StreamCore, link.native), qp  # all of it that is called here


def wait_on(link: StreamLink, is_ready: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait for what happens on a link that is connected; see `devices.wait`."""
    native = link.native
    if native is None:
        return devices.wait((link.context,), is_ready, timeout_s)
    native.native.listen()
    try:
        return devices.wait((link.context,), is_ready, timeout_s)
    finally:
        native.native.leave()


def _note_taken(link: StreamLink, stream: StreamCore, taken: int, wanted: int) -> None:
    """Announce the space; OSError if the connection broke and nothing of it is left to take."""
    if taken:
        link._post_all(stream)
    elif wanted and stream.lifecycle.error and not stream.receive_ring.readable_bytes:
        raise OSError(stream.lifecycle.take_error(), link.reason or "the connection is broken")


def _connected(link: StreamLink) -> StreamCore:
    stream = link.stream
    if link.context.is_abandoned:
        raise OSError(errno.EBADF, "the socket belongs to the parent of this process")
    if stream is None or link.state in (LinkState.IDLE, LinkState.CONNECTING):
        raise OSError(errno.ENOTCONN, f"the socket is not connected ({link.state.name})")
    return stream


def _fail_connect(link: StreamLink, event: base.VerbsConnectionEvent) -> None:
    link._connection = None
    link._drop()
    if event.kind is base.ConnectionEventKind.REFUSED and link._untried:
        # Not here: the lock of this device is held, and the next one has its own.
        progress_thread.call_soon(link._go_on)
        return
    link.error = _CONNECT_ERRNO[event.kind]
    link.reason = event.reason or f"connect to {link.peer}: {event.kind.name}"
    link.state = LinkState.OVER
    link.context.mark(link)
