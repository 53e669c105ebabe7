"""`import urds` and a first bind are cheap: the standard library only, no heavy part of it.

Costs are processor times of whole processes, the best of several: other work makes a start slow,
never fast. A busy or slow machine makes a bare interpreter slower too, and the limits with it.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.health.sources import ROOT

BARE_MS = 8  # of an interpreter that does nothing, where the limits below were set
IMPORT_MS_MAX = 30
BIND_MS_MAX = 70  # import and first bind
ATTEMPTS_MAX = 12
# Each of these costs milliseconds or a thread pool; what needs one imports it when used.
HEAVY = {
    "asyncio", "concurrent.futures", "ctypes", "dataclasses", "email", "http", "inspect", "json",
    "logging", "multiprocessing", "pathlib", "ssl", "subprocess", "tempfile", "tomllib",
    "traceback", "trio", "unittest", "urllib.parse",
}  # fmt: skip

NETWORK = f"127.91.{os.getpid() % 256}"  # other processes run these tests at the same time
BIND = f"import urds\nsock = urds.socket()\nsock.bind(('{NETWORK}.1', 0))\n"
# An end in order would count the farewell of the threads as well.
STARTS = {"import": "import urds\n", "bind": BIND}
CONNECT = """import os, sys
sys.path.insert(0, sys.argv[1])
ready, told = os.pipe()
is_peer = os.fork() == 0
import urds
sock = urds.socket()
sock.bind((f"NETWORK.{2 + is_peer}", 0))
sock.settimeout(30)
if is_peer:
    os.write(told, b"%d" % sock.getsockname()[1])
    message, source = sock.recvfrom(9)
    sock.sendto(message, source)
    urds.drain(30)
    os._exit(0)
sock.sendto(b"x", ("NETWORK.3", int(os.read(ready, 9))))
sock.recv(9)
names = sorted(sys.modules)
import json
print(json.dumps(names), flush=True)
os._exit(0)
""".replace("NETWORK", NETWORK)
LIMITS_MS = {"import": IMPORT_MS_MAX, "bind": BIND_MS_MAX}


def start(program: str, tmp_path: Path, *, plane: str = "python") -> tuple[float, str]:
    """Run a program in a fresh interpreter; return its processor time in ms and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-S", "-X", f"pycache_prefix={tmp_path}", "-c", program]
    command += [str(ROOT / "src")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env = {name: value for name, value in env.items() if not name.startswith("URDS_")}
    env["URDS_IMPL"] = plane
    run = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent_s * 1000, run.stdout


def program_of(kind: str) -> str:
    return f"import os, sys\nsys.path.insert(0, sys.argv[1])\n{STARTS[kind]}os._exit(0)\n"


@pytest.fixture(params=STARTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_start_takes_little_processor_time(kind: str, tmp_path: Path) -> None:
    bare, program = "import os\nos._exit(0)\n", program_of(kind)
    start(program, tmp_path)  # compiles the modules
    bare_ms, best_ms = start(bare, tmp_path)[0], start(program, tmp_path)[0]
    for _ in range(ATTEMPTS_MAX):
        if best_ms - bare_ms < limit_ms(kind, bare_ms):
            break
        bare_ms = min(bare_ms, start(bare, tmp_path)[0])
        best_ms = min(best_ms, start(program, tmp_path)[0])
    print(f"{kind}: {best_ms - bare_ms:.1f} ms, a bare interpreter {bare_ms:.1f} ms")
    assert best_ms - bare_ms < limit_ms(kind, bare_ms)


def limit_ms(kind: str, bare_ms: float) -> float:
    """Return what a start may take where a bare interpreter takes `bare_ms`."""
    return LIMITS_MS[kind] * max(1.0, bare_ms / BARE_MS)


def new_modules(kind: str, tmp_path: Path) -> set[str]:
    """Return the modules that a start imports."""
    tell = "import json\nprint(json.dumps(sorted(after - before)), flush=True)\nos._exit(0)\n"
    program = "import os, sys\nsys.path.insert(0, sys.argv[1])\nbefore = set(sys.modules)\n"
    program += STARTS[kind] + "after = set(sys.modules)\n" + tell
    return set(json.loads(start(program, tmp_path)[1]))


def test_a_start_needs_the_standard_library_only(kind: str, tmp_path: Path) -> None:
    """Runs without site-packages, so a third-party import would fail by itself."""
    names = new_modules(kind, tmp_path)
    own = {"urds", "_xxsubinterpreters", "_interpreters"}  # private ones of CPython are not listed
    foreign = {name.split(".")[0] for name in names} - own - set(sys.stdlib_module_names)
    assert foreign == set()


def test_a_start_leaves_heavy_modules_alone(kind: str, tmp_path: Path) -> None:
    assert HEAVY & new_modules(kind, tmp_path) == set()


def test_a_connection_leaves_heavy_modules_alone(tmp_path: Path) -> None:
    """It is logged as INFO, which a program that has not imported `logging` does not see."""
    names = set(json.loads(start(CONNECT, tmp_path)[1]))
    assert "urds.rds.runtime.connect" in names
    assert HEAVY & names == set()


def test_a_bind_over_tcp_leaves_rdma_alone(tmp_path: Path) -> None:
    ours = {name for name in new_modules("bind", tmp_path) if name.startswith("urds.")}
    assert "urds.rds.runtime.control_thread" in ours
    parts = ("urds.verbs", "urds.rsocket", "urds.dat", "urds.cli", "urds.rds.transports.rdma",
             "urds.rds.runtime.beside", "urds.rds.runtime.crossings")  # fmt: skip
    assert [name for name in sorted(ours) if name.startswith(parts)] == []
