"""The asyncio shell of the sessions: one RDS socket, its task that receives, its timer.

An endpoint lives in one event loop and ends with its last session and listener. Every session has a
`Link`, through which a comm uses it. All of it runs in the loop's thread.
"""

from __future__ import annotations

import asyncio
import errno
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from urds import aio
from urds.dask import local
from urds.dask.alive import Watches, can_watch, own_hello
from urds.dask.farewell import farewells
from urds.dask.hub import Address, Hub
from urds.dask.session import Limits, Packet, Session
from urds.dask.stream import Allocate
from urds.rds.constants import MSG_DONTWAIT
from urds.rds.socket import Socket

_NS: Final = 1_000_000_000
_DONTWAIT: Final = int(MSG_DONTWAIT)
_SESSION_BITS: Final = 64
_JOINED_BYTES_MAX: Final = 16 << 10  # a copy of so much is cheaper than a message of buffers
OnAccept = Callable[["Link"], None]


class Endpoint:
    """One socket and its sessions; made in the thread of its loop."""

    def __init__(self, sock: Socket, group: Endpoints, limits: Limits, allocate: Allocate) -> None:
        self.address: Address = sock.getsockname()[:2]
        self.loop, self.watches = group.loop, group.watches
        self.hub = Hub(limits=limits, hello=own_hello(limits.window_bytes), allocate=allocate)
        self.raw, self.socket = sock, aio.Socket(sock)
        self._group = group
        self._links: dict[Session, Link] = {}
        self._on_accept: OnAccept | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._random = random.SystemRandom()
        self.is_closed = False
        self._receiver = self.loop.create_task(self._receive())

    # -- its users

    def listen(self, on_accept: OnAccept) -> None:
        """Accept sessions, and call back with the link of each."""
        self._on_accept, self.hub.is_listening = on_accept, True

    def stop_listening(self) -> None:
        """Accept no more; sessions stay."""
        self._on_accept, self.hub.is_listening = None, False
        self.close_if_unused()

    @property
    def is_listening(self) -> bool:
        """Tell whether it accepts sessions."""
        return self.hub.is_listening

    def open(self, peer: Address) -> Link:
        """Ask a peer for a session."""
        number = self._random.getrandbits(_SESSION_BITS)
        session = self.hub.open(peer, number, time.monotonic_ns())
        link = self._links[session] = Link(self, session, peer)
        link.push()
        self._arm()
        return link

    def forget(self, link: Link) -> None:
        """Remove a session that is over and has nothing more to send. Idempotent."""
        if self._links.pop(link.session, None) is not None:
            self.hub.forget(link.peer, link.session)
        self.close_if_unused()

    def close_if_unused(self) -> None:
        """Close the socket if nothing needs it; what was sent still leaves. Idempotent."""
        if not (self.is_closed or self._links or self.is_listening or self._sending):
            self.close()

    def close(self) -> None:
        """Close the socket; sessions end."""
        self.is_closed = True
        self._group.drop(self)
        if self._timer is not None:
            self._timer.cancel()
        self._receiver.cancel()
        farewells.add(self.socket, self.raw)
        for link in tuple(self._links.values()):
            link.session.handle_peer_gone("the socket was closed")
            link.wake()

    # -- sending

    def send_now(self, packet: Packet, peer: Address) -> bool:
        """Send a packet if that needs no wait; tell whether it was sent. Raises OSError."""
        if sum(map(len, packet)) <= _JOINED_BYTES_MAX:
            attempt = self.socket.send_to(b"".join(packet), peer)
        else:
            attempt = self.socket.sendmsg(packet, (), _DONTWAIT, peer)
        try:
            attempt.send(None)
        except StopIteration:
            return True
        except OSError as refused:
            if refused.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
            return False
        attempt.close()  # the loop's turn; nothing was queued
        return False

    def start_sending(self, link: Link) -> asyncio.Task[None]:
        """Send for a link in a task."""
        task = self.loop.create_task(link.send_waiting())
        self._sending.add(task)
        task.add_done_callback(self._sent)
        return task

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self.close_if_unused()

    # -- receiving and time

    async def _receive(self) -> None:
        try:
            while True:
                payload, source = await self.socket.recv_from()
                self._handle(payload, source[:2])
        except OSError as ended:
            if not self.is_closed:
                self._fail(str(ended))
        except asyncio.CancelledError:  # closed, or the loop ends
            if not self.is_closed:
                self.close()
            raise

    def _handle(self, payload: bytes, peer: Address) -> None:
        session = self.hub.handle(payload, peer, time.monotonic_ns())
        while (accepted := self.hub.poll_accepted()) is not None:
            self._accept(*accepted)
        while (answer := self.hub.poll_answer()) is not None:
            with suppress(OSError):
                self.send_now(answer[1], answer[0])  # if not, it is asked for again
        if session is not None:
            link = self._links.get(session)
            if link is not None:
                link.wake()

    def _accept(self, peer: Address, session: Session) -> None:
        link = self._links[session] = Link(self, session, peer)
        link.push()
        self._arm()
        if self._on_accept is None:
            link.abort()
        else:
            self._on_accept(link)

    def _fail(self, reason: str) -> None:
        for link in tuple(self._links.values()):
            link.session.handle_peer_gone(reason)
            link.wake()
        if not self.is_closed:
            self.close()

    def _arm(self) -> None:
        """Have the timer go off for the next deadline, if it is not set for one before."""
        deadline_ns = self.hub.deadline_ns()
        if deadline_ns is None or self.is_closed:
            return
        wait_s = max(0, deadline_ns - time.monotonic_ns()) / _NS
        when = self.loop.time() + wait_s
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.hub.handle_time(time.monotonic_ns())
        for link in tuple(self._links.values()):
            link.wake()
        self._arm()


