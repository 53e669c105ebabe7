"""Every send: resolve the peer, queue the message, reject it, or wait.

Errors come in the order in which Linux raises them: the peer's congestion before the own account. A
destination without room among several counts as congested (`accounts`). A wait ends when the
message is queued, when it never can be, or when its time is over. Source: linux v6.12
net/rds/send.c (rds_sendmsg).
"""

from __future__ import annotations

from collections.abc import Sequence
from os import eventfd_write
from typing import TYPE_CHECKING

from urds.common.errors import ErrorReason, message_too_long, os_error, peer_takes_less
from urds.common.types import IPAddress
from urds.rds.addresses import parse_target
from urds.rds.plane.contract import Buffer, Operation, SocketAddress
from urds.rds.plane.python.host import LoopPath
from urds.rds.plane.python.outgoing import REFERENCE_BYTES
from urds.rds.plane.python.receive_side import own_map
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.plane.python.waiting import Waiter, Waiters, WaitQueue

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.accounts import Destination
    from urds.rds.plane.python.mailbox import Mailbox

_RESOLVES_MAX = 3  # a peer may be evicted between its route and the message
_GROUPS = 64
_AS_CONGESTED = (ErrorReason.PEER_CONGESTED, ErrorReason.SHARE_FULL)


def queue(
    mailbox: Mailbox,
    payload: Buffer,
    address: SocketAddress | None,
    extension: bytes,
    wait_ns: int | None,
    operations: Sequence[Operation] = (),
) -> int:
    """Queue a message: resolve, reject, wait for room or for the peer."""
    if address is None:
        raise os_error(ErrorReason.NO_DESTINATION_GIVEN)
    target = mailbox.targets.get(address)
    # In a batch to a known destination there is nothing to decide: `StreamPath.is_batching`.
    again = target is not None and not extension
    peer, port = target or parse_target(address, mailbox.local)
    if len(payload) > mailbox.payload_bytes_max:
        raise _too_long(mailbox, len(payload))
    counters, blocked = mailbox._plane.counters, False
    path: StreamPath | LoopPath | MessageTransport | None = None

    def attempt() -> bool | None:
        nonlocal blocked, path
        reason = _try(mailbox, payload, peer, port, extension, operations, again=again)
        if reason is None:
            path = mailbox._routes[peer]  # later it may be another, which has nothing to push
            return True
        if reason is ErrorReason.PEER_UNREACHABLE:
            return False
        if wait_ns == 0 or mailbox._plane.virtual:
            if reason in _AS_CONGESTED:
                counters.cong_send_error += 1
            raise _no_room(mailbox, reason, peer, port)
        if reason in _AS_CONGESTED and not blocked:
            blocked = True
            counters.cong_send_blocked += 1
        waiters.choose(mailbox, peer if reason is ErrorReason.SHARE_FULL else None)
        return None

    queued: bool | None = False
    waiters = _RoomWaiters(mailbox)
    try:
        for _ in range(_RESOLVES_MAX):
            if peer not in mailbox._routes and not mailbox.closed:
                mailbox._plane.resolve(mailbox, peer)  # on the first send it makes a route
            queued = mailbox._plane.wait(attempt, waiters, wait_ns, flush=mailbox)
            if queued is not False:
                break
        else:
            raise os_error(ErrorReason.PEER_UNREACHABLE, f"no route to {peer}", peer=peer)
        if queued is None:
            raise _no_room(mailbox, ErrorReason.TIMED_OUT, peer, port)
        if target is None:
            mailbox.remember_target(address, peer, port)
        _push(mailbox, path, again=again)
        mailbox.sync()
    except BaseException as error:
        if "reason" not in error.__dict__:  # an interrupt: find the work it left
            mailbox._plane.interrupts.seen = True
            eventfd_write(mailbox._plane.progress_thread.wake_descriptor, 1)
        raise
    return len(payload)


def _push(
    mailbox: Mailbox, path: StreamPath | LoopPath | MessageTransport | None, *, again: bool
) -> None:
    """Have queued messages leave, and look for room behind them. No lock held."""
    if isinstance(path, StreamPath):
        if again and path.is_in_batch():
            return
        path.push(mailbox.burst_bytes)
        destination = path.destinations.get(mailbox)
        if destination is not None and destination.queued_bytes >= destination.look_at_bytes:
            mailbox._look_for_room(path, destination)
    else:
        if path is not None and not isinstance(path, LoopPath):
            path.push()
        mailbox._plane.finish_pass()


def _too_long(mailbox: Mailbox, payload_bytes: int) -> OSError:
    return message_too_long(
        payload_bytes,
        message_bytes_max=mailbox._plane.limits.message_bytes_max,
        send_bytes_max=mailbox._send_bytes_max,
    )


def _no_room(mailbox: Mailbox, reason: ErrorReason, peer: IPAddress, port: int) -> OSError:
    """Return the error of a send that waits no longer for room here or at the peer."""
    if reason is ErrorReason.TIMED_OUT:
        return os_error(reason, f"no room to send to {peer} port {port}", peer=peer)
    if reason is ErrorReason.PEER_CONGESTED:
        return os_error(reason, f"{peer} port {port} is full", peer=peer)
    size = mailbox._send_bytes_max
    if reason is ErrorReason.SHARE_FULL:
        known = mailbox.accounts.known(peer)
        held_bytes = known.queued_bytes if known else 0
        detail = f"{held_bytes} bytes are queued to {peer}, one of several that share {size}"
    else:
        detail = f"{mailbox.send_queued_bytes} of {size} bytes are queued"
    limit = None if reason is ErrorReason.PATH_FULL else size
    return os_error(reason, detail, limit=limit, peer=peer)


