"""Streams come and go: what a path writes first, what it reports, how it reads one to its end."""

import errno
import select
import socket
import threading

import pytest

from tests.parity.planes import ACK_DELAY_MS, EMPTY_MAP, LOCAL, PEER, PEER_PORT, World, take
from tests.rds.plane.path_world import message
from tests.support.waiting import BUSY_S
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Agreement,
    ConnectWanted,
    Control,
    Down,
    DownReason,
    FirstFrame,
    Hold,
    Interest,
    PathActivity,
    PeerRestarted,
    Ready,
)
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)


def of(kind: type, events: list[object]) -> list[object]:
    return [event for event in events if isinstance(event, kind)]


class TestWanted:
    """A stream is asked for once per outage, by the first message."""

    def test_the_first_message_asks(self, world: World) -> None:
        mailbox = world.mailbox()
        mailbox.sendto(b"1", ADDRESS)
        mailbox.sendto(b"2", ADDRESS)
        assert of(ConnectWanted, world.turn()) == [ConnectWanted(world.path())]
        mailbox.sendto(b"3", ADDRESS)
        assert world.turn() == []

    def test_an_end_with_messages_left_asks_again(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        mailbox.sendto(b"1", ADDRESS)
        remote.close()
        events = world.turn()
        assert [type(event) for event in events] == [Down, ConnectWanted]

    def test_an_end_with_nothing_left_does_not(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        remote.close()
        assert [type(event) for event in world.turn()] == [Down]
        mailbox.sendto(b"1", ADDRESS)
        assert [type(event) for event in world.turn()] == [ConnectWanted]


class TestAttach:
    """A map opens each stream; repeats come before what is new."""

    def test_what_was_queued_leaves_at_once(self, world: World) -> None:
        mailbox = world.mailbox()
        mailbox.sendto(b"1", ADDRESS)
        remote = world.attach()
        first, second = remote.frames()
        assert (first.header.flags, first.payload) == (HeaderFlag.CONG_BITMAP, EMPTY_MAP)
        assert (second.payload, second.header.sequence) == (b"1", 1)

    def test_a_new_stream_repeats_what_the_old_one_was_handed(self, world: World) -> None:
        mailbox = world.mailbox()
        old = world.attach()
        mailbox.sendto(b"1", ADDRESS)
        old.close()
        world.turn()
        mailbox.sendto(b"2", ADDRESS)
        new = world.attach()
        repeat, fresh = new.messages()
        assert (repeat.payload, repeat.header.flags) == (b"1", HeaderFlag.RETRANSMITTED)
        assert (fresh.payload, fresh.header.flags) == (b"2", HeaderFlag(0))

    def test_a_superseded_stream_is_read_first_then_closed(self, world: World) -> None:
        mailbox = world.mailbox()
        old = world.attach()
        old.say(1, b"in time")
        new = world.attach()
        new.say(2, b"new")
        events = world.turn()
        assert take(mailbox) == [b"in time", b"new"]
        assert of(Down, events) == []
        old.drain()
        assert old.ended()

    def test_detach_gives_the_stream_back_read_and_open(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        remote.say(1, b"in time")
        stream = world.path().detach()
        assert stream is remote.stream
        assert take(mailbox) == [b"in time"]
        assert of(Down, world.turn()) == []
        remote.drain()
        assert not remote.ended()
        stream.close()
        assert world.path().detach() is None

    @pytest.mark.parametrize("hold", [Hold.FIRST_FRAME, Hold.HELLO])
    def test_a_held_stream_carries_the_map_only(self, world: World, hold: Hold) -> None:
        mailbox = world.mailbox()
        mailbox.sendto(b"held", ADDRESS)
        remote = world.attach(hold=hold)
        assert [frame.payload for frame in remote.frames()] == [EMPTY_MAP]
        remote.say_map()
        world.turn()
        if hold is Hold.HELLO:
            assert remote.frames() == []
            world.path().end_hold(received_by_peer=None)
        assert [frame.payload for frame in remote.messages()] == [b"held"]

    def test_release_skips_what_the_peer_has(self, world: World) -> None:
        mailbox = world.mailbox()
        old = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        for number in range(3):
            mailbox.sendto(b"%d" % number, ADDRESS)
        old.close()
        world.turn()
        new = world.attach(hold=Hold.HELLO)
        world.path().end_hold(received_by_peer=2)
        assert [frame.payload for frame in new.messages()] == [b"2"]

    def test_thousands_of_small_messages_are_repeated(self, world: World) -> None:
        """More than one write takes as buffers of its own."""
        mailbox = world.mailbox(send_bytes_max=1 << 20)
        for number in range(5000):
            mailbox.sendto(b"%d" % number, ADDRESS)
        for _ in range(2):
            remote = world.attach()
            seen = remote.messages()
            while len(seen) < 5000 and (more := (world.turn(1), remote.messages())[1]):
                seen += more
            assert [frame.payload for frame in seen] == [b"%d" % n for n in range(5000)]
            remote.close()
            world.turn()


class TestDown:
    """What ends a stream is reported with its reason, and with the frames that came before."""

    def test_an_end_counts_its_frames(self, world: World) -> None:
        remote = world.attach()
        remote.say_map()
        remote.say(1)
        remote.close()
        (down,) = of(Down, world.turn())
        assert (down.reason, down.errno, down.frames) == (DownReason.END_OF_STREAM, 0, 2)

    def test_no_frame_means_the_peer_never_took_it(self, world: World) -> None:
        world.attach().close()
        (down,) = of(Down, world.turn())
        assert down.frames == 0

    def test_what_came_before_the_end_is_delivered(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        remote.write(*(message(number, b"%d" % number) for number in range(1, 2000)))
        remote.close()
        while not of(Down, world.turn()):
            pass
        assert len(take(mailbox)) == 1999

    def test_a_failed_write_ends_nothing_before_all_is_read(self, world: World) -> None:
        """The peer's kernel counts as delivered what ours acknowledged."""
        mailbox = world.mailbox()
        remote = world.attach()
        remote.frames()
        remote.say(1, b"last words")
        remote.close()
        mailbox.sendto(b"into the void", ADDRESS)
        mailbox.sendto(b"again", ADDRESS)
        events = world.turn()
        assert take(mailbox) == [b"last words"]
        assert len(of(Down, events)) == 1

    def test_a_write_that_fails_on_a_healthy_stream_ends_it(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        remote.frames()

        def fail(*_: object) -> int:
            raise OSError(errno.ENOBUFS, "no buffers")

        monkeypatch.setattr(type(remote.stream), "sendmsg", fail)
        mailbox.sendto(b"1", ADDRESS)
        monkeypatch.undo()
        assert remote.ended()
        remote.close()
        assert of(Down, world.turn())
        assert [frame.payload for frame in world.attach().messages()] == [b"1"]

    @pytest.mark.parametrize(
        ("data", "reason", "counter"),
        [
            (message(1)[:16] + b"\xff" * 4 + message(1)[20:], DownReason.TOO_LONG, "too_long"),
            (
                message(0, bytes(9), flags=HeaderFlag.CONG_BITMAP),
                DownReason.BAD_MAP,
                "bad_map",
            ),
            (message(1, ack=99), DownReason.BAD_ACKNOWLEDGEMENT, "bad_ack"),
            (message(1)[:30] + b"\1\1" + message(1)[32:], DownReason.BAD_CHECKSUM, "bad_checksum"),
        ],
        ids=["too long", "bad map", "bad acknowledgement", "bad checksum"],
    )
    def test_a_protocol_error_is_told_and_counted(
        self, world: World, data: bytes, reason: DownReason, counter: str
    ) -> None:
        remote = world.attach()
        world.path().agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=True))
        remote.write(data)
        (down,) = of(Down, world.turn())
        assert down.reason is reason
        assert world.counter(f"recv_drop_{counter}") == 1
        assert remote.ended()

    def test_what_a_stream_acknowledged_counts_once_the_peer_is_known(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        mailbox.sendto(b"1", ADDRESS)
        mailbox.sendto(b"2", ADDRESS)
        (first, _) = (frame.header.sequence for frame in remote.messages())
        remote.say(0, ack=first, source_port=0, target_port=0)
        remote.close()
        world.turn()
        assert mailbox.unacknowledged() == 2, "it may be a peer whose field says nothing"
        world.path().agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED))
        assert mailbox.unacknowledged() == 1
        assert [frame.payload for frame in world.attach().messages()] == [b"2"]

    def test_a_partial_message_dies_with_its_stream(self, world: World) -> None:
        mailbox = world.mailbox()
        old = world.attach()
        old.write(message(1, b"x" * 100)[:90])
        world.turn()
        old.close()
        world.turn()
        new = world.attach()
        new.say(1, b"whole", flags=HeaderFlag.RETRANSMITTED)
        world.turn()
        assert take(mailbox) == [b"whole"]


class TestReports:
    """First frame, controls, maps and restarts reach the control plane."""

    def test_the_first_frame_is_told_once_per_stream(self, world: World) -> None:
        for attachment in (1, 2):
            remote = world.attach()
            flags = HeaderFlag.CONG_BITMAP
            data = message(0, EMPTY_MAP, flags=flags, source_port=0, target_port=0)
            remote.write(data[:1460])
            assert of(FirstFrame, world.turn()) == []
            remote.write(data[1460:])
            assert of(FirstFrame, world.turn()) == [FirstFrame(world.path(), attachment, None)]
            remote.say(1)
            assert of(FirstFrame, world.turn()) == []

    def test_pings_come_with_everything_that_can_be_said(self, world: World) -> None:
        remote = world.attach()
        remote.say(7, b"x" * 80, source_port=9, target_port=0, ack=3, extension=bytes(range(16)))
        (control,) = of(Control, world.turn())
        assert control == Control(
            path=world.path(),
            sequence=7,
            acknowledgement=3,
            source_port=9,
            target_port=0,
            extension=bytes(range(16)),
            payload=b"x" * 64,
            attachment=1,
        )
        assert world.counter("recv_ping") == 1

    def test_a_pong_answers_in_its_place(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach()
        remote.frames()
        world.path().control(source_port=0, target_port=9, extension=bytes(16))
        mailbox.sendto(b"1", ADDRESS)
        world.turn(1)
        pong, data = remote.frames()
        assert (pong.header.target_port, pong.header.sequence) == (9, 1)
        assert data.header.sequence == 2

    def test_a_control_without_a_stream_is_dropped(self, world: World) -> None:
        world.path().control(source_port=0, target_port=9, extension=bytes(16))
        assert [frame.payload for frame in world.attach().frames()] == [EMPTY_MAP]

    def test_a_map_is_in_force(self, world: World) -> None:
        remote = world.attach()
        remote.say_map(b"\x08" + bytes(8191))
        world.turn()
        assert world.path().peer_is_congested(3)
        assert not world.path().peer_is_congested(4)

    def test_a_restarted_kernel_is_told(self, world: World) -> None:
        mailbox = world.mailbox()
        old = world.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        old.say(100, b"old life")
        world.turn()
        old.close()
        world.turn()
        new = world.attach()
        new.say(1, b"new life", flags=HeaderFlag.RETRANSMITTED)
        assert of(PeerRestarted, world.turn()) == [PeerRestarted(world.path())]
        assert take(mailbox) == [b"old life", b"new life"]

    def test_a_probe_of_a_stream_is_a_map(self, world: World) -> None:
        remote = world.attach()
        remote.frames()
        world.path().probe_dead_stream()
        assert [frame.header.flags for frame in remote.frames()] == [HeaderFlag.CONG_BITMAP]


class TestFreeing:
    """Towards Linux TCP frees, between urds nodes the header."""

    def test_tcp_frees_once_the_peer_has_spoken(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        remote.stream.unacknowledged_bytes = 50
        mailbox.sendto(b"x" * 40, ADDRESS)
        mailbox.sendto(b"y" * 40, ADDRESS)
        world.turn(2)
        assert world.plane.snapshot().mailboxes[0].send_queued_bytes == 80
        remote.say_map()
        world.turn(4)
        assert world.plane.snapshot().mailboxes[0].send_queued_bytes == 40
        remote.stream.unacknowledged_bytes = 0
        world.turn(20)
        assert world.plane.snapshot().mailboxes[0].send_queued_bytes == 0

    def test_what_tcp_had_at_the_end_is_not_repeated(self, world: World) -> None:
        mailbox = world.mailbox()
        old = world.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        old.say_map()
        world.turn()
        old.stream.unacknowledged_bytes = 10
        mailbox.sendto(b"there", ADDRESS)
        mailbox.sendto(b"not there", ADDRESS)
        old.close()
        world.turn()
        assert [frame.payload for frame in world.attach().messages()] == [b"not there"]

    def test_what_tcp_had_of_a_superseded_stream_is_not_repeated(self, world: World) -> None:
        mailbox = world.mailbox()
        old = world.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        old.say_map()
        world.turn()
        old.stream.unacknowledged_bytes = 10
        mailbox.sendto(b"there", ADDRESS)
        mailbox.sendto(b"not there", ADDRESS)
        assert [frame.payload for frame in world.attach().messages()] == [b"not there"]

    @pytest.mark.parametrize("how", ["asked", "ended", "detached"])
    def test_what_is_written_while_tcp_is_asked_may_be_lost_yet(
        self, world: World, how: str
    ) -> None:
        """Another thread sends between the answer of TCP and its use."""
        mailbox = world.mailbox()
        old = world.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        old.say_map()
        world.turn()
        old.frames()
        mailbox.sendto(b"there", ADDRESS)
        threads: list[threading.Thread] = []

        def unacknowledged() -> int:
            if not threads:
                threads.append(threading.Thread(target=mailbox.sendto, args=(b"late", ADDRESS)))
                threads[0].start()
                threads[0].join(0.2)  # the Python plane asks with its lock held
            return 0

        old.stream.unacknowledged = unacknowledged  # type: ignore[method-assign]  # on purpose
        if how == "asked":
            world.turn(5)
        elif how == "ended":
            old.socket.shutdown(socket.SHUT_WR)
            world.turn()
        else:
            world.path().detach()
        threads[0].join(BUSY_S)
        assert mailbox.unacknowledged() == 1
        if how == "asked":
            old.stream.unacknowledged = lambda: 1 << 20  # type: ignore[method-assign]  # as above
            old.close()
            world.turn(5)
        new = world.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        new.say_map()
        world.turn(5)
        assert [frame.payload for frame in new.messages()] == [b"late"]

    @pytest.mark.rule("rds7-ack-purges")
    def test_the_header_frees(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        mailbox.sendto(b"1", ADDRESS)
        mailbox.sendto(b"22", ADDRESS)
        world.turn(50)
        assert world.plane.snapshot().mailboxes[0].send_queued_bytes == 3
        remote.say(0, ack=1, source_port=0, target_port=0)
        world.turn()
        assert world.plane.snapshot().mailboxes[0].send_queued_bytes == 2

    def test_our_acknowledgement_leaves_after_the_delay(self, world: World) -> None:
        world.mailbox()
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        world.turn()
        remote.frames()
        remote.say(5, b"x")
        world.turn()
        world.turn(ACK_DELAY_MS - 1)
        assert remote.frames() == []
        world.turn(1)
        assert [frame.header.ack for frame in remote.frames()] == [5]
        world.turn(2 * ACK_DELAY_MS)
        assert remote.frames() == []

    def test_a_close_acknowledges_first_what_came_in(self, world: World) -> None:
        """Without delay: its sender would count it as lost with us."""
        world.mailbox()
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        world.turn()
        remote.frames()
        remote.say(5, b"x")
        world.turn()
        remote.say(6, b"too late: nobody will take it")
        world.plane.close(0)
        assert [frame.header.ack for frame in remote.frames()] == [5]
        assert remote.ended()

    def test_linux_never_gets_one(self, world: World) -> None:
        world.mailbox()
        remote = world.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        remote.frames()
        remote.write(
            *(message(number, b"x", flags=HeaderFlag.ACK_REQUIRED) for number in range(1, 600))
        )
        world.turn()
        world.turn(50)
        assert remote.frames() == []


class TestFences:
    """What a socket left on one path is ahead of what it sends on another."""

    def test_the_second_path_waits_for_the_first(self, world: World) -> None:
        mailbox = world.mailbox()
        first = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        mailbox.sendto(b"first", ADDRESS)
        other = world.plane.path(local=LOCAL, peer=PEER, index=1, sequence_first=1)
        second = world.attach(path=other)
        other.hold_behind(world.path())
        mailbox.route(PEER, other)
        mailbox.sendto(b"second", ADDRESS)
        world.turn(5)
        assert second.messages() == []
        question = first.frames()[-1].header
        assert (question.sequence, question.flags) == (0, HeaderFlag.ACK_REQUIRED)
        first.say(0, ack=1, source_port=0, target_port=0)
        world.turn()
        assert [frame.payload for frame in second.messages()] == [b"second"]

    @pytest.mark.parametrize("how", ["tcp", "cancel", "give up"])
    def test_whatever_opens_the_fence_sends_what_waits(self, world: World, how: str) -> None:
        mailbox, second_box = world.mailbox(), world.mailbox(5001)
        first = world.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
        first.say_map()
        world.turn()
        first.stream.unacknowledged_bytes = 1 << 20
        mailbox.sendto(b"first", ADDRESS)
        other = world.plane.path(local=LOCAL, peer=PEER, index=1, sequence_first=1)
        second = world.attach(path=other)
        other.hold_behind(world.path())
        second_box.route(PEER, other)
        second_box.sendto(b"second", ADDRESS)
        world.turn(20)
        assert second.messages() == []
        if how == "tcp":
            first.stream.unacknowledged_bytes = 0
        elif how == "cancel":
            mailbox.cancel(None, None)
        else:
            world.path().drop_queue()
        world.turn(20)
        assert [frame.payload for frame in second.messages()] == [b"second"]


def test_a_full_stream_takes_the_rest_later(world: World) -> None:
    """EAGAIN in the middle of a message: the bytes go on where they stopped."""
    mailbox = world.mailbox(send_bytes_max=1 << 20)
    remote = world.attach(buffer_bytes=4096)
    payload = bytes(range(256)) * 2000
    mailbox.sendto(payload, ADDRESS)
    mailbox.sendto(b"behind", ADDRESS)
    frames = []
    for _ in range(2000):
        frames += remote.messages()
        world.turn(1)
        if len(frames) == 2:
            break
    assert [frame.payload for frame in frames] == [payload, b"behind"]
    assert world.counter("tcp_sndbuf_full") > 0


def test_a_peer_has_delivered_once_a_message_reached_a_socket(world: World) -> None:
    """Neither a map, nor a ping, nor a message to a port that no socket has, is one."""
    path = world.path()
    remote = world.attach(path=path)
    remote.say_map()
    remote.say(1, b"no socket")
    world.turn()
    assert not path.has_delivered()
    mailbox = world.mailbox()
    remote.say(2, b"a socket")
    world.turn()
    assert take(mailbox) == [b"a socket"]
    assert path.has_delivered()
    path.detach()
    assert path.has_delivered()


def test_progress_tells_what_came_and_the_oldest_message_without_an_acknowledgement(
    world: World,
) -> None:
    path = world.path(sequence_first=7)
    assert path.activity() == PathActivity(0, None, 7)
    remote = world.attach(path=path, ack_mode=AckMode.PEER_ACKNOWLEDGED)
    remote.say_map()
    world.turn()
    assert path.activity() == PathActivity(1, None, 7)
    mailbox = world.mailbox()
    for payload in (b"one", b"two", b"three"):
        mailbox.sendto(payload, ADDRESS)
        world.turn()
    assert path.activity() == PathActivity(1, 7, 10)
    remote.say(1, ack=7)
    world.turn()
    assert path.activity() == PathActivity(2, 8, 10)
    path.detach()
    assert path.activity() == PathActivity(0, 8, 10)
    path.close()


def test_the_plane_says_when_there_is_something_to_read(world: World) -> None:
    """`fileno` is readable exactly when `progress` has something to read."""
    remote = world.attach()
    poll = select.poll()
    poll.register(world.plane.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    remote.say(1)
    assert poll.poll(0)
    assert world.plane.progress() == 1
    assert poll.poll(0) == []


def test_watched_descriptors_are_reported_once(world: World) -> None:
    here, there = socket.socketpair()
    with here, there:
        world.plane.watch(here.fileno(), Interest.READ)
        assert world.turn() == []
        there.send(b"x")
        assert world.turn() == [Ready(here.fileno(), Interest.READ)]
        assert world.turn() == []
        world.plane.watch(here.fileno(), Interest.WRITE)
        assert world.turn() == [Ready(here.fileno(), Interest.WRITE)]
        world.plane.watch(here.fileno(), Interest.READ)
        world.plane.unwatch(here.fileno())
        assert world.turn() == []
