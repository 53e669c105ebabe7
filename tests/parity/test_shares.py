"""No destination holds a socket: how destinations share its send account, on both planes.

The theory stands in `urds.rds.plane.python.accounts`; SO_SNDBUF is 1,000 bytes here.
"""

import errno
import select
from ipaddress import IPv4Address, ip_address

import pytest

from tests.parity.planes import LOCAL, OTHER, PEER, PEER_PORT, Remote, World
from urds.rds.constants import MSG_DONTWAIT
from urds.rds.plane.contract import (
    ALL_GROUPS,
    CongestionNotice,
    Limits,
    Mailbox,
    MailboxSettings,
)
from urds.rds.types import AckMode

SIZE = 1000
FIRST = (str(PEER), PEER_PORT)
SECOND = (str(OTHER), PEER_PORT)
THIRD, FOURTH = ((f"127.0.83.{number}", PEER_PORT) for number in (5, 6))
ABSENT_MS = 30_000


def errno_of(mailbox: Mailbox, payload_bytes: int, address: tuple[str, int]) -> int:
    """Send without waiting; return the errno of a refusal, 0 for none."""
    try:
        mailbox.sendto(bytes(payload_bytes), int(MSG_DONTWAIT), address)
    except OSError as failure:
        return failure.errno or -1
    return 0


def fill(mailbox: Mailbox, address: tuple[str, int], payload_bytes: int = 100) -> tuple[int, int]:
    """Send until it is refused; return how many messages were queued, and the errno."""
    for count in range(1000):
        code = errno_of(mailbox, payload_bytes, address)
        if code:
            return count, code
    raise AssertionError("never full")


def writable(mailbox: Mailbox) -> bool:
    return bool(ready(mailbox) & select.POLLOUT)


def readable(mailbox: Mailbox) -> bool:
    return bool(ready(mailbox) & select.POLLIN)


def ready(mailbox: Mailbox) -> int:
    poll = select.poll()
    poll.register(mailbox.fileno(), select.POLLIN | select.POLLOUT)
    shown = poll.poll(0)
    return shown[0][1] if shown else 0


def queued_bytes(world: World) -> int:
    return world.plane.snapshot().mailboxes[0].send_queued_bytes


def peer_of(world: World, address: tuple[str, int]) -> Remote:
    """Connect a peer."""
    path = world.path(IPv4Address(address[0]))
    return world.attach(path=path, ack_mode=AckMode.PEER_ACKNOWLEDGED)


def acknowledge(world: World, remote: Remote, sequence: int) -> None:
    remote.say(0, ack=sequence, source_port=0, target_port=0)
    world.turn()


@pytest.fixture
def mailbox(world: World) -> Mailbox:
    return world.mailbox(send_bytes_max=SIZE)


