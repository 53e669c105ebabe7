"""Packets with no more in them than InfiniBand's headers hold, as bytes.

A send or write names neither its message nor its offset, and of a write the first packet alone
names target, key and length (`LinkTraits.names_places`). The rest is the layout of
`engine.packets`, with the length in front of the bytes of that first packet.
"""

from dataclasses import replace

from urds.verbs.engine.packets import (
    Packet,
    PacketFlag,
    PacketKind,
    emit_packet,
    parse_packet,
)

LENGTH_BYTES = 4
_MESSAGES = (PacketKind.SEND, PacketKind.WRITE)


def emit_plain(packet: Packet, *, checksum: bool = False) -> bytes:
    """Return the bytes of a packet."""
    plain = replace(packet)
    if packet.kind in _MESSAGES:
        assert not packet.flags & PacketFlag.PLACED, "there is no such mark"
        plain.msn = plain.offset = plain.length = 0
    if packet.kind is PacketKind.READ_RESPONSE:
        plain.offset = 0
    if packet.kind is PacketKind.WRITE and packet.flags & PacketFlag.FIRST:
        plain.payload = packet.length.to_bytes(LENGTH_BYTES, "big") + bytes(packet.payload)
    elif packet.kind is PacketKind.WRITE:
        plain.address = plain.rkey = 0
    return b"".join(emit_packet(plain, checksum=checksum))


def parse_plain(data: bytes, *, checksum: bool = False) -> Packet:
    """Read the bytes of a packet. Raises WireError."""
    packet = parse_packet(data, checksum=checksum)
    if packet.kind is PacketKind.WRITE and packet.flags & PacketFlag.FIRST:
        view = memoryview(packet.payload)
        packet.length = int.from_bytes(view[:LENGTH_BYTES], "big")
        packet.payload = view[LENGTH_BYTES:]
    return packet
