"""One connection of one device: a queue pair, its ring of receives, and the work of a path's core.

A link is made for an attempt to connect, or for a request that is answered. Until the control plane
attaches it to its path, arrivals are kept; then the frames of a pass go to the path's core, whose
work is posted at the end of it, or in a sender's own thread.

Adapter's lock held, unless a method says otherwise; the path's core needs its own lock too.
"""

from __future__ import annotations

import mmap
from ipaddress import IPv6Address
from itertools import islice
from typing import TYPE_CHECKING, Final

from urds.common.types import HostPort
from urds.rds.constants import MAX_MESSAGE_BYTES
from urds.rds.numbers import RDMA_PAGE_BYTES
from urds.rds.plane.contract import AtomicOperation, RdmaRow, RdmaTransfer
from urds.rds.transports.rdma.courier import Courier
from urds.rds.transports.rdma.device import RdmaDevice
from urds.rds.transports.rdma.frames import (
    FRAGMENT_BYTES,
    LONG_FRAGMENT_BYTES,
    Frame,
    Outcome,
    Piece,
    Work,
)
from urds.rds.transports.rdma.receiving import ACK_DELAY_NS
from urds.rds.transports.rdma.regions import REGIONS_MAX
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.header import HEADER_BYTES
from urds.verbs.engine.keys import Region
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPState,
    SendFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.work import SGE, WC, RecvWR, SendWR
