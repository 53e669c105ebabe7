"""When our port counts as congested, what is told to peers, and what their maps do to senders."""

import errno
from collections.abc import Sequence

import pytest

from tests.parity.planes import (
    EMPTY_MAP,
    LOCAL,
    PEER,
    PEER_PORT,
    PORT,
    Remote,
    World,
    message,
    take,
)
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    CongestionNotice,
    ConnectWanted,
    Limits,
    Mailbox,
    Message,
)
from urds.rds.types import AckMode
from urds.rds.wire.congestion_map import CongestionMap

ADDRESS = (str(PEER), PEER_PORT)
FULL_MAP = CongestionMap([PEER_PORT]).emit()


def judgements(world: World, ms: float = 0) -> list[bool]:
    """Let time pass and make a pass; return our port's bit if it changed since the last look."""
    world.turn(ms)
    rows = world.plane.snapshot().mailboxes
    on = any(row.congested for row in rows if row.port == PORT)
    changed = on is not world.was_congested
    world.was_congested = on
    return [on] if changed else []


def maps(remote: Remote) -> list[list[int]]:
    """Return the ports of each map that the plane has sent."""
    return [
        sorted(CongestionMap.parse(frame.payload))
        for frame in remote.frames()
        if frame.header.flags == HeaderFlag.CONG_BITMAP
    ]


class TestOurPort:
    """Set at two looks a millisecond apart, or at once over four times; clear below half."""

    def fill(self, world: World, *sizes: int) -> tuple[Mailbox, Remote]:
        mailbox = world.mailbox(receive_bytes_max=1000)
        remote = world.attach()
        world.turn()
        remote.frames()
        for number, size in enumerate(sizes, 1):
            remote.say(number, bytes(size))
        return mailbox, remote

    @pytest.mark.rule("rds7-congested-when-full", "wire-congested")
    def test_two_looks(self, world: World) -> None:
        _, remote = self.fill(world, 600, 600)
        assert judgements(world) == []
        assert judgements(world, 0.9) == []
        assert judgements(world, 0.1) == [True]
        assert maps(remote) == [[PORT]]
        assert judgements(world, 5) == []
        assert maps(remote) == []

    def test_a_short_visit_over_the_buffer_is_no_congestion(self, world: World) -> None:
        mailbox, remote = self.fill(world, 600, 600)
        world.turn(0.5)
        mailbox.receive(wait_ns=0)
        assert judgements(world, 5) == []
        assert maps(remote) == []

    def test_at_once_over_four_times(self, world: World) -> None:
        _, remote = self.fill(world, 4001)
        assert judgements(world) == [True]
        assert maps(remote) == [[PORT]]

    @pytest.mark.parametrize("size", [1000, 4000])
    def test_the_bounds_themselves_are_not_over(self, world: World, size: int) -> None:
        self.fill(world, size)
        assert judgements(world) == []

    @pytest.mark.rule("rds7-congestion-update", "wire-congestion-update")
    def test_clear_below_half(self, world: World) -> None:
        mailbox, remote = self.fill(world, 3502, 500, 499)
        assert judgements(world) == [True]
        assert maps(remote) == [[PORT]]
        mailbox.receive(wait_ns=0)
        assert judgements(world) == []
        mailbox.receive(wait_ns=0)
        assert judgements(world) == [False]
        assert maps(remote) == [[]]

    @pytest.mark.rule("rds7-congested-still-accepts", "wire-congestion-accept")
    def test_a_congested_port_still_accepts(self, world: World) -> None:
        mailbox, remote = self.fill(world, 5000)
        world.turn()
        remote.say(2, b"late")
        world.turn()
        assert [len(payload) for payload in take(mailbox)] == [5000, 4]

    def test_a_new_stream_opens_with_the_map_as_it_is(self, world: World) -> None:
        self.fill(world, 5000)
        world.turn()
        remote = world.attach()
        assert maps(remote) == [[PORT]]

    def test_closing_clears_the_port(self, world: World) -> None:
        mailbox, remote = self.fill(world, 5000)
        world.turn()
        assert maps(remote) == [[PORT]]
        mailbox.close()
        assert maps(remote) == [[]]

    def test_closing_between_two_looks_ends_the_looking(self, world: World) -> None:
        mailbox, remote = self.fill(world, 600, 600)
        world.turn()
        mailbox.close()
        assert judgements(world, 5) == []
        assert maps(remote) == []

    def test_a_larger_buffer_ends_it(self, world: World) -> None:
        mailbox, remote = self.fill(world, 5000)
        assert judgements(world) == [True]
        mailbox.configure(type(mailbox.settings)(receive_bytes_max=100_000))
        assert judgements(world) == [False]
        assert maps(remote) == [[PORT], []]


