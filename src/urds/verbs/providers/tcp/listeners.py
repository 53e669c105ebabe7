"""Listening addresses of the reliable port space, and the bounds of pending connections."""

import select
import socket
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from urds.verbs.providers.base import Listener, OnConnectionEvent
from urds.verbs.providers.tcp.connections import TcpConnection, TcpState, deadline
from urds.verbs.providers.tcp.sockets import address_of, prepare, reset

if TYPE_CHECKING:
    from urds.verbs.providers.tcp.adapter import TcpAdapter

ACCEPTS_MAX: Final = 16  # of one turn, so that a flood does not starve the streams


class PendingConnections:
    """Accepted connections without a whole MPA frame, counted by host."""

    def __init__(self) -> None:
        self._all: set[TcpConnection] = set()
        self._hosts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> "Iterator[TcpConnection]":
        return iter(self._all)

    def __contains__(self, connection: object) -> bool:
        return connection in self._all

    def of(self, host: str) -> int:
        """Return how many come from a host."""
        return self._hosts[host]

    def add(self, connection: TcpConnection) -> None:
        """Add a connection, which knows its peer."""
        self._all.add(connection)
        self._hosts[connection.peer[0]] += 1

    def discard(self, connection: TcpConnection) -> None:
        """Remove a connection; no error if it is not there."""
        if connection in self._all:
            self._all.remove(connection)
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
        adapter.reactor.watch(listener.fileno(), select.EPOLLIN, self._handle_readable)
        adapter.listeners.add(self)

    def close(self) -> None:
        """Stop listening. Requests already given stay valid; pending connections are dropped."""
        if self._is_closed:
            return
        self._is_closed = True
        self._adapter.listeners.discard(self)
        self._adapter.reactor.unwatch(self._socket.fileno())
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
                deadline_ns=deadline(self._adapter.settings.pending_ns),
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
