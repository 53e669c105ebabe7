"""RDS sockets of different makers: `urds` and the kernel, through the same loops.

Classes differ in the call that makes the socket and in nothing else, so that what is compared is
what that call makes.
"""

import socket as system_socket
from abc import abstractmethod
from typing import Any, ClassVar

from .base import BURST_MESSAGES, Address, Peer

PORT = 4000
LARGE_BYTES = 64 << 10
LARGE_BUFFER_BYTES = 4 << 20
_BUFFERS = (system_socket.SO_SNDBUF, system_socket.SO_RCVBUF)


class RdsPeer(Peer):
    """A bound, blocking RDS socket.

    Messages from 64 KiB up get send and receive buffers of 4 MiB: the receive buffer of 104 KiB
    by default holds one such message and no second. Smaller ones run with the defaults, and all of
    them where the class says so.
    """

    default_buffers: ClassVar[bool] = False

    # Any: the benchmarks must also run, and be checked, where urds cannot be imported.
    socket: Any
    _target: tuple[str, int]

    @abstractmethod
    def new_socket(self) -> Any:
        """Return an RDS socket that is not bound."""

    def bind(self, local: tuple[str, int]) -> None:
        """Make the socket that this side uses."""
        self.socket = self.new_socket()
        if self._wants_buffers():
            for option in _BUFFERS:
                self.socket.setsockopt(system_socket.SOL_SOCKET, option, LARGE_BUFFER_BYTES)
        self.socket.bind(local)

    def _wants_buffers(self) -> bool:
        return self.payload_bytes >= LARGE_BYTES and not self.default_buffers

    def aim(self, target: tuple[str, int]) -> None:
        """Set where messages go."""
        self._target = target

    def note(self) -> str:
        """Report the granted buffers, where they are not the defaults."""
        if not self._wants_buffers():
            return ""
        granted = [self.socket.getsockopt(system_socket.SOL_SOCKET, one) for one in _BUFFERS]
        return f"SO_SNDBUF {granted[0]:,}, SO_RCVBUF {granted[1]:,} as granted, asked: 4 MiB"

    def put(self, count: int) -> None:
        """Send `count` messages; the call returns when the last one is queued."""
        sendto, payload, target = self.socket.sendto, self.payload, self._target
        for _ in range(count):
            sendto(payload, target)

    def take(self, count: int) -> int:
        """Receive `count` messages with their source."""
        recvfrom, payload_bytes, taken_bytes = self.socket.recvfrom, self.payload_bytes, 0
        for _ in range(count):
            body, _ = recvfrom(payload_bytes)
            taken_bytes += len(body)
        return taken_bytes

    def ask_one(self) -> None:
        """Send one message and wait for the reply."""
        self.socket.sendto(self.payload, self._target)
        self.socket.recvfrom(self.payload_bytes)

    def echo_one(self) -> None:
        """Receive one message and send it back."""
        body, source = self.socket.recvfrom(self.payload_bytes)
        self.socket.sendto(body, source)


class Bursts(RdsPeer):
    """The same with lists of messages, by the calls that `urds` has for them."""

    def put(self, count: int) -> None:
        """Send `count` messages, BURST_MESSAGES in one call."""
        send_many, burst = self.socket.send_many, [(self.payload, self._target)] * BURST_MESSAGES
        for _ in range(count // BURST_MESSAGES):
            send_many(burst)
        send_many(burst[: count % BURST_MESSAGES])

    def take(self, count: int) -> int:
        """Receive `count` messages with their source, at most BURST_MESSAGES in one call."""
        recv_many, payload_bytes, taken_bytes = self.socket.recv_many, self.payload_bytes, 0
        while count:
            taken = recv_many(min(count, BURST_MESSAGES), payload_bytes)
            count -= len(taken)
            for body, _ in taken:
                taken_bytes += len(body)
        return taken_bytes


class KernelRds(RdsPeer):
    """The kernel's own RDS; only where a run asks for it by name, for the call loads the module."""

    name = "kernel_rds"
    label = "kernel AF_RDS"

    family: ClassVar[int] = 21  # AF_RDS; Source: linux v6.1 include/linux/socket.h

    def new_socket(self) -> system_socket.socket:
        """Return a socket of AF_RDS and SOCK_SEQPACKET."""
        return system_socket.socket(self.family, system_socket.SOCK_SEQPACKET)

    def open_receiver(self, senders: int) -> Address:
        """Refuse: the run that names addresses of two network namespaces binds and connects."""
        raise NotImplementedError("bind and aim")

    def open_sender(self, address: Address, index: int) -> None:
        """Refuse: see open_receiver."""
        raise NotImplementedError("bind and aim")
