"""One sparse scenario per wake-up rule, with widened windows; each fails when its rule is broken.

Heavy traffic hides a lost wake-up, for the next message repeats the last one. So each scenario
sends one message at the worst moment and then nothing more. A rule has two tests: the scenario
holds, and with the rule broken on purpose the same scenario finds the hang within its bound.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.rds.sockets import wakeup_helping as helping
from tests.rds.sockets import wakeup_rooms as rooms
from tests.rds.sockets import wakeup_scenarios as both
from tests.rds.sockets import wakeup_waiting as waiting
from tests.rds.sockets.wakeup_world import Breakage, World, world

pytestmark = pytest.mark.reference

HOLDS_S = 2.5
BROKEN_S = 0.6


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the contract, the scenario that needs it, and how it is broken on purpose."""

    name: str
    scenario: Callable[[World], bool]
    broken: Breakage


RULES = [
    Rule("the writer looks again", waiting.a_message_during_a_write_leaves, waiting.no_second_look),
    Rule(
        "list before unlocking",
        both.a_message_before_sleeping_is_seen,
        waiting.list_after_unlocking,
    ),
    Rule("name a successor", both.a_follower_takes_over, waiting.no_successor),
    Rule(
        "who is named names",
        both.a_named_one_who_leaves_names_the_next,
        waiting.only_the_leader_names,
    ),
    Rule("kick the leader", both.a_leader_hears_of_a_local_message, waiting.no_kick),
    Rule(
        "leave the kick",
        both.a_pass_leaves_the_kick_to_the_leader,
        waiting.every_thread_reads_the_kick,
    ),
    Rule("pass it on, follower", waiting.an_interrupted_follower_passes_it_on, waiting.keep_it),
    Rule(
        "pass it on, leader",
        waiting.an_interrupted_leader_passes_it_on,
        waiting.the_reader_only_counts,
    ),
    Rule(
        "pass it on, peek",
        waiting.a_look_leaves_the_message_to_others,
        waiting.a_look_counts_as_taking,
    ),
    Rule(
        "pass it on, task",
        waiting.a_cancelled_callback_passes_it_on,
        waiting.a_cancelled_callback_keeps_it,
    ),
    Rule("asleep under the lock", both.a_tail_wakes_the_helper, helping.asleep_is_published_late),
    Rule(
        "wakeable before a far deadline",
        helping.a_far_deadline_leaves_the_helper_wakeable,
        helping.deaf_until_due,
    ),
    Rule(
        "taking is driving",
        helping.a_consumer_keeps_the_helper_from_reading,
        helping.taking_is_no_driving,
    ),
    Rule("the helper reads", helping.without_a_consumer_the_helper_reads, helping.never_armed),
    Rule(
        "the helper hears of a lost leader",
        helping.a_leader_that_leaves_is_replaced_by_the_helper,
        helping.no_thread_tells_the_progress_thread,
    ),
    Rule(
        "a wait flushes tails",
        both.a_tail_leaves_with_the_next_wait_of_its_sender,
        helping.tails_stay,
    ),
    Rule(
        "an acknowledgement stays due",
        helping.an_acknowledgement_waits_for_room,
        helping.an_unsent_one_drops_the_next,
    ),
    Rule(
        "reading goes on",
        helping.a_full_mailbox_stops_no_other,
        helping.a_full_mailbox_pauses_the_path,
    ),
    Rule("who reads tells", helping.what_a_sender_reads_is_told, helping.a_sender_tells_no_waiter),
    Rule(
        "an open fence flushes",
        helping.a_fence_that_tcp_opens_lets_the_next_path_go,
        helping.a_fence_opens_silently,
    ),
    Rule(
        "a leader pays what is due",
        helping.what_is_due_leaves_while_a_thread_waits,
        helping.a_leader_sleeps_as_if_nothing_were_due,
    ),
    Rule(
        "the helper pays what is due",
        helping.what_a_receiver_owes_is_acknowledged,
        helping.no_thread_tells_the_progress_thread,
    ),
    Rule(
        "room is told where it is",
        rooms.room_is_told_to_who_waits_there,
        rooms.room_is_told_to_no_waiter,
    ),
    Rule("close wakes all waiters", both.close_wakes_all_waiters, helping.closing_tells_no_waiter),
]

TRIES = 20  # one that ends well takes a few milliseconds

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@each_rule
def test_the_scenario_ends_well(rule: Rule) -> None:
    with world(HOLDS_S) as scene:
        assert rule.scenario(scene)


@each_rule
def test_the_scenario_finds_the_broken_rule(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else may wake a thread just then: one of several tries has to hang."""
    for _ in range(TRIES):
        with world(BROKEN_S) as scene, monkeypatch.context() as patch:
            rule.broken(patch)
            hangs = not rule.scenario(scene)
        if hangs:
            return
    pytest.fail(f"the scenario does not need the rule {rule.name!r}")
