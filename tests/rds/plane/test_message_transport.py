"""Messages over a path of a message transport, on both planes: charged, refused, delivered."""

import errno
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.rds.plane.message_transport_world import (
    LOCAL,
    MS,
    OTHER,
    PEER,
    PEER_PORT,
    PORT,
    TARGET,
    FakePath,
    MessageTransportWorld,
    transfer,
)
from tests.support import planes
from tests.support.waiting import wait_until
from urds.rds.plane.contract import (
    ALL_GROUPS,
    CongestionNotice,
    GiveUp,
    Limits,
    LingerEnded,
    LocalMapChanged,
    MailboxSettings,
    Message,
    Plane,
    Resumed,
)
from urds.rds.plane.message_transport import Charge

SOURCE = (str(PEER), PEER_PORT)
MakePlane = Callable[..., Plane]


@pytest.fixture(params=planes.parameters())
def make_plane(request: pytest.FixtureRequest) -> MakePlane:
    made: MakePlane = request.param
    return made


@pytest.fixture
def world(make_plane: MakePlane) -> Iterator[MessageTransportWorld]:
    made = MessageTransportWorld(make_plane=make_plane)
    yield made
    made.close()


# -- sending


def test_a_message_is_charged_once_and_counted_by_its_transport_alone(
    world: MessageTransportWorld,
) -> None:
    mailbox = world.mailbox()
    assert mailbox.sendto(b"hello", TARGET) == 5
    path = world.path()
    assert path.queued == [(mailbox, PEER_PORT, b"hello", b"", ())]
    assert (path.told, path.charges) == (["send"], [Charge.QUEUED])
    assert (world.queued_bytes(), mailbox.unacknowledged()) == (5, 1)
    assert path.outside.held(mailbox) == (1, 5)
    counters = world.plane.snapshot().counters
    assert counters["send_queued"] == counters["copy_from_user"] == 0, "the transport counts"


def test_a_buffer_that_changes_is_copied(world: MessageTransportWorld) -> None:
    data = bytearray(b"before")
    world.mailbox().sendto(data, TARGET)
    data[:] = b"after!"
    assert world.path().queued[0][2] == b"before"


