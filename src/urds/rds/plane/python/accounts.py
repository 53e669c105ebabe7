"""How the destinations of a socket share its send account, so that none of them blocks the socket.

A destination is a peer's address: what a peer does not acknowledge stays in the queue of its
connections, whatever the port. Below half of SO_SNDBUF every message is accepted. Above it there
are three accounts, each of the size of SO_SNDBUF:

    first     of one destination: of that which took the queue over half while the account was
              free, until it holds nothing. It may queue while it holds less than the size: so the
              only destination in use gets rds(7) semantics, EAGAIN and POLLOUT.
    second    of all others, by dynamic threshold: a destination may queue while it holds at most
              what is free. So one that does not read leaves as much as it takes, and the next
              ones find room.
    third     of messages to absent peers: messages waited 30 s for a connection to them. Once it
              is over its size, the messages to the longest absent peer are given up. The first
              account is freed for it when another destination asks for that, and only if there
              is room.

All together hold at most three times the size: a message that would exceed this waits.

A destination without room counts as congested, it alone: ENOBUFS, or a wait of its own. The
shortest rejected message is remembered, and the destination is notified once that has room. While
one destination is in use, having no room is EAGAIN instead. Several are in use from the moment that
a second one is met with the queue at half, until the queue is below half.

Source of the threshold: A. Choudhury, E. Hahne, Dynamic Queue Length Thresholds for Shared-Memory
Packet Switches, IEEE/ACM Transactions on Networking 6 (1998). See docs/adr/0016.
"""

from __future__ import annotations

from urds.common.types import IPAddress
from urds.rds.plane.python.sender import REFERENCE_BYTES
from urds.rds.plane.python.waiting import Waiters, WaitQueue

ABSENT_NS = 30_000_000_000  # how long messages wait for a connection until their peer is absent
_ACCOUNTS = 3
_UNKNOWN_BYTES = 1 << 62  # more than any destination holds


class Destination:
    """Bytes that a socket has queued to one peer, and the waiters for room for it."""

    __slots__ = (
        "absent",
        "aside",
        "look_at_bytes",
        "open_bytes",
        "path_full",
        "peer",
        "queued_bytes",
        "refused_bytes",
        "refused_groups",
        "waiters",
    )

    def __init__(self, peer: IPAddress | None) -> None:
        self.peer = peer
        self.queued_bytes = 0
        self.open_bytes = 0  # with less in the whole queue every message is accepted
        self.look_at_bytes = 0  # at so many bytes held, look for acknowledgements
        self.absent = False
        self.aside = False  # counted in the third account
        self.path_full = False  # rejected because its path is full; the path notifies
        self.refused_bytes: int | None = None  # the shortest message that found no room
        self.refused_groups = 0  # port groups of such messages
        self.waiters: Waiters | None = None

    def waiters_made(self) -> Waiters:
        """Return the waiters for room, created on the first call."""
        if self.waiters is None:
            self.waiters = Waiters()
        return self.waiters

    def tell(self, wait_queue: WaitQueue) -> None:
        """Have the senders that wait for room here look again. Lock held."""
        if self.waiters is not None:
            self.waiters.tell_all(wait_queue)


