"""Who connects to us: taken from the listeners in short turns, and let in.

A stream that is let in costs a path, our map and a question who its peer is. While few strangers
are silent that is paid at once. While there are many, a new one waits in the *lobby*, at the price
of a watched descriptor, until his first header is here: a peer that means it sends one at once,
for its map comes first. Who waits for too long goes, and who makes it too many has somebody go:
the eldest of the address that has most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from urds.dataplane.base import Address, Interest
from urds.driver.clock import now_ns
from urds.driver.hosts import LocalHost
from urds.proto.strangers import Strangers
from urds.proto.timers import Timers
from urds.transport import tcp
from urds.wire.header import HEADER_BYTES

if TYPE_CHECKING:
    from urds.driver.driver import Driver

_ACCEPTS_PER_TURN: Final = 64
_REST_FACTOR: Final = 1  # of the processor time that a turn took, while more wait
_EXHAUSTED_REST_NS: Final = 100_000_000  # when descriptors are used up


@dataclass(frozen=True, slots=True)
class _Guest:
    peer: Address
    source_port: int
    stream: tcp.TcpStream


@dataclass(slots=True)
class _Lobby:
    """Those who wait at one local address, by descriptor."""

    strangers: Strangers
    timers: Timers
    guests: dict[int, _Guest] = field(default_factory=dict)


class Acceptor:
    """Accepts for every address of a driver; control lock held."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lobbies: dict[Address, _Lobby] = {}

    def handler(self, host: LocalHost) -> Callable[[], None]:
        """Return what is to be called when the listener of an address is readable."""
        return lambda: self._accept(host)

    def handle_timeout(self, host: LocalHost, at_ns: int) -> int | None:
        """End rests, dismiss the silent; return when that is due next."""
        if host.listen_at_ns is not None and host.listen_at_ns <= at_ns:
            host.listen_at_ns = None
            self._listen(host)
        lobby = self._lobbies.get(host.address)
        silent_at_ns = None
        if lobby is not None:
            while (key := lobby.timers.pop_due(at_ns)) is not None:
                self._dismiss(lobby, key.number)
                self._driver.stats.strangers_silent += 1
            silent_at_ns = lobby.timers.next_ns()
        due_ns = [one for one in (host.listen_at_ns, silent_at_ns) if one is not None]
        return min(due_ns, default=None)

    def close(self) -> None:
        """Dismiss everybody."""
        for lobby in self._lobbies.values():
            for guest in lobby.guests.values():
                guest.stream.close()
        self._lobbies.clear()

    def _listen(self, host: LocalHost) -> None:
        self._driver.serve(host.listener.fileno(), self.handler(host), Interest.READ)

    def _accept(self, host: LocalHost) -> None:
        """Take some of what waits; a flood of connections gets half of the thread's time at most.

        Without descriptors to take one, rest as well, or the thread would spin.
        """
        began_ns = time.thread_time_ns()
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted = tcp.accept(host.listener, self._driver.tcp)
            except OSError:
                host.listen_at_ns = now_ns() + _EXHAUSTED_REST_NS
                return
            if accepted is None:
                self._listen(host)
                return
            stream, (name, port) = accepted
            guest = _Guest(ip_address(name), port, stream)
            if host.endpoint.is_crowded(guest.peer):
                self._have_wait(host, guest)
            else:
                self._let_in(host, guest)
        host.listen_at_ns = now_ns() + _REST_FACTOR * (time.thread_time_ns() - began_ns)

    def _let_in(self, host: LocalHost, guest: _Guest) -> None:
        number = self._driver.streams.keep(host, guest.peer, guest.stream)
        with self._driver.guard.confine(host, guest.peer):
            host.endpoint.handle_accepted(number, guest.peer, guest.source_port, now_ns())
        self._driver.carry_out(host)

    def _have_wait(self, host: LocalHost, guest: _Guest) -> None:
        lobby = self._lobbies.get(host.address)
        if lobby is None:
            timers = Timers()
            strangers = Strangers(host.endpoint.lobby_settings(), timers)
            lobby = self._lobbies[host.address] = _Lobby(strangers, timers)
        descriptor = guest.stream.fileno()
        if not lobby.strangers.admit(descriptor, guest.peer, now_ns()):
            self._driver.stats.refused_strangers += 1
            guest.stream.reset()
            return
        lobby.guests[descriptor] = guest
        guest.stream.expect(HEADER_BYTES)
        self._driver.serve(descriptor, lambda: self._enter(host, lobby, descriptor), Interest.READ)
        one_too_many = lobby.strangers.one_too_many()
        if one_too_many is None:
            return
        eldest = one_too_many[0]
        if lobby.guests[eldest].stream.waiting() >= HEADER_BYTES:
            self._enter(host, lobby, eldest)  # he spoke, and we did not hear it yet
        else:
            self._driver.stats.refused_strangers += 1
            self._dismiss(lobby, eldest)

    def _enter(self, host: LocalHost, lobby: _Lobby, descriptor: int) -> None:
        """Let in a guest whose first header is here; else his stream has ended."""
        guest = lobby.guests.pop(descriptor)
        lobby.strangers.forget(descriptor)
        self._driver.stop_serving(descriptor)
        # The report may have been about an earlier stream of this number; then it is still watched.
        self._driver.plane.unwatch(descriptor)
        if guest.stream.waiting() >= HEADER_BYTES:
            guest.stream.expect(1)
            self._let_in(host, guest)
        else:
            guest.stream.reset()

    def _dismiss(self, lobby: _Lobby, descriptor: int) -> None:
        guest = lobby.guests.pop(descriptor)
        lobby.strangers.forget(descriptor)
        self._driver.stop_serving(descriptor)
        guest.stream.reset()
