"""What the plane does for message transports (`rds.plane.message_transport`).

Such a path belongs to a host like one with a stream: it shares the host's congestion map and its
peer's map, it may be at its limit of messages, and a mailbox far over its buffer pauses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.inbox import Inbox
    from urds.rds.plane.python.plane import Plane


def remove(plane: Plane, path: MessageTransport) -> None:
    """Remove a path and every route over it; its waiting senders check again. Lock held."""
    host = plane.hosts[path.local]
    host.transports.pop(path, None)
    for mailbox in host.inboxes.values():
        mailbox.forget_route(path)
    plane.note_path_room(path)
    plane.missing.pop(path, None)
    plane.full_paths.discard(path)
    plane.maps_due.discard(path)
    plane.message_transport_dues.pop(path, None)
    host.forget_peer_map(path.peer)


def deliver(
    plane: Plane,
    path: MessageTransport,
    source_port: int,
    target_port: int,
    payload: bytes,
    extension: bytes,
) -> bool:
    """Queue a message in its mailbox; return false if the path must pause. Lock held."""
    host, counters = plane.hosts[path.local], plane.counters
    inbox = host.inboxes.get(target_port)
    if inbox is None:
        counters.recv_drop_no_sock += 1
        return True
    sources = host.transports.get(path)
    if sources is None:
        sources = host.add_message_transport(path)
    source = sources[source_port]
    if inbox.detailed or extension:
        inbox.put((payload, source, extension, plane.wall_ns(), plane.clock_ns()))
    else:
        inbox.put((payload, source))
    inbox.receive_queued_bytes += len(payload)
    counters.recv_queued += 1
    counters.recv_bytes_added_to_sock += len(payload)
    plane.note_arrival(inbox, 1)
    if not inbox.may_be_too_full() or not plane.is_over_hard_bound(inbox):
        return True
    _pause(plane, path, inbox)
    return False


def _pause(plane: Plane, path: MessageTransport, inbox: Inbox) -> None:
    """Have the path resumed when the mailbox is at half of its hard bound. Lock held."""
    if path not in inbox.pausing:
        inbox.pausing.add(path)
        inbox.special = True
        plane.counters.recv_paused += 1
