"""Bound sockets of the compiled plane."""

# The contract has records and keywords where the module has plain values.
# mypy: disable-error-code="override"

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

import urds_native

from urds.rds.addresses import known_peer
from urds.common.types import IPAddress
from urds.rds.plane.contract import (Buffer, CongestionNotice, MailboxSettings, Message, Notice, SocketAddress)
from urds.rds.plane.native.path import Path
from urds.rds.plane.native.plain import plain
from urds.rds.plane.loop_path import LoopPath
from urds.rds.plane.operations import Operation

if TYPE_CHECKING:
    from urds.rds.plane.contract import Path as AnyPath
    from urds.rds.plane.message_transport import MessageTransport

_plain_settings: Callable[[MailboxSettings], tuple[Any, ...]] = attrgetter(
    *MailboxSettings.__slots__
)


class Mailbox(urds_native.Mailbox):
    """See `contract.Mailbox`; calls not defined here are the module's own."""

    local: IPAddress
    port: int
    settings: MailboxSettings

    def __new__(
        cls, plane: urds_native.Plane, *, local: IPAddress, port: int, settings: MailboxSettings
    ) -> Self:
        """Bind; the caller has checked that the port is free."""
        mailbox = super().__new__(cls, plane, *plain(local), port, _plain_settings(settings))
        mailbox.local, mailbox.port, mailbox.settings = local, port, settings
        return mailbox

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
        """Queue one message gathered from `buffers`; operations raise: no path supports any."""
        return super().send(buffers, address, wait_ns, extension, bool(operations), copy)

    def receive(
        self, *, wait_ns: int | None, peek: bool = False, notices_max: int = 1
    ) -> Message | Notice | None:
        """Take (or peek at) the next item; None when nothing came in `wait_ns`."""
        taken = super().receive(wait_ns, peek, notices_max)
        if taken is None:
            return None
        return CongestionNotice(taken) if isinstance(taken, int) else Message._make(taken)

    def wait_operation(self, operation: Operation, wait_ns: int | None) -> bool:
        """Return whether an operation has ended; no operation is ever under way here."""
        return operation.status is not None

    def route(self, peer: IPAddress, path: AnyPath | MessageTransport | None) -> None:
        """Set the path to `peer`; None removes it."""
        if isinstance(path, LoopPath):  # the module has none: its mailbox looks for the target
            self.route_loop(*plain(peer))
            return
        assert path is None or isinstance(path, Path), "a path of this plane"
        super().route(*plain(peer), path)

    def subscribe(
        self,
        callback: Callable[[], None],
        *,
        room: bool,
        address: SocketAddress | None = None,
    ) -> Callable[[], None]:
        """Have `callback` called once, from any thread; return the cancel function."""
        peer = None if address is None else known_peer(address, self.local)
        data, scope = (None, 0) if peer is None else plain(peer)
        return super().subscribe(callback, room, data, scope)

    def configure(self, settings: MailboxSettings) -> None:
        """Replace the settings."""
        super().configure(_plain_settings(settings))
        self.settings = settings

    def cancel(self, peer: IPAddress | None, port: int | None) -> int:
        """Remove unacknowledged messages to that address and port, or all; return how many."""
        data, scope = (None, 0) if peer is None else plain(peer)
        return super().cancel(data, scope, port)
