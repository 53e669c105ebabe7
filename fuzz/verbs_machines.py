"""The engine behind the parsers: queue pairs that take packets, one after the other.

Each input is a script: choices of this side, then steps of the peer, of this side and of time.
"""

from collections.abc import Callable
from contextlib import suppress

from fuzz.guarded import QKEY, QPN, Guarded
from fuzz.script import Script
from fuzz.verbs_packets import (
    ONLY,
    READ,
    SWAP,
    WRITE,
    ahead,
    answered,
    requests,
    steps,
    trespassers,
)
from fuzz.verbs_parsers import PACKETS
from urds.common.errors import WireError
from urds.verbs.engine.datagrams import parse_grh
from urds.verbs.engine.numbers import QPType, ReceiveOrder
from urds.verbs.engine.packets import Packet, PacketKind, parse_packet

STEPS_MAX = 400
_PSN_MASK = (1 << 24) - 1
_MSN_MASK = (1 << 32) - 1


def queue_pair(data: bytes) -> None:
    """Give a connected queue pair packets: requests and answers, in any order and number.

    Bits of each step choose what else happens, how often the packet comes, and whether its number
    is brought close to the expected one, which a random number would seldom hit.
    """
    script = Script(data)
    choices = script.number()
    side = Guarded(
        lossless=bool(choices & 1),
        receive_order=tuple(ReceiveOrder)[(choices >> 1 & 3) % len(ReceiveOrder)],
        shared=bool(choices & 8),
        completions_max=4 if choices & 16 else 64,
    )
    side.qp.hold_receives = bool(choices & 32)
    for _ in range(script.number() % 16):
        side.post_receive()
    for _ in range(STEPS_MAX):
        if not script:
            break
        _queue_pair_step(script, side)
    side.say_all()
    side.check()
    side.take_completions()
    side.check_end()


def _queue_pair_step(script: Script, side: Guarded) -> None:
    bits, extra = script.number(), script.number()
    retries = 1 + (extra >> 5) ** 3 if bits & 1 else 1
    with suppress(WireError):
        packet = parse_packet(script.piece())
        if bits & 2:
            packet.psn = side.near_psn(packet)
        for _ in range(retries):
            side.receive(packet)
            packet.psn = packet.psn + (extra & 3) & _PSN_MASK
            packet.msn = packet.msn + (extra >> 2 & 1) & _MSN_MASK
    if bits & 4:
        side.post_request(extra)
    if bits & 8:
        side.post_receive()
    if bits & 16:
        side.say_all()
    if bits & 32:
        side.pass_time()
    if bits & 64:
        side.take_completions()


def datagrams(data: bytes) -> None:
    """Give a datagram queue pair packets; what it receives begins with a sender's address."""
    script = Script(data)
    side = Guarded(qp_type=QPType.UD, shared=bool(script.number() & 1))
    for _ in range(STEPS_MAX):
        if not script:
            break
        bits, extra = script.number(), script.number()
        with suppress(WireError):
            packet = parse_packet(script.piece())
            side.receive(packet)
        if bits & 1:
            side.post_receive()
        if bits & 2:
            side.post_request(extra)
        if bits & 4:
            side.say_all()
            side.take_completions()
    side.check_end()
    with suppress(WireError):
        parse_grh(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (queue_pair, datagrams)
}


def _answers() -> tuple[tuple[int, Packet], ...]:
    """Return what is posted, and the peer's packets to it."""
    ranges = ((102, 104), (1, 0))
    return (
        (READ, Packet(PacketKind.READ_RESPONSE, QPN, flags=ONLY, payload=b"r" * 40)),
        (SWAP, Packet(PacketKind.ATOMIC_RESPONSE, QPN, flags=ONLY, compare_add=7)),
        (WRITE, Packet(PacketKind.ACK, QPN, syndrome=0x1F, msn=1, selective=ranges)),
        (WRITE, Packet(PacketKind.ACK, QPN, syndrome=0x60)),
        (WRITE, Packet(PacketKind.ACK, QPN, syndrome=0x2C)),
    )


SEEDS: dict[str, tuple[bytes, ...]] = {
    "queue_pair": (
        bytes([0, 8]) + steps(requests(), bits=16 | 8),
        bytes([1, 8]) + steps(requests(), bits=0),
        bytes([2 | 8, 8]) + ahead(),
        *(
            bytes([choices, 8]) + steps((packet,), bits=16)
            for choices in (0, 1)
            for packet in trespassers()
        ),
        bytes([4 | 32 | 16, 8]) + steps(requests()[:1] * 4, bits=1, extra=0x21),
        *(
            bytes([choices, 4]) + answered(extra, answer)
            for choices in (0, 1)
            for extra, answer in _answers()
        ),
    ),
    "datagrams": (
        b"\0" + steps(
            tuple(
                Packet(PacketKind.DATAGRAM, QPN, flags=ONLY, qkey=QKEY, payload=b"hello")
                for _ in range(4)
            ),
            bits=7,
        ),
        b"\1" + steps(PACKETS, bits=5),
    ),
}  # fmt: skip
