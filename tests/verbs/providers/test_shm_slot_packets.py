"""Packets as slots: each comes back as it was, and what cannot be is refused."""

from dataclasses import replace

import pytest

from urds.common.errors import RemoteProtocolError
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.providers.shm.slot_packets import emit_slot, parse_slot
from urds.verbs.providers.shm.slots import Fields, Slot

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
