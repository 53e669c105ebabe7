"""A mailbox that belongs to a node, another process, behind the contract of `rds.plane.contract`.

Messages lie in memory that this process and the node share; the compiled module moves them. Its
descriptor is the kernel's: any process that has it has the socket. There are no operations of RDMA.
"""

# The contract has records and keywords where the module has plain values.
# mypy: disable-error-code="override"

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, Self

import urds_native

from urds.common.errors import ErrorReason, os_error
from urds.common.types import IPAddress
from urds.rds.addresses import address_of, packed_of
from urds.rds.constants import Transport
from urds.rds.plane import contract
from urds.rds.plane.native import plain_settings

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import ExternalPath

_NAP_FIRST_S: Final = 0.0002
_NAP_MAX_S: Final = 0.01
_NS: Final = 1_000_000_000
_LINGER_S_MAX: Final = (1 << 31) - 1


class Watch(Protocol):
    """What an event loop is told by: the backend watches descriptors for it."""

    def subscribe(
        self, mailbox: AttachedMailbox, callback: Callable[[], None], *, room: bool
    ) -> Callable[[], None]:
        """See `contract.Mailbox.subscribe`."""

    def forget(self, descriptor: int) -> None:
        """Wake all that wait for a descriptor, which is about to be closed."""


class AttachedMailbox(urds_native.AttachedMailbox):
    """See `contract.Mailbox`; calls not defined here are the module's own."""

    local: IPAddress
    port: int
    settings: contract.MailboxSettings
    watch: Watch

    @classmethod
    def make(
        cls,
        place: str,
        settings: contract.MailboxSettings,
        watch: Watch,
        *,
        address: IPAddress,
        port: int,
        transport: Transport | None,
    ) -> Self:
        """Make a socket at a node, bound. Raises OSError as the node answers."""
        chosen = int(Transport.NONE if transport is None else transport)
        name, plain = packed_of(address), plain_settings(settings)
        mailbox = cls(os.fsencode(place), *name, port, chosen, plain)
        mailbox.watch, mailbox.settings = watch, settings
        data, scope, bound = mailbox.name
        mailbox.local, mailbox.port = unmapped(data, scope), bound
        return mailbox

    def send(
        self,
        buffers: Sequence[contract.Buffer],
        address: contract.SocketAddress,
        *,
        wait_ns: int | None,
        extension: bytes = b"",
        operations: Sequence[contract.Operation] = (),
        copy: bool = True,
    ) -> int:
        """Queue one message gathered from `buffers`; it has no operations."""
        return super().send(buffers, address, wait_ns, extension, bool(operations), copy)

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> contract.Message | contract.Notice | None:
        """Take (or peek at) the next item; None when nothing came in `wait_ns`."""
        taken = super().receive(wait_ns, peek, notices_max)
        if taken is None:
            return None
        if isinstance(taken, int):
            return contract.CongestionNotice(taken)
        return contract.Message._make(taken)

    def wait_operation(self, operation: contract.Operation, wait_ns: int | None) -> NoReturn:
        """Refuse: there are no operations."""
        raise os_error(ErrorReason.NOT_SUPPORTED)

    def note_operation(self, operation: contract.Operation) -> NoReturn:
        """Refuse: there are no operations."""
        raise os_error(ErrorReason.NOT_SUPPORTED)

    def route(self, peer: IPAddress, path: contract.Path | ExternalPath | None) -> None:
        """Do nothing: routes are the node's."""

    def subscribe(
        self,
        callback: Callable[[], None],
        *,
        room: bool,
        address: contract.SocketAddress | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called once, by the event loop; return the cancel function."""
        return self.watch.subscribe(self, callback, room=room)

    def configure(self, settings: contract.MailboxSettings) -> None:
        """Replace the settings."""
        super().configure(plain_settings(settings))
        self.settings = settings

    def note(self, peer: tuple[IPAddress, int] | None, linger_s: int | None) -> None:
        """Tell the node of the connected peer and of SO_LINGER."""
        data, scope = (None, 0) if peer is None else packed_of(peer[0])
        with suppress(BlockingIOError):  # a handler inside a send: at the next change
            self.set_peer(data, scope, 0 if peer is None else peer[1])
        self.set_word("linger", 0 if linger_s is None else 1 + min(linger_s, _LINGER_S_MAX))

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""
        data, scope = (None, 0) if peer is None else packed_of(peer)
        return super().cancel(data, scope, port)

    def request_acks(self) -> None:
        """Do nothing: its messages are the node's."""

    def close(self, linger_ns: int | None = None) -> None:
        """Close the descriptor; the node goes on with what is queued, for its own `linger_s`.

        With `linger_ns` this waits for so long. What is left then has the time of SO_LINGER at the
        node as well, which alone knows whether another process has the socket.
        """
        descriptor = self.fileno()
        if descriptor < 0:
            return
        try:
            if linger_ns is not None:
                self._wait_until_acknowledged(time.monotonic() + linger_ns / _NS)
                if not self.word("linger"):  # `strict_linux` of this process: none is left
                    self.set_word("linger", 1)
        finally:
            self.watch.forget(descriptor)
            super().close()

    def _wait_until_acknowledged(self, until_s: float) -> None:
        nap_s = _NAP_FIRST_S
        while self.unacknowledged() and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(nap_s, left_s))
            nap_s = min(2 * nap_s, _NAP_MAX_S)


def unmapped(data: bytes, scope: int) -> IPAddress:
    """Return an address that may be IPv4 in 16 bytes."""
    address = address_of(data, scope)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
