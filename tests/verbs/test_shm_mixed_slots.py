"""One memory format: the slots of Python against the channels of the compiled engine."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator
from typing import Any, Final

import pytest

pytest.importorskip("urds_native")  # as the next module, of which a skip would leave a part

from tests.verbs.test_shm_engine import ADDRESS, CHANNEL_BYTES, Side
from urds.common.passed_files import sealed_file
from urds.verbs.engine.numbers import WCStatus, WROpcode
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.engine.work import RecvWR, SendWR
from urds.verbs.providers.shm import slot_packets, slots

WHOLE: Final = PacketFlag.FIRST | PacketFlag.LAST | PacketFlag.ACK_REQUEST


class PythonSide:
    """The side that accepted, as slots of Python; its queue pair is the test."""

    def __init__(self, file: int) -> None:
        self.gid = bytes([0xFD, 9]) + bytes(14)
        self.qpn = 99
        self._mapping = mmap.mmap(file, CHANNEL_BYTES)
        self._directions = [self._direction(0), self._direction(1)]
        self.reader = slots.SlotReader(self._directions[0])
        self.writer = slots.SlotWriter(self._directions[1])

    def _direction(self, number: int) -> Any:
        words = number * 2048
        first = 4096 + number * (slots.SLOTS_BYTES + slots.RING_BYTES)
        ring = first + slots.SLOTS_BYTES
        with memoryview(self._mapping) as whole:
            return slots.Direction(
                whole[words : words + 2048],
                whole[first:ring],
                whole[ring : ring + slots.RING_BYTES],
            )

    def send(self, packet: Packet) -> None:
        """Publish a packet."""
        self.writer.write(*slot_packets.emit_slot(packet))

    def take(self) -> Packet:
        """Take the packet that is next, with a copy of its payload."""
        slot = self.reader.take()
        assert slot is not None
        packet: Packet = slot_packets.parse_slot(slot)
        packet.payload = bytes(packet.payload)
        self.reader.free()
        return packet

    def close(self) -> None:
        """Release the memory."""
        for direction in self._directions:
            direction.close()
        self._mapping.close()


@pytest.fixture
def pair() -> Iterator[tuple[Side, PythonSide]]:
    file = sealed_file("urds-test-channel", CHANNEL_BYTES)
    compiled, python = Side(0, memory_bytes=1 << 20), PythonSide(file)
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        compiled.engine.attach(python.gid, file, own.fileno(), True)
        compiled.connect(python)
        os.close(file)
        yield compiled, python
    python.close()


def sent_to(compiled: Side, kind: PacketKind, psn: int, **fields: Any) -> Packet:
    """Return a packet to the compiled side's queue pair."""
    return Packet(kind, compiled.qpn, psn, WHOLE, **fields)


def test_messages_of_python_slots_arrive(pair: tuple[Side, PythonSide]) -> None:
    compiled, python = pair
    for psn, size in enumerate((0, 1, 80, 81, 5000, 200_000)):
        compiled.qp.post_recv(RecvWR(psn, [compiled.piece(0, 262_144)]))
        payload = bytes([psn + 1]) * size
        python.send(sent_to(compiled, PacketKind.SEND, psn, msn=psn + 1, payload=payload))
        (wc,) = compiled.cq.poll(1)
        assert (wc.wr_id, wc.byte_len, wc.status) == (psn, size, WCStatus.SUCCESS)
        assert compiled.memory[:size] == payload
    assert python.reader.take() is None, "acknowledgements wait"
    for _ in range(2):
        compiled.engine.progress()
    packet = python.take()
    assert (packet.kind, packet.target_qpn, packet.psn) == (PacketKind.ACK, python.qpn, 5)
    assert packet.syndrome <= Syndrome.ACK


def test_messages_of_the_engine_arrive_and_an_acknowledgement_rides_back(
    pair: tuple[Side, PythonSide],
) -> None:
    compiled, python = pair
    compiled.memory[:40_000] = os.urandom(40_000)
    for number, size in enumerate((8, 81, 40_000)):
        compiled.qp.post_send(SendWR(number, WROpcode.SEND, [compiled.piece(0, size)]))
    received = [python.take() for _ in range(4)]
    assert [packet.psn for packet in received] == [0, 1, 2, 3]
    assert [packet.offset for packet in received] == [0, 0, 0, 32_768]
    assert received[2].payload + received[3].payload == compiled.memory[:40_000]
    compiled.qp.post_recv(RecvWR(7, [compiled.piece(0, 64)]))
    answer = sent_to(compiled, PacketKind.SEND, 0, msn=1, payload=b"answer")
    answer.acknowledged = 3
    python.send(answer)
    assert [wc.wr_id for wc in compiled.cq.poll(8)] == [0, 1, 2, 7]


def test_operands_of_atomics_are_the_same(pair: tuple[Side, PythonSide]) -> None:
    compiled, python = pair
    compiled.memory[:8] = (40).to_bytes(8, "little")
    key = compiled.region.rkey
    add = {"address": ADDRESS, "rkey": key, "compare_add": 2}
    python.send(sent_to(compiled, PacketKind.ATOMIC_ADD, 0, **add))
    swap = {"address": ADDRESS, "rkey": key, "compare_add": 42, "swap": 7}
    python.send(sent_to(compiled, PacketKind.MASKED_SWAP, 1, **swap))
    compiled.engine.progress()
    answers = [python.take(), python.take()]
    assert [packet.kind for packet in answers] == [PacketKind.ATOMIC_RESPONSE] * 2
    assert [packet.compare_add for packet in answers] == [40, 42]
    assert compiled.memory[:8] == (7).to_bytes(8, "little")


def test_room_is_told_to_either_side(pair: tuple[Side, PythonSide]) -> None:
    compiled, python = pair
    payload = bytes(60_000)
    for number in range(60):
        compiled.qp.post_recv(RecvWR(number, [compiled.piece(0, 60_000)]))
        compiled.qp.post_send(SendWR(number, WROpcode.SEND, [compiled.piece(0, 60_000)]))
    for psn in range(60):
        while not python.writer.has_room(len(payload)):
            assert compiled.engine.progress()
        python.send(sent_to(compiled, PacketKind.SEND, psn, msn=psn + 1, payload=payload))
    found = 0
    while found < 120:
        compiled.engine.progress()
        while (slot := python.reader.take()) is not None:
            found += slot.fields[0] == PacketKind.SEND
            python.reader.free()
    assert len(compiled.cq.poll(64)) == 60
