"""A plane with a clock of the test's, and paths whose messages the test carries."""

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, ip_address
from typing import Any

from urds.common.types import IPAddress
from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import (
    Buffer,
    Event,
    Limits,
    Mailbox,
    MailboxSettings,
    Operation,
    Plane,
    RdmaTransfer,
)
from urds.rds.plane.message_transport import Charge, ExternalPath
from urds.rds.plane.python.plane import Plane as PythonPlane

LOCAL, PEER, OTHER = (ip_address(f"127.0.84.{number}") for number in (1, 2, 3))
PORT, PEER_PORT = 5000, 4000
TARGET = (str(PEER), PEER_PORT)
MS = 1_000_000

# (sender, target port, payload, extension, operations)
Queued = tuple[Mailbox, int, Buffer, bytes, Sequence[Operation]]


class FakePath:
    """A `MessageTransport` that keeps what it is given and writes down what it is told."""

    def __init__(
        self,
        plane: Plane,
        peer: IPAddress = PEER,
        *,
        tos: int = 0,
        message_bytes_max: int = 1 << 20,
    ) -> None:
        self.peer = peer
        self.queued: list[Queued] = []
        self.told: list[str] = []
        self.charges: list[Charge] = []
        self._plane = plane
        self.outside: ExternalPath = plane.external_path(
            local=LOCAL, peer=peer, tos=tos, message_bytes_max=message_bytes_max, transport=self
        )

    def _tell(self, what: str) -> None:
        holds_lock = getattr(self._plane, "holds_lock", lambda: False)
        assert not holds_lock(), f"{what} with the plane's lock held"
        self.told.append(what)

    def send(
        self,
        sender: Mailbox,
        port: int,
        payload: Buffer,
        extension: bytes,
        operations: Sequence[Operation],
        *,
        may_wait: bool,
    ) -> Charge:
        self._tell("send")
        charge = self.outside.charge(sender, port, len(payload), may_wait=may_wait)
        self.charges.append(charge)
        if charge in (Charge.QUEUED, Charge.ASKS):
            self.queued.append((sender, port, payload, extension, operations))
            self._plane.finish_pass()
        return charge

    def cancel(self, mailbox: Mailbox, port: int | None) -> int:
        self._tell("cancel")
        gone = [one for one in self.queued if one[0] is mailbox and port in (None, one[1])]
        for one in gone:
            self.queued.remove(one)
            self.outside.refund(mailbox, messages=1, payload_bytes=len(one[2]))
            for operation in one[4]:
                operation.status = RdmaStatus.CANCELED
                mailbox.note_operation(operation)
        self._plane.finish_pass()
        return len(gone)

    # -- what a transport does

    def carry_all(self) -> None:
        """Have the peer acknowledge everything."""
        queued, self.queued = self.queued, []
        for sender, _, payload, _, _ in queued:
            self.outside.refund(sender, messages=1, payload_bytes=len(payload))
        self._plane.finish_pass()

    def judge(self, *, full: bool) -> None:
        """Come to the limit of messages, or leave it."""
        self.outside.set_full(full)
        self._plane.finish_pass()

    def end_operation(self, sender: Mailbox, operation: Operation, status: RdmaStatus) -> None:
        """Have an operation end."""
        operation.status = status
        sender.note_operation(operation)
        self._plane.finish_pass()

    def arrive(
        self,
        payload: bytes,
        *,
        source_port: int = PEER_PORT,
        port: int = PORT,
        extension: bytes = b"",
    ) -> bool:
        """Have a message come in; return whether more may."""
        goes_on = self.outside.deliver(source_port, port, payload, extension)
        self._plane.finish_pass()
        return goes_on

    def arrive_map(self, *ports: int) -> None:
        """Have a map of the peer come in."""
        data = bytearray(8192)
        for port in ports:
            data[port >> 3] |= 1 << (port & 7)
        self.outside.take_peer_map(bytes(data))
        self._plane.finish_pass()


class MessageTransportWorld:
    """A plane, one address, one path of a message transport to each peer."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        virtual: bool = True,
        make_plane: Callable[..., Plane] = PythonPlane,
    ) -> None:
        self.now_ns = 1_000 * MS
        self.plane: Any = make_plane(
            limits=limits or Limits(),
            resolve=self.resolve,
            clock_ns=(lambda: self.now_ns) if virtual else None,
        )
        self.paths: dict[IPAddress, FakePath] = {}

    def resolve(self, mailbox: Mailbox, peer: IPv4Address) -> None:
        mailbox.route(peer, self.path(peer).outside)

    def path(self, peer: IPAddress = PEER, **values: int) -> FakePath:
        path = self.paths.get(peer)
        if path is None:
            path = self.paths[peer] = FakePath(self.plane, peer, **values)
        return path

    def mailbox(self, port: int = PORT, **settings: object) -> Any:
        return self.plane.mailbox(local=LOCAL, port=port, settings=MailboxSettings(**settings))

    def turn(self, ms: float = 0) -> list[Event]:
        self.now_ns += round(ms * MS)
        self.plane.progress()
        events: list[Event] = self.plane.help(0)
        return events

    def counter(self, name: str) -> int:
        count: int = self.plane.snapshot().counters[name]
        return count

    def queued_bytes(self, port: int = PORT) -> int:
        """Return what the send account of a socket has."""
        rows = {row.port: row.send_queued_bytes for row in self.plane.snapshot().mailboxes}
        return rows[port]

    def close(self) -> None:
        self.plane.close(0)
        self.plane.release()


def transfer(token: int = 1, *, notify: bool = True, report_failure: bool = False) -> RdmaTransfer:
    """Return a write of nothing in particular."""
    return RdmaTransfer(
        key=7,
        remote_address=0,
        token=token,
        notify=notify,
        report_failure=report_failure,
        is_write=True,
        pieces=(memoryview(b"octets"),),
    )
