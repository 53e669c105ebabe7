"""The descriptor of a mailbox: four states, every way to look at it, level-triggered."""

import select
from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest

from tests.parity.planes import LOCAL, OTHER, PEER, PEER_PORT, PORT, World, take
from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import AtomicOperation, Limits, Mailbox, OperationNotice
from urds.rds.types import AckMode
from urds.rds.wire.congestion_map import CongestionMap

ADDRESS = (str(PEER), PEER_PORT)
Look = Callable[[int], tuple[bool, bool]]


def by_poll(descriptor: int) -> tuple[bool, bool]:
    poll = select.poll()
    poll.register(
        descriptor, select.POLLIN | select.POLLRDNORM | select.POLLOUT | select.POLLWRNORM
    )
    mask = dict(poll.poll(0)).get(descriptor, 0)
    assert bool(mask & select.POLLIN) is bool(mask & select.POLLRDNORM)
    assert bool(mask & select.POLLOUT) is bool(mask & select.POLLWRNORM)
    return bool(mask & select.POLLIN), bool(mask & select.POLLOUT)


def by_epoll(descriptor: int) -> tuple[bool, bool]:
    with select.epoll() as poll:
        poll.register(descriptor, select.EPOLLIN | select.EPOLLOUT)
        mask = dict(poll.poll(0)).get(descriptor, 0)
    return bool(mask & select.EPOLLIN), bool(mask & select.EPOLLOUT)


def by_select(descriptor: int) -> tuple[bool, bool]:
    reads, writes, _ = select.select([descriptor], [descriptor], [], 0)
    return bool(reads), bool(writes)


each_way = pytest.mark.parametrize("look", [by_poll, by_epoll, by_select])


def fill(mailbox: Mailbox) -> None:
    """Send until the account is full."""
    mailbox.sendto(bytes(1000), ADDRESS)


@pytest.mark.rule("rds7-poll-in", "rds7-poll-out")
@each_way
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("queued", [False, True])
def test_all_four_states(world: World, look: Look, queued: bool, full: bool) -> None:
    """Made after the fact, and made before it, a descriptor shows the same; looked at twice too."""
    mailbox = world.mailbox(send_bytes_max=1000)
    early = world.mailbox(5001, send_bytes_max=1000)
    early.fileno()
    remote = world.attach()
    for box in (mailbox, early):
        if queued:
            remote.say(box.port, b"x", target_port=box.port)
        if full:
            fill(box)
    world.turn()
    for box in (mailbox, early):
        for _ in range(2):
            assert look(box.fileno()) == (queued, not full)


@each_way
def test_it_follows_every_change(world: World, look: Look) -> None:
    mailbox = world.mailbox(send_bytes_max=1000)
    remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    descriptor = mailbox.fileno()
    for number in range(1, 4):
        assert look(descriptor) == (False, True)
        remote.say(number, b"x")
        world.turn()
        assert look(descriptor) == (True, True)
        fill(mailbox)
        assert look(descriptor) == (True, False)
        mailbox.recvfrom(10)
        assert look(descriptor) == (False, False)
        remote.say(0, ack=number, source_port=0, target_port=0)
        world.turn()
    assert mailbox.fileno() == descriptor


def test_it_stays_readable_until_the_last_message_is_taken(world: World) -> None:
    mailbox = world.mailbox()
    remote = world.attach()
    descriptor = mailbox.fileno()
    for number in range(1, 4):
        remote.say(number, b"x")
    world.turn()
    for left in (2, 1, 0):
        mailbox.receive(wait_ns=0)
        assert by_poll(descriptor)[0] is bool(left)


def test_peeking_changes_nothing(world: World) -> None:
    mailbox = world.mailbox()
    world.attach().say(1, b"x")
    descriptor = mailbox.fileno()
    world.turn()
    mailbox.receive(wait_ns=0, peek=True)
    assert by_poll(descriptor) == (True, True)


def test_a_small_account_that_fills_in_a_burst_shows_it(world: World) -> None:
    """The send that fills it neither flushes nor asks anything: it must show the change itself."""
    mailbox = world.mailbox(send_bytes_max=1000)
    world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    descriptor = mailbox.fileno()
    for _ in range(10):
        mailbox.sendto(bytes(100), ADDRESS)
    assert by_poll(descriptor) == (False, False)


@pytest.mark.parametrize("how", ["cancel", "configure", "give up", "restart"])
def test_every_way_to_gain_room_shows_it(world: World, how: str) -> None:
    mailbox = world.mailbox(send_bytes_max=1000)
    world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
    descriptor = mailbox.fileno()
    fill(mailbox)
    assert by_poll(descriptor) == (False, False)
    if how == "cancel":
        mailbox.cancel(None, None)
    elif how == "configure":
        mailbox.configure(type(mailbox.settings)(send_bytes_max=2000))
    elif how == "give up":
        world.path().drop_queue()
    else:
        world.path().restart_peer()
    world.turn()
    assert by_poll(descriptor) == (False, True)


@pytest.mark.rule("rds7-poll-congested-out")
def test_a_congested_peer_leaves_it_writable(world: World) -> None:
    """POLLOUT is about room here; only the message to that port is refused."""
    mailbox = world.mailbox()
    descriptor = mailbox.fileno()
    world.attach().say_map(CongestionMap([PEER_PORT]).emit())
    world.turn()
    assert by_poll(descriptor) == (False, True)


