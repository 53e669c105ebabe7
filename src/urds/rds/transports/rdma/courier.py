"""The courier of one connection: compiled code makes and takes the frames of its plain messages.

Between urds nodes over a compiled device a connection core has nothing to decide about plain
messages that follow each other. So whenever nothing else is under way its link gives the numbers
to a courier (`urds_native.RdmaCourier`), which takes completions and posts frames in the engine,
without a call of Python, in whichever thread hears the peer. To use the core is to take its lock:
`CoreLock` takes the numbers back first, so that the core is what it would be without a courier.
Where something comes that is the core's, the courier stops and leaves its completions to the link.
See docs/adr/0044.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from urds.rds.transports.rdma.queues import Bundle
from urds.rds.wire.header import HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import RLock
    from types import TracebackType

    from urds.rds.transports.rdma.core import ConnectionCore


class Owner(Protocol):
    """The link of a courier."""

    path: Any  # whose core has the numbers

    @property
    def slots(self) -> tuple[int, int]:
        """How many receives are in use, and at most."""

    def take_back(self, slots: int, done_bytes: int, pauses: bool, paused_slot: int | None) -> None:
        """Go on from where a courier has stopped."""


class Courier:
    """A compiled courier, and the core whose numbers it has at times.

    The lock of the cores is held unless a method says otherwise.
    """

    def __init__(self, link: Owner, native: Any) -> None:
        self.is_given = False
        self._native = native
        self._link = link

    def give(self, core: ConnectionCore) -> None:
        """Have the courier go on, if nothing but plain messages is under way."""
        given = core.hand_over()
        if given is not None:
            self.is_given = True
            messages, *numbers = given
            self._native.give(messages, (*numbers, self._link.slots))

    def take_back(self) -> None:
        """Give the core its numbers back, and what the courier has of messages."""
        self.is_given = False
        taken = self._native.take()
        if taken is None:
            return
        numbers, acknowledged, counts, unacked, unsent, partial, done_bytes, pauses = taken
        sent, budget, frame_next, posted, received, slots = numbers
        core: ConnectionCore = self._link.path.core
        outside: Any = self._link.path.outside  # of the compiled plane
        core.take_back(frame_next, posted, received, acknowledged=acknowledged)
        core.outgoing.sequence_next = sent
        core.outgoing.budget.take_back(*budget)
        if unacked is not None:
            core.outgoing.restore_unacked(Bundle(outside.gathered_of(unacked)), sent)
        if unsent is not None:
            core.outgoing.restore_unsent(Bundle(outside.gathered_of(unsent)))
        if partial is not None:
            core.incoming.restore_partial(HEADER.unpack(partial[0]), partial[1])
        _add_counts(core, counts)
        is_map_due, *paused = pauses
        core.map_due |= is_map_due
        self._link.take_back(slots, done_bytes, *paused)

    def send_map(self) -> bool:
        """Send the local congestion map; false if the core does that. Needs no lock."""
        sent: bool = self._native.send_map()
        return sent

    def close(self) -> None:
        """End it; its numbers were taken back."""
        self._native.close()


class CoreLock:
    """The lock of all cores of a node, as the owner of one core takes it."""

    def __init__(self, lock: RLock) -> None:
        self.courier: Courier | None = None
        self._lock = lock

    def __enter__(self) -> None:
        """Take the lock, and the core's numbers back."""
        self._lock.acquire()
        courier = self.courier
        if courier is not None and courier.is_given:
            try:
                courier.take_back()
            except BaseException:
                self._lock.release()
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the lock."""
        self._lock.release()


def _add_counts(core: ConnectionCore, counts: Sequence[int]) -> None:
    """Count what a courier has counted."""
    own, rdma = core.counters, core.rdma
    own.send_queued += counts[0]
    own.copy_from_user += counts[1]
    own.send_ack_required += counts[2]
    own.recv_ack_required += counts[3]
    rdma.ib_rx_total_frags += counts[4]
    rdma.ib_rx_total_incs += counts[5]
    rdma.ib_ack_sent += counts[6]
    rdma.ib_ack_received += counts[7]
    rdma.ib_ack_send_piggybacked += counts[8]
    rdma.ib_ack_send_delayed += counts[9]
    rdma.ib_tx_ring_full += counts[10]
    own.cong_update_queued += counts[11]
