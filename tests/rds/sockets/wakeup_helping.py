"""Scenarios of what happens while no thread is in a call, and of what a call does for others.

A scenario returns whether all threads woke in time. The function behind it breaks its rule.
"""

import pytest

from tests.parity.planes import Remote
from tests.rds.plane.path_world import message
from tests.rds.sockets.wakeup_scene import LOCAL, PEER_ADDRESS, payloads
from tests.rds.sockets.wakeup_world import World
from urds.rds.constants import HeaderFlag
from urds.rds.plane.python.background import ProgressThread
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.progress import Progress
from urds.rds.plane.python.receive_side import ReceiveSide
from urds.rds.plane.python.state import State, ThreadState
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.plane.python.stream_writer import StreamWriter
from urds.rds.plane.python.waiting import Waiters
from urds.rds.types import AckMode

# -- the helper


def asleep_is_published_late(patch: pytest.MonkeyPatch) -> None:
    decide, sleep = ProgressThread._decide, ProgressThread._sleep

    def decide_only(self: ProgressThread, now_ns: int) -> int | None:
        timeout_ns = decide(self, now_ns)
        self._state.thread.asleep = False
        return timeout_ns

    def publish_and_sleep(self: ProgressThread, timeout_ns: int | None) -> bool:
        with self._state.lock:
            self._state.thread.asleep = timeout_ns is None
        return sleep(self, timeout_ns)

    patch.setattr(ProgressThread, "_decide", decide_only)
    patch.setattr(ProgressThread, "_sleep", publish_and_sleep)


def a_far_deadline_leaves_the_helper_wakeable(scene: World) -> bool:
    """Leave a tail while a closed mailbox lingers for a second."""
    lingering, mailbox = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    for box in (lingering, mailbox):
        box.sendto(b"route", PEER_ADDRESS)
    scene.wait_for(lambda: bool(remote.messages()))
    lingering.close()
    scene.help()
    scene.wait_for(lambda: scene.plane.state.thread.armed and scene.plane.state.thread.in_any_sleep)
    tail = scene.leave_a_tail(mailbox)
    return scene.wait_for(lambda: tail in payloads(remote))


def deaf_until_due(patch: pytest.MonkeyPatch) -> None:
    decide = ProgressThread._decide

    def decide_deaf(self: ProgressThread, now_ns: int) -> int | None:
        timeout_ns = decide(self, now_ns)
        self._state.thread.asleep = timeout_ns is None
        return timeout_ns

    patch.setattr(ProgressThread, "_decide", decide_deaf)


def a_consumer_keeps_the_helper_from_reading(scene: World) -> bool:
    """Empty a full queue: the helper must not fill it behind our back."""
    mailbox = scene.mailbox(1)
    remote = scene.attach()
    for number in range(1, 41):
        remote.say(number, target_port=1)
    scene.plane.progress()
    for number in range(41, 81):
        remote.say(number, target_port=1)
    for taken in range(1, 41):
        mailbox.recvfrom(64)
        scene.plane.progress_thread.run(scene.plane.state.clock_ns() + 500_000)
        if len(mailbox.receives.queue) > 40 - taken:
            return False
    return True


def taking_is_no_driving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        State, "driven", property(lambda self: False, lambda self, value: None), raising=False
    )


def without_a_consumer_the_helper_reads(scene: World) -> bool:
    """Have no thread in a call; a descriptor shows the message all the same."""
    mailbox = scene.mailbox(1)
    remote = scene.attach()
    scene.help()
    mailbox.fileno()
    scene.wait_for(lambda: scene.plane.state.thread.armed)
    remote.say(1, target_port=1)
    return scene.wait_for(lambda: bool(mailbox.receives.queue))


def never_armed(patch: pytest.MonkeyPatch) -> None:
    def decide(self: ProgressThread, now_ns: int) -> int | None:
        self._state.thread.asleep = True

    patch.setattr(ProgressThread, "_decide", decide)