class SendAccounts:
    """The three accounts of one socket. The caller passes the bytes of its whole queue."""

    __slots__ = (
        "_aside",
        "_aside_bytes",
        "_by_peer",
        "_enough_bytes",
        "_first",
        "_look_aside",
        "_refused",
        "_refused_apart",
        "bytes_max",
        "half_bytes",
        "here",
        "is_single",
        "light_bytes",
        "look_due",
        "quarter_bytes",
        "several",
        "watching",
    )

    def __init__(self) -> None:
        self.bytes_max = self.half_bytes = self.quarter_bytes = 0
        self.light_bytes = 0  # a shorter message takes little room, and is copied into its frame
        self.is_single = False  # one account for all, as in Linux
        self.several = False  # destinations are in use
        self.watching = False  # a message that leaves affects more than its destination
        self.look_due = False  # a rejected destination may have room
        self.here = Destination(None)  # addresses of this process: they hold nothing
        self._look_aside = False  # the same for an absent peer
        self._first: Destination | None = None
        self._aside: dict[Destination, None] = {}  # longest absent first
        self._aside_bytes = 0
        self._by_peer: dict[IPAddress, Destination] = {}
        self._refused: dict[Destination, None] = {}
        # Those that the second account does not concern.
        self._refused_apart: dict[Destination, None] = {}
        self._enough_bytes = _UNKNOWN_BYTES  # one of `_refused` continues at so many free bytes

    def resize(self, bytes_max: int, *, is_single: bool) -> None:
        """Set the size of an account, and whether there is only one."""
        self.bytes_max, self.is_single = bytes_max, is_single
        self.half_bytes, self.quarter_bytes = (bytes_max + 1) // 2, bytes_max // 4
        self.light_bytes = min(REFERENCE_BYTES, self.quarter_bytes)
        for destination in (self.here, *self._by_peer.values()):
            destination.look_at_bytes = self.quarter_bytes
            self._open(destination)
        self.look_due = self._look_aside = True

    def destination(self, peer: IPAddress, *, absent: bool) -> Destination:
        """Return the destination of a peer, created on the first call."""
        known = self._by_peer.get(peer)
        if known is None:
            known = self._by_peer[peer] = Destination(peer)
            known.absent = absent
            known.look_at_bytes = self.quarter_bytes
            self._open(known)
        return known

    def known(self, peer: IPAddress) -> Destination | None:
        """Return the destination of a peer, None without one."""
        return self._by_peer.get(peer)

    def forget(self, peer: IPAddress) -> None:
        """Remove a destination if it is empty and has no waiters."""
        known = self._by_peer.get(peer)
        if known is None or known.queued_bytes or known.refused_bytes is not None or known.waiters:
            return
        del self._by_peer[peer]
        if known is self._first:
            self._first = None

    # -- queueing

    def has_room(self, destination: Destination, payload_bytes: int, queued_bytes: int) -> bool:
        """Return whether a message may be queued, with `queued_bytes` in the whole queue."""
        size = self.bytes_max
        if self.is_single:
            return queued_bytes < size
        if queued_bytes + payload_bytes > _ACCOUNTS * size:
            return False
        held_bytes = destination.queued_bytes
        if self._may_have_first(destination, queued_bytes):
            return held_bytes < size
        moved_bytes = 0 if destination.aside else held_bytes
        if self._goes_aside(destination, queued_bytes):
            free_bytes = size - self._aside_bytes - moved_bytes
            return held_bytes <= free_bytes and payload_bytes <= free_bytes
        if destination.aside:
            held_bytes *= 2  # it returns to the second account, which has that less
        return held_bytes <= size - self._second_bytes(queued_bytes)

    def admit(self, destination: Destination, payload_bytes: int, queued_bytes: int) -> bool:
        """As `has_room`, and enter it in its account: the caller queues the message now."""
        if not self.has_room(destination, payload_bytes, queued_bytes):
            return False
        if not self.is_single:
            self._enter(destination, queued_bytes)
            if destination.aside:
                self._aside_bytes += payload_bytes
        return True

    def note_queued(self, destination: Destination, queued_bytes: int) -> bool:
        """Note a queued message; return whether it requests an acknowledgement.

        The call is needed only above half of an account.
        """
        if self.is_single:
            return True
        if queued_bytes != destination.queued_bytes:
            self.several = self.watching = True
        if self._first is None or not self._first.queued_bytes:
            self._give_first(destination)
        if destination is self._first or destination.aside or self._is_first_vacant():
            held_bytes = destination.queued_bytes
        else:
            held_bytes = self._second_bytes(queued_bytes)
        return held_bytes >= self.half_bytes  # others may wait for room

    def refuse(self, destination: Destination, payload_bytes: int, groups: int) -> None:
        """Note that a message found no room; `take_roomy` returns it once it has."""
        known_bytes = destination.refused_bytes
        if known_bytes is None or payload_bytes < known_bytes:
            destination.refused_bytes = payload_bytes
        destination.refused_groups |= groups
        if destination.absent or destination.aside or destination.path_full:
            self._refused.pop(destination, None)
            self._refused_apart[destination] = None
        else:
            self._refused[destination] = None
            self._enough_bytes = min(self._enough_bytes, destination.queued_bytes)
        self.several = self.watching = True

    def is_writable(self, queued_bytes: int) -> bool:
        """Return whether an empty destination could queue; the only one, if one is in use."""
        size, first = self.bytes_max, self._first
        if self.is_single:
            return queued_bytes < size
        if queued_bytes < self.half_bytes:
            return True
        if not self.several and first is not None and first.queued_bytes == queued_bytes:
            return queued_bytes < size
        if self._is_first_free():
            return True
        return self._second_bytes(queued_bytes) <= size and queued_bytes < _ACCOUNTS * size

    def is_alone(self, destination: Destination, queued_bytes: int) -> bool:
        """Return whether a destination without room is the only one in use: rds(7) applies."""
        return self.is_single or (not self.several and destination.queued_bytes == queued_bytes)

    # -- what leaves the queue

    def give_back(self, destination: Destination, freed_bytes: int, queued_bytes: int) -> None:
        """Take a destination's messages off its account; `queued_bytes` is without them."""
        # Capped at the total: bytes that an interrupt left counted go with the last message.
        destination.queued_bytes = min(destination.queued_bytes - freed_bytes, queued_bytes)
        destination.look_at_bytes = self.quarter_bytes
        if not self.watching:
            return
        aside = destination.aside
        if aside:
            self._aside_bytes -= freed_bytes
            if not destination.queued_bytes:
                self._bring_back(destination)
        if queued_bytes < self.half_bytes:
            self.several = False
        self._check_refused(destination, aside=aside, queued_bytes=queued_bytes)
        self._finish_watch()

    def _check_refused(self, destination: Destination, *, aside: bool, queued_bytes: int) -> None:
        """Decide whether to look for rejected destinations with room, without checking each."""
        is_vacant, was_refused = self._is_first_vacant(), destination.refused_bytes is not None
        if self._refused:
            if was_refused:
                self._enough_bytes = min(self._enough_bytes, destination.queued_bytes)
            free_bytes = self.bytes_max - self._second_bytes(queued_bytes)
            self.look_due |= was_refused or is_vacant or free_bytes >= self._enough_bytes
        if self._refused_apart and (
            aside or was_refused or (is_vacant and queued_bytes >= self.half_bytes)
        ):
            self.look_due = self._look_aside = True

    def take_roomy(self, queued_bytes: int) -> list[Destination]:
        """Return the rejected destinations that have room now, no longer as rejected."""
        refused = [*self._refused, *(self._refused_apart if self._look_aside else ())]
        self.look_due = self._look_aside = False
        roomy = [
            destination
            for destination in refused
            if not destination.path_full
            and self.has_room(destination, destination.refused_bytes or 0, queued_bytes)
        ]
        for destination in roomy:
            self._forget_rejection(destination)
        self._enough_bytes = min(
            (one.queued_bytes for one in self._refused), default=_UNKNOWN_BYTES
        )
        self._finish_watch()
        return roomy

    def take_unblocked(self, destination: Destination) -> list[Destination]:
        """Return a rejected destination whose path is no longer full."""
        was_refused = destination.refused_bytes is not None
        self._forget_rejection(destination)
        self._finish_watch()
        return [destination] if was_refused else []

    def refused(self) -> list[Destination]:
        """Return every rejected destination."""
        return [*self._refused, *self._refused_apart]

    def take_refused(self) -> list[Destination]:
        """Return every rejected destination, no longer as rejected."""
        refused = self.refused()
        for destination in refused:
            self._forget_rejection(destination)
        self._enough_bytes = _UNKNOWN_BYTES
        self._finish_watch()
        return refused

    def _forget_rejection(self, destination: Destination) -> None:
        self._refused.pop(destination, None)
        self._refused_apart.pop(destination, None)
        destination.refused_bytes = None

    def _finish_watch(self) -> None:
        self.watching = bool(self.several or self._aside or self._refused or self._refused_apart)

    # -- absent peers

    def note_absent(self, destination: Destination) -> list[Destination]:
        """Count an absent peer's messages in the third account; return destinations to give up."""
        destination.absent = True
        self.look_due = self._look_aside = True
        if self.is_single:
            return []
        if destination in self._refused:
            del self._refused[destination]
            self._refused_apart[destination] = None
        if destination is not self._first and destination.queued_bytes:
            self._put_aside(destination)
        self._open(destination)
        given_up, left_bytes = list[Destination](), self._aside_bytes
        for longest in list(self._aside)[:-1]:
            if left_bytes <= self.bytes_max:
                break
            left_bytes -= longest.queued_bytes
            given_up.append(longest)
        return given_up

    def note_present(self, destination: Destination) -> None:
        """Note that a peer is connected again; its bytes return with its next message."""
        destination.absent = False
        self.look_due = self._look_aside = True
        self._open(destination)
        may_join = not destination.aside and not destination.path_full
        if may_join and destination in self._refused_apart:
            del self._refused_apart[destination]
            self._refused[destination] = None

    # -- choice of the account

    def _second_bytes(self, queued_bytes: int) -> int:
        first_bytes = self._first.queued_bytes if self._first else 0
        return queued_bytes - first_bytes - self._aside_bytes

    def _is_first_vacant(self) -> bool:
        return self._first is None or not self._first.queued_bytes

    def _is_first_free(self) -> bool:
        """Return whether the first account is vacant, or its absent holder can leave it."""
        first = self._first
        if first is None or not first.queued_bytes:
            return True
        return first.absent and self._aside_bytes + first.queued_bytes <= self.bytes_max

    def _may_have_first(self, destination: Destination, queued_bytes: int) -> bool:
        if destination is self._first:
            return True
        is_alone = destination.queued_bytes == queued_bytes
        if queued_bytes < self.half_bytes and not (
            is_alone and (destination.absent or destination.aside)
        ):
            return False
        return self._is_first_free()

    def _goes_aside(self, destination: Destination, queued_bytes: int) -> bool:
        if destination.absent:
            return True
        if not destination.aside:
            return False
        return self._second_bytes(queued_bytes) + destination.queued_bytes > self.bytes_max

    def _enter(self, destination: Destination, queued_bytes: int) -> None:
        """Move a destination into the account of its next message."""
        if self._may_have_first(destination, queued_bytes):
            if destination is not self._first:
                self._give_first(destination)
        elif self._goes_aside(destination, queued_bytes):
            self._put_aside(destination)
        elif destination.aside:
            self._bring_back(destination)

    def _give_first(self, destination: Destination) -> None:
        """Assign the first account to a destination; its holder was absent, or is empty."""
        before, self._first = self._first, destination
        if destination.aside:
            self._bring_back(destination)
        if before is not None:
            if before.queued_bytes:
                self._put_aside(before)
            self._open(before)
        self._open(destination)

    def _put_aside(self, destination: Destination) -> None:
        if not destination.aside:
            destination.aside = self.watching = True
            self._aside[destination] = None
            self._aside_bytes += destination.queued_bytes
            self._open(destination)

    def _bring_back(self, destination: Destination) -> None:
        destination.aside = False
        self._aside.pop(destination, None)
        self._aside_bytes -= destination.queued_bytes
        self._open(destination)

    def _open(self, destination: Destination) -> None:
        if self.is_single or destination is self._first:
            destination.open_bytes = self.bytes_max
        elif destination.absent or destination.aside:
            destination.open_bytes = 0
        else:
            destination.open_bytes = self.half_bytes