class TestWhoMayQueue:
    """The first account for one, the second for all others by threshold."""

    def test_the_only_one_has_all_as_rds7_says(self, world: World, mailbox: Mailbox) -> None:
        assert fill(mailbox, FIRST) == (10, errno.EAGAIN)
        assert not writable(mailbox)
        assert queued_bytes(world) == SIZE

    def test_the_others_share_as_much_by_what_is_free(self, world: World, mailbox: Mailbox) -> None:
        """Each stops where what it holds is more than what it leaves."""
        fill(mailbox, FIRST)
        assert fill(mailbox, SECOND) == (6, errno.ENOBUFS)  # 500 are free at 500
        assert fill(mailbox, THIRD) == (3, errno.ENOBUFS)  # 200 are free at 200
        assert fill(mailbox, FOURTH) == (1, errno.ENOBUFS)  # none are free at 100
        assert fill(mailbox, FIRST) == (0, errno.ENOBUFS), "no longer the only one"
        assert queued_bytes(world) == 2 * SIZE

    def test_a_destination_is_a_host_with_all_its_ports(self, mailbox: Mailbox) -> None:
        fill(mailbox, FIRST)
        assert errno_of(mailbox, 1, (str(PEER), PEER_PORT + 1)) == errno.EAGAIN

    def test_the_first_account_belongs_to_who_crosses_half(self, mailbox: Mailbox) -> None:
        for address in (FIRST, SECOND):
            assert errno_of(mailbox, 249, address) == 0
        assert errno_of(mailbox, 100, SECOND) == 0  # 598 now: it is the second's
        assert fill(mailbox, SECOND)[1] == errno.ENOBUFS
        assert fill(mailbox, FIRST) == (3, errno.ENOBUFS)  # 451 are free at 549

    def test_all_together_hold_three_times_the_size_at_most(
        self, world: World, mailbox: Mailbox
    ) -> None:
        for size in (SIZE, SIZE - 1, 400, 7):
            for number in range(5, 60):
                fill(mailbox, (f"127.0.83.{number}", 1), size)
        assert 2 * SIZE < queued_bytes(world) <= 3 * SIZE

    def test_who_holds_nothing_gets_one_message_over_the_size(self, mailbox: Mailbox) -> None:
        """Else a long one would never find room beside many short ones."""
        fill(mailbox, FIRST)
        assert errno_of(mailbox, 400, SECOND) == 0
        assert errno_of(mailbox, SIZE, THIRD) == 0
        assert errno_of(mailbox, 1, FOURTH) == errno.ENOBUFS

    def test_linux_has_one_account(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=SIZE, single_account=True)
        assert fill(mailbox, FIRST) == (10, errno.EAGAIN)
        assert fill(mailbox, SECOND) == (0, errno.EAGAIN)
        assert not writable(mailbox)

    def test_an_acknowledgement_makes_room_for_all(self, world: World, mailbox: Mailbox) -> None:
        remote = peer_of(world, SECOND)
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        fill(mailbox, THIRD)
        acknowledge(world, remote, 6)
        assert queued_bytes(world) == SIZE + 300
        assert fill(mailbox, THIRD) == (3, errno.ENOBUFS)  # 600 in all: 400 are free
        assert fill(mailbox, SECOND) == (3, errno.ENOBUFS)

    def test_an_empty_first_account_goes_to_the_next(self, world: World, mailbox: Mailbox) -> None:
        remote = peer_of(world, FIRST)
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        acknowledge(world, remote, 10)
        assert queued_bytes(world) == 600
        assert fill(mailbox, SECOND) == (4, errno.ENOBUFS), "it has the first one now"
        assert fill(mailbox, THIRD) == (6, errno.ENOBUFS)

    def test_a_loop_holds_nothing_and_passes(self, world: World, mailbox: Mailbox) -> None:
        mailbox.route(LOCAL, world.plane.loop(local=LOCAL, peer=LOCAL))
        fill(mailbox, FIRST)
        assert errno_of(mailbox, 10, (str(LOCAL), 5000)) == 0
        assert mailbox.recvfrom(100)[0] == bytes(10)
        fill(mailbox, SECOND, SIZE)
        fill(mailbox, THIRD, SIZE)
        assert errno_of(mailbox, 10, (str(LOCAL), 5000)) == errno.ENOBUFS

    def test_the_error_names_the_bytes_and_the_peer(self, mailbox: Mailbox) -> None:
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        said = f"600 bytes are queued to {OTHER}, one of several that share 1000"
        with pytest.raises(OSError, match=said):
            mailbox.sendto(bytes(100), int(MSG_DONTWAIT), SECOND)

    def test_rejected_sends_are_counted_as_of_a_congested_peer(
        self, world: World, mailbox: Mailbox
    ) -> None:
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        names = ("cong_send_error", "send_queue_full")
        assert [world.counter(name) for name in names] == [1, 2]


