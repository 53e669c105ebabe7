"""Queue pairs that share a path with little room: each is served as often as the others."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs.shm_world import Side
from urds.verbs.engine.numbers import WROpcode
from urds.verbs.engine.packets import Packet
from urds.verbs.engine.work import AddressVector, SendWR
from urds.verbs.providers.shm.adapter import ShmAdapter

QUEUE_PAIRS, ROOM, SENDS = 5, 4, 40


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    made = Side(tmp_path / "meet")
    if type(made.adapter) is not ShmAdapter:
        made.close()
        pytest.skip("the compiled engine has a test of its own")
    yield made
    made.close()


def test_no_queue_pair_is_served_twice_before_all_others_were(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is served uses the room up, and waits until all others had the same."""
    adapter, room = side.adapter, [0]
    peer = AddressVector(b"p" * 16)
    sent: Counter[int] = Counter()

    def transmit(packet: Packet, _: AddressVector) -> None:
        room[0] -= 1
        sent[packet.target_qpn] += 1

    monkeypatch.setattr(adapter, "_has_room", lambda _: room[0] > 0)
    monkeypatch.setattr(adapter, "_transmit_packet", transmit)
    for number in range(QUEUE_PAIRS):
        qp = side.new_qp()
        side.lead(qp, peer.dgid, 100 + number)
        for _ in range(SENDS):
            side.post(SendWR(0, WROpcode.SEND, side.piece(8)), qp)
    with adapter.lock:
        for number in range(QUEUE_PAIRS * SENDS // ROOM):
            if number % QUEUE_PAIRS == 0:
                assert len(set(sent.values())) <= 1
            room[0] = ROOM
            adapter._resume(peer)
    assert sent == {100 + number: SENDS for number in range(QUEUE_PAIRS)}
