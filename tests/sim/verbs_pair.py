"""Two engines and a link between them that loses, repeats and reorders packets, in virtual time.

Packets travel as bytes, so that what arrives is what a provider would deliver: a view of the
sender's memory cannot be shared by accident.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim.plain_headers import emit_plain, parse_plain
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.keys import KeyTable, Region
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPAttrMask,
    QPState,
    QPType,
    ReceiveOrder,
    SendFlag,
    WROpcode,
)
from urds.verbs.engine.packets import Packet, emit_packet, parse_packet
from urds.verbs.engine.queue_pair import LinkTraits, QPAttr, QPCap, QueuePair
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.work import SGE, WC, AddressVector, RecvWR, SendWR

US = 1_000
MS = 1_000_000
S = 1_000_000_000
MTU_BYTES = 64
ALL_ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_ATOMIC
    | AccessFlag.MW_BIND
)
INIT = QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS
RTR = (
    QPAttrMask.STATE
    | QPAttrMask.AV
    | QPAttrMask.PATH_MTU
    | QPAttrMask.DEST_QPN
    | QPAttrMask.RQ_PSN
    | QPAttrMask.MAX_DEST_RD_ATOMIC
    | QPAttrMask.MIN_RNR_TIMER
)
RTS = (
    QPAttrMask.STATE
    | QPAttrMask.SQ_PSN
    | QPAttrMask.MAX_QP_RD_ATOMIC
    | QPAttrMask.RETRY_CNT
    | QPAttrMask.RNR_RETRY
    | QPAttrMask.TIMEOUT
)


@dataclass
class Side:
    """One queue pair with what it needs: a key table, two queues, one region over `memory`."""

    qpn: int
    link: LinkTraits
    memory_bytes: int = 4096
    receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER
    cap: QPCap = field(default_factory=lambda: QPCap(256, 256, 8, 8, 256))
    srq: SharedReceiveQueue | None = None
    sq_sig_all: bool = False
    qp_type: QPType = QPType.RC
    access: AccessFlag = ALL_ACCESS
    address: int = 0x10000

    def __post_init__(self) -> None:
        self.pd = object()
        self.keys = KeyTable()
        self.memory = bytearray(self.memory_bytes)
        self.region: Region = self.keys.register(
            self.pd, memoryview(self.memory), self.address, self.access
        )
        self.send_cq = CompletionQueue(4096)
        self.recv_cq = CompletionQueue(4096)
        if self.srq is not None and self.srq.pd is None:
            self.srq.pd = self.pd
        self.qp = QueuePair(
            qpn=self.qpn,
            qp_type=self.qp_type,
            pd=self.pd,
            send_cq=self.send_cq,
            recv_cq=self.recv_cq,
            srq=self.srq,
            cap=self.cap,
            sq_sig_all=self.sq_sig_all,
            keys=self.keys,
            link=self.link,
            receive_order=self.receive_order,
        )

    def lead(self, peer_qpn: int, now_ns: int = 0, **changes: object) -> None:
        """Lead the queue pair to RTS."""
        attr = QPAttr(
            qp_access_flags=ALL_ACCESS,
            dest_qp_num=peer_qpn,
            rq_psn=100,
            sq_psn=100,
            max_rd_atomic=16,
            max_dest_rd_atomic=16,
            min_rnr_timer=12,
            timeout=14,
            retry_cnt=7,
            rnr_retry=7,
            ah_attr=AddressVector(bytes(16)),
        )
        for name, value in changes.items():
            setattr(attr, name, value)
        for state, mask in ((QPState.INIT, INIT), (QPState.RTR, RTR), (QPState.RTS, RTS)):
            attr.qp_state = state
            self.qp.modify(attr, mask, now_ns)

    def sge(self, offset: int, length: int) -> SGE:
        return SGE(self.address + offset, length, self.region.lkey)

    def send(self, wr_id: int, offset: int = 0, length: int = 0, **fields: object) -> None:
        """Post a send request over `memory[offset:offset + length]`."""
        wr = SendWR(wr_id, WROpcode.SEND, [self.sge(offset, length)] if length else [])
        wr.send_flags = SendFlag.SIGNALED
        for name, value in fields.items():
            setattr(wr, name, value)
        self.qp.post_send(wr, 0)

    def remote(self, wr_id: int, opcode: WROpcode, peer: "Side", **fields: object) -> None:
        """Post a one-sided request; `at` is the offset in the peer's memory."""
        at = fields.pop("at", 0)
        assert isinstance(at, int)
        self.send(
            wr_id,
            opcode=opcode,
            rkey=peer.region.rkey,
            remote_addr=peer.address + at,
            **fields,
        )

    def receive(self, wr_id: int, offset: int = 0, length: int = 0) -> None:
        """Post a receive into `memory[offset:offset + length]`, to the shared queue if any."""
        wr = RecvWR(wr_id, [self.sge(offset, length)] if length else [])
        if self.srq is not None:
            self.srq.post(wr)
        else:
            self.qp.post_recv(wr, 0)

    def sent(self) -> list[WC]:
        return self.send_cq.poll(1 << 20)

    def received(self) -> list[WC]:
        return self.recv_cq.poll(1 << 20)


