"""One sparse scenario per wake-up rule of the compiled plane; as a program it plays one.

`python -m tests.rds.sockets.wakeup_compiled RULE [broken]` returns 0 if all woke in time and
3 if a thread slept on. A scenario returns the same as true and false; the rules are those of
`native/crates/dataplane/src/rules.rs`, and the scenarios twins of those of the Python plane.
"""

import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

import urds_native

from tests.rds.sockets import wakeup_scenarios as both
from tests.rds.sockets.wakeup_compiled_world import CompiledScene, Interrupted
from tests.rds.sockets.wakeup_rooms import room_is_told_to_who_waits_there
from tests.rds.sockets.wakeup_scene import PEER_ADDRESS, payloads

WOKE, SLEPT_ON = 0, 3
HOLDS_S, BROKEN_S = 8.0, 0.6
TRIES = 20  # one that ends well takes a few milliseconds


# -- who waits


def a_notified_follower_does_not_sleep(scene: CompiledScene) -> bool:
    """Tell a follower between its look and its sleep."""
    other, mailbox = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    scene.receive(other)
    stop = scene.stop("FollowerSleeps")
    results = scene.start(lambda: mailbox.receive(wait_ns=None))
    stop.wait()
    before = scene.leads()
    remote.say(1, target_port=2)
    scene.wait_for(lambda: scene.leads() > before)
    stop.go_on()
    return scene.wait_for(lambda: bool(results))


def an_interrupted_follower_passes_it_on(scene: CompiledScene) -> bool:
    """Tell the thread that a signal woke before it leaves; a second waits for the same mailbox."""
    other, mailbox = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    scene.receive(other)
    scene.victim(mailbox)
    takes = scene.receive(mailbox)
    stop = scene.interrupt()
    before = scene.leads()
    remote.say(1, target_port=2)
    scene.wait_for(lambda: scene.leads() > before)
    stop.go_on()
    return scene.wait_for(lambda: bool(takes))


def an_interrupted_leader_passes_it_on(scene: CompiledScene) -> bool:
    """Count the leader that a signal woke as told, by a pass, before it leaves."""
    mailbox = scene.mailbox(1)
    remote = scene.attach()
    scene.victim(mailbox)
    scene.receive(scene.mailbox(2))  # this one is named successor
    takes = scene.receive(mailbox)
    stop = scene.interrupt()
    remote.say(1, target_port=1)
    scene.plane.progress()
    stop.go_on()
    return scene.wait_for(lambda: bool(takes))


# -- who writes, and the helper


def a_message_during_a_write_leaves(scene: CompiledScene) -> bool:
    """Send from a second thread while the first is in `sendmsg`; no third thread ever writes."""
    mailbox = scene.mailbox(1)
    remote = scene.routed(mailbox)
    in_write, go_on = threading.Event(), threading.Event()
    sendmsg = remote.stream.sendmsg

    def stopped(*arguments: object) -> int:
        taken = sendmsg(*arguments)  # type: ignore[arg-type]  # as they came
        in_write.set()
        go_on.wait(scene.bound_s)
        return taken

    remote.stream.sendmsg = stopped  # type: ignore[method-assign]  # watched on purpose
    scene.start(lambda: mailbox.sendto(b"first", PEER_ADDRESS))
    assert in_write.wait(scene.bound_s), "it writes"
    mailbox.sendto(b"second", PEER_ADDRESS)
    go_on.set()
    seen: list[bytes] = []

    def both() -> bool:
        seen.extend(payloads(remote))
        return seen == [b"first", b"second"]

    return scene.wait_for(both)


def a_leader_that_leaves_is_replaced_by_the_helper(scene: CompiledScene) -> bool:
    """Let the helper sleep because a leader reads; then the leader goes, and a poller waits."""
    first, second = scene.mailbox(1), scene.mailbox(2)
    remote = scene.attach()
    leads = scene.receive(first)
    descriptor = second.fileno()
    before = urds_native.seen("ProgressThreadSleeps")[0]
    scene.help()  # with a leader there, it arms nothing
    scene.wait_for(lambda: urds_native.seen("ProgressThreadSleeps")[0] > before)
    remote.say(1, target_port=1)
    scene.wait_for(lambda: bool(leads))
    remote.say(2, target_port=2)
    return scene.wait_for(lambda: bool(select.select([descriptor], [], [], 0)[0]))


# By what the tests are called, and the rule that each needs.
SCENARIOS: dict[str, tuple[Callable[[CompiledScene], bool], str]] = {
    "list before sleeping": (both.a_message_before_sleeping_is_seen, "ListBeforeSleeping"),
    "look after notice": (a_notified_follower_does_not_sleep, "LookAfterNotice"),
    "kick the leader": (both.a_leader_hears_of_a_local_message, "KickLeader"),
    "leave the kick": (both.a_pass_leaves_the_kick_to_the_leader, "OnlyLeaderReadsKick"),
    "name a successor": (both.a_follower_takes_over, "NameSuccessor"),
    "who is named names": (both.a_named_one_who_leaves_names_the_next, "NamedOneNames"),
    "pass it on, follower": (an_interrupted_follower_passes_it_on, "PassItOn"),
    "pass it on, leader": (an_interrupted_leader_passes_it_on, "PassItOn"),
    "close wakes all waiters": (both.close_wakes_all_waiters, "ClosingTells"),
    "the writer looks again": (a_message_during_a_write_leaves, "WriterLooksAgain"),
    "asleep under the lock": (both.a_tail_wakes_the_helper, "AsleepUnderLock"),
    "wake the helper": (a_leader_that_leaves_is_replaced_by_the_helper, "WakeProgressThread"),
    "a wait flushes tails": (
        both.a_tail_leaves_with_the_next_wait_of_its_sender,
        "WaitFlushesBatches",
    ),
    "room is told where it is": (room_is_told_to_who_waits_there, "RoomTells"),
}


def play(scene: CompiledScene, scenario: Callable[[CompiledScene], bool]) -> None:
    """Run the scenario in a thread and what it wants of the main thread here."""
    woke: list[bool] = []

    def run() -> None:
        try:
            woke.append(scenario(scene))
            if not woke[0]:
                os._exit(SLEPT_ON)  # the main thread may sleep as well
            scene.close()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        scene.tasks.put(None)

    threading.Thread(target=run, daemon=True).start()
    while (task := scene.tasks.get()) is not None:
        try:
            task()
        except Interrupted:
            pass


def main(name: str, *how: str) -> None:
    """Play one scenario; with a broken rule until a thread hangs."""

    def interrupted(_number: int, frame: FrameType | None) -> None:
        # A late one finds the main thread between two waits.
        if frame is not None and frame.f_code.co_name == "receive":
            raise Interrupted

    signal.signal(signal.SIGUSR1, interrupted)
    scenario, rule = SCENARIOS[name]
    if how == ("broken",):
        urds_native.break_rule(rule)
    # Something else may wake a thread just then: one of several tries has to hang.
    for _ in range(TRIES if how else 1):
        play(CompiledScene(BROKEN_S if how else HOLDS_S), scenario)
    os._exit(WOKE)


if __name__ == "__main__":
    main(*sys.argv[1:])
