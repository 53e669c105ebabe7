"""Packets as slots: each comes back as it was, bursts are read, and what cannot be is refused."""

from dataclasses import replace
from struct import pack

import pytest

from urds.common.errors import RemoteProtocolError
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.providers.shm.slot_packets import emit_slot, packets_of, parse_slot
from urds.verbs.providers.shm.slots import BURST, Fields, Slot

ONLY = PacketFlag.FIRST | PacketFlag.LAST
ALL_ONES = (1 << 64) - 1
PLACES = dict(enumerate(Fields.__args__))  # how many fields there are
KIND, FLAGS, ZERO, TARGET, PSN, MSN, IMMEDIATE, ACKNOWLEDGED, ADDRESS, KEY, LENGTH = PLACES
PACKETS = [
    Packet(PacketKind.SEND, 9, 100, ONLY | PacketFlag.ACK_REQUEST, msn=1, payload=b"x" * 70),
    Packet(PacketKind.SEND, 9, 100, PacketFlag.LAST, msn=1, offset=1 << 20, payload=b"x"),
    Packet(
        PacketKind.SEND, 9, 100, ONLY | PacketFlag.INVALIDATE | PacketFlag.SOLICITED, msn=2,
        immediate=0xFFFF_FFFF,
    ),
    Packet(
        PacketKind.WRITE, 9, 1, ONLY | PacketFlag.IMMEDIATE, msn=3, address=ALL_ONES, rkey=0x700,
        immediate=5, payload=b"w",
    ),
    Packet(PacketKind.WRITE, 9, 1, ONLY | PacketFlag.PLACED, address=64, rkey=7, length=1 << 31),
    Packet(PacketKind.READ_REQUEST, 9, 1, ONLY, address=64, rkey=7, length=512),
    Packet(PacketKind.ATOMIC_SWAP, 9, 1, ONLY, address=8, rkey=7, compare_add=ALL_ONES, swap=1),
    Packet(PacketKind.ATOMIC_ADD, 9, 1, ONLY, address=8, rkey=7, compare_add=3),
    Packet(
        PacketKind.MASKED_SWAP, 9, 1, ONLY, address=8, rkey=7, compare_add=1, swap=2,
        compare_mask=3, swap_mask=4,
    ),
    Packet(PacketKind.MASKED_ADD, 9, 1, ONLY, address=8, rkey=7, compare_add=1, boundary=1 << 63),
    Packet(PacketKind.READ_RESPONSE, 9, 1, PacketFlag.LAST, msn=4, offset=99, payload=b"r" * 200),
    Packet(PacketKind.ATOMIC_RESPONSE, 9, 1, msn=4, compare_add=ALL_ONES),
    Packet(PacketKind.ACK, 0xFF_FFFF, 0xFF_FFFF, msn=4, syndrome=0x3F),
    Packet(PacketKind.DATAGRAM, 9, 0, ONLY, source_qpn=12, qkey=0x8000_0001, payload=b"d" * 90),
]  # fmt: skip


def slot_of(packet: Packet) -> Slot:
    fields, payload = emit_slot(packet)
    return Slot(fields, payload)


def changed(slot: Slot, place: int, value: int) -> Slot:
    fields = list(slot.fields)
    fields[place] = value
    return slot._replace(fields=tuple(fields))


def test_every_kind_is_among_the_examples() -> None:
    assert {packet.kind for packet in PACKETS} == set(PacketKind)


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet.kind.name)
@pytest.mark.parametrize("acknowledged", [None, 0, 0xFF_FFFF])
def test_a_packet_comes_back(packet: Packet, acknowledged: int | None) -> None:
    packet = replace(packet, acknowledged=acknowledged)
    slot = slot_of(packet)
    assert slot.fields[ZERO] == 0
    assert parse_slot(slot) == packet
    assert list(packets_of(slot)) == [packet]


def test_an_acknowledgement_that_is_not_flagged_is_none() -> None:
    slot = changed(slot_of(PACKETS[0]), ACKNOWLEDGED, 77)
    assert parse_slot(slot).acknowledged is None


