"""Paths over message transports, such as RDS over RDMA: what transport and plane owe each other.

A message transport takes whole messages and delivers whole messages; queue, numbers and connection
are its own, behind a lock of its own. The plane keeps what such a path shares with paths over
streams: the sender's account, the receiver's queue, the congestion maps of both, and whether the
peer is absent. `Plane.external_path` makes that part, an `ExternalPath`, for each path.

Sending. A send whose route is an `ExternalPath` leaves the plane without being queued or counted.
The binding calls `MessageTransport.send`, with no lock held, which charges the message to its
sender and queues it in one section of the transport's lock. So a mailbox that is closed first is
not charged, and the messages of one that is closed then are found when they are cancelled.

Receiving. The transport calls `ExternalPath.deliver` for each message, and after some of them
`Plane.finish_pass`, which checks congestion and shows the state of mailboxes on their descriptors.

Locks. The transport's lock comes before the plane's: it may be held in every call of an
`ExternalPath` but `wait_for_charge`, and in `Mailbox.note_operation`. The plane calls no transport
with its own lock held; most of what it wants of one is an event of `Plane.help`
(`LocalMapChanged`, `Resumed`, `GiveUp`, `LingerEnded`).

Counters. The plane counts what it decides: rejected sends, room, deliveries. The transport counts
what it queues, sends, cancels and gives up. No event is counted by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from urds.common.errors import ErrorReason, os_error
from urds.common.types import IPAddress

if TYPE_CHECKING:
    from urds.rds.plane.contract import Buffer, Mailbox, Operation

REFERENCE_BYTES: Final = 8192  # from this length on, a payload is kept by reference
_RESOLVES_MAX: Final = 3  # a peer may be evicted between its route and the message


class Charge(Enum):
    """What became of the charge of a message."""

    QUEUED = auto()  # charged: the transport queues the message
    ASKS = auto()  # the same, and its sender may wait for the acknowledgement soon
    NO_ROOM = auto()  # nothing is charged: the account, its share or the path is full
    CONGESTED = auto()  # nothing is charged: the peer's port is congested
    NO_ROUTE = auto()  # the path is no longer the sender's route to the peer: resolve again


class Gathered(Protocol):
    """Plain messages of a path that gathered in the plane, in the order of their sends.

    Each was charged when it was sent. Calls need no lock, and take none.
    """

    @property
    def frame_bytes(self) -> int:
        """Bytes of all, with headers."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all, without headers."""

    @property
    def compiled(self) -> object:
        """What compiled code has of them."""

    def __len__(self) -> int:
        """Return how many there are, at least one."""

    def emit(
        self, sequence: int, acknowledgement: int, credit: int, budget: tuple[int, int, int, int]
    ) -> tuple[bytes, int, int, int]:
        """Return them as a frame; the first has `sequence`, acknowledges and grants.

        `budget`: messages and bytes left until one asks for an acknowledgement, and of a whole
        budget. Returns also how many ask because it was spent, and what is left of it.
        """

    def accounts(self) -> list[tuple[Mailbox, int, int]]:
        """Return mailboxes, each with its messages and their bytes."""

    def messages(self) -> list[tuple[Mailbox, int, int, bytes, bool]]:
        """Return for each mailbox, source and target port, payload, whether it was ASKS."""


class Gatherer(Protocol):
    """What a plane does of a transport's work per message, if it can: docs/adr/0047."""

    def set_gathering(self, room_bytes: int) -> None:
        """Have plain messages of less than so many bytes in all, with headers, gather; 0: none.

        Sends of them do not reach the transport until then. They come behind all that it has.
        """

    def take_gathered(self) -> Gathered | None:
        """Take what has gathered, if anything has; nothing gathers any more."""

    def deliver_plain(
        self, frame: memoryview, payload_bytes_max: int, sequence_expected: int
    ) -> tuple[int, int, int, int, bool]:
        """Put the plain messages at the front of a frame's bytes into their mailboxes.

        Plain are new messages to a port without extension, acknowledgement and credits, of at most
        so many bytes. Returns how many bytes they take, the next expected number, how many there
        are, how many of them ask for an acknowledgement, and whether the path has to pause.
        """


class NothingGathers:
    """A plane that leaves each message to the transport, as the specification does."""

    def set_gathering(self, room_bytes: int) -> None:
        """Do nothing."""

    def take_gathered(self) -> Gathered | None:
        """Return None."""
        return None

    def deliver_plain(
        self,
        frame: memoryview,
        payload_bytes_max: int,
        sequence_expected: int,
    ) -> tuple[int, int, int, int, bool]:
        """Deliver nothing."""
        return 0, sequence_expected, 0, 0, False


