"""Paths of the compiled plane."""

# The contract has records and keywords where the module has plain values.
# mypy: disable-error-code="override"

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self, cast

import urds_native

from urds.common.types import IPAddress
from urds.rds.plane.contract import Agreement, Hold, Stream
from urds.rds.plane.native.plain import plain

if TYPE_CHECKING:
    from urds.rds.plane.contract import Path as AnyPath

_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})
_NO_DESCRIPTOR = -1


class Path(urds_native.Path):
    """See `contract.Path`; calls not defined here are the module's own."""

    local: IPAddress
    peer: IPAddress
    index: int
    attachment: int  # the module's own, which only it can set

    def __new__(
        cls,
        plane: urds_native.Plane,
        *,
        local: IPAddress,
        peer: IPAddress,
        index: int,
        sequence_first: int,
    ) -> Self:
        """Create a path without a stream."""
        path = super().__new__(cls, plane, *plain(local), *plain(peer), index, sequence_first)
        path.local, path.peer, path.index = local, peer, index
        return path

    def attach(self, stream: Stream, *, hold: Hold) -> None:
        """Attach a connected stream; a TCP socket is read and written without Python."""
        super().attach(stream, _descriptor_of(stream), hold.name)

    def detach(self) -> Stream | None:
        """Return the stream."""
        return cast("Stream | None", super().detach())

    def release(self, *, received_by_peer: int | None) -> None:
        """End `Hold.RELEASE`."""
        super().release(received_by_peer)

    def agree(self, agreement: Agreement) -> None:
        """Set what the handshake agreed with the peer."""
        release = agreement.release.name
        super().agree((release, agreement.checksum, agreement.message_bytes_max))

    def hold_behind(self, other: AnyPath | None) -> None:
        """Hold new messages until `other` has delivered its present queue."""
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