class TestWakingUp:
    """Who is told what, and when; nothing shows room where there is none."""

    def test_with_several_pollout_is_room_for_who_holds_nothing(
        self, world: World, mailbox: Mailbox
    ) -> None:
        remote = peer_of(world, SECOND)
        fill(mailbox, FIRST)
        assert not writable(mailbox)
        assert errno_of(mailbox, 100, SECOND) == 0
        assert writable(mailbox)
        assert errno_of(mailbox, 100, FIRST) == errno.ENOBUFS, "else a poll would spin"
        fill(mailbox, SECOND)
        fill(mailbox, THIRD, SIZE)
        assert not writable(mailbox)
        acknowledge(world, remote, 6)
        assert writable(mailbox)

    def test_several_stay_several_until_half(self, world: World, mailbox: Mailbox) -> None:
        """POLLOUT must not come and go with each answer beside a full destination."""
        first, second = peer_of(world, FIRST), peer_of(world, SECOND)
        fill(mailbox, FIRST)
        assert errno_of(mailbox, 10, SECOND) == 0
        acknowledge(world, second, 1)
        assert queued_bytes(world) == SIZE
        assert writable(mailbox)
        assert errno_of(mailbox, 100, FIRST) == errno.ENOBUFS
        acknowledge(world, first, 6)
        assert fill(mailbox, FIRST) == (6, errno.EAGAIN)
        assert not writable(mailbox)

    def test_room_is_told_as_the_end_of_congestion(self, world: World, mailbox: Mailbox) -> None:
        remote = peer_of(world, SECOND)
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        assert not readable(mailbox)
        acknowledge(world, remote, 1)
        assert readable(mailbox)
        assert errno_of(mailbox, 100, SECOND) == 0
        assert mailbox.receive(wait_ns=0) is None
        assert not readable(mailbox)

    def test_a_monitor_gets_a_notice_of_the_port(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=SIZE, monitor=True, monitor_mask=ALL_GROUPS)
        remote = peer_of(world, SECOND)
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        assert mailbox.receive(wait_ns=0) is None
        acknowledge(world, remote, 1)
        assert readable(mailbox)
        assert mailbox.receive(wait_ns=0) == CongestionNotice(1 << PEER_PORT % 64)
        assert not readable(mailbox)

    def test_a_mask_leaves_other_ports_out(self, world: World) -> None:
        mailbox = world.mailbox(
            send_bytes_max=SIZE, monitor=True, monitor_mask=1 << (PEER_PORT + 1) % 64
        )
        remote = peer_of(world, SECOND)
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        acknowledge(world, remote, 1)
        assert mailbox.receive(wait_ns=0) is None

    def test_what_is_freed_elsewhere_makes_room_too(self, world: World, mailbox: Mailbox) -> None:
        remote = peer_of(world, SECOND)
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        fill(mailbox, THIRD)
        acknowledge(world, remote, 1)
        assert not readable(mailbox), "200 are free, and it holds 300; who freed them holds 500"
        acknowledge(world, remote, 2)
        assert readable(mailbox)
        assert errno_of(mailbox, 100, THIRD) == 0

    def test_no_news_without_room(self, world: World, mailbox: Mailbox) -> None:
        """Else who waits for the notice would spin: send, be refused, be told, send."""
        remotes = [peer_of(world, address) for address in (SECOND, THIRD)]
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        assert errno_of(mailbox, 10, THIRD) == 0
        acknowledge(world, remotes[1], 1)
        assert not readable(mailbox), "600 are held, 400 are free"
        acknowledge(world, remotes[0], 1)
        assert readable(mailbox)

    def test_the_shortest_refused_message_counts(self, world: World, mailbox: Mailbox) -> None:
        remote = peer_of(world, SECOND)
        fill(mailbox, FIRST)
        assert errno_of(mailbox, SIZE, SECOND) == 0
        assert errno_of(mailbox, SIZE, THIRD) == 0
        for size in (SIZE, 5):
            assert errno_of(mailbox, size, FOURTH) == errno.ENOBUFS
        acknowledge(world, remote, 1)
        assert readable(mailbox)
        assert errno_of(mailbox, 5, FOURTH) == 0

    def test_a_larger_buffer_is_told(self, world: World, mailbox: Mailbox) -> None:
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        assert not readable(mailbox)
        mailbox.configure(MailboxSettings(send_bytes_max=2 * SIZE))
        assert readable(mailbox)
        assert errno_of(mailbox, 100, SECOND) == 0

    @pytest.mark.parametrize("address", [SECOND, None], ids=["there", "anywhere"])
    def test_a_subscriber_to_a_refused_destination_hears_of_that(
        self, world: World, mailbox: Mailbox, address: tuple[str, int] | None
    ) -> None:
        second, third = (peer_of(world, one) for one in (SECOND, THIRD))
        told: list[str] = []
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        assert errno_of(mailbox, 10, THIRD) == 0
        mailbox.subscribe(lambda: told.append("there"), room=True, address=address)
        acknowledge(world, third, 1)
        assert told == ([] if address else ["there"]), "no room there yet"
        acknowledge(world, second, 1)
        assert told == ["there"]

    def test_cancelling_makes_room(self, mailbox: Mailbox) -> None:
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        mailbox.cancel(OTHER, None)
        assert readable(mailbox)
        assert fill(mailbox, SECOND) == (6, errno.ENOBUFS)


