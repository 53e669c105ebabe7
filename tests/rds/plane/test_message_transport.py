"""Messages over a path that another transport carries: queued, refused, delivered, ended."""

import errno
import threading
from collections.abc import Iterator

import pytest

from tests.rds.plane.message_transport_world import (
    LOCAL,
    MS,
    OTHER,
    PEER,
    PEER_PORT,
    PORT,
    TARGET,
    MessageTransportWorld,
    transfer,
    wait_until,
)
from urds.rds.plane.contract import (
    ALL_GROUPS,
    CongestionNotice,
    Limits,
    MailboxSettings,
    Message,
)
from urds.rds.plane.python import inbox
from urds.rds.plane.python.receiver import SOURCES_MAX

SOURCE = (str(PEER), PEER_PORT)


@pytest.fixture
def world() -> Iterator[MessageTransportWorld]:
    made = MessageTransportWorld()
    yield made
    made.close()


# -- sending


def test_a_message_is_queued_counted_and_pushed(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox()
    assert mailbox.sendto(b"hello", TARGET) == 5
    path = world.path()
    assert path.queued == [(mailbox.sends, PEER_PORT, b"hello", b"", ())]
    assert mailbox.sends.send_queued_bytes == 5
    assert path.told == ["queue", "push"]


def test_operations_and_the_extension_go_with_their_message(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox()
    operations = (transfer(1), transfer(2))
    extension = b"\2" + bytes(15)
    mailbox.send([b"a", b"b"], TARGET, wait_ns=0, extension=extension, operations=operations)
    assert world.path().queued == [(mailbox.sends, PEER_PORT, b"ab", extension, operations)]


def test_operations_are_refused_where_no_path_supports_them(world: MessageTransportWorld) -> None:
    """Before congestion and a full account: kernel parity."""
    mailbox = world.mailbox(send_bytes_max=1)
    stream = world.plane.path(local=LOCAL, peer=OTHER, index=0, sequence_first=1)
    for peer, path in ((OTHER, stream), (LOCAL, world.plane.loop(local=LOCAL, peer=LOCAL))):
        mailbox.route(peer, path)
        with pytest.raises(OSError) as caught:
            mailbox.send([b""], (str(peer), PORT), wait_ns=0, operations=[transfer()])
        assert caught.value.errno == errno.EOPNOTSUPP
    mailbox.sendto(b"x", (str(OTHER), PORT))
    with pytest.raises(OSError) as caught:
        mailbox.send([b""], (str(OTHER), PORT), wait_ns=0, operations=[transfer()])
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
    assert path.told[-1] == "want", "without a connection no other map would come"
    path.arrive_map()
    assert error_of(b"") == errno.EAGAIN
    assert path.room_wanted == set(), "the account refused, not the path"
    path.carry_all()
    assert error_of(b"") == errno.EAGAIN
    assert path.room_wanted == {mailbox.sends}
    path.judge(full=False)
    assert mailbox.sendto(b"", TARGET) == 0
    assert world.counter("cong_send_error") == 1
    assert world.counter("send_queue_full") == 1


def test_a_message_that_the_path_does_not_carry_is_too_long(world: MessageTransportWorld) -> None:
    """There is no handshake left that may still allow it, so it does not wait."""
    mailbox = world.mailbox()
    world.path().message_bytes_max = 10
    with pytest.raises(OSError) as caught:
        mailbox.sendto(bytes(11), TARGET)
    assert caught.value.errno == errno.EMSGSIZE
    assert mailbox.sendto(bytes(10), TARGET) == 10


def test_a_peer_that_was_given_up_is_told_once(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox()
    mailbox.sendto(b"lost", TARGET)
    with world.plane.state.lock:
        mailbox.sends.fail(PEER)
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
    assert mailbox.sends.send_queued_bytes == 5
    assert mailbox.cancel(None, None) == 2
    assert mailbox.sends.send_queued_bytes == 0
    assert other.sends.send_queued_bytes == 1
    assert world.counter("send_cancelled") == 3


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
def test_who_waits_for_room_goes_on_when_there_is_some(reason: str) -> None:
    """The bound of the path, our account, the peer's congestion: each wakes its senders."""
    world = MessageTransportWorld(virtual=False)
    mailbox, path = world.mailbox(send_bytes_max=10), world.path()
    if reason == "path":
        path.judge(full=True)
    elif reason == "account":
        mailbox.sendto(bytes(10), TARGET)
    else:
        path.arrive_map(PEER_PORT)
    sent: list[int] = []
    thread = threading.Thread(
        target=lambda: sent.append(mailbox.send([b"late"], TARGET, wait_ns=30_000 * MS)),
        daemon=True,
    )
    thread.start()
    wait_until(lambda: len(mailbox.sends.room_waiters) == 1)
    if reason == "path":
        path.judge(full=False)
    elif reason == "account":
        path.carry_all()
    else:
        path.arrive_map()
    thread.join(5)
    assert sent == [4]
    assert path.queued[-1][2] == b"late"
    assert path.told[-1] == "push"
    world.close()


# -- receiving


def test_what_arrives_lies_in_its_mailbox(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    assert path.arrive(b"plain")
    assert path.arrive(b"told", extension=b"\3" + bytes(15), source_port=77)
    assert mailbox.receives.receive_queued_bytes == 9
    assert mailbox.recvfrom(100) == (b"plain", SOURCE)
    message = mailbox.receive(wait_ns=0)
    assert isinstance(message, Message)
    assert message[:3] == (b"told", (str(PEER), 77), b"\3" + bytes(15))
    assert mailbox.receives.receive_queued_bytes == 0
    counters = world.plane.snapshot().counters
    assert (counters["recv_queued"], counters["recv_delivered"]) == (2, 2)
    assert counters["copy_to_user"] == 9


def test_what_is_for_an_unbound_port_is_counted(world: MessageTransportWorld) -> None:
    world.mailbox()
    assert world.path().arrive(b"lost", port=PORT + 1)
    assert world.counter("recv_drop_no_sock") == 1


def test_a_sweep_of_all_source_ports_keeps_1024_addresses(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    for port in range(2, 65536):
        path.arrive(b"", source_port=port, port=PORT + 1)
    assert not world.plane.state.hosts[LOCAL].transports[path]
    for port in range(2, SOURCES_MAX + 3):
        path.arrive(b"", source_port=port)
    assert len(world.plane.state.hosts[LOCAL].transports[path]) == 1
    assert mailbox.recvfrom(1)[1] == (str(PEER), 2)


def test_timestamps_are_those_of_the_arrival(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox(timestamps=True)
    world.plane.state.wall_ns = lambda: 12345
    world.path().arrive(b"")
    message = mailbox.receive(wait_ns=0)
    assert isinstance(message, Message) and message.time_ns == 12345


def test_a_mailbox_far_over_its_buffer_pauses_the_path_until_half() -> None:
    limits = Limits(receive_hard_factor=2, receive_hard_bytes=0)
    world = MessageTransportWorld(limits)
    mailbox, path = world.mailbox(receive_bytes_max=1000), world.path()
    arrived = [path.arrive(bytes(504)) for _ in range(4)]
    assert arrived == [True, True, True, False], "600 bytes each, with what a message costs"
    assert not path.arrive(bytes(504)), "taken, but still too much"
    world.turn()
    assert world.counter("recv_paused") == 1
    mailbox.recvfrom(1000)
    mailbox.recvfrom(1000)
    mailbox.recvfrom(1000)
    assert "resume" not in path.told
    mailbox.recvfrom(1000)
    assert path.told.count("resume") == 1
    mailbox.recvfrom(1000)
    assert path.told.count("resume") == 1
    world.close()


def test_messages_without_payload_pause_it_unless_they_are_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They leave the buffer empty, so that only their number tells."""
    monkeypatch.setattr(inbox, "MANY_MESSAGES", 9)
    world = MessageTransportWorld(Limits(receive_hard_factor=1, receive_hard_bytes=0))
    mailbox, path = world.mailbox(receive_bytes_max=20 * inbox.OVERHEAD_BYTES), world.path()
    assert all(path.arrive(b"") for _ in range(1000))
    assert (len(mailbox.receives.queue), mailbox.receives.message_count()) == (10, 1000)
    count = 1000
    while path.arrive(b"", source_port=PEER_PORT + count % 2):
        count += 1
    assert len(mailbox.receives.queue) == 21
    while not path.told:
        mailbox.recvfrom(1)
    assert (path.told, len(mailbox.receives.queue)) == (["resume"], 10)
    world.close()


def test_a_paused_path_goes_on_when_its_mailbox_closes() -> None:
    world = MessageTransportWorld(Limits(receive_hard_factor=1, receive_hard_bytes=0))
    mailbox, path = world.mailbox(receive_bytes_max=100), world.path()
    assert not path.arrive(bytes(200))
    mailbox.close()
    assert "resume" in path.told
    world.close()


# -- congestion


def test_a_changed_map_is_due_and_pushed(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(receive_bytes_max=100), world.path()
    path.arrive(bytes(401))  # more than four times its buffer: congested at once
    assert path.told == ["note_map_due", "push_soon"]
    assert world.plane.host(LOCAL).map_bytes()[PORT >> 3] == 1 << (PORT & 7)
    mailbox.recvfrom(1000)
    assert path.told[2:] == ["note_map_due", "push_soon"]
    assert not any(world.plane.host(LOCAL).map_bytes())


def test_the_map_of_a_closed_mailbox_is_cleared(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(receive_bytes_max=100), world.path()
    path.arrive(bytes(401))
    path.told.clear()
    mailbox.close()
    assert path.told[:1] == ["note_map_due"] and path.told[-1] == "push_soon"


def test_a_monitor_hears_of_cleared_groups_only(world: MessageTransportWorld) -> None:
    """Over RDMA Linux tells what changed; over TCP it takes every update for a change of all."""
    mailbox, path = world.mailbox(monitor=True, monitor_mask=ALL_GROUPS), world.path()
    path.arrive_map(4000, 4001, 4002)
    for port in (4000, 4001):
        with pytest.raises(OSError):
            mailbox.send([b""], (str(PEER), port), wait_ns=0)
    path.arrive_map(4001)
    assert mailbox.receive(wait_ns=0) == CongestionNotice(1 << 4000 % 64)
    path.arrive_map()
    assert mailbox.receive(wait_ns=0) == CongestionNotice(1 << 4001 % 64)
    assert mailbox.receive(wait_ns=0) is None


# -- what is due


def test_a_path_is_served_once_when_its_time_has_come(world: MessageTransportWorld) -> None:
    path, other = world.path(), world.path(OTHER)
    path.plan(1)
    other.plan(3)
    with world.plane.state.lock:
        assert world.plane.state.next_due_ns() == world.now_ns + MS
    world.turn(0.5)
    assert path.told == []
    world.turn(0.5)
    assert path.told == ["serve"]
    world.turn(10)
    assert path.told == other.told == ["serve"]


def test_a_removed_path_is_not_served(world: MessageTransportWorld) -> None:
    path = world.path()
    path.plan(1)
    world.plane.remove_message_transport(path)
    world.turn(2)
    assert path.told == []
    assert not world.plane.state.has_dues()


def test_who_waits_serves_what_comes_due() -> None:
    """Without a progress thread a wait for a message sleeps no longer than to the next due."""
    world = MessageTransportWorld(virtual=False)
    mailbox, path = world.mailbox(), world.path()
    path.plan(1)
    assert mailbox.receive(wait_ns=5 * MS) is None
    assert path.told == ["serve"]
    path.plan(1)
    assert world.plane.help(world.plane.state.clock_ns() + 5 * MS) == []
    assert path.told == ["serve", "serve"], "and so does the helper"
    world.close()


def test_what_comes_due_ends_a_long_sleep_of_the_helper(world: MessageTransportWorld) -> None:
    world.plane.state.thread.asleep = True
    world.path().plan(1)
    assert not world.plane.state.thread.asleep


def test_a_leader_that_leaves_hands_what_comes_due_to_the_helper() -> None:
    """What becomes due is left to the running leader, which may leave with its message.

    The helper's sleep is made by hand: it lasts longer than a tick, with the streams watched.
    """
    world = MessageTransportWorld(virtual=False)
    mailbox, path, helper = world.mailbox(), world.path(), world.plane.state.thread
    looks: list[int] = []

    def attempt() -> bool | None:
        looks.append(1)
        if len(looks) == 1:
            return None
        helper.asleep = helper.armed = True
        world.plane.state.note_due(path, world.plane.state.clock_ns() + MS)
        assert helper.asleep, "the leader runs"
        return True

    assert world.plane.passes.wait(attempt, mailbox.receives.waiters, MS, mailbox)
    assert not helper.asleep
    world.close()


# -- endings


def test_a_closed_mailbox_lets_its_messages_leave_for_a_while(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    mailbox.sendto(b"late", TARGET)
    mailbox.close()
    assert len(path.queued) == 1
    world.turn(999)
    assert len(path.queued) == 1
    world.turn(2)
    assert path.queued == []
    assert world.counter("send_linger_over") == world.counter("send_cancelled") == 1


def test_a_mailbox_closed_without_time_cancels_at_once(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    mailbox.sendto(b"late", TARGET)
    mailbox.close(0)
    assert path.queued == []
    assert mailbox.sends.send_queued_bytes == 0


def test_the_plane_tells_what_was_left_and_ends_the_path(world: MessageTransportWorld) -> None:
    world.mailbox().sendto(b"left", TARGET)
    assert world.plane.close(10 * MS) == 1
    assert world.path().told[-1] == "end"


def test_all_paths_have_one_time_to_end_in() -> None:
    world = MessageTransportWorld()
    first, second = world.path(PEER), world.path(OTHER)
    end = first.end

    def end_slowly(until_ns: int) -> None:
        end(until_ns)
        world.now_ns = until_ns

    first.end = end_slowly  # type: ignore[method-assign]  # its peer is silent
    world.close()
    assert first.ended_by_ns == second.ended_by_ns == world.now_ns


def test_a_drain_pushes_until_the_peer_has_everything() -> None:
    world = MessageTransportWorld(virtual=False)
    path = world.path()
    world.mailbox().sendto(b"left", TARGET)
    push = path.push

    def push_and_carry() -> None:
        push()
        path.carry_all()

    path.push = push_and_carry  # type: ignore[method-assign]  # the peer answers
    assert world.plane.close(1_000 * MS) == 0
    world.plane.release()


def test_a_failed_plane_ends_the_path_too(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    world.plane.fail()
    assert path.told == ["end"]
    with pytest.raises(OSError) as caught:
        mailbox.sendto(b"", TARGET)
    assert caught.value.errno == errno.EIO


def test_a_removed_path_is_forgotten_everywhere(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    path.arrive_map(9)
    path.judge(full=True)
    with pytest.raises(OSError):
        mailbox.send([b""], TARGET, wait_ns=0)
    calls: list[int] = []
    mailbox.subscribe(lambda: calls.append(1), room=True)
    world.plane.remove_message_transport(path)
    world.paths.clear()
    assert calls == [1], "who waits for room there looks for another way"
    assert path.room_wanted == set()
    assert not world.plane.state.full_paths
    assert not world.plane.host(LOCAL).congested_at(PEER).test(9)
    mailbox.sendto(b"anew", TARGET)
    assert path.queued == [] and len(world.path().queued) == 1
    world.plane.close(0)
    assert "end" not in path.told


def test_a_peer_map_stays_while_another_path_leads_there(world: MessageTransportWorld) -> None:
    path = world.path()
    path.arrive_map(9)
    stream = world.plane.path(local=LOCAL, peer=PEER, index=0, sequence_first=1)
    world.plane.remove_message_transport(path)
    assert world.plane.host(LOCAL).congested_at(PEER).test(9)
    world.plane.add_message_transport(path)
    stream.close()
    assert world.plane.host(LOCAL).congested_at(PEER).test(9)
    world.plane.remove_message_transport(path)
    assert not world.plane.host(LOCAL).congested_at(PEER).test(9)


def test_a_removed_path_is_not_pushed_for_a_map(world: MessageTransportWorld) -> None:
    """Its removal may come between the change of our map and the end of the pass."""
    mailbox, path = world.mailbox(), world.path()
    with world.plane.state.lock:
        world.plane.state.show_congestion(LOCAL, PORT, on=True)
        world.plane.state.touched.add(mailbox)
    world.plane.remove_message_transport(path)
    assert path.told == ["note_map_due"]


def test_tables_show_both_kinds(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    world.plane.path(local=LOCAL, peer=OTHER, index=0, sequence_first=1)
    mailbox.sendto(b"12345", TARGET)
    snapshot = world.plane.snapshot()
    assert [row.peer for row in snapshot.paths] == [OTHER, PEER]
    with world.plane.state.lock:
        assert snapshot.paths[1] == path.row()
    assert [row.payload_bytes for row in snapshot.send_queue] == [5]
    assert [row.sequence for row in snapshot.retransmit_queue] == [6]


def test_the_child_of_a_fork_leaves_the_path_to_its_parent() -> None:
    world = MessageTransportWorld()
    path = world.path()
    world.plane.abandon_in_child()
    assert path.told == ["abandon_in_child"]
