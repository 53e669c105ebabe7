"""TCP connections between their first step and the path that takes them, or their end.

The core names a stream by a number. It is here from `keep` until `take` (attached to a path) or
`refuse`; attempts to connect and knocks are here until they stand, fail, or time out.

TCP is patient: it repeats what nobody acknowledges at ever longer intervals, for a quarter of an
hour. After an outage that costs as long again as it lasted, and where only the peer's host has
forgotten the connection, the whole time. So an attempt that is not answered is cut and made anew,
and an attached stream whose repeats go unanswered is reset. A peer that merely does not read
answers them: it is waited for.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urds.dataplane.base import Address, Interest, Path
from urds.driver.clock import now_ns
from urds.driver.hosts import LocalHost
from urds.proto.paths import SourcePortRule
from urds.transport import fault, tcp

if TYPE_CHECKING:
    from urds.dataplane.compiled.lane import Lane
    from urds.driver.driver import Driver

    _Stream = tcp.TcpStream | Lane

_KNOCK_NS = 1_000_000_000  # the lower side closes it sooner, if it is there
_CONNECT_NS = 2_000_000_000  # two of TCP's requests: the first and one repeat
_LOOK_NS = 1_000_000_000  # between two looks for dead streams
_REPEATS_MAX = 4  # on a fast network some three seconds; where answers take longer, more
# These end an attempt that stood for a moment. What the peer sent meanwhile is acknowledged to it
# and must be read: such a stream is attached, read to its end, and goes down.
_STOOD = (0, errno.ECONNRESET, errno.EPIPE)


@dataclass(slots=True)
class _Knock:
    host: LocalHost
    peer: Address
    stream: tcp.TcpStream
    until_ns: int
    stands: bool = False


@dataclass(frozen=True, slots=True)
class _Attempt:
    host: LocalHost
    peer: Address
    index: int
    stream: tcp.TcpStream
    until_ns: int


@dataclass(frozen=True, slots=True)
class _Kept:
    host: LocalHost
    peer: Address
    stream: _Stream


class Streams:
    """Numbers, attempts and knocks of a driver; control lock held."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._next_number = 1
        self._kept: dict[int, _Kept] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._knocks: dict[int, _Knock] = {}
        self._attached: dict[Path, _Stream] = {}
        self._look_ns = 0

    def keep(self, host: LocalHost, peer: Address, stream: _Stream) -> int:
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
        kept.host.note_connect(kept.peer, 0)
        return kept.stream

    def end(self, path: Path) -> None:
        """Close the stream that a path was given last, should nobody have done so."""
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

    def abandon(self, host: LocalHost, peer: Address) -> None:
        """Reset every stream of a peer that no path has: nobody may read them any more."""
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
                        fault.reset_in_place(stream)
                    else:
                        stream.end()
                    count += 1
        return count

    def connect(
        self, host: LocalHost, peer: Address, index: int, rule: SourcePortRule | None
    ) -> None:
        """Begin to connect for a path, by shared memory if the peer is there; else by TCP."""
        if not self._driver.lanes.dial(host, peer, index, rule):
            self.connect_by_tcp(host, peer, index, rule)

    def connect_by_tcp(
        self, host: LocalHost, peer: Address, index: int, rule: SourcePortRule | None
    ) -> None:
        """Begin to connect for a path; the connection hears how it went."""
        driver = self._driver
        ports = None
        if rule is not None:
            low, high = tcp.port_range()
            ports = rule.ports(range_low=low, range_high=high)
        connection = host.endpoint.find(peer)
        assert connection is not None
        try:
            stream = tcp.connect(host.address, peer, driver.tcp, ports)
        except OSError as failure:
            host.note_connect(peer, failure.errno or errno.EIO)
            connection.handle_connect_failed(index, failure.errno or errno.EIO, now_ns())
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
        driver.serve(descriptor, driver.guard.confined(host, peer, finish), Interest.WRITE)

    def _fail(self, attempt: _Attempt, failure: int) -> None:
        attempt.stream.close()
        attempt.host.note_connect(attempt.peer, failure)
        connection = attempt.host.endpoint.find(attempt.peer)
        if connection is not None:
            with self._driver.guard.confine(attempt.host, attempt.peer):
                connection.handle_connect_failed(attempt.index, failure, now_ns())

    def knock(self, host: LocalHost, peer: Address) -> None:
        """Connect without sending anything: the lower side answers by connecting itself."""
        driver = self._driver
        connection = host.endpoint.find(peer)
        assert connection is not None
        try:
            stream = tcp.connect(host.address, peer, driver.tcp)
        except OSError as failure:
            host.note_connect(peer, failure.errno or errno.EIO)
            connection.handle_connect_failed(0, failure.errno or errno.EIO, now_ns())
            return
        descriptor = stream.fileno()
        knock = _Knock(host, peer, stream, now_ns() + _KNOCK_NS)

        def finish() -> None:
            failure = tcp.connect_error(stream)
            if failure:
                self._end_knock(descriptor)
                self._connect_failed(knock, failure)
                return
            knock.stands = True
            found = host.endpoint.find(peer)
            if found is not None:
                found.handle_knocked(now_ns())
            driver.serve(descriptor, lambda: self._end_knock(descriptor), Interest.READ)

        self._knocks[descriptor] = knock
        driver.serve(descriptor, driver.guard.confined(host, peer, finish), Interest.WRITE)

    def _connect_failed(self, knock: _Knock, failure: int) -> None:
        knock.host.note_connect(knock.peer, failure)
        connection = knock.host.endpoint.find(knock.peer)
        if connection is not None:
            with self._driver.guard.confine(knock.host, knock.peer):
                connection.handle_connect_failed(0, failure, now_ns())

    def _end_knock(self, descriptor: int) -> None:
        knock = self._knocks.pop(descriptor, None)
        if knock is not None:
            self._driver.stop_serving(descriptor)
            knock.stream.close()

    def handle_timeout(self, at_ns: int) -> None:
        """Close knocks and attempts that nobody answered; look for dead streams."""
        for descriptor, knock in list(self._knocks.items()):
            if knock.until_ns <= at_ns:
                self._end_knock(descriptor)
                if not knock.stands:
                    self._connect_failed(knock, errno.ETIMEDOUT)
        for descriptor, attempt in list(self._attempts.items()):
            if attempt.until_ns <= at_ns:
                del self._attempts[descriptor]
                self._driver.stop_serving(descriptor)
                self._fail(attempt, errno.ETIMEDOUT)
        if self._attached and self._look_ns <= at_ns:
            self._look_ns = at_ns + _LOOK_NS
            self._end_dead()

    def next_ns(self) -> int | None:
        """Return when `handle_timeout` has something to do, None while nothing is under way."""
        deadlines = [knock.until_ns for knock in self._knocks.values()]
        deadlines += [attempt.until_ns for attempt in self._attempts.values()]
        if self._attached:
            deadlines.append(self._look_ns)
        return min(deadlines, default=None)

    def _end_dead(self) -> None:
        """Reset every attached stream whose peer's host has stopped to answer."""
        for path, stream in list(self._attached.items()):
            if stream.fileno() < 0:  # it has ended by itself
                del self._attached[path]
                continue
            if stream.unanswered_repeats() < _REPEATS_MAX:
                continue
            host = self._driver.hosts[path.local]
            connection = host.endpoint.find(path.peer)
            if connection is not None:
                stream.abort_on_close()
                with self._driver.guard.confine(host, path.peer):
                    connection.handle_dead(path.index, now_ns())

    def close(self) -> None:
        """Close everything that is not attached to a path."""
        for under_way in (self._kept, self._attempts, self._knocks):
            for one in under_way.values():
                one.stream.close()
            under_way.clear()
