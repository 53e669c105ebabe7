"""A path between two addresses of this process, common to both planes.

It has no stream, header or number: the sender delivers, and nothing is in flight. So the
`contract.Path` calls that concern a stream, a handshake or a queue do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.plane.contract import Agreement, PathActivity, Stream
from urds.rds.types import Hold

if TYPE_CHECKING:
    from urds.rds.plane.contract import Path


class LoopPath:
    """The calls of a path on a loop. Any thread may make any of them."""

    def __init__(self, *, local: IPAddress, peer: IPAddress) -> None:
        self.local = local
        self.peer = peer
        self.index = 0
        self.attachment = 0  # it has no stream

    def attach(self, stream: Stream, *, hold: Hold, probe: bytes | None = None) -> None:
        """Raise: a loop has no stream."""
        raise AssertionError("a loop path has no stream")

    def detach(self) -> Stream | None:
        """Return None: there is no stream."""
        return None

    def end_hold(self, *, received_by_peer: int | None) -> None:
        """Do nothing: a loop is never held."""

    def agree(self, agreement: Agreement) -> None:
        """Do nothing: there is no handshake."""

    def restart_peer(self) -> int:
        """Return 0: the peer restarts only with this process."""
        return 0

    def remember_handshake(self, generation: int | None) -> None:
        """Do nothing: there is no handshake."""

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Do nothing: pings are answered in place."""

    def probe_dead_stream(self) -> None:
        """Do nothing: a loop has no connection that can be half open."""

    def peer_is_congested(self, port: int) -> bool:
        """Return false: pings are answered in place, without this call."""
        return False

    def hold_behind(self, other: Path | None) -> None:
        """Do nothing: nothing is in flight."""

    def holds_messages(self) -> bool:
        """Return false: nothing is queued."""
        return False

    def has_delivered(self) -> bool:
        """Return true: messages are delivered at once."""
        return True

    def activity(self) -> PathActivity:
        """Return zeros: nothing is numbered."""
        return PathActivity(0, None, 0)

    def drop_queue(self) -> int:
        """Return 0: nothing is queued."""
        return 0

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
