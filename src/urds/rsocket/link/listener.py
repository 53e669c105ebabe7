"""Listening on all devices at once, at one port.

Requests are answered as they come, as many as the backlog has room for; what is connected waits
to be taken. librdmacm needs a thread for that, and accepts in it. Source:
docs/reference/rsocket.md 2.4, 16.
"""

import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from urds.common.errors import RemoteProtocolError
from urds.common.socket_class import KernelSocket
from urds.common.types import HostPort
from urds.rsocket.core.stream.records import StreamSettings
from urds.rsocket.link.devices import DeviceContext, Readiness
from urds.rsocket.link.stream_link import LinkState, StreamLink
from urds.verbs.providers import base

BACKLOG_MAX: Final = 4096
ANY_IPV4: Final = "0.0.0.0"


class PortReservation:
    """A port that is ours before a listener has it: a bound TCP socket of the kernel.

    The numbers of all devices are the kernel's, so that one name means one program. `address`
    stays known when the port was given back.
    """

    def __init__(
        self,
        address: HostPort,
        *,
        is_dual: bool = False,
        reuse: bool = True,
        is_held: bool = True,
    ) -> None:
        """Take an address; port 0 takes a free one. Raises OSError: EADDRINUSE, EADDRNOTAVAIL.

        `is_dual`: `::` with the same port of all IPv4 addresses. `is_held` False: simulated
        devices, whose ports the kernel does not have.
        """
        self.address = address
        self._socket: KernelSocket | None = None
        if is_held:
            self._hold(is_dual=is_dual, reuse=reuse)

    def _hold(self, *, is_dual: bool, reuse: bool) -> None:
        family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        self._socket = held = KernelSocket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
            if reuse:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(self.address)
            # The device that will listen here shares the port; without `reuse` others cannot.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            held.close()
            raise
        host, port = held.getsockname()[:2]
        self.address = host, port

    def close(self) -> None:
        """Give the port back. Safe twice."""
        if self._socket is not None:
            self._socket.close()


class StreamListener:
    """A listener over one or more devices, and the links that wait to be taken."""

    def __init__(
        self,
        address: HostPort,
        backlog: int,
        settings: StreamSettings,
        contexts: Sequence[DeviceContext],
        *,
        is_dual: bool = False,
    ) -> None:
        """Listen; port 0 takes one that is free on all. Raises OSError: EADDRINUSE and others.

        `is_dual`: at the same port of all IPv4 addresses as well; then `address` is of `::`.
        """
        self.contexts = list(contexts)
        self.settings = settings
        self.on_change: Callable[[], None] | None = None
        self.refused = 0  # requests that were none of an rsocket
        self._backlog = max(1, min(backlog, BACKLOG_MAX))
        self._links: deque[StreamLink] = deque()
        self._answered: set[StreamLink] = set()  # and not established yet
        # By device, each guarded by its lock: locks of two devices are never held together here.
        self._waiting: dict[DeviceContext, deque[base.VerbsConnectionEvent]] = {
            context: deque() for context in self.contexts
        }
        self._listeners: list[tuple[DeviceContext, base.Listener]] = []
        self.local = address
        reservation = None
        if address[1] == 0 and (is_dual or len(self.contexts) > 1):
            reservation = PortReservation(address, is_dual=is_dual)
            self.local = reservation.address
        try:
            for context in self.contexts:
                self.local = self._listen(context, self.local)
                if is_dual:
                    self._listen_for_ipv4(context)
        except OSError:
            self.close()
            raise
        finally:
            if reservation is not None:
                reservation.close()

    def _listen(self, context: DeviceContext, address: HostPort) -> HostPort:
        with context.adapter.lock:
            listener = context.adapter.listen(
                address,
                base.PortSpace.TCP,
                backlog=self._backlog,
                on_event=lambda event: self._handle_event(context, event),
            )
            self._listeners.append((context, listener))
            return listener.local

    def _listen_for_ipv4(self, context: DeviceContext) -> None:
        host, port = self.local
        try:
            self._listen(context, (ANY_IPV4, port))
        except OSError as error:
            detail = (
                f"{error}; {host} with IPV6_V6ONLY 0 needs port {port} of IPv4 on {context.name}"
            )
            raise OSError(error.errno, detail) from None

    def accept(self) -> StreamLink | None:
        """Take the next connected link, `None` if there is none. Never waits."""
        try:
            link = self._links.popleft()
        except IndexError:
            return None
        for context, waiting in self._waiting.items():
            if waiting:
                with context.adapter.lock:
                    self._answer_waiting(context)
        return link

    def readiness(self) -> Readiness:
        """Tell whether a link waits to be taken."""
        return Readiness(bool(self._links), False, False, False)

    def close(self) -> None:
        """Stop listening; links that were not accepted are broken off. Safe twice."""
        self.on_change = None
        listeners, self._listeners = self._listeners, []
        for context, listener in listeners:
            with context.adapter.lock:
                listener.close()
        for context, waiting in self._waiting.items():
            with context.adapter.lock:
                while waiting:
                    waiting.popleft().connection.close()
        links = [*self._links, *self._answered]
        self._links.clear()
        self._answered.clear()
        for link in links:
            link.close(0)

    # -- what the devices say; their lock held

    def _handle_event(self, context: DeviceContext, event: base.VerbsConnectionEvent) -> None:
        if event.kind is not base.ConnectionEventKind.REQUEST:
            return
        event.connection.on_event = lambda end: self._forget_request(context, end)
        self._waiting[context].append(event)
        context.adapter.call_soon(lambda: self._answer_waiting(context))

    def _forget_request(self, context: DeviceContext, end: base.VerbsConnectionEvent) -> None:
        """Drop a request that went before it was answered."""
        waiting = self._waiting[context]
        for request in list(waiting):
            if request.connection is end.connection:
                waiting.remove(request)

    def _answer_waiting(self, context: DeviceContext) -> None:
        """Answer requests while the backlog has room."""
        waiting = self._waiting[context]
        while waiting and len(self._links) + len(self._answered) < self._backlog:
            event = waiting.popleft()
            self._answer(context, event.connection, event.parameters.private_data)

    def _answer(
        self, context: DeviceContext, connection: base.VerbsConnection, private_data: bytes
    ) -> None:
        link = StreamLink([context], self.settings)
        link.on_change = lambda: self._note(link)
        self._answered.add(link)
        try:
            link.answer(connection, private_data)
        except RemoteProtocolError:
            self._answered.discard(link)
            self.refused += 1
            context.stats.refused_private_data += 1
            connection.reject()
        except OSError as error:
            self._answered.discard(link)
            if error.errno in (errno.ENOMEM, errno.EMFILE):
                connection.reject()
            else:
                connection.close()

    def _note(self, link: StreamLink) -> None:
        """Move a link that has been established to those that can be taken."""
        if link not in self._answered or link.state is LinkState.CONNECTING:
            return
        self._answered.discard(link)
        link.on_change = None
        if link.state is LinkState.CONNECTED:
            self._links.append(link)
            tell = self.on_change  # `close` may take it away meanwhile
            if tell is not None:
                tell()
        else:
            link.close(0)
            self._answer_waiting(link.context)