class ExternalPath(Gatherer, Protocol):
    """The plane's part of one path over a message transport; any thread may make any call."""

    local: IPAddress
    peer: IPAddress
    transport: MessageTransport

    def charge(self, mailbox: Mailbox, port: int, payload_bytes: int, *, may_wait: bool) -> Charge:
        """Charge a message of a mailbox, after every check of a send, in Linux's order.

        Raises OSError for what no wait can change: EBADF, EMSGSIZE, EHOSTUNREACH once after
        messages to the peer were dropped; unless `may_wait` also ENOBUFS and EAGAIN.
        """

    def wait_for_charge(
        self,
        mailbox: Mailbox,
        port: int,
        payload_bytes: int,
        *,
        is_first: bool,
        wait_ns: int | None,
    ) -> bool:
        """Wait until a charge may succeed; return false when the time is over.

        `is_first`: the message has not waited before; each is counted once. Raises as `charge`.
        """

    def refund(self, mailbox: Mailbox, *, messages: int, payload_bytes: int) -> None:
        """End the charge of messages that left the path in any way; the mailbox may be closed."""

    def held(self, mailbox: Mailbox) -> tuple[int, int]:
        """Return how many messages of a mailbox are charged, and their bytes."""

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> bool:
        """Queue a message in its mailbox; return whether more may come.

        The message is taken also with false: then its mailbox is over its hard bound, and the
        transport receives no more on this path until the event `Resumed`.
        """

    def take_peer_map(self, data: bytes) -> None:
        """Put the peer's congestion map in force, of 8192 bytes.

        Monitors are told of the groups that it cleared. Source: linux v6.12 net/rds/ib_recv.c
        (rds_ib_cong_recv); docs/reference/rds.md 3.7.
        """

    def local_map(self) -> bytes:
        """Return the local congestion map as it is now."""

    def peer_is_congested(self, port: int) -> bool:
        """Return whether the peer's current map marks a port."""

    def set_full(self, full: bool) -> None:
        """Note that the path is at its limit of messages, or below: then its senders continue."""

    def set_connected(self, connected: bool) -> None:
        """Note that there is a connection, or that messages wait for one from now on."""

    def fail(self, mailbox: Mailbox) -> None:
        """Note that messages to the peer were dropped: the next send to it raises, once."""

    def close(self) -> None:
        """Remove the path and every route over it; the transport has dropped its queue."""


class MessageTransport(Protocol):
    """One connection to a peer that carries whole messages. The plane's lock is not held."""

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
        """Charge a message and queue it, and have it leave. Raises as `ExternalPath.charge`."""

    def cancel(self, mailbox: Mailbox, port: int | None) -> int:
        """Remove, refund and count a mailbox's messages, to one port or all; return how many.

        Their operations end with CANCELED unless they have ended.
        """


class Sender(Protocol):
    """What `send` asks of a mailbox of either plane."""

    local: IPAddress

    def resolve(self, peer: IPAddress) -> None:
        """Have the control plane make a route to a peer."""

    def external_route(self, peer: IPAddress) -> ExternalPath | None:
        """Return the route to a peer if a message transport has it."""


def send(
    mailbox: Sender,
    payload: Buffer,
    target: tuple[IPAddress, int],
    wait_ns: int | None,
    extension: bytes = b"",
    operations: Sequence[Operation] = (),
) -> int:
    """Send a message over its message transport, waiting for room; return its length.

    No lock is held. `wait_ns` None waits without limit, 0 never. Raises as `Mailbox.send`.
    """
    peer, port = target
    until_ns = monotonic_ns() + wait_ns if wait_ns else None
    waited = False
    for _ in range(_RESOLVES_MAX):
        path = mailbox.external_route(peer)
        if path is None:
            mailbox.resolve(peer)
            path = mailbox.external_route(peer)
        while path is not None:
            charge = path.transport.send(
                mailbox,  # type: ignore[arg-type]  # a mailbox of this plane
                port,
                payload,
                extension,
                operations,
                may_wait=wait_ns != 0,
            )
            if charge is Charge.QUEUED or charge is Charge.ASKS:
                return len(payload)
            if charge is Charge.NO_ROUTE:
                break
            left_ns = None if until_ns is None else max(0, until_ns - monotonic_ns())
            has_room = path.wait_for_charge(
                mailbox,  # type: ignore[arg-type]  # as above
                port,
                len(payload),
                is_first=not waited,
                wait_ns=left_ns,
            )
            if not has_room:
                detail = f"no room to send to {peer} port {port}"
                raise os_error(ErrorReason.TIMED_OUT, detail, peer=peer)
            waited = True
    raise os_error(ErrorReason.PEER_UNREACHABLE, f"no route to {peer}", peer=peer)


def gathered(buffers: Sequence[Buffer], *, copy: bool = True) -> bytes | memoryview:
    """Return buffers as one payload that does not change; several are always copied."""
    return frozen(buffers[0], copy=copy) if len(buffers) == 1 else b"".join(buffers)


def frozen(payload: Buffer, *, copy: bool = True) -> bytes | memoryview:
    """Return a payload that does not change: `bytes` and views of it as they are, else a copy.

    Without `copy` a long payload is always the caller's own memory, in one piece.
    """
    if type(payload) is bytes:
        return payload
    view = memoryview(payload)
    if not view.c_contiguous:
        return view.tobytes()
    # A read-only view may still be of memory that others write: only `bytes` never change.
    if view.nbytes < REFERENCE_BYTES or (copy and not isinstance(view.obj, bytes)):
        return bytes(view)
    return view.cast("B")
