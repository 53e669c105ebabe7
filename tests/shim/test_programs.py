"""Programs in C under the hooks: descriptors, readiness, signals, many processes, random sequences.

Each case is a function of a program in the folder `programs`, which ends with 0 or says what was
wrong. They are compiled by the machine's compiler and, where it is, by musl's: one library serves
both.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import address
from tests.shim import libraries
from tests.shim.conftest import SOURCES, Programs
from urds.rds.node import commands

COMPILERS = ("cc", "musl-gcc")
# What programs have beside us, with the package of Debian that has it.
PRELOADED = {"libjemalloc.so.2": "libjemalloc2", "faketime/libfaketime.so.1": "libfaketime"}
CASE = re.compile(r"\{\"(\w+)\", \w+\}")
STEPS = int(os.environ.get("TEST_MODEL_STEPS", "20000"))  # of each seed
MESSAGES = int(os.environ.get("TEST_SHARED_MESSAGES", "30000"))  # of all senders together


def cases() -> list[tuple[str, str]]:
    """Return program and function of each case."""
    return [
        (name, case)
        for name in ("descriptors", "readiness", "signals")
        for case in CASE.findall((SOURCES / f"{name}.c").read_text("utf-8"))
    ]


def by(compiler: str) -> str:
    """Return a compiler; skip where it is not installed."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    return compiler


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(("name", "case"), cases())
def test_a_program(name: str, case: str, compiler: str, programs: Programs) -> None:
    done = programs.run(programs.compiled(name, by=by(compiler)), address(1), case)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("seed", range(1, 6))
def test_no_byte_lands_in_another_file(seed: int, programs: Programs) -> None:
    """Numbers that are ours, another's and none in turn, by every call that changes them."""
    done = programs.run(programs.compiled("model"), address(2), str(seed), str(STEPS))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("count", [1, 3, 16])
@pytest.mark.parametrize("kills", [False, True])
def test_processes_share_a_socket(count: int, *, kills: bool, programs: Programs) -> None:
    """Receivers are killed until all has arrived, a ten thousandth of the messages at most."""
    many: Path = programs.compiled("many")
    killed = str(MESSAGES // 10_000 if kills else 0)
    done = programs.run(many, address(3), str(count), str(MESSAGES), killed)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{MESSAGES // count * count} messages, " in done.stdout
    print(done.stdout)  # shown by -rP


@pytest.mark.parametrize("is_first", [True, False])
def test_another_library_beside_ours(is_first: bool, programs: Programs) -> None:
    """Ours works before any constructor has run, and calls the next library's functions."""
    other = programs.compiled("early", shared=True)
    variables = programs.variables()
    ours = variables["LD_PRELOAD"]
    variables["LD_PRELOAD"] = f"{other}:{ours}" if is_first else f"{ours}:{other}"
    descriptors = programs.compiled("descriptors")
    variables |= {"EARLY_HOST": address(7), "EARLY_PROGRAM": descriptors.name}
    done = programs.run(descriptors, address(8), "copies", variables=variables)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("library", PRELOADED)
@pytest.mark.parametrize(("name", "case"), cases())
def test_an_allocator_or_a_clock_beside_ours(
    name: str, case: str, library: str, programs: Programs
) -> None:
    """They replace functions of libc too; the clock is wrong, and goes at twice the speed."""
    found = sorted(Path("/usr/lib").glob(f"*/{library}"))
    if not found:
        pytest.skip(f"no {library} on this machine (Debian: {PRELOADED[library]})")
    variables = {**programs.variables(), "FAKETIME": "-10d x2"}
    both = [str(found[0]), variables["LD_PRELOAD"]]
    # Either may be the first one, and ours is for every other case.
    variables["LD_PRELOAD"] = ":".join(both if len(case) % 2 else reversed(both))
    done = programs.run(programs.compiled(name), address(12), case, variables=variables)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("case", ["copies", "forked", "sent_along"])
def test_a_program_with_a_sanitizer(sanitizer: str, case: str, programs: Programs) -> None:
    """Its library has to be the first one."""
    library = libraries.of_compiler(f"lib{sanitizer[0]}san.so")
    program = programs.compiled("descriptors", f"-fsanitize={sanitizer}")
    variables = programs.variables()
    variables["LD_PRELOAD"] = f"{library}:{variables['LD_PRELOAD']}"
    variables["ASAN_OPTIONS"] = "detect_leaks=0"
    done = programs.run(program, address(9), case, variables=variables)
    assert (done.returncode, done.stderr) == (0, "")


ENDED = """
import errno, socket
def said(call, *arguments):
    try:
        return call(*arguments)
    except OSError as failure:
        return errno.errorcode[failure.errno]
sock, other = socket.socket(21, 5, 0), socket.socket(21, 5, 0)
sock.bind((%(host)r, 0))
print("bound", flush=True)
print(said(sock.recv, 10), said(sock.sendto, b"x", sock.getsockname()), said(sock.recv, 10))
print(said(other.bind, (%(host)r, 0)), said(socket.socket, 21, 5, 0))
"""


SCARCE = """
import errno, os, resource, socket
used, (_, hard) = len(os.listdir("/proc/self/fd")) - 1, resource.getrlimit(resource.RLIMIT_NOFILE)
for free in range(3):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + free, hard))
    try:
        socket.socket(21, 5, 0).close()
        print("made")
    except OSError as failure:
        print(errno.errorcode[failure.errno])
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
print(len(os.listdir("/proc/self/fd")) - 1 - used, socket.socket(21, 5, 0).family)
"""


def test_without_descriptors_socket_says_so(programs: Programs) -> None:
    """However many are left, and none is lost."""
    done = programs.run(sys.executable, "-c", SCARCE)
    assert done.stdout == "EMFILE\nEMFILE\nEMFILE\n0 21\n"


def test_calls_on_a_socket_whose_node_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says EIO, the one that waits too; a new socket is as without the module."""
    monkeypatch.delenv("TEST_NODE", raising=False)
    apart = Programs(tmp_path, str(tmp_path / "node.sock"))
    program = subprocess.Popen(
        [sys.executable, "-c", ENDED % {"host": address(10)}], env=apart.variables(),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "bound\n"
        commands.stop(apart.node)
        assert program.stdout.read() == "EIO EIO EIO\nEIO EAFNOSUPPORT\n"