class TestAbsentPeers:
    """What is queued to peers that are away for 30 s is in the living one's way no more."""

    def test_it_moves_and_leaves_room(self, world: World, mailbox: Mailbox) -> None:
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        world.turn(ABSENT_MS - 1)
        assert fill(mailbox, THIRD) == (3, errno.ENOBUFS)
        world.turn(1)
        assert queued_bytes(world) == 1900, "nothing is lost"
        assert fill(mailbox, FOURTH) == (4, errno.ENOBUFS)  # only the third's 300 beside it
        assert world.counter("send_given_up") == 0

    def test_room_that_comes_so_is_told(self, world: World, mailbox: Mailbox) -> None:
        peer_of(world, THIRD)
        fill(mailbox, FIRST)
        fill(mailbox, SECOND)
        assert fill(mailbox, THIRD) == (3, errno.ENOBUFS)
        assert not readable(mailbox)
        world.turn(ABSENT_MS)
        assert readable(mailbox)
        assert fill(mailbox, THIRD)[0] >= 3

    def test_an_absent_one_leaves_the_first_account_to_who_needs_it(
        self, world: World, mailbox: Mailbox
    ) -> None:
        peer_of(world, SECOND)
        fill(mailbox, FIRST)
        world.turn(ABSENT_MS)
        assert errno_of(mailbox, 1, FIRST) == errno.EAGAIN, "it is the only one"
        assert fill(mailbox, SECOND) == (10, errno.ENOBUFS)
        assert queued_bytes(world) == 2 * SIZE

    def test_the_third_account_gives_up_what_is_absent_longest(
        self, world: World, mailbox: Mailbox
    ) -> None:
        peer_of(world, FIRST)
        fill(mailbox, FIRST)
        assert fill(mailbox, SECOND)[0] == 6
        world.turn(ABSENT_MS)
        assert fill(mailbox, THIRD)[0] == 6
        world.turn(ABSENT_MS)
        assert world.counter("send_given_up") == 6
        assert queued_bytes(world) == SIZE + 600
        assert errno_of(mailbox, 1, SECOND) == errno.EHOSTUNREACH
        assert errno_of(mailbox, 1, SECOND) == 0
        assert fill(mailbox, FOURTH)[0] == 6, "the second account is whole"

    def test_after_a_thousand_deaths_the_living_have_all(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=SIZE)
        for number in range(1000):
            address = (str(ip_address("127.1.0.1") + number), PEER_PORT)
            errno_of(mailbox, 90, address)
            errno_of(mailbox, 90, address)
            if number % 5 == 4:
                world.turn(ABSENT_MS)
            if number % 100 == 0:
                assert queued_bytes(world) <= 3 * SIZE
        world.turn(ABSENT_MS)
        assert fill(mailbox, THIRD)[0] >= 6
        assert writable(mailbox)

    def test_who_comes_back_gets_all_and_its_share(self, world: World, mailbox: Mailbox) -> None:
        peer_of(world, FIRST)
        fill(mailbox, FIRST)
        assert fill(mailbox, SECOND)[0] == 6
        world.turn(ABSENT_MS)
        assert fill(mailbox, SECOND) == (0, errno.ENOBUFS)
        remote = peer_of(world, SECOND)
        world.turn()
        assert len(remote.messages()) == 6
        acknowledge(world, remote, 6)
        assert fill(mailbox, SECOND) == (6, errno.ENOBUFS)
        assert world.counter("send_given_up") == 0

    def test_linux_keeps_all(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=SIZE, single_account=True)
        fill(mailbox, FIRST)
        world.turn(2 * ABSENT_MS)
        assert queued_bytes(world) == SIZE
        assert errno_of(mailbox, 1, SECOND) == errno.EAGAIN


class TestFullPaths:
    """A path at its bound of messages, empty ones too, is in the way of its destination only."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(path_messages_max=20, flush_bytes=100)

    def fill_empty(self, mailbox: Mailbox) -> int:
        return fill(mailbox, FIRST, 0)[1]

    def test_alone_it_is_as_a_full_queue(self, mailbox: Mailbox) -> None:
        assert self.fill_empty(mailbox) == errno.EAGAIN
        assert not writable(mailbox)

    def test_with_another_way_it_counts_as_congested(self, world: World, mailbox: Mailbox) -> None:
        assert errno_of(mailbox, 1, SECOND) == 0
        remote = peer_of(world, FIRST)
        assert self.fill_empty(mailbox) == errno.ENOBUFS
        assert writable(mailbox)
        assert not readable(mailbox)
        assert errno_of(mailbox, 1, SECOND) == 0
        world.turn(1)
        count = len(remote.messages())
        assert count >= 20
        acknowledge(world, remote, count)
        assert readable(mailbox)
        assert errno_of(mailbox, 0, FIRST) == 0
