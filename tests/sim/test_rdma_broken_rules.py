"""Each rule of RDS over RDMA, broken on purpose, turns the worlds of `rdma_world` red.

A rule is broken by a patch, then seeds are tried until one fails: in safety or liveness, as the
world judges it. With the rule whole the same seed is well.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.sim.broken import Patch, around, demand_felt, instead, nothing
from tests.sim.rdma_world import SECOND, Plan, World
from urds.rds.constants import RdmaStatus
from urds.rds.control.rdma_peer import RdmaPeer
from urds.rds.plane.python.receive_side import ReceiveSide
from urds.rds.transports.rdma import receiving, regions, sending
from urds.rds.transports.rdma.core import ConnectionCore
from urds.rds.transports.rdma.credits import Credits
from urds.rds.transports.rdma.frames import Message, Task
from urds.rds.transports.rdma.link import Link
from urds.rds.transports.rdma.node import RdmaNode
from urds.rds.transports.rdma.path import RdmaPath
from urds.rds.transports.rdma.receiving import Incoming
from urds.rds.transports.rdma.sending import Outgoing

pytestmark = pytest.mark.sim

SEEDS_MAX = 60
PAIR = Plan()
RESTARTS = Plan(restarts=True)
CREDITS = Plan(credits=True)
# Of rules without which a world stands still: the time that it then takes is computed in full.
HURRIED = Plan(healed_ns=30 * SECOND)
VISITORS = Plan(visitors=True, gives_up=True, to_itself=True)


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule, the patch that breaks it, and the world that feels it."""

    rule: str
    patch: Patch
    plan: Plan = PAIR
    also: Patch | None = None  # what stays changed when the rule is whole again
    seed_first: int = 0  # where the search begins, for a rule that few worlds feel

    def run(self, seed: int) -> None:
        World(seed, self.plan).run()


def _acknowledge_early(original: Any, incoming: Incoming, fields: Any, payload: Any) -> Any:
    protocol_error = original(incoming, fields, payload)
    if incoming._header is not None and fields[0]:
        incoming.acknowledgement = fields[0]
    return protocol_error


def _acknowledge_one_more(original: Any, incoming: Incoming, *arguments: Any) -> None:
    original(incoming, *arguments)
    if incoming.acknowledgement:
        incoming.acknowledgement += 1


def _repeat_operations(original: Any, outgoing: Outgoing) -> None:
    again = dict.fromkeys(task.message for task in outgoing._running)
    again = {message: None for message in again if not message.sequence and message.owner}
    for message in again:
        for task in message.tasks:
            outgoing._running.pop(task, None)
        message.tasks = tuple(
            Task(message, task.owner, task.operation)
            for task in message.tasks
            if task.operation.status is None
        )
        message.was_handed_over = False
        outgoing._silents.pop(message, None)
        if message is outgoing.current:
            outgoing.current = None
    original(outgoing)
    outgoing.unsent.extendleft(reversed(again))


def _turn_the_repeats(original: Any, outgoing: Outgoing) -> None:
    original(outgoing)
    outgoing.retransmits = deque(reversed(outgoing.retransmits))


def _forget_the_repeats(original: Any, outgoing: Outgoing) -> None:
    original(outgoing)
    for message in outgoing.retransmits:
        outgoing._free(message)
    outgoing.retransmits.clear()


def _end_twice(original: Any, outgoing: Outgoing, task: Task, status: RdmaStatus) -> None:
    original(outgoing, task, status)
    outgoing.ended.append(outgoing.ended[-1])


def _take_back_at_once(outgoing: Outgoing, task: Task, status: RdmaStatus) -> None:
    if task.operation.status is None:
        outgoing._end(task, status)


def _run_on(original: Any, outgoing: Outgoing) -> None:
    outgoing._running.clear()
    original(outgoing)


def _gather_for_ever(core: ConnectionCore) -> bool:
    return core._is_packed and core.outgoing.may_gather()


def _keep_the_partial(incoming: Incoming) -> None:
    incoming.acknowledgement = 0
    incoming.note_ack_sent()


def _stay_with_the_old_life(original: Any, peer: RdmaPeer, data: Any, version: Any) -> None:
    peer.generation = None if data is None else data.generation
    original(peer, data, version)


def _send_no_map(original: Any, core: ConnectionCore, **named: Any) -> None:
    original(core, **named)
    core.map_due = False


def _send_no_new_map(path: RdmaPath) -> None:
    path.core.map_due = False


def _spend_what_is_not_there(original: Any, credits: Credits) -> int:
    credits._available = max(credits._available, 2)
    return original(credits)  # type: ignore[no-any-return]  # it is what `original` returns


def _grant_twice(original: Any, credits: Credits, count: int) -> None:
    original(credits, 2 * count)


def _lose_a_receive(original: Any, link: Link, slot: int) -> None:
    if link._attached and slot == 1:
        return
    original(link, slot)


def _map_for_ever(original: Any, link: Link, wr_id: int, view: memoryview) -> Any:
    entry = original(link, wr_id, view)
    del link._scratch[wr_id]
    return entry


def _ask_no_fence(original: Any, outgoing: Outgoing, *arguments: Any, **named: Any) -> Any:
    return replace(original(outgoing, *arguments, **named), fence=False)


