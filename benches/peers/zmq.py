"""pyzmq over TCP: DEALER/ROUTER has the semantics of RDS, PUSH/PULL is its fastest pattern.

The high-water mark is pyzmq's own 1,000 messages, but never more than 64 MiB of them: 1,000
messages of 1 MiB would measure how the machine swaps.
"""

from importlib.util import find_spec
from typing import Any, ClassVar

from .base import Address, Kind, Peer

QUEUED_MESSAGES_MAX = 1000
QUEUED_BYTES_MAX = 64 << 20


class _Zmq(Peer):
    """A socket of a pattern; the subclass names the two types."""

    sender_type: ClassVar[str]
    receiver_type: ClassVar[str]
    copy: ClassVar[bool] = True

    # Any: pyzmq's overloads want a literal for `copy`, and pyzmq may not be installed.
    _socket: Any

    @classmethod
    def missing(cls) -> str | None:
        """Tell whether pyzmq is there."""
        return None if find_spec("zmq") else "not installed"

    def _open(self, type_name: str) -> Any:
        import zmq

        self._socket = zmq.Context.instance().socket(getattr(zmq, type_name))
        queued_max = QUEUED_BYTES_MAX // max(1, self.payload_bytes)
        self._socket.set_hwm(min(QUEUED_MESSAGES_MAX, queued_max))
        return self._socket

    def open_receiver(self, senders: int) -> Address:
        """Bind to a free port; any number of senders is welcome."""
        port = self._open(self.receiver_type).bind_to_random_port("tcp://127.0.0.1")
        return f"tcp://127.0.0.1:{port}"

    def open_sender(self, address: Address, index: int) -> None:
        """Start to connect; libzmq goes on by itself."""
        self._open(self.sender_type).connect(str(address))

    def put(self, count: int) -> None:
        """Hand `count` messages to libzmq, which sends them in its own thread."""
        send, payload, copy = self._socket.send, self.payload, self.copy
        for _ in range(count):
            send(payload, copy=copy)

    def ask_one(self) -> None:
        """Send one message and wait for the reply."""
        self._socket.send(self.payload, copy=self.copy)
        self._socket.recv(copy=self.copy)


class DealerRouter(_Zmq):
    """Many senders to one socket that knows the sender of each message."""

    name = "dealer_router"
    label = "pyzmq DEALER/ROUTER"
    sender_type, receiver_type = "DEALER", "ROUTER"

    def take(self, count: int) -> int:
        """Receive `count` messages with the identity of their sender."""
        receive, copy, taken_bytes = self._socket.recv_multipart, self.copy, 0
        for _ in range(count):
            _, body = receive(copy=copy)
            taken_bytes += len(body)
        return taken_bytes

    def echo_one(self) -> None:
        """Return one message to its sender."""
        self._socket.send_multipart(self._socket.recv_multipart(copy=self.copy), copy=self.copy)


class DealerRouterNoCopy(DealerRouter):
    """The same by reference, which pays from some tens of KiB up."""

    name = "dealer_router_nocopy"
    label = "pyzmq D/R copy=False"
    kinds = frozenset({Kind.ONE_WAY})
    payload_bytes_min = 64 << 10
    copy = False


class PushPull(_Zmq):
    """One way only, and no receiver learns the sender."""

    name = "push_pull"
    label = "pyzmq PUSH/PULL"
    kinds = frozenset({Kind.ONE_WAY, Kind.BURSTS_ONE_WAY, Kind.MANY_SENDERS})
    sender_type, receiver_type = "PUSH", "PULL"

    def take(self, count: int) -> int:
        """Receive `count` messages."""
        receive, copy, taken_bytes = self._socket.recv, self.copy, 0
        for _ in range(count):
            taken_bytes += len(receive(copy=copy))
        return taken_bytes

    def echo_one(self) -> None:
        """Refuse: a PULL socket has no way back."""
        raise NotImplementedError("PUSH/PULL is one way")


class PushPullNoCopy(PushPull):
    """The same by reference, which pays from some tens of KiB up."""

    name = "push_pull_nocopy"
    label = "pyzmq P/P copy=False"
    kinds = frozenset({Kind.ONE_WAY})
    payload_bytes_min = 64 << 10
    copy = False
