"""How a message is queued when the short way of `sendto` does not do: resolve, refuse, wait.

Refusals come in the order in which Linux gives them: the peer's congestion before our own account.
A destination without room among several counts as congested (`accounts`). A wait ends when the
message is queued, when it never can be, or when its time is over.
Source: linux v6.12 net/rds/send.c (rds_sendmsg).
"""

from __future__ import annotations

from collections.abc import Sequence
from os import eventfd_write
from typing import TYPE_CHECKING

from urds.addresses import is_name, parse_target
from urds.dataplane.base import Address, Buffer, SocketAddress
from urds.dataplane.operations import Operation
from urds.dataplane.reference.congestion import own_map
from urds.dataplane.reference.loop_path import LoopPath
from urds.dataplane.reference.outgoing import REFERENCE_BYTES
from urds.dataplane.reference.stream_path import StreamPath
from urds.dataplane.reference.waiting import Waiter, Waiters, WaitingDesk
from urds.errors import Refusal, message_too_long, os_error, peer_takes_less

if TYPE_CHECKING:
    from urds.dataplane.carriage import CarriedPath
    from urds.dataplane.reference.accounts import Destination
    from urds.dataplane.reference.mailbox import Mailbox

_FLOWS_MAX = 4096
_RESOLVES_MAX = 3  # a peer may be evicted between its route and our message
_GROUPS = 64
_AS_CONGESTED = (Refusal.PEER_CONGESTED, Refusal.SHARE_FULL)


def queue(
    mailbox: Mailbox,
    payload: Buffer,
    address: SocketAddress | None,
    extension: bytes,
    wait_ns: int | None,
    operations: Sequence[Operation] = (),
) -> int:
    """Queue a message the long way: resolve, refuse, wait for room or for the peer."""
    if address is None:
        raise os_error(Refusal.NO_DESTINATION_GIVEN)
    peer, port = parse_target(address, mailbox.local)
    payload_bytes = len(payload)
    if payload_bytes > mailbox._payload_bytes_max:
        raise message_too_long(
            payload_bytes,
            message_bytes_max=mailbox._plane.limits.message_bytes_max,
            send_bytes_max=mailbox._send_bytes_max,
        )
    counters = mailbox._plane.counters
    blocked = False
    path: StreamPath | LoopPath | CarriedPath | None = None

    def attempt() -> bool | None:
        nonlocal blocked, path
        refusal = _try(mailbox, payload, peer, port, address, extension, operations)
        if refusal is None:
            path = mailbox._routes[peer]  # later it may be another, which has nothing to push
            return True
        if refusal is Refusal.PEER_UNREACHABLE:
            return False
        if wait_ns == 0 or mailbox._plane.virtual:
            if refusal in _AS_CONGESTED:
                counters.cong_send_error += 1
            raise os_error(refusal, _account_detail(mailbox, refusal, peer, port))
        if refusal in _AS_CONGESTED and not blocked:
            blocked = True
            counters.cong_send_blocked += 1
        waiters.choose(mailbox, peer if refusal is Refusal.SHARE_FULL else None)
        return None

    queued: bool | None = False
    waiters = _RoomWaiters(mailbox)
    try:
        for _ in range(_RESOLVES_MAX):
            _resolve(mailbox, peer)
            queued = mailbox._plane.wait(attempt, waiters, wait_ns, flush=mailbox)
            if queued is not False:
                break
        else:
            raise os_error(Refusal.PEER_UNREACHABLE, f"no route to {peer}")
        if queued is None:
            raise os_error(Refusal.TIMED_OUT, f"no room to send to {address[0]} port {port}")
        _push(mailbox, path)
        mailbox.sync()
    except BaseException as error:
        if "refusal" not in error.__dict__:  # an interrupt: see what is left to do
            mailbox._plane.interrupts.seen = True
            eventfd_write(mailbox._plane.helper.wake_descriptor, 1)
        raise
    return payload_bytes


def _push(mailbox: Mailbox, path: StreamPath | LoopPath | CarriedPath | None) -> None:
    """Have what was queued leave, and look for room behind it. No lock held."""
    if isinstance(path, StreamPath):
        path.push(mailbox.burst_bytes)
        destination = path.destinations.get(mailbox)
        if destination is not None and destination.queued_bytes >= destination.look_at_bytes:
            mailbox._look_for_room(path, destination)
    else:
        if path is not None and not isinstance(path, LoopPath):
            path.push()
        mailbox._plane.settle()


def _account_detail(mailbox: Mailbox, refusal: Refusal, peer: Address, port: int) -> str:
    if refusal is Refusal.PEER_CONGESTED:
        return f"{peer} port {port} is full"
    if refusal is Refusal.SHARE_FULL:
        known = mailbox.accounts.known(peer)
        held_bytes = known.queued_bytes if known else 0
        size = mailbox._send_bytes_max
        return f"{held_bytes} octets are queued to {peer}, one of several that share {size}"
    return f"{mailbox.send_queued_bytes} of {mailbox._send_bytes_max} octets are queued"


def _resolve(mailbox: Mailbox, peer: Address) -> None:
    """Have a route to the peer; the control plane makes it on the first send."""
    if peer in mailbox._routes or mailbox.closed:
        return
    mailbox._plane.resolve(mailbox, peer)


