"""Scenarios of the wait queue: threads join it, lead, are told and pass it on; how each breaks.

A scenario returns whether all threads woke in time. The function behind it breaks its rule.
"""

import threading

import pytest

from tests.parity.planes import Remote
from tests.rds.sockets.wakeup_scene import PEER_ADDRESS
from tests.rds.sockets.wakeup_world import World
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.progress import Progress
from urds.rds.plane.python.stream_writer import StreamWriter
from urds.rds.plane.python.waiting import Doing, Waiter, Waiters, WaitQueue

# -- the writer looks again before it clears `writing`


def a_message_during_a_write_leaves(scene: World) -> bool:
    """Send from a second thread while the first is in `sendmsg`; no third thread ever writes."""
    mailbox = scene.mailbox(1)
    remote = scene.routed(mailbox)
    return sends_behind_a_write(scene, mailbox, remote)


def sends_behind_a_write(scene: World, mailbox: Mailbox, remote: Remote) -> bool:
    """Send while a write is under way; return whether both messages leave."""
    pause = scene.pause(remote.stream, "sendmsg", after=True)
    scene.start(lambda: mailbox.sendto(b"first", PEER_ADDRESS))
    pause.reached.wait(scene.bound_s)
    mailbox.sendto(b"second", PEER_ADDRESS)
    scene.path().writer.flush()
    pause.go.set()
    seen: list[bytes] = []

    def both() -> bool:
        seen.extend(frame.payload for frame in remote.messages())
        return seen == [b"first", b"second"]

    return scene.wait_for(both)


def no_second_look(patch: pytest.MonkeyPatch) -> None:
    def advance(self: StreamWriter, stream: object, taken: int, failure: object) -> list[object]:
        self._core.transmitted(taken)
        self._finish_write()
        return []

    patch.setattr(StreamWriter, "advance", advance)


# -- a waiter lists itself in the critical section that found nothing


def list_after_unlocking(patch: pytest.MonkeyPatch) -> None:
    late = threading.local()
    add, serve_ready = Waiters.add, Progress.serve_ready

    def remember(self: Waiters, waiter: Waiter) -> None:
        late.entry = (self, waiter)

    def serve(self: Progress, timeout_s: float | None, *, leading: bool = False) -> int:
        if leading:
            with self._state.lock:
                add(*late.entry)
        return serve_ready(self, timeout_s, leading=leading)

    patch.setattr(Waiters, "add", remember)
    patch.setattr(Progress, "serve_ready", serve)


# -- a leader that leaves names a successor


def no_successor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitQueue, "name_leader", lambda self: None)


def only_the_leader_names(patch: pytest.MonkeyPatch) -> None:
    name_leader, end_wait = WaitQueue.name_leader, WaitQueue.end_wait

    def leave(self: WaitQueue, waiter: Waiter, waiters: Waiters, *, used: bool) -> bool:
        led = self.leader is waiter
        patch.setattr(WaitQueue, "name_leader", lambda self: None)
        unled = end_wait(self, waiter, waiters, used=used)
        patch.setattr(WaitQueue, "name_leader", name_leader)
        if led:
            self.name_leader()
        return unled

    patch.setattr(WaitQueue, "end_wait", leave)


# -- the leader is kicked, and no other thread reads the kick


def no_kick(patch: pytest.MonkeyPatch) -> None:
    wake = WaitQueue._wake
    patch.setattr(WaitQueue, "_wake", lambda self, gates, *, kick: wake(self, gates, kick=False))


def every_thread_reads_the_kick(patch: pytest.MonkeyPatch) -> None:
    read_kick = WaitQueue.read_kick
    patch.setattr(WaitQueue, "read_kick", lambda self, *, leading: read_kick(self, leading=True))


# -- notified and unused is passed on


