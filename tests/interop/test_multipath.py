"""One, two and eight paths between a Linux kernel and us; eight between two kernels.

While its paths come up, Linux up to 6.12 can lose and double messages with any peer: the
accepting side gives connections to paths in the order of arrival. With us as peer the wire says
who lost them; two kernels are the comparison, and what they lose at start-up is only reported.
What follows must be perfect.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import KERNEL_PORT, OUR_PORT, Ends, Note, OpenOurs
from .exchanges import assert_faultless
from .lab.guest import GUEST, Lab
from .lab.judge import judge, together
from .lab.message_log import MessageLog
from .lab.remote import Remote
from .lab.wire import Direction

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KERNEL_PATHS = SOCKETS = 8
START_UP_COUNT, STEADY_COUNT = 5, 125  # messages per socket pair and direction
KERNEL_HERE, KERNEL_THERE = "10.79.0.1", "10.79.0.2"

# A path is chosen by the sender's port, so many ports use many paths.
OPEN_SOCKETS = "sockets = [open_socket(address, port + index) for index in range(sockets)]"
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
    """What two kernels lost or doubled between them while their paths came up."""


@pytest.fixture
def two_kernels(guest: Remote, lab: Lab) -> Iterator[Ends]:
    """Give two processes of the guest in two network namespaces: each has an RDS of its own."""
    with lab.open_guest() as other:
        other(ENTER_NAMESPACE)
        guest(JOIN_NAMESPACES, pid=other.pid, address=KERNEL_HERE)
        other(f"run('ip address add {KERNEL_THERE}/24 dev there && ip link set there up')")
        yield Ends(guest, other, kernel=(KERNEL_HERE, KERNEL_PORT), us=(KERNEL_THERE, OUR_PORT))


@pytest.mark.short
@pytest.mark.rule("wire-mprds-paths", "wire-mprds-agree")
@pytest.mark.parametrize("paths", [1, 2, 8])
def test_several_paths_with_the_kernel(
    guest: Remote, open_ours: OpenOurs, our_address: str, lab: Lab, note: Note, paths: int
) -> None:
    """As many connections as we offer paths; each socket's messages once and in order."""
    with open_ours(URDS_NPATHS=str(paths)) as ours:
        ends = Ends(guest, ours, kernel=(GUEST, KERNEL_PORT), us=(our_address, OUR_PORT))
        with lab.recorded() as recording:
            received = _make_paths(ends)
        note(messages=2 * SOCKETS * START_UP_COUNT)
        _judge_start_up(note, received, recording, one_path=paths == 1)
        assert guest(ESTABLISHED) == paths
        _assert_steady_flow(ends)


def test_eight_paths_between_two_kernels(two_kernels: Ends, note: Note) -> None:
    """The comparison: two kernels of this release, the same calls, the same start-up."""
    received = _make_paths(two_kernels)
    assert two_kernels.guest(ESTABLISHED) == KERNEL_PATHS
    counts = [Counter(numbers) for lists in received.values() for numbers in lists]
    lost = sum(START_UP_COUNT - len(count) for count in counts)
    doubled = sum(count.total() - len(count) for count in counts)
    note(messages=len(counts) * START_UP_COUNT, between_kernels=[lost, doubled])
    if lost or doubled:
        report = f"{lost} lost and {doubled} doubled of {len(counts) * START_UP_COUNT}"
        warnings.warn(f"two kernels at start-up: {report}", KernelStartUp, stacklevel=1)
    _assert_steady_flow(two_kernels)


def _make_paths(ends: Ends) -> dict[Direction, list[list[int]]]:
    """Send the first messages each way; return what each socket received, late ones too."""
    for side, (address, port) in ((ends.guest, ends.kernel), (ends.ours, ends.us)):
        side(OPEN_SOCKETS, address=address, port=port, sockets=SOCKETS)
    received = _exchange(ends, first=0, count=START_UP_COUNT, wait_s=3)
    for direction, side in ((Direction.TO_GUEST, ends.guest), (Direction.TO_HOST, ends.ours)):
        late = side("[drain(receiver) for receiver in sockets]")
        received[direction] = [
            taken + more for taken, more in zip(received[direction], late, strict=True)
        ]
    return received


def _judge_start_up(
    note: Note, received: dict[Direction, list[list[int]]], recording: Path, *, one_path: bool
) -> None:
    """Judge each pair of sockets by itself: their messages have the same numbers."""
    log = MessageLog.read(recording).transmissions
    ports = {Direction.TO_GUEST: KERNEL_PORT, Direction.TO_HOST: OUR_PORT}
    verdicts = {
        direction: together(
            judge(
                numbers,
                count=START_UP_COUNT,
                direction=direction,
                log=[sent for sent in log if sent.target_port == ports[direction] + index],
                one_path=one_path,
            )
            for index, numbers in enumerate(lists)
        )
        for direction, lists in received.items()
    }
    assert_faultless(note, verdicts, recording)


def _assert_steady_flow(ends: Ends) -> None:
    """Check that now each message arrives once and in order."""
    expected = list(range(100, 100 + STEADY_COUNT))
    received = _exchange(ends, first=100, count=STEADY_COUNT, wait_s=20)
    for direction, lists in received.items():
        for index, numbers in enumerate(lists):
            assert numbers == expected, f"{direction}, socket {index}"


def _exchange(
    ends: Ends, *, first: int, count: int, wait_s: float
) -> dict[Direction, list[list[int]]]:
    """Send `count` messages between each pair of sockets, both ways; return what arrived."""
    for sender, (address, port) in ((ends.guest, ends.us), (ends.ours, ends.kernel)):
        sender.start(SEND, address=address, port=port, first=first, count=count)
    for sender in (ends.guest, ends.ours):
        sender.finish()
    for receiver in (ends.guest, ends.ours):
        receiver.start(RECEIVE, count=count, wait_s=wait_s)
    return {Direction.TO_HOST: ends.ours.finish(), Direction.TO_GUEST: ends.guest.finish()}
