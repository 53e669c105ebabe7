"""Messages that are being received: which holds which receive buffer, and how each completes.

A message takes its buffer when its first octet is accepted, from the queue pair's own receive
queue or from the shared one. It completes in message order, whenever its buffer was taken.
Source: dat.md sections 12.1 and 13.5.
"""

from typing import TYPE_CHECKING

from urds.verbs.engine.keys import AccessError
from urds.verbs.engine.numbers import (
    Acceptance,
    AsyncEventType,
    WCFlag,
    WCOpcode,
    WCStatus,
)
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.engine.pieces import scatter
from urds.verbs.engine.receives import ReceiveQueue, ReceiveTracker
from urds.verbs.engine.work import WC, RecvWR

if TYPE_CHECKING:
    from urds.verbs.engine.queue_pair import QueuePair

_IMMEDIATE = int(PacketFlag.IMMEDIATE)
_INVALIDATE = int(PacketFlag.INVALIDATE)
_SOLICITED = int(PacketFlag.SOLICITED)


class IncomingMessages:
    """The receives of one connected queue pair that have been taken and not yet completed."""

    __slots__ = ("_held", "_qp", "_queue", "_shared", "_taken", "_taken_up_to", "_tracker")

    def __init__(self, qp: "QueuePair", queue: ReceiveQueue, *, shared: bool) -> None:
        self._qp = qp
        self._queue = queue
        self._shared = shared
        self._tracker: ReceiveTracker = qp.tracker
        # Taken receives by message number; the numbers may have gaps with BY_ARRIVAL only.
        self._taken: dict[int, RecvWR] = {}
        self._taken_up_to = 0  # without gaps: the highest message that has a receive
        self._held: list[tuple[int, WC, bool]] = []  # no deque: see SendQueue

    def take(self, msn: int, acceptance: Acceptance) -> bool:
        """Give message `msn` a receive if it has none; return whether it has one now.

        The receives of a queue pair's own queue belong to the next messages in posting order, so
        those of messages below are taken as well. All that are needed, or none.
        """
        if msn in self._taken:
            return True
        if msn == self._taken_up_to + 1:
            wr = self._queue.take()  # the usual case
            if wr is None:
                return False
            self._taken[msn], self._taken_up_to = wr, msn
            if self._shared:
                self._tracker.allocate(msn)
            return True
        if self._shared and acceptance is Acceptance.BY_ARRIVAL:
            wanted = range(msn, msn + 1)
        else:
            wanted = range(self._taken_up_to + 1, msn + 1)
        if len(self._queue) < len(wanted):
            return False
        for number in wanted:
            wr = self._queue.take()
            assert wr is not None, "the queue has as many as it said"
            self._taken[number] = wr
            self._taken_up_to = max(self._taken_up_to, number)
            if self._shared:
                self._tracker.allocate(number)
        return True

    def place(self, packet: Packet, msn: int) -> None:
        """Copy the octets of a SEND packet into the receive of its message.

        Raises AccessError: LOC_LEN_ERR for a receive that is too small, LOC_PROT_ERR.
        """
        qp = self._qp
        pd = qp.pd if qp.srq is None or qp.srq.pd is None else qp.srq.pd
        scatter(qp.keys, pd, self._taken[msn].sg, packet.offset, packet.payload)

    def finish(self, packet: Packet, msn: int, message_bytes: int) -> None:
        """Complete the receive of message `msn`: its last packet and all before it are here."""
        bits = int(packet.flags)
        wc = WC(
            self._taken.pop(msn).wr_id,
            WCStatus.SUCCESS,
            WCOpcode.RECV if packet.kind is PacketKind.SEND else WCOpcode.RECV_RDMA_WITH_IMM,
            byte_len=message_bytes,
            qp_num=self._qp.qpn,
            src_qp=self._qp.attr.dest_qp_num,
            imm_data=packet.immediate,
            wc_flags=_wc_flags(bits),
        )
        self._held.append((msn, wc, bool(bits & _SOLICITED)))
        if not self._qp.hold_receives:
            self.release()

    def release(self) -> None:
        """Deliver the completions that were held back."""
        while self._held:
            msn, wc, solicited = self._held.pop(0)
            self._tracker.complete(msn)
            self._qp.recv_cq.push(wc, solicited=solicited)

    def fail(self, msn: int, fault: AccessError) -> None:
        """Complete the receive of message `msn`, the next in order, with a local error."""
        self.release()
        wr = self._taken.pop(msn, None)
        if wr is None:
            return  # a callback of the completion queue has ended the queue pair: it was flushed
        self._tracker.complete(msn)
        self._qp.recv_cq.push(WC(wr.wr_id, fault.status, qp_num=self._qp.qpn))

    def flush(self) -> None:
        """Complete all receives as flushed, in message order; those of a shared queue stay there.

        Messages that are complete and only held back are delivered first.
        """
        self.release()
        self._tracker.flush()
        for msn in sorted(self._taken):
            self._push_flushed(self._taken.pop(msn))
        while not self._shared and (wr := self._queue.take()) is not None:
            self._push_flushed(wr)
        if self._shared:
            self._qp.emit_event(AsyncEventType.QP_LAST_WQE_REACHED)

    def flush_one(self, wr: RecvWR) -> None:
        """Complete a receive that was posted after the end."""
        self._push_flushed(wr)

    def forget(self) -> None:
        """Drop everything without a completion: the queue pair is reset."""
        self._taken.clear()
        self._held.clear()
        self._taken_up_to = 0
        self._tracker.reset()
        while not self._shared and self._queue.take() is not None:
            pass

    def _push_flushed(self, wr: RecvWR) -> None:
        self._qp.recv_cq.push(
            WC(wr.wr_id, WCStatus.WR_FLUSH_ERR, WCOpcode.RECV, qp_num=self._qp.qpn)
        )


def _wc_flags(bits: int) -> WCFlag:
    if bits & _IMMEDIATE:
        return WCFlag.WITH_IMM
    if bits & _INVALIDATE:
        return WCFlag.WITH_INV
    return _NO_FLAGS


_NO_FLAGS = WCFlag(0)
