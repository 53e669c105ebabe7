"""urds over TCP between two processes: each address of 127/8 is a host of its own.

The receiver is ("127.0.0.2", 4000), the sender number n is ("127.0.0.(10 + n)", 4000). Messages
from 64 KiB up get send and receive buffers of 4 MiB: the 104 KiB of the default hold one such
message and no second. Smaller ones run with the defaults.
"""

import os
import socket as system_socket
from importlib import import_module
from typing import Any

from .base import Address, Peer

_RECEIVER = ("127.0.0.2", 4000)
_SENDER_PORT = 4000
_LARGE_BYTES = 64 << 10
_LARGE_BUFFER_BYTES = 4 << 20


class Urds(Peer):
    """A bound, blocking RDS socket."""

    name = "urds"
    label = "urds"

    # Any: the benchmarks must also run, and be checked, where urds cannot be imported.
    _socket: Any

    @classmethod
    def missing(cls) -> str | None:
        """Tell whether urds has its socket call."""
        try:
            urds: Any = import_module("urds")
            needed = (urds.socket, urds.AF_RDS, urds.SOCK_SEQPACKET)
        except (ImportError, AttributeError, SyntaxError) as error:
            return f"not available: {error}"
        return None if all(map(bool, needed)) else "not available"

    def _open(self, local: tuple[str, int]) -> None:
        if self.payload_bytes >= _LARGE_BYTES:
            # As the administrator would: what SO_SNDBUF asks for is bounded by wmem_max.
            os.environ.setdefault("URDS_WMEM_MAX", str(_LARGE_BUFFER_BYTES))
            os.environ.setdefault("URDS_RMEM_MAX", str(_LARGE_BUFFER_BYTES))
        urds: Any = import_module("urds")
        self._socket = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
        if self.payload_bytes >= _LARGE_BYTES:
            for option in (system_socket.SO_SNDBUF, system_socket.SO_RCVBUF):
                self._socket.setsockopt(system_socket.SOL_SOCKET, option, _LARGE_BUFFER_BYTES)
        self._socket.bind(local)

    def note(self) -> str:
        """Tell the buffers that were granted, where they are not the defaults."""
        if self.payload_bytes < _LARGE_BYTES:
            return ""
        options = (system_socket.SO_SNDBUF, system_socket.SO_RCVBUF)
        granted = [self._socket.getsockopt(system_socket.SOL_SOCKET, one) for one in options]
        return f"SO_SNDBUF {granted[0]:,}, SO_RCVBUF {granted[1]:,} as granted, asked: 4 MiB"

    def open_receiver(self, senders: int) -> Address:
        """Bind; a socket takes messages of any number of senders."""
        self._open(_RECEIVER)
        return _RECEIVER

    def open_sender(self, address: Address, index: int) -> None:
        """Bind to an address of this sender alone; the first message connects."""
        assert isinstance(address, tuple)
        self._open((f"127.0.0.{10 + index}", _SENDER_PORT))
        self._target = address

    def put(self, count: int) -> None:
        """Send `count` messages; the call returns when the last one is queued."""
        sendto, payload, target = self._socket.sendto, self.payload, self._target
        for _ in range(count):
            sendto(payload, target)

    def take(self, count: int) -> int:
        """Receive `count` messages with their source."""
        recvfrom, payload_bytes, taken_bytes = self._socket.recvfrom, self.payload_bytes, 0
        for _ in range(count):
            body, _ = recvfrom(payload_bytes)
            taken_bytes += len(body)
        return taken_bytes

    def ask_one(self) -> None:
        """Send one message and wait for the reply."""
        self._socket.sendto(self.payload, self._target)
        self._socket.recvfrom(self.payload_bytes)

    def echo_one(self) -> None:
        """Receive one message and send it back."""
        body, source = self._socket.recvfrom(self.payload_bytes)
        self._socket.sendto(body, source)
