"""A queue pair behind the codec of the tcp provider, against peers that say anything at all.

Frames are well formed and their numbers follow each other, so that they get past the codec; what
they ask for is random. Nothing but a broken stream may come of it, and no byte outside the
registered memory may change.
"""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from urds.common.types import BytesLike
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType, WROpcode
from urds.verbs.engine.packets import Packet
from urds.verbs.engine.queue_pair import LinkTraits, QPAttr, QPCap, QueuePair
from urds.verbs.engine.work import SGE, AddressVector, RecvWR, SendWR
from urds.verbs.providers.tcp.codec import Decoder, Encoder, OutstandingReads
from urds.verbs.providers.tcp.fpdu import StreamBroken, tagged_header, trailer, untagged_header

ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)
ADDRESS, REGION_BYTES, CANARY = 0x1000, 256, bytes(range(64))
QUEUES = {**dict.fromkeys((3, 4, 5, 6, 8, 9, 12, 13), 0), 1: 1, 10: 1, 11: 3, 14: 4, 15: 4}
MASKS = (
    (QPState.INIT, QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS),
    (
        QPState.RTR,
        QPAttrMask.AV | QPAttrMask.PATH_MTU | QPAttrMask.DEST_QPN | QPAttrMask.RQ_PSN
        | QPAttrMask.MAX_DEST_RD_ATOMIC | QPAttrMask.MIN_RNR_TIMER,
    ),
    (
        QPState.RTS,
        QPAttrMask.SQ_PSN | QPAttrMask.MAX_QP_RD_ATOMIC | QPAttrMask.RETRY_CNT
        | QPAttrMask.RNR_RETRY | QPAttrMask.TIMEOUT,
    ),
)  # fmt: skip


