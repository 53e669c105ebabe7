"""Exactly once and in order while connections break, processes die and the kernel starts anew."""

import random
import time
from contextlib import suppress

import pytest

from .conftest import KERNEL_PORT, OUR_PORT, Ends, OpenOurs
from .lab.guest import GUEST, Lab
from .lab.remote import Remote
from .lab.wire import Orders

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

COUNT = 1000
LONG_COUNT = 5000  # a thousand are over before `ss` has killed twice
IDLE_S = 15.0
ACKNOWLEDGED_S = 5.0  # TCP delays an acknowledgement by a fifth of a second at most
EXCHANGE = "exchange(s, target, count=count, seed=seed, idle_s=idle_s)"
SILENCE = Orders(block=("to_guest", "to_host"))
RELOAD_RDS = "run('rmmod rds_tcp rds && modprobe rds_tcp')"
RESET_IN_GUEST = (
    "run('ss --kill -Htn state established \\\\( sport = 16385 or dport = 16385 \\\\)')"
)


@pytest.mark.rule("rds7-once", "rds7-reliable-in-order", "wire-generation-transport")
@pytest.mark.parametrize(
    "orders",
    [
        Orders(cut_octets_min=20_000, cut_octets_max=120_000, seed=1),
        Orders(cut_octets_min=20_000, cut_octets_max=120_000, seed=2, reset=("to_guest",)),
        Orders(cut_octets_min=20_000, cut_octets_max=120_000, seed=3, reset=("to_host",)),
    ],
    ids=["both-are-told", "kernel-is-told", "we-are-told"],
)
def test_a_thousand_each_way_over_a_wire_that_cuts(ends: Ends, lab: Lab, orders: Orders) -> None:
    """The wire cuts inside messages, at octets drawn from the seed; the content is checked."""
    ends.open_sockets()
    cuts_before = lab.order(orders)["cuts"]
    _start_exchange(ends, count=COUNT, seed=orders.seed)
    received = ends.guest.finish(timeout_s=200), ends.ours.finish(timeout_s=200)
    cuts = lab.order(Orders())["cuts"] - cuts_before
    _assert_exactly_once(ends, received, count=COUNT)
    assert cuts >= 10, "the wire did not cut: this run shows nothing"


@pytest.mark.rule("rds7-once", "wire-generation-transport", "wire-reconnect")
def test_messages_each_way_while_the_kernel_loses_its_connections(ends: Ends, lab: Lab) -> None:
    """The guest's connections are killed at random moments; its peer gets a reset."""
    ends.open_sockets()
    moments = random.Random(5)
    with lab.open_guest() as killer:
        _start_exchange(ends, count=LONG_COUNT, seed=5)
        killed = 0
        for _ in range(12):
            time.sleep(moments.uniform(0.05, 0.3))
            killed += len(killer(RESET_IN_GUEST).splitlines())
    received = ends.guest.finish(timeout_s=200), ends.ours.finish(timeout_s=200)
    _assert_exactly_once(ends, received, count=LONG_COUNT)
    assert killed >= 3, "no connection was killed: this run shows nothing"


def test_our_process_dies_and_a_new_one_goes_on(
    guest: Remote, open_ours: OpenOurs, our_address: str
) -> None:
    """Messages that the kernel accepts meanwhile wait for the new process; none comes twice."""
    us = (our_address, OUR_PORT)
    with open_ours() as ours:
        first = Ends(guest, ours, kernel=(GUEST, KERNEL_PORT), us=us)
        first.open_sockets()
        _send_both_ways(first, range(20))
        ours.start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        with suppress(ConnectionError):
            ours.finish()
    guest("send_numbers(s, us, range(100, 110))", us=us)
    with open_ours() as ours:
        ours("s = open_socket(*us)", us=us)
        ours("send_numbers(s, kernel, range(200, 210))", kernel=(GUEST, KERNEL_PORT))
        assert ours("receive_numbers(s, 10)") == list(range(100, 110))
        assert guest("receive_numbers(s, 10)") == list(range(200, 210))
        second = Ends(guest, ours, kernel=(GUEST, KERNEL_PORT), us=us)
        _send_both_ways(second, range(300, 320))
        _assert_nothing_left(second)


