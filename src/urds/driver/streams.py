"""TCP connections between their first step and the path that takes them, or their end.

The core names a stream by a number. It is here from `keep` until `take` (attached to a path) or
`refuse`; attempts to connect and knocks are here until they stand, fail, or time out.
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
    from urds.driver.driver import Driver

_KNOCK_NS = 1_000_000_000  # the lower side closes it sooner, if it is there
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
class _Kept:
    host: LocalHost
    peer: Address
    stream: tcp.TcpStream


class Streams:
    """Numbers, attempts and knocks of a driver; control lock held."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._next_number = 1
        self._kept: dict[int, _Kept] = {}
        self._connecting: set[tcp.TcpStream] = set()
        self._knocks: dict[int, _Knock] = {}
        self._attached: dict[Path, tcp.TcpStream] = {}

    def keep(self, host: LocalHost, peer: Address, stream: tcp.TcpStream) -> int:
        """Give a stream a number."""
        number = self._next_number
        self._next_number += 1
        self._kept[number] = _Kept(host, peer, stream)
        return number

    def take(self, number: int, path: Path) -> tcp.TcpStream | None:
        """Hand a stream to a path; None after `abandon`, and a detach follows."""
        kept = self._kept.pop(number, None)
        if kept is None:
            return None
        self._attached[path] = kept.stream
        return kept.stream

    def end(self, path: Path) -> None:
        """Close the stream that a path was given last, should nobody have done so."""
        stream = self._attached.pop(path, None)
        if stream is not None:
            stream.close()

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
                    fault.reset_in_place(stream)
                    count += 1
        return count

    def connect(
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
            connection.handle_connect_failed(index, failure.errno or errno.EIO, now_ns())
            return
        self._connecting.add(stream)

        def finish() -> None:
            self._connecting.discard(stream)
            failure = tcp.connect_error(stream)
            found = host.endpoint.find(peer)
            if found is None or failure not in _STOOD:
                stream.close()
                if found is not None:
                    found.handle_connect_failed(index, failure, now_ns())
                return
            found.handle_connected(index, self.keep(host, peer, stream), now_ns())

        guarded = driver.guard.confined(host, peer, finish)
        driver.serve(stream.fileno(), guarded, Interest.WRITE)

    def knock(self, host: LocalHost, peer: Address) -> None:
        """Connect without sending anything: the lower side answers by connecting itself."""
        driver = self._driver
        connection = host.endpoint.find(peer)
        assert connection is not None
        try:
            stream = tcp.connect(host.address, peer, driver.tcp)
        except OSError as failure:
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
        connection = knock.host.endpoint.find(knock.peer)
        if connection is not None:
            with self._driver.guard.confine(knock.host, knock.peer):
                connection.handle_connect_failed(0, failure, now_ns())

    def _end_knock(self, descriptor: int) -> None:
        knock = self._knocks.pop(descriptor, None)
        if knock is not None:
            self._driver.stop_serving(descriptor)
            knock.stream.close()

    def handle_timeout(self, at_ns: int) -> int | None:
        """Close knocks that nobody answered; return when the next is due."""
        for descriptor, knock in list(self._knocks.items()):
            if knock.until_ns <= at_ns:
                self._end_knock(descriptor)
                if not knock.stands:
                    self._connect_failed(knock, errno.ETIMEDOUT)
        return min((knock.until_ns for knock in self._knocks.values()), default=None)

    def close(self) -> None:
        """Close everything that is not attached to a path."""
        for stream in (*(kept.stream for kept in self._kept.values()), *self._connecting):
            stream.close()
        for knock in self._knocks.values():
            knock.stream.close()
        self._kept.clear()
        self._connecting.clear()
        self._knocks.clear()
