"""Scenarios of the message that is alone: its writer and its receiver keep every rule of waiting.

A scenario returns whether all threads woke in time. The function behind it breaks its rule, where
those of the general way do not break this one too.
"""

import pytest

from tests.parity.planes import Remote
from tests.rds.sockets.wakeup_waiting import sends_behind_a_write
from tests.rds.sockets.wakeup_world import LOCAL, PEER_ADDRESS, World
from urds.rds.plane.contract import Stream
from urds.rds.plane.python import alone
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.plane import Plane
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.plane.python.waiting import Doing


def plain_path(scene: World, mailbox: Mailbox) -> Remote:
    """Give the path a stream on which one message went each way: nothing of ours is out."""
    remote = scene.attach()
    mailbox.sendto(b"route", PEER_ADDRESS)
    scene.wait_for(lambda: bool(remote.messages()))
    remote.say(1, b"reply", target_port=mailbox.port, ack=1)
    scene.plane.progress()
    mailbox.recvfrom(100)
    return remote


def a_message_during_a_lone_write_leaves(scene: World) -> bool:
    """Send from a second thread while the first is in `sendmsg`; no third thread ever writes."""
    mailbox = scene.mailbox(1)
    return sends_behind_a_write(scene, mailbox, plain_path(scene, mailbox))


def no_second_look(patch: pytest.MonkeyPatch) -> None:
    def leave(path: StreamPath, stream: Stream, data: bytes, taken: int, failure: object) -> None:
        with path.plane.lock:
            path.writing = False

    patch.setattr(alone, "write_on", leave)


def a_lone_receiver_hears_of_a_local_message(scene: World) -> bool:
    """Let it sleep in epoll, and send from a thread of this process."""
    mailbox, sender = scene.mailbox(1), scene.mailbox(2)
    results = scene.receive_plain(mailbox)
    sender.sendto(b"x", (str(LOCAL), 1))
    return scene.wait_for(lambda: bool(results))


def a_message_before_lone_sleep_is_seen(scene: World) -> bool:
    """Bring the message between the look and the sleep, read by another thread."""
    mailbox = scene.mailbox(1)
    remote = plain_path(scene, mailbox)
    mailbox.sendto(b"carries the acknowledgement", PEER_ADDRESS)  # so that nothing is due
    pause = scene.pause(scene.plane.poll_set, "wait")
    results = scene.start(lambda: mailbox.recvfrom(100))
    assert pause.reached.wait(scene.bound_s), "it waits alone"
    remote.say(2, b"x", target_port=1)
    scene.plane.progress()
    pause.go.set()
    return scene.wait_for(lambda: bool(results))


def it_is_not_known_to_sleep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alone, "_IN_POLL", Doing.RUNNING)


def a_follower_takes_over(scene: World) -> bool:
    """Let it get its message and leave; then bring one for the follower."""
    first, second = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    leads = scene.receive_plain(first)
    follows = scene.receive_plain(second)
    remote.say(1, target_port=1)
    scene.wait_for(lambda: bool(leads))
    remote.say(2, target_port=2)
    return scene.wait_for(lambda: bool(follows))


def what_it_reads_for_others_is_told(scene: World) -> bool:
    """Have it read the message of a follower and nothing of its own."""
    first, second = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    scene.receive_plain(first)
    follows = scene.receive_plain(second)
    remote.say(1, target_port=2)
    return scene.wait_for(lambda: bool(follows))


def it_tells_no_waiter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plane, "note_arrival", lambda self, inbox, messages: None)


def what_is_due_leaves_while_it_waits(scene: World) -> bool:
    """Owe the peer an acknowledgement and wait for its next message; there is no helper."""
    mailbox = scene.mailbox(1)
    remote = plain_path(scene, mailbox)
    mailbox.sendto(b"carries the acknowledgement", PEER_ADDRESS)
    results = scene.receive_plain(mailbox)
    remote.say(2, b"x", target_port=1, ack=2)
    scene.wait_for(lambda: bool(results))
    scene.receive_plain(mailbox)
    seen: list[int] = []

    def acknowledged() -> bool:
        seen.extend(frame.header.ack for frame in remote.frames())
        return 2 in seen

    return scene.wait_for(acknowledged)


def it_waits_as_if_nothing_were_due(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alone, "_pay", lambda plane, timeout_s: timeout_s)


def an_interrupted_one_passes_it_on(scene: World) -> bool:
    """Interrupt it when it was told of a message; a second waits for the same mailbox."""
    mailbox, sender = scene.mailbox(1), scene.mailbox(2)
    poll, interrupted = scene.plane.poll_set.wait, []

    def poll_interrupted(timeout_s: float, ready_max: int) -> list[tuple[int, int]]:
        poll(timeout_s, ready_max)
        interrupted.append(True)
        raise KeyboardInterrupt

    scene.plane.poll_set.wait = poll_interrupted  # watched on purpose
    scene.receive_plain(mailbox)
    scene.receive(scene.mailbox(3))  # this one is named successor
    takes = scene.receive_plain(mailbox)
    sender.sendto(b"x", (str(LOCAL), 1))
    return scene.wait_for(lambda: bool(interrupted)) and scene.wait_for(lambda: bool(takes))


def what_it_owes_is_acknowledged(scene: World) -> bool:
    """Take one message while the helper sleeps for long, and never call again."""
    mailbox = scene.mailbox(1)
    remote = plain_path(scene, mailbox)
    scene.help()
    results = scene.receive_plain(mailbox)
    scene.wait_for(lambda: scene.plane.progress_thread.asleep)
    remote.say(2, b"x", target_port=1, ack=1)
    scene.wait_for(lambda: bool(results))
    seen: list[int] = []

    def acknowledged() -> bool:
        seen.extend(frame.header.ack for frame in remote.frames())
        return 2 in seen

    return scene.wait_for(acknowledged)
