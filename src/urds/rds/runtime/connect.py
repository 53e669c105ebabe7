"""TCP connections between their first step and the path that takes them, or their end.

The core names a stream by a number. The stream is here from `keep` until `take` (attached to a
path) or `refuse`; attempts to connect and call-back requests are here until they are established,
fail, or time out.

TCP retransmits unacknowledged bytes at ever longer intervals, for a quarter of an hour. After an
outage that costs as long again as it lasted, and where only the peer's host has forgotten the
connection, the whole time. So an unanswered attempt is closed and made anew, and an attached stream
whose retransmits go unanswered is reset. A peer that merely does not read answers them and is kept.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING

from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.control.paths import SourcePortRule
from urds.rds.plane.contract import Carrier, Interest, Path
from urds.rds.runtime.local_addresses import LocalAddressState
from urds.rds.transports import tcp
from urds.rds.transports.peer_history import PeerName

if TYPE_CHECKING:
    from urds.rds.plane.native import ShmStream
    from urds.rds.runtime.control_thread import Driver

    _Stream = tcp.TcpStream | ShmStream

_CALL_BACK_WAIT_NS = 1_000_000_000  # the lower side closes it sooner, if it is there
_CONNECT_NS = 2_000_000_000  # two of TCP's requests: the first and one retransmit
_LOOK_NS = 1_000_000_000  # between two searches for dead streams
_RETRANSMITS_MAX = 4  # some three seconds on a fast network; more where answers take longer
_DEAD = "the peer's host no longer answers: TCP's retransmits go unanswered"
# These end an attempt that stood for a moment. What the peer sent meanwhile is acknowledged to it
# and must be read: such a stream is attached, read to its end, and goes down.
_STOOD = (0, errno.ECONNRESET, errno.EPIPE)


@record(frozen=False)
class _CallBackRequest:
    host: LocalAddressState
    peer: IPAddress
    stream: tcp.TcpStream
    until_ns: int
    stands: bool = False


@record
class _Attempt:
    host: LocalAddressState
    peer: IPAddress
    index: int
    stream: tcp.TcpStream
    until_ns: int


@record
class _Kept:
    host: LocalAddressState
    peer: IPAddress
    stream: _Stream


class Streams:
    """Numbers, attempts and call-back requests of a driver; control lock held."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._next_number = 1
        self._kept: dict[int, _Kept] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._call_back_requests: dict[int, _CallBackRequest] = {}
        self._attached: dict[Path, _Stream] = {}
        self._look_ns = 0

    def keep(self, host: LocalAddressState, peer: IPAddress, stream: _Stream) -> int:
        """Give a stream a number."""
        number = self._next_number
        self._next_number += 1
        self._kept[number] = _Kept(host, peer, stream)
        return number

    def take(self, number: int, path: Path) -> _Stream | None:
        """Hand a stream to a path; None after `abandon`, and a detach follows."""
        kept = self._kept.pop(number, None)
        if kept is None:
            return None
        self._attached[path] = kept.stream
        is_tcp = isinstance(kept.stream, tcp.TcpStream)
        carrier = Carrier.TCP if is_tcp else Carrier.SHARED_MEMORY
        self._driver.peers.note_attached(PeerName(kept.host.address, kept.peer), carrier)
        self._driver.looks.begin(path)
        return kept.stream

    def end(self, path: Path) -> None:
        """Close the stream that a path was given last, if it is still open."""
        stream = self._attached.pop(path, None)
        if stream is not None:
            stream.close()

    def has_unread(self, path: Path) -> bool:
        """Tell whether bytes of the peer wait to be read: its system counts them as received."""
        stream = self._attached.get(path)
        return isinstance(stream, tcp.TcpStream) and stream.waiting() > 0

    def forget(self, path: Path) -> None:
        """Drop the record of a path that is closed for good."""
        self._attached.pop(path, None)

    def refuse(self, number: int) -> None:
        """Close a stream with a reset; after `abandon` it is gone already."""
        kept = self._kept.pop(number, None)
        if kept is not None:
            kept.stream.reset()

    def abandon(self, host: LocalAddressState, peer: IPAddress) -> None:
        """Reset every stream of a peer that is on no path: no path may read them any more."""
        for number, kept in list(self._kept.items()):
            if kept.host is host and kept.peer == peer:
                self.refuse(number)

    def break_all(self) -> int:
        """Reset every attached connection from below: the plane finds it broken."""
        count = 0
        for stream in self._attached.values():
            if stream.fileno() >= 0:
                with suppress(OSError):
                    if isinstance(stream, tcp.TcpStream):
                        tcp.reset_in_place(stream)
                    else:
                        stream.end()
                    count += 1
        return count

    def connect(
        self, host: LocalAddressState, peer: IPAddress, index: int, rule: SourcePortRule | None
    ) -> None:
        """Begin to connect for a path, by shared memory if the peer is there; else by TCP."""
        self._driver.peers.note_attempt(PeerName(host.address, peer), "connecting to")
        if not self._driver.shm_streams.dial(host, peer, index, rule):
            self.connect_by_tcp(host, peer, index, rule)

    def connect_by_tcp(
        self, host: LocalAddressState, peer: IPAddress, index: int, rule: SourcePortRule | None
    ) -> None:
        """Begin to connect for a path; the result is reported to the connection."""
        driver = self._driver
        ports = None
        if rule is not None:
            low, high = tcp.port_range()
            ports = rule.ports(range_low=low, range_high=high)
        stream = self._begin(host, peer, index, ports)
        if stream is None:
            return
        attempt = _Attempt(host, peer, index, stream, now_ns() + _CONNECT_NS)
        descriptor = stream.fileno()

        def finish() -> None:
            del self._attempts[descriptor]
            failure = tcp.connect_error(stream)
            found = host.endpoint.find(peer)
            if found is not None and failure in _STOOD:
                number = self.keep(host, peer, stream)
                host.endpoint.handle_connected(peer, index, number, now_ns())
            else:
                self._fail(attempt, failure)

        self._attempts[descriptor] = attempt
        driver.watches.serve(descriptor, driver.guard.confined(host, peer, finish), Interest.WRITE)

    def _begin(
        self,
        host: LocalAddressState,
        peer: IPAddress,
        index: int,
        ports: Iterable[int] | None = None,
    ) -> tcp.TcpStream | None:
        """Begin to connect; None if not even that was possible, which is reported."""
        connection = host.endpoint.find(peer)
        assert connection is not None
        try:
            return tcp.connect(host.address, peer, self._driver.tcp, ports)
        except OSError as failure:
            name = PeerName(host.address, peer)
            self._driver.peers.note_failed(name, failure.errno or errno.EIO)
            connection.handle_connect_failed(index, now_ns())
            return None

    def _fail(self, attempt: _Attempt, failure: int) -> None:
        attempt.stream.close()
        self._connect_failed(attempt, attempt.index, failure)

    def request_call_back(self, host: LocalAddressState, peer: IPAddress) -> None:
        """Ask the lower side to connect: by an offer of shared memory if it can be; else by TCP."""
        self._driver.peers.note_attempt(PeerName(host.address, peer), "asking for a connection of")
        if not self._driver.shm_streams.offer(host, peer):
            self.request_call_back_by_tcp(host, peer)

    def request_call_back_by_tcp(self, host: LocalAddressState, peer: IPAddress) -> None:
        """Connect without sending anything: the lower side answers by connecting itself."""
        driver, name = self._driver, PeerName(host.address, peer)
        stream = self._begin(host, peer, 0)
        if stream is None:
            return
        descriptor = stream.fileno()
        request = _CallBackRequest(host, peer, stream, now_ns() + _CALL_BACK_WAIT_NS)

        def finish() -> None:
            failure = tcp.connect_error(stream)
            if failure:
                self._end_call_back_request(descriptor)
                self._connect_failed(request, 0, failure)
                return
            request.stands = True
            found = host.endpoint.find(peer)
            if found is not None:
                found.handle_call_back_requested(now_ns())
            driver.watches.serve(descriptor, closed, Interest.READ)

        def closed() -> None:
            self._end_call_back_request(descriptor)
            driver.peers.note_called_back(name, closed=True)

        self._call_back_requests[descriptor] = request
        driver.watches.serve(descriptor, driver.guard.confined(host, peer, finish), Interest.WRITE)

    def _connect_failed(self, tried: _Attempt | _CallBackRequest, index: int, failure: int) -> None:
        name = PeerName(tried.host.address, tried.peer)
        if isinstance(tried, _CallBackRequest) and failure in _STOOD:
            self._driver.peers.note_called_back(name, closed=True)
        else:
            self._driver.peers.note_failed(name, failure)
        connection = tried.host.endpoint.find(tried.peer)
        if connection is not None:
            with self._driver.guard.confine(tried.host, tried.peer):
                connection.handle_connect_failed(index, now_ns())

    def _end_call_back_request(self, descriptor: int) -> None:
        request = self._call_back_requests.pop(descriptor, None)
        if request is not None:
            self._driver.watches.stop(descriptor)
            request.stream.close()

    def handle_timeout(self, at_ns: int) -> None:
        """Close unanswered call-back requests and attempts; look for dead streams."""
        for descriptor, request in list(self._call_back_requests.items()):
            if request.until_ns <= at_ns:
                self._end_call_back_request(descriptor)
                if request.stands:
                    name = PeerName(request.host.address, request.peer)
                    self._driver.peers.note_called_back(name, closed=False)
                else:
                    self._connect_failed(request, 0, errno.ETIMEDOUT)
        for descriptor, attempt in list(self._attempts.items()):
            if attempt.until_ns <= at_ns:
                del self._attempts[descriptor]
                self._driver.watches.stop(descriptor)
                self._fail(attempt, errno.ETIMEDOUT)
        if self._attached and self._look_ns <= at_ns:
            self._look_ns = at_ns + _LOOK_NS
            self._end_dead(at_ns)

    def attach_decided(self) -> None:
        """Report every attempt that has finished: one that stands is attached.

        What the peer has sent over it is acknowledged to it, and must be read before the end.
        """
        for descriptor, attempt in list(self._attempts.items()):
            if tcp.is_decided(attempt.stream):
                self._driver.plane.unwatch(descriptor)  # it may not have been reported yet
                self._driver.watches.handle_ready(descriptor)
                self._driver.carry_out(attempt.host)

    def next_ns(self) -> int | None:
        """Return when `handle_timeout` has something to do, None while nothing is under way."""
        deadlines = [request.until_ns for request in self._call_back_requests.values()]
        deadlines += [attempt.until_ns for attempt in self._attempts.values()]
        if self._attached:
            deadlines.append(self._look_ns)
        return min(deadlines, default=None)

    def _end_dead(self, at_ns: int) -> None:
        """Look at every attached stream; reset those whose peer's host no longer answers."""
        for path, stream in list(self._attached.items()):
            if stream.fileno() < 0:  # it has ended by itself
                del self._attached[path]
                continue
            self._driver.looks.look(path, at_ns)
            if stream.unanswered_retransmits() < _RETRANSMITS_MAX:
                continue
            host = self._driver.hosts[path.local]
            connection = host.endpoint.find(path.peer)
            if connection is not None:
                stream.abort_on_close()
                self._driver.peers.expect_loss(PeerName(path.local, path.peer), _DEAD)
                with self._driver.guard.confine(host, path.peer):
                    connection.handle_dead(path.index, now_ns())

    def close(self) -> None:
        """Close everything that is not attached to a path."""
        for under_way in (self._kept, self._attempts, self._call_back_requests):
            for one in under_way.values():
                one.stream.close()
            under_way.clear()
