"""Datagrams of the kernel on one host: AF_UNIX SEQPACKET, and UDP for the round trip.

UDP has no one-way figure: it loses what the receiver does not take in time, and a rate with losses
is no rate of a reliable service.
"""

import os
import socket

from .base import Address, Kind, Peer

_RECEIVE_BYTES_MAX = 65536
_ACCEPT_WAIT_S = 10.0


class SeqPacket(Peer):
    """AF_UNIX SOCK_SEQPACKET, at a name without a file."""

    name = "seqpacket"
    label = "AF_UNIX SEQPACKET"
    kinds = frozenset(
        {
            Kind.ONE_WAY,
            Kind.ROUND_TRIP,
            Kind.MEMORY_ONE_WAY,
            Kind.MEMORY_ROUND_TRIP,
            Kind.NODE_ONE_WAY,
            Kind.NODE_ROUND_TRIP,
        }
    )
    payload_bytes_max = 64 << 10  # the send buffer of the kernel holds no message of 1 MiB

    _socket: socket.socket | None = None
    _listener: socket.socket | None = None

    def open_receiver(self, senders: int) -> Address:
        """Listen; the sender is accepted at the first message."""
        name = f"\0urds-bench-{os.getpid()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(_ACCEPT_WAIT_S)
        self._listener.bind(name)
        self._listener.listen(1)
        return name

    def open_sender(self, address: Address, index: int) -> None:
        """Connect."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(str(address))

    def _connected(self) -> socket.socket:
        if self._socket is None:
            assert self._listener is not None, "neither receiver nor sender"
            self._socket, _ = self._listener.accept()
            self._socket.setblocking(True)
        return self._socket

    def put(self, count: int) -> None:
        """Send `count` messages, a call each."""
        send, payload = self._connected().send, self.payload
        for _ in range(count):
            send(payload)

    def take(self, count: int) -> int:
        """Receive `count` messages, a call each."""
        receive, taken_bytes = self._connected().recv, 0
        for _ in range(count):
            taken_bytes += len(receive(_RECEIVE_BYTES_MAX))
        return taken_bytes

    def ask_one(self) -> None:
        """Send one message and wait for the reply."""
        stream = self._connected()
        stream.send(self.payload)
        stream.recv(_RECEIVE_BYTES_MAX)

    def echo_one(self) -> None:
        """Receive one message and send it back."""
        stream = self._connected()
        stream.send(stream.recv(_RECEIVE_BYTES_MAX))


class Udp(Peer):
    """UDP over loopback."""

    name = "udp"
    label = "UDP"
    kinds = frozenset({Kind.ROUND_TRIP})
    payload_bytes_max = 32 << 10

    _socket: socket.socket
    _target: tuple[str, int]

    def open_receiver(self, senders: int) -> Address:
        """Bind to a free port."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        return int(self._socket.getsockname()[1])

    def open_sender(self, address: Address, index: int) -> None:
        """Remember the target."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._target = ("127.0.0.1", int(str(address)))

    def put(self, count: int) -> None:
        """Refuse: see the top of this file."""
        raise NotImplementedError("UDP has no one-way figure")

    def take(self, count: int) -> int:
        """Refuse: see the top of this file."""
        raise NotImplementedError("UDP has no one-way figure")

    def ask_one(self) -> None:
        """Send one message and wait for the reply."""
        self._socket.sendto(self.payload, self._target)
        self._socket.recvfrom(_RECEIVE_BYTES_MAX)

    def echo_one(self) -> None:
        """Receive one message and send it back."""
        body, source = self._socket.recvfrom(_RECEIVE_BYTES_MAX)
        self._socket.sendto(body, source)
