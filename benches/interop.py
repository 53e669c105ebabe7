"""Measure Python over the kernel's RDS and over urds, in one virtual machine, side by side.

The guest is the one of tests/interop: two network namespaces with a link between them, a process in
each. The same loops run over both; only the call that makes the socket differs. The processor is
emulated unless TEST_LAB_ACCEL says otherwise, so figures mean nothing outside of this run, and only
their ratios count. KERNEL chooses the kernel: 6.1, 6.12 or 7. Needs root.
"""

import argparse
import io
import os
import sys
import tarfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from machine import machine
from measuring import Pace, Row, measure, tabulate
from pair import Answer, Order, PairError, Sample, sample_of, window_for
from peers.base import Kind
from peers.ours import Urds, plane
from peers.rds import PORT, KernelRds
from results import Report, Table
from tables import render
from works import NATIVE, Goal, Work

from tests.interop.lab.guest import Lab, missing_requirement
from tests.interop.lab.image import chosen_series, ensure_image
from tests.interop.lab.remote import Remote, RemoteFailure, RemoteHang
from urds import __version__

_ROOT = Path(__file__).resolve().parent.parent
_FOLDER = "/tmp/urds"  # in the guest, where it is in memory
_WORKS = (
    Work(Kind.ONE_WAY, 64),
    Work(Kind.ONE_WAY, 1 << 10),
    Work(Kind.ONE_WAY, 64 << 10),
    Work(Kind.ROUND_TRIP, 64),
)
_PEERS = (Urds, KernelRds)
_GOALS = {
    Kind.ONE_WAY: (Goal(KernelRds.name, 1.5, NATIVE),),
    Kind.ROUND_TRIP: (Goal(KernelRds.name, 0.7, NATIVE),),
}
# The receiver's end comes first.
_ENDS = (("left", ("10.79.0.1", PORT)), ("right", ("10.79.0.2", PORT)))
_SET_UP = (
    "ip netns add left",
    "ip netns add right",
    "ip link add left0 netns left type veth peer name right0 netns right",
    *(
        f"ip -n {name} {command}"
        for name, (address, _) in _ENDS
        for command in (
            "link set lo up",
            f"link set {name}0 up",
            f"address add {address}/24 dev {name}0",
        )
    ),
    *(f"echo {16 << 20} > /proc/sys/net/core/{name}_max" for name in ("wmem", "rmem")),
)
_UNPACK = """
import io, tarfile
with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
    opened.extractall(folder)
"""
_OPEN = """
import sys
sys.path[:0] = [folder + "/src", folder + "/benches"]
from guest_side import Side
side = Side(maker, payload_bytes, namespace=namespace, local=local, target=target)
side.note()
"""
_EXAMPLES = """\
examples:
  make interop-bench
  KERNEL=6.12 PYTHONPATH=src:. python benches/interop.py --quick --json out.json

exit codes: 0 measured; 1 a side did not finish; 2 the options or KERNEL are wrong; 3 this host
lacks what the lab needs, and it is named; 130 Ctrl-C.
"""
_FACTS = """
import platform, sys
sys.path[:0] = [folder + "/src", folder + "/benches"]
from peers.ours import plane
platform.release(), platform.python_version(), plane()
"""
_FIRST_SENDS_MAX = 4
_OPEN_WAIT_S = 60.0
_INTERRUPTED, _NO_LAB = 130, 3


