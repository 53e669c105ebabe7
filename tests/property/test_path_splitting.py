"""However the bytes of a stream are cut into reads, they are the same messages."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.rds.plane.path_world import Side, message
from urds.rds.constants import HeaderFlag
from urds.rds.types import AckMode

PAYLOADS = st.one_of(
    st.binary(max_size=200),
    st.integers(8000, 8400).map(bytes),
    st.integers(60_000, 140_000).map(bytes),
)
FRAMES = st.tuples(
    PAYLOADS,
    st.sampled_from([HeaderFlag(0), HeaderFlag.ACK_REQUIRED, HeaderFlag.RETRANSMITTED]),
    st.sampled_from([(4000, 5000), (4001, 5000), (4000, 5001), (9, 0)]),
    st.sampled_from([bytes(16), bytes(range(16))]),
)


def result(data: bytes, cuts: list[int]) -> tuple[object, ...]:
    """Return everything that a receiver has learnt from the bytes."""
    side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    side.attach()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        if start < end:
            assert side.receive(data[start:end]) is None
        assert side.receiver.partial.bytes_wanted() > 0
    return (
        list(side.inbox.queue),
        side.inbox.receive_queued_bytes,
        list(side.receiver.controls),
        side.receiver.sequence_expected,
        side.receiver.ack_pending_messages,
        side.receiver.ack_pending_bytes,
        side.receiver.ack_due,
        side.receiver.frames,
        side.receiver.partial.remaining(),
        side.receiver.peer_map,
        side.counters,
    )


@given(
    frames=st.lists(FRAMES, max_size=8),
    with_map=st.booleans(),
    kept=st.integers(0, 60_000),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=12),
)
def test_any_split_gives_the_same_result(
    frames: list[tuple[bytes, HeaderFlag, tuple[int, int], bytes]],
    with_map: bool,
    kept: int,
    cuts: list[int],
) -> None:
    """The last message may be partial: what is missing is told the same as well."""
    data = b""
    if with_map:
        data = message(0, bytes(8192), flags=HeaderFlag.CONG_BITMAP, source_port=0, target_port=0)
    for number, (payload, flags, (source, target), extension) in enumerate(frames, 1):
        data += message(number, payload, flags=flags, source_port=source, target_port=target,
                          extension=extension)  # fmt: skip
    data += message(99, bytes(60_000))[:kept]
    assert result(data, cuts) == result(data, [])


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_no_bytes_make_it_raise(data: bytes, cuts: list[int]) -> None:
    """An unknown peer's bytes become messages, a reason to end the stream, or a wait for more."""
    side = Side(checksum=True)
    side.attach()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        if side.receive(data[start:end]) is not None:
            return
    assert sum(side.receiver.partial.remaining()) >= 0


@given(st.binary(min_size=48, max_size=48), st.binary(max_size=64))
def test_any_header_is_judged(header: bytes, rest: bytes) -> None:
    """The payload length is small, so that the message is whole and gets to the judgement."""
    data = header[:16] + bytes(3) + header[19:]
    for ack_mode in AckMode:
        side = Side(ack_mode=ack_mode)
        side.attach()
        side.receive(data + bytes(256) + rest)
