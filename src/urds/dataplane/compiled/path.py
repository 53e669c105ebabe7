"""Paths of the compiled plane: to a peer over a stream, and to an address of this process."""

# The contract has records and keywords where the module has plain values.
# mypy: disable-error-code="override"

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self, cast

import urds_native

from urds.dataplane.base import Address, Agreement, Hold, Stream
from urds.dataplane.compiled.plain import plain

if TYPE_CHECKING:
    from urds.dataplane.base import Path as AnyPath

_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})
_NO_DESCRIPTOR = -1


class Path(urds_native.Path):
    """See `dataplane.base.Path`; calls that are not here are the module's own."""

    local: Address
    peer: Address
    index: int
    attachment: int  # the module's own, which only it can set

    def __new__(
        cls,
        plane: urds_native.Plane,
        *,
        local: Address,
        peer: Address,
        index: int,
        sequence_first: int,
    ) -> Self:
        """Make a path without a stream."""
        path = super().__new__(cls, plane, *plain(local), *plain(peer), index, sequence_first)
        path.local, path.peer, path.index = local, peer, index
        return path

    def attach(self, stream: Stream, *, hold: Hold) -> None:
        """Take a connected stream; a TCP socket is read and written without Python."""
        super().attach(stream, _descriptor_of(stream), hold.name)

    def detach(self) -> Stream | None:
        """Give the stream back."""
        return cast("Stream | None", super().detach())

    def release(self, *, received_by_peer: int | None) -> None:
        """End `Hold.RELEASE`."""
        super().release(received_by_peer)

    def agree(self, agreement: Agreement) -> None:
        """Set what a handshake found out about the peer."""
        release = agreement.release.name
        super().agree((release, agreement.checksum, agreement.message_bytes_max))

    def hold_behind(self, other: AnyPath | None) -> None:
        """Hold new messages until `other` has delivered what it has queued now."""
        assert other is None or isinstance(other, Path), "a path of this plane"
        super().hold_behind(other)

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Queue a ping, pong or probe."""
        super().control(source_port, target_port, extension, hello)


def _descriptor_of(stream: Stream) -> int:
    """Return the descriptor of a TCP socket, which needs no call of Python; else -1."""
    if isinstance(stream, socket.socket) and stream.family in _INTERNET:
        return stream.fileno()
    return _NO_DESCRIPTOR


class LoopPath:
    """Between two addresses of this process: the sender delivers, and nothing is in flight.

    It is no object of the plane: a mailbox that is given one as its route looks for the target
    itself. The calls that concern a stream or a peer do nothing.
    """

    def __init__(self, *, local: Address, peer: Address) -> None:
        self.local = local
        self.peer = peer
        self.index = 0
        self.attachment = 0  # it has no stream

    def attach(self, stream: Stream, *, hold: Hold) -> None:
        """Refuse: a loop has no stream."""
        raise AssertionError("a loop path has no stream")

    def detach(self) -> Stream | None:
        """Return None: there is no stream."""
        return None

    def release(self, *, received_by_peer: int | None) -> None:
        """Do nothing: a loop is never held."""

    def agree(self, agreement: Agreement) -> None:
        """Do nothing: there is no handshake."""

    def restart_peer(self) -> int:
        """Return 0: the peer lives and dies with us."""
        return 0

    def remember_handshake(self, generation: int | None) -> None:
        """Do nothing: there is no handshake."""

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Do nothing: pings are answered in place."""

    def poke(self) -> None:
        """Do nothing: a loop cannot be half dead."""

    def peer_is_congested(self, port: int) -> bool:
        """Return false: nobody asks, pings are answered in place."""
        return False

    def hold_behind(self, other: AnyPath | None) -> None:
        """Do nothing: nothing is in flight."""

    def holds_messages(self) -> bool:
        """Return false: nothing is queued."""
        return False

    def drop_queue(self) -> int:
        """Return 0: nothing is queued."""
        return 0

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