class Link:
    """A session and the tasks that wait for it."""

    def __init__(self, endpoint: Endpoint, session: Session, peer: Address) -> None:
        self.endpoint, self.session, self.peer = endpoint, session, peer
        self._unsent: Packet | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_watching = False

    async def opened(self) -> None:
        """Wait for the peer's answer. Raises ConnectionRefusedError."""
        while self.session.state.value == "asking":
            await self._wait()
        if self.session.is_over:
            raise ConnectionRefusedError(errno.ECONNREFUSED, self.session.reason)

    async def send(self, frames: list[memoryview]) -> None:
        """Send a message; return when the buffers are the caller's again.

        Raises ConnectionError if the session is over before.
        """
        session = self.session
        if not session.is_writable:
            raise ConnectionError(session.reason)
        number = session.send(frames)
        self.push()
        while not session.is_sent(number) or self._unsent is not None:
            if session.is_over:
                raise ConnectionError(session.reason)
            await self._wait()

    async def receive(self) -> list[memoryview]:
        """Wait for a message. Raises ConnectionError when the session is over and all is read."""
        session = self.session
        while (frames := session.receive()) is None:
            if session.is_closed:
                raise ConnectionError(session.reason)
            await self._wait()
        self.push()  # credit
        return frames

    async def finish(self) -> None:
        """Let what is queued leave, then end the session."""
        self.session.finish()
        self.wake()
        while not self.session.is_over or self._unsent is not None:
            await self._wait()

    def abort(self) -> None:
        """End the session at once. Never waits; in the loop's thread."""
        if self.session.state.value == "asking" and not self.endpoint.is_closed:
            self.session.abort()
            self._take_back()
        self.session.abort()
        self.wake()

    def wake(self) -> None:
        """Send what there is to send; have those that wait look again."""
        self.push()
        self._watch()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def push(self) -> None:
        """Send what can be sent without waiting; leave the rest to a task."""
        if self._task is not None or self.endpoint.is_closed:
            return
        try:
            while self._next() is not None:
                assert self._unsent is not None
                if not self.endpoint.send_now(self._unsent, self.peer):
                    self._task = self.endpoint.start_sending(self)
                    return
                self._unsent = None
        except OSError as refused:
            self._refused(refused)
        if self.session.is_over:
            self._over()

    async def send_waiting(self) -> None:
        """Send what there is to send, after waiting for room; the endpoint's task."""
        try:
            while self._next() is not None:
                assert self._unsent is not None
                await self.endpoint.socket.sendmsg(self._unsent, (), 0, self.peer)
                self._unsent = None
        except OSError as refused:
            self._refused(refused)
        finally:
            self._task = None
            self.wake()

    def _next(self) -> Packet | None:
        if self._unsent is None:
            self._unsent = self.session.poll_packet()
        return self._unsent

    def _refused(self, refused: OSError) -> None:
        self._unsent = None
        self.session.handle_peer_gone(str(refused))

    def _over(self) -> None:
        hello = self.session.peer_hello
        if self._is_watching and hello is not None:
            self._is_watching = False
            self.endpoint.watches.remove(hello, self._peer_ended)
        self.endpoint.forget(self)

    def _watch(self) -> None:
        hello, session = self.session.peer_hello, self.session
        if self._is_watching or session.is_over or hello is None:
            return
        if session.peer_is_watched or not can_watch(session.hello, hello):
            return
        session.peer_is_watched = self.endpoint.watches.add(hello, self._peer_ended)
        self._is_watching = session.peer_is_watched

    def _peer_ended(self) -> None:
        # What it sent before may still be on its way through this process: take that first.
        self.endpoint.loop.call_later(0.05, self._give_up)

    def _give_up(self) -> None:
        self.session.handle_peer_gone("the process of the peer has ended")
        self.wake()

    def _take_back(self) -> None:
        """Remove questions that a peer that is not there has not taken."""
        if not self.endpoint.hub.has_others(self.peer, self.session):
            with suppress(OSError):
                self.endpoint.raw.cancel(self.peer)

    async def _wait(self) -> None:
        future = self.endpoint.loop.create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)


