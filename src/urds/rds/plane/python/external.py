"""The plane's part of a path over a message transport: charges, deliveries, maps, its limit.

See `rds.plane.message_transport`. To hosts and mailboxes such a path is one like any other: it
shares the host's congestion map and its peer's map, it may be at its limit of messages, and a
mailbox far over its buffer pauses it. Its queue is the transport's; here is how much of each
mailbox it holds, charged and not refunded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from urds.common.errors import ErrorReason, os_error
from urds.common.types import IPAddress
from urds.rds.plane import contract
from urds.rds.plane.contract import GiveUp, Resumed
from urds.rds.plane.message_transport import Charge, NothingGathers
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.send_side import AS_CONGESTED, RoomWaiters, SendSide, Target, no_room

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.progress import Progress
    from urds.rds.plane.python.state import Host, State


class ExternalPath(NothingGathers):
    """See `message_transport.ExternalPath`; the plane's lock guards what it has."""

    index = 0  # a peer has one connection of a type of service

    def __init__(
        self,
        state: State,
        progress: Progress,
        host: Host,
        *,
        peer: IPAddress,
        tos: int,
        message_bytes_max: int,
        transport: MessageTransport,
    ) -> None:
        self.local = host.address
        self.peer = peer
        self.tos = tos
        self.transport = transport
        self.message_bytes_max = message_bytes_max
        self.full = False  # at its limit of messages
        self.connected = False
        self.absent = False  # messages have long waited for a connection
        self.room_wanted: set[Any] = set()  # send sides that wait for `full` to end
        self._held: dict[SendSide, tuple[int, int]] = {}  # messages, and their bytes
        self._state = state
        self._progress = progress
        self._host = host

    # -- for message transports; no lock of the plane is held

    def charge(
        self, mailbox: contract.Mailbox, port: int, payload_bytes: int, *, may_wait: bool
    ) -> Charge:
        """Charge a message of a mailbox, after every check of a send."""
        sends, state = _sends_of(mailbox), self._state
        with state.lock:
            waits = may_wait and not state.virtual  # the wait looks again, and counts
            charge, reason = self._look(sends, port, payload_bytes, counts=not waits)
            if reason is not None and not waits:
                state.counters.cong_send_error += reason in AS_CONGESTED
                raise no_room(sends, reason, Target(self.peer, port, None, 0))
            if charge is Charge.QUEUED:
                messages, held_bytes = self._held.get(sends, (0, 0))
                self._held[sends] = messages + 1, held_bytes + payload_bytes
                charge = self._charge(sends, payload_bytes)
        return charge

    def _look(
        self, sends: SendSide, port: int, payload_bytes: int, *, counts: bool
    ) -> tuple[Charge, ErrorReason | None]:
        """Make every check of a send; return why there is no room. Lock held.

        Raises errors that no wait can end. `counts`: a full account is counted.
        """
        if sends.mailbox.closed:
            raise os_error(self._state.closed_reason)
        sends.check_length(payload_bytes)
        route = sends.route_to(self.peer)
        if route is None or route.path is not self:
            return Charge.NO_ROUTE, None
        sends.raise_failure(self.peer)
        sends.mailbox.receives.map_news = False
        if route.congested.test(port):
            return Charge.CONGESTED, sends.note_congested(route, port)
        if not sends.accounts.has_room(route.destination, payload_bytes, sends.send_queued_bytes):
            reason = sends.refuse(route.destination, payload_bytes, port, counts=counts)
            return Charge.NO_ROOM, reason
        if self.full or payload_bytes > self.message_bytes_max:
            return Charge.NO_ROOM, sends.note_full(route, payload_bytes, port)
        return Charge.QUEUED, None

    def _charge(self, sends: SendSide, payload_bytes: int) -> Charge:
        """Charge a message for which `_look` has found room. Lock held."""
        accounts, destination = sends.accounts, sends.destination_at(self)
        accounts.admit(destination, payload_bytes, sends.send_queued_bytes)
        sends.send_queued_bytes += payload_bytes
        destination.queued_bytes += payload_bytes
        if sends.send_queued_bytes < accounts.half_bytes:
            return Charge.QUEUED
        if sends.mailbox.descriptor is not None:
            self._state.touched.add(sends.mailbox)
        asks = accounts.note_queued(destination, sends.send_queued_bytes)
        return Charge.ASKS if asks else Charge.QUEUED

    def wait_for_charge(
        self,
        mailbox: contract.Mailbox,
        port: int,
        payload_bytes: int,
        *,
        is_first: bool,
        wait_ns: int | None,
    ) -> bool:
        """Wait until a charge may succeed; return false when the time is over."""
        sends, counted = _sends_of(mailbox), not is_first
        waiters = RoomWaiters(sends)

        def attempt() -> bool | None:
            nonlocal counted
            _, reason = self._look(sends, port, payload_bytes, counts=True)
            if reason is None:
                return True
            if reason in AS_CONGESTED and not counted:
                counted = True
                self._state.counters.cong_send_blocked += 1
            shares = reason is ErrorReason.SHARE_FULL
            waiters.choose(self.peer if shares else None)
            return None

        assert isinstance(mailbox, Mailbox), "a mailbox of this plane"
        return self._progress.wait(attempt, waiters, wait_ns, mailbox) is True

    def held(self, mailbox: contract.Mailbox) -> tuple[int, int]:
        """Return how many messages of a mailbox are charged, and their bytes."""
        with self._state.lock:
            return self._held.get(_sends_of(mailbox), (0, 0))

    def refund(self, mailbox: contract.Mailbox, *, messages: int, payload_bytes: int) -> None:
        """End the charge of messages that left the path."""
        sends = _sends_of(mailbox)
        with self._state.lock:
            held, held_bytes = self._held.get(sends, (0, 0))
            if held > messages:
                self._held[sends] = held - messages, held_bytes - payload_bytes
            else:
                self._held.pop(sends, None)
            sends.send_queued_bytes -= payload_bytes
            sends.note_freed(self, payload_bytes)
        self._progress.deliver()

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> bool:
        """Queue a message in its mailbox; return whether more may come."""
        state, host = self._state, self._host
        with state.lock:
            mailbox = host.mailboxes.get(target_port)
            if mailbox is None:
                state.counters.recv_drop_no_sock += 1
                return True
            receives = mailbox.receives
            receives.deliver(payload, host.externals[self][source_port], extension)
            if not receives.is_over_hard_bound():
                return True
            if self not in receives.pausing:
                receives.pause(self)
            return False

    def take_peer_map(self, data: bytes) -> None:
        """Put the peer's congestion map in force; monitors hear of the groups that it cleared."""
        with self._state.lock:
            self._state.note_peer_map(self._host, self.peer, data, exact=True)

    def local_map(self) -> bytes:
        """Return the local congestion map as it is now."""
        with self._state.lock:
            return self._host.map_bytes()

    def peer_is_congested(self, port: int) -> bool:
        """Return whether the peer's current map marks a port."""
        with self._state.lock:
            return self._host.congested_at(self.peer).test(port)

    def set_full(self, full: bool) -> None:
        """Note that the path is at its limit of messages, or below."""
        state = self._state
        with state.lock:
            if full is not self.full:
                self.full = full
                state.note_full(self)
            if not full:
                state.note_path_room(self)
        self._progress.deliver()

    def set_connected(self, connected: bool) -> None:
        """Note that there is a connection, or that messages wait for one from now on."""
        with self._state.lock:
            self.connected = connected
            if connected:
                self._state.note_attached(self)
            else:
                self._state.note_wanted(self)
        self._progress.deliver()

    def fail(self, mailbox: contract.Mailbox) -> None:
        """Note that messages to the peer were dropped: the next send to it raises, once."""
        with self._state.lock:
            _sends_of(mailbox).fail(self.peer)

    def close(self) -> None:
        """Remove the path and every route over it."""
        with self._state.lock:
            self._state.remove_external(self)
        self._progress.finish_pass()

    # -- for hosts and mailboxes: lock held, unless they say otherwise

    def resume(self) -> None:
        """Have the transport receive again. No lock held."""
        with self._state.lock:
            self._state.emit(Resumed(self))
        self._progress.deliver()

    def give_up(self, sends: SendSide) -> int:
        """Have messages to an absent peer dropped; none is, as yet."""
        if self.holds(sends):
            self._state.emit(GiveUp(self, sends.mailbox))
        return 0

    def cancel(self, sends: SendSide, port: int | None) -> int:
        """Return 0: the caller has the transport cancel once the lock is free."""
        return 0

    def holds(self, sends: SendSide | None = None) -> bool:
        """Return whether messages of a mailbox, or of any, are charged."""
        return bool(self._held) if sends is None else sends in self._held

    def counts(self, sends: SendSide | None = None) -> tuple[int, int]:
        """Count the messages of a mailbox, or of all: the second number."""
        if sends is not None:
            return 0, self._held.get(sends, (0, 0))[0]
        return 0, sum(messages for messages, _ in self._held.values())


def _sends_of(mailbox: contract.Mailbox) -> SendSide:
    assert isinstance(mailbox, Mailbox), "a mailbox of this plane"
    return mailbox.sends
