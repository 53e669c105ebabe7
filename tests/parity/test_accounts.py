"""What counts against which bound: send account, messages of a path, control events; and back."""

import errno

import pytest

from tests.parity.planes import (
    ACK_DELAY_MS,
    LOCAL,
    OTHER,
    PEER,
    PEER_PORT,
    PORT,
    Remote,
    World,
    take,
)
from urds.rds.constants import MSG_DONTWAIT, MSG_PEEK, HeaderFlag
from urds.rds.plane.contract import (
    ConnectWanted,
    Control,
    Limits,
    Message,
)
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)


def errno_of(call: object, *arguments: object) -> int:
    """Return the errno of a refused call, 0 if it was not refused."""
    try:
        call(*arguments)
    except OSError as failure:
        return failure.errno
    return 0


class TestSendAccount:
    """Payload bytes until acknowledged, tested before a message is added."""

    @pytest.mark.rule("rds7-queue-full", "rds7-account-payload", "rds7-queued-until-acked")
    def test_it_is_tested_before_adding(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=100)
        assert errno_of(mailbox.sendto, bytes(99), ADDRESS) == 0
        assert errno_of(mailbox.sendto, bytes(100), ADDRESS) == 0
        assert errno_of(mailbox.sendto, b"", ADDRESS) == errno.EAGAIN
        assert world.plane.snapshot().mailboxes[0].send_queued_bytes == 199

    def test_a_message_longer_than_the_account_is_too_long(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=100)
        with pytest.raises(OSError, match="payload of 101 bytes, limit 100") as refused:
            mailbox.sendto(bytes(101), ADDRESS)
        assert refused.value.errno == errno.EMSGSIZE

    def test_each_mailbox_has_its_own(self, world: World) -> None:
        first, second = world.mailbox(1, send_bytes_max=10), world.mailbox(2, send_bytes_max=10)
        first.sendto(bytes(10), ADDRESS)
        assert errno_of(first.sendto, b"x", ADDRESS) == errno.EAGAIN
        assert errno_of(second.sendto, b"x", ADDRESS) == 0

    @pytest.mark.parametrize("gathered", [False, True])
    def test_from_half_of_it_on_messages_ask(self, world: World, gathered: bool) -> None:
        mailbox = world.mailbox(send_bytes_max=100)
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        for payload_bytes in (24, 25, 1, 0):
            if gathered:
                mailbox.send([bytes(payload_bytes)], ADDRESS, wait_ns=0)
            else:
                mailbox.sendto(bytes(payload_bytes), ADDRESS)
            world.turn(1)
        asked = [one.header.flags == HeaderFlag.ACK_REQUIRED for one in remote.messages()]
        assert asked == [False, False, True, True]

    @pytest.mark.rule("rds7-ack-purges")
    def test_an_acknowledgement_gives_room(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=10)
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        mailbox.sendto(bytes(10), ADDRESS)
        assert errno_of(mailbox.sendto, b"x", ADDRESS) == errno.EAGAIN
        remote.say(0, ack=1, source_port=0, target_port=0)
        world.turn()
        assert errno_of(mailbox.sendto, b"x", ADDRESS) == 0

    def test_a_sender_finds_its_acknowledgements_itself(self, world: World) -> None:
        """No pass of the plane in between: the writer looks when its account fills."""
        mailbox = world.mailbox(send_bytes_max=100)
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        mailbox.sendto(bytes(20), ADDRESS)
        remote.say(0, ack=1, source_port=0, target_port=0)
        mailbox.sendto(bytes(20), ADDRESS)
        assert world.plane.snapshot().mailboxes[0].send_queued_bytes == 20


