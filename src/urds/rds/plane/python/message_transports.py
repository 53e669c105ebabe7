"""What the plane does for paths whose messages another transport carries (`dataplane.carriage`).

Such a path is a host's beside those with streams: it shares the host's congestion map and the map
of its peer, it may be at its bound of messages, and a mailbox far over its buffer makes it pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urds.dataplane.carriage import CarriedPath
    from urds.dataplane.reference.inbox import Inbox
    from urds.dataplane.reference.plane import Plane


def remove(plane: Plane, path: CarriedPath) -> None:
    """Forget a path and every route over it; its waiting senders look again. Lock held."""
    host = plane.hosts[path.local]
    host.carried.pop(path, None)
    for mailbox in host.inboxes.values():
        mailbox.forget_route(path)
    plane.note_path_room(path)
    plane.missing.pop(path, None)
    plane.full_paths.discard(path)
    plane.maps_due.discard(path)
    plane.carried_dues.pop(path, None)
    host.forget_peer_map(path.peer)


def deliver(
    plane: Plane,
    path: CarriedPath,
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
    sources = host.carried.get(path)
    if sources is None:
        sources = host.add_carried(path)
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


def _pause(plane: Plane, path: CarriedPath, inbox: Inbox) -> None:
    """Have the path resumed when the mailbox is at half of its hard bound. Lock held."""
    if path not in inbox.pausing:
        inbox.pausing.add(path)
        inbox.special = True
        plane.counters.recv_paused += 1
