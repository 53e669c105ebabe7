"""Random calls and bytes for a pair of devices, each of which exists in both engines.

Mostly right ones: connected queue pairs that post requests within the rules, and packets that
arrive in order. The rest breaks a rule: wrong keys, sizes, states and masks; packets that are
repeated, dropped, changed or made up.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tests.parity.verbs_nodes import (
    ALL_ACCESS,
    BASE,
    MEMORY_BYTES,
    MTU_BYTES,
    STEPS,
    Both,
    Node,
    Pair,
    Registered,
)
from urds.verbs.engine.attributes import QPAttr
from urds.verbs.engine.contract import EngineFactory
from urds.verbs.engine.keys import WindowBinding
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    WROpcode,
)
from urds.verbs.engine.packets import (
    PACKET_FLAGS,
    Packet,
    PacketKind,
    emit_packet,
    parse_packet,
)
from urds.verbs.engine.work import SGE, AddressVector, RecvWR, SendWR

QKEY: Final = 0x1234
US: Final = 1_000
SIZES: Final = (0, 1, 8, 8, 8, 17, 64, 64, 65, 128, 130, 200, 640)
SENDS: Final = (WROpcode.SEND, WROpcode.SEND, WROpcode.SEND_WITH_IMM, WROpcode.SEND_WITH_INV)
SOME_MASKS: Final = [1 << bit for bit in range(22)]
ATOMICS: Final = (
    WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD,
    WROpcode.MASKED_ATOMIC_CMP_AND_SWP, WROpcode.MASKED_ATOMIC_FETCH_AND_ADD,
)  # fmt: skip


class Records:
    """Makes records of one request: the dataclasses, and the compiled ones where they are tried."""

    def __init__(self, rng: random.Random, native: Any) -> None:
        self._rng, self._native = rng, native

    def pair(self, wr: SendWR | RecvWR) -> Both:
        """Return a request for both sides."""
        if self._rng.random() < 0.5:
            return wr, wr
        native = self._native
        sg = [native.SGE(one.addr, one.length, one.lkey) if fits(one) else one for one in wr.sg]
        if isinstance(wr, RecvWR):
            return wr, native.RecvWR(wr.wr_id, sg, num_sge=wr.num_sge)
        fields = {name: getattr(wr, name) for name in wr.__dataclass_fields__}
        return wr, native.SendWR(**(fields | {"sg": sg}))


def fits(piece: SGE) -> bool:
    """Return whether a compiled record has room for a piece."""
    return 0 <= piece.addr < 1 << 64 and 0 <= piece.lkey < 1 << 32


class RandomWorld:
    """Two devices and the packets between them."""

    def __init__(self, seed: int, factory: EngineFactory, records: Any) -> None:
        self.rng = rng = random.Random(seed)
        self.now_ns = 1_000
        checksum = rng.random() < 0.3
        self.nodes = [Node(factory, bytes([index + 1] * 16), checksum) for index in range(2)]
        self.air: deque[tuple[Node, Node, bytes]] = deque()
        self.records = Records(rng, records)
        self._wr_ids = 0
        for node in self.nodes:
            self._fill(node)
        self.connect()

    # -- the beginning

    def _fill(self, node: Node) -> None:
        rng = self.rng
        for capacity in (rng.choice([4, 64]), 64, 64):
            node.completion_queue(capacity, has_sink=rng.random() < 0.3)
        if rng.random() < 0.7:
            node.shared_queue(rng.choice([4, 16]), 2, node.pd)
        for access in (ALL_ACCESS, rng.choice([*AccessFlag, 0, 3, 7, 31, 32])):
            node.register(MEMORY_BYTES, int(access))
        for region in node.regions:
            data = rng.randbytes(MEMORY_BYTES)
            for memory in region.memory:
                memory[:] = data
        for kind in (1, 2):
            if made := node.make("window", lambda side: node.engines[side].window(node.pd, kind)):  # noqa: B023 - called at once
                node.windows.append(made)

    def connect(self) -> None:
        """Make a connected pair of queue pairs, or two of datagrams."""
        rng = self.rng
        kind = QPType.UD if rng.random() < 0.2 else QPType.RC
        made = []
        for node in self.nodes:
            srq = rng.choice(node.srqs) if node.srqs and rng.random() < 0.5 else None
            pd = node.inner if rng.random() < 0.2 else node.pd
            signals = rng.random() < 0.3
            pair = node.queue_pair(
                kind, rng.choice(node.cqs), rng.choice(node.cqs), srq, pd=pd, sq_sig_all=signals
            )
            made.append(pair)
        made[0].peer, made[1].peer = made[1], made[0]
        timeout = rng.choice([0, 0, 13, 14])
        for node, pair in zip(self.nodes, made, strict=True):
            self.lead(node, pair, timeout)
            self.receives(node, pair, rng.randrange(6))

    def other(self, node: Node) -> Node:
        """Return the other device."""
        return self.nodes[node is self.nodes[0]]

    def lead(self, node: Node, pair: Pair, timeout: int) -> None:
        """Lead a queue pair from RESET to RTS."""
        rng, peer = self.rng, pair.peer
        if peer is None:
            return
        attr = QPAttr(
            qp_access_flags=rng.choice([ALL_ACCESS, ALL_ACCESS, AccessFlag(3)]),
            path_mtu=rng.choice([None, None, 1]),
            dest_qp_num=peer.qpn if rng.random() < 0.95 else 0x800,
            rq_psn=(peer.qpn * 0xFF_FFFD) & 0xFF_FFFF,
            sq_psn=(pair.qpn * 0xFF_FFFD) & 0xFF_FFFF,
            max_rd_atomic=rng.choice([0, 1, 4, 16]),
            max_dest_rd_atomic=rng.choice([1, 16, 16]),
            min_rnr_timer=rng.choice([1, 6, 12]),
            timeout=timeout,
            retry_cnt=rng.choice([0, 1, 7]),
            rnr_retry=rng.choice([0, 1, 7, 7]),
            qkey=QKEY,
            ah_attr=self.other(node).vector,
        )
        steps = STEPS[pair.kind]
        for state, mask in steps[: 2 if rng.random() < 0.05 else 3]:
            attr.qp_state = state
            self.modify(node, pair, attr, mask | QPAttrMask.STATE)

    def modify(self, node: Node, pair: Pair, attr: QPAttr, mask: int) -> None:
        """Modify a queue pair of both."""
        given: Any = mask
        node.both(
            f"modify {pair.qpn} to {attr.qp_state}, mask {mask:#x}",
            lambda side: pair.pair[side].modify(replace(attr), given, self.now_ns),
        )

    # -- requests

    def piece(self, node: Node, length: int, region: Registered | None = None) -> SGE:
        """Return a piece of the memory, rarely one that cannot be."""
        rng = self.rng
        found = rng.choice(node.regions) if region is None else region
        named = found.pair[0]
        lkey, address = named.lkey, named.address
        room = max(0, named.length - length)
        address += rng.randrange(room // 8 + 1) * 8
        draw = rng.random()
        if draw < 0.01:
            lkey ^= rng.choice([1, 256, 1 << 30])
        elif draw < 0.02:
            address += rng.choice([MEMORY_BYTES, -1 << 16, 1 << 64])
        return SGE(address, length, lkey)

    def pieces(self, node: Node, length: int) -> list[SGE]:
        """Return pieces of a total length."""
        rng = self.rng
        if length == 0:
            return [] if rng.random() < 0.7 else [self.piece(node, 0)]
        if length < 2 or rng.random() < 0.7:
            return [self.piece(node, length)]
        cut = rng.randrange(length + 1)
        return [self.piece(node, cut), self.piece(node, length - cut)]

    def receives(self, node: Node, pair: Pair, count: int = 1) -> None:
        """Post receives."""
        rng = self.rng
        for _ in range(count):
            self._wr_ids += 1
            length = rng.choice([8, 200, 700, 700, 700, 700, 700])
            pieces = self.pieces(node, length)
            if rng.random() < 0.01:
                pieces = [*pieces, *(self.piece(node, 8) for _ in range(3))]
            wr = RecvWR(self._wr_ids, pieces, num_sge=5 if rng.random() < 0.01 else None)
            given = self.records.pair(wr)
            is_shared = pair.srq is not None and rng.random() < 0.97
            if is_shared and (srq := pair.srq) is not None:
                node.both("post to srq", lambda side: srq[side].post(given[side]))  # noqa: B023 - called at once
            else:
                node.both(
                    f"post_recv {wr}",
                    lambda side: pair.pair[side].post_recv(given[side], self.now_ns),  # noqa: B023 - called at once
                )

    def post(self, node: Node, pair: Pair) -> None:
        """Post a request."""
        wr = self.request(node, pair)
        given = self.records.pair(wr)

        def call(side: int) -> None:
            one = given[side]
            if one.window is not None:
                one = type(one)(**{name: getattr(one, name) for name in wr.__dataclass_fields__})
                one.window = one.window[side]
                binding = one.bind
                if isinstance(binding, WindowBinding):
                    region: Any = binding.region
                    one.bind = replace(binding, region=region.pair[side])
            pair.pair[side].post_send(one, self.now_ns)

        node.note(WROpcode(wr.opcode).name if wr.opcode in list(WROpcode) else "no opcode")
        node.both(f"post_send {wr}", call)

    def request(self, node: Node, pair: Pair) -> SendWR:
        """Return a request, mostly one that is right."""
        rng, peer = self.rng, self.other(node)
        self._wr_ids += 1
        wr = SendWR(self._wr_ids)
        flags = rng.choice([2, 2, 2, 0, 6, 3, 10])
        wr.send_flags = SendFlag(flags)
        wr.imm_data = rng.randrange(1 << 32)
        if pair.kind is QPType.UD and rng.random() < 0.95:
            return self._datagram(node, wr)
        draw = rng.random()
        length = rng.choice(SIZES)
        if draw < 0.4:
            wr.opcode = rng.choice(SENDS)
            wr.invalidate_rkey = rng.choice(peer.windows)[0].rkey
        elif draw < 0.6:
            wr.opcode = rng.choice([WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM])
        elif draw < 0.75:
            wr.opcode = WROpcode.RDMA_READ
        elif draw < 0.88:
            wr.opcode, length = rng.choice(ATOMICS), 8
            wr.compare_add, wr.swap = rng.choice([0, 1, 1 << 63]), rng.getrandbits(64)
            wr.compare_mask, wr.swap_mask = rng.choice([0, 0xFF, (1 << 64) - 1]), 0xFFFF
            wr.boundary = rng.choice([0, 1 << 7, 1 << 63])
        elif draw < 0.94:
            self._bind(node, wr)
            length = 0
        elif draw < 0.98:
            wr.opcode, wr.invalidate_rkey = WROpcode.LOCAL_INV, rng.choice(node.windows)[0].rkey
            length = 0
        self._aim(peer, wr, length)
        if (wr.opcode in SENDS and rng.random() < 0.1) or rng.random() < 0.003:
            data = rng.randbytes(length)
            wr.data = rng.choice([data, memoryview(data)])
            if rng.random() < 0.1:
                wrong: Any = rng.choice([bytearray(data), memoryview(bytes(8)).cast("H")])
                wr.data = wrong
        else:
            wr.sg = self.pieces(node, length)
        self._spoil(node, wr)
        return wr

    def _datagram(self, node: Node, wr: SendWR) -> SendWR:
        rng, peer = self.rng, self.other(node)
        others = [one for one in peer.pairs if one.kind is QPType.UD]
        wr.opcode = rng.choice([WROpcode.SEND, WROpcode.SEND_WITH_IMM])
        wr.ah = peer.vector if rng.random() < 0.98 else None
        wr.remote_qpn = rng.choice(others).qpn if others else 7
        wr.remote_qkey = rng.choice([QKEY, QKEY, 1 << 31, 5])
        wr.sg = self.pieces(node, rng.choice([0, 1, 24, 64, 64, 65]))
        return wr

    def _bind(self, node: Node, wr: SendWR) -> None:
        rng = self.rng
        region = rng.choice(node.regions)
        wr.opcode = WROpcode.BIND_MW
        window: Any = rng.choice(node.windows)
        access = rng.choice([AccessFlag(0), AccessFlag(4), AccessFlag(14), AccessFlag(8)])
        named = region.pair[0]
        length = rng.choice([named.length, named.length, 64, 0, named.length + 1])
        chosen: Any = region
        wr.window = window if rng.random() < 0.97 else None
        wr.bind = WindowBinding(chosen, named.address, length, access)

    def _aim(self, peer: Node, wr: SendWR, length: int) -> None:
        rng = self.rng
        named = rng.choice(peer.regions).pair[0]
        wr.rkey = named.rkey if rng.random() < 0.9 else rng.choice(peer.windows)[0].rkey
        room = max(0, named.length - length)
        wr.remote_addr = named.address + rng.randrange(room // 8 + 1) * 8
        draw = rng.random()
        if draw < 0.01:
            wr.rkey ^= rng.choice([1, 256])
        elif draw < 0.02:
            wr.remote_addr = rng.choice([0, (1 << 64) - 1, wr.remote_addr + MEMORY_BYTES, 3])

    def _spoil(self, node: Node, wr: SendWR) -> None:
        rng = self.rng
        if rng.random() > 0.03:
            return
        choice = rng.randrange(7)
        wrong: Any
        if choice == 0:
            wr.sg = [*wr.sg, *(self.piece(node, 8) for _ in range(4))]
        elif choice == 1:
            wr.num_sge = 7
        elif choice == 2:
            wr.sg = [SGE(BASE, -1, node.regions[0].pair[0].lkey)]
        elif choice == 3:
            wrong = rng.choice([77, 10, -1, 14])
            wr.opcode = wrong
        elif choice == 4:
            wr.sg = [SGE(BASE, (1 << 31) + 1, 256)]
        elif choice == 5:
            wr.compare_add, wr.swap = rng.choice([(-1, 0), (1 << 64, 0), (0, -5), (0, 1 << 70)])
        else:
            wr.send_flags, wr.sg = SendFlag.INLINE, [SGE(BASE, 300, node.regions[0].pair[0].lkey)]

    # -- packets

    def transmit(self, node: Node, most: int) -> int:
        """Put packets on their way; return how many."""
        count = 0
        while count < most and (found := node.transmit(self.now_ns)) is not None:
            vector, data = found
            target = next(one for one in self.nodes if one.gid == vector.dgid)
            self.air.append((node, target, data))
            count += 1
        return count

    def deliver(self, most: int) -> None:
        """Deliver packets, mostly as they were sent."""
        rng = self.rng
        for _ in range(min(most, len(self.air))):
            source, target, data = self.air.popleft()
            draw = rng.random()
            if draw < 0.01:
                continue
            if draw < 0.02:
                self.air.append((source, target, data))
            elif draw < 0.03:
                data = self.changed(data, checksum=source.checksum)
            self.arrive(target, data, source.vector)

    def arrive(self, target: Node, data: bytes, source: AddressVector) -> None:
        """Deliver bytes."""
        target.note("packet")
        target.both(
            f"receive {data.hex()}",
            lambda side: target.engines[side].receive(data, source, self.now_ns),
        )

    def changed(self, data: bytes, *, checksum: bool) -> bytes:
        """Return a packet with a field or a bit changed."""
        rng = self.rng
        if rng.random() < 0.3:
            broken = bytearray(data)
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            return bytes(broken)
        packet = parse_packet(data, checksum=checksum)
        name = rng.choice(["psn", "flags", "msn", "offset", "address", "rkey", "syndrome", "qpn"])
        if name == "psn":
            packet.psn = packet.psn + rng.choice([-2, -1, 1, 3, 1 << 23]) & 0xFF_FFFF
        elif name == "flags":
            bits = int(packet.flags) ^ (1 << rng.randrange(6))
            packet.flags = PACKET_FLAGS[bits]
        elif name == "msn":
            packet.msn = packet.msn + rng.choice([-1, 1]) & 0xFFFF_FFFF
        elif name == "offset":
            packet.offset = packet.offset + rng.choice([-MTU_BYTES, 1, MTU_BYTES]) & 0xFFFF_FFFF
        elif name == "address":
            packet.address = packet.address + rng.choice([-8, 1, 8, 1 << 40]) & (1 << 64) - 1
        elif name == "rkey":
            packet.rkey ^= 1
        elif name == "syndrome":
            packet.syndrome = rng.choice([0, 0x1F, 0x21, 0x3F, 0x45, 0x60, 0x61, 0x62, 0x63, 0xFF])
        else:
            packet.target_qpn = rng.choice([0, 1, 99, packet.target_qpn ^ 1])
        return b"".join(emit_packet(packet, checksum=checksum))

    def invent(self) -> None:
        """Deliver a packet that no engine sent, or bytes that are none."""
        rng = self.rng
        target = rng.choice(self.nodes)
        source = self.other(target)
        vector = source.vector if rng.random() < 0.95 else target.vector
        if rng.random() < 0.2 or not target.pairs:
            self.arrive(target, rng.randbytes(rng.randrange(60)), vector)
            return
        pair = rng.choice(target.pairs)
        qp = pair.pair[0]
        kind = rng.choice(list(PacketKind))
        flags = rng.choice([1, 3, 3, 11, 2, 0, 19, 35, 67, 65, 127])
        if kind is not PacketKind.WRITE:
            flags &= 63
        start = rng.choice([qp.attr.rq_psn, qp.attr.sq_psn])
        region = rng.choice(target.regions).pair[0]
        carries = kind in (
            PacketKind.SEND, PacketKind.WRITE, PacketKind.READ_RESPONSE, PacketKind.DATAGRAM,
        )  # fmt: skip
        count = rng.choice([0, 8, 64, 65, 200]) if carries and not flags & 64 else 0
        packet = Packet(
            kind,
            pair.qpn,
            start + rng.randrange(-1, 6) & 0xFF_FFFF,
            PACKET_FLAGS[flags],
            msn=rng.choice([0, 1, 2, 3]),
            offset=rng.choice([0, 0, 64]),
            length=rng.choice([0, 8, 64, 300, 1 << 31, (1 << 31) + 1]),
            address=region.address + rng.choice([0, 8, 4, MEMORY_BYTES]) & (1 << 64) - 1,
            rkey=region.rkey,
            immediate=rng.choice(target.windows)[0].rkey,
            compare_add=rng.getrandbits(64),
            swap=rng.getrandbits(64),
            compare_mask=rng.getrandbits(64),
            swap_mask=rng.getrandbits(64),
            boundary=rng.getrandbits(64),
            syndrome=rng.choice([0, 0x1F, 0x1F, 0x22, 0x60, 0x61, 0x62, 0x63]),
            source_qpn=pair.qpn,
            qkey=rng.choice([QKEY, 1]),
            payload=rng.randbytes(count),
        )
        data = b"".join(emit_packet(packet, checksum=target.checksum))
        self.arrive(target, data, vector)

    # -- what else may happen

    def pass_time(self) -> None:
        """Let time pass, mostly up to the next timer."""
        dues = [node.both("poll_timeout", _due(node)) for node in self.nodes]
        known = [due_ns for due_ns in dues if due_ns is not None]
        step_ns = self.rng.choice([0, 1, 10 * US, 1000 * US])
        self.now_ns = max(self.now_ns, min(known, default=self.now_ns)) + step_ns
        for node in self.nodes:
            node.both("timeout", _timeout(node, self.now_ns))

    def change(self) -> None:
        """Change the state of a queue pair, or try to."""
        rng = self.rng
        node = rng.choice(self.nodes)
        if not node.pairs:
            return
        pair = rng.choice(node.pairs)
        draw = rng.random()
        if draw < 0.25:
            state = rng.choice([QPState.ERR, QPState.RESET, QPState.SQD, QPState.SQD])
            self.modify(node, pair, QPAttr(qp_state=state), QPAttrMask.STATE)
        elif draw < 0.55 and pair.state in (QPState.SQD, QPState.SQE):
            self.modify(node, pair, QPAttr(qp_state=QPState.RTS), QPAttrMask.STATE)
        elif draw < 0.55 and pair.state is QPState.RTR:
            state, mask = STEPS[pair.kind][2]
            self.modify(node, pair, replace(pair.pair[0].attr, qp_state=state), mask | 1)
        elif draw < 0.6 and pair.state is QPState.RESET:
            self.lead(node, pair, 0)
        elif draw < 0.65:
            node.both("enter_error", lambda side: pair.pair[side].enter_error())
        elif draw < 0.7:
            node.close(pair)
            return
        else:
            self._modify_at_random(node, pair)

    def _modify_at_random(self, node: Node, pair: Pair) -> None:
        rng = self.rng
        attr = QPAttr(
            qp_state=rng.choice(list(QPState)),
            cur_qp_state=rng.choice([pair.state, QPState.RTS]),
            qp_access_flags=ALL_ACCESS,
            path_mtu=rng.choice([None, 1, 5, 6]),
            dest_qp_num=rng.choice([17, 1 << 24]),
            rq_psn=rng.choice([0, -1]),
            max_rd_atomic=rng.choice([1, 129]),
            timeout=rng.choice([0, 14, 32]),
            retry_cnt=rng.choice([1, 8]),
            rnr_retry=rng.choice([0, 7, 9]),
            ah_attr=self.other(node).vector,
        )
        steps = [mask for _, mask in STEPS[pair.kind]]
        mask = int(rng.choice([QPAttrMask(0), *steps, QPAttrMask.CUR_STATE, QPAttrMask.TIMEOUT]))
        if rng.random() < 0.5:
            mask ^= rng.choice(SOME_MASKS)
        if rng.random() < 0.7:
            mask |= QPAttrMask.STATE
        self.modify(node, pair, attr, mask)

    def adjust(self) -> None:
        """Arm, resize, hold and mark."""
        rng = self.rng
        node = rng.choice(self.nodes)
        cq, number = rng.choice(node.cqs), rng.choice([-1, 0, 1, 3, 64])
        adjustments: list[Callable[[int], Any]] = [
            lambda side: cq[side].arm(number > 0),
            lambda side: cq[side].resize(number),
        ]
        if node.srqs:
            srq = rng.choice(node.srqs)
            adjustments += [
                lambda side: srq[side].arm_limit(number),
                lambda side: srq[side].resize(number + 2),
            ]
        if node.pairs:
            pair = rng.choice(node.pairs)
            marks = rng.choice([(None, None), (0, None), (1, 3), (None, 0)])
            adjustments += [
                lambda side: pair.pair[side].set_recv_watermarks(*marks),
                lambda side: setattr(pair.pair[side], "hold_receives", number > 0),
            ]
        node.both("adjust", rng.choice(adjustments))

    def remember(self) -> None:
        """Register, register anew, take back."""
        rng = self.rng
        node = rng.choice(self.nodes)
        draw = rng.random()
        if draw < 0.35 or len(node.regions) < 2:
            node.register(
                rng.choice([8, 64, MEMORY_BYTES]),
                rng.choice([31, 31, 1, 2, 15, 64, 1 << 22 | 1]),
                address=rng.choice([BASE, 0, (1 << 64) - 64, -1]),
                pd=rng.choice([node.pd, node.inner, node.other_pd]),
                key=rng.choice([None, None, None, 0x4000, 1, 1 << 31]),
                readonly=rng.random() < 0.1,
            )
            return
        region = rng.choice(node.regions)
        if draw < 0.6:
            unbind = rng.random() < 0.5
            answer = node.both(
                "deregister",
                lambda side: node.engines[side].deregister(region.pair[side], unbind=unbind),
            )
            if answer is None:
                node.regions.remove(region)
                node.compare_region(region)
        elif draw < 0.8:
            fields: dict[str, Any] = {"access": rng.choice([31, 1, 2, 4])}
            if rng.random() < 0.3:
                fields["address"] = rng.choice([BASE, BASE + 64])
            node.both(
                "reregister",
                lambda side: node.engines[side].reregister(region.pair[side], **fields),
            )
        else:
            window = rng.choice(node.windows)
            kind = rng.choice([1, 2, 2, 3])
            if made := node.make("window", lambda side: node.engines[side].window(node.pd, kind)):
                node.both("free", lambda side: node.engines[side].free_window(window[side]))
                node.windows.remove(window)
                node.windows.append(made)

    # -- a run

    def step(self) -> None:
        """Do one thing."""
        rng = self.rng
        node = rng.choice(self.nodes)
        draw = rng.random()
        if draw < 0.45 and node.pairs:
            pair = rng.choice(node.pairs)
            if pair.state in (QPState.ERR, QPState.RESET) and rng.random() < 0.6:
                node.close(pair)
                self.connect()
                return
            for _ in range(rng.choice([1, 1, 2, 5])):
                self.post(node, pair)
        elif draw < 0.6 and node.pairs:
            self.receives(node, rng.choice(node.pairs), rng.choice([1, 2, 4]))
        elif draw < 0.8:
            self.exchange(rng.choice([1, 5, 40]))
        elif draw < 0.86:
            self.pass_time()
        elif draw < 0.88:
            self.invent()
        elif draw < 0.94:
            self.adjust()
        elif draw < 0.965:
            self.remember()
        elif draw < 0.99:
            self.change()
        else:
            self.connect()
        self.look(node)

    def exchange(self, rounds: int) -> None:
        """Send and deliver for a while."""
        for _ in range(rounds):
            sent = sum(self.transmit(node, 8) for node in self.nodes)
            if not sent and not self.air:
                return
            self.deliver(6)

    def look(self, node: Node) -> None:
        """Poll, and take events."""
        rng = self.rng
        node.events()
        if rng.random() < 0.3:
            for cq in node.cqs:
                node.poll(cq, rng.choice([1, 100]))

    def run(self, steps: int) -> None:
        """Do so many things, then end what is under way."""
        for _ in range(steps):
            self.step()
        for _ in range(12):
            self.exchange(30)
            self.pass_time()
        for node in self.nodes:
            node.compare()
            node.events()
            for cq in node.cqs:
                node.poll(cq, 1000)


def _due(node: Node) -> Callable[[int], Any]:
    return lambda side: node.engines[side].poll_timeout()


def _timeout(node: Node, now_ns: int) -> Callable[[int], Any]:
    return lambda side: node.engines[side].handle_timeout(now_ns)