class TestPathMessages:
    """A path holds so many messages, empty ones too."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(path_messages_max=1000, flush_bytes=1000)

    def fill(self, world: World) -> tuple[object, int]:
        mailbox = world.mailbox()
        count = 0
        while not errno_of(mailbox.sendto, b"", ADDRESS):
            count += 1
            assert count < 2000
        return mailbox, count

    def test_empty_messages_are_not_free(self, world: World) -> None:
        """The bound is judged whenever a tail is: it may be passed by one tail."""
        mailbox, count = self.fill(world)
        assert 1000 <= count < 1030
        assert errno_of(mailbox.sendto, b"", ADDRESS) == errno.EAGAIN

    def test_a_stream_that_takes_nothing_more_leaves_the_bound(self, world: World) -> None:
        """No write ends there: it is judged before each."""
        mailbox = world.mailbox()
        world.attach(buffer_bytes=4608)
        count = 0
        while not errno_of(mailbox.sendto, b"", ADDRESS):
            count += 1
            assert count < 2000
        assert 1000 <= count < 1030

    def test_the_default_bound_is_65536(self) -> None:
        assert Limits().path_messages_max == 65536

    def test_acknowledgements_give_room(self, world: World) -> None:
        mailbox, count = self.fill(world)
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        world.turn(1)
        assert errno_of(mailbox.sendto, b"", ADDRESS) == errno.EAGAIN
        remote.say(0, ack=count, source_port=0, target_port=0)
        world.turn()
        assert errno_of(mailbox.sendto, b"", ADDRESS) == 0

    @pytest.mark.parametrize("how", ["cancel", "give up", "close"])
    def test_what_is_taken_back_gives_room_without_a_stream(self, world: World, how: str) -> None:
        mailbox, _ = self.fill(world)
        other = world.mailbox(5001)
        assert errno_of(other.sendto, b"", ADDRESS) == errno.EAGAIN
        if how == "cancel":
            mailbox.cancel(None, None)
        elif how == "give up":
            world.path().drop_queue()
        else:
            mailbox.close(0)
        assert errno_of(other.sendto, b"", ADDRESS) == 0


class TestControlBudget:
    """A flood of pings becomes neither memory nor events without end."""

    BURST = 64
    number = 0  # of the last ping

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(control_events_max=self.BURST, control_interval_ns=10_000_000)

    def pings(self, remote: Remote, world: World, count: int, *, apart: bool = False) -> int:
        """Say so many pings, each read by itself if `apart`; return how many become events."""
        for _ in range(count):
            self.number += 1
            remote.say(self.number, source_port=9, target_port=0)
            if apart:
                world.plane.progress()
        return len([event for event in world.turn() if isinstance(event, Control)])

    def test_a_burst_is_heard_and_the_rest_is_dropped_and_counted(self, world: World) -> None:
        remote = world.attach()
        assert self.pings(remote, world, 40) == 40
        assert self.pings(remote, world, 60, apart=True) == self.BURST - 40
        assert world.counter("recv_drop_control_full") == 36
        assert world.counter("recv_ping") == 100

    def test_it_comes_back_with_time(self, world: World) -> None:
        remote = world.attach()
        assert self.pings(remote, world, 100) == self.BURST
        world.turn(30)
        assert self.pings(remote, world, 100) == 3
        world.turn(10_000)
        assert self.pings(remote, world, 100) == self.BURST

    def test_to_connect_again_buys_nothing(self, world: World) -> None:
        assert self.pings(world.attach(), world, 100) == self.BURST
        assert self.pings(world.attach(), world, 100) == 0

    def test_each_stream_has_its_handshake(self, world: World) -> None:
        """Without it a urds node is taken for a kernel, and loses what a reset interrupts."""
        self.pings(world.attach(), world, 100)
        for _ in range(2):
            remote = world.attach()
            for _ in range(9):
                remote.say(0, source_port=1, target_port=0)
            handshakes = [event for event in world.turn() if isinstance(event, Control)]
            assert len(handshakes) == 4

    def test_maps_are_taken_beyond_it_and_are_no_events(self, world: World) -> None:
        """A map that is dropped could leave a sender waiting for good."""
        remote = world.attach()
        self.pings(remote, world, 100)
        assert not world.path().peer_is_congested(3)
        remote.say_map(b"\x08" + bytes(8191))
        assert world.turn() == []
        assert world.path().peer_is_congested(3)


class TestTakingBack:
    """Cancelling by address and port, giving up, closing."""

    @pytest.mark.rule("rds7-cancel-address", "rds7-cancel-destination")
    def test_exactly_that_destination(self, world: World) -> None:
        mailbox = world.mailbox()
        for peer, port in ((PEER, 1), (PEER, 2), (OTHER, 1)):
            mailbox.sendto(b"x", (str(peer), port))
        assert mailbox.cancel(PEER, 1) == 1
        assert mailbox.cancel(PEER, 9) == 0
        rows = world.plane.snapshot().send_queue
        assert sorted((row.peer, row.peer_port) for row in rows) == [(PEER, 2), (OTHER, 1)]

    @pytest.mark.rule("rds7-cancel-all")
    def test_everything_of_one_socket(self, world: World) -> None:
        mailbox, other = world.mailbox(1), world.mailbox(2)
        for peer in (PEER, OTHER):
            mailbox.sendto(b"x", (str(peer), 1))
            other.sendto(b"y", (str(peer), 1))
        assert mailbox.cancel(None, None) == 2
        assert world.counter("send_cancelled") == 2
        assert {row.local_port for row in world.plane.snapshot().send_queue} == {2}

    def test_giving_up_is_told_once_to_each_sender(self, world: World) -> None:
        mailbox = world.mailbox()
        mailbox.sendto(b"x", ADDRESS)
        mailbox.sendto(b"x", (str(OTHER), 1))
        assert world.path().drop_queue() == 1
        assert world.counter("send_given_up") == 1
        assert errno_of(mailbox.sendto, b"y", (str(OTHER), 1)) == 0
        assert errno_of(mailbox.sendto, b"y", ADDRESS) == errno.EHOSTUNREACH
        world.turn()
        assert errno_of(mailbox.sendto, b"y", ADDRESS) == 0
        assert world.turn() == [ConnectWanted(world.path())]

    def test_a_new_life_of_the_peer_gives_back_what_the_old_one_took(self, world: World) -> None:
        mailbox = world.mailbox()
        old = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        mailbox.sendto(b"taken", ADDRESS)
        old.close()
        world.turn()
        mailbox.sendto(b"kept", ADDRESS)
        assert world.path().restart_peer() == 1
        assert [frame.payload for frame in world.attach().messages()] == [b"kept"]

    @pytest.mark.rule("rds7-close-cancels")
    def test_a_closed_mailbox_lingers_then_cancels(self, world: World) -> None:
        mailbox = world.mailbox()
        mailbox.sendto(b"x", ADDRESS)
        mailbox.close()
        world.turn(999)
        assert len(world.plane.snapshot().send_queue) == 1
        world.turn(2)
        assert world.plane.snapshot().send_queue == []
        assert world.counter("send_cancelled") == world.counter("send_linger_over") == 1

    def test_without_linger_it_cancels_at_once(self, world: World) -> None:
        mailbox = world.mailbox()
        mailbox.sendto(b"x", ADDRESS)
        mailbox.close(0)
        assert world.plane.snapshot().send_queue == []

    def test_messages_for_a_closed_port_are_dropped_and_counted(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        remote.say(1, b"queued")
        world.turn()
        mailbox.close()
        remote.say(2, b"late")
        world.turn()
        assert world.counter("recv_drop_closed") == 1
        assert world.counter("recv_drop_no_sock") == 1
        for call in (lambda: mailbox.sendto(b"x", ADDRESS), lambda: mailbox.recvfrom(1)):
            assert errno_of(call) == errno.EBADF


class TestReceiving:
    """`recvfrom` and `receive`: what a message tells, peeking, cutting, waiting not at all."""

    def test_recvfrom_cuts_and_discards(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        remote.say(1, b"abcdef")
        remote.say(2, b"next")
        world.turn()
        assert mailbox.recvfrom(3, int(MSG_PEEK)) == (b"abc", ADDRESS)
        assert mailbox.recvfrom(3) == (b"abc", ADDRESS)
        assert mailbox.recvfrom(100) == (b"next", ADDRESS)
        assert errno_of(mailbox.recvfrom, 1, int(MSG_DONTWAIT)) == errno.EAGAIN

    def test_a_message_tells_everything(self, world: World) -> None:
        mailbox = world.mailbox(timestamps=True, traces=(2, 0))
        remote = world.attach()
        remote.say(1, b"x", extension=bytes(range(16)))
        world.turn()
        world.now_ns += 5
        message = mailbox.receive(wait_ns=0)
        assert isinstance(message, Message)
        assert (message.payload, message.source) == (b"x", ADDRESS)
        assert message.extension == bytes(range(16))
        assert message.time_ns > 0
        assert message.trace == ((2, 5), (0, 0))

    def test_without_asking_it_tells_no_time(self, world: World) -> None:
        mailbox = world.mailbox()
        world.attach().say(1, b"x")
        world.turn()
        assert mailbox.receive(wait_ns=0) == Message(b"x", ADDRESS, b"", 0, ())

    def test_buffers_are_gathered(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        assert mailbox.send([b"ab", bytearray(b"cd"), memoryview(b"ef")], ADDRESS, wait_ns=0) == 6
        assert [frame.payload for frame in remote.messages()] == [b"abcdef"]

    def test_a_small_buffer_may_change_after_the_call(self, world: World) -> None:
        mailbox = world.mailbox()
        buffer = bytearray(b"before")
        mailbox.sendto(buffer, ADDRESS)
        buffer[:] = b"after!"
        assert [frame.payload for frame in world.attach().messages()] == [b"before"]


class TestSnapshot:
    """Tables as rds-info prints them."""

    def test_a_path_tells_its_numbers(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        mailbox.sendto(b"1", ADDRESS)
        remote.say(41, b"x")
        remote.write(bytes(20))
        world.turn()
        world.turn(ACK_DELAY_MS)
        (row,) = world.plane.snapshot().paths
        assert (row.local, row.peer, row.index) == (LOCAL, PEER, 0)
        assert (row.transport, row.tos, row.rdma) == ("tcp", 0, None)
        assert (row.up, row.sending, row.held) == (True, False, False)
        assert (row.sequence_next, row.sequence_expected) == (2, 42)
        assert (row.unsent_messages, row.unacknowledged_messages) == (0, 1)
        assert (row.header_remaining_bytes, row.data_remaining_bytes) == (28, 0)
        assert row.stream_sent_bytes == row.stream_acknowledged_bytes == 8240 + 49 + 48

    def test_messages_are_in_one_table_each(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        mailbox.sendto(b"unacked", ADDRESS)
        remote.say(1, b"received")
        world.turn()
        world.path().detach().close()
        mailbox.sendto(b"unsent!!", ADDRESS)
        found = world.plane.snapshot()
        tables = found.send_queue, found.retransmit_queue, found.receive_queue
        rows = [[(row.sequence, row.payload_bytes) for row in table] for table in tables]
        assert rows == [[(0, 8)], [(1, 7)], [(0, 8)]]

    def test_a_mailbox_tells_its_accounts(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=5000, receive_bytes_max=6000)
        remote = world.attach()
        mailbox.sendto(bytes(10), ADDRESS)
        remote.say(1, bytes(20))
        world.turn()
        (row,) = world.plane.snapshot().mailboxes
        assert (row.local, row.port, row.send_bytes_max, row.receive_bytes_max) == (
            LOCAL, PORT, 5000, 6000,
        )  # fmt: skip
        assert (row.send_queued_bytes, row.receive_queued_bytes) == (10, 20)
        assert (row.receive_queued_messages, row.congested, row.inode) == (1, False, 0)
        assert mailbox.fileno() > 0
        assert world.plane.snapshot().mailboxes[0].inode > 0

    def test_counters_add_up(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        for number in range(1, 6):
            remote.say(number, bytes(10))
        world.turn()
        take_two = [mailbox.receive(wait_ns=0) for _ in range(2)]
        counters = world.plane.snapshot().counters
        assert len(take_two) == 2
        assert (counters["recv_queued"], counters["recv_delivered"]) == (5, 2)
        assert counters["recv_bytes_added_to_sock"] == 50
        assert counters["recv_bytes_freed_fromsock"] == 20
        assert take(mailbox) == [bytes(10)] * 3
