"""Bytes of packets: what goes out comes back, and what is no packet is refused."""

import pytest

from urds.common.errors import WireError
from urds.verbs.engine.packets import (
    HEADER_BYTES,
    Packet,
    PacketFlag,
    PacketKind,
    Syndrome,
    emit_packet,
    parse_packet,
)

ONLY = PacketFlag.FIRST | PacketFlag.LAST


def bytes_of(packet: Packet, *, checksum: bool = False) -> bytes:
    return b"".join(emit_packet(packet, checksum=checksum))


PACKETS = [
    Packet(PacketKind.SEND, 7, 9, ONLY, msn=3, offset=64, payload=b"hello"),
    Packet(PacketKind.SEND, 7, 9, ONLY | PacketFlag.INVALIDATE, msn=3, immediate=0x1234),
    Packet(PacketKind.WRITE, 7, 9, ONLY, address=1 << 40, rkey=5, offset=1, payload=b"x" * 100),
    Packet(PacketKind.WRITE, 7, 9, ONLY | PacketFlag.PLACED, address=8, rkey=5, length=1 << 31),
    Packet(PacketKind.READ_REQUEST, 7, 9, ONLY, address=8, rkey=5, length=1 << 31),
    Packet(PacketKind.ATOMIC_SWAP, 7, 9, ONLY, address=8, rkey=5, compare_add=2, swap=1 << 63),
    Packet(PacketKind.ATOMIC_ADD, 7, 9, ONLY, address=8, rkey=5, compare_add=(1 << 64) - 1),
    Packet(PacketKind.MASKED_SWAP, 7, 9, ONLY, address=8, rkey=5, compare_add=2, swap=1 << 63,
           compare_mask=0xFF << 56, swap_mask=3),
    Packet(PacketKind.MASKED_ADD, 7, 9, ONLY, address=8, rkey=5, compare_add=1, boundary=1 << 31),
    Packet(PacketKind.READ_RESPONSE, 7, 9, ONLY, msn=8, offset=7, payload=b"abc"),
    Packet(PacketKind.ATOMIC_RESPONSE, 7, 9, msn=8, compare_add=77),
    Packet(PacketKind.ACK, 7, 9, msn=8, syndrome=Syndrome.ACK, selective=((1, 2), (4, 0xFFFFFF))),
    Packet(PacketKind.DATAGRAM, 7, 9, ONLY, source_qpn=3, qkey=0x11111111, payload=b"d"),
]  # fmt: skip


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet.kind.name)
@pytest.mark.parametrize("checksum", [False, True])
def test_a_packet_comes_back_as_it_was(packet: Packet, checksum: bool) -> None:
    parsed = parse_packet(bytes_of(packet, checksum=checksum), checksum=checksum)
    assert parsed == packet


def test_the_layout_of_masked_operations() -> None:
    fields = {"address": 0x40, "rkey": 9, "compare_add": 5}
    swap = Packet(
        PacketKind.MASKED_SWAP, 7, 9, ONLY, **fields, swap=6, compare_mask=0xF0, swap_mask=3
    )
    add = Packet(PacketKind.MASKED_ADD, 7, 9, ONLY, **fields, boundary=0x80)
    begin = "00000007 00000009 0000000000000040 00000009 0000000000000005"
    assert bytes_of(swap) == bytes.fromhex(
        "01 05 03 00" + begin + "0000000000000006 00000000000000f0 0000000000000003"
    )
    assert bytes_of(add) == bytes.fromhex("01 06 03 00" + begin + "0000000000000080")


def test_no_payload_is_copied() -> None:
    memory = memoryview(bytearray(b"0123456789"))
    parts = emit_packet(Packet(PacketKind.SEND, 1, payload=memory[2:5]))
    assert isinstance(parts[1], memoryview) and parts[1].obj is memory.obj
    data = b"".join(parts)
    payload = parse_packet(data).payload
    assert isinstance(payload, memoryview) and payload.obj is data


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet.kind.name)
def test_a_packet_cut_inside_its_fields_is_refused(packet: Packet) -> None:
    data = bytes_of(packet)
    fields_bytes = len(data) - len(packet.payload)
    for length in range(fields_bytes):
        with pytest.raises(WireError):
            parse_packet(data[:length])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x02\x00" + bytes(30), "version 2"),
        (b"\x01\x63" + bytes(30), "kind 99"),
        (b"\x01\x00\x80" + bytes(30), "flags 0x80"),
        (b"\x01\x00\x00\x00\x01\x00\x00\x00" + bytes(30), "queue pair 0x1000000"),
        (b"\x01\x00\x00\x01" + bytes(30), "SEND with 1 ranges"),
        (b"\x01\x0a\x00\x09" + bytes(100), "ACK with 9 ranges"),
        (b"\x01\x0a\x00\x01" + bytes(13) + b"\x01\x00\x00\x00" + bytes(4), "beyond 24 bits"),
        (b"\x01\x0a\x00\x00" + bytes(14), "1 bytes after"),
        (b"\x01\x00\x40\x00" + bytes(30), "PLACED packet of kind SEND"),
    ],
)
def test_bytes_that_are_no_packet_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        parse_packet(data)


def test_a_wrong_checksum_is_refused() -> None:
    data = bytearray(bytes_of(PACKETS[0], checksum=True))
    data[HEADER_BYTES + 9] ^= 1
    with pytest.raises(WireError, match="checksum"):
        parse_packet(data, checksum=True)
    with pytest.raises(WireError, match="checksum"):
        parse_packet(b"abc", checksum=True)