def a_leader_that_leaves_is_replaced_by_the_helper(scene: World) -> bool:
    """Let the helper sleep because a leader reads; then the leader goes, and a poller waits."""
    first, second = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    helper = scene.plane.progress_thread
    sleep, sleeps = helper._sleep, []

    def sleep_noted(timeout_ns: int | None) -> bool:
        sleeps.append(timeout_ns)
        return sleep(timeout_ns)

    helper._sleep = sleep_noted  # type: ignore[method-assign]  # watched on purpose
    second.fileno()
    leads = scene.receive(first)
    scene.help()  # with a leader there, it arms nothing
    scene.wait_for(lambda: sleeps[-1:] == [None])
    remote.say(1, target_port=1)
    scene.wait_for(lambda: bool(leads))
    remote.say(2, target_port=2)
    return scene.wait_for(lambda: bool(second.receives.queue))


def no_thread_tells_the_progress_thread(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ThreadState, "leader_left", lambda self: None)
    patch.setattr(ThreadState, "want", lambda self, *, now=False: None)


# -- tails, acknowledgements, reading


def tails_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "flush_batches", lambda self: None)


def an_acknowledgement_waits_for_room(scene: World) -> bool:
    """Make it due while the stream takes nothing; the peer must hear of it once it does."""
    mailbox = scene.mailbox(1, send_bytes_max=1 << 22)
    remote = scene.attach()
    scene.help()
    for _ in range(6):
        mailbox.sendto(bytes(200_000), PEER_ADDRESS)
    scene.wait_for(lambda: scene.path().writer.blocked)  # type: ignore[attr-defined]  # the reference's
    remote.say(77, b"x", target_port=1, flags=HeaderFlag.ACK_REQUIRED)
    scene.wait_for(lambda: bool(mailbox.receives.queue))
    seen: list[int] = []

    def acknowledged() -> bool:
        seen.extend(frame.header.ack for frame in remote.frames())
        return 77 in seen

    return scene.wait_for(acknowledged)


def an_unsent_one_drops_the_next(patch: pytest.MonkeyPatch) -> None:
    receive_data, frame = PathCore.receive_data, PathCore._frame_messages

    def receive(self: PathCore, data: bytes, now_ns: int) -> object:
        reason = receive_data(self, data, now_ns)
        if self._out:
            self.receiver.reset_ack_pending()
            self.ack_at_ns = None
        return reason

    def frame_without(self: PathCore) -> None:
        expected, self.receiver.sequence_expected = self.receiver.sequence_expected, 1
        frame(self)  # what is framed later does not carry it either: nothing else is sent
        self.receiver.sequence_expected = expected

    patch.setattr(PathCore, "receive_data", receive)
    patch.setattr(PathCore, "_frame_messages", frame_without)


def acknowledged_path(scene: World, mailbox: Mailbox) -> Remote:
    """Give the path a stream on which one message went each way: nothing of ours is out."""
    remote = scene.routed(mailbox)
    remote.say(1, b"reply", target_port=mailbox.port, ack=1)
    scene.plane.progress()
    mailbox.recvfrom(100)
    return remote


def is_acknowledged(scene: World, remote: Remote) -> bool:
    """Wait for the acknowledgement of the second message."""
    seen: list[int] = []

    def acknowledged() -> bool:
        seen.extend(frame.header.ack for frame in remote.frames())
        return 2 in seen

    return scene.wait_for(acknowledged)


def what_is_due_leaves_while_a_thread_waits(scene: World) -> bool:
    """Owe the peer an acknowledgement and wait for its next message; there is no helper."""
    mailbox = scene.mailbox(1)
    remote = acknowledged_path(scene, mailbox)
    mailbox.sendto(b"carries the acknowledgement", PEER_ADDRESS)
    results = scene.receive(mailbox)
    remote.say(2, b"x", target_port=1, ack=2)
    scene.wait_for(lambda: bool(results))
    scene.receive(mailbox)
    return is_acknowledged(scene, remote)


def a_leader_sleeps_as_if_nothing_were_due(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "has_dues", lambda self: False)


