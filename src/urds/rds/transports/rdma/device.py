"""One open device as all RDS connections of a process share it.

The sink of one completion queue hands the completions of a pass to their links, which then do the
work that follows. The progress thread leads the device, since a thread that waits for a message
sleeps on the plane's descriptors: the device counts it as an external waiter. Where there are
couriers that thread also hears the peers there, see `courier`. A fault in a link's work costs its
connection; the progress thread goes on for the others.

Everything needs the adapter's lock, unless it says otherwise.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from urds.common.types import HostPort, IPAddress
from urds.verbs.device import find_device
from urds.verbs.engine.keys import NestedDomain
from urds.verbs.engine.numbers import (
    AccessFlag,
    AsyncEventType,
    QPAttrMask,
    QPState,
    QPType,
)
from urds.verbs.engine.queue_pair import QPAttr, QPCap, QueuePair
from urds.verbs.engine.work import WC, Completed, Event
from urds.verbs.providers.base import Adapter, Listener, OnConnectionEvent, PortSpace

if TYPE_CHECKING:
    from urds.rds.transports.rdma.link import Link

# Keeps an unexpected exception from ending the thread, and recovers from it.
Confine = Callable[[Callable[[], None]], AbstractContextManager[None]]

BACKLOG: Final = 256
# A peer may do to local regions what each of them allows.
_ACCESS: Final = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)
_PEER_ERRORS: Final = (AsyncEventType.QP_ACCESS_ERR, AsyncEventType.QP_REQ_ERR)
_INIT: Final = QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS


class RdmaDevice:
    """An adapter opened for RDS: queue pairs, completions, listeners."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.name = adapter.attributes.name
        self.provider = adapter.attributes.provider
        self.domain = object()  # of regions for every peer
        # Of regions for one peer, and of the queue pairs towards it: both keep it.
        self._domains: weakref.WeakValueDictionary[IPAddress, NestedDomain] = (
            weakref.WeakValueDictionary()
        )
        self.links: dict[int, Link] = {}  # by queue pair
        self.is_abandoned = False  # by a fork: the parent's
        self.confine: Confine = let_out
        self.completions = adapter.completion_queue(1, sink=self._take)
        with adapter.lock:
            adapter.on_events = self._handle_events
            adapter.add_external_waiter()

    def domain_of(self, peer: IPAddress) -> NestedDomain:
        """Return the protection domain of one peer, which reaches what is for every peer too."""
        domain = self._domains.get(peer)
        if domain is None:
            domain = self._domains[peer] = NestedDomain(self.domain)
        return domain

    def queue_pair(
        self, link: Link, *, peer: IPAddress, send_ring: int, receive_ring: int
    ) -> QueuePair:
        """Make a queue pair in INIT whose completions go to `link`. Raises OSError: ENOMEM.

        Its receives come from a queue of its own, so that they may be posted in any state.
        """
        adapter = self.adapter
        qp = adapter.queue_pair(
            kind=QPType.RC,
            pd=self.domain_of(peer),
            send_cq=self.completions,
            recv_cq=self.completions,
            srq=adapter.shared_receive_queue(receive_ring, 1, pd=self.domain),
            cap=QPCap(max_send_wr=send_ring, max_recv_wr=0, max_send_sge=1, max_recv_sge=1),
            sq_sig_all=True,
        )
        qp.modify(QPAttr(qp_state=QPState.INIT, qp_access_flags=_ACCESS), _INIT, adapter.now_ns())
        self.links[qp.qpn] = link
        return qp

    def forget(self, qp: QueuePair) -> None:
        """Drop a queue pair; its connection ends."""
        if self.links.pop(qp.qpn, None) is not None:
            self.adapter.remove(qp)

    def listen(self, address: HostPort, on_event: OnConnectionEvent) -> Listener:
        """Listen for connections. Raises OSError: EADDRINUSE, EADDRNOTAVAIL, EACCES."""
        return self.adapter.listen(address, PortSpace.TCP, backlog=BACKLOG, on_event=on_event)

    def soon(self, link: Link, action: Callable[[], None]) -> None:
        """Run a link's work once the pass under way is over; any thread, any lock."""

        def run() -> None:
            with self.confine(link.cut_after_fault):
                action()

        self.adapter.call_soon(run)

    def close(self) -> None:
        """Close the device; its peers see their connections break. Takes the lock."""
        if self.is_abandoned:
            return
        with self.adapter.lock:
            self.adapter.remove_external_waiter()
        self.adapter.close()

    def _handle_events(self, events: list[Event]) -> None:
        """Report access errors of peers to their links; those queue pairs are over."""
        for event in events:
            if isinstance(event, Completed) or event.event_type not in _PEER_ERRORS:
                continue
            link = self.links.get(event.element.qpn)
            if link is not None:
                with self.confine(link.cut_after_fault):
                    link.handle_refused(wrong_key=event.event_type is AsyncEventType.QP_ACCESS_ERR)

    def _take(self, completions: list[WC]) -> None:
        """Hand the completions of a pass to their links."""
        by_link: dict[Link, list[WC]] = {}
        for wc in completions:
            link = self.links.get(wc.qp_num)
            if link is not None:
                by_link.setdefault(link, []).append(wc)
        for link, taken in by_link.items():
            with self.confine(link.cut_after_fault):
                link.take(taken)


def open_devices(names: Sequence[str]) -> list[RdmaDevice]:
    """Open devices in the order in which peers are tried on them.

    Raises OSError: ENODEV for no name or one that no device has, or its provider's error; then
    none of them stays open.
    """
    if not names:
        raise OSError(errno.ENODEV, "no device is named")
    opened: list[RdmaDevice] = []
    try:
        for name in names:
            opened.append(RdmaDevice(find_device(name).open_adapter()))
    except OSError:
        for device in opened:
            device.close()
        raise
    return opened


def let_out(_recover: Callable[[], None]) -> AbstractContextManager[None]:
    """Let exceptions pass, where no guard was given."""
    return nullcontext()
