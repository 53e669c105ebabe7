"""Paths over streams: which local address and peer each belongs to, and the routes over them.

Control lock held.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from urds.common.types import IPAddress
from urds.rds.plane.contract import Path, Plane
from urds.rds.runtime.local_addresses import LocalAddressState, PeerPaths
from urds.rds.runtime.looks import Looks

_MS: Final = 1_000_000
_STARTED_NS = time.time_ns() - time.monotonic_ns()
# A million messages per millisecond would be needed to overtake the clock.
_SEQUENCE_SHIFT: Final = 20


class PathStreams(Protocol):
    """What a driver keeps of the streams of a path: `connect.Streams`."""

    def forget(self, path: Path) -> None:
        """Drop the record of a path that is closed for good."""

    def has_unread(self, path: Path) -> bool:
        """Tell whether bytes of the peer wait to be read."""


class Paths:
    """Makes, finds and closes paths."""

    def __init__(self, plane: Plane, looks: Looks, streams: PathStreams) -> None:
        self._plane = plane
        self._looks = looks
        self._streams = streams
        self._owners: dict[Path, tuple[LocalAddressState, IPAddress]] = {}
        # How many an earlier worker of the node had, by local address and peer.
        self.before: dict[tuple[IPAddress, IPAddress], int] = {}

    def take_before(self, local: IPAddress, peer: IPAddress) -> int:
        """Return how many paths an earlier worker had, once: what is made later begins anew."""
        return self.before.pop((local, peer), 1)

    def owner_of(self, path: Path) -> tuple[LocalAddressState, IPAddress] | None:
        """Return local address and peer of a path; None if it was forgotten."""
        return self._owners.get(path)

    def to(self, host: LocalAddressState, peer: IPAddress) -> PeerPaths:
        """Return the paths to a peer; the first is made here."""
        paths = host.peers.get(peer)
        if paths is None:
            paths = host.peers[peer] = PeerPaths([self.make(host, peer, 0)])
        return paths

    def make(self, host: LocalAddressState, peer: IPAddress, index: int) -> Path:
        """Make one path; of a peer that was evicted it goes on where the earlier one ended."""
        path = self._plane.path(
            local=host.address, peer=peer, index=index, sequence_first=first_sequence()
        )
        received = host.recall(peer, index)
        if received is not None:
            self._plane.expect(path, received)
        self._owners[path] = (host, peer)
        return path

    def forget(self, path: Path) -> None:
        """Close a path for good."""
        self._owners.pop(path, None)
        self._streams.forget(path)
        self._looks.forget(path)
        path.close()

    def may_disconnect(self, host: LocalAddressState, peer: IPAddress) -> bool:
        """Remove the routes to a connected peer, unless it had messages for a socket."""
        paths = host.peers.get(peer)
        has_unread = self._streams.has_unread
        if paths is not None and any(
            path.has_delivered() or has_unread(path) for path in paths.paths
        ):
            return False
        return self.take_routes(host, peer)

    def take_routes(self, host: LocalAddressState, peer: IPAddress) -> bool:
        """Remove the routes to an idle peer; false if a message for it was queued before that."""
        paths = host.peers.get(peer)
        if paths is None:
            return True
        if any(path.holds_messages() for path in paths.paths):
            return False
        for mailbox in paths.mailboxes:
            mailbox.route(peer, None)
        # A message queued meanwhile stays, and the next send restores the route by `resolve`.
        return not any(path.holds_messages() for path in paths.paths)


def first_sequence() -> int:
    """Return where a path's numbers start: from the clock, so that no earlier start had them.

    It is the clock of this process's start: one that was put back since would give a peer that was
    evicted and comes again numbers that it takes for retransmits.
    """
    return (_STARTED_NS + time.monotonic_ns()) // _MS << _SEQUENCE_SHIFT
