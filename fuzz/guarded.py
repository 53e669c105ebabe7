"""A queue pair of the engine whose memory is fenced: what the machines of `verbs_machines` share.

Regions lie inside longer memory, with guards before, between and behind. One region is for every
peer, one has no remote rights, one belongs to another protection domain: whatever a peer sends,
only the first may change or be read, and guards never.
"""

import time
from collections import Counter
from collections.abc import Iterator

from urds.verbs.engine.completions import CompletionQueue, Outbox
from urds.verbs.engine.flight import WINDOW_PACKETS
from urds.verbs.engine.keys import KeyTable, Region
from urds.verbs.engine.numbers import (
    PSN_MASK,
    AccessFlag,
    QPAttrMask,
    QPState,
    QPType,
    ReceiveOrder,
    WROpcode,
)
from urds.verbs.engine.packets import Packet, PacketKind
from urds.verbs.engine.queue_pair import LinkTraits, QPAttr, QPCap, QueuePair
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.responder import AHEAD_MAX, ANSWERS_MAX
from urds.verbs.engine.work import SGE, AddressVector, RecvWR, SendWR

QPN, PEER_QPN, FIRST_PSN, QKEY = 9, 8, 100, 0x1234
MTU_BYTES = 64
ADDRESS = 0x10000
REGION_BYTES = 1024
GUARD = bytes([0xA5]) * 256
SECRET = bytes.fromhex("5a c3 96 0f 81 7e 2d b4 69 f0 1b e2 a7 3c d8 45")
RECEIVES, RECEIVE_BYTES, READS = 16, 96, 16
PACKET_S_MAX = 0.5  # of this thread's own time, under instrumentation as well
_ANSWERS_MAX = 20_000  # that one packet can cause: 256 retried reads of a whole region, and more
_ALL = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_ATOMIC
)
_INIT = QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT
_RTR = (
    QPAttrMask.AV
    | QPAttrMask.PATH_MTU
    | QPAttrMask.DEST_QPN
    | QPAttrMask.RQ_PSN
    | QPAttrMask.MAX_DEST_RD_ATOMIC
    | QPAttrMask.MIN_RNR_TIMER
)
_RTS = (
    QPAttrMask.SQ_PSN
    | QPAttrMask.MAX_QP_RD_ATOMIC
    | QPAttrMask.RETRY_CNT
    | QPAttrMask.RNR_RETRY
    | QPAttrMask.TIMEOUT
)
_MASKS = {
    (QPType.RC, QPState.INIT): _INIT | QPAttrMask.ACCESS_FLAGS,
    (QPType.RC, QPState.RTR): QPAttrMask.STATE | _RTR,
    (QPType.RC, QPState.RTS): QPAttrMask.STATE | _RTS,
    (QPType.UD, QPState.INIT): _INIT | QPAttrMask.QKEY,
    (QPType.UD, QPState.RTR): QPAttrMask.STATE,
    (QPType.UD, QPState.RTS): QPAttrMask.STATE | QPAttrMask.SQ_PSN,
}


