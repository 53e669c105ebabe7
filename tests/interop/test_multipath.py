"""Eight paths between a Linux kernel and us, and between two Linux kernels for comparison.

While its paths come up, Linux up to 6.12 can lose and double messages whoever its peer is: the
accepting side gives connections to paths in the order of arrival. So the first messages only make
the paths; what becomes of them is reported as `kernel_start_up`. What follows must be perfect.
"""

import warnings
from collections import Counter
from collections.abc import Iterator

import pytest

from .conftest import KERNEL_PORT, OUR_PORT, Ends, OpenOurs
from .lab.guest import GUEST, Lab
from .lab.remote import Remote

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PATHS = 8
START_UP_COUNT, STEADY_COUNT = 5, 125  # messages per socket pair and direction
KERNEL_HERE, KERNEL_THERE = "10.79.0.1", "10.79.0.2"

# A path is chosen by the sender's port, so many ports use many paths.
OPEN_SOCKETS = "sockets = [open_socket(address, port + index) for index in range(paths)]"
SEND = """
for index, sender in enumerate(sockets):
    send_numbers(sender, (address, port + index), range(first, first + count))
"""
RECEIVE = "[receive_numbers(receiver, count, wait_s=wait_s) for receiver in sockets]"
ESTABLISHED = "run('ss -Htn state established').count(':16385')"
ENTER_NAMESPACE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x40000000) != 0:  # CLONE_NEWNET
    raise OSError(ctypes.get_errno(), "unshare")
"""
JOIN_NAMESPACES = """
run(f"ip link add here type veth peer name there netns {pid}")
run(f"ip address add {address}/24 dev here && ip link set here up")
"""


class KernelStartUp(UserWarning):
    """What a kernel lost or doubled while its paths came up."""


@pytest.fixture
def kernel_and_us(guest: Remote, open_ours: OpenOurs, our_address: str) -> Iterator[Ends]:
    """Give the guest and a process of ours that offers eight paths."""
    with open_ours(URDS_NPATHS=str(PATHS)) as ours:
        yield Ends(guest, ours, kernel=(GUEST, KERNEL_PORT), us=(our_address, OUR_PORT))


@pytest.fixture
def two_kernels(guest: Remote, lab: Lab) -> Iterator[Ends]:
    """Give two processes of the guest in two network namespaces: each has an RDS of its own."""
    with lab.open_guest() as other:
        other(ENTER_NAMESPACE)
        guest(JOIN_NAMESPACES, pid=other.pid, address=KERNEL_HERE)
        other(f"run('ip address add {KERNEL_THERE}/24 dev there && ip link set there up')")
        yield Ends(guest, other, kernel=(KERNEL_HERE, KERNEL_PORT), us=(KERNEL_THERE, OUR_PORT))


@pytest.mark.rule("wire-mprds-paths", "wire-mprds-agree")
def test_eight_paths_with_the_kernel(kernel_and_us: Ends) -> None:
    """1,000 messages each way over eight connections: exactly once, each socket's in order."""
    _make_paths(kernel_and_us)
    assert kernel_and_us.guest(ESTABLISHED) == PATHS
    _assert_steady_flow(kernel_and_us)


def test_eight_paths_between_two_kernels(two_kernels: Ends) -> None:
    """The comparison: two kernels of this release, the same calls, the same start-up."""
    _make_paths(two_kernels)
    assert two_kernels.guest(ESTABLISHED) == PATHS
    _assert_steady_flow(two_kernels)


def _make_paths(ends: Ends) -> None:
    """Send the first messages each way and report which were lost or doubled."""
    for side, (address, port) in ((ends.guest, ends.kernel), (ends.ours, ends.us)):
        side(OPEN_SOCKETS, address=address, port=port, paths=PATHS)
    received = _exchange(ends, first=0, count=START_UP_COUNT, wait_s=3)
    for direction, lists in received.items():
        counts = [Counter(numbers) for numbers in lists]
        lost = sum(START_UP_COUNT - len(count) for count in counts)
        doubled = sum(count.total() - len(count) for count in counts)
        if lost or doubled:
            report = f"{direction}: {lost} lost and {doubled} doubled of {PATHS * START_UP_COUNT}"
            warnings.warn(f"kernel_start_up, {report}", KernelStartUp, stacklevel=2)
    for side in (ends.guest, ends.ours):
        side("[drain(receiver) for receiver in sockets]")


def _assert_steady_flow(ends: Ends) -> None:
    """Check that now each message arrives once and in order."""
    expected = list(range(100, 100 + STEADY_COUNT))
    received = _exchange(ends, first=100, count=STEADY_COUNT, wait_s=20)
    for direction, lists in received.items():
        for index, numbers in enumerate(lists):
            assert numbers == expected, f"{direction}, socket {index}"


def _exchange(ends: Ends, *, first: int, count: int, wait_s: float) -> dict[str, list[list[int]]]:
    """Send `count` messages between each pair of sockets, both ways; return what arrived."""
    for sender, (address, port) in ((ends.guest, ends.us), (ends.ours, ends.kernel)):
        sender.start(SEND, address=address, port=port, first=first, count=count)
    for sender in (ends.guest, ends.ours):
        sender.finish()
    for receiver in (ends.guest, ends.ours):
        receiver.start(RECEIVE, count=count, wait_s=wait_s)
    return {"to us": ends.ours.finish(), "to the kernel": ends.guest.finish()}
