"""A backend whose mailboxes hold what a test gives them: no plane, no thread, no descriptor."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from urds.common.types import IPAddress
from urds.rds.constants import Transport
from urds.rds.plane.bursts import receive_each, send_each
from urds.rds.runtime.backend import (
    MailboxSettings,
    Message,
    Notice,
    Operation,
    Snapshot,
    SocketAddress,
)
from urds.rds.settings import Settings
from urds.rds.transports.rdma.regions import RegionTable

Buffer = bytes | bytearray | memoryview


class FakeMailbox:
    """Records what it is told; gives what `queue` holds."""

    def __init__(self, local: IPAddress, port: int, settings: MailboxSettings) -> None:
        self.local = local
        self.port = port
        self.configured = [settings]
        self.queue: deque[Message | Notice] = deque()
        self.sent: list[tuple[bytes, SocketAddress, int | None]] = []
        self.cancelled: list[tuple[IPAddress | None, int | None]] = []
        self.lingers: list[int | None] = []
        self.waits: list[int | None] = []
        self.extensions: list[bytes] = []
        self.operations: list[Operation] = []
        self.notices_asked: list[int] = []
        self.error: OSError | KeyboardInterrupt | None = None  # of sends

    @property
    def has_route(self) -> bool:
        """Whether anything was sent."""
        return bool(self.sent)

    def sendto(self, payload: Buffer, flags_or_address: Any, address: Any = None, /) -> int:
        """Record a message."""
        target = flags_or_address if address is None else address
        self.sent.append((bytes(payload), target, self.configured[-1].send_wait_ns))
        return len(payload)

    def send(
        self,
        buffers: Sequence[Buffer],
        address: SocketAddress,
        *,
        wait_ns: int | None,
        extension: bytes = b"",
        operations: Sequence[Operation] = (),
        copy: bool = True,
    ) -> int:
        """Record a gathered message and its operations, or refuse as told."""
        if self.error is not None:
            raise self.error
        payload = b"".join(buffers)
        self.sent.append((payload, address, wait_ns))
        self.extensions.append(extension)
        self.operations += operations
        return len(payload)

    def recvfrom(self, payload_bytes_max: int, flags: int = 0, /) -> tuple[bytes, Any]:
        """Give the next message."""
        message = self.receive(wait_ns=0, peek=False)
        assert isinstance(message, Message)
        return message.payload[:payload_bytes_max], message.source

    def send_many(
        self, messages: Sequence[tuple[Buffer, Any]], peer: SocketAddress | None, /
    ) -> int:
        """Record messages."""
        return send_each(self.sendto, messages, peer)

    def recv_many(self, count_max: int, payload_bytes_max: int, /) -> list[tuple[bytes, Any]]:
        """Give the next messages."""
        return receive_each(self.recvfrom, lambda: bool(self.queue), count_max, payload_bytes_max)

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> Message | Notice | None:
        """Give the next message or notice; record how long would have been waited."""
        self.waits.append(wait_ns)
        self.notices_asked.append(notices_max)
        if not self.queue:
            return None
        return self.queue[0] if peek else self.queue.popleft()

    def wait_operation(self, operation: Operation, wait_ns: int | None) -> bool:
        """Record how long would have been waited."""
        self.waits.append(wait_ns)
        return operation.status is not None

    def configure(self, settings: MailboxSettings) -> None:
        """Record the settings."""
        self.configured.append(settings)

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Record a cancel."""
        self.cancelled.append((peer, port))
        return 3

    def request_acks(self) -> None:
        """Do nothing."""

    def unacknowledged(self) -> int:
        """Return how many messages were recorded: none is acknowledged."""
        return len(self.sent)

    def close(self, linger_ns: int | None = None) -> None:
        """Record a close."""
        self.lingers.append(linger_ns)


class FakeBackend:
    """Binds anything; records what is closed and what was forgotten."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.bound: list[FakeMailbox] = []
        self.transports: list[Transport | None] = []
        self.ended: list[FakeMailbox] = []
        self.forgotten: list[FakeMailbox] = []
        self.error: OSError | None = None
        self.table = RegionTable(lambda: (), lambda action: action())  # keys without a device
        self.asked_to_connect: list[IPAddress] = []
        self.is_connected = True

    def bind(
        self,
        *,
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None,
    ) -> FakeMailbox:
        """Make a mailbox, or refuse as told."""
        self.transports.append(transport)
        if self.error is not None:
            raise self.error
        self.bound.append(FakeMailbox(address, port or 5000 + len(self.bound), settings))
        return self.bound[-1]

    def transport_of(self, mailbox: FakeMailbox) -> Transport:
        """Give what the last bind was asked for."""
        return Transport.IB if self.transports[-1] is Transport.IB else Transport.TCP

    def regions(self) -> RegionTable:
        """Give a table without devices."""
        return self.table

    def connected(self, mailbox: FakeMailbox, peer: IPAddress) -> bool:
        """Say what the test wants; record the peer it was about."""
        self.asked_to_connect.append(peer)
        return self.is_connected

    def note(self, mailbox: FakeMailbox, peer: object, linger_s: int | None) -> None:
        """Ignore it."""

    def connected_peers(self) -> Mapping[Any, Any]:
        """Return none."""
        return {}

    def closed(self, mailbox: FakeMailbox) -> None:
        """Record; free the regions."""
        self.table.free_all(mailbox)
        self.ended.append(mailbox)

    def is_inside(self) -> bool:
        """Say that no call is interrupted."""
        return False

    def abandoned(self, mailbox: FakeMailbox, linger_ns: int | None = None) -> None:
        """Record."""
        self.forgotten.append(mailbox)

    def snapshot(self) -> Snapshot:
        """Return empty tables."""
        return Snapshot(counters={}, mailboxes=(), paths=())

    def counters(self) -> Mapping[str, int]:
        """Return one counter."""
        return {"recv_queued": 7}
