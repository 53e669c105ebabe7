"""The adapter of the `tcp` provider: queue pairs over iWARP streams, datagrams over UDP."""

import errno
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from urds.common.errors import WireError
from urds.common.forks import renewed
from urds.common.progress import ProgressLoop
from urds.common.socket_class import KernelSocket
from urds.common.types import HostPort
from urds.verbs.cm.mpa import READS_MAX, MpaFlag, MpaFrame
from urds.verbs.engine.attributes import LinkTraits, QPAttr
from urds.verbs.engine.completions import Outbox
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import QPAttrMask, QPState, QPType
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.providers.base import (
    ConnectParameters,
    DeviceAttributes,
    Listener,
    LoopAdapter,
    OnConnectionEvent,
    PortSpace,
    VerbsConnection,
)
from urds.verbs.providers.packet_connection import packed
from urds.verbs.providers.tcp.connections import (
    PACKET_BYTES_MAX,
    PendingConnections,
    TcpConnection,
    TcpListener,
    TcpState,
)
from urds.verbs.providers.tcp.datagrams import DatagramAdapter
from urds.verbs.providers.tcp.settings import TcpProviderSettings, TcpStats
from urds.verbs.providers.tcp.sockets import listening, prepare, resolve
from urds.verbs.providers.tcp.stream import BUFFER_BYTES, IwarpStream

BACKLOG_DEFAULT: Final = 1024  # of `listen` with 0. Source: docs/reference/verbs-and-roce.md 14.3
PRIVATE_DATA_MAX: Final = 508  # of 512 that MPA carries, four are the counts of reads
_QPN_FIRST: Final = 0x10
_QPN_END: Final = 1 << 24
_CONNECTED: Final = frozenset({QPState.RTR, QPState.RTS, QPState.SQD})