@pytest.mark.rule("rds7-poll-wakes-on-update")
def test_an_update_after_enobufs_wakes_a_poller(world: World) -> None:
    mailbox = world.mailbox()
    descriptor = mailbox.fileno()
    remote = world.attach()
    remote.say_map(CongestionMap([PEER_PORT]).emit())
    world.turn()
    with pytest.raises(OSError):
        mailbox.sendto(b"x", ADDRESS)
    assert by_poll(descriptor)[0] is False
    remote.say_map()
    world.turn()
    assert by_poll(descriptor)[0] is True
    assert mailbox.receive(wait_ns=0) is None
    assert by_poll(descriptor)[0] is False
    mailbox.sendto(b"x", ADDRESS)


@pytest.mark.parametrize("kept", [0, 5])
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_send_to_a_known_target_ends_an_update_too(
    world: World, kept: int, is_refused: bool
) -> None:
    """A program that sends has looked; else its poll would not wait again before it receives.

    With `kept` messages the stream takes nothing more, so the send is queued behind others.
    """
    mailbox = world.mailbox(send_bytes_max=100_000)
    remote = world.attach(buffer_bytes=4096)
    remote.say_map()
    world.turn()
    while world.plane.snapshot().paths[0].unsent_messages < kept:
        mailbox.sendto(bytes(1000), ADDRESS)
    for _ in range(2):
        mailbox.sendto(b"x", ADDRESS)
    remote.say_map(CongestionMap([PEER_PORT]).emit())
    world.turn()
    descriptor = mailbox.fileno()
    with pytest.raises(OSError, match="is full"):
        mailbox.sendto(b"x", ADDRESS)
    remote.say_map(CongestionMap([PEER_PORT] if is_refused else []).emit())
    world.turn()
    assert by_poll(descriptor)[0] is True
    with pytest.raises(OSError, match="is full") if is_refused else nullcontext():
        mailbox.sendto(b"x", ADDRESS)
    assert by_poll(descriptor)[0] is False


def test_a_send_without_a_route_does_not_hide_an_update(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = world.mailbox()
    remote = world.attach()
    remote.say_map(CongestionMap([PEER_PORT]).emit())
    world.turn()
    with pytest.raises(OSError):
        mailbox.sendto(b"x", ADDRESS)
    remote.say_map()
    world.turn()
    monkeypatch.setattr(world, "path", lambda _: None)
    with pytest.raises(OSError, match="no route"):
        mailbox.sendto(b"x", (str(OTHER), PEER_PORT))
    assert by_poll(mailbox.fileno()) == (True, True)


def test_a_notice_makes_it_readable(world: World) -> None:
    mailbox = world.mailbox(monitor=True, monitor_mask=1 << PEER_PORT % 64)
    descriptor = mailbox.fileno()
    remote = world.attach()
    remote.say_map(CongestionMap([PEER_PORT]).emit())
    world.turn()
    remote.say_map()
    world.turn()
    assert by_poll(descriptor)[0] is True
    mailbox.receive(wait_ns=0)
    assert by_poll(descriptor)[0] is False


def test_a_loop_shows_at_once(world: World) -> None:
    target, sender = world.mailbox(), world.mailbox(5001)
    sender.route(LOCAL, world.plane.loop(local=LOCAL, peer=LOCAL))
    descriptor = target.fileno()
    sender.sendto(b"x", (str(LOCAL), PORT))
    assert by_poll(descriptor) == (True, True)
    take(target)
    assert by_poll(descriptor) == (False, True)


class TestFullPath:
    """A path at its bound of messages takes nothing: no mailbox that uses it is writable."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(path_messages_max=100, flush_bytes=1000)

    def test_every_mailbox_that_uses_it_shows_it(self, world: World) -> None:
        sender, other, unknown_peer = (world.mailbox(port) for port in (1, 2, 3))
        other.sendto(b"", ADDRESS)
        descriptors = [box.fileno() for box in (sender, other, unknown_peer)]
        with suppress(BlockingIOError):
            for _ in range(1000):
                sender.sendto(b"", ADDRESS)
        assert [by_poll(descriptor)[1] for descriptor in descriptors] == [False, False, True]
        sender.cancel(None, None)
        assert [by_poll(descriptor)[1] for descriptor in descriptors] == [True, True, True]


@each_way
def test_an_operation_that_ended_is_shown_until_its_notice_is_taken(
    world: World, look: Look
) -> None:
    mailbox = world.mailbox()
    descriptor = mailbox.fileno()
    assert look(descriptor) == (False, True)
    operation = AtomicOperation(
        key=7,
        remote_address=0,
        token=5,
        notify=True,
        is_compare=False,
        operand=1,
        result=memoryview(bytearray(8)),
        status=RdmaStatus.SUCCESS,
    )
    mailbox.note_operation(operation)
    world.plane.finish_pass()
    assert look(descriptor) == (True, True)
    assert mailbox.receive(wait_ns=0) == (OperationNotice(5, RdmaStatus.SUCCESS),)
    assert look(descriptor) == (False, True)