def _try(
    mailbox: Mailbox,
    payload: Buffer,
    peer: IPAddress,
    port: int,
    extension: bytes,
    operations: Sequence[Operation],
    *,
    again: bool,
) -> ErrorReason | None:
    """Queue, or return the reason: PEER_UNREACHABLE without a route. Lock held.

    Raises errors that no wait can end.
    """
    if mailbox.closed:
        raise os_error(mailbox._plane.closed_reason)
    if peer in mailbox._failed:
        mailbox._failed.remove(peer)
        detail = f"{peer}: messages queued for it were dropped"
        raise os_error(ErrorReason.PEER_UNREACHABLE, detail, peer=peer)
    path = mailbox._routes.get(peer)
    if path is None:
        return ErrorReason.PEER_UNREACHABLE
    if operations and isinstance(path, StreamPath | LoopPath):
        detail = f"no operations on the way to {peer}"
        raise os_error(ErrorReason.NOT_SUPPORTED, detail, peer=peer)
    map_news, mailbox._map_news = mailbox._map_news, False
    loop = isinstance(path, LoopPath)
    if (own_map(mailbox._plane, peer) if loop else mailbox._host.congested_at(peer)).test(port):
        if not isinstance(path, LoopPath):
            path.want()  # without a connection no map would ever clear it
        mailbox._saw_congestion = True
        if mailbox.settings.monitor:
            mailbox._wait_groups |= 1 << port % _GROUPS
        return ErrorReason.PEER_CONGESTED
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
        return ErrorReason.PATH_FULL
    if path.full:
        path.room_wanted.add(mailbox)
        if mailbox.has_one_way():
            return ErrorReason.PATH_FULL
        destination.path_full = True
        mailbox.refuse(destination, len(payload), port)
        return ErrorReason.SHARE_FULL
    accounts.admit(destination, len(payload), queued_bytes)
    if isinstance(path, StreamPath):
        mailbox._map_news = again and map_news  # a known destination is no question about it
        _queue_stream(mailbox, payload, port, extension, path, destination)
        return None
    path.queue(mailbox, port, payload, extension, operations)
    destination.queued_bytes += len(payload)
    if mailbox.send_queued_bytes >= accounts.half_bytes:
        accounts.note_queued(destination, mailbox.send_queued_bytes)
    return None


def _refuse(
    mailbox: Mailbox, destination: Destination, payload_bytes: int, port: int
) -> ErrorReason:
    """Return the error reason of a destination without room; note it unless it is the only one."""
    mailbox._plane.counters.send_queue_full += 1
    if mailbox.accounts.is_alone(destination, mailbox.send_queued_bytes):
        return ErrorReason.QUEUE_FULL
    mailbox.refuse(destination, payload_bytes, port)
    return ErrorReason.SHARE_FULL


def _queue_stream(
    mailbox: Mailbox,
    payload: Buffer,
    port: int,
    extension: bytes,
    path: StreamPath,
    destination: Destination,
) -> None:
    """Queue on a path with a stream. Lock held."""
    outgoing, accounts = path.core.outgoing, mailbox.accounts
    outgoing.queue(mailbox, mailbox.port, port, payload, extension)
    destination.queued_bytes += len(payload)
    queued_bytes = mailbox.send_queued_bytes
    if queued_bytes >= accounts.half_bytes and accounts.note_queued(destination, queued_bytes):
        outgoing.acknowledgement_wanted = True


class _RoomWaiters(Waiters):
    """The list of a waiting send: its destination's if that has no room, else the mailbox's."""

    __slots__ = ("_chosen", "_listed")

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__()
        self._chosen = self._listed = mailbox.room_waiters

    def choose(self, mailbox: Mailbox, peer: IPAddress | None) -> None:
        """Wait for room for a peer, with None for every other notification. Lock held."""
        every = mailbox.room_waiters
        self._chosen = every if peer is None else mailbox.room_waiters_of(peer)

    def add(self, waiter: Waiter) -> None:
        """List a waiter once, in the list of its present wait."""
        if self._listed is not self._chosen:
            self._listed.remove(waiter)
            self._listed = self._chosen
        self._listed.add(waiter)

    def remove(self, waiter: Waiter) -> bool:
        """Remove a waiter; return false if it was notified and is off already."""
        return self._listed.remove(waiter)

    def tell(self, count: int, wait_queue: WaitQueue) -> None:
        """Notify the next waiter in the same list."""
        self._listed.tell(count, wait_queue)


def frozen(payload: Buffer, *, copy: bool = True) -> bytes | memoryview:
    """Return a payload that does not change: `bytes` and views of it as they are, else a copy.

    Without `copy` a long payload is always the caller's own memory, in one piece.
    """
    if type(payload) is bytes:
        return payload
    view = memoryview(payload)
    if not view.c_contiguous:
        return view.tobytes()
    # A read-only view may still be of memory that others write: only `bytes` never change.
    if view.nbytes < REFERENCE_BYTES or (copy and not isinstance(view.obj, bytes)):
        return bytes(view)
    return view.cast("B")
