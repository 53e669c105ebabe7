"""The RDMA transport as the driver has it: made with the first socket that asks for it.

Its node is another dispatcher of the control thread: reports of devices wait for the next pass of
the thread, which then does what the local addresses decide. Control lock held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING

from urds.common.errors import ErrorReason, os_error
from urds.common.records import replace
from urds.common.types import IPAddress
from urds.rds.constants import MAX_MESSAGE_BYTES, Transport
from urds.rds.plane import contract as base
from urds.rds.plane.contract import Mailbox, MessageRow, Snapshot
from urds.rds.runtime.paths import first_sequence
from urds.rds.runtime.peer_events import events as peer_events
from urds.rds.runtime.tunables import delays_of
from urds.rds.runtime.undelivered import tell_linger_over

if TYPE_CHECKING:
    from urds.rds.control.settings import LocalAddressSettings
    from urds.rds.plane.contract import PathRow
    from urds.rds.runtime.connections import Found
    from urds.rds.runtime.control_thread import Driver
    from urds.rds.settings import Settings
    from urds.rds.transports.rdma.node import NodeSettings, RdmaNode

_LINUX_STATS = {"connect_raced", "listen_closed_stale"}  # have names of Linux
_MS = 1_000_000
_S = 1_000 * _MS
_END_NS = 100 * _MS  # how long an orderly end waits for posted work
_ROWS_MAX = 65_536  # of each message table


class Rdma:
    """The node of RDS over RDMA, or its absence."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.node: RdmaNode | None = None
        self._mailboxes: set[Mailbox] = set()
        self._look_at_ns = 0

    def open(self, address: IPAddress, settings: LocalAddressSettings) -> None:
        """Listen at an address, on devices that are opened now if need be.

        Raises OSError: ENOPROTOOPT without devices, EADDRINUSE, EADDRNOTAVAIL.
        """
        if self.node is None:
            self.node = self._make()
        self.node.open(address, settings)

    def _make(self) -> RdmaNode:
        # A process that never asks for RDMA never pays for importing it.
        from urds.rds.transports.rdma.device import open_devices
        from urds.rds.transports.rdma.node import RdmaNode

        driver = self._driver
        names = driver.settings.rdma_devices
        try:
            devices = open_devices(names)
        except OSError as problem:
            detail = f"devices {', '.join(names) or 'none'} (rdma_devices): {problem}"
            raise os_error(ErrorReason.TRANSPORT_MISSING, detail) from problem
        for device in devices:
            device.confine = driver.guard.confine_to
        node = RdmaNode(
            driver.plane,
            devices,
            settings=node_settings_of(driver.settings, driver.generation),
            random=driver.random,
            sequence_first=first_sequence,
            now_ns=now_ns,
            log=driver.log.part("rdma"),
            on_event=peer_events.emit,
            on_attached=driver.looks.begin,
            on_ended=lambda path: driver.looks.look(path, now_ns()),
        )
        node.confine = driver.guard.confine_to
        return node

    # -- mailboxes

    def add(self, mailbox: Mailbox) -> None:
        """Note that a mailbox sends over RDMA."""
        self._mailboxes.add(mailbox)
        self.bound.add_mailbox(mailbox)

    def is_inside(self) -> bool:
        """Tell whether the calling thread holds a lock of the node or of a device."""
        return self.node is not None and self.node.is_inside()

    def __contains__(self, mailbox: object) -> bool:
        """Tell whether a mailbox sends over RDMA."""
        return mailbox in self._mailboxes

    def free_regions(self, mailbox: Mailbox) -> None:
        """Take the memory of a mailbox back from its peers; the control lock is not needed."""
        if mailbox in self._mailboxes and self.node is not None:
            self.node.regions.free_all(mailbox)

    def forget(self, mailbox: Mailbox) -> None:
        """Drop a mailbox of either transport that is closed."""
        if mailbox in self._mailboxes and self.node is not None:
            self._mailboxes.discard(mailbox)
            self.node.forget_mailbox(mailbox)

    @property
    def bound(self) -> RdmaNode:
        """The node, for a mailbox over RDMA."""
        assert self.node is not None, "a mailbox over RDMA was bound with a node"
        return self.node

    # -- the control thread

    def take(self, event: base.OfTransport) -> None:
        """Take an event of the plane for a message transport."""
        report = None if self.node is None else self.node.take(event)
        if report is not None:
            tell_linger_over(self._driver, report)

    def progress(self, at_ns: int) -> int | None:
        """Do what is due; return the next deadline."""
        if self.node is None:
            return None
        due_ns, look_at_ns = self.node.progress(at_ns), self._look(at_ns)
        if due_ns is None or look_at_ns is None:
            return due_ns or look_at_ns
        return min(due_ns, look_at_ns)

    def _look(self, at_ns: int) -> int | None:
        """Look at paths with a connection, once a second; return when next, None without one."""
        paths = self.bound.connected_paths()
        if not paths:
            return None
        if self._look_at_ns <= at_ns:
            self._look_at_ns = at_ns + _S
            for path in paths:
                self._driver.looks.look(path, at_ns)
        return self._look_at_ns

    # -- info and ends

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """Add what the node has to a snapshot of the plane. No lock held."""
        node = self.node
        if node is None:
            return snapshot
        from dataclasses import asdict

        with self._driver.lock:
            paths = node.paths()
        node.count_up()
        with node.lock:
            own = asdict(node.message_counters)
        counters = {name: count + own.get(name, 0) for name, count in snapshot.counters.items()}
        return replace(
            snapshot,
            counters=counters,
            paths=[*snapshot.paths, *(path.row() for path in paths)],
            send_queue=_rows(snapshot.send_queue, *(path.unsent_rows() for path in paths)),
            retransmit_queue=_rows(
                snapshot.retransmit_queue, *(path.sent_rows() for path in paths)
            ),
            rdma_in_use=True,
        )

    def counters(self) -> Mapping[str, int]:
        """Return Linux's counters ib_* in its order; none while RDMA is not in use."""
        if self.node is None:
            return {}
        from dataclasses import asdict

        self.node.count_up()
        stats = self.node.stats
        return {
            **asdict(self.node.counters),
            "ib_connect_raced": stats.connect_raced,
            "ib_listen_closed_stale": stats.listen_closed_stale,
        }

    def own_counters(self) -> Mapping[str, int]:
        """Return the counters of RDMA connections and their rejects, as rdma_*; as `counters`."""
        if self.node is None:
            return {}
        from dataclasses import asdict

        return {
            f"rdma_{name}": count
            for name, count in asdict(self.node.stats).items()
            if name not in _LINUX_STATS
        }

    def find(self, row: PathRow, at_ns: int) -> Found | None:
        """Return what is known of the path of a row; None if it is gone."""
        found = None if self.node is None else self.node.find(row)
        if found is None:
            return None
        report, history, path = found
        return report, history, self._driver.looks.look(path, at_ns)

    def failure(self, local: IPAddress, peer: IPAddress) -> str:
        """Return why the last attempt to connect to a peer failed, "" if it did not."""
        return "" if self.node is None else self.node.failure(local, peer)

    def break_connections(self) -> int:
        """End every connection, as a fault would; return how many."""
        return 0 if self.node is None else self.node.break_connections()

    def stop_listening(self) -> None:
        """Take no more requests."""
        if self.node is not None:
            self.node.stop_listening()

    def end_connections(self) -> None:
        """End every connection in order. No lock held."""
        if self.node is not None:
            self.node.end_connections(_END_NS)

    def close(self) -> None:
        """Close links and devices; the plane has ended its paths. The control thread is gone."""
        if self.node is not None:
            self.node.close()

    def abandon_in_child(self) -> None:
        """Leave everything to the parent."""
        if self.node is not None:
            self.node.abandon_in_child()


def _rows(*tables: Sequence[MessageRow]) -> list[MessageRow]:
    return list(islice(chain.from_iterable(tables), _ROWS_MAX))


def node_settings_of(settings: Settings, generation: int) -> NodeSettings:
    """Return what RDMA connections share."""
    from urds.rds.control.settings import PeerSettings
    from urds.rds.transports.rdma.core import CoreLimits
    from urds.rds.transports.rdma.node import NodeSettings

    return NodeSettings(
        peer=PeerSettings(generation=generation, **delays_of(settings)),
        core=CoreLimits(
            send_ring=settings.ib_max_send_wr,
            receive_ring=settings.ib_max_recv_wr,
            flow_control=settings.ib_flow_control,
            message_bytes_max=min(settings.max_message_bytes, MAX_MESSAGE_BYTES),
            unacked_packets_max=settings.max_unacked_packets,
            unacked_bytes_max=settings.max_unacked_bytes,
        ),
        ping_enable=settings.ping_enable,
    )


def wants_rdma(transport: Transport | None, settings: Settings) -> bool:
    """Tell whether a bind is to RDMA: chosen on the socket, else by the setting `transport`."""
    if transport is None:
        return settings.transport == "ib"
    return transport is Transport.IB
