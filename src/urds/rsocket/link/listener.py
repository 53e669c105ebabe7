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
_UDP: Final = "udp"  # the provider whose ports are UDP's
_PORTS_TRIED: Final = 64


class PortReservation:
    """A port that is ours before a listener has it: a bound TCP socket of the kernel.

    The numbers of all devices are the kernel's, so that one name means one program. A device that
    sends datagrams needs the same number of UDP: a free port is one that is free there too.
    `address` stays known when the port was given back.
    """

    def __init__(
        self,
        address: HostPort,
        contexts: Sequence[DeviceContext],
        *,
        is_dual: bool = False,
        reuse: bool = True,
    ) -> None:
        """Take an address; port 0 takes a free one. Raises OSError: EADDRINUSE, EADDRNOTAVAIL.

        `is_dual`: `::` with the same port of all IPv4 addresses. Simulated devices take no
        port of the kernel.
        """
        self.address = address
        self._stream: socket.socket | None = None
        self._datagrams: socket.socket | None = None
        if all(context.adapter.has_own_time for context in contexts):
            needs_udp = any(context.adapter.attributes.provider == _UDP for context in contexts)
            self._hold(is_dual=is_dual, reuse=reuse, needs_udp=needs_udp and not address[1])

    def _hold(self, *, is_dual: bool, reuse: bool, needs_udp: bool) -> None:
        wanted = self.address
        for left in reversed(range(_PORTS_TRIED if needs_udp else 1)):
            stream = _bound_socket(wanted, socket.SOCK_STREAM, is_dual=is_dual, reuse=reuse)
            host, port = stream.getsockname()[:2]
            try:
                if needs_udp:
                    self._datagrams = _bound_socket(
                        (host, port), socket.SOCK_DGRAM, is_dual=is_dual
                    )
            except OSError as failure:
                stream.close()
                if failure.errno != errno.EADDRINUSE or not left:
                    raise
                continue
            self._stream, self.address = stream, (host, port)
            return

    def make_room(self) -> None:
        """Make room for the devices' own sockets: TCP's share the port, UDP's cannot."""
        if self._datagrams is not None:
            self._datagrams.close()

    def close(self) -> None:
        """Give the port back. Safe twice."""
        self.make_room()
        if self._stream is not None:
            self._stream.close()


def _bound_socket(
    address: HostPort, kind: socket.SocketKind, *, is_dual: bool, reuse: bool = False
) -> socket.socket:
    """Return a socket at an address. Raises OSError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    bound = KernelSocket(family, kind | socket.SOCK_CLOEXEC)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        if reuse:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        if kind == socket.SOCK_STREAM:
            # The device that will listen here shares the port; without `reuse` others cannot.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            # To itself alone: the kernel refuses what others send, for nothing listens yet.
            bound.connect(bound.getsockname())
    except OSError:
        bound.close()
        raise
    return bound


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
        # TCP lets one more wait. Source: linux v6.12 include/net/sock.h sk_acceptq_is_full.
        self._backlog = min(max(0, backlog), BACKLOG_MAX) + 1
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
            reservation = PortReservation(address, self.contexts, is_dual=is_dual)
            self.local = reservation.address
            reservation.make_room()
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
