"""Packets that are nearly good: what the seeds of the machines are made of."""

from fuzz.guarded import FIRST_PSN, QPN, REGION_BYTES
from fuzz.script import step
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, emit_packet

ONLY = PacketFlag.FIRST | PacketFlag.LAST | PacketFlag.ACK_REQUEST
KEY, AT = 0x100, 0x10000


def steps(packets: tuple[Packet, ...], *, bits: int, extra: int = 0) -> bytes:
    """Return steps of a script that bring packets with consecutive numbers."""
    found = b""
    for index, packet in enumerate(packets):
        packet.psn = FIRST_PSN + index
        found += step(bits, extra, data=b"".join(emit_packet(packet)))
    return found


def requests() -> tuple[Packet, ...]:
    """Return one request of each kind, and a message of two packets."""
    return (
        Packet(PacketKind.SEND, QPN, flags=ONLY, msn=1, payload=b"hello" * 8),
        Packet(PacketKind.WRITE, QPN, flags=ONLY, address=AT, rkey=KEY, payload=b"x" * 64),
        Packet(PacketKind.READ_REQUEST, QPN, flags=ONLY, address=AT, rkey=KEY, length=60),
        Packet(PacketKind.ATOMIC_ADD, QPN, flags=ONLY, address=AT, rkey=KEY, compare_add=1),
        Packet(PacketKind.MASKED_SWAP, QPN, flags=ONLY, address=AT, rkey=KEY, swap_mask=255),
        Packet(PacketKind.SEND, QPN, flags=PacketFlag.FIRST, msn=2, payload=b"a" * 64),
        Packet(PacketKind.SEND, QPN, flags=PacketFlag.LAST, msn=2, offset=64, payload=b"b" * 30),
    )


def trespassers() -> tuple[Packet, ...]:
    """Return requests for memory that is registered, but not for this peer."""
    return tuple(
        Packet(kind, QPN, flags=ONLY, address=at, rkey=key, length=length, payload=data)
        for key, at in ((KEY * 2, AT + REGION_BYTES), (KEY * 3, AT + 2 * REGION_BYTES))
        for kind, length, data in (
            (PacketKind.WRITE, 0, b"x" * 64),
            (PacketKind.READ_REQUEST, 64, b""),
            (PacketKind.ATOMIC_ADD, 0, b""),
        )
    )


def ahead() -> bytes:
    """Return steps: many packets ahead of the expected one, then that one, over many numbers."""
    write = Packet(PacketKind.WRITE, QPN, 33, ONLY, address=AT, rkey=KEY, payload=b"x" * 64)
    read = Packet(PacketKind.READ_REQUEST, QPN, 32, ONLY, address=AT, rkey=KEY, length=1024)
    return b"".join(
        step(bits, extra, data=b"".join(emit_packet(packet)))
        for bits, extra, packet in ((3, 0xC1, write), (2, 0, read))
    )


def answered(extra: int, answer: Packet) -> bytes:
    """Return steps: a request is posted and sent, then an answer to it comes."""
    return step(4 | 16, extra) + steps((answer,), bits=64)


READ, SWAP, WRITE = 11, 12, 8  # what `Guarded.post_request` makes of them: 40 bytes