class Guarded:
    """A queue pair in RTS, receives and requests posted, and what must hold for it."""

    def __init__(
        self,
        *,
        qp_type: QPType = QPType.RC,
        lossless: bool = False,
        receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER,
        shared: bool = False,
        completions_max: int = 64,
        mtu_bytes: int = MTU_BYTES,
    ) -> None:
        self.now_ns = 0
        others = SECRET * (REGION_BYTES // len(SECRET))
        self._memory = bytearray(
            GUARD + bytes(REGION_BYTES) + GUARD + others + GUARD + others + GUARD
        )
        self.keys, self.pd = KeyTable(), object()
        own = self._register(0, self.pd, _ALL)
        self.key = own.rkey
        self._register(1, self.pd, AccessFlag.LOCAL_WRITE)
        self._register(2, object(), _ALL)
        self.outbox = Outbox()
        self.cq = CompletionQueue(completions_max, outbox=self.outbox)
        self._srq = (
            SharedReceiveQueue(RECEIVES, 2, pd=self.pd, outbox=self.outbox) if shared else None
        )
        self.qp = QueuePair(
            qpn=QPN,
            qp_type=qp_type,
            pd=self.pd,
            send_cq=self.cq,
            recv_cq=self.cq,
            srq=self._srq,
            cap=QPCap(16, RECEIVES, 2, 2, 64),
            keys=self.keys,
            link=LinkTraits(mtu_bytes, lossless),
            receive_order=receive_order,
            outbox=self.outbox,
        )
        self._ends: Counter[int] = Counter()
        self._posted = 0
        self._lead(qp_type)

    def _register(self, index: int, pd: object, access: AccessFlag) -> Region:
        start = len(GUARD) + index * (len(GUARD) + REGION_BYTES)
        view = memoryview(self._memory)[start : start + REGION_BYTES]
        return self.keys.register(pd, view, ADDRESS + index * REGION_BYTES, access)

    def _lead(self, qp_type: QPType) -> None:
        attr = QPAttr(
            qp_access_flags=_ALL,
            dest_qp_num=PEER_QPN,
            rq_psn=FIRST_PSN,
            sq_psn=FIRST_PSN,
            max_rd_atomic=READS,
            max_dest_rd_atomic=READS,
            min_rnr_timer=12,
            timeout=14,
            retry_cnt=7,
            rnr_retry=7,
            qkey=QKEY,
            ah_attr=AddressVector(bytes(16)),
        )
        for state in (QPState.INIT, QPState.RTR, QPState.RTS):
            attr.qp_state = state
            self.qp.modify(attr, _MASKS[qp_type, state], self.now_ns)

    # -- the owner of the queue pair

    def post_receive(self) -> None:
        """Post a receive while there is room."""
        sge = SGE(ADDRESS + self._posted * 8 % 512, RECEIVE_BYTES, self.key)
        wr = RecvWR(self._next_id(), [sge])
        queue = self._srq or self.qp._queue  # the public post raises when it is full
        if len(queue) >= RECEIVES:
            return
        if self._srq is not None:
            self._srq.post(wr)
        else:
            self.qp.post_recv(wr, self.now_ns)

    def post_request(self, choice: int) -> None:
        """Post a request of an opcode while there is room."""
        opcode = tuple(WROpcode)[choice % 7]  # not those that need windows
        is_atomic = opcode in (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)
        length = 8 if is_atomic else 40 * (choice >> 3 & 7)
        wr = SendWR(0, opcode, [SGE(ADDRESS + 512, length, self.key)])
        wr.set_wr_rdma(0x500, 0x5000)
        if self.qp.qp_type is QPType.UD:
            if opcode not in (WROpcode.SEND, WROpcode.SEND_WITH_IMM) or length > MTU_BYTES:
                return
            wr.set_wr_ud(AddressVector(bytes(16)), PEER_QPN, QKEY)
        if self.qp.outstanding_requests < 16:
            wr.wr_id = self._next_id()
            self.qp.post_send(wr, self.now_ns)

    def _next_id(self) -> int:
        self._posted += 1
        return self._posted

    # -- the peer and time

    def receive(self, packet: Packet) -> None:
        """Receive a packet; the invariants are checked then."""
        began_s = time.thread_time()
        self.qp.receive_packet(packet, self.now_ns, AddressVector(bytes(16), 7))
        spent_s = time.thread_time() - began_s
        assert spent_s < PACKET_S_MAX, f"one packet took {spent_s:.1f} s: {packet}"
        self.check()

    def near_psn(self, packet: Packet) -> int:
        """Return a number from 32 before to 479 beyond the one that is expected."""
        requester, responder = self.qp._requester, self.qp._responder
        expected = 0 if responder is None else responder._expected
        if packet.kind >= PacketKind.READ_RESPONSE:
            expected = requester._flight.oldest(requester._next_psn)
        return expected - 32 + packet.psn % 512 & PSN_MASK

    def answers(self) -> Iterator[Packet]:
        """Yield what the queue pair sends now, one packet at a time."""
        count = 0
        while (packet := self.qp.poll_transmit(self.now_ns)) is not None:
            assert SECRET not in bytes(packet.payload), f"a read reached too far: {packet}"
            yield packet
            count += 1
            assert count < _ANSWERS_MAX, "no end of answers"

    def say_all(self) -> None:
        """Let the queue pair send everything, to no peer."""
        for _ in self.answers():
            pass

    def pass_time(self) -> None:
        """Let the clock run until something is due."""
        due_ns = self.qp.poll_timeout()
        if due_ns is not None:
            self.now_ns = max(self.now_ns, due_ns)
            self.qp.handle_timeout(self.now_ns)

    def take_completions(self) -> None:
        """Take everything off the completion queue: each request ends once."""
        self._ends.update(wc.wr_id for wc in self.cq.poll(len(self.cq)))
        assert all(count == 1 for count in self._ends.values()), self._ends
        assert not self._ends or max(self._ends) <= self._posted
        self.outbox.take_events()

    # -- invariants

    def check(self) -> None:
        """Check queues and counts; the bounds are those that the engine's modules state."""
        count, span = self.qp.recv_query()
        assert 0 <= count <= span or (count, span) == (0, 0)
        assert len(self.cq) <= self.cq.capacity
        qp, responder = self.qp, self.qp._responder  # no public access to their contents
        assert len(qp._incoming._taken) <= AHEAD_MAX + RECEIVES + 1
        assert len(qp._requester._flight) <= WINDOW_PACKETS
        if responder is not None:
            assert len(responder._ahead) <= AHEAD_MAX
            assert len(responder._answers) <= ANSWERS_MAX + AHEAD_MAX
            assert responder._reads_open <= ANSWERS_MAX + AHEAD_MAX

    def check_end(self) -> None:
        """Check that nothing was written outside the region for every peer, nor kept."""
        responder = self.qp._responder
        if responder is not None:
            assert all(psn > responder._expected for psn in responder._ahead)
        part = len(GUARD) + REGION_BYTES
        for index in range(4):
            assert self._memory[index * part :].startswith(GUARD), f"guard {index}"
        for index in (1, 2):
            start = index * part + len(GUARD)
            found = self._memory[start : start + REGION_BYTES]
            assert found == SECRET * (REGION_BYTES // len(SECRET)), f"region {index}"
