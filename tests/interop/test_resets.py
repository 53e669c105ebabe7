"""Exactly once and in order while connections are reset; the wire says who lost a message."""

import random
import time
from dataclasses import replace

import pytest

from .conftest import Ends, Note
from .exchanges import judged_exchange, received_in_rounds
from .lab.guest import Lab
from .lab.wire import Orders

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

COUNT, COUNT_SHORT = 10_000, 1_000
KILLS = 12
ROUNDS, ROUND_COUNT = 40, 5
CUTS = Orders(cut_bytes_min=20_000, cut_bytes_max=120_000)
KILL_IN_GUEST = "run('ss --kill -Htn state established \\\\( sport = 16385 or dport = 16385 \\\\)')"


@pytest.mark.rule("rds7-once", "rds7-reliable-in-order", "wire-generation-transport")
@pytest.mark.parametrize(
    "our_size", ["size_small", "size_mix"], ids=["to-2000-bytes", "mostly-small-some-large"]
)
def test_ten_thousand_each_way_over_a_wire_that_cuts(
    ends: Ends, lab: Lab, note: Note, our_size: str
) -> None:
    """Every 20 to 120 kB a reset, at the byte drawn from the seed; the content is checked."""
    ends.open_sockets()
    cuts_before = lab.order(replace(CUTS, seed=1))["cuts"]
    with judged_exchange(
        ends, lab, note, count=COUNT, seed=1, kernel_size="size_small", our_size=our_size
    ):
        pass
    assert lab.counts()["cuts"] - cuts_before >= 100, "too few cuts: this run shows nothing"


@pytest.mark.short
@pytest.mark.rule("rds7-once", "rds7-reliable-in-order", "wire-generation-transport")
@pytest.mark.parametrize(
    "orders",
    [
        replace(CUTS, seed=1),
        replace(CUTS, seed=2, reset=("to_guest",)),
        replace(CUTS, seed=3, reset=("to_host",)),
    ],
    ids=["both-are-told", "kernel-is-told", "we-are-told"],
)
def test_a_thousand_each_way_and_one_side_does_not_learn_of_the_cut(
    ends: Ends, lab: Lab, note: Note, orders: Orders
) -> None:
    """Who is not told has a connection that seems up until the other end's host says otherwise."""
    ends.open_sockets()
    cuts_before = lab.order(orders)["cuts"]
    with judged_exchange(
        ends, lab, note, count=COUNT_SHORT, seed=orders.seed, kernel_size="size_medium"
    ):
        pass
    assert lab.counts()["cuts"] - cuts_before >= 10, "too few cuts: this run shows nothing"


@pytest.mark.rule("rds7-once", "wire-generation-transport", "wire-reconnect")
def test_messages_each_way_while_the_kernel_loses_its_connections(
    ends: Ends, lab: Lab, note: Note
) -> None:
    """The guest's connections are killed at random moments; its peer gets a reset."""
    ends.open_sockets()
    moments = random.Random(5)
    killed = 0
    with (
        lab.open_guest() as killer,
        judged_exchange(ends, lab, note, count=COUNT, seed=5, kernel_size="size_small"),
    ):
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.05, 0.3))
            killed += len(killer(KILL_IN_GUEST).splitlines())
    note(resets=killed)
    assert killed >= 3, "no connection was killed: this run shows nothing"


@pytest.mark.short
@pytest.mark.rule("wire-reconnect")
def test_both_sides_dial_at_the_same_moment(ends: Ends, lab: Lab, note: Note) -> None:
    """Again and again the connection is reset, and both sides send at once."""
    ends.open_sockets()
    with received_in_rounds(ends, lab, note, rounds=ROUNDS, count=ROUND_COUNT) as rounds:
        for numbers in rounds:
            lab.cut_now()
            names = {"first": numbers.start, "last": numbers.stop}
            send = "send_numbers(s, target, range(first, last))"
            ends.guest.start(send, target=ends.us, **names)
            ends.ours(send, target=ends.kernel, **names)
            ends.guest.finish()
