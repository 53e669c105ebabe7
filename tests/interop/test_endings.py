"""Sockets, processes and connections that end with something unread or unsent."""

import time
from contextlib import suppress

import pytest

from .conftest import KERNEL_PORT, OUR_PORT, Ends, OpenOurs
from .lab.guest import GUEST, Lab
from .lab.remote import Remote
from .lab.wire import Orders

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300), pytest.mark.short]

SMALL_BUFFER_BYTES = 16384
FULL_COUNT_MAX = 400
SILENCE = Orders(block=("to_guest", "to_host"))
KILL_CONNECTIONS = "run('ss --kill -Htn \\\\( sport = 16385 or dport = 16385 \\\\)')"
# A kernel keeps a connection whose peer is silent for its keepalive: some 5 s, 30 s at most.
# Source: linux v6.12 net/rds/tcp.c.
KEEPALIVE_S = 40.0
DELAYED_ACK_S = 0.5  # TCP acknowledges 40 ms later at most; the guest is slow
# A kernel of the higher address does not connect again by itself: its next send does, once the
# reset has taken the old connection down. Source: linux v6.12 net/rds/connection.c.
RESET_FELT_S = 0.5


@pytest.mark.rule("wire-congestion-update", "rds7-unbound-port-silent")
@pytest.mark.parametrize("closing_side", ["kernel", "us"])
def test_unread_messages_die_with_their_socket_and_harm_no_other(
    ends: Ends, closing_side: str
) -> None:
    """The closed port's congestion ends with it; a socket beside it misses nothing."""
    kernel_closes = closing_side == "kernel"
    receiver, address = (ends.guest, ends.kernel) if kernel_closes else (ends.ours, ends.us)
    sender, source = (ends.ours, ends.us) if kernel_closes else (ends.guest, ends.kernel)
    beside = (address[0], address[1] + 1)
    small = {"receive_bytes": SMALL_BUFFER_BYTES}
    receiver("s = open_socket(*address, **small)", address=address, small=small)
    receiver("beside = open_socket(*beside)", beside=beside)
    sender("s = open_socket(*address)", address=source)
    sender("send_numbers(s, beside, range(3))", beside=beside)
    sender("send_until_refused(s, target, count_max=most)", target=address, most=FULL_COUNT_MAX)
    receiver("s.close()")
    sender("s.settimeout(10); send_numbers(s, target, range(3))", target=address)
    sender("send_numbers(s, beside, range(3, 6))", beside=beside)
    assert receiver("receive_numbers(beside, 6)") == list(range(6))
    receiver("s = open_socket(*address)", address=address)
    sender("send_numbers(s, target, range(7, 9))", target=address)
    assert receiver("receive_numbers(s, 2)") == [7, 8]


def test_what_we_sent_arrives_though_we_leave_with_messages_unread(ends: Ends) -> None:
    """The process ends in order: TCP must not answer what it did not read with a reset."""
    ends.open_sockets()
    ends.guest("send_numbers(s, us, range(50))", us=ends.us)
    assert ends.ours("receive_numbers(s, 1)") == [0]
    ends.ours("send_numbers(s, kernel, range(200))", kernel=ends.kernel)
    ends.ours.start("raise SystemExit")
    with suppress(ConnectionError):
        ends.ours.finish()
    assert ends.guest("receive_numbers(s, 200)") == list(range(200))
    assert ends.guest("drain(s)") == []


@pytest.mark.parametrize("first_sender", ["kernel", "us"])
def test_the_kernels_connection_dies_in_silence(ends: Ends, lab: Lab, first_sender: str) -> None:
    """The wire swallows the reset, so the first sender finds out."""
    ends.open_sockets()
    _send_each_way(ends, range(5))
    lab.order(SILENCE)
    ends.guest(KILL_CONNECTIONS)
    lab.order(Orders())
    sides = [(ends.guest, ends.ours, ends.us), (ends.ours, ends.guest, ends.kernel)]
    for sender, receiver, target in sides if first_sender == "kernel" else sides[::-1]:
        sender("send_numbers(s, target, range(5, 25))", target=target)
        assert receiver("receive_numbers(s, 20)") == list(range(5, 25))
    assert [ends.guest("drain(s)"), ends.ours("drain(s)")] == [[], []]


@pytest.mark.parametrize("first_sender", ["kernel", "us"])
def test_our_process_dies_in_silence(
    guest: Remote, open_ours: OpenOurs, lab: Lab, our_address: str, first_sender: str
) -> None:
    """The kernel still holds the connection of the old process when the next one calls."""
    kernel, us = (GUEST, KERNEL_PORT), (our_address, OUR_PORT)
    with open_ours() as ours:
        ends = Ends(guest, ours, kernel=kernel, us=us)
        ends.open_sockets()
        _send_each_way(ends, range(5))
        time.sleep(DELAYED_ACK_S)  # else the kernel repeats its last message, to the next process
        lab.order(SILENCE)
        ours.start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        with suppress(ConnectionError):
            ours.finish()
    lab.order(Orders())
    with open_ours() as ours:
        ours("s = open_socket(*us)", us=us)
        sides = [(guest, ours, us), (ours, guest, kernel)]
        for sender, receiver, target in sides if first_sender == "kernel" else sides[::-1]:
            sender("send_numbers(s, target, range(5, 6))", target=target)
            time.sleep(RESET_FELT_S)
            sender("send_numbers(s, target, range(6, 25))", target=target)
            taken = receiver("receive_numbers(s, 20, wait_s=wait_s)", wait_s=KEEPALIVE_S)
            assert taken == list(range(5, 25))
        assert [guest("drain(s)"), ours("drain(s)")] == [[], []]


@pytest.mark.rule("wire-congestion-sender", "rds7-uncongested-sender-resumes")
def test_both_receivers_are_full_at_once(ends: Ends) -> None:
    """Each side is refused while the other does not read; then both read and go on."""
    small = {"receive_bytes": SMALL_BUFFER_BYTES}
    ends.guest("s = open_socket(*address, **small)", address=ends.kernel, small=small)
    ends.ours("s = open_socket(*address, **small)", address=ends.us, small=small)
    fill = "send_until_refused(s, target, count_max=most)"
    ends.guest.start(fill, target=ends.us, most=FULL_COUNT_MAX)
    to_kernel = ends.ours(fill, target=ends.kernel, most=FULL_COUNT_MAX)
    to_us = ends.guest.finish()
    for receiver, accepted in ((ends.guest, to_kernel), (ends.ours, to_us)):
        taken = receiver("receive_numbers(s, count)", count=accepted)
        assert taken == list(range(accepted))
    _send_each_way(ends, range(3))


def _send_each_way(ends: Ends, numbers: range) -> None:
    """Send `numbers` each way, waiting for room, and take them."""
    bounds = (numbers.start, numbers.stop)
    send = "s.settimeout(10); send_numbers(s, target, range(*bounds))"
    for sender, receiver, target in (
        (ends.ours, ends.guest, ends.kernel),
        (ends.guest, ends.ours, ends.us),
    ):
        sender(send, target=target, bounds=bounds)
        assert receiver("receive_numbers(s, count)", count=len(numbers)) == list(numbers)