from urds.verbs.providers.base import (
    ConnectParameters,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from urds.rds.transports.rdma.path import RdmaPath

_SHORT_BYTES: Final = HEADER_BYTES + FRAGMENT_BYTES
_LONG_BYTES: Final = HEADER_BYTES + LONG_FRAGMENT_BYTES
_RECEIVES_FIRST: Final = 16  # an idle connection shall cost little
# Whether a peer sends long frames is known after the first receives were posted, so they and as
# many others as such a peer ever gets have room for one: 4 MiB, once all have been filled.
_LONG_RECEIVES: Final = 64
_BATCH: Final = 64  # work requests between two releases of the core's lock
_ACCESSES_MAX: Final = 16  # reads and atomics under way in either direction
_OUTCOMES: Final = {
    WCStatus.SUCCESS: Outcome.DONE,
    WCStatus.REM_ACCESS_ERR: Outcome.REMOTE_ACCESS,
    WCStatus.WR_FLUSH_ERR: Outcome.FLUSHED,
}


class Link:
    """A queue pair with a ring of receive buffers; see the module."""

    def __init__(
        self, device: RdmaDevice, path: RdmaPath, number: int, *, send_ring: int, receive_ring: int
    ) -> None:
        """Make a queue pair and post the first receives. Raises OSError: ENOMEM."""
        self.device = device
        self.path = path
        self.number = number
        self.connection: VerbsConnection | None = None
        self.is_established = False
        self.is_over = False
        self.on_event: Callable[[Link, VerbsConnectionEvent], None]
        self.receive_ring = receive_ring
        self._attached = False
        self._is_due = False  # `finish_pass` comes
        self._protocol_error: str | None = None  # why it must end; no frame is looked at any more
        self._protocol_error_told = False
        self._early: list[WC] = []  # arrived before the path took the link
        self._held: list[int] = []  # receives not posted again while the path pauses
        self._scratch: dict[int, Region] = {}  # local memory of reads and atomics, by wr_id
        # Pages that no frame has reached yet take no memory.
        self._memory = mmap.mmap(-1, _start(receive_ring))
        self._view = memoryview(self._memory)
        self._qp: QueuePair | None = device.queue_pair(
            self, peer=path.key.peer, send_ring=send_ring, receive_ring=receive_ring
        )
        self._region = device.adapter.register(device.domain, self._view, 0, AccessFlag.LOCAL_WRITE)
        self._slots = receives_at_first(receive_ring)  # of the ring in use; grows with traffic
        self._done_bytes = 0  # of the frame that is taken next
        self._is_taking = False
        self._courier: Courier | None = None
        self._slots_max = receive_ring
        for slot in range(self._slots):
            self._post_receive(slot)

    # -- connecting

    def connect(self, local: HostPort, peer: HostPort, private_data: bytes) -> None:
        """Ask for the connection; `on_event` reports the result. Raises OSError."""
        self.connection = self.device.adapter.connect(
            self._qp,
            peer,
            PortSpace.TCP,
            _parameters(private_data),
            on_event=self._handle_event,
            local=local,
        )

    def accept(self, connection: VerbsConnection, private_data: bytes) -> None:
        """Answer a request. Raises OSError."""
        self.connection, connection.on_event = connection, self._handle_event
        connection.accept(self._qp, _parameters(private_data))

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.connection is self.connection:
            self.on_event(self, event)

    # -- attach and detach

    def attach(self, frame_format: FrameFormat = FrameFormat.SHORT) -> None:
        """Pass early arrivals to the path, and post the core's work."""
        self._attached = True
        if frame_format >= FrameFormat.LONG:
            self._slots_max = min(self.receive_ring, _LONG_RECEIVES)
        early, self._early = self._early, []
        for wc in early:
            self._take_frame(wc)
        if frame_format >= FrameFormat.PACKED and self._qp is not None:
            self._courier = self.path.lock.courier = self._make_courier(self._qp)
        self.finish_pass()

    def _make_courier(self, qp: QueuePair) -> Courier | None:
        """Return a compiled courier, if device and plane are compiled."""
        make = getattr(self.device.adapter, "rdma_courier", None)
        if make is None:
            return None
        limits = self.path.core.limits
        native = make(
            self.path.outside,
            (qp, self.device.completions, qp.srq),
            (self._view, self._region.lkey),
            (_LONG_RECEIVES, _LONG_BYTES, _SHORT_BYTES),
            (self.receive_ring, limits.send_ring, limits.message_bytes_max, ACK_DELAY_NS),
            self._handle_courier,
        )
        return None if native is None else Courier(self, native)

    @property
    def slots(self) -> tuple[int, int]:
        """How many receives are in use, and at most."""
        return self._slots, self._slots_max

    def take_back(self, slots: int, done_bytes: int, pauses: bool, paused_slot: int | None) -> None:
        """Go on from where a courier has stopped; the lock of the cores alone is held."""
        self._slots, self._done_bytes = slots, done_bytes
        if pauses:
            self.path.around.is_paused = True
        if paused_slot is not None:
            self._hold(paused_slot)
        # What the courier was about to do is the core's now, though nothing else may happen here. A
        # queue pair that has failed takes nothing: each pass would ask for another one.
        self.path.plan_acknowledgement()
        if self._may_post() and self.path.core.wants_work():
            self.finish_soon()

    def _handle_courier(self) -> None:
        """Do what a courier leaves: what it has stopped at, or a pause."""
        if self._courier is not None:
            self.finish_pass()

    def close(self) -> None:
        """End the connection and release everything; no event comes any more. Idempotent."""
        self.is_over, self._attached = True, False
        courier, self._courier = self._courier, None
        if courier is not None:
            with self.path.lock:  # which gives the numbers back
                self.path.lock.courier = None
            courier.close()
        connection, self.connection = self.connection, None
        if connection is not None:
            if self.is_established:
                connection.disconnect()
            connection.close()
        qp, self._qp = self._qp, None
        if qp is None:
            return
        self.device.forget(qp)
        for region in (self._region, *self._scratch.values()):
            self.device.adapter.deregister(region)
        self._scratch.clear()
        self._early.clear()

    def is_idle(self) -> bool:
        """Tell whether everything posted has completed."""
        return self._qp is None or not self._qp.outstanding_requests

    def row(self) -> RdmaRow:
        """Describe the connection for rds-info. Needs no lock: what it reads stays as it is.

        The service level is the one that Linux asks for; no device here tells them apart.
        Source: linux v6.12 net/rds/rdma_transport.c, net/rds/ib.c (rds_ib_conn_info_visitor).
        """
        key, qp = self.path.key, self._qp
        route = None if qp is None else qp.peer
        if qp is None or route is None:
            return RdmaRow(key.passive)
        attributes = self.device.adapter.attributes
        return RdmaRow(
            is_passive=key.passive,
            device=self.device.name,
            service_level=key.tos & 0xF,
            local_gid=self._local_gid(),
            peer_gid=IPv6Address(route.dgid),
            send_requests_max=qp.attr.cap.max_send_wr,
            receive_requests_max=self.receive_ring,
            send_segments_max=qp.attr.cap.max_send_sge,
            regions_max=min(REGIONS_MAX, attributes.max_mr),
            region_pages_max=MAX_MESSAGE_BYTES // RDMA_PAGE_BYTES + 1,  # a buffer begins anywhere
        )

    def _local_gid(self) -> IPv6Address:
        """Return the GID that the peer sees: over TCP that is the address of the connection."""
        local = self.path.local
        if self.device.provider != "tcp":
            return IPv6Address(self.device.adapter.gid)
        return IPv6Address(f"::ffff:{local}" if local.version == 4 else int(local))

    # -- work

    def finish_pass(self) -> None:
        """Post the core's work and tell the plane what changed."""
        self._is_due = False
        if self._protocol_error is not None:
            if not self._protocol_error_told:
                self._protocol_error_told = True
                self.path.handle_protocol_error(self, self._protocol_error)
            return
        self.progress()
        self.path.finish_pass()

    def finish_soon(self) -> None:
        """Have `finish_pass` run. From any thread, with or without locks."""
        if not self._is_due:
            self._is_due = True
            self.device.soon(self, self.finish_pass)

    def progress(self) -> None:
        """Post the core's work, until there is none or the ring is full."""
        qp, path = self._qp, self.path
        if qp is None:
            return
        poll_work = path.core.poll_work
        while self._may_post():  # work may fail, and end it, within a kick
            with path.lock:
                works: list[Work] = list(islice(iter(poll_work, None), _BATCH))
            if not works or not self._post(qp, works):
                return
            self.device.adapter.progress_qp(qp)

    def _may_post(self) -> bool:
        """Return whether the queue pair takes work."""
        qp = self._qp
        is_well = self._attached and self._protocol_error is None
        return is_well and qp is not None and qp.state is QPState.RTS

    def give(self) -> None:
        """Have a courier go on, if there is one. The lock of the cores is held as well."""
        path, courier = self.path, self._courier
        # A frame that a courier has taken in part is next: one that began it again would repeat it.
        is_in_part = self._done_bytes > 0
        is_held_up = self._is_taking or self._held or path.around.is_paused or is_in_part
        if courier is not None and not is_held_up and self._protocol_error is None:
            courier.give(path.core)

    def _post(self, qp: QueuePair, works: list[Work]) -> bool:
        """Post work; if that fails, as a read from a peer that serves none, end the connection."""
        try:
            for work in works:
                qp.post_send(self._request_of(work), 0)  # only datagrams use the time
        except OSError as refused:
            self.cut(f"work cannot be posted: {refused.strerror}")
            return False
        return True

    def handle_refused(self, *, wrong_key: bool) -> None:
        """Tell at once that the peer's request was refused: the end of the queue pair follows.

        The peer may be late: the region that it was told of has been freed, or is used up.
        """
        if self._protocol_error_told:
            return
        if self._protocol_error is None:
            self._protocol_error = (
                "no region has this key and these bytes" if wrong_key else "request refused"
            )
        self._protocol_error_told = True
        self.path.handle_protocol_error(self, self._protocol_error, wrong_key=wrong_key)

    def cut_after_fault(self) -> None:
        """Have the connection ended: the state that a fault has left here is unknown."""
        self.cut("a fault of urds")

    def cut(self, reason: str) -> None:
        """Stop all work here, and have the control plane end the connection."""
        self._protocol_error = reason
        self.finish_soon()

    def _request_of(self, work: Work) -> SendWR:
        wr_id = self.receive_ring + work.wr_id
        if isinstance(work, Frame):
            flags = SendFlag.SOLICITED if work.solicited else SendFlag(0)
            if work.fence:
                flags |= SendFlag.FENCE
            return SendWR(wr_id, WROpcode.SEND, send_flags=flags, data=work.data)
        operation = work.operation
        if isinstance(operation, RdmaTransfer):
            piece = operation.pieces[work.number]
            wr = SendWR(wr_id, WROpcode.RDMA_WRITE if operation.is_write else WROpcode.RDMA_READ)
            if operation.is_write:
                wr.data = piece
            else:
                wr.sg = [self._export(wr_id, piece)]
        else:
            assert isinstance(operation, AtomicOperation)
            wr = _atomic(wr_id, operation)
            wr.sg = [self._export(wr_id, operation.result)]
        wr.set_wr_rdma(operation.key, work.remote_address)
        return wr

    def _export(self, wr_id: int, view: memoryview) -> SGE:
        """Let the device write into memory of the application until the request completes."""
        region = self.device.adapter.register(self.device.domain, view, 0, AccessFlag.LOCAL_WRITE)
        self._scratch[wr_id] = region
        return SGE(0, len(view), region.lkey)

    # -- what completes

    def take(self, completions: list[WC]) -> None:
        """Take what completed in a pass: frames that arrived, work that is done."""
        self._is_taking = True
        try:
            for wc in completions:
                self._take(wc)
        finally:
            self._is_taking = False
        self.finish_pass()

    def _take(self, wc: WC) -> None:
        if wc.wr_id >= self.receive_ring:
            region = self._scratch.pop(wc.wr_id, None)
            if region is not None:
                self.device.adapter.deregister(region)
            if self._attached:
                outcome = _OUTCOMES.get(wc.status, Outcome.FAILED)
                with self.path.lock:
                    self.path.core.handle_completed(wc.wr_id - self.receive_ring, outcome)
        elif wc.status is not WCStatus.SUCCESS or self.is_over:
            return
        elif self._attached:
            self._take_frame(wc)
        else:
            self._early.append(wc)

    def _take_frame(self, wc: WC) -> None:
        if self._protocol_error is not None:
            return
        if wc.opcode is not WCOpcode.RECV:  # the buffer holds an older frame
            self._protocol_error = "a write with immediate data is no frame"
            return
        start = _start(wc.wr_id)
        path = self.path
        with path.lock:
            end, start = start + wc.byte_len, start + self._done_bytes
            self._done_bytes = 0
            reason = path.core.handle_frame(self._view[start:end])
            is_paused = path.around.is_paused  # read once: without the lock `resume` may change it
            grows = reason is None and not is_paused and self._slots < self._slots_max
            if reason is None and not is_paused:
                path.core.handle_posted(1 + grows)
        if reason is not None:
            self._protocol_error = reason
        elif is_paused:
            self._hold(wc.wr_id)
        else:
            self._post_receive(wc.wr_id)
        if grows:
            self._post_receive(self._slots)
            self._slots += 1

    def _hold(self, slot: int) -> None:
        """Keep a receive back while the path pauses; the peer waits when all are."""
        self._held.append(slot)
        with self.path.lock:
            counters = self.path.rdma_counters
            counters.ib_rx_alloc_limit += 1
            counters.ib_rx_ring_empty += len(self._held) == self._slots

    def resume(self) -> None:
        """Post the receives that were held back while the path paused."""
        with self.path.lock:
            held, self._held = self._held, []
        if held and self._qp is not None:
            for slot in held:
                self._post_receive(slot)
            with self.path.lock:
                self.path.core.handle_posted(len(held))
                self.path.rdma_counters.ib_rx_refill_from_thread += 1
        self.finish_pass()

    def _post_receive(self, slot: int) -> None:
        qp = self._qp
        if qp is not None and qp.srq is not None:
            frame_bytes = _LONG_BYTES if slot < _LONG_RECEIVES else _SHORT_BYTES
            place = SGE(_start(slot), frame_bytes, self._region.lkey)
            qp.srq.post(RecvWR(slot, [place]))


def _start(slot: int) -> int:
    """Return where the memory of a receive begins: the first ones have room for long frames."""
    return min(slot, _LONG_RECEIVES) * _LONG_BYTES + max(0, slot - _LONG_RECEIVES) * _SHORT_BYTES


def receives_at_first(receive_ring: int) -> int:
    """Return how many receives a new connection has posted; each frame that comes adds one."""
    return min(receive_ring, _RECEIVES_FIRST)


def _parameters(private_data: bytes) -> ConnectParameters:
    """Return RDS's parameters to connect and accept: a send waits for ever for a receive.

    Source: linux v6.12 net/rds/ib_cm.c (rds_ib_cm_fill_conn_param); docs/reference/rds.md 4.1.
    """
    return ConnectParameters(
        private_data=private_data,
        responder_resources=_ACCESSES_MAX,
        initiator_depth=_ACCESSES_MAX,
        retry_count=7,
        rnr_retry_count=7,
    )


def _atomic(wr_id: int, operation: AtomicOperation) -> SendWR:
    """Return a masked request: plain operations have the masks that change nothing."""
    if operation.is_compare:
        return SendWR(
            wr_id,
            WROpcode.MASKED_ATOMIC_CMP_AND_SWP,
            compare_add=operation.operand,
            swap=operation.swap,
            compare_mask=operation.compare_mask,
            swap_mask=operation.swap_mask,
        )
    return SendWR(
        wr_id,
        WROpcode.MASKED_ATOMIC_FETCH_AND_ADD,
        compare_add=operation.operand,
        boundary=operation.no_carry_mask,
    )


__all__ = ["Link", "Piece", "receives_at_first"]
