"""What a path tells before anything else on a stream: its own life, and no old acknowledgement."""

import pytest

from tests.rds.plane.path_world import Side, map_message
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Hold,
)
from urds.rds.types import AckMode
from urds.rds.wire.extensions import parse_handshake


def test_a_hello_waits_for_the_peers_first_frame() -> None:
    """Before, it would tell numbers of a life that may be over."""
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.begin(Hold.HELLO)
    side.receiver.sequence_expected = 78
    side.core.control(source_port=1, target_port=0, extension=bytes(16), hello=True)
    side.receive(map_message(8)[:-1])
    assert not side.core.wants_to_write()
    assert side.frames() == []
    side.receive(map_message(8)[-1:])
    assert side.core.wants_to_write()
    assert [frame.header.ack for frame in side.frames()] == [77]


def test_an_answer_does_not_replace_a_hello() -> None:
    """The peer waits for both, and they may wait for its first frame."""
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.begin(Hold.HELLO)
    side.core.control(source_port=1, target_port=0, extension=b"\x05" * 16, hello=True)
    side.core.control(source_port=0, target_port=1, extension=b"\x06" * 16, hello=True)
    side.receive(map_message())
    assert [frame.header.extension[0] for frame in side.frames()] == [5, 6]


def test_a_hello_dies_with_its_stream() -> None:
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.begin(Hold.HELLO)
    side.core.control(source_port=1, target_port=0, extension=bytes(16), hello=True)
    side.core.detach()
    side.begin(Hold.HELLO)
    side.receive(map_message())
    assert side.frames() == []


def test_nothing_is_acknowledged_before_the_peers_first_frame() -> None:
    """Also not when the handshake on another path has just shown a urds node."""
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.receiver.sequence_expected = 78
    side.begin()
    side.core.agree(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=False)
    assert not side.receiver.ack_due, "it would be due again and again"
    assert not side.core.wants_to_write()
    side.receive(map_message())
    side.core.agree(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=False)
    assert [frame.header.ack for frame in side.frames()] == [77]


@pytest.mark.parametrize(
    ("ack_mode", "told"),
    [
        (AckMode.NOT_YET, 8),
        (AckMode.PEER_ACKNOWLEDGED, 8),
        (AckMode.STREAM_ACKNOWLEDGED, None),
    ],
)
def test_a_map_tells_the_life_unless_to_a_kernel(ack_mode: AckMode, told: int | None) -> None:
    side = Side(ack_mode=ack_mode, generation=8)
    side.attach()
    (frame,) = side.frames()
    handshake = parse_handshake(frame.header.extension)
    assert handshake.generation == told
    assert (handshake.mark is None) == (told is None)
    assert (frame.header.flags, len(frame.payload)) == (HeaderFlag.CONG_BITMAP, 8192)