class Victim:
    """A queue pair in RTS with work of every kind under way, and the codec in front of it."""

    def __init__(self, *, urds_peer: bool) -> None:
        self.memory = bytearray(CANARY + bytes(REGION_BYTES) + CANARY)
        view = memoryview(self.memory)[len(CANARY) : len(CANARY) + REGION_BYTES]
        keys, pd = KeyTable(), object()
        self.region = keys.register(pd, view, ADDRESS, ACCESS)
        self.qp = QueuePair(
            qpn=7,
            qp_type=QPType.RC,
            pd=pd,
            send_cq=CompletionQueue(100),
            recv_cq=CompletionQueue(100),
            cap=QPCap(),
            keys=keys,
            link=LinkTraits(mtu_bytes=65_504, lossless=True),
        )
        attr = QPAttr(
            qp_access_flags=ACCESS,
            ah_attr=AddressVector(bytes(16)),
            max_rd_atomic=4,
            max_dest_rd_atomic=4,
            rnr_retry=3,
            retry_cnt=3,
        )
        for attr.qp_state, mask in MASKS:
            self.qp.modify(attr, mask | QPAttrMask.STATE, 0)
        reads = OutstandingReads(inbound_max=4)
        self.encoder = Encoder(reads, urds_peer=urds_peer, crc=False, payload_bytes_max=65_504)
        self.decoder = Decoder(reads, target_qpn=7, urds_peer=urds_peer, crc=False)
        self.now_ns = 0
        self.numbers = [1] * 5
        self._work()
        self.say()

    def _work(self) -> None:
        piece = [SGE(ADDRESS, 16, self.region.lkey)]
        for index in range(3):
            self.qp.post_recv(RecvWR(index, piece), 0)
        for opcode in (WROpcode.RDMA_READ, WROpcode.SEND, WROpcode.RDMA_READ):
            self.qp.post_send(SendWR(0, opcode, piece, remote_addr=64, rkey=1), 0)

    def say(self) -> None:
        """Encode all that the engine wants to say now."""
        out: list[BytesLike] = []
        for _ in range(1000):
            packet = self.qp.poll_transmit(self.now_ns)
            if packet is None:
                return
            nak = self.encoder.emit(packet, out)
            if nak is not None:
                self.qp.receive_packet(nak, self.now_ns)
        raise AssertionError("the engine never stops talking")

    def hear(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            item, taken_bytes = self.decoder.take(view)
            if not taken_bytes:
                return
            view = view[taken_bytes:]
            if isinstance(item, Packet):
                self.qp.receive_packet(item, self.now_ns)

    def frame(self, opcode: int, stag: int, offset: int, payload: bytes, last: bool) -> bytes:
        """Return a frame with the number that is due; the payload of its kind where it has one."""
        if opcode in (0, 2):
            header = tagged_header(opcode, stag, offset, len(payload), is_last=last)
        else:
            queue = QUEUES[opcode]
            number = self.numbers[queue]
            self.numbers[queue] += 1
            payload = _fitting(opcode, stag, offset, payload)
            header = untagged_header(opcode, queue, number, 0, len(payload), word=stag)
        return header + payload + trailer(header, payload, crc=False)


def _fitting(opcode: int, stag: int, offset: int, payload: bytes) -> bytes:
    """Return what a single-segment message of the kind has to hold, made of random numbers."""
    if opcode == 1:
        return struct.pack(">IQIIQ", 9, 0, len(payload), stag, offset)
    if opcode == 10:
        full = (1 << 64) - 1
        swap = len(payload) % 2
        return struct.pack(">IIIQQQQQ", 2 * swap, 5, stag, offset, 1, full * swap, 2, full * swap)
    if opcode == 11:
        return struct.pack(">IQ", stag, offset)
    if opcode in (8, 9):
        return struct.pack(">Q", stag)
    if opcode == 14:
        return struct.pack(">I", offset & 0xFFFFFFFF)
    if opcode == 15:
        return struct.pack(">II", len(payload) % 8, offset & 0xFFFFFFFF)
    return payload


stags = st.sampled_from([0, 1, 2, 3, 0x100, 0x101, 0x102, 0x1F000000, 0x1F000002, 0x20000001,
                         0x62000000, 0x60000001, 0xFFFFFFFF])  # fmt: skip
offsets = st.sampled_from(
    [0, 8, 16, ADDRESS, ADDRESS + 8, ADDRESS + REGION_BYTES - 8, ADDRESS + REGION_BYTES - 1,
     ADDRESS - 1, ADDRESS + REGION_BYTES, (1 << 64) - 1, 1 << 32]
)  # fmt: skip
frames = st.tuples(
    st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 14, 15, 15]),
    st.one_of(st.just(-1), stags, st.just(1)),
    offsets,
    st.binary(max_size=20),
    st.booleans(),
    st.sampled_from(["wait", "say", "time"]),
)


@settings(deadline=None, derandomize=True, max_examples=examples(400))
@given(st.lists(frames, max_size=25), st.booleans())
def test_nothing_a_peer_says_gets_out_of_its_stream(
    found: list[tuple[int, int, int, bytes, bool, str]], urds_peer: bool
) -> None:
    victim = Victim(urds_peer=urds_peer)
    try:
        for opcode, stag, offset, payload, last, then in found:
            key = victim.region.rkey if stag < 0 else stag
            victim.hear(victim.frame(opcode, key, offset, payload, last))
            if then == "say":
                victim.say()
            elif then == "time":
                victim.now_ns += 10_000_000_000
                victim.qp.handle_timeout(victim.now_ns)
        victim.say()
    except StreamBroken:
        pass
    assert victim.memory.startswith(CANARY) and victim.memory.endswith(CANARY)
    attr = QPAttr(qp_state=QPState.ERR)
    victim.qp.modify(attr, QPAttrMask.STATE, victim.now_ns)
    victim.say()
    # Six requests and receives were posted: each has completed, and once.
    wcs = victim.qp.send_cq.poll(100) + victim.qp.recv_cq.poll(100)
    assert len(wcs) == 6


def test_a_peer_that_takes_its_read_back_gets_no_answer() -> None:
    """The engine has the answer in its queue when the peer goes back before the read."""
    for opcode in (1, 10):
        victim = Victim(urds_peer=True)
        victim.hear(victim.frame(opcode, victim.region.rkey, ADDRESS, b"12345678", True))
        victim.hear(victim.frame(15, 1, 0, b"", True))
        victim.say()