@pytest.mark.rule("wire-generation-restart")
def test_the_kernel_starts_anew_behind_a_silent_wire(ends: Ends, lab: Lab) -> None:
    """Its modules are reloaded while no segment passes: so a reboot looks from here.

    What we sent meanwhile arrives at its new life, once; then messages flow both ways. What the
    old life acknowledged does not come again; an acknowledgement that TCP delays until the wire is
    silent never gets here, so it is waited for.
    """
    ends.open_sockets()
    _send_both_ways(ends, range(20))
    _wait_until_acknowledged(ends)
    lab.order(SILENCE)
    ends.ours("send_numbers(s, kernel, range(100, 110))", kernel=ends.kernel)
    ends.guest("s.close()")
    ends.guest(RELOAD_RDS)
    ends.guest("s = open_socket(*kernel)", kernel=ends.kernel)
    lab.order(Orders())
    assert ends.guest("receive_numbers(s, 10, wait_s=40)") == list(range(100, 110))
    _send_both_ways(ends, range(200, 220))
    _assert_nothing_left(ends)


def test_a_silent_wire_delays_and_loses_nothing(ends: Ends, lab: Lab) -> None:
    """Three silent seconds break no connection; what was sent meanwhile arrives once, late."""
    ends.open_sockets()
    _send_both_ways(ends, range(5))
    lab.order(SILENCE)
    ends.ours("send_numbers(s, kernel, range(100, 110))", kernel=ends.kernel)
    ends.guest("send_numbers(s, us, range(100, 110))", us=ends.us)
    time.sleep(3)
    lab.order(Orders())
    assert ends.guest("receive_numbers(s, 10)") == list(range(100, 110))
    assert ends.ours("receive_numbers(s, 10)") == list(range(100, 110))
    _assert_nothing_left(ends)


def _start_exchange(ends: Ends, *, count: int, seed: int) -> None:
    names = {"count": count, "seed": seed, "idle_s": IDLE_S}
    ends.guest.start(EXCHANGE, target=ends.us, **names)
    ends.ours.start(EXCHANGE, target=ends.kernel, **names)


def _send_both_ways(ends: Ends, numbers: range) -> None:
    """Send `numbers` each way and take them."""
    ends.ours(
        "send_numbers(s, target, range(*bounds))", target=ends.kernel, bounds=_bounds(numbers)
    )
    ends.guest("send_numbers(s, target, range(*bounds))", target=ends.us, bounds=_bounds(numbers))
    for receiver in (ends.guest, ends.ours):
        assert receiver("receive_numbers(s, count)", count=len(numbers)) == list(numbers)


def _wait_until_acknowledged(ends: Ends) -> None:
    """Wait until TCP has told us that the kernel has all that we sent."""
    deadline_s = time.monotonic() + ACKNOWLEDGED_S
    while ends.ours("s.getsockopt(urds.SOL_RDS, urds.RDS_INFO_RETRANS_MESSAGES, 65536)"):
        assert time.monotonic() < deadline_s, f"not acknowledged in {ACKNOWLEDGED_S} s"
        time.sleep(0.01)


def _bounds(numbers: range) -> tuple[int, int]:
    return numbers.start, numbers.stop


def _assert_exactly_once(ends: Ends, received: tuple[list[int], list[int]], *, count: int) -> None:
    """Check what the guest and we received, with what came late, against 0 to `count`."""
    time.sleep(0.5)
    sides = (("to the kernel", ends.guest, received[0]), ("to us", ends.ours, received[1]))
    for direction, receiver, numbers in sides:
        numbers += receiver("drain(s)")
        lost = sorted(set(range(count)) - set(numbers))
        doubled = sorted({number for number in numbers if numbers.count(number) > 1})
        assert not lost, f"{direction}: lost {lost[:10]}, {len(lost)} in all"
        assert not doubled, f"{direction}: doubled {doubled[:10]}, {len(doubled)} in all"
        assert numbers == sorted(numbers), f"{direction}: not in order"


def _assert_nothing_left(ends: Ends) -> None:
    """Check that no message comes a second time."""
    time.sleep(1)
    for receiver in (ends.guest, ends.ours):
        assert receiver("drain(s)") == []
