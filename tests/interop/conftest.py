"""Fixtures of the interop tests: one guest for all, fresh processes and a fresh RDS for each."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

from .lab.guest import GUEST, HIGHER, LOWER, Lab, missing_requirement
from .lab.image import ensure_image
from .lab.remote import Remote, RemoteFailure, RemoteHang
from .lab.wire import Orders

KERNEL_PORT, OUR_PORT = 4000, 5000
OUR_SOCKETS = """
import urds
def new_socket(kind=urds.SOCK_SEQPACKET, protocol=0):
    return urds.socket(urds.AF_RDS, kind, protocol)
"""
# One path by default: with more, kernels up to 6.12 lose and double messages at start-up.
OUR_SETTINGS = {"URDS_NPATHS": "1", "URDS_WMEM_MAX": "16777216", "URDS_RMEM_MAX": "16777216"}

OpenOurs = Callable[..., AbstractContextManager[Remote]]

# Nothing outlives this: not the kernel's connections, sequence numbers or congestion maps.
RELOAD_RDS = "run('rmmod rds_tcp rds && modprobe rds_tcp')"
SET_BUFFER_LIMIT = "run(f'echo {value} > /proc/sys/net/core/{name}')"
BUFFER_BYTES_MAX = 16 << 20
# A line that its printer left open, without a line feed, cannot be read before the next one.
END_LAST_LINE = "run('echo \"<6>end of test\" > /dev/kmsg')"
GRAVE_LEVELS = "emerg,alert,crit,err,warn"
# What an emulated processor on a busy host complains of.
HARMLESS_WORDS = ("hrtimer: interrupt took", "clocksource: ")
GRAVE_WORDS = ("WARNING", "BUG", "Oops", "Call Trace", "unknown exthdr")


@dataclass(frozen=True, slots=True)
class Ends:
    """Both sides of a test and the addresses their sockets shall have."""

    guest: Remote
    ours: Remote
    kernel: tuple[str, int]
    us: tuple[str, int]

    def open_sockets(self) -> None:
        """Open a bound socket with large buffers, named `s`, on each side."""
        self.guest("s = open_socket(*address)", address=self.kernel)
        self.ours("s = open_socket(*address)", address=self.us)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Boot the guest once. Without root or QEMU: skip, or fail where URDS_INTEROP_REQUIRED is 1."""
    if reason := missing_requirement():
        if os.environ.get("URDS_INTEROP_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with Lab(ensure_image(os.environ.get("KERNEL", "6.1"))) as booted:
        yield booted


@pytest.fixture
def guest(lab: Lab) -> Iterator[Remote]:
    """Give a process in the guest, with RDS loaded anew; afterwards judge the kernel's log."""
    lab.order(Orders())
    _renew_rds(lab)
    with lab.open_guest() as remote:
        for name in ("wmem_max", "rmem_max"):
            remote(SET_BUFFER_LIMIT, name=name, value=BUFFER_BYTES_MAX)
        remote("run('dmesg --clear')")
        yield remote
    lab.order(Orders())
    with lab.open_guest() as remote:
        remote(END_LAST_LINE)
        grave = remote("run(f'dmesg --level {levels}')", levels=GRAVE_LEVELS)
        whole = remote("run('dmesg')")
    complaints = [
        line for line in grave.splitlines() if not any(word in line for word in HARMLESS_WORDS)
    ]
    words = [word for word in GRAVE_WORDS if word in whole]
    assert not complaints, "the kernel complains"
    assert not words, "the kernel's log has grave words"


def _renew_rds(lab: Lab) -> None:
    """Load RDS anew; reboot where that fails.

    Linux v6.1 keeps a reference to the transport's module for each bind that fails with EINVAL for
    port 1 or with EADDRINUSE (seen in /proc/modules): after such a test it cannot be unloaded.
    """
    try:
        with lab.open_guest() as remote:
            remote(RELOAD_RDS)
    except (RemoteFailure, RemoteHang, OSError):
        lab.reboot()


@pytest.fixture
def open_ours(lab: Lab, guest: Remote) -> OpenOurs:
    """Give the maker of processes that use `urds`; keywords are environment variables of one.

    The guest is asked for so that our processes end before the kernel's log is judged.
    """

    @contextmanager
    def opened(**environment: str) -> Iterator[Remote]:
        with lab.open_ours(**{**OUR_SETTINGS, **environment}) as remote:
            remote(OUR_SOCKETS)
            yield remote

    return opened


@pytest.fixture(params=[LOWER, HIGHER], ids=["lower", "higher"])
def our_address(request: pytest.FixtureRequest) -> str:
    """Our address: below the kernel's, so that we connect, or above, so that it calls us."""
    address: str = request.param
    return address


@pytest.fixture
def ends(guest: Remote, open_ours: OpenOurs, our_address: str) -> Iterator[Ends]:
    """Give a process on each side, without sockets."""
    with open_ours() as ours:
        yield Ends(guest, ours, kernel=(GUEST, KERNEL_PORT), us=(our_address, OUR_PORT))
