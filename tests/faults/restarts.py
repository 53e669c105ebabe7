"""Scenarios that kill hosts and start them again at the same address."""

from __future__ import annotations

import signal
import time
from typing import Any, Final

from tests.faults.board import LIVES_MAX
from tests.faults.run import Run
from tests.faults.scale import Scale
from tests.support.carriers import control_counter

_DOWN_S_MAX: Final = 0.3
_HANDED: Final = 12  # messages for a host that is stopped: few enough for the sender's account
_QUIET_S: Final = 0.5  # in which every acknowledgement has come
_SHORT_OF_ALL: Final = 0.8  # of the messages come before the last kill
Notes = dict[str, Any]


def restarts(run: Run, scale: Scale) -> Notes:
    """Kill one of two hosts amid the traffic of both, and start it again; again and again."""
    run.add_mesh(2)
    run.aim_evenly()
    goal = run.goals[0, 1]
    more = round(_SHORT_OF_ALL * goal / scale.restarts) + 1  # than a kill waits for
    killed, known = [0, 0], [0, 0]  # known: messages that the life of a host gave up
    for _ in range(scale.restarts):
        host = run.random.randrange(2)
        if killed[host] + 1 == LIVES_MAX:
            break
        # Both ways lie ahead of the survivor's end, on either side.
        share = run.random.uniform(0.2, 1.0) * _SHORT_OF_ALL * goal / scale.restarts
        if not (_moves_on(run, round(share)) and _know_each_other(run)):
            break
        run.live(host).kill()
        killed[host] += 1
        run.given_up_before += known[host]
        known[host] = 0
        time.sleep(run.random.uniform(0.0, _DOWN_S_MAX))
        run.restart(host)
        # A fast way may be at its end, and what it sent last gone with that life: more follows.
        run.aim({way: max(run.goals[way], run.accepted(way) + more) for way in run.ways})
        run.fault_over()
        run.recover()
        known[1 - host] = _given_up(run, 1 - host)
    run.finish()
    return {"killed_lower": killed[0], "killed_higher": killed[1]}


def told(run: Run, scale: Scale) -> Notes:
    """Kill a host that was stopped with messages under way: the sender knows how many, exactly."""
    run.add_mesh(2)
    counts, given_up_by = [], [0, 0]
    for turn in range(max(1, scale.restarts // 4)):
        host = turn % 2
        sender, way = 1 - host, (1 - host, host)
        before = run.goals.get(way, 0)
        run.aim({way: before + 100})
        run.finish()
        run.going(_QUIET_S)
        time.sleep(_QUIET_S)
        given_up = _given_up(run, sender)
        run.live(host).child.signal(signal.SIGSTOP)
        last = run.taken(way).next
        run.aim({way: last + _HANDED})
        time.sleep(_QUIET_S)
        accepted = run.accepted(way)
        run.live(host).kill()
        run.given_up_before += given_up_by[host]
        run.restart(host)
        run.fault_over()
        run.aim({way: accepted + 100})
        run.finish()
        skipped = run.taken(way).first - last
        given_up_by = [0, 0]
        given_up_by[sender] = _given_up(run, sender)
        counted = given_up_by[sender] - given_up
        counts.append((accepted - last, skipped, counted))
        if skipped != counted or not counted:
            run.problems.append(f"{skipped} messages never came, and {counted} count as given up")
    return {"handed_skipped_given_up": counts}


def _moves_on(run: Run, messages: int) -> bool:
    """Wait until each way has carried so many more messages; False if the traffic ended."""
    start = {way: run.taken(way).next for way in run.ways}
    while any(run.taken(way).next < start[way] + messages for way in run.ways):
        if not run.going(0.002):
            return False
    return True


def _know_each_other(run: Run) -> bool:
    """Wait until each live host has heard what the other is; False if the traffic ended.

    Who dies before that is a kernel to the survivor: what it was handed comes again to its next
    life, as to a kernel that lost its connection.
    """
    handshakes = control_counter("handshakes")
    while not all(run.live(host).report()["counters"].get(handshakes, 1) for host in (0, 1)):
        if not run.going(0.002):
            return False
    return True


def _given_up(run: Run, host: int) -> int:
    count: int = run.live(host).report()["counters"]["send_given_up"]
    return count