class TestTheHardBound:
    """Four times the buffer and 16 MiB: then the path is not read until half; nothing is lost."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(receive_hard_bytes=10_000)

    def fill(self, world: World) -> tuple[Mailbox, Remote]:
        mailbox = world.mailbox(receive_bytes_max=1000)
        remote = world.attach()
        for number in range(1, 4):
            remote.say(number, bytes(5000))
        return mailbox, remote

    def test_reading_stops_and_goes_on_at_half(self, world: World) -> None:
        mailbox, remote = self.fill(world)
        world.turn()
        assert world.counter("recv_paused") == 1
        remote.say(4, b"waits")
        assert world.turn(1) == []
        assert world.plane.snapshot().mailboxes[0].receive_queued_messages == 3
        mailbox.receive(wait_ns=0)
        world.turn()
        assert world.plane.snapshot().mailboxes[0].receive_queued_messages == 2
        mailbox.receive(wait_ns=0)
        world.turn()
        assert [len(payload) for payload in take(mailbox)] == [5000, 5]

    def test_a_paused_path_does_not_keep_polls_awake(self, world: World) -> None:
        _, remote = self.fill(world)
        world.turn()
        remote.say(4, b"waits")
        remote.close()  # hang-up and error are told to every member of a poll set
        assert [world.plane.progress() for _ in range(3)] == [0, 0, 0]

    def test_what_waited_is_read_to_its_end(self, world: World) -> None:
        mailbox, remote = self.fill(world)
        world.turn()
        remote.say(4, b"waits")
        remote.close()
        world.turn()
        payloads = take(mailbox)
        world.turn()
        assert [len(payload) for payload in payloads + take(mailbox)] == [5000, 5000, 5000, 5]

    def test_closing_the_mailbox_lets_the_path_go(self, world: World) -> None:
        mailbox, remote = self.fill(world)
        other = world.mailbox(5001)
        world.turn()
        remote.say(4, b"for another", target_port=5001)
        mailbox.close()
        world.turn()
        assert take(other) == [b"for another"]


class TestMessagesWithoutPayload:
    """They fill no buffer. Beyond 4,096 messages a run of them from one source counts as one."""

    COUNT = 20_000

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(receive_hard_factor=0, receive_hard_bytes=1 << 20)

    def fill(self, world: World, sources: Sequence[int], **settings: object) -> Mailbox:
        """Have messages come from these ports in turn, with what they acknowledge at the end."""
        mailbox = world.mailbox(**settings)
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        mailbox.sendto(b"mine", ADDRESS)
        for first in range(1, self.COUNT, 1000):
            remote.write(
                *(
                    message(number, source_port=sources[number % len(sources)], target_port=PORT)
                    for number in range(first, first + 1000)
                )
            )
            world.turn()
            while remote.stream.waiting() and not world.counter("recv_paused"):
                world.turn()
            if world.counter("recv_paused"):
                break
        remote.say(self.COUNT + 1, b"the last", ack=1)
        world.turn()
        return mailbox

    def test_those_of_one_socket_pause_nothing(self, world: World) -> None:
        mailbox = self.fill(world, [PEER_PORT])
        (row,) = world.plane.snapshot().mailboxes
        assert row.receive_queued_messages == self.COUNT + 1
        assert row.send_queued_bytes == 0, "its acknowledgement was read"
        assert world.counter("recv_paused") == 0
        assert len(world.plane.snapshot().receive_queue) == self.COUNT + 1
        assert world.counter("recv_delivered") == 0
        empty = (b"", ADDRESS)
        first = mailbox.receive(wait_ns=0, peek=True)
        assert isinstance(first, Message) and first[:2] == empty
        assert [mailbox.recvfrom(10) for _ in range(self.COUNT)] == [empty] * self.COUNT
        assert mailbox.recvfrom(10) == (b"the last", ADDRESS)
        assert mailbox.receive(wait_ns=0) is None
        assert world.counter("recv_delivered") == self.COUNT + 2, "with the look"

    def test_those_that_alternate_do(self, world: World) -> None:
        """At 1 MiB, 128 bytes each: docs/differences.md."""
        self.fill(world, [PEER_PORT, PEER_PORT + 1])
        assert world.counter("recv_paused") == 1
        (row,) = world.plane.snapshot().mailboxes
        assert (1 << 20) // 128 < row.receive_queued_messages < self.COUNT
        assert row.send_queued_bytes == 4

    def test_those_with_times_count_twice(self, world: World) -> None:
        self.fill(world, [PEER_PORT], timestamps=True)
        assert world.counter("recv_paused") == 1
        (row,) = world.plane.snapshot().mailboxes
        assert (1 << 20) // 256 < row.receive_queued_messages < (1 << 20) // 128

    def test_closing_drops_each(self, world: World) -> None:
        self.fill(world, [PEER_PORT]).close()
        assert world.counter("recv_drop_closed") == self.COUNT + 1

    def test_within_the_process_they_are_counted_too(self, world: World) -> None:
        target, sender = world.mailbox(), world.mailbox(5001)
        sender.route(LOCAL, world.plane.loop(local=LOCAL, peer=LOCAL))
        for _ in range(self.COUNT):
            sender.sendto(b"", (str(LOCAL), PORT))
        sender.sendto(b"the last", (str(LOCAL), PORT))
        assert take(target) == [b""] * self.COUNT + [b"the last"]


class TestTheirPort:
    """A congested peer gives ENOBUFS at once or blocks; its next map wakes."""

    @pytest.mark.rule("rds7-send-congested", "rds7-congested-sender-stops")
    def test_sending_to_it_is_refused(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        mailbox.sendto(b"before", ADDRESS)
        remote.say_map(FULL_MAP)
        world.turn()
        for _ in range(2):
            with pytest.raises(OSError) as refused:
                mailbox.sendto(b"x", ADDRESS)
            assert refused.value.errno == errno.ENOBUFS
        mailbox.sendto(b"another port", (str(PEER), PEER_PORT + 1))
        assert world.counter("cong_send_error") == 2

    def test_a_refused_send_asks_for_a_stream_where_there_is_none(self, world: World) -> None:
        """Else the map of a peer that is gone would be in force for ever."""
        mailbox = world.mailbox()
        remote = world.attach()
        remote.say_map(FULL_MAP)
        world.turn()
        remote.close()
        world.turn()
        with pytest.raises(OSError) as refused:
            mailbox.sendto(b"x", ADDRESS)
        assert refused.value.errno == errno.ENOBUFS
        assert [type(event) for event in world.turn()] == [ConnectWanted]
        with pytest.raises(OSError):
            mailbox.sendto(b"x", ADDRESS)
        assert world.turn() == [], "once per outage"

    @pytest.mark.rule("rds7-uncongested-sender-resumes")
    def test_a_clear_map_ends_it(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        remote.say_map(FULL_MAP)
        world.turn()
        with pytest.raises(OSError):
            mailbox.sendto(b"x", ADDRESS)
        remote.say_map(EMPTY_MAP)
        world.turn()
        assert mailbox.sendto(b"x", ADDRESS) == 1

    def test_every_port_has_its_own_bit(self, world: World) -> None:
        """Also for destinations that are known already, whose messages take the short way."""
        mailbox = world.mailbox()
        remote = world.attach()
        ports = (4000, 4001, 4007, 4008, 65535)
        for round_of_maps in range(2):
            for port in ports:
                remote.say_map(EMPTY_MAP)
                world.turn()
                for other in ports:
                    mailbox.sendto(b"known", (str(PEER), other))
                remote.say_map(CongestionMap([port]).emit())
                world.turn()
                for other in ports:
                    if other != port:
                        mailbox.sendto(b"free", (str(PEER), other))
                with pytest.raises(OSError) as refused:
                    mailbox.sendto(b"x", (str(PEER), port))
                assert refused.value.errno == errno.ENOBUFS
            assert world.counter("cong_send_error") == len(ports) * (round_of_maps + 1)

    def test_the_full_monitor_is_told_of_the_groups_that_refused(self, world: World) -> None:
        mailbox = world.mailbox(monitor=True)
        remote = world.attach()
        remote.say_map(FULL_MAP)
        world.turn()
        with pytest.raises(OSError):
            mailbox.sendto(b"x", ADDRESS)
        assert mailbox.receive(wait_ns=0) is None
        remote.say_map(EMPTY_MAP)
        world.turn()
        assert mailbox.receive(wait_ns=0) == CongestionNotice(1 << PEER_PORT % 64)
        assert mailbox.receive(wait_ns=0) is None

    @pytest.mark.rule("rds7-monitor-mask", "rds7-monitor-match")
    @pytest.mark.parametrize("watched", [True, False])
    def test_a_mask_is_told_of_its_groups_without_an_error(
        self, world: World, watched: bool
    ) -> None:
        group = PEER_PORT % 64
        mailbox = world.mailbox(monitor=True, monitor_mask=1 << (group if watched else group + 1))
        remote = world.attach()
        for data in (FULL_MAP, EMPTY_MAP):
            remote.say_map(data)
            world.turn()
        notice = mailbox.receive(wait_ns=0)
        assert notice == (CongestionNotice(1 << group) if watched else None)

    def test_a_notice_comes_before_messages(self, world: World) -> None:
        mailbox = world.mailbox(monitor=True, monitor_mask=1 << PEER_PORT % 64)
        remote = world.attach()
        remote.say(1, b"message")
        for data in (FULL_MAP, EMPTY_MAP):
            remote.say_map(data)
            world.turn()
        assert isinstance(mailbox.receive(wait_ns=0), CongestionNotice)
        assert take(mailbox) == [b"message"]

    def test_without_the_monitor_no_socket_is_told(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        for data in (FULL_MAP, EMPTY_MAP):
            remote.say_map(data)
            world.turn()
        assert mailbox.receive(wait_ns=0) is None


class TestLoop:
    """Addresses of one process: congestion without a wire."""

    def test_a_full_mailbox_refuses_its_neighbours(self, world: World) -> None:
        target, sender = world.mailbox(receive_bytes_max=1000), world.mailbox(5001)
        sender.route(LOCAL, world.plane.loop(local=LOCAL, peer=LOCAL))
        here = (str(LOCAL), PORT)
        sender.sendto(bytes(4001), here)
        with pytest.raises(OSError) as refused:
            sender.sendto(b"x", here)
        assert refused.value.errno == errno.ENOBUFS
        assert judgements(world) == [True]
        assert len(take(target)) == 1
        assert judgements(world) == [False]
        sender.sendto(b"x", here)
        assert take(target) == [b"x"]

    def test_a_message_is_there_at_once_and_owes_nothing(self, world: World) -> None:
        target, sender = world.mailbox(), world.mailbox(5001)
        sender.route(LOCAL, world.plane.loop(local=LOCAL, peer=LOCAL))
        sender.sendto(b"x", (str(LOCAL), PORT))
        assert target.recvfrom(10) == (b"x", (str(LOCAL), 5001))
        assert {row.send_queued_bytes for row in world.plane.snapshot().mailboxes} == {0}

    def test_port_zero_answers(self, world: World) -> None:
        sender = world.mailbox(5001)
        sender.route(LOCAL, world.plane.loop(local=LOCAL, peer=LOCAL))
        sender.sendto(b"ping", (str(LOCAL), 0))
        assert sender.recvfrom(10) == (b"", (str(LOCAL), 0))


def test_acknowledgements_pass_while_a_mailbox_is_full(world: World) -> None:
    mailbox = world.mailbox(receive_bytes_max=1000)
    remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    mailbox.sendto(b"mine", ADDRESS)
    remote.say(1, bytes(50_000))
    remote.say(2, bytes(50_000), ack=1)
    world.turn()
    assert world.plane.snapshot().mailboxes[0].send_queued_bytes == 0