def test_operations_and_the_extension_go_with_their_message(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox()
    operations = (transfer(1), transfer(2))
    extension = b"\2" + bytes(15)
    mailbox.send([b"a", b"b"], TARGET, wait_ns=0, extension=extension, operations=operations)
    assert world.path().queued == [(mailbox, PEER_PORT, b"ab", extension, operations)]


def test_operations_are_refused_where_no_path_supports_them(world: MessageTransportWorld) -> None:
    """Before congestion and a full account: kernel parity."""
    mailbox = world.mailbox(send_bytes_max=1)
    stream = world.plane.path(local=LOCAL, peer=OTHER, index=0, sequence_first=1)
    for peer, path in ((OTHER, stream), (LOCAL, world.plane.loop(local=LOCAL, peer=LOCAL))):
        mailbox.route(peer, path)
        with pytest.raises(OSError) as caught:
            mailbox.send([b""], (str(peer), PORT), wait_ns=0, operations=[transfer()])
        assert caught.value.errno == errno.EOPNOTSUPP


def test_errors_come_in_the_order_of_linux(world: MessageTransportWorld) -> None:
    """Too long for the buffer, the peer's congestion, our account, the path's bound."""
    mailbox = world.mailbox(send_bytes_max=100)
    path = world.path()

    def error_of(payload: bytes) -> int | None:
        with pytest.raises(OSError) as caught:
            mailbox.send([payload], TARGET, wait_ns=0, operations=[transfer()])
        return caught.value.errno

    mailbox.sendto(bytes(100), TARGET)
    path.arrive_map(PEER_PORT)
    path.judge(full=True)
    assert error_of(bytes(101)) == errno.EMSGSIZE
    assert error_of(b"") == errno.ENOBUFS
    path.arrive_map()
    assert error_of(b"") == errno.EAGAIN
    path.carry_all()
    assert error_of(b"") == errno.EAGAIN
    path.judge(full=False)
    assert mailbox.sendto(b"", TARGET) == 0
    assert world.counter("cong_send_error") == 1
    assert world.counter("send_queue_full") == 1


def test_a_message_that_the_path_does_not_carry_is_too_long(world: MessageTransportWorld) -> None:
    """There is no handshake left that may still allow it, so it does not wait."""
    world.path(message_bytes_max=10)
    mailbox = world.mailbox()
    with pytest.raises(OSError) as caught:
        mailbox.sendto(bytes(11), TARGET)
    assert caught.value.errno == errno.EMSGSIZE
    assert mailbox.sendto(bytes(10), TARGET) == 10


def test_a_sender_whose_account_is_half_full_asks(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox(send_bytes_max=100)
    for payload_bytes in (49, 1):
        mailbox.sendto(bytes(payload_bytes), TARGET)
    assert world.path().charges == [Charge.QUEUED, Charge.ASKS]


def test_a_peer_that_was_given_up_is_told_once(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox()
    mailbox.sendto(b"lost", TARGET)
    world.path().outside.fail(mailbox)
    with pytest.raises(OSError) as caught:
        mailbox.sendto(b"more", TARGET)
    assert caught.value.errno == errno.EHOSTUNREACH
    assert mailbox.sendto(b"more", TARGET) == 4


def test_cancel_reaches_the_messages_to_one_port_or_all(world: MessageTransportWorld) -> None:
    mailbox, other = world.mailbox(), world.mailbox(PORT + 1)
    for port in (4000, 4001):
        mailbox.sendto(b"12", (str(PEER), port))
    mailbox.sendto(b"345", (str(OTHER), 4000))
    other.sendto(b"6", TARGET)
    assert mailbox.cancel(PEER, 4001) == 1
    assert world.queued_bytes() == 5
    assert mailbox.cancel(None, None) == 2
    assert (world.queued_bytes(), world.queued_bytes(PORT + 1)) == (0, 1)
    assert world.counter("send_cancelled") == 0, "the transport counts"


def test_another_tos_is_another_route(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox()
    mailbox.sendto(b"", TARGET)
    first = world.paths.pop(PEER)
    mailbox.configure(MailboxSettings(send_bytes_max=1000))
    mailbox.sendto(b"", TARGET)
    assert len(first.queued) == 2
    mailbox.configure(MailboxSettings(tos=3))
    mailbox.sendto(b"", TARGET)
    assert len(first.queued) == 2 and len(world.path().queued) == 1


@pytest.mark.parametrize("reason", ["path", "account", "peer"])
def test_a_sender_that_waits_for_room_continues_when_there_is_some(
    make_plane: MakePlane, reason: str
) -> None:
    """The limit of the path, the account, the peer's congestion: each wakes its senders."""
    world = MessageTransportWorld(virtual=False, make_plane=make_plane)
    mailbox, path = world.mailbox(send_bytes_max=10), world.path()
    if reason == "path":
        path.judge(full=True)
    elif reason == "account":
        mailbox.sendto(bytes(10), TARGET)
    else:
        path.arrive_map(PEER_PORT)
    path.charges.clear()
    sent: list[int] = []
    thread = threading.Thread(
        target=lambda: sent.append(mailbox.send([b"late"], TARGET, wait_ns=30_000 * MS)),
        daemon=True,
    )
    thread.start()
    wait_until(lambda: bool(path.charges))
    if reason == "path":
        path.judge(full=False)
    elif reason == "account":
        path.carry_all()
    else:
        path.arrive_map()
    thread.join(5)
    assert sent == [4]
    assert path.queued[-1][2] == b"late"
    world.close()


def test_a_sender_that_waits_is_refused_in_time(make_plane: MakePlane) -> None:
    world = MessageTransportWorld(virtual=False, make_plane=make_plane)
    mailbox, path = world.mailbox(), world.path()
    path.arrive_map(PEER_PORT)
    with pytest.raises(TimeoutError):
        mailbox.send([b"late"], TARGET, wait_ns=MS)
    assert path.queued == []
    assert world.counter("cong_send_blocked") == 1
    world.close()


def test_a_rejected_sender_is_told_when_its_path_leaves_the_limit(
    world: MessageTransportWorld,
) -> None:
    mailbox, path = world.mailbox(), world.path()
    path.judge(full=True)
    with pytest.raises(BlockingIOError):
        mailbox.send([b""], TARGET, wait_ns=0)
    calls: list[int] = []
    mailbox.subscribe(lambda: calls.append(1), room=True)
    assert calls == []
    path.judge(full=False)
    assert calls == [1]


# -- receiving


def test_a_message_is_delivered_with_all_of_its_parts(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    extension = b"\3" + bytes(15)
    assert path.arrive(b"plain")
    assert path.arrive(b"with", extension=extension, source_port=7)
    assert mailbox.recvfrom(100) == (b"plain", SOURCE)
    message = mailbox.receive(wait_ns=0)
    assert isinstance(message, Message)
    assert (message.payload, message.extension) == (b"with", extension)
    assert message.source == (str(PEER), 7)
    counters = world.plane.snapshot().counters
    assert (counters["recv_queued"], counters["recv_delivered"]) == (2, 2)
    assert counters["copy_to_user"] == 9


@pytest.mark.parametrize("payload_bytes", [0, 1, 8191, 8192, 1 << 20])
def test_a_message_of_any_length_comes_as_it_was(
    world: MessageTransportWorld, payload_bytes: int
) -> None:
    mailbox, payload = world.mailbox(), bytes(range(256)) * (payload_bytes // 256 + 1)
    payload = payload[:payload_bytes]
    world.path().arrive(payload)
    assert mailbox.recvfrom(1 << 20, 2) == (payload, SOURCE), "a look"
    assert mailbox.recvfrom(1 << 20) == (payload, SOURCE)


def test_what_is_for_an_unbound_port_is_counted(world: MessageTransportWorld) -> None:
    world.mailbox()
    assert world.path().arrive(b"lost", port=PORT + 1)
    assert world.counter("recv_drop_no_sock") == 1


def test_a_waiting_message_has_the_tos_of_the_path_that_brought_it(
    world: MessageTransportWorld,
) -> None:
    """Two paths from one peer and port differ by nothing else."""
    world.mailbox()
    plain, urgent = world.path(), FakePath(world.plane, PEER, tos=3)
    for path in (urgent, plain, urgent):
        path.arrive(b"x")
    found = world.plane.snapshot().receive_queue
    assert [(one.peer, one.peer_port, one.tos) for one in found] == [
        (PEER, PEER_PORT, 3),
        (PEER, PEER_PORT, 0),
        (PEER, PEER_PORT, 3),
    ]


def test_timestamps_are_those_of_the_arrival(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox(timestamps=True)
    world.path().arrive(b"")
    message = mailbox.receive(wait_ns=0)
    assert isinstance(message, Message) and message.time_ns > 0


def test_a_mailbox_far_over_its_buffer_pauses_the_path_until_half(make_plane: MakePlane) -> None:
    limits = Limits(receive_hard_factor=2, receive_hard_bytes=0)
    world = MessageTransportWorld(limits, make_plane=make_plane)
    mailbox, path = world.mailbox(receive_bytes_max=1000), world.path()
    arrived = [path.arrive(bytes(504)) for _ in range(4)]
    assert arrived == [True, True, True, False], "632 bytes each, with what a message costs"
    assert not path.arrive(bytes(504)), "taken, but still too much"
    world.turn()
    assert world.counter("recv_paused") == 1
    resumed = Resumed(path.outside)
    for _ in range(3):
        mailbox.recvfrom(1000)
    assert resumed not in world.turn()
    mailbox.recvfrom(1000)
    assert world.turn().count(resumed) == 1
    mailbox.recvfrom(1000)
    assert resumed not in world.turn()
    world.close()


def test_a_paused_path_goes_on_when_its_mailbox_closes(make_plane: MakePlane) -> None:
    limits = Limits(receive_hard_factor=1, receive_hard_bytes=0)
    world = MessageTransportWorld(limits, make_plane=make_plane)
    mailbox, path = world.mailbox(receive_bytes_max=100), world.path()
    assert not path.arrive(bytes(200))
    mailbox.close()
    assert Resumed(path.outside) in world.turn()
    world.close()


# -- congestion


def marks(path: FakePath) -> bool:
    """Tell whether the local map marks our port."""
    return bool(path.outside.local_map()[PORT >> 3] & 1 << (PORT & 7))


def test_a_changed_map_is_reported_for_the_transport_to_send(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(receive_bytes_max=100), world.path()
    path.arrive(bytes(401))  # more than four times its buffer: congested at once
    assert world.turn() == [LocalMapChanged(LOCAL)]
    assert marks(path)
    mailbox.recvfrom(1000)
    assert world.turn() == [LocalMapChanged(LOCAL)]
    assert not any(path.outside.local_map())


def test_the_map_of_a_closed_mailbox_is_cleared(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(receive_bytes_max=100), world.path()
    path.arrive(bytes(401))
    world.turn()
    mailbox.close()
    assert LocalMapChanged(LOCAL) in world.turn()
    assert not marks(path)


def test_a_monitor_hears_of_cleared_groups_only(world: MessageTransportWorld) -> None:
    """Over RDMA Linux tells what changed; over TCP it takes every update for a change of all."""
    mailbox, path = world.mailbox(monitor=True, monitor_mask=ALL_GROUPS), world.path()
    path.arrive_map(4000, 4001, 4002)
    assert path.outside.peer_is_congested(4000) and not path.outside.peer_is_congested(4003)
    for port in (4000, 4001):
        with pytest.raises(OSError):
            mailbox.send([b""], (str(PEER), port), wait_ns=0)
    path.arrive_map(4001)
    assert mailbox.receive(wait_ns=0) == CongestionNotice(1 << 4000 % 64)
    path.arrive_map()
    assert mailbox.receive(wait_ns=0) == CongestionNotice(1 << 4001 % 64)
    assert mailbox.receive(wait_ns=0) is None


# -- absent peers


def test_messages_to_the_peer_that_is_absent_longest_make_way(
    world: MessageTransportWorld,
) -> None:
    """What several absent peers have shares one account."""
    mailbox = world.mailbox(send_bytes_max=100)
    for peer in (PEER, OTHER):
        mailbox.send([bytes(90)], (str(peer), PEER_PORT), wait_ns=0)
        world.path(peer).outside.set_connected(False)
        world.turn(1)
    third = LOCAL + 9
    mailbox.send([bytes(90)], (str(third), PEER_PORT), wait_ns=0)
    world.path(third).outside.set_connected(False)
    given_up = [one for one in world.turn(31_000) if isinstance(one, GiveUp)]
    assert [one.path for one in given_up] == [world.path(OTHER).outside]
    for one in given_up:
        assert one.mailbox is mailbox
        assert one.path.transport.cancel(one.mailbox, None) == 1
    assert world.queued_bytes() <= 180


# -- endings


def test_a_closed_mailbox_lets_its_messages_leave_for_a_while(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    mailbox.sendto(b"late", TARGET)
    mailbox.close()
    assert len(path.queued) == 1
    assert world.turn(999) == []
    [ended] = world.turn(2)
    assert isinstance(ended, LingerEnded)
    assert (ended.path, ended.mailbox) == (path.outside, mailbox)
    assert path.cancel(ended.mailbox, None) == 1
    assert path.outside.held(mailbox) == (0, 0)


def test_a_mailbox_closed_without_time_cancels_at_once(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    mailbox.sendto(b"late", TARGET)
    mailbox.close(0)
    assert path.queued == []
    assert path.outside.held(mailbox) == (0, 0)
    with pytest.raises(OSError) as caught:
        path.outside.charge(mailbox, PEER_PORT, 0, may_wait=True)
    assert caught.value.errno == errno.EBADF


def test_an_empty_message_lingers_as_well(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox()
    mailbox.sendto(b"", TARGET)
    mailbox.close()
    assert [type(one) for one in world.turn(1001)] == [LingerEnded]


def test_the_plane_tells_what_was_left(world: MessageTransportWorld) -> None:
    world.mailbox().sendto(b"left", TARGET)
    assert world.plane.close(10 * MS) == 1


def test_a_drain_waits_until_the_peer_has_everything(make_plane: MakePlane) -> None:
    world = MessageTransportWorld(virtual=False, make_plane=make_plane)
    path = world.path()
    world.mailbox().sendto(b"left", TARGET)
    thread = threading.Thread(target=path.carry_all)
    thread.start()
    assert world.plane.drain(5_000 * MS) == 0
    thread.join()
    world.close()


def test_a_failed_plane_refuses_every_charge(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    mailbox.sendto(b"", TARGET)
    world.plane.fail()
    with pytest.raises(OSError) as caught:
        mailbox.sendto(b"", TARGET)
    assert caught.value.errno == errno.EIO
    assert len(path.queued) == 1


def test_a_removed_path_is_forgotten_everywhere(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    path.arrive_map(9)
    path.judge(full=True)
    with pytest.raises(OSError):
        mailbox.send([b""], TARGET, wait_ns=0)
    calls: list[int] = []
    mailbox.subscribe(lambda: calls.append(1), room=True)
    path.outside.close()
    world.paths.clear()
    assert calls == [1], "a sender that waits there looks for another way"
    assert not mailbox.has_route
    mailbox.sendto(b"anew", TARGET)
    assert path.queued == [] and len(world.path().queued) == 1
    assert not world.path().outside.peer_is_congested(9)


def test_a_peer_map_stays_while_another_path_leads_there(world: MessageTransportWorld) -> None:
    path = world.path()
    path.arrive_map(9)
    stream = world.plane.path(local=LOCAL, peer=PEER, index=0, sequence_first=1)
    path.outside.close()
    assert stream.peer_is_congested(9)
    another = FakePath(world.plane)
    stream.close()
    assert another.outside.peer_is_congested(9)


def test_the_child_of_a_fork_leaves_the_path_to_its_parent(make_plane: MakePlane) -> None:
    world = MessageTransportWorld(make_plane=make_plane)
    path = world.path()
    world.plane.abandon_in_child()
    assert path.told == []