def what_a_receiver_owes_is_acknowledged(scene: World) -> bool:
    """Take one message while the helper sleeps for long, and never call again."""
    mailbox = scene.mailbox(1)
    remote = acknowledged_path(scene, mailbox)
    mailbox.sendto(b"carries the acknowledgement", PEER_ADDRESS)
    scene.help()
    results = scene.receive(mailbox)
    scene.wait_for(lambda: scene.plane.state.thread.asleep)
    remote.say(2, b"x", target_port=1, ack=2)
    scene.wait_for(lambda: bool(results))
    return is_acknowledged(scene, remote)


def a_full_mailbox_stops_no_other(scene: World) -> bool:
    """Fill one mailbox far over its buffer; the stream goes on for the other and for room."""
    full, other = scene.mailbox(1), scene.mailbox(2, send_bytes_max=1000)
    remote = scene.attach()
    other.sendto(bytes(1000), PEER_ADDRESS)
    scene.wait_for(lambda: bool(remote.messages()))
    receives = scene.receive(other)
    sends = scene.start(lambda: other.sendto(b"room", PEER_ADDRESS))
    data = [message(number, bytes(100_000), target_port=full.port) for number in range(1, 13)]
    scene.start(lambda: remote.write(*data, message(13, b"x", target_port=2, ack=1)))
    return scene.wait_for(lambda: bool(receives) and bool(sends))


def a_full_mailbox_pauses_the_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReceiveSide,
        "is_over_hard_bound",
        lambda self: self.receive_queued_bytes > self.buffer_bytes,
    )
    patch.setattr(ReceiveSide, "resume_paths", lambda self: None)


def what_a_sender_reads_is_told(scene: World) -> bool:
    """Let a sender that looks for acknowledgements read what another thread waits for."""
    mailbox, sender = scene.mailbox(1), scene.mailbox(2, send_bytes_max=1000)
    remote = scene.attach()
    sender.sendto(b"route", PEER_ADDRESS)
    scene.wait_for(lambda: bool(remote.messages()))
    pause = scene.stop("LeaderSleeps")
    results = scene.start(lambda: mailbox.receive(wait_ns=None))
    pause.reached.wait(scene.bound_s)
    remote.say(1, target_port=1)
    sender.sendto(bytes(600), PEER_ADDRESS)  # over a quarter of its account: it looks
    if not mailbox.receives.queue:
        return False
    pause.go.set()
    return scene.wait_for(lambda: bool(results))


def a_sender_tells_no_waiter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamPath, "look_for_acknowledgements", lambda self: self.reader.read())
    patch.setattr(StreamWriter, "flush", _silent(StreamWriter.flush))
    patch.setattr(Progress, "finish_pass", lambda self: None)


def _silent(flush: object) -> object:
    def flush_silently(self: StreamWriter, burst_bytes: int | None = None) -> None:
        progress = self._progress
        deliver, progress.deliver = progress.deliver, lambda: None  # type: ignore[method-assign]  # watched on purpose
        try:
            flush(self, burst_bytes)  # type: ignore[operator]  # a method by its name
        finally:
            progress.deliver = deliver  # type: ignore[method-assign]  # watched on purpose

    return flush_silently


def a_fence_that_tcp_opens_lets_the_next_path_go(scene: World) -> bool:
    """Acknowledge the last bytes of one path by TCP alone; another path waits for that."""
    mailbox = scene.mailbox(1)
    remote = scene.attach(ack_mode=AckMode.STREAM_ACKNOWLEDGED)
    remote.say_map()
    scene.help()
    scene.wait_for(lambda: scene.path().core.receiver.frames == 1)  # type: ignore[attr-defined]  # of this plane alone
    remote.stream.unacknowledged_bytes = 1 << 30
    mailbox.sendto(b"first", PEER_ADDRESS)
    behind = scene.plane.path(local=LOCAL, peer=scene.path().peer, index=1, sequence_first=1)
    behind_remote = scene.attach_remote(behind)
    behind.hold_behind(scene.path())
    mailbox.route(behind.peer, behind)
    mailbox.sendto(b"second", PEER_ADDRESS)
    remote.stream.unacknowledged_bytes = 0
    return scene.wait_for(lambda: bool(behind_remote.messages()))


def a_fence_opens_silently(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamPath, "flush_soon", lambda self: None)


# -- endings


def closing_tells_no_waiter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Waiters, "tell_all", lambda self, wait_queue: None)