class TcpAdapter(LoopAdapter):
    """One open `tcp` device."""

    def __init__(self, name: str = "tcp0", settings: TcpProviderSettings | None = None) -> None:
        self.settings = settings or TcpProviderSettings()
        self.stats = TcpStats()
        self.lock = renewed(threading.RLock())
        self.keys = KeyTable(rng=random.SystemRandom())
        self.gid = packed(self.settings.address)
        self.outbox = Outbox()
        self.attributes = DeviceAttributes(
            name,
            "tcp",
            LinkTraits(mtu_bytes=PACKET_BYTES_MAX, lossless=True, retries=False),
            max_private_data=PRIVATE_DATA_MAX,
            raw_connect=False,
        )
        self.read_view = memoryview(bytearray(BUFFER_BYTES))
        self.connections: set[TcpConnection] = set()
        self.pending = PendingConnections()
        self.listeners: set[TcpListener] = set()
        self.leaving: set[IwarpStream] = set()
        self._queue_pairs: dict[int, QueuePair] = {}
        self.owners: dict[int, TcpConnection] = {}  # by queue pair number
        self._qpn_next = _QPN_FIRST
        self._closed = False
        self.loop = ProgressLoop(self.lock, on_cut=self.go_on)
        self.datagrams = DatagramAdapter(self)

    @property
    def port(self) -> int:  # type: ignore[override]  # made on demand
        """Return the UDP port for this device's datagrams; the first call makes the socket.

        Raises OSError if none can be had.
        """
        with self.lock:
            return self.datagrams.vector.port

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` in the next pass, with the lock held."""
        self.loop.call_soon(action)

    # -- queue pairs

    def new_qpn(self) -> int:
        """Return the next number that no queue pair has. Raises OSError: ENOMEM."""
        if len(self._queue_pairs) >= self.attributes.max_qp:
            raise OSError(errno.ENOMEM, f"{len(self._queue_pairs)} queue pairs, the limit")
        while True:
            qpn = self._qpn_next
            self._qpn_next = qpn + 1 if qpn + 1 < _QPN_END else _QPN_FIRST
            if qpn not in self._queue_pairs:
                return qpn

    def add(self, qp: QueuePair) -> None:
        """Register a queue pair with this adapter."""
        self._queue_pairs[qp.qpn] = qp
        if qp.qp_type is QPType.UD:
            self.datagrams.add(qp)

    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair; its connection ends in order."""
        connection = self.owners.get(qp.qpn)
        if connection is not None:
            connection.disconnect()
        if qp.qp_type is QPType.UD:
            self.datagrams.remove(qp)
        self._queue_pairs.pop(qp.qpn, None)

    def progress_qp(self, qp: QueuePair) -> None:
        """Send what the queue pair has to send.

        Raises OSError (EOPNOTSUPP) for a reliable queue pair that a modify took to a peer: it
        is back in RESET then. iWARP makes connections only with a connection manager.
        """
        if self._closed:
            return  # its owner may not know yet
        if qp.qp_type is QPType.UD:
            self.datagrams.progress_qp(qp)
            return
        owner = self.owners.get(qp.qpn)
        if owner is not None and owner.stream is not None:
            owner.stream.progress_qp()
        elif qp.state in _CONNECTED and owner is None:
            reset = QPAttr(qp_state=QPState.RESET)
            qp.modify(reset, QPAttrMask.STATE, time.monotonic_ns())
            raise OSError(
                errno.EOPNOTSUPP,
                "tcp: connect or accept leads a queue pair to its peer, not modify",
            )
        else:
            self.finish_pass()
        self.loop.tell()

    def check_connectable(self, qp: QueuePair | None, parameters: ConnectParameters) -> None:
        """Raise OSError (EINVAL) unless a connection may take this queue pair and these numbers."""
        is_idle = qp is not None and qp.state in (QPState.RESET, QPState.INIT)
        if qp is None or not is_idle or qp.qp_type is not QPType.RC:
            raise OSError(errno.EINVAL, "a connection takes an RC queue pair in RESET or INIT")
        if self._queue_pairs.get(qp.qpn) is not qp:
            raise OSError(errno.EINVAL, f"queue pair {qp.qpn:#x} belongs to another device context")
        if qp.qpn in self.owners:
            raise OSError(errno.EINVAL, f"queue pair {qp.qpn:#x} has a connection")
        for count in (parameters.responder_resources, parameters.initiator_depth):
            if not 0 <= count <= READS_MAX:
                raise OSError(errno.EINVAL, f"{count} reads at once, limit {READS_MAX}")

    def forget(self, connection: TcpConnection, qp: QueuePair | None) -> None:
        """Remove a connection that is over."""
        self.connections.discard(connection)
        if qp is not None and self.owners.get(qp.qpn) is connection:
            del self.owners[qp.qpn]

    # -- connections

    def listen(
        self, local: HostPort, space: PortSpace, *, backlog: int, on_event: OnConnectionEvent
    ) -> Listener:
        """Listen at a TCP port, or at a UDP port for the datagram space; `backlog` 0: the default.

        Raises OSError: EADDRINUSE, EADDRNOTAVAIL, EACCES, EINVAL.
        """
        self._check_open()
        if space is PortSpace.UDP:
            return self.datagrams.listen(local, space, backlog=backlog, on_event=on_event)
        backlog = backlog or BACKLOG_DEFAULT
        listener = listening(local, backlog=backlog + self.settings.pending_max)
        return TcpListener(self, listener, backlog=backlog, on_event=on_event)

    def connect(
        self,
        qp: QueuePair | None,
        peer: HostPort,
        space: PortSpace,
        parameters: ConnectParameters,
        *,
        on_event: OnConnectionEvent,
        local: HostPort | None = None,
        timeout_ns: int | None = None,
    ) -> VerbsConnection:
        """Connect over TCP. Raises OSError: EINVAL, ENOMEM (private data), EADDRNOTAVAIL."""
        self._check_open()
        if space is PortSpace.UDP:
            return self.datagrams.connect(
                qp,
                peer,
                space,
                parameters,
                on_event=on_event,
                local=local,
                timeout_ns=timeout_ns,
            )
        self.check_connectable(qp, parameters)
        assert qp is not None
        _check_private_data(parameters)
        return self._connect_stream(qp, peer, parameters, on_event, local, timeout_ns)

    def _connect_stream(
        self,
        qp: QueuePair,
        peer: HostPort,
        parameters: ConnectParameters,
        on_event: OnConnectionEvent,
        local: HostPort | None,
        timeout_ns: int | None,
    ) -> TcpConnection:
        family, name = resolve(peer)
        stream = KernelSocket(family, socket.SOCK_STREAM)
        try:
            prepare(
                stream,
                send_bytes=self.settings.send_buffer_bytes,
                receive_bytes=self.settings.receive_buffer_bytes,
            )
            if local is not None:
                stream.bind(resolve(local)[1])
            problem = stream.connect_ex(name)
            if problem in (errno.EADDRNOTAVAIL, errno.EINVAL, errno.EACCES):
                raise OSError(problem, f"connect to {peer[0]} port {peer[1]}")
            limit_ns = self.settings.connect_ns if timeout_ns is None else timeout_ns
            connection = TcpConnection(
                self,
                stream,
                TcpState.CONNECTING,
                on_event=on_event,
                deadline_ns=time.monotonic_ns() + limit_ns,
                qp=qp,
                parameters=parameters,
                problem=0 if problem == errno.EINPROGRESS else problem,
            )
        except OSError:
            stream.close()
            raise
        connection.peer = peer
        self.owners[qp.qpn] = connection
        return connection

    def _check_open(self) -> None:
        if self._closed or self.loop.is_closed:
            raise OSError(errno.EBADF, "the device was closed, or is the parent process's")

    def close(self) -> None:
        """Drop everything, end the thread; peers see their connections break. Safe twice."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            for listener in list(self.listeners):
                listener.close()
            for connection in list(self.connections):
                connection.abort()
            for stream in list(self.leaving):
                stream.abort()
            self.datagrams.close()
        self.loop.close()


def _check_private_data(parameters: ConnectParameters) -> None:
    try:
        MpaFrame(flags=MpaFlag.ENHANCED, private_data=parameters.private_data).emit()
    except WireError as error:
        raise OSError(errno.ENOMEM, str(error)) from None
