"""A peer that says anything: no crash, nothing outside a region touched, one end per request."""

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.verbs_pair import ALL_ACCESS, MTU_BYTES, Side
from urds.verbs.engine.numbers import ReceiveOrder, SendFlag, WROpcode
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.engine.queue_pair import LinkTraits
from urds.verbs.engine.receives import SharedReceiveQueue

GUARD_BYTES = 256
REGION_BYTES = 512
ADDRESS = 0x10000
GUARD = bytes([0xA5]) * GUARD_BYTES

near_psns = st.one_of(st.integers(95, 140), st.integers(0, 0xFFFFFF))
near_addresses = st.one_of(
    st.integers(ADDRESS - 80, ADDRESS + REGION_BYTES + 80), st.integers(0, (1 << 64) - 1)
)
lengths = st.one_of(st.integers(0, 700), st.integers(0, (1 << 32) - 1))
numbers = st.one_of(st.integers(0, 20), st.integers(0, (1 << 32) - 1))


def guarded(
    receive_order: ReceiveOrder, *, lossless: bool, shared: bool, names_places: bool = True
) -> tuple[Side, bytearray]:
    """Return a side whose region is the middle of a memory, and that memory."""
    memory = bytearray(GUARD + bytes(REGION_BYTES) + GUARD)
    srq = SharedReceiveQueue(16, 2) if shared else None
    link = LinkTraits(MTU_BYTES, lossless, names_places=names_places)
    side = Side(0xB, link, receive_order=receive_order, srq=srq)
    side.keys.deregister(side.region)
    middle = memoryview(memory)[GUARD_BYTES : GUARD_BYTES + REGION_BYTES]
    side.region = side.keys.register(side.pd, middle, ADDRESS, ALL_ACCESS)
    side.lead(0xA)
    return side, memory


@st.composite
def packets(draw: st.DrawFn, rkey: int) -> Packet:
    """Draw packets that are nearly good, so that they get far."""
    kind = draw(st.sampled_from([kind for kind in PacketKind if kind is not PacketKind.DATAGRAM]))
    flags = draw(
        st.one_of(
            st.sampled_from([PacketFlag.FIRST | PacketFlag.LAST, PacketFlag.LAST]),
            st.integers(0, 0x3F).map(PacketFlag),
        )
    )
    ranges = draw(st.lists(st.tuples(near_psns, near_psns), max_size=3))
    return Packet(
        kind,
        0xB,
        draw(near_psns),
        flags,
        msn=draw(numbers),
        offset=draw(lengths),
        length=draw(lengths),
        address=draw(near_addresses),
        rkey=draw(st.sampled_from([rkey, rkey, rkey ^ 1, 0])),
        immediate=draw(st.sampled_from([rkey, 7])),
        compare_add=draw(st.integers(0, (1 << 64) - 1)),
        syndrome=draw(st.one_of(st.integers(0x1F, 0x64), st.integers(0, 255))),
        selective=tuple(ranges),
        payload=draw(st.binary(max_size=70)),
    )


@given(st.data(), st.sampled_from([*ReceiveOrder, None]), st.booleans(), st.booleans())
def test_no_packet_reaches_beyond_a_region(
    data: st.DataObject, receive_order: ReceiveOrder | None, lossless: bool, shared: bool
) -> None:
    """Without an order packets do not name their places."""
    side, memory = guarded(
        receive_order or ReceiveOrder.IN_ORDER,
        lossless=lossless,
        shared=shared,
        names_places=receive_order is not None,
    )
    for wr_id in range(8):
        side.receive(wr_id, wr_id * 64, 64)
    posted = 0
    for opcode in (WROpcode.SEND, WROpcode.RDMA_READ, WROpcode.RDMA_WRITE, WROpcode.SEND):
        side.remote(posted, opcode, side, length=100, send_flags=SendFlag.SIGNALED)
        posted += 1
    ends: list[int] = []
    for packet in data.draw(st.lists(packets(side.region.rkey), max_size=25)):
        side.qp.receive_packet(packet, 0)
        for _ in range(600):
            if side.qp.poll_transmit(0) is None:
                break
        ends += [wc.wr_id for wc in side.sent()]
        count, span = side.qp.recv_query()
        assert 0 <= count <= span or (count, span) == (0, 0)
    assert memory[:GUARD_BYTES] == GUARD and memory[-GUARD_BYTES:] == GUARD
    assert ends == list(range(len(ends))) and len(ends) <= posted
    received = [wc.wr_id for wc in side.received()]
    assert len(received) == len(set(received))


@given(st.data(), st.sampled_from(ReceiveOrder))
def test_a_silent_end_still_ends_every_request(
    data: st.DataObject, receive_order: ReceiveOrder
) -> None:
    """After any nonsense, time alone brings every request to its end."""
    side, _ = guarded(receive_order, lossless=False, shared=False)
    for wr_id in range(4):
        side.send(wr_id, 0, 100)
    now_ns = 0
    for packet in data.draw(st.lists(packets(side.region.rkey), max_size=10)):
        side.qp.receive_packet(packet, now_ns)
    ends: list[int] = []
    for _ in range(200):
        for _ in range(600):
            if side.qp.poll_transmit(now_ns) is None:
                break
        due_ns = side.qp.poll_timeout()
        if due_ns is None:
            break
        now_ns = max(now_ns, due_ns)
        side.qp.handle_timeout(now_ns)
    ends = [wc.wr_id for wc in side.sent()]
    assert ends == [0, 1, 2, 3]
