"""When a local port's bit in the congestion map changes, and when a path stops reading.

The bit is checked at the end of a pass or a tick, not per message: with Linux's rule, at once,
eight fast senders to a small buffer cost more bytes of maps than of messages. Far over its buffer a
mailbox pauses the paths that fill it, because its peer ignores the map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.common.types import IPAddress

if TYPE_CHECKING:
    from urds.rds.plane.python.host import Host
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane
    from urds.rds.wire.congestion_map import CongestionMap

_GROUPS = 64


def own_map(plane: Plane, address: IPAddress) -> CongestionMap:
    """Return the map of a local address. Plane's lock held."""
    return plane._host(address).congested


def finish_pass(plane: Plane) -> None:
    """Check the mailboxes that a pass touched, send changed maps, show states. No lock held."""
    with plane.lock:
        touched, plane.touched = plane.touched, set()
        now_ns = plane.clock_ns()
        changed = tuple(one for one in touched if update_congestion(plane, one, now_ns))
        paths = [path for mailbox in changed for path in plane.hosts[mailbox.local].paths]
        transports, plane.maps_due = plane.maps_due, set()
        for mailbox in touched:
            note_resumed(plane, mailbox)
        # A changed local map concerns senders of this process: show their state as well.
        touched, plane.touched = touched | plane.touched, set()
    try:
        for path in paths:
            path.flush()
        for one in transports:
            one.push_soon()
        while plane.resuming:
            paused = next(iter(plane.resuming))
            paused.resume()
            plane.resuming.discard(paused)  # last: a second resume does no harm
        for mailbox in touched:
            mailbox.sync()
    except BaseException:  # work that an interrupt prevented is due again
        plane.maps_due |= transports
        raise


def update_congestion(plane: Plane, mailbox: Mailbox, now_ns: int) -> bool:
    """Check a mailbox's congestion; return whether the local map changed. Lock held."""
    if not mailbox.closed:
        mailbox.check_congestion(now_ns)
    mailbox.finish_special()
    if mailbox.look_again_ns() is not None:
        plane.looks.add(mailbox)
        plane.progress_thread.want()
    on = mailbox.congested
    if mailbox.closed or own_map(plane, mailbox.local).test(mailbox.port) == on:
        return False
    show(plane, mailbox, on=on)  # also if an interrupt kept an earlier change from the map
    return True


def show(plane: Plane, mailbox: Mailbox, *, on: bool) -> None:
    """Set or clear a port's bit in the local map; the next flush sends it. Lock held."""
    host = plane.hosts[mailbox.local]
    for path in host.paths:
        path.core.map_due = path.core.attached
        path.flush_soon()
    for transports in host.transports:
        transports.note_map_due()
    plane.maps_due.update(host.transports)
    groups = 0 if on else 1 << mailbox.port % _GROUPS
    for other in plane.hosts.values():
        for sender in other.inboxes.values():
            if sender.sends_by_loop_to(mailbox.local):
                sender.note_map(groups)
                plane.touched.add(sender)
    # Last (`interrupts`): until then the map differs from the mailbox, and is checked again.
    (host.congested.set if on else host.congested.clear)(mailbox.port)


def note_peer_map(plane: Plane, host: Host, peer: IPAddress, data: bytes, *, exact: bool) -> None:
    """See `Plane.note_peer_map`. Lock held."""
    plane.counters.cong_update_received += 1
    groups = host.replace_peer_map(peer, data)
    for mailbox in host.inboxes.values():
        mailbox.note_map(groups, exact=exact)
        plane.touched.add(mailbox)


def note_resumed(plane: Plane, mailbox: Mailbox) -> None:
    """Have paths resumed whose mailbox is at half of its hard bound or closed. Lock held."""
    if not mailbox.pausing:
        return
    limits = plane.limits
    bound = limits.receive_hard_factor * mailbox.buffer_bytes + limits.receive_hard_bytes
    if mailbox.hard_bytes() <= bound // 2 or mailbox.closed:
        plane.resuming |= mailbox.pausing
        mailbox.pausing.clear()
