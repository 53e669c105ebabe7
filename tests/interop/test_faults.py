"""Exactly once and in order while processes die, the kernel starts anew and the wire is silent."""

import time
from contextlib import suppress

import pytest

from .conftest import KERNEL_PORT, OUR_PORT, Ends, OpenOurs
from .lab.guest import GUEST, Lab
from .lab.remote import Remote
from .lab.wire import Orders

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ACKNOWLEDGED_S = 5.0  # TCP delays an acknowledgement by a fifth of a second at most
SILENCE = Orders(block=("to_guest", "to_host"))
RELOAD_RDS = "run('rmmod rds_tcp rds && modprobe rds_tcp')"


@pytest.mark.short
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


@pytest.mark.short
@pytest.mark.rule("wire-generation-restart")
def test_the_kernel_starts_anew_behind_a_silent_wire(ends: Ends, lab: Lab) -> None:
    """Its modules are reloaded while no segment passes: so a reboot looks from here.

    What we sent meanwhile arrives at its restart, once; then messages flow both ways. What the
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


def _assert_nothing_left(ends: Ends) -> None:
    """Check that no message comes a second time."""
    time.sleep(1)
    for receiver in (ends.guest, ends.ours):
        assert receiver("drain(s)") == []
