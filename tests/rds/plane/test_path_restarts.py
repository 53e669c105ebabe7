"""A peer that began a new life: recognised before its messages can pass for old repeats."""

import pytest

from tests.rds.plane.path_world import Side, map_message, message, messages
from urds.rds.constants import HeaderFlag
from urds.rds.types import AckMode
from urds.rds.wire.extensions import Handshake, emit_handshake

RETRANSMITTED = HeaderFlag.RETRANSMITTED


def kernel(*numbers: int) -> Side:
    """Return a side that heard those numbers from a kernel, whose connection then broke."""
    side = Side(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
    side.attach()
    side.receive(messages(numbers))
    side.got()
    side.core.detach()
    side.attach()
    return side


def probe(sequence: int, generation: int | None, *, repeated: bool = False) -> bytes:
    """Return a kernel's probe; up to linux v6.19 it has no generation."""
    extension = emit_handshake(Handshake(npaths=8, generation=generation))
    flags = RETRANSMITTED if repeated else HeaderFlag(0)
    return message(sequence, source_port=1, target_port=0, flags=flags, extension=extension)


def test_a_lower_number_without_the_flag_is_taken_and_followed() -> None:
    side = kernel(100, 101)
    side.receive(messages([1, 2, 3]))
    assert side.got() == [b"1", b"2", b"3"]
    assert side.receiver.sequence_expected == 4


def test_a_repeat_below_the_whole_last_stream_is_a_new_life() -> None:
    side = kernel(100, 101)
    side.receive(messages([1, 2], flags=RETRANSMITTED))
    assert side.got() == [b"1", b"2"]
    assert side.receiver.restarted


def test_repeats_within_the_last_stream_are_old() -> None:
    side = kernel(100, 101, 102)
    side.receive(messages([101, 102, 103], flags=RETRANSMITTED))
    assert side.got() == [b"103"]
    assert not side.receiver.restarted


def test_a_stream_without_traffic_does_not_forget_the_one_before() -> None:
    side = kernel(100, 101)
    side.core.detach()
    side.attach()
    side.receive(messages([1], flags=RETRANSMITTED))
    assert side.got() == [b"1"]


def test_repeats_of_the_new_life_are_dropped_as_any_others() -> None:
    side = kernel(100, 101)
    side.receive(messages([1, 2], flags=RETRANSMITTED))
    side.core.detach()
    side.attach()
    side.receive(messages([1, 2, 3], flags=RETRANSMITTED))
    assert side.got() == [b"1", b"2", b"3"]


def repeats(*numbers: int) -> bytes:
    return messages(numbers, flags=RETRANSMITTED)


# What comes on one connection and on the next; what is new of it, and whether it is another life.
# linux v7.0 and later number their lives; kernels up to 6.19 probe only while they know nothing of
# us, so that a second probe is a new life.
LIVES = {
    "another generation": (
        probe(1, 7) + messages(range(2, 50)), probe(2, 8, repeated=True) + repeats(3), [b"3"], True,
    ),
    "the same generation": (
        probe(1, 7) + messages(range(2, 50)), repeats(49) + probe(50, 7) + repeats(49), [], False,
    ),
    "a second probe": (
        probe(1, None) + messages(range(2, 50)), probe(2, None, repeated=True) + repeats(3),
        [b"3"], True,
    ),
    "the first probe repeated": (
        probe(1, None) + messages([2, 3]), probe(1, None, repeated=True) + repeats(2, 3), [], False,
    ),
}  # fmt: skip


@pytest.mark.rule("wire-generation-two-failures")
@pytest.mark.parametrize("kind", LIVES)
def test_a_probe_tells_a_new_life_from_repeats(kind: str) -> None:
    before, after, new, restarted = LIVES[kind]
    side = Side(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
    if "generation" in kind:
        side.receiver.generations.generation = 7
    side.attach()
    side.receive(before)
    side.got()
    side.core.detach()
    side.attach()
    side.receive(after)
    assert side.got() == new
    assert side.receiver.restarted is restarted
    if kind == "the first probe repeated":
        assert side.counters.recv_drop_old_seq == 3


class TestOwnNode:
    """A urds node says in its maps that it restarted; the rules for kernels are off."""

    @staticmethod
    def side() -> Side:
        """Return a side whose peer's life 7 sent 100 and 101 on a stream that broke."""
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.attach()
        side.receive(map_message(7) + messages([100, 101]))
        side.got()
        side.core.detach()
        side.attach()
        return side

    @pytest.mark.parametrize("numbers", [[1], [50, 51]])
    def test_old_repeats_stay_old_however_low(self, numbers: list[int]) -> None:
        side = self.side()
        side.receive(messages(numbers, flags=RETRANSMITTED))
        assert side.got() == []
        assert not side.receiver.restarted

    def test_what_came_on_a_stream_before_its_word_stays_received(self) -> None:
        """A life may be heard on several streams before one lasts until it tells its generation."""
        side = self.side()
        side.receive(messages([500]))
        side.core.detach()
        side.attach()
        side.core.restart_peer()
        side.receive(messages([500, 501], flags=RETRANSMITTED))
        assert side.got() == [b"500", b"501"]

    def test_what_came_before_its_word_on_this_stream_stays_received(self) -> None:
        side = self.side()
        side.receive(messages([500]))
        side.core.restart_peer()
        side.receive(messages([500], flags=RETRANSMITTED))
        assert side.got() == [b"500"]

    @pytest.mark.parametrize("generation", [6, 8], ids=["lower", "higher"])
    @pytest.mark.parametrize("numbers", [[1, 2], [99, 100], [101, 102], [500, 501]])
    def test_another_life_counts_afresh(self, generation: int, numbers: list[int]) -> None:
        """Its clock may have been set back: only the generation tells, whichever is greater."""
        side = self.side()
        side.receive(map_message(generation) + messages(numbers, flags=RETRANSMITTED))
        assert side.got() == [b"%d" % number for number in numbers]

    def test_what_another_life_repeats_on_its_next_stream_is_old(self) -> None:
        side = self.side()
        side.receive(map_message(8) + messages([1, 2], flags=RETRANSMITTED))
        side.core.detach()
        side.attach()
        side.receive(map_message(8) + messages([1, 2, 3], flags=RETRANSMITTED))
        assert side.got() == [b"1", b"2", b"3"]
        assert side.counters.recv_drop_old_seq == 2

    @pytest.mark.parametrize("generation", [7, None])
    def test_the_same_life_goes_on(self, generation: int | None) -> None:
        """A node that takes us for a kernel meanwhile does not tell its life."""
        side = self.side()
        side.receive(map_message(generation) + messages([100, 101, 102], flags=RETRANSMITTED))
        assert side.got() == [b"102"]

    def test_a_first_word_begins_no_life(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.attach()
        side.receive(map_message() + messages([100, 101]))
        side.core.detach()
        side.attach()
        side.receive(map_message(7) + messages([100, 101, 102], flags=RETRANSMITTED))
        assert side.got() == [b"100", b"101", b"102"]

    def test_a_later_map_changes_no_number(self) -> None:
        side = self.side()
        side.receive(map_message(7) + messages([102]) + map_message(7, b"\1" + bytes(8191)))
        side.receive(messages([102], flags=RETRANSMITTED))
        assert side.got() == [b"102"]

    def test_a_kernels_extension_in_a_map_is_no_life(self) -> None:
        """Without the mark nothing there is ours to read."""
        extension = emit_handshake(Handshake(generation=8))
        side = self.side()
        side.receive(
            message(
                0,
                bytes(8192),
                flags=HeaderFlag.CONG_BITMAP,
                source_port=0,
                target_port=0,
                extension=extension,
            )
        )
        side.receive(messages([101], flags=RETRANSMITTED))
        assert side.got() == []

    def test_the_acknowledgement_of_an_earlier_life_is_not_told_to_the_next(self) -> None:
        """Else it would be beyond what the next has sent, which breaks the protocol."""
        survivor, newborn = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED), Side(generation=8)
        survivor.attach()
        survivor.receive(map_message(7) + messages([900]))
        survivor.core.detach()
        survivor.attach()
        newborn.attach()
        hello = {"source_port": 1, "target_port": 0, "extension": bytes(16), "hello": True}
        survivor.core.control(**hello)
        newborn.send(b"first", b"second")
        newborn.receive(survivor.write())
        survivor.receive(newborn.write())
        newborn.receive(survivor.write())
        newborn.core.agree(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=False)
        assert newborn.receive(messages([1])) is None
        assert newborn.sender.message_count() == 0
        assert survivor.got() == [b"900", b"first", b"second"]
