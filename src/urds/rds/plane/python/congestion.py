"""When a port of ours counts as congested in our map, and when a path is not read at all.

The bit is judged at the end of a pass or a tick, not per message: with Linux's rule, at once, eight
fast senders to a small buffer cost more octets of maps than of messages. Far over its buffer a
mailbox pauses the paths that fill it, because its peer ignores the map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.dataplane.base import Address

if TYPE_CHECKING:
    from urds.dataplane.reference.host import Host
    from urds.dataplane.reference.mailbox import Mailbox
    from urds.dataplane.reference.plane import Plane
    from urds.wire.congestion_map import CongestionMap

_GROUPS = 64


def own_map(plane: Plane, address: Address) -> CongestionMap:
    """Return the map of an address of this process. Plane's lock held."""
    return plane._host(address).congested


def settle(plane: Plane) -> None:
    """Judge the mailboxes that a pass touched, send changed maps, show states. No lock held."""
    with plane.lock:
        touched, plane.touched = plane.touched, set()
        now_ns = plane.clock_ns()
        changed = tuple(one for one in touched if judge(plane, one, now_ns))
        paths = [path for mailbox in changed for path in plane.hosts[mailbox.local].paths]
        carried, plane.maps_due = plane.maps_due, set()
        for mailbox in touched:
            note_resumed(plane, mailbox)
        # A changed map of ours concerned senders of this process: show theirs as well.
        touched, plane.touched = touched | plane.touched, set()
    try:
        for path in paths:
            path.flush()
        for one in carried:
            one.push_soon()
        while plane.resuming:
            paused = next(iter(plane.resuming))
            paused.resume()
            plane.resuming.discard(paused)  # last: to resume twice does no harm
        for mailbox in touched:
            mailbox.sync()
    except BaseException:  # what an interrupt kept from being done is due again
        plane.maps_due |= carried
        raise


def judge(plane: Plane, mailbox: Mailbox, now_ns: int) -> bool:
    """Judge a mailbox's congestion; return whether our map changed. Lock held."""
    if not mailbox.closed:
        mailbox.judge_congestion(now_ns)
    mailbox.settle_special()
    if mailbox.look_again_ns() is not None:
        plane.looks.add(mailbox)
        plane.helper.want()
    on = mailbox.congested
    if mailbox.closed or own_map(plane, mailbox.local).test(mailbox.port) == on:
        return False
    show(plane, mailbox, on=on)  # also where an interrupt kept an earlier change from the map
    return True


def show(plane: Plane, mailbox: Mailbox, *, on: bool) -> None:
    """Set or clear a port's bit in our map; maps go out with the next flush. Lock held."""
    host = plane.hosts[mailbox.local]
    for path in host.paths:
        path.core.map_due = path.core.attached
        path.flush_soon()
    for carried in host.carried:
        carried.note_map_due()
    plane.maps_due.update(host.carried)
    groups = 0 if on else 1 << mailbox.port % _GROUPS
    for other in plane.hosts.values():
        for sender in other.inboxes.values():
            if sender.sends_by_loop_to(mailbox.local):
                sender.note_map(groups)
                plane.touched.add(sender)
    # Last (`interrupts`): until then the map differs from the mailbox, and is judged anew.
    (host.congested.set if on else host.congested.clear)(mailbox.port)


def note_peer_map(plane: Plane, host: Host, peer: Address, octets: bytes, *, exact: bool) -> None:
    """See `Plane.note_peer_map`. Lock held."""
    plane.counters.cong_update_received += 1
    groups = host.replace_peer_map(peer, octets)
    for mailbox in host.inboxes.values():
        mailbox.note_map(groups, exact=exact)
        plane.touched.add(mailbox)


def note_resumed(plane: Plane, mailbox: Mailbox) -> None:
    """Have the paths go on that a mailbox let go by coming to half of its hard bound. Lock held."""
    if not mailbox.pausing:
        return
    limits = plane.limits
    bound = limits.receive_hard_factor * mailbox.buffer_bytes + limits.receive_hard_bytes
    if mailbox.hard_bytes() <= bound // 2 or mailbox.closed:
        plane.resuming |= mailbox.pausing
        mailbox.pausing.clear()
