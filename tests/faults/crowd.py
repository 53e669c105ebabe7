"""The scenario of one receiver among many that stops reading."""

from __future__ import annotations

import time
from typing import Any, Final

from tests.faults.run import Run, Way
from tests.faults.scale import Scale

_ROOMY_BYTES: Final = 64 << 20  # of a receiver that reads: a busy machine congests none of them
_BUFFER_BYTES: Final = 1 << 20  # of the sender, and of the receiver that stops
_ENDLESS: Final = 1 << 40
_STUCK_S: Final = 10.0
_HEARD_S: Final = 0.1  # in which a host obeys
_FIRST: Final = 20  # messages
_ROUNDS: Final = 3  # each with and without: what else the machine does spreads over both
Notes = dict[str, Any]


def slow_receiver(run: Run, scale: Scale) -> Notes:
    """Send to many receivers of which one stops reading; measure the others with and without it."""
    slow, others = 1, range(2, scale.crowd + 1)
    run.add({0: [slow, *others], slow: [0]}, wmem_default=_BUFFER_BYTES, rmem_default=_BUFFER_BYTES)
    run.add({host: [0] for host in others}, rmem_default=_ROOMY_BYTES)
    each = max(1, run.terms.messages // (2 * _ROUNDS * scale.crowd))
    pairs = [(0, host) for host in (slow, *others)]
    run.aim(dict.fromkeys(pairs, _FIRST))  # so that every connection stands
    run.finish()
    healthy_s = stuck_s = 0.0
    for _ in range(_ROUNDS):
        healthy_s += _carry(run, pairs, each)
        stuck_s += _without_one(run, slow, pairs[1:], each)
    run.finish()
    refused = {host: _rejected_sends(run, host) for host in (slow, *others)}
    delivered = _ROUNDS * each * len(others)
    return {
        "rate_without_slow": round(delivered / healthy_s),
        "rate_with_slow": round(delivered / stuck_s),
        "ratio": round(healthy_s / stuck_s, 3),
        "refused_of_slow": refused.pop(slow),
        "refused_of_others": sum(refused.values()),
        "accepted_for_slow": run.accepted((0, slow)),
    }


def _without_one(run: Run, slow: int, ways: list[Way], messages: int) -> float:
    """Have one host read nothing while others are sent to; return the seconds that these took."""
    congested_before = _rejected_sends(run, slow)
    run.live(slow).child.say(reading=False)
    run.aim({(0, slow): _ENDLESS})
    _await_congestion(run, slow, congested_before)
    took_s = _carry(run, ways, messages)
    for _ in range(2):  # what was accepted until it hears of the first goal is the second one
        run.aim({(0, slow): run.accepted((0, slow))})
        run.going(_HEARD_S)
    run.live(slow).child.say(reading=True)
    run.fault_over()
    run.recover()
    return took_s


def _carry(run: Run, ways: list[Way], messages: int) -> float:
    """Have each way carry so many more messages; return the seconds until the last one is taken."""
    goals = {way: run.taken(way).next + messages for way in ways}
    start_s = time.monotonic()
    run.aim(goals)
    while any(run.taken(way).next < goal for way, goal in goals.items()):
        if not run.going(0.002):
            break
    return time.monotonic() - start_s


def _await_congestion(run: Run, slow: int, congested_before: int) -> None:
    """Wait until sends to the slow receiver are refused."""
    end_s = time.monotonic() + _STUCK_S
    while _rejected_sends(run, slow) == congested_before:
        if time.monotonic() > end_s or not run.going(0.002):
            run.problems.append("the receiver that does not read was never congested")
            return


def _rejected_sends(run: Run, host: int) -> int:
    """Return how often a send to a host met ENOBUFS."""
    return run.live(0).board.sent(run.terms.place.address(host)).congested
