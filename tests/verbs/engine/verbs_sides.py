"""One side of a connection alone: packets are given to it by hand, and what it says is read."""

from tests.sim.verbs_pair import MTU_BYTES, Side
from urds.verbs.engine.numbers import AsyncEventType, WCStatus
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.engine.queue_pair import LinkTraits

FIRST, LAST, ASK = PacketFlag.FIRST, PacketFlag.LAST, PacketFlag.ACK_REQUEST
ONLY = FIRST | LAST | ASK
LOSSY = LinkTraits(MTU_BYTES, lossless=False)
LOSSLESS = LinkTraits(MTU_BYTES, lossless=True)


# -- a side that asks; its peer is the test


def make_asking(
    *, link: LinkTraits = LOSSY, attr: dict[str, object] | None = None, **fields
) -> Side:
    side = Side(0xA, link, **fields)
    side.lead(0xB, **(attr or {}))
    return side


def sent(side: Side, now_ns: int = 0) -> list[Packet]:
    found = []
    while (packet := side.qp.poll_transmit(now_ns)) is not None:
        found.append(packet)
    return found


def psns(side: Side, now_ns: int = 0) -> list[int]:
    return [packet.psn for packet in sent(side, now_ns)]


def answer(side: Side, psn: int, syndrome: int = Syndrome.ACK, now_ns: int = 0, **fields) -> None:
    kind = fields.pop("kind", PacketKind.ACK)
    packet = Packet(kind, 0xA, psn, syndrome=syndrome, **fields)
    side.qp.receive_packet(packet, now_ns)


def done(side: Side) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in side.sent()]


# -- a side that answers


def make_answering(
    *, link: LinkTraits = LOSSY, attr: dict[str, object] | None = None, **fields
) -> Side:
    side = Side(0xB, link, **fields)
    side.lead(0xA, **(attr or {}))
    return side


def answers(side: Side, *packets: Packet) -> list[Packet]:
    """Give packets to a side in one burst and return what it says then."""
    for packet in packets:
        side.qp.receive_packet(packet, 0)
    found = []
    while (answer := side.qp.poll_transmit(0)) is not None:
        found.append(answer)
    return found


def events(side: Side) -> list[AsyncEventType]:
    return [event.event_type for event in side.qp.outbox.take_events()]


def send(psn: int, msn: int, payload: bytes = b"", flags: PacketFlag = ONLY, **fields) -> Packet:
    return Packet(PacketKind.SEND, 0xB, psn, flags, msn=msn, payload=payload, **fields)


def write(side: Side, psn: int, at: int, payload: bytes, flags: PacketFlag = ONLY, **fields):
    return Packet(
        PacketKind.WRITE, 0xB, psn, flags,
        address=side.address + at, rkey=side.region.rkey, payload=payload, **fields,
    )  # fmt: skip


def read(side: Side, psn: int, at: int, length: int) -> Packet:
    return Packet(
        PacketKind.READ_REQUEST, 0xB, psn, ONLY,
        address=side.address + at, rkey=side.region.rkey, length=length,
    )  # fmt: skip


def add(side: Side, psn: int, at: int, value: int) -> Packet:
    return Packet(
        PacketKind.ATOMIC_ADD, 0xB, psn, ONLY,
        address=side.address + at, rkey=side.region.rkey, compare_add=value,
    )  # fmt: skip