OnPacket = Callable[[Packet, Side], list[int] | None]


class Pair:
    """Two sides and the link. `step` moves virtual time to the next thing that happens."""

    def __init__(
        self,
        *,
        seed: int = 0,
        mtu_bytes: int = MTU_BYTES,
        lossless: bool = False,
        names_places: bool = True,
        loss: float = 0.0,
        duplicate: float = 0.0,
        jitter_ns: int = 0,
        delay_ns: int = 10 * US,
        is_led: bool = True,
        a: dict[str, object] | None = None,
        b: dict[str, object] | None = None,
        attr: dict[str, object] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.link = LinkTraits(mtu_bytes, lossless, names_places=names_places)
        self._parse = parse_packet if names_places else parse_plain
        self.loss, self.duplicate = loss, duplicate
        self.jitter_ns, self.delay_ns = jitter_ns, delay_ns
        self.now_ns = 0
        self.a = Side(0xA, self.link, **(a or {}))
        self.b = Side(0xB, self.link, **(b or {}))
        # What happens to a packet: delays of its copies, an empty list drops it, None: chance.
        self.on_packet: OnPacket = lambda packet, source: None
        self.log: list[tuple[int, str, Packet]] = []
        self._air: list[tuple[int, int, Side, bytes]] = []
        self._count = 0
        if is_led:
            self.a.lead(0xB, **(attr or {}))
            self.b.lead(0xA, **(attr or {}))

    def other(self, side: Side) -> Side:
        return self.b if side is self.a else self.a

    def transmit(self) -> None:
        """Put what both sides have to say on the link."""
        for side in (self.a, self.b):
            while (packet := side.qp.poll_transmit(self.now_ns)) is not None:
                data = self._emit(packet)
                parsed = self._parse(data)
                self.log.append((self.now_ns, "ab"[side is self.b], parsed))
                delays = self.on_packet(parsed, side)
                for delay_ns in self._rng() if delays is None else delays:
                    self._count += 1
                    entry = (self.now_ns + delay_ns, self._count, self.other(side), data)
                    heapq.heappush(self._air, entry)

    def _emit(self, packet: Packet) -> bytes:
        return b"".join(emit_packet(packet)) if self.link.names_places else emit_plain(packet)

    def _rng(self) -> list[int]:
        copies = 1 + (self.random.random() < self.duplicate)
        return [
            self.delay_ns + (self.random.randrange(self.jitter_ns) if self.jitter_ns else 0)
            for _ in range(copies)
            if self.random.random() >= self.loss
        ]

    def step(self) -> bool:
        """Let the next thing happen; False when nothing will."""
        self.transmit()
        times = [self._air[0][0]] if self._air else []
        for side in (self.a, self.b):
            if (due_ns := side.qp.poll_timeout()) is not None:
                times.append(due_ns)
        if not times:
            return False
        self.now_ns = max(self.now_ns, min(times))
        while self._air and self._air[0][0] <= self.now_ns:
            _, _, target, data = heapq.heappop(self._air)
            target.qp.receive_packet(self._parse(data), self.now_ns)
        for side in (self.a, self.b):
            due_ns = side.qp.poll_timeout()
            if due_ns is not None and due_ns <= self.now_ns:
                side.qp.handle_timeout(self.now_ns)
        return True

    def run(self, *, until_ns: int | None = None, steps_max: int = 100_000) -> None:
        """Step until nothing happens any more, or until a time."""
        for _ in range(steps_max):
            if until_ns is not None and self.now_ns >= until_ns:
                return
            if not self.step():
                return
        raise AssertionError(f"still busy after {steps_max} steps")