@pytest.mark.parametrize(
    ("place", "value"),
    [(KIND, 7), (KIND, 33), (ZERO, 1), (TARGET, 1 << 24), (PSN, 1 << 24), (ACKNOWLEDGED, 1 << 24),
     (FLAGS, 3 | 64)],
)  # fmt: skip
def test_a_field_that_cannot_be_is_refused(place: int, value: int) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_slot(changed(slot_of(PACKETS[0]), place, value))


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet.kind.name)
def test_payload_where_none_may_be_is_refused(packet: Packet) -> None:
    slot = slot_of(packet)._replace(payload=b"p" * 41)
    carries = packet.kind in (
        PacketKind.SEND, PacketKind.WRITE, PacketKind.READ_RESPONSE, PacketKind.DATAGRAM
    )  # fmt: skip
    if carries and not packet.flags & PacketFlag.PLACED:
        assert parse_slot(slot).payload == b"p" * 41
    else:
        with pytest.raises(RemoteProtocolError):
            parse_slot(slot)


@pytest.mark.parametrize("flags", [64, 64 | 1, 64 | 2])
def test_a_placed_write_is_one_packet(flags: int) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_slot(changed(slot_of(PACKETS[4]), FLAGS, flags))


def test_only_a_send_invalidates() -> None:
    with pytest.raises(RemoteProtocolError):
        parse_slot(changed(slot_of(PACKETS[3]), FLAGS, 3 | 32))


# -- bursts


def record(kind: int, payload: bytes, *, flags: int = 3, psn: int = 0, size: int | None = None,
           immediate: int = 0, address: int = 0, acknowledged: int = 0) -> bytes:  # fmt: skip
    head = pack(
        "=HBBIIIIIQ", len(payload) if size is None else size, kind, flags, 9, psn, 1, immediate,
        acknowledged, address,
    )  # fmt: skip
    return (head + payload).ljust(-(-(32 + len(payload)) // 16) * 16, b"\xee")


def burst(*records: bytes, count: int | None = None, **changes: int) -> Slot:
    told = len(records) if count is None else count
    slot = Slot((BURST, 0, 0, 0, 0, 0, 0, 0, 0, 0, told), memoryview(b"".join(records)))
    for name, value in changes.items():
        slot = changed(slot, globals()[name], value)
    return slot


def test_a_burst_is_its_packets_in_order() -> None:
    found = list(
        packets_of(
            burst(
                record(0, b"a" * 5, psn=1, flags=3 | 16, immediate=8),
                record(1, b"w" * 256, psn=2, immediate=0x700, address=4096),
                record(0, b"", psn=3, flags=3 | 128, acknowledged=44),
            )
        )
    )
    assert [(packet.kind, packet.psn) for packet in found] == [
        (PacketKind.SEND, 1), (PacketKind.WRITE, 2), (PacketKind.SEND, 3)
    ]  # fmt: skip
    assert found[0].immediate == 8 and found[0].payload == b"a" * 5
    assert (found[1].rkey, found[1].address, found[1].immediate) == (0x700, 4096, 0)
    assert found[1].payload == b"w" * 256 and found[2].acknowledged == 44


def test_a_full_burst_is_read() -> None:
    assert len(list(packets_of(burst(*[record(0, b"z" * 256)] * 32)))) == 32


@pytest.mark.parametrize(
    "slot",
    [
        burst(count=0), burst(*[record(0, b"")] * 33), burst(record(0, b""), count=2),
        burst(record(0, b""), record(0, b""), count=1), burst(record(0, b"abc", size=60)),
        burst(record(0, b"a" * 257)), burst(record(2, b"")), burst(record(0, b"", flags=1)),
        burst(record(1, b"", flags=3 | 64)), burst(record(1, b"", flags=3 | 16)),
        burst(record(1, b"", flags=3 | 32)), burst(record(0, b""), FLAGS=3),
        burst(record(0, b""), TARGET=1), burst(record(0, b""), ZERO=1),
        burst(record(0, b"")[:20]), burst(record(0, b"") + bytes(16)),
        burst(record(0, b"", psn=1 << 24)), burst(record(0, b"", acknowledged=1 << 24)),
        burst(record(BURST, b"")),
    ],
)  # fmt: skip
def test_a_burst_that_lies_is_refused(slot: Slot) -> None:
    with pytest.raises(RemoteProtocolError):
        list(packets_of(slot))