def an_interrupted_follower_passes_it_on(scene: World) -> bool:
    """Interrupt the one who was told before it looks; a second waits for the same mailbox."""
    other, mailbox = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    scene.receive(other)
    sleep = scene.plane.state.wait_queue.sleep
    interrupted: list[Waiter] = []

    def sleep_interrupted(waiter: Waiter, timeout_s: float | None) -> None:
        sleep(waiter, timeout_s)
        if not interrupted:
            interrupted.append(waiter)
            raise KeyboardInterrupt

    scene.plane.state.wait_queue.sleep = sleep_interrupted  # type: ignore[method-assign]  # watched on purpose
    both = [scene.receive(mailbox), scene.receive(mailbox)]
    remote.say(1, target_port=2)
    return scene.wait_for(lambda: bool(interrupted)) and scene.wait_for(lambda: any(both))


def keep_it(patch: pytest.MonkeyPatch) -> None:
    end_wait = WaitQueue.end_wait
    patch.setattr(
        WaitQueue,
        "end_wait",
        lambda self, waiter, waiters, *, used: end_wait(self, waiter, waiters, used=True),
    )


def an_interrupted_leader_passes_it_on(scene: World) -> bool:
    """Interrupt the leader behind a read that counted it as told."""
    mailbox = scene.mailbox(1)
    remote = scene.attach()
    serve_ready = scene.plane.passes.serve_ready
    interrupted: list[bool] = []

    def serve_interrupted(timeout_s: float | None, *, leading: bool = False) -> int:
        served = serve_ready(timeout_s, leading=leading)
        if leading and not interrupted and mailbox.receives.queue:
            interrupted.append(True)
            raise KeyboardInterrupt
        return served

    scene.plane.passes.serve_ready = serve_interrupted  # type: ignore[method-assign]  # watched on purpose
    leads = scene.receive(mailbox)
    scene.receive(scene.mailbox(2))  # this one is named successor
    both = [leads, scene.receive(mailbox)]
    remote.say(1, target_port=1)
    return scene.wait_for(lambda: bool(interrupted)) and scene.wait_for(lambda: any(both))


def the_reader_only_counts(patch: pytest.MonkeyPatch) -> None:
    tell = Waiters.tell

    def tell_without_mark(self: Waiters, count: int, wait_queue: WaitQueue) -> None:
        leader = wait_queue.leader
        running = leader is not None and leader.doing is Doing.RUNNING
        tell(self, count, wait_queue)
        if running and leader is not None:
            leader.doing = Doing.RUNNING

    patch.setattr(Waiters, "tell", tell_without_mark)


def a_look_leaves_the_message_to_others(scene: World) -> bool:
    """Wait to look (MSG_PEEK) before one who waits to take: both must wake."""
    other, mailbox = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    scene.receive(other)
    looks = scene.start(lambda: mailbox.receive(wait_ns=None, peek=True))
    scene.wait_for(lambda: scene.seats() == 2)
    takes = scene.receive(mailbox)
    remote.say(1, target_port=2)
    return scene.wait_for(lambda: bool(looks) and bool(takes))


def a_look_counts_as_taking(patch: pytest.MonkeyPatch) -> None:
    tell = Waiters.tell
    told: list[int] = []

    def tell_once(self: Waiters, count: int, wait_queue: WaitQueue) -> None:
        if not told:
            tell(self, count, wait_queue)
        told.append(count)

    patch.setattr(Waiters, "tell", tell_once)


def a_cancelled_callback_passes_it_on(scene: World) -> bool:
    """Call a task of an event loop and cancel it; the thread behind it must get the message."""
    other, mailbox = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    scene.receive(other)
    called = threading.Event()
    cancel = mailbox.subscribe(called.set, room=False)
    takes = scene.receive(mailbox)
    remote.say(1, target_port=2)
    called.wait(scene.bound_s)
    cancel()
    return scene.wait_for(lambda: bool(takes))


def a_cancelled_callback_keeps_it(patch: pytest.MonkeyPatch) -> None:
    remove = Waiters.remove

    def removed(self: Waiters, waiter: Waiter) -> bool:
        remove(self, waiter)
        return True

    patch.setattr(Waiters, "remove", removed)
