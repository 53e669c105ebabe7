"""A `urds` node of this process, with the grips that tests of the transport need.

They reach below the public API, into the driver and the plane: a test of TCP must be able to break
one connection, to make it deaf, and to hold a thread still at the moment that matters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from tests.support import carriers
from tests.support.waiting import wait_until
from urds.rds.constants import MSG_DONTWAIT
from urds.rds.control.rdma_events import PeerKey
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.plane.choose import NATIVE
from urds.rds.plane.contract import MailboxRow, MailboxSettings, MessageRow, PathRow
from urds.rds.plane.python.plane import Plane
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.runtime.control_thread import Driver
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.local_addresses import PeerPaths
from urds.rds.settings import Settings
from urds.rds.transports.rdma.path import RdmaPath
from urds.rds.transports.tcp import TcpStream

PORT = 4000  # of a node's mailbox
ROOMY_BYTES = 8 << 20
_NEVER_SO_MANY = 1 << 30  # bytes here before a stream is readable; the kernel caps it
_A_PASS_S = 0.1


class Node:
    """One node with one bound mailbox."""

    def __init__(
        self,
        address: str,
        *,
        port: int = PORT,
        buffer_bytes: int = ROOMY_BYTES,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.address = address
        self._buffer_bytes = buffer_bytes
        values = {"drain_s": 0.0, "linger_s": 0.0, **settings}
        self.backend = InProcess(
            Settings.load(values, environ=carriers.chosen() | dict(environ or {}))
        )
        self.mailbox = self.bind(port)

    def bind(self, port: int) -> Any:
        """Bind one more mailbox."""
        return self.backend.bind(
            address=ip_address(self.address),
            port=port,
            settings=MailboxSettings(
                send_bytes_max=self._buffer_bytes, receive_bytes_max=self._buffer_bytes
            ),
            transport=None,
        )

    def close(self) -> None:
        """End in order."""
        self.backend.close()

    # -- messages

    def send(self, payload: bytes, target: str, port: int = PORT) -> None:
        """Send one message."""
        self.mailbox.sendto(payload, (target, port))

    def take(self) -> list[bytes]:
        """Return the payloads of all messages that are here."""
        return [payload for payload, _ in self.take_from(self.mailbox)]

    @staticmethod
    def take_from(mailbox: Any) -> list[tuple[bytes, tuple[str, int]]]:
        """Return all messages of a mailbox with their sources."""
        taken = []
        while True:
            try:
                payload, source = mailbox.recvfrom(1 << 20, MSG_DONTWAIT)
            except BlockingIOError:
                return taken
            taken.append((payload, source[:2]))  # of IPv6 it has flow and scope too

    # -- grips

    @property
    def driver(self) -> Driver:
        """Return the control thread's object."""
        return self.backend._driver

    @property
    def plane(self) -> Plane:
        """Return the data plane; it is the Python one."""
        plane = self.driver.plane
        assert isinstance(plane, Plane)
        return plane

    @property
    def counters(self) -> Mapping[str, int]:
        """Return all counters by name."""
        return self.backend.counters()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep the control thread from deciding anything; the plane goes on."""
        with self.driver.lock:
            yield

    @contextmanager
    def blind(self, peer: str) -> Iterator[None]:
        """Keep the plane from reading path 0, as if a mailbox of it were over its hard bound.

        The compiled plane only as long as the receive buffer of TCP has room.
        """
        if self.backend.choice.plane == NATIVE:
            stream = self.stream(peer)
            stream.expect(_NEVER_SO_MANY)
            try:
                yield
            finally:
                stream.expect(1)  # does nothing if it has ended
            return
        path = self.path(peer)
        with self.plane.state.lock:
            path.reader.paused = True
        self.plane.passes.poll_set.update(path)
        wait_until(lambda: not path.reader.reading)
        try:
            yield
        finally:
            path.reader.resume()

    def connection(self, peer: str) -> TcpPeer:
        """Return the control core of a peer."""
        connection = self.driver.hosts[ip_address(self.address)].endpoint.find(ip_address(peer))
        assert connection is not None
        return connection

    def queued(self, peer: str) -> int:
        """Return how many messages to the peer the node keeps, over TCP or RDMA."""
        if carriers.is_rdma():
            return self.rdma_path(peer).core.outgoing.message_count()
        row = self.row(peer)
        return row.unsent_messages + row.unacknowledged_messages

    def is_connected(self, peer: str) -> bool:
        """Tell whether the first path to the peer has a connection, over TCP or RDMA."""
        if carriers.is_rdma():
            return self.rdma_path(peer).link is not None
        return self.row(peer).up

    def wait_for_break(self, peer: str) -> None:
        """Wait until a write has failed whose stream is still to be read to its end."""
        if self.backend.choice.plane == NATIVE:
            time.sleep(_A_PASS_S)  # it shows nowhere
        else:
            wait_until(lambda: self.path(peer).writer.broken)

    def row(self, peer: str, index: int = 0) -> PathRow:
        """Return the state of a path over TCP to the peer."""
        named = (ip_address(self.address), ip_address(peer), index)
        rows = self.driver.plane.snapshot().paths
        (row,) = [one for one in rows if (one.local, one.peer, one.index) == named]
        return row

    def handed_over(self, peer: str) -> list[MessageRow]:
        """Return the messages of sockets to the peer that may have arrived, in their order."""
        rows = self.driver.plane.snapshot().retransmit_queue
        return [row for row in rows if row.peer == ip_address(peer)]

    def account(self, mailbox: Any = None) -> MailboxRow:
        """Return the state of a mailbox, by default of the first."""
        port = (mailbox or self.mailbox).port
        rows = self.backend.snapshot().mailboxes  # of both planes, where RDMA has its own
        (row,) = [one for one in rows if one.port == port]
        return row

    def rdma_path(self, peer: str) -> RdmaPath:
        """Return the path over RDMA to the peer."""
        node = self.driver.rdma.node
        assert node is not None
        return node.hosts[ip_address(self.address)].paths[PeerKey(ip_address(peer), 0)]

    def knows(self, peer: str) -> bool:
        """Tell whether the peer has paths here."""
        return ip_address(peer) in self.driver.hosts[ip_address(self.address)].peers

    def peer_paths(self, peer: str) -> PeerPaths:
        """Return the driver's record of a peer."""
        return self.driver.hosts[ip_address(self.address)].peers[ip_address(peer)]

    def path(self, peer: str, index: int = 0) -> StreamPath:
        """Return a path to the peer; the plane is the Python one."""
        path = self.peer_paths(peer).paths[index]
        assert isinstance(path, StreamPath)
        return path

    def stream(self, peer: str, index: int = 0) -> TcpStream:
        """Return the TCP connection of a path that has one."""
        stream = self.driver.streams._attached[self.peer_paths(peer).paths[index]]
        assert self.row(peer, index).up
        return stream