class Endpoints:
    """The endpoints of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.watches = Watches(loop)
        self._endpoints: dict[Address, Endpoint] = {}

    def listening(
        self, host: str, port: int, limits: Callable[[], Limits], allocate: Allocate
    ) -> Endpoint:
        """Return an endpoint for a listener; a new one asks for its limits. Raises OSError."""
        known = self._endpoints.get((host, port))
        if known is not None and not known.is_listening:  # its listener stopped, sessions live
            return known
        farewells.close_at((host, port))
        chosen = limits()
        return self._add(local.open_listening(host, port), chosen, allocate)

    def towards(self, host: str, limits: Callable[[], Limits], allocate: Allocate) -> Endpoint:
        """Return an endpoint from which a host can be reached, one that is here if possible.

        A new one asks for its limits. Raises OSError.
        """
        source = local.source_towards(host)
        for (own, _), endpoint in self._endpoints.items():
            if own in (source, host) or local.are_loopback(own, source):
                return endpoint
        chosen = limits()
        return self._add(local.open_towards(host), chosen, allocate)

    def drop(self, endpoint: Endpoint) -> None:
        """Take note that an endpoint was closed."""
        self._endpoints.pop(endpoint.address, None)

    def abandon(self) -> None:
        """Close what a loop left open that is closed itself."""
        self.watches.close()
        for endpoint in tuple(self._endpoints.values()):
            endpoint.is_closed = True
            farewells.add(endpoint.socket, endpoint.raw)
        self._endpoints.clear()

    def _add(self, sock: Socket, limits: Limits, allocate: Allocate) -> Endpoint:
        endpoint = Endpoint(sock, self, limits, allocate)
        self._endpoints[endpoint.address] = endpoint
        return endpoint


_lock = threading.Lock()
_by_loop: dict[asyncio.AbstractEventLoop, Endpoints] = {}


def endpoints() -> Endpoints:
    """Return the endpoints of the running loop; those of loops that are closed go."""
    loop = asyncio.get_running_loop()
    with _lock:
        for other in tuple(_by_loop):
            if other.is_closed():
                _by_loop.pop(other).abandon()
        found = _by_loop.get(loop)
        if found is None:
            found = _by_loop[loop] = Endpoints(loop)
    return found