def _tell_newest_first(original: Any, receives: Any, operation: Any) -> None:
    original(receives, operation)
    receives.notices.rotate(1)


def _cancel_without_room(original: Any, outgoing: Outgoing, owner: Any, *how: Any) -> int:
    freed = outgoing.freed.get(owner)
    count = original(outgoing, owner, *how)
    outgoing.freed.pop(owner, None)
    if freed is not None:
        outgoing.freed[owner] = freed
    return count  # type: ignore[no-any-return]  # it is what `original` returns


def _write_a_little_beside(original: Any, task: Task, wr_id: int) -> Any:
    piece = original(task, wr_id)
    return replace(piece, remote_address=piece.remote_address + (task.posted > 1))


# As a peer that does not say at connecting what it has: only then are repeats seen twice.
TELL_NOTHING = instead(ConnectionCore, "acknowledge_sequence", 0)

BROKEN = [
    Broken(
        "repeats are known by their numbers",
        instead(receiving, "_RETRANSMITTED", 0),
        also=TELL_NOTHING,
    ),
    Broken("repeats are marked", instead(sending, "_RETRANSMITTED", 0), also=TELL_NOTHING),
    Broken(
        "repeats come in their order",
        around(Outgoing, "end_connection", _turn_the_repeats),
        seed_first=1,
    ),
    Broken(
        "what is unacknowledged is kept", around(Outgoing, "end_connection", _forget_the_repeats)
    ),
    Broken(
        "a whole message is acknowledged",
        around(Incoming, "take_fragment", _acknowledge_early),
        seed_first=38,
    ),
    Broken(
        "what came is acknowledged, no more",
        around(Incoming, "_take_message", _acknowledge_one_more),
        seed_first=2,
    ),
    Broken(
        "a partial message ends with its connection",
        instead(Incoming, "end_connection", _keep_the_partial),
        HURRIED,
        seed_first=2,
    ),
    Broken(
        "an operation is never repeated",
        around(Outgoing, "end_connection", _repeat_operations),
        seed_first=97,
    ),
    Broken(
        "a message does not go without its operations",
        instead(Message, "has_succeeded", lambda _: True),
        seed_first=1,
    ),
    Broken("an operation ends once", around(Outgoing, "_end", _end_twice)),
    Broken(
        "a broken connection ends operations",
        around(Outgoing, "end_connection", _run_on),
        seed_first=1,
    ),
    Broken(
        "an operation taken back ends when the device is done",
        instead(Outgoing, "_take_back", _take_back_at_once),
        seed_first=8,
    ),
    Broken("a fence waits for reads", around(Outgoing, "take_frame", _ask_no_fence)),
    Broken("pieces lie one behind the other", around(Task, "next_piece", _write_a_little_beside)),
    Broken(
        "keys go with the message", instead(sending, "with_keys", lambda extension, _: extension)
    ),
    Broken(
        "notices come in the order of ends",
        around(ReceiveSide, "note_operation", _tell_newest_first),
    ),
    Broken("what is taken back frees its room", around(Outgoing, "cancel", _cancel_without_room)),
    Broken(
        "a restart is known",
        around(RdmaPeer, "_learn", _stay_with_the_old_life),
        RESTARTS,
        seed_first=3,
    ),
    Broken(
        "a restart counts afresh",
        instead(Incoming, "restart_peer", nothing),
        RESTARTS,
        seed_first=76,
    ),
    Broken(
        "what an old life was handed goes with it",
        instead(Outgoing, "drop_handed_over", lambda _: 0),
        RESTARTS,
        seed_first=3,
    ),
    Broken("a connection begins with our map", around(ConnectionCore, "attach", _send_no_map)),
    Broken("a changed map is sent", instead(RdmaPath, "send_map", _send_no_new_map), seed_first=9),
    Broken("a frame takes a credit", around(Credits, "take", _spend_what_is_not_there), CREDITS),
    Broken("a receive is granted once", around(Credits, "note_posted", _grant_twice), CREDITS),
    Broken("a receive is posted again", around(Link, "_post_receive", _lose_a_receive), CREDITS),
    Broken(
        "what gathers leaves in the end",
        instead(ConnectionCore, "_gathers", _gather_for_ever),
        seed_first=4,
    ),
    Broken("what pauses goes on", instead(RdmaPath, "resume", nothing), HURRIED, seed_first=9),
    Broken("memory is lent until the end", around(Link, "_export", _map_for_ever)),
    Broken("a region ends on the device", instead(regions, "_displace", nothing)),
    Broken(
        "a use-once region is used once",
        instead(regions.RegionTable, "handle_key_used", nothing),
        seed_first=9,
    ),
    Broken(
        "an evicted peer's number is kept",
        instead(RdmaNode, "_remember", nothing),
        VISITORS,
        seed_first=152,
    ),
    Broken("a lost connection is tried for", instead(RdmaPeer, "_reconnect_later", nothing)),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.rule)
def test_a_broken_rule_is_felt(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken.also is not None:
        broken.also(monkeypatch)
    seeds = range(broken.seed_first, broken.seed_first + SEEDS_MAX)
    demand_felt(broken.rule, broken.patch, broken.run, seeds, monkeypatch)
