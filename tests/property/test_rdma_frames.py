"""Frames for all values, and a core that any bytes are thrown at."""

from hypothesis import given
from hypothesis import strategies as st

from tests.rds.transports.rdma_core.rdma_core_world import (
    FRAGMENT,
    Side,
    ack_only,
    frames,
    map_frames,
    read,
)
from urds.rds.constants import HeaderFlag
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.frames import MessageHeader, fragment_count
from urds.rds.wire.header import HEADER_BYTES, Header


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


fields = st.fixed_dictionaries(
    {
        "sequence": unsigned(64),
        "payload_bytes": unsigned(32),
        "source_port": unsigned(16),
        "target_port": unsigned(16),
        "flags": unsigned(8).map(HeaderFlag),
        "extension": st.binary(min_size=16, max_size=16),
    }
)


@given(fields, unsigned(64), unsigned(8), st.binary(max_size=100))
def test_a_frame_is_the_header_of_the_wire_and_its_payload(
    values: dict[str, object], ack: int, credit: int, payload: bytes
) -> None:
    expected = Header(ack=ack, credit=credit, **values).emit(checksum=True)
    header = MessageHeader(**{**values, "flags": int(values["flags"])})
    assert header.emit(acknowledgement=ack, credit=credit, payload=payload) == expected + payload


@given(st.integers(0, 1 << 20))
def test_fragments_cover_a_message(byte_count: int) -> None:
    count = fragment_count(byte_count)
    assert count * FRAGMENT >= byte_count
    assert count == 1 or (count - 1) * FRAGMENT < byte_count


frame = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda values, payload: Header(**values).emit(checksum=True) + payload,
        st.fixed_dictionaries(
            {
                "sequence": st.integers(0, 5),
                "ack": st.sampled_from([0, 0, 0, 1, 2, 3]),
                "payload_bytes": st.sampled_from([0, 1, 10, 4096, 4097, 9000, 1 << 31]),
                "source_port": st.integers(0, 2),
                "target_port": st.integers(0, 2),
                "flags": unsigned(8).map(HeaderFlag),
                "credit": unsigned(8),
                "extension": st.binary(min_size=16, max_size=16),
            }
        ),
        st.sampled_from([b"", b"x", bytes(10), bytes(4096), bytes(4097)]),
    ),
    st.sampled_from(
        [*frames(1, bytes(9000)), *frames(2, b"x"), *map_frames(bytes(8192)), ack_only(1)]
    ),
)


@given(st.booleans(), st.lists(frame, max_size=30))
def test_any_bytes_are_taken_or_end_the_connection(flow_control: bool, data: list[bytes]) -> None:
    """Nothing raises, nothing grows past its bound, and what leaves is well-formed."""
    limits = CoreLimits(message_bytes_max=9000, messages_max=4, flow_control=flow_control)
    side = Side(limits)
    side.core.offer(20)
    side.begin(credits=20)
    side.send(b"a", b"b")
    for one in data:
        if side.receive(one) is not None:
            side.reconnect()
        for seen in side.take():
            assert len(seen.payload) <= FRAGMENT
            assert seen.header.checksum
        assert side.core.outgoing.message_count() <= 4
    assert all(len(payload) <= 9000 for payload in side.payloads())
    assert all(len(one) == 8192 for one in side.maps)


@given(st.binary(max_size=9000), st.integers(0, HEADER_BYTES * 8 - 1))
def test_one_flipped_bit_of_a_header_is_noticed_before_anything_is_taken(
    payload: bytes, bit: int
) -> None:
    """Holds while the checksum is not made 0, which means unchecked; it never is 0 in a frame."""
    data = bytearray(frames(1, payload)[0])
    data[bit // 8] ^= 1 << bit % 8
    side = Side()
    side.begin()
    if not any(data[30:32]):
        return
    assert side.receive(bytes(data)) is not None
    assert side.counters.recv_drop_bad_checksum == 1
    assert side.got == []
    assert side.take() == []
    assert read(frames(1, payload)[0]).payload == payload[:FRAGMENT]
