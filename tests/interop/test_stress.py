"""`urds stress` on our side, the scripted peer of rds-stress over the kernel's RDS in the guest.

The guest's peer checks each message as rds-stress does and knows nothing of `urds`; our side is the
command as a user runs it. In both roles, and from addresses on both sides of the kernel's.
"""

import sys
from pathlib import Path

import pytest

from tests.cli import stress_peer

from .conftest import Ends
from .lab.remote import Remote

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PEER = Path(stress_peer.__file__).read_text()
RUN_TIMEOUT_S = 90.0
# Our exit code follows what we printed, standard error first.
STRESS = f"{sys.executable} -m urds stress --start-up 1"
CODE = "; echo code $?"


def stress(ours: Remote, options: str) -> None:
    """Begin `urds stress` on our side."""
    ours.start("run(command)", command=f"({STRESS} {options} 2>&1{CODE})")


def options(ends: Ends, **values: int) -> bytes:
    """Return what the guest tells us to do."""
    named = {
        "send_addr": stress_peer.number_of(ends.us[0]),
        "receive_addr": stress_peer.number_of(ends.kernel[0]),
    }
    return stress_peer.options(**named, **values)


def judge(out: str, counts: dict[str, object]) -> None:
    """Both sides sent and received, and nothing was found wrong."""
    *_, average, code = out.splitlines()
    assert code == "code 0", out
    assert average.endswith("(average)"), out
    sent, received = average.split()[1:3]
    assert min(int(sent), int(received), int(str(counts["sent"]))) > 0, (out, counts)


@pytest.mark.parametrize("more", ["-t 2 -d 4", "-q 20k -a 2k -d 2 -Q 5"])
def test_an_active_side_of_ours_with_a_kernel(ends: Ends, more: str) -> None:
    """The guest reads the options as they come, in both forms, and swaps the addresses."""
    ends.guest(PEER)
    ends.guest.start("passive(address, 4000)", address=ends.kernel[0])
    stress(ends.ours, f"-s {ends.kernel[0]} -r {ends.us[0]} -T 3 -v --connect-retries 20 {more}")
    out = ends.ours.finish(timeout_s=RUN_TIMEOUT_S)
    counts = ends.guest.finish(timeout_s=RUN_TIMEOUT_S)
    judge(out, counts)
    assert counts["early"] is True, "the end of the control connection ended the run"


def test_a_passive_side_of_ours_obeys_a_kernel(ends: Ends) -> None:
    ends.guest(PEER)
    stress(ends.ours, f"-r {ends.us[0]}")
    told = options(ends, nr_tasks=2, req_depth=3, req_size=4096, verify=1, run_time=4)
    counts = ends.guest(
        "active(ours, theirs, told, 6.0)",
        ours=ends.kernel[0], theirs=ends.us[0], told=told, timeout_s=RUN_TIMEOUT_S,
    )  # fmt: skip
    judge(ends.ours.finish(timeout_s=RUN_TIMEOUT_S), counts)


def test_what_a_kernels_side_spoils_is_found(ends: Ends) -> None:
    ends.guest(PEER)
    stress(ends.ours, f"-r {ends.us[0]}")
    counts = ends.guest(
        "active(ours, theirs, told, 20.0, 'loss')",
        ours=ends.kernel[0], theirs=ends.us[0], timeout_s=RUN_TIMEOUT_S,
        told=options(ends, req_depth=30, simplex=1, run_time=20),
    )  # fmt: skip
    assert counts["early"] is True
    found, code = ends.ours.finish(timeout_s=RUN_TIMEOUT_S).splitlines()[-2:]
    assert found.endswith(f"message from {ends.kernel[0]}:4001: sequence 21, expected 20")
    assert code == "code 1"
