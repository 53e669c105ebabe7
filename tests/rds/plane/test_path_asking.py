"""When a path asks its peer for an acknowledgement: with a message, or behind the last one."""

import pytest

from tests.rds.plane.path_world import Side
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Limits,
)
from urds.rds.types import AckMode

ACK_REQUIRED = HeaderFlag.ACK_REQUIRED


class TestAskingForAcknowledgements:
    """ACK_REQUIRED after so many packets or bytes, and when the account is half full."""

    @staticmethod
    def asked(side: Side) -> list[int]:
        return [
            index
            for index, frame in enumerate(side.messages(), 1)
            if frame.header.flags & ACK_REQUIRED
        ]

    @pytest.mark.rule("rds7-max-unacked", "rds7-ack-default")
    def test_after_eight_messages(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.send(*[b"x"] * 20)
        assert self.asked(side) == [8, 16]
        side.send(*[b"x"] * 5)
        assert self.asked(side) == [4]
        assert side.counters.send_ack_required == 3

    @pytest.mark.rule("rds7-max-unacked")
    def test_after_so_many_bytes(self) -> None:
        limits = Limits(unacked_packets_max=1000, unacked_bytes_max=250)
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED, limits=limits)
        side.begin()
        side.send(*[b"x" * 100] * 7)
        assert self.asked(side) == [3, 6]

    def test_with_the_last_message_when_an_account_is_half_full(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.sender.ack_wanted = True
        side.send(b"1", b"2", b"3")
        assert self.asked(side) == [3]
        side.send(b"4")
        assert self.asked(side) == []

    @pytest.mark.parametrize("ack_mode", [AckMode.STREAM_ACKNOWLEDGED, AckMode.NOT_YET])
    def test_never_of_linux(self, ack_mode: AckMode) -> None:
        side = Side(ack_mode=ack_mode)
        side.begin()
        side.sender.ack_wanted = True
        side.send(*[b"x"] * 50)
        assert self.asked(side) == []

    @staticmethod
    def questions(side: Side) -> list[int]:
        """Write everything; return where bare headers stand that ask, among all frames."""
        return [
            index
            for index, frame in enumerate(side.frames())
            if frame.header.flags == ACK_REQUIRED and frame.header.target_port == 0
        ]

    def test_who_waits_asks_behind_the_last_message(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.send(b"1")
        side.write()
        side.core.request_ack()
        assert side.core.wants_to_write()
        assert self.questions(side) == [0]
        assert not side.core.wants_to_write()
        side.send(b"2", b"3")
        side.core.request_ack()
        assert self.questions(side) == [2]
        assert side.counters.send_ack_required == 2

    def test_a_question_is_answered_and_takes_no_number(self) -> None:
        side, far = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED), self.far()
        side.begin()
        side.send(b"1")
        far.receive(side.write())
        side.core.request_ack()
        far.receive(side.write())
        (answer,) = far.frames()
        assert (answer.header.ack, answer.header.flags) == (1, HeaderFlag(0))
        side.receive(answer.header.emit())
        assert side.account.send_queued_bytes == 0
        assert side.write() == b""  # an answer is not answered

    @staticmethod
    def far() -> Side:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        return side

    def test_no_stream_is_asked_about_nothing(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.core.request_ack()
        assert side.write() == b""
        side.send(b"1")
        assert self.questions(side) == []

    def test_a_question_waits_for_what_has_not_left(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.send(b"1")
        side.core.request_ack()
        assert not side.core.wants_to_write()
        side.begin()
        assert side.write() == b""  # made with the map already, see `begin`
        assert side.counters.send_ack_required == 1

    @pytest.mark.parametrize("ack_mode", [AckMode.STREAM_ACKNOWLEDGED, AckMode.NOT_YET])
    def test_others_than_own_nodes_get_no_question(self, ack_mode: AckMode) -> None:
        side = Side(ack_mode=ack_mode)
        side.begin()
        side.send(b"1")
        side.core.request_ack()
        assert self.questions(side) == []
        assert not side.core.wants_to_write()

    def test_repeats_ask(self) -> None:
        side = Side(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        side.begin()
        side.send(b"a", b"b")
        side.write()
        side.core.detach()
        side.begin()
        assert side.write() == b""  # made with the map already, see `begin`
        assert side.counters.send_retransmitted == 2
