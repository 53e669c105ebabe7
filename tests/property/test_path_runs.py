"""Runs of messages that are alike: framed and taken in as a whole, with the result of the loop.

The loop over messages is the specification: each property drives two sides, one of which finds no
run long enough, and compares all that can be seen of them.
"""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from tests.rds.plane.path_world import SOURCE, TARGET, Side, message
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import Limits, Release
from urds.rds.plane.python import alike, incoming, outgoing
from urds.rds.wire.checksum import header_intact
from urds.rds.wire.header import HEADER, HEADER_BYTES

NO_RUNS = 1 << 30
COUNTS = st.integers(0, 700)
# Around the wraps of the number's last byte, of its longer words, and of the checksum.
SEQUENCES = st.one_of(
    st.integers(1, 600),
    st.integers(65_000, 66_100),
    st.integers(55_000, 57_000),
    st.integers((1 << 32) - 300, (1 << 32) + 300),
    st.integers(1, 1 << 48),
)
LIMITS = st.builds(
    Limits,
    unacked_packets_max=st.sampled_from([1, 2, 8, 1000]),
    unacked_bytes_max=st.sampled_from([1, 1000, 16 << 20]),
)


def without_runs():
    """Have the loop do everything."""
    return patch.multiple(outgoing, RUN_MIN=NO_RUNS), patch.multiple(incoming, RUN_MIN=NO_RUNS)


def sent(side: Side, batches: list[tuple[int, int, int]]) -> tuple[object, ...]:
    """Send batches of (count, payload bytes, target port); return what can be seen."""
    side.begin()
    for count, payload_bytes, target_port in batches:
        payloads = [bytes([number & 255]) * payload_bytes for number in range(count)]
        side.send(*payloads, target_port=target_port)
    data = side.write()
    own = side.outgoing
    left = (own.unacked_packets_left, own.unacked_bytes_left, own.pending_bytes, own.position)
    assert all(one[2] is side.account for one in own.unacked)
    kept = [(*one[:2], *one[3:]) for one in own.unacked]
    return data, kept, own.sequence_next, left, side.counters


@given(
    SEQUENCES,
    st.lists(
        st.tuples(COUNTS, st.sampled_from([0, 1, 64, 1000, 3000]), st.just(TARGET) | st.just(7)),
        max_size=4,
    ),
    LIMITS,
    st.booleans(),
    st.sampled_from(list(Release)),
)
def test_a_run_is_framed_as_its_messages(sequence, batches, limits, checksum, release) -> None:
    def side() -> Side:
        return Side(sequence_first=sequence, limits=limits, checksum=checksum, release=release)

    by_run = sent(side(), batches)
    framing, _ = without_runs()
    with framing:
        assert by_run == sent(side(), batches)


def test_each_checksum_of_a_run_is_that_of_its_header() -> None:
    """For every low byte at its beginning, with and without a message that asks."""
    whole = 65_535 - 64 - 30  # the sum of the other fields away from the wrap
    for sequence in (*range(whole - 620, whole - 500), *range(whole - 400, whole + 35)):
        sum_field = alike.sum_of(sequence, 0, 64, 30)
        count = min(64, alike.count_max(sequence, sum_field))
        header = HEADER.pack(sequence, 0, 64, 10, 20, 0, 0, 0, sum_field, 0, 0)
        data = alike.emit(header, [bytes(64)] * count, range(3, count, 8))
        step = HEADER_BYTES + 64
        for fields in (HEADER.unpack_from(data, index * step) for index in range(count)):
            assert fields[8] and header_intact(fields), (sequence, fields)


def received(data: bytes, cuts: list[int], *, checksum: bool) -> tuple[object, ...]:
    """Take bytes in, in pieces; return what can be seen."""
    side = Side(release=Release.PEER_ACKNOWLEDGED, checksum=checksum)
    side.begin()
    reasons = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if data[start:end]:
            reasons.append(side.receive(data[start:end]))
            if reasons[-1] is not None:
                break
    own = side.incoming
    seen = (own.sequence_expected, own.frames, own.ack_pending_messages, own.ack_pending_bytes)
    due = (own.acknowledgement_due, own.acknowledged, own.remaining())
    account = (list(side.inbox.queue), side.inbox.receive_queued_bytes)
    return reasons, seen, due, account, side.counters


@given(
    SEQUENCES,
    st.integers(40, 400),
    st.sampled_from([0, 1, 64, 500]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 399), st.integers(0, 47), st.integers(1, 255)), max_size=3),
    st.lists(st.integers(0, 60_000), max_size=3),
)
def test_a_run_is_taken_in_as_its_messages(
    sequence, count, payload_bytes, checksum, flips, cuts
) -> None:
    """Whatever bytes of headers are changed: a wrong one ends a run before it."""
    sender = Side(sequence_first=sequence, release=Release.PEER_ACKNOWLEDGED, checksum=checksum)
    sender.begin()
    sender.send(*(bytes([number & 255]) * payload_bytes for number in range(count)))
    data = bytearray(sender.write())
    for index, place, change in flips:
        data[index % count * (48 + payload_bytes) + place] ^= change
    ends = sorted(cut for cut in cuts if cut < len(data))
    by_run = received(bytes(data), ends, checksum=checksum)
    _, parsing = without_runs()
    with parsing:
        assert by_run == received(bytes(data), ends, checksum=checksum)


def test_a_message_of_another_kind_ends_a_run() -> None:
    """Long enough runs on both sides of it are taken as such: the bytes are looked at."""
    data = b"".join(
        message(
            number,
            b"x" * 64,
            source_port=SOURCE,
            target_port=TARGET,
            flags=HeaderFlag.RETRANSMITTED if number == 50 else 0,
        )
        for number in range(1, 101)
    )
    with patch.object(incoming, "payloads_of_run", wraps=alike.payloads_of_run) as looked:
        reasons, seen, *_ = received(data, [], checksum=False)
    assert (reasons, seen[0]) == ([None], 101)
    assert 2 <= looked.call_count <= 8
