"""Fixtures of the interop tests: one guest for all, fresh processes and a fresh RDS for each."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from urds.rds.plane.choose import missing

from .lab.guest import GUEST, HIGHER, LOWER, Lab, missing_requirement
from .lab.image import SERIES, Image, chosen_series, ensure_image
from .lab.node import Node, open_node
from .lab.remote import Remote, RemoteFailure, RemoteHang
from .lab.wire import Orders
from .report import COUNTS, Report

KERNEL_PORT, OUR_PORT = 4000, 5000
OUR_SOCKETS = """
import urds
def new_socket(kind=urds.SOCK_SEQPACKET, protocol=0):
    return urds.socket(urds.AF_RDS, kind, protocol)
"""
# One path by default: with more, kernels up to 6.12 lose and double messages at start-up.
OUR_SETTINGS = {
    "URDS_NPATHS": "1",
    # As the guest's kernel has them.
    "URDS_WMEM_MAX": "16M",
    "URDS_RMEM_MAX": "16M",
    "URDS_WMEM_DEFAULT": "212992",
    "URDS_MAX_MESSAGE_BYTES": "1M",
}

OpenOurs = Callable[..., AbstractContextManager[Remote]]
Note = Callable[..., None]
REPORT = pytest.StashKey[Report]()

BUFFER_BYTES_MAX = 16 << 20
# Nothing outlives the modules: not the kernel's connections, sequence numbers or congestion maps.
RENEW_RDS = "run('rmmod rds_tcp rds && modprobe rds_tcp')"
# The kernel's log from here on, and no program for it: to begin one takes half a second there.
SETTLE = """
import os
for name in ("wmem_max", "rmem_max"):
    with open(f"/proc/sys/net/core/{name}", "w") as limit:
        print(bytes_max, file=limit)
log = os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
os.lseek(log, 0, os.SEEK_END)
"""
# A line that its printer left open, without a line feed, cannot be read before the next one.
READ_LOG = """
os.write(log, b"<6>end of test")
records = []
while True:
    try:
        records.append(os.read(log, 8192).decode(errors="replace"))
    except BlockingIOError:
        break
    except BrokenPipeError:
        pass  # older ones were overwritten
os.close(log)
records
"""
SERIOUS_LEVEL_MAX = 4  # a warning. Source: syslog(2)
# What an emulated processor on a busy host complains of; what RDS says of a reset while it sends.
HARMLESS_WORDS = ("hrtimer: interrupt took", "clocksource: ", "disconnecting and reconnecting")
SERIOUS_WORDS = ("WARNING", "BUG", "Oops", "Call Trace", "unknown exthdr")


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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--interop-report FILE`."""
    parser.addoption("--interop-report", type=Path, metavar="FILE", help="what the kernel showed")


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark of the short run; keep a report if one is wanted."""
    config.addinivalue_line("markers", "short: part of a short run with one more kernel")
    if path := config.getoption("--interop-report", None):
        config.stash[REPORT] = report = Report(path)
        config.pluginmanager.register(report)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this machine has no means for: a skipped test of a kernel is a failure.

    What spoils the guest for others comes behind them.
    """
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
    absent = set()
    if missing():  # a node needs the compiled plane
        absent.add("node")
    if not os.environ.get("TEST_RDS_TOOLS") and shutil.which("rds-stress") is None:
        absent.add("tools")
    left = [item for item in items if absent & set(getattr(item, "fixturenames", ()))]
    left = [item for item in left if item.path.parent == Path(__file__).parent]
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


def pytest_sessionstart() -> None:
    """Refuse a kernel that there is not before anything is built."""
    try:
        chosen_series()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Boot the guest once. Without root or QEMU: skip, or fail where TEST_INTEROP_REQUIRED is 1."""
    if reason := missing_requirement():
        if os.environ.get("TEST_INTEROP_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with Lab(_image()) as booted:
        if report := request.config.stash.get(REPORT, None):
            release = booted.oversee("run('uname -rv').strip()")
            report.series, report.release = chosen_series(), release
        yield booted


def _image() -> Image:
    """Build the image; a failure is a failure of every test, and says why in one line."""
    series = chosen_series()
    try:
        return ensure_image(series)
    except CalledProcessError as error:
        reason = f"{error.cmd[0]} says {error.stderr.strip()[-500:]!r}"
    except LookupError as error:
        reason = str(error)
    origin = f"Debian's {SERIES[series].suite}, which may be out of reach"
    pytest.fail(f"no image of Linux {series} from {origin}: {reason}", pytrace=False)


@pytest.fixture
def guest(lab: Lab) -> Iterator[Remote]:
    """Give a process in the guest, with RDS loaded anew; afterwards judge the kernel's log."""
    lab.order(Orders())
    _renew_rds(lab)
    lab.oversee(SETTLE, bytes_max=BUFFER_BYTES_MAX)
    with lab.open_guest() as remote:
        yield remote
    lab.order(Orders())
    complaints, words = judged_log(lab.oversee(READ_LOG))
    assert not complaints, "the kernel complains"
    assert not words, "the kernel's log has serious words"


def judged_log(records: list[str]) -> tuple[list[str], list[str]]:
    """Return what the kernel complained of, and the serious words in its log.

    A record is its priority, number, time and flags, a semicolon, and the text. Source: linux v6.12
    Documentation/ABI/testing/dev-kmsg.
    """
    split = [record.partition(";")[::2] for record in records]
    serious = [text for head, text in split if int(head.split(",")[0]) % 8 <= SERIOUS_LEVEL_MAX]
    complaints = [text for text in serious if not any(word in text for word in HARMLESS_WORDS)]
    texts = "".join(text for _, text in split)
    return complaints, [word for word in SERIOUS_WORDS if word in texts]


def _renew_rds(lab: Lab) -> None:
    """Load RDS anew; reboot where that fails.

    Linux v6.1 keeps a reference to the transport's module for each bind that fails with EINVAL for
    port 1 or with EADDRINUSE (seen in /proc/modules): after such a test it cannot be unloaded.
    """
    try:
        lab.oversee(RENEW_RDS)
    except (RemoteFailure, RemoteHang, OSError):
        lab.reboot()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Give the function that keeps a test's counts for docs/interop.md."""
    return lambda **counts: request.node.user_properties.append((COUNTS, counts))


@pytest.fixture
def node(lab: Lab, guest: Remote) -> Iterator[Node]:
    """Run a node on our side.

    The guest is asked for so that the node ends before the kernel's log is judged.
    """
    with open_node(lab, **OUR_SETTINGS) as running:
        yield running


@pytest.fixture
def open_ours(lab: Lab, guest: Remote, request: pytest.FixtureRequest) -> OpenOurs:
    """Give the maker of processes that use `urds`; keywords are environment variables of one.

    In a module that asks for a node their sockets are those of the node, and with TEST_OURS=node
    they are in every one. The guest is asked for so that our processes end before the kernel's log
    is judged.
    """
    settings = dict(OUR_SETTINGS)
    if "node" in request.fixturenames or os.environ.get("TEST_OURS") == "node":
        settings["URDS_NODE"] = request.getfixturevalue("node").place
        settings["URDS_IMPL"] = "native"  # sockets of a node are the compiled plane's

    @contextmanager
    def opened(**environment: str) -> Iterator[Remote]:
        with lab.open_ours(**{**settings, **environment}) as remote:
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
