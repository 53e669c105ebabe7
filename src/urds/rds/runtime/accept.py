"""Accept connections: taken from the listeners in short passes, and reported.

An admitted stream costs a path, the map and a probe of the peer's identity. While few pending
connections are silent that is paid at once. While there are many, a new one waits in the *accept
queue*, at the price of a watched descriptor, until its first header is here: an honest peer sends
one at once, for its map comes first. A connection that waits for too long is dropped; one too many
drops the oldest connection of the address that has most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import ip_address
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING, Final

from urds.common.records import field, record
from urds.common.types import IPAddress
from urds.rds.control.pending import PendingConnections
from urds.rds.control.timers import Timers
from urds.rds.plane.contract import Interest
from urds.rds.runtime.local_addresses import LocalAddressState
from urds.rds.transports import tcp
from urds.rds.wire.header import HEADER_BYTES

if TYPE_CHECKING:
    from urds.rds.runtime.control_thread import Driver

_ACCEPTS_PER_PASS: Final = 64
_EXHAUSTED_PAUSE_NS: Final = 100_000_000  # when descriptors are used up


@record
class _Pending:
    peer: IPAddress
    source_port: int
    stream: tcp.TcpStream


@record(frozen=False)
class _AcceptQueue:
    """The pending connections at one local address, by descriptor."""

    bounds: PendingConnections
    timers: Timers
    streams: dict[int, _Pending] = field(default_factory=dict)


class Acceptor:
    """Accepts for every address of a driver; control lock held."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._queues: dict[IPAddress, _AcceptQueue] = {}

    def handler(self, host: LocalAddressState) -> Callable[[], None]:
        """Return what is to be called when the listener of an address is readable."""
        return lambda: self._accept(host)

    def handle_timeout(self, host: LocalAddressState, at_ns: int) -> int | None:
        """Resume listening, drop connections without a first header; return the next deadline."""
        if host.listen_at_ns is not None and host.listen_at_ns <= at_ns:
            host.listen_at_ns = None
            self._listen(host)
        queue = self._queues.get(host.address)
        silent_at_ns = None
        if queue is not None:
            while (key := queue.timers.pop_due(at_ns)) is not None:
                self._drop(queue, key.number)
                self._driver.stats.pending_silent += 1
            silent_at_ns = queue.timers.next_ns()
        due_ns = [one for one in (host.listen_at_ns, silent_at_ns) if one is not None]
        return min(due_ns, default=None)

    def forget(self, host: LocalAddressState) -> None:
        """Drop the pending connections at an address."""
        queue = self._queues.get(host.address)
        if queue is not None:
            for descriptor in list(queue.streams):
                self._drop(queue, descriptor)

    def close(self) -> None:
        """Close every pending connection."""
        for queue in self._queues.values():
            for pending in queue.streams.values():
                pending.stream.close()
        self._queues.clear()

    def _listen(self, host: LocalAddressState) -> None:
        self._driver.watches.serve(host.listener.fileno(), self.handler(host), Interest.READ)

    def _accept(self, host: LocalAddressState) -> None:
        """Accept some connections; a flood of them gets half of the thread's time at most.

        Without descriptors to take one, the listener pauses too, or the thread would spin.
        """
        began_ns = time.thread_time_ns()
        for _ in range(_ACCEPTS_PER_PASS):
            try:
                accepted = tcp.accept(host.listener, self._driver.tcp)
            except OSError as failure:
                text = "no connection to %s can be accepted now: %s"
                self._driver.log.warning_once(text, host.address, failure.strerror)
                host.listen_at_ns = now_ns() + _EXHAUSTED_PAUSE_NS
                return
            if accepted is None:
                self._listen(host)
                return
            stream, (name, port) = accepted
            pending = _Pending(ip_address(name), port, stream)
            if host.endpoint.is_crowded(pending.peer):
                self._enqueue(host, pending)
            else:
                self._report(host, pending)
        host.listen_at_ns = now_ns() + time.thread_time_ns() - began_ns

    def _report(self, host: LocalAddressState, pending: _Pending) -> None:
        number = self._driver.streams.keep(host, pending.peer, pending.stream)
        with self._driver.guard.confine(host, pending.peer):
            host.endpoint.handle_accepted(number, pending.peer, pending.source_port, now_ns())
        self._driver.carry_out(host)

    def _enqueue(self, host: LocalAddressState, pending: _Pending) -> None:
        queue = self._queues.get(host.address)
        if queue is None:
            timers = Timers()
            bounds = PendingConnections(host.endpoint.accept_queue_settings(), timers)
            queue = self._queues[host.address] = _AcceptQueue(bounds, timers)
        descriptor = pending.stream.fileno()
        if not queue.bounds.admit(descriptor, pending.peer, now_ns()):
            self._driver.stats.refused_pending += 1
            pending.stream.reset()
            return
        queue.streams[descriptor] = pending
        pending.stream.expect(HEADER_BYTES)
        self._driver.watches.serve(
            descriptor, lambda: self._dequeue(host, queue, descriptor), Interest.READ
        )
        one_too_many = queue.bounds.one_too_many()
        if one_too_many is None:
            return
        oldest = one_too_many[0]
        if queue.streams[oldest].stream.waiting() >= HEADER_BYTES:
            self._dequeue(host, queue, oldest)  # its header is here, unread
        else:
            self._driver.stats.refused_pending += 1
            self._drop(queue, oldest)

    def _dequeue(self, host: LocalAddressState, queue: _AcceptQueue, descriptor: int) -> None:
        """Admit a pending connection that has its first header; drop one that has ended."""
        pending = queue.streams.pop(descriptor)
        queue.bounds.forget(descriptor)
        self._driver.watches.stop(descriptor)
        # The report may have been about an earlier stream of this number; then it is still watched.
        self._driver.plane.unwatch(descriptor)
        if pending.stream.waiting() >= HEADER_BYTES:
            pending.stream.expect(1)
            self._report(host, pending)
        else:
            pending.stream.reset()

    def _drop(self, queue: _AcceptQueue, descriptor: int) -> None:
        pending = queue.streams.pop(descriptor)
        queue.bounds.forget(descriptor)
        self._driver.watches.stop(descriptor)
        pending.stream.reset()
