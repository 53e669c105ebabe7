"""Lanes of a driver: who dials one, who accepts it, and when TCP is taken instead.

A lane is tried before every TCP connection to a peer; that costs a system call where nobody
listens. It comes to its path as a TCP connection does, with the port that one would have, so the
rules of who connects and which path a stream is for are the same. Without a control socket of the
peer's own user on this host, without an answer in time, after anything odd: TCP.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from socket import MSG_NOSIGNAL, socket
from typing import TYPE_CHECKING, Final

from urds.dataplane.base import Address, Interest
from urds.driver.clock import now_ns
from urds.driver.hosts import LocalHost
from urds.proto.paths import SourcePortRule
from urds.transport import lane, tcp

if TYPE_CHECKING:
    from urds.dataplane.compiled.lane import Lane
    from urds.driver.driver import Driver

_S = 1_000_000_000
_ANSWER_NS: Final = 1 * _S  # of a control thread that has much to do
_SHUN_NS: Final = 60 * _S  # after a breach, before a lane is tried again
_GUESTS_MAX: Final = 64
_ACCEPTS_PER_TURN: Final = 64
_EXHAUSTED_REST_NS: Final = _S // 10  # when descriptors are used up
_LANES_MAX: Final = 1024  # each takes two rings when it is busy; beyond it TCP


@dataclass(frozen=True, slots=True)
class _Dial:
    host: LocalHost
    peer: Address
    index: int
    rule: SourcePortRule | None
    line: socket
    stream: Lane
    until_ns: int


@dataclass(frozen=True, slots=True)
class _Guest:
    host: LocalHost
    line: socket
    until_ns: int


class Lanes:
    """Lanes under way, by the descriptor of their line; control lock held."""

    def __init__(self, driver: Driver, make: Callable[..., Lane] | None) -> None:
        """Use `make` for our ends; None, or a setting, leaves all to TCP."""
        self._driver = driver
        wanted = driver.settings.shared_memory and lane.is_possible()
        self._make = make if wanted else None
        self._listeners: dict[Address, socket] = {}
        self._dials: dict[int, _Dial] = {}
        self._guests: dict[int, _Guest] = {}
        self._rests: dict[Address, tuple[LocalHost, int]] = {}  # listeners, until when
        self._known: dict[tuple[Address, Address], Lane] = {}
        self._shunned: dict[tuple[Address, Address], int] = {}

    def listen(self, host: LocalHost) -> None:
        """Accept lanes to an address, if its name is free."""
        if self._make is None:
            return
        listener = lane.listen(host.address, self._driver.tcp.port)
        if listener is not None:
            self._listeners[host.address] = listener
            self._serve(host, listener)

    def _serve(self, host: LocalHost, listener: socket) -> None:
        self._driver.serve(listener.fileno(), lambda: self._accept(host, listener), Interest.READ)

    # -- dialling

    def dial(self, host: LocalHost, peer: Address, index: int, rule: SourcePortRule | None) -> bool:
        """Begin to dial; false if there is nobody. Should it fail later, TCP is taken then."""
        if self._make is None or not self._may(host.address, peer):
            return False
        line = lane.connect(peer, self._driver.tcp.port)
        if line is None:
            return False
        try:
            stream = self._greet(line, host.address, peer, rule)
        except OSError:
            line.close()
            return False
        descriptor = line.fileno()
        self._dials[descriptor] = _Dial(
            host, peer, index, rule, line, stream, now_ns() + _ANSWER_NS
        )
        confined = self._driver.guard.confined(host, peer, lambda: self._answered(descriptor))
        self._driver.serve(descriptor, confined, Interest.READ)
        return True

    def _greet(
        self, line: socket, local: Address, peer: Address, rule: SourcePortRule | None
    ) -> Lane:
        """Make our end and offer the other. Raises OSError."""
        assert self._make is not None
        ring_bytes = self._driver.settings.shared_memory_bytes
        port = 0
        if rule is not None:
            low, high = tcp.port_range()
            port = next(iter(rule.ports(range_low=low, range_high=high)), 0)
        memory = lane.make_memory(self._memory_bytes(ring_bytes))
        try:
            stream = self._make(
                line.fileno(),
                memory,
                ring_bytes,
                dials=True,
                local=(local, port),
                peer=(peer, self._driver.tcp.port),
            )
            lane.send_greeting(line, lane.Greeting(local, peer, port, ring_bytes), memory)
        finally:
            os.close(memory)
        return stream

    def _memory_bytes(self, ring_bytes: int) -> int:
        make = self._make
        assert make is not None
        octets: int = make.memory_bytes(ring_bytes)  # type: ignore[attr-defined]  # of the class
        return octets

    def _answered(self, descriptor: int) -> None:
        dial = self._dials.pop(descriptor)
        octets = b""
        with suppress(OSError):
            octets = dial.line.recv(len(lane.ANSWER))  # and not the bell behind it
        dial.line.close()  # the lane has its own descriptor of it
        connection = dial.host.endpoint.find(dial.peer)
        if octets != lane.ANSWER or connection is None:
            self._fall_back(dial)
            return
        number = self._keep(dial.host, dial.peer, dial.stream)
        dial.host.endpoint.handle_connected(dial.peer, dial.index, number, now_ns(), own=True)

    def _fall_back(self, dial: _Dial) -> None:
        dial.stream.close()
        if dial.host.endpoint.find(dial.peer) is not None:
            self._driver.streams.connect_by_tcp(dial.host, dial.peer, dial.index, dial.rule)

    # -- accepting

    def _accept(self, host: LocalHost, listener: socket) -> None:
        """Take some of what waits, and hear whom each greets.

        Then rest for as long as it took: a flood gets half of the thread's time at most.
        """
        began_ns = time.thread_time_ns()
        try:
            for _ in range(_ACCEPTS_PER_TURN):
                line = lane.accept(listener)
                if line is None:
                    continue
                if len(self._guests) >= _GUESTS_MAX:
                    line.close()
                    continue
                self._guests[line.fileno()] = _Guest(host, line, now_ns() + _ANSWER_NS)
                self._hear(line.fileno())
        except BlockingIOError:
            self._serve(host, listener)
            return
        except OSError:  # out of descriptors: a peer takes TCP when its time to wait is over
            self._rests[host.address] = host, now_ns() + _EXHAUSTED_REST_NS
            return
        self._rests[host.address] = host, now_ns() + time.thread_time_ns() - began_ns

    def _hear(self, descriptor: int) -> None:
        self._driver.serve(descriptor, lambda: self._greeted(descriptor), Interest.READ)

    def _greeted(self, descriptor: int) -> None:
        guest = self._guests.pop(descriptor)
        with guest.line as line, suppress(OSError, ValueError):
            greeting, memory = lane.receive_greeting(line)
            try:
                self._let_in(guest.host, line, greeting, memory)
            finally:
                os.close(memory)

    def _let_in(self, host: LocalHost, line: socket, greeting: lane.Greeting, memory: int) -> None:
        """Take a lane as a TCP connection would be taken. Raises OSError."""
        peer = greeting.local
        refused = greeting.peer != host.address or not self._may(host.address, peer)
        if self._make is None or refused or host.endpoint.is_crowded(peer):
            return
        if greeting.ring_bytes > self._driver.settings.shared_memory_bytes:
            return  # what he asks for costs us memory too
        stream = self._make(
            line.fileno(),
            memory,
            greeting.ring_bytes,
            dials=False,
            local=(host.address, self._driver.tcp.port),
            peer=(peer, greeting.source_port),
        )
        if line.send(lane.ANSWER, MSG_NOSIGNAL) != len(lane.ANSWER):
            stream.close()
            return
        number = self._keep(host, peer, stream)
        with self._driver.guard.confine(host, peer):
            host.endpoint.handle_accepted(number, peer, greeting.source_port, now_ns(), own=True)
        self._driver.carry_out(host)

    # -- both

    def _keep(self, host: LocalHost, peer: Address, stream: Lane) -> int:
        self._known[host.address, peer] = stream
        return self._driver.streams.keep(host, peer, stream)

    def _may(self, local: Address, peer: Address) -> bool:
        """Tell whether a lane may be tried: there are not too many, and the last was honest."""
        key, now = (local, peer), now_ns()
        last = self._known.get(key)
        if last is not None and last.breached:
            del self._known[key]
            self._shun(key, now)
        if self._shunned.get(key, 0) > now:
            return False
        self._shunned.pop(key, None)
        if len(self._known) >= _LANES_MAX:
            self._known = {key: one for key, one in self._known.items() if one.fileno() >= 0}
        return len(self._known) < _LANES_MAX

    def _shun(self, key: tuple[Address, Address], now: int) -> None:
        """Give a peer TCP for a minute; of too many the first one is forgotten."""
        self._shunned.pop(key, None)
        if len(self._shunned) >= _LANES_MAX:
            del self._shunned[next(iter(self._shunned))]
        self._shunned[key] = now + _SHUN_NS

    def handle_timeout(self, at_ns: int) -> None:
        """End rests, give up who does not answer, dismiss who does not greet."""
        for address, (host, until_ns) in list(self._rests.items()):
            if until_ns <= at_ns:
                del self._rests[address]
                self._serve(host, self._listeners[address])
        for descriptor, dial in list(self._dials.items()):
            if dial.until_ns <= at_ns:
                del self._dials[descriptor]
                self._driver.stop_serving(descriptor)
                dial.line.close()
                with self._driver.guard.confine(dial.host, dial.peer):
                    self._fall_back(dial)
        for descriptor, guest in list(self._guests.items()):
            if guest.until_ns <= at_ns:
                del self._guests[descriptor]
                self._driver.stop_serving(descriptor)
                guest.line.close()

    def next_ns(self) -> int | None:
        """Return when `handle_timeout` has something to do."""
        deadlines = [dial.until_ns for dial in self._dials.values()]
        deadlines += [guest.until_ns for guest in self._guests.values()]
        deadlines += [until_ns for _, until_ns in self._rests.values()]
        return min(deadlines, default=None)

    def close(self) -> None:
        """Stop listening and give up what is under way; also in the child of a fork."""
        for listener in self._listeners.values():
            listener.close()
        for dial in self._dials.values():
            dial.line.close()
            dial.stream.close()
        for guest in self._guests.values():
            guest.line.close()
        self._listeners.clear()
        self._dials.clear()
        self._guests.clear()
        self._rests.clear()
