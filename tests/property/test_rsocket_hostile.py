"""A peer of a stream that says anything: cut with a reason, or served within the settings' bounds.

The machine and what must hold at each step are those of the fuzz target; here the words are nearly
good, so that they get far.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.rsocket_machines import (
    IOMAP_SLOTS,
    RECEIVE_QUEUE,
    WINDOW_BYTES_MAX,
    Besieged,
    private_data,
)
from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import StreamState
from urds.rsocket.wire.stream import (
    ARGUMENT_MAX,
    CREDIT_HAS_ENTRY,
    IOMAP_ENTRY_BYTES,
    SGE_BYTES,
    ConnectData,
    Control,
    IomapEntry,
    Op,
    Sge,
    emit_imm_data,
)

addresses = st.one_of(st.integers(1 << 41, (1 << 41) + 8000), st.integers(0, (1 << 64) - 1))
lengths = st.one_of(st.integers(0, 5000), st.sampled_from([0, 1, (1 << 32) - 1]))
keys = st.sampled_from([0x101, 0x101, 0x102])
orders = st.sampled_from(["little", "big"])
entries = st.builds(
    lambda place, sge, order: ("write", place * SGE_BYTES, sge.emit(order)),
    st.integers(0, 4),
    st.builds(Sge, addresses, keys, lengths),
    orders,
)
mappings = st.builds(
    lambda slot, entry, order: ("write", 64 + slot * IOMAP_ENTRY_BYTES, entry.emit(order)),
    st.integers(0, IOMAP_SLOTS),
    st.builds(IomapEntry, st.integers(0, 2000) | addresses, addresses, keys, lengths),
    orders,
)
arguments = st.one_of(
    st.integers(0, 40),
    st.integers(0, 2100),
    st.integers(0, 40).map(lambda limit: limit | CREDIT_HAS_ENTRY),
    st.integers(0, ARGUMENT_MAX),
)
words = st.one_of(
    st.builds(emit_imm_data, st.sampled_from([Op.DATA, Op.DATA, Op.CREDIT, Op.IOMAP]), arguments),
    st.builds(emit_imm_data, st.just(Op.CONTROL), st.sampled_from(Control)),
    st.integers(0, (1 << 32) - 1),
).map(lambda imm_data: ("say", imm_data, b""))
acts = st.builds(
    lambda choice, amount: ("act", choice, amount), st.integers(0, 11), st.integers(0, 255)
)
steps = st.lists(
    st.one_of(words, words, entries, mappings, acts, acts, st.just(("complete", 0, 0))),
    max_size=60,
)


def play(side: Besieged, steps: list[tuple[str, int, object]]) -> None:
    for kind, first, second in steps:
        if kind == "write":
            assert isinstance(second, bytes)
            side.write(first, second)
        elif kind == "say":
            side.say(first)
        elif kind == "act":
            assert isinstance(second, int)
            side.act(first, second)
        else:
            side.complete()


@given(st.integers(0, 31), st.booleans(), st.booleans(), steps)
def test_nothing_a_peer_says_breaks_the_core(
    choices: int, is_urds: bool, is_big: bool, steps: list[tuple[str, int, object]]
) -> None:
    side = Besieged(choices, private_data(is_urds=is_urds, is_big=is_big))
    play(side, steps)
    side.close()


@given(st.binary(min_size=36, max_size=60) | st.just(private_data()), st.data())
def test_bad_private_data_leave_the_core_as_it_was(raw: bytes, data: st.DataObject) -> None:
    """`Besieged` checks that a core which refused is new, and that its memory comes back."""
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, min(len(raw), 40) - 1))
        raw = raw[:place] + data.draw(st.binary(min_size=1, max_size=8)) + raw[place + 1 :]
    try:
        side = Besieged(0, raw)
    except RemoteProtocolError as error:
        reason = str(error)
    else:
        reason = ""
        assert side.stream.lifecycle.state is StreamState.OPEN
        side.close()
    peer = ConnectData.parse(raw) if len(raw) >= 40 else None
    is_bad = peer is None or peer.version != 1 or not peer.credits or not peer.target_sgl.length
    assert reason or not is_bad


@given(st.integers(0, 31), steps)
def test_what_arrived_before_the_cut_stays_readable(
    choices: int, steps: list[tuple[str, int, object]]
) -> None:
    side = Besieged(choices, private_data(is_urds=not choices & 4))
    side.write(
        side.connect_data.data_buffer.address - side.connect_data.target_sgl.address, b"said before"
    )
    side.say(emit_imm_data(Op.DATA, 11))
    play(side, [step for step in steps if step[0] in ("say", "complete")])
    side.say(emit_imm_data(Op.IOMAP, IOMAP_SLOTS))  # no such slot
    assert side.stream.lifecycle.state in (StreamState.FAILED, StreamState.OVER)
    assert side.stream.receive_ring.receive(11) == b"said before"
    side.close()


@pytest.mark.parametrize("is_urds", [True, False])
def test_a_flood_of_messages_ends_at_the_credits(is_urds: bool) -> None:
    side = Besieged(0, private_data(is_urds=is_urds))
    for _ in range(RECEIVE_QUEUE):
        side.say(emit_imm_data(Op.DATA, 1))
        assert side.stream.lifecycle.state is StreamState.OPEN
    side.say(emit_imm_data(Op.DATA, 1))
    assert side.stream.lifecycle.state is StreamState.FAILED
    assert "without a credit" in side.stream.lifecycle.reason
    side.close()


@pytest.mark.parametrize("is_urds", [True, False])
def test_a_flood_of_updates_costs_no_memory(is_urds: bool) -> None:
    """Limits that say nothing new, and for ever."""
    side = Besieged(0, private_data(is_urds=is_urds))
    held = side.source.byte_count
    for _ in range(3000):
        side.say(emit_imm_data(Op.CREDIT, 20))
        side.say(emit_imm_data(Op.CONTROL, Control.KEEPALIVE))
        side.complete()
    assert side.stream.lifecycle.state is StreamState.OPEN
    assert side.source.byte_count == held <= WINDOW_BYTES_MAX
    # And it still serves: all published space is taken and given back.
    for _ in range(50):
        side.say(emit_imm_data(Op.DATA, 512))
        assert side.stream.receive_ring.receive(512) == bytes(512), side.stream.lifecycle.reason
        side.post()
        side.complete()
    side.close()
