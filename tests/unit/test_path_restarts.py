"""A peer that began a new life: recognised before its messages can pass for old repeats."""

import pytest

from tests.unit.path_world import Side, message, messages
from urds.constants import HeaderFlag
from urds.dataplane.base import Release
from urds.wire.exthdr import Handshake, emit_handshake

RETRANSMITTED = HeaderFlag.RETRANSMITTED


def kernel(*numbers: int) -> Side:
    """Return a side that heard those numbers from a kernel, whose connection then broke."""
    side = Side(release=Release.STREAM_ACKNOWLEDGED)
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
    assert side.incoming.sequence_expected == 4


def test_a_repeat_below_the_whole_last_stream_is_a_new_life() -> None:
    side = kernel(100, 101)
    side.receive(messages([1, 2], flags=RETRANSMITTED))
    assert side.got() == [b"1", b"2"]
    assert side.incoming.restarted


def test_repeats_within_the_last_stream_are_old() -> None:
    side = kernel(100, 101, 102)
    side.receive(messages([101, 102, 103], flags=RETRANSMITTED))
    assert side.got() == [b"103"]
    assert not side.incoming.restarted


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


class TestProbeWithGeneration:
    """linux v7.0 and later number their lives."""

    @pytest.mark.rule("wire-generation-two-failures")
    def test_another_generation_is_a_new_life(self) -> None:
        side = Side(release=Release.STREAM_ACKNOWLEDGED)
        side.incoming.remember_generation(7)
        side.attach()
        side.receive(probe(1, 7) + messages(range(2, 50)))
        side.core.detach()
        side.got()
        side.attach()
        side.receive(probe(2, 8, repeated=True) + messages([3], flags=RETRANSMITTED))
        assert side.got() == [b"3"]
        assert side.incoming.restarted

    @pytest.mark.rule("wire-generation-two-failures")
    def test_the_same_generation_is_the_same_life(self) -> None:
        side = Side(release=Release.STREAM_ACKNOWLEDGED)
        side.incoming.remember_generation(7)
        side.attach()
        side.receive(probe(1, 7) + messages(range(2, 50)))
        side.core.detach()
        side.got()
        side.attach()
        side.receive(messages([49], flags=RETRANSMITTED) + probe(50, 7))
        side.receive(messages([49], flags=RETRANSMITTED))
        assert side.got() == []
        assert not side.incoming.restarted


class TestProbeWithout:
    """Kernels up to 6.19 probe only while they know nothing of us."""

    def test_a_second_probe_is_a_new_life(self) -> None:
        side = Side(release=Release.STREAM_ACKNOWLEDGED)
        side.attach()
        side.receive(probe(1, None) + messages(range(2, 50)))
        side.got()
        side.core.detach()
        side.attach()
        side.receive(probe(2, None, repeated=True) + messages([3], flags=RETRANSMITTED))
        assert side.got() == [b"3"]
        assert side.incoming.restarted

    def test_the_first_probe_repeated_is_not(self) -> None:
        side = Side(release=Release.STREAM_ACKNOWLEDGED)
        side.attach()
        side.receive(probe(1, None) + messages([2, 3]))
        side.got()
        side.core.detach()
        side.attach()
        side.receive(probe(1, None, repeated=True) + messages([2, 3], flags=RETRANSMITTED))
        assert side.got() == []
        assert not side.incoming.restarted
        assert side.counters.recv_drop_old_seq == 3


class TestOwnNode:
    """An own node says that it restarted; the rules for kernels are off."""

    @staticmethod
    def side() -> Side:
        side = Side(release=Release.PEER_ACKNOWLEDGED)
        side.attach()
        side.receive(messages([100, 101]))
        side.got()
        side.core.detach()
        side.attach()
        return side

    @pytest.mark.parametrize("numbers", [[1], [50, 51]])
    def test_old_repeats_stay_old_however_low(self, numbers: list[int]) -> None:
        side = self.side()
        side.receive(messages(numbers, flags=RETRANSMITTED))
        assert side.got() == []
        assert not side.incoming.restarted

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
