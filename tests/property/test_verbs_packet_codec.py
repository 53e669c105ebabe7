"""Packets survive the way over bytes; bytes at random never do more than be refused."""

from hypothesis import given
from hypothesis import strategies as st

from urds.common.errors import WireError
from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, emit_packet, parse_packet

psns = st.integers(0, PSN_MASK)
longs = st.integers(0, (1 << 32) - 1)
wides = st.integers(0, (1 << 64) - 1)
PAYLOAD_KINDS = {
    PacketKind.SEND, PacketKind.WRITE, PacketKind.READ_RESPONSE, PacketKind.DATAGRAM,
}  # fmt: skip


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    """Draw packets whose unused fields are 0."""
    kind = draw(st.sampled_from(PacketKind))
    flags = PacketFlag(draw(st.integers(0, 0x7F)))
    if kind is not PacketKind.WRITE:
        flags &= ~PacketFlag.PLACED
    packet = Packet(kind, draw(psns), draw(psns), flags)
    fields = {
        PacketKind.SEND: {"msn": longs, "offset": longs},
        PacketKind.WRITE: {"address": wides, "rkey": longs, "msn": longs, "offset": longs},
        PacketKind.READ_REQUEST: {"address": wides, "rkey": longs, "length": longs},
        PacketKind.ATOMIC_SWAP: {"address": wides, "rkey": longs, "swap": wides},
        PacketKind.ATOMIC_ADD: {"address": wides, "compare_add": wides},
        PacketKind.MASKED_SWAP: {
            "address": wides, "rkey": longs, "compare_add": wides, "swap": wides,
            "compare_mask": wides, "swap_mask": wides,
        },
        PacketKind.MASKED_ADD: {
            "address": wides, "rkey": longs, "compare_add": wides, "boundary": wides,
        },
        PacketKind.READ_RESPONSE: {"msn": longs, "offset": longs},
        PacketKind.ATOMIC_RESPONSE: {"msn": longs, "compare_add": wides},
        PacketKind.ACK: {"syndrome": st.integers(0, 255), "msn": longs},
        PacketKind.DATAGRAM: {"source_qpn": longs, "qkey": longs},
    }[kind]  # fmt: skip
    for name, values in fields.items():
        setattr(packet, name, draw(values))
    if flags & (PacketFlag.IMMEDIATE | PacketFlag.INVALIDATE):
        packet.immediate = draw(longs)
    if flags & PacketFlag.PLACED:
        packet.length = draw(longs)
    elif kind in PAYLOAD_KINDS:
        packet.payload = draw(st.binary(max_size=200))
    if kind is PacketKind.ACK:
        packet.selective = tuple(draw(st.lists(st.tuples(psns, psns), max_size=8)))
    return packet


@given(packets(), st.booleans())
def test_a_packet_comes_back_as_it_was(packet: Packet, checksum: bool) -> None:
    data = b"".join(emit_packet(packet, checksum=checksum))
    assert parse_packet(data, checksum=checksum) == packet


@given(st.binary(max_size=120))
def test_random_bytes_are_a_packet_or_refused(data: bytes) -> None:
    try:
        packet = parse_packet(data)
    except WireError:
        return
    assert b"".join(emit_packet(packet)) == data


@given(packets(), st.data())
def test_a_flipped_bit_breaks_the_checksum(packet: Packet, data: st.DataObject) -> None:
    raw = bytearray(b"".join(emit_packet(packet, checksum=True)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        parse_packet(raw, checksum=True)
    except WireError:
        return
    raise AssertionError("a packet with a flipped bit was accepted")
