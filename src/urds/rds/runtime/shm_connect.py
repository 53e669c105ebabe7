"""Shm streams of a driver: which side connects, which accepts, and when TCP is used instead.

A shm stream is tried before every TCP connection to a peer; without a listener that costs one
system call. It comes to its path as a TCP connection does, with the port that one would have, so
the rules of connecting and of a stream's path are the same. Without a control socket of the peer's
own user on this host, without an answer in time, after any other failure: TCP.

The higher address, which can only request a call-back, offers the memory with its request. A lower
side that connects because of it connects by taking the offer: one connection in place of two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from socket import MSG_NOSIGNAL, socket
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING, Final

from urds.common.passed_files import sealed_file
from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.control.paths import SourcePortRule, address_bytes
from urds.rds.plane.contract import Interest
from urds.rds.runtime.local_addresses import LocalAddressState
from urds.rds.transports import shm, tcp
from urds.rds.transports.peer_history import PeerName

if TYPE_CHECKING:
    from urds.rds.plane.native import ShmStream
    from urds.rds.runtime.control_thread import Driver

_S = 1_000_000_000
_ANSWER_NS: Final = 1 * _S  # of a control thread that has much to do
_BLOCK_NS: Final = 60 * _S  # after a protocol error, before shm is tried again
_PENDING_MAX: Final = 64
_ACCEPTS_PER_PASS: Final = 64
_EXHAUSTED_PAUSE_NS: Final = _S // 10  # when descriptors are used up
_NO_STREAM: Final = 0  # no stream has this number
_SHM_STREAMS_MAX: Final = 1024  # each takes two rings when it is busy; beyond it TCP


@record
class _Dial:
    host: LocalAddressState
    peer: IPAddress
    index: int
    rule: SourcePortRule | None
    control: socket
    stream: ShmStream
    until_ns: int
    is_offer: bool = False


@record
class _Offer:
    """What a peer offers, for as long as its request for a call-back is dealt with."""

    host: LocalAddressState
    peer: IPAddress
    control: socket
    stream: ShmStream


@record
class _Pending:
    host: LocalAddressState
    control: socket
    until_ns: int


class ShmStreams:
    """Shared-memory streams under way, by their control socket; control lock held."""

    def __init__(self, driver: Driver, make: Callable[..., ShmStream] | None) -> None:
        """Use `make` for the local ends; None, or a setting, leaves all to TCP."""
        self._driver = driver
        wanted = driver.settings.shared_memory and shm.is_possible()
        self._make = make if wanted else None
        self._listeners: dict[IPAddress, socket] = {}
        self._dials: dict[int, _Dial] = {}
        self._pending: dict[int, _Pending] = {}
        self._offer: _Offer | None = None
        self._paused: dict[IPAddress, tuple[LocalAddressState, int]] = {}  # listeners, until when
        self._known: dict[tuple[IPAddress, IPAddress], ShmStream] = {}
        self._blocked_until_ns: dict[tuple[IPAddress, IPAddress], int] = {}

    def listen(self, host: LocalAddressState) -> None:
        """Accept shm streams to an address, if its name is free."""
        if self._make is None:
            return
        listener = shm.listen(host.address, self._driver.tcp.port)
        if listener is not None:
            self._listeners[host.address] = listener
            self._watch(host, listener)

    def stop_listening(self, host: LocalAddressState) -> None:
        """Accept no more to an address."""
        self._paused.pop(host.address, None)
        listener = self._listeners.pop(host.address, None)
        if listener is not None:
            self._driver.watches.stop(listener.fileno())
            listener.close()

    def _watch(self, host: LocalAddressState, listener: socket) -> None:
        self._driver.watches.serve(
            listener.fileno(), lambda: self._accept(host, listener), Interest.READ
        )

    # -- connecting

    def dial(
        self, host: LocalAddressState, peer: IPAddress, index: int, rule: SourcePortRule | None
    ) -> bool:
        """Begin to connect; false without a listener. If it fails later, TCP is used then."""
        return self._take_offer(host, peer, index, rule) or self._dial(host, peer, index, rule)

    def offer(self, host: LocalAddressState, peer: IPAddress) -> bool:
        """Request a call-back and offer the memory for it; false without a listener."""
        return self._dial(host, peer, 0, None, is_offer=True)

    def _dial(
        self,
        host: LocalAddressState,
        peer: IPAddress,
        index: int,
        rule: SourcePortRule | None,
        *,
        is_offer: bool = False,
    ) -> bool:
        if self._make is None or not self._may(host.address, peer):
            return False
        control = shm.connect(peer, self._driver.tcp.port)
        if control is None:
            return False
        try:
            stream = self._greet(control, host.address, peer, _port_of(rule))
        except OSError:
            control.close()
            return False
        descriptor = control.fileno()
        until_ns = now_ns() + _ANSWER_NS
        self._dials[descriptor] = _Dial(
            host, peer, index, rule, control, stream, until_ns, is_offer
        )
        confined = self._driver.guard.confined(host, peer, lambda: self._answered(descriptor))
        self._driver.watches.serve(descriptor, confined, Interest.READ)
        return True

    def _greet(self, control: socket, local: IPAddress, peer: IPAddress, port: int) -> ShmStream:
        """Make the local end and send the other. Raises OSError."""
        ring_bytes = self._driver.settings.shared_memory_bytes
        make = self._make
        assert make is not None
        byte_count = make.memory_bytes(ring_bytes)  # type: ignore[attr-defined]  # of the class
        memory = sealed_file("urds-shm", byte_count)
        try:
            stream = make(
                control.fileno(),
                memory,
                ring_bytes,
                dials=True,
                local=(local, port),
                peer=(peer, self._driver.tcp.port),
            )
            shm.send_greeting(control, shm.Greeting(local, peer, port, ring_bytes), memory)
        finally:
            os.close(memory)
        return stream

    def _answered(self, descriptor: int) -> None:
        dial = self._dials.pop(descriptor)
        data = b""
        with suppress(OSError):
            data = dial.control.recv(len(shm.ANSWER))  # and not the doorbell behind it
        dial.control.close()  # the shm stream has its own descriptor of it
        connection = dial.host.endpoint.find(dial.peer)
        port = shm.port_of_taker(data) if dial.is_offer else None
        if connection is None or (port is None and data != shm.ANSWER):
            self._fall_back(dial)
        elif not dial.is_offer:
            number = self._keep(dial.host, dial.peer, dial.stream)
            dial.host.endpoint.handle_connected(
                dial.peer, dial.index, number, now_ns(), is_urds=True
            )
        elif port is not None:
            number = self._keep(dial.host, dial.peer, dial.stream)
            dial.host.endpoint.handle_accepted(number, dial.peer, port, now_ns(), is_urds=True)
            connection.handle_call_back_requested(now_ns())
        else:  # the request counts: the peer has a stream, or connects by itself
            dial.stream.close()
            connection.handle_call_back_requested(now_ns())
            name = PeerName(dial.host.address, dial.peer)
            self._driver.peers.note_called_back(name, closed=True)

    def _fall_back(self, dial: _Dial) -> None:
        dial.stream.close()
        if dial.host.endpoint.find(dial.peer) is None:
            return
        if dial.is_offer:
            self._driver.streams.request_call_back_by_tcp(dial.host, dial.peer)
        else:
            self._driver.streams.connect_by_tcp(dial.host, dial.peer, dial.index, dial.rule)

    # -- offers

    def _consider(self, offer: _Offer) -> None:
        """Pass a call-back request on; keep its stream if that leads to a `dial` at once."""
        host, peer = offer.host, offer.peer
        self._offer = offer
        with self._driver.guard.confine(host, peer):
            host.endpoint.handle_accepted(_NO_STREAM, peer, 0, now_ns(), is_urds=True)
        self._driver.carry_out(host)
        if self._offer is None:
            return
        self._offer = None
        offer.stream.close()
        offer.control.send(shm.ANSWER, MSG_NOSIGNAL)

    def _take_offer(
        self, host: LocalAddressState, peer: IPAddress, index: int, rule: SourcePortRule | None
    ) -> bool:
        """Connect by the memory that the peer offers at this moment, if it does."""
        offer = self._offer
        if offer is None or offer.host is not host or offer.peer != peer:
            return False
        answer = shm.taken(_port_of(rule))
        try:
            if offer.control.send(answer, MSG_NOSIGNAL) != len(answer):
                return False
        except OSError:
            return False
        self._offer = None
        number = self._keep(host, peer, offer.stream)
        host.endpoint.handle_connected(peer, index, number, now_ns(), is_urds=True)
        return True

    # -- accepting

    def _accept(self, host: LocalAddressState, listener: socket) -> None:
        """Accept pending shared-memory connections and take their greetings.

        Then pause for as long as it took: a flood gets half of the thread's time at most.
        """
        began_ns = time.thread_time_ns()
        try:
            for _ in range(_ACCEPTS_PER_PASS):
                control = shm.accept(listener)
                if control is not None:
                    self._admit(_Pending(host, control, now_ns() + _ANSWER_NS))
        except BlockingIOError:
            self._watch(host, listener)
            return
        except OSError:  # out of descriptors: a peer takes TCP when its time to wait is over
            self._paused[host.address] = host, now_ns() + _EXHAUSTED_PAUSE_NS
            return
        self._paused[host.address] = host, now_ns() + time.thread_time_ns() - began_ns

    def _admit(self, pending: _Pending) -> None:
        """Take a greeting that is here, as a rule with the connection; wait for one that is not."""
        if self._take_greeting(pending):
            return
        if len(self._pending) >= _PENDING_MAX:
            pending.control.close()
            return
        descriptor = pending.control.fileno()
        self._pending[descriptor] = pending
        greeted = partial(self._greeted, descriptor)
        self._driver.watches.serve(descriptor, greeted, Interest.READ)

    def _greeted(self, descriptor: int) -> None:
        pending = self._pending.pop(descriptor)
        if not self._take_greeting(pending):
            pending.control.close()

    def _take_greeting(self, pending: _Pending) -> bool:
        """Read a greeting and accept its stream, or close what is none; false if none is here."""
        try:
            greeting, memory = shm.receive_greeting(pending.control)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            pending.control.close()
            return True
        with pending.control as control, suppress(OSError, ValueError):
            try:
                self._accept_stream(pending.host, control, greeting, memory)
            finally:
                os.close(memory)
        return True

    def _accept_stream(
        self, host: LocalAddressState, control: socket, greeting: shm.Greeting, memory: int
    ) -> None:
        """Accept a shm stream as a TCP connection is accepted. Raises OSError."""
        peer = greeting.local
        refused = greeting.peer != host.address or not self._may(host.address, peer)
        if self._make is None or refused or host.endpoint.is_crowded(peer):
            return
        if greeting.ring_bytes > self._driver.settings.shared_memory_bytes:
            return  # the peer's ring size costs memory here too
        stream = self._make(
            control.fileno(),
            memory,
            greeting.ring_bytes,
            dials=False,
            local=(host.address, self._driver.tcp.port),
            peer=(peer, greeting.source_port),
        )
        if address_bytes(host.address) < address_bytes(peer):
            self._consider(_Offer(host, peer, control, stream))
            return
        if control.send(shm.ANSWER, MSG_NOSIGNAL) != len(shm.ANSWER):
            stream.close()
            return
        number = self._keep(host, peer, stream)
        with self._driver.guard.confine(host, peer):
            host.endpoint.handle_accepted(
                number, peer, greeting.source_port, now_ns(), is_urds=True
            )
        self._driver.carry_out(host)

    # -- both

    def _keep(self, host: LocalAddressState, peer: IPAddress, stream: ShmStream) -> int:
        self._known[host.address, peer] = stream
        return self._driver.streams.keep(host, peer, stream)

    def _may(self, local: IPAddress, peer: IPAddress) -> bool:
        """Tell whether shm may be tried: below the limit, and without a recent protocol error."""
        key, now = (local, peer), now_ns()
        last = self._known.get(key)
        if last is not None and last.has_protocol_error:
            del self._known[key]
            self._block(key, now)
        if self._blocked_until_ns.get(key, 0) > now:
            return False
        self._blocked_until_ns.pop(key, None)
        if len(self._known) >= _SHM_STREAMS_MAX:
            self._known = {key: one for key, one in self._known.items() if one.fileno() >= 0}
        return len(self._known) < _SHM_STREAMS_MAX

    def _block(self, key: tuple[IPAddress, IPAddress], now: int) -> None:
        """Give a peer TCP for a minute; of too many the first one is forgotten."""
        self._blocked_until_ns.pop(key, None)
        if len(self._blocked_until_ns) >= _SHM_STREAMS_MAX:
            del self._blocked_until_ns[next(iter(self._blocked_until_ns))]
        self._blocked_until_ns[key] = now + _BLOCK_NS

    def handle_timeout(self, at_ns: int) -> None:
        """Resume listening, drop unanswered attempts and connections without a greeting."""
        for address, (host, until_ns) in list(self._paused.items()):
            if until_ns <= at_ns:
                del self._paused[address]
                self._watch(host, self._listeners[address])
        for descriptor, dial in list(self._dials.items()):
            if dial.until_ns <= at_ns:
                del self._dials[descriptor]
                self._driver.watches.stop(descriptor)
                dial.control.close()
                with self._driver.guard.confine(dial.host, dial.peer):
                    self._fall_back(dial)
        for descriptor, pending in list(self._pending.items()):
            if pending.until_ns <= at_ns:
                del self._pending[descriptor]
                self._driver.watches.stop(descriptor)
                pending.control.close()

    def next_ns(self) -> int | None:
        """Return when `handle_timeout` has something to do."""
        deadlines = [dial.until_ns for dial in self._dials.values()]
        deadlines += [pending.until_ns for pending in self._pending.values()]
        deadlines += [until_ns for _, until_ns in self._paused.values()]
        return min(deadlines, default=None)

    def close(self) -> None:
        """Stop listening and give up what is under way; also in the child of a fork."""
        for listener in self._listeners.values():
            listener.close()
        for dial in self._dials.values():
            dial.control.close()
            dial.stream.close()
        for pending in self._pending.values():
            pending.control.close()
        self._listeners.clear()
        self._dials.clear()
        self._pending.clear()
        self._paused.clear()


def _port_of(rule: SourcePortRule | None) -> int:
    """Return a port by the rule: the number only names the path, so none is taken; 0 without."""
    if rule is None:
        return 0
    low, high = tcp.PORT_RANGE_DEFAULT
    return next(iter(rule.ports(range_low=low, range_high=high)), 0)