class GuestPair:
    """A process in each namespace of the guest; a context manager that ends both."""

    def __init__(self, lab: Lab, work: Work, maker: str, *, limit_s: float) -> None:
        self._kind, self._limit_s = work.kind, limit_s
        self._stack = ExitStack()
        try:
            self._receiver, self._sender = (
                self._stack.enter_context(lab.open_guest()) for _ in _ENDS
            )
            self.note = self._open(work, maker)
            self._connect()
        except (OSError, RemoteFailure, RemoteHang) as error:
            self._stack.close()
            raise PairError(f"failed: {error}") from error
        except BaseException:
            self._stack.close()
            raise

    def _open(self, work: Work, maker: str) -> str:
        notes = []
        for remote, own, other in ((self._receiver, 0, 1), (self._sender, 1, 0)):
            given = {"folder": _FOLDER, "maker": maker, "payload_bytes": work.payload_bytes}
            names = {"namespace": _ENDS[own][0], "local": _ENDS[own][1], "target": _ENDS[other][1]}
            notes.append(remote(_OPEN, timeout_s=_OPEN_WAIT_S, **given, **names))
        return str(notes[0])

    def _connect(self) -> None:
        """Have messages pass, before any is counted. Raises PairError if none does."""
        for _ in range(_FIRST_SENDS_MAX):
            self._sender("side.send_first()")
            if self._receiver("side.listen()"):
                return
        raise PairError(f"none of {_FIRST_SENDS_MAX} messages came")

    def measure(self, count: int) -> Sample:
        """Exchange `count` messages. Raises PairError if it does not end in time."""
        order = Order(count, window_for(self._kind, count))
        sides = (self._receiver, self._sender)
        try:
            for remote in sides:
                names = {"kind": self._kind.value, "receives": remote is self._receiver}
                remote.start("side.obey(kind, receives, count)", count=count, **names)
            answers = [Answer(*self._finish(remote)) for remote in sides]
        except (OSError, RemoteFailure) as error:
            raise PairError(f"failed: {error}") from error
        return sample_of(self._kind, order, answers)

    def _finish(self, remote: Remote) -> tuple[int, int, tuple[int, ...]]:
        try:
            answer: tuple[int, int, tuple[int, ...]] = remote.finish(timeout_s=self._limit_s)
        except RemoteHang:
            raise PairError(f"cut after {self._limit_s:g} s") from None
        return answer

    def close(self) -> None:
        """End both processes."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def main() -> int:
    """Boot, measure, take down; return 0, 1 if a side did not finish, 3 without the lab."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short measurements")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds here too")
    options = parser.parse_args()
    try:
        series = chosen_series()
    except ValueError as error:
        parser.error(str(error))
    if reason := missing_requirement():
        print(reason, file=sys.stderr)
        return _NO_LAB
    pace = Pace(3, 0.3, 60.0) if options.quick else Pace(5, 1.5, 120.0)
    tables: list[Table] = []
    failed = False
    with Lab(ensure_image(series)) as lab:
        facts, used = _prepare(lab)
        width = max(map(len, facts))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in facts.items()), flush=True)
        for work in _WORKS:
            rows = {peer.name: Row(peer.name, peer.label) for peer in _PEERS}
            openers = {
                name: partial(GuestPair, lab, work, name, limit_s=pace.limit_s) for name in rows
            }
            measure(work, rows, openers, pace)
            table = tabulate(work, rows, _GOALS[work.kind], used)
            title, kind = f"beside the kernel: {table.title}", f"kernel_{table.kind}"
            tables.append(replace(table, title=title, kind=kind))
            print(f"\n{render(tables[-1])}", flush=True)
            failed |= any(row.failed for row in rows.values())
    if options.json:
        title = "Beside the kernel in one virtual machine"
        Report(title, facts, tuple(tables)).write(options.json)
    return int(failed)


def _prepare(lab: Lab) -> tuple[dict[str, str], str]:
    """Bring code and namespaces into the guest; return the facts for the page, and the plane."""
    with lab.open_guest() as remote:
        remote(_UNPACK, archive=_archive(), folder=_FOLDER, timeout_s=_OPEN_WAIT_S)
        for command in _SET_UP:
            remote("run(command)", command=command)
        kernel, python, used = remote(_FACTS, folder=_FOLDER, timeout_s=_OPEN_WAIT_S)
    accelerator = os.environ.get("TEST_LAB_ACCEL", "tcg").partition(",")[0]
    emulated = "emulated, so ratios only" if accelerator == "tcg" else "not emulated"
    own = machine()
    facts = {
        **{name: own[name] for name in ("date", "cpu")},
        "guest": f"2 vCPUs, QEMU {accelerator}: {emulated}",
        "kernel": str(kernel),
        "python": f"CPython {python}",
        **{name: own[name] for name in ("commit", "load")},
        "urds": f"{__version__}, {used} plane",
    }
    return facts, str(used)


def _archive() -> bytes:
    """Return the source, the compiled plane if it is used here, and these benchmarks, packed.

    The guest has the same CPython as `make bench` asks for; with another one it reports that it
    runs on the Python plane.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for folder in ("src/urds", "benches"):
            for path in sorted((_ROOT / folder).rglob("*.py")):
                archive.add(path, path.relative_to(_ROOT).as_posix())
        archive.add(_ROOT / "pyproject.toml", "pyproject.toml")  # which tells the version
        if plane() == NATIVE:
            module = find_spec("urds_native")
            assert module is not None and module.origin is not None, "it was imported"
            folder = Path(module.origin).parent
            for path in sorted(folder.glob("*.py")) + sorted(folder.glob("*.so")):
                archive.add(path, f"src/urds_native/{path.name}")
    return packed.getvalue()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; guest and processes are ended", file=sys.stderr)
        sys.exit(_INTERRUPTED)
