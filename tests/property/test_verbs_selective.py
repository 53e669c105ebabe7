"""Fragments of messages in any order, with repeats: what is held, what it spans, what completes.

A model that knows sets only says what must be counted after each packet.
"""

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.verbs_pair import MTU_BYTES, Side
from urds.verbs.engine.numbers import ReceiveOrder, WCStatus
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.engine.queue_pair import LinkTraits
from urds.verbs.engine.receives import SharedReceiveQueue

LINK = LinkTraits(MTU_BYTES, lossless=False)
PACKETS_MAX = 4
MESSAGES_MAX = 12
SLOT_BYTES = PACKETS_MAX * MTU_BYTES

message_lengths = st.lists(st.integers(1, PACKETS_MAX), min_size=1, max_size=MESSAGES_MAX)


def fragments(counts: list[int]) -> list[Packet]:
    """Return all packets of messages that have these counts of packets."""
    found = []
    for msn, count in enumerate(counts, start=1):
        for index in range(count):
            flags = PacketFlag(0)
            if index == 0:
                flags |= PacketFlag.FIRST
            if index == count - 1:
                flags |= PacketFlag.LAST
            psn = (0xFFFFF0 + len(found)) & 0xFFFFFF
            data = bytes([msn * 16 + index]) * (MTU_BYTES if index < count - 1 else msn)
            found.append(
                Packet(
                    PacketKind.SEND,
                    0xB,
                    psn,
                    flags,
                    msn=msn,
                    offset=index * MTU_BYTES,
                    payload=data,
                )
            )
    return found


class Model:
    """Which messages hold a buffer, by the definitions of docs/reference/dat.md 13.1."""

    def __init__(self, packets: list[Packet], receive_order: ReceiveOrder) -> None:
        self._packets = packets
        self._receive_order = receive_order
        self._there: set[int] = set()
        self.completed = 0

    def take(self, index: int) -> None:
        """Count a packet by its index among all."""
        in_order = next(n for n in range(len(self._packets) + 1) if n not in self._there)
        if self._receive_order is ReceiveOrder.IN_ORDER and index > in_order:
            return
        self._there.add(index)
        while in_order in self._there:
            if self._packets[in_order].flags & PacketFlag.LAST:
                self.completed = self._packets[in_order].msn
            in_order += 1

    def query(self) -> tuple[int, int]:
        """Return what is held and what it spans."""
        started = {self._packets[index].msn for index in self._there}
        held = {msn for msn in started if msn > self.completed}
        if not held:
            return 0, 0
        span = max(held) - self.completed
        return (span if self._receive_order is ReceiveOrder.FILL_GAPS else len(held)), span


@given(message_lengths, st.sampled_from(ReceiveOrder), st.data())
def test_counts_are_those_of_the_model_in_any_order(
    counts: list[int], receive_order: ReceiveOrder, data: st.DataObject
) -> None:
    packets = fragments(counts)
    side = Side(
        0xB, LINK, memory_bytes=MESSAGES_MAX * SLOT_BYTES, receive_order=receive_order,
        srq=SharedReceiveQueue(MESSAGES_MAX, 1),
    )  # fmt: skip
    side.lead(0xA, rq_psn=0xFFFFF0)
    for slot in range(MESSAGES_MAX):
        side.receive(slot, slot * SLOT_BYTES, SLOT_BYTES)
    assert side.srq is not None
    model = Model(packets, receive_order)
    everything = list(range(len(packets)))
    retries = data.draw(st.lists(st.sampled_from(everything), max_size=20))
    order = data.draw(st.permutations([*everything, *retries]))
    done = []
    # Whatever came in whichever order, all of it in order brings the rest.
    for index in [*order, *everything]:
        side.qp.receive_packet(packets[index], 0)
        while side.qp.poll_transmit(0) is not None:
            pass
        model.take(index)
        count, span = side.qp.recv_query()
        assert (count, span) == model.query() and count <= span
        done += side.received()
        assert len(done) == model.completed
        assert len(side.srq) == MESSAGES_MAX - len(done) - count
    assert len(done) == len(counts) and side.qp.recv_query() == (0, 0)
    for msn, wc in enumerate(done, start=1):
        sent = b"".join(packet.payload for packet in packets if packet.msn == msn)
        at = wc.wr_id * SLOT_BYTES
        assert wc.status is WCStatus.SUCCESS
        assert side.memory[at : at + wc.byte_len] == sent