def _try(
    mailbox: Mailbox,
    payload: Buffer,
    peer: Address,
    port: int,
    address: SocketAddress,
    extension: bytes,
    operations: Sequence[Operation],
) -> Refusal | None:
    """Queue, or say why not: PEER_UNREACHABLE for want of a route. Lock held.

    Raises what no waiting mends.
    """
    if mailbox.closed:
        raise os_error(mailbox._plane.closed_refusal)
    if peer in mailbox._failed:
        mailbox._failed.remove(peer)
        raise os_error(Refusal.PEER_UNREACHABLE, f"{peer}: messages queued for it were dropped")
    path = mailbox._routes.get(peer)
    if path is None:
        return Refusal.PEER_UNREACHABLE
    if operations and isinstance(path, StreamPath | LoopPath):
        raise os_error(Refusal.NOT_SUPPORTED, f"no operations on the way to {peer}")
    mailbox._map_news = False
    loop = isinstance(path, LoopPath)
    host = mailbox._host
    congested = own_map(mailbox._plane, peer) if loop else host.congested_at(peer)
    if congested.test(port):
        if not isinstance(path, LoopPath):
            path.want()  # without a connection no map would ever come that says otherwise
        mailbox._saw_congestion = True
        if mailbox.settings.monitor:
            mailbox._wait_groups |= 1 << port % _GROUPS
        return Refusal.PEER_CONGESTED
    accounts, queued_bytes = mailbox.accounts, mailbox.send_queued_bytes
    destination = accounts.here if isinstance(path, LoopPath) else mailbox.destination_at(path)
    if not accounts.has_room(destination, len(payload), queued_bytes):
        return _refuse(mailbox, destination, len(payload), port)
    if isinstance(path, LoopPath):
        path.deliver(mailbox, port, payload, extension)
        return None
    if len(payload) > path.message_bytes_max:
        if not isinstance(path, StreamPath) or not path.want_agreement():
            raise peer_takes_less(len(payload), peer, path.message_bytes_max)
        path.room_wanted.add(mailbox)
        return Refusal.PATH_FULL
    if path.full:
        path.room_wanted.add(mailbox)
        if mailbox.has_one_way():
            return Refusal.PATH_FULL
        destination.path_full = True
        mailbox.refuse(destination, len(payload), port)
        return Refusal.SHARE_FULL
    accounts.admit(destination, len(payload), queued_bytes)
    if isinstance(path, StreamPath):
        _queue_stream(mailbox, payload, port, address, extension, path, destination)
        return None
    path.queue(mailbox, port, payload, extension, operations)
    destination.queued_bytes += len(payload)
    if mailbox.send_queued_bytes >= accounts.half_bytes:
        accounts.note_queued(destination, mailbox.send_queued_bytes)
    return None


def _refuse(mailbox: Mailbox, destination: Destination, payload_bytes: int, port: int) -> Refusal:
    """Say how a destination without room is refused, and remember it unless it is alone."""
    mailbox._plane.counters.send_queue_full += 1
    if mailbox.accounts.is_alone(destination, mailbox.send_queued_bytes):
        return Refusal.QUEUE_FULL
    mailbox.refuse(destination, payload_bytes, port)
    return Refusal.SHARE_FULL


def _queue_stream(
    mailbox: Mailbox,
    payload: Buffer,
    port: int,
    address: SocketAddress,
    extension: bytes,
    path: StreamPath,
    destination: Destination,
) -> None:
    """Queue on a path with a stream, and know its address again. Lock held."""
    outgoing, accounts = path.core.outgoing, mailbox.accounts
    outgoing.queue(mailbox, mailbox.port, port, payload, extension)
    destination.queued_bytes += len(payload)
    queued_bytes = mailbox.send_queued_bytes
    if queued_bytes >= accounts.half_bytes and accounts.note_queued(destination, queued_bytes):
        outgoing.want_acknowledgement()
    if is_name(address):  # who has a name is asked each time
        return
    if len(mailbox._flows) >= _FLOWS_MAX:
        mailbox._flows = {}
    congested = mailbox._host.congested_at(path.peer)
    mailbox._flows[address] = (path, outgoing, port, congested.octets, destination)


class _RoomWaiters(Waiters):
    """Whom a send that waits is listed with: its destination's if that has no room, else all."""

    __slots__ = ("_chosen", "_listed")

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__()
        self._chosen = self._listed = mailbox.room_waiters

    def choose(self, mailbox: Mailbox, peer: Address | None) -> None:
        """Wait for room for a peer, None for all else that is told. Lock held."""
        everybody = mailbox.room_waiters
        self._chosen = everybody if peer is None else mailbox.room_waiters_of(peer)

    def add(self, waiter: Waiter) -> None:
        """List a waiter once, where it waits now."""
        if self._listed is not self._chosen:
            self._listed.remove(waiter)
            self._listed = self._chosen
        self._listed.add(waiter)

    def remove(self, waiter: Waiter) -> bool:
        """Take a waiter off; return false if it was told and is off already."""
        return self._listed.remove(waiter)

    def tell(self, count: int, desk: WaitingDesk) -> None:
        """Tell the next who waits for the same."""
        self._listed.tell(count, desk)


def frozen(payload: Buffer, *, copy: bool = True) -> bytes | memoryview:
    """Return a payload that does not change: `bytes` and views of it as they are, else a copy.

    Without `copy` a long payload is always the caller's own memory, in one piece.
    """
    if type(payload) is bytes:
        return payload
    view = memoryview(payload)
    if not view.c_contiguous:
        return view.tobytes()
    # A view that is read-only may still be of memory that others write: only `bytes` never change.
    if view.nbytes < REFERENCE_BYTES or (copy and not isinstance(view.obj, bytes)):
        return bytes(view)
    return view.cast("B")
