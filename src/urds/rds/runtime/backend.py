"""What a socket needs of the place where its local address is kept.

A backend owns addresses, ports and connections; a `Mailbox` is all that a bound socket sees of it.
Two kinds: `inprocess`, and `attached` to the daemon of the host. Rules: any thread may make any
call at any time; a call that is refused raises `errors.os_error`; only `bind` may wait, for a
listener to be set up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from urds.common.types import IPAddress
from urds.rds.constants import Transport
from urds.rds.plane.contract import (
    ALL_GROUPS,
    AtomicOperation,
    Buffer,
    CongestionNotice,
    Mailbox,
    MailboxSettings,
    Message,
    Notice,
    Operation,
    OperationNotices,
    Plane,
    RdmaTransfer,
    Snapshot,
    SocketAddress,
)
from urds.rds.settings import Settings

if TYPE_CHECKING:
    from urds.rds.runtime.info import Endpoint
    from urds.rds.transports.rdma.regions import RegionTable

__all__ = [
    "ALL_GROUPS",
    "AtomicOperation",
    "Backend",
    "Buffer",
    "CongestionNotice",
    "Mailbox",
    "MailboxSettings",
    "Message",
    "Notice",
    "Operation",
    "OperationNotices",
    "Plane",
    "RdmaTransfer",
    "Snapshot",
    "SocketAddress",
]


class Backend(Protocol):
    """Host addresses for the sockets of this process. Made as `Kind(settings)`."""

    settings: Settings
    plane: Plane

    def bind(
        self,
        *,
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None,
    ) -> Mailbox:
        """Bind a socket; port 0 chooses a free one at random, 1 is reserved.

        The caller has checked that the address is unicast and, if IPv4, not v4-mapped IPv6.
        `transport` is what SO_RDS_TRANSPORT chose. Raises OSError: EINVAL for port 1,
        EADDRINUSE if a socket of this process has the address and port, or another process the
        address (the text says what to do), EADDRNOTAVAIL if the address is not of this host,
        ENOPROTOOPT if it is not and a transport was chosen.
        """

    def transport_of(self, mailbox: Mailbox) -> Transport:
        """Return by what a mailbox sends: TCP or IB."""

    def regions(self) -> RegionTable:
        """Return the memory regions of this process; for mailboxes over RDMA."""

    def connected(self, mailbox: Mailbox, peer: IPAddress) -> bool:
        """Tell whether a mailbox over RDMA has a connection to the peer; if not, ask for one.

        Raises OSError: EACCES for a peer that is not allowed, EUSERS when there are too many.
        """

    def note(self, mailbox: Mailbox, peer: Endpoint | None, linger_s: int | None) -> None:
        """Note the connected peer and SO_LINGER of a socket, which the plane does not obey."""

    def connected_peers(self) -> Mapping[Endpoint, Endpoint]:
        """Return where the sockets of `snapshot` are connected to."""

    def closed(self, mailbox: Mailbox) -> None:
        """Free the port of a mailbox that its socket has closed."""

    def is_inside(self) -> bool:
        """Tell whether the calling thread holds a lock of this backend.

        The caller then is a signal handler or finaliser that interrupted another call.
        """

    def abandoned(self, mailbox: Mailbox, linger_ns: int | None = None) -> None:
        """Note a mailbox whose socket is over; close it and free its port soon.

        `linger_ns` as in `Mailbox.close`, in the background. For a finaliser or handler, which may
        run in any thread inside any call: takes no lock and does not close here.
        """

    def close(self, *, at_exit: bool = False) -> int:
        """Drain, then end; return the messages that were left.

        Afterwards every call is refused and waiting calls wake; with `at_exit` they go on waiting.
        """

    def end_if_unused(self) -> bool:
        """End if there is no socket, nor a message of a closed one; tell whether it has ended."""

    def abandon_in_child(self) -> None:
        """Leave everything to the parent; called in the child of a fork."""

    def drain(self, timeout_s: float) -> int:
        """Wait until peers have acknowledged everything; return the messages left."""

    def snapshot(self) -> Snapshot:
        """Return counters and tables of the whole process."""

    def counters(self) -> Mapping[str, int]:
        """Return the counters, those of the control plane among them, in the order of rds-info."""
