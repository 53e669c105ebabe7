"""`urds run`: what it refuses, what it sets, and that it becomes the program."""

import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import RUN_S_MAX, command, environment, urds
from urds.cli import programs
from urds.cli.rds import run
from urds.cli.rds.run import environment as variables_of
from urds.rds.runtime import places

LIBRARY = "/opt/urds/liburds_preload.so"
ANY_FILE = "/dev/null"  # in place of the library, where nothing is loaded


def checked(*words: str | Path) -> tuple[int, str]:
    """Return exit code and error line of `urds run --check`."""
    done = urds("run", "--check", "--library", ANY_FILE, "--", *map(str, words))
    assert done.err.count("\n") == (done.code != 0)
    return done.code, done.err


def file(path: Path, data: bytes, mode: int = 0o755) -> Path:
    """Write an executable file."""
    path.write_bytes(data)
    path.chmod(mode)
    return path


def image(*, bits: int = 2, machine: int | None = None, loader: bytes | None = None) -> bytes:
    """Return the beginning of an ELF program."""
    number = {"x86_64": 62, "aarch64": 183}[os.uname().machine] if machine is None else machine
    header = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH",
        *(b"\x7fELF", bits, 1, 1, 0, 0),
        *(2, number, 1, 0, 64, 0, 0, 64, 56, int(loader is not None), 0, 0, 0),
    )
    if loader is None:
        return header
    return header + struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(loader), 0, 1) + loader


GLIBC = b"/lib64/ld-linux-x86-64.so.2\0"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (image(), "static, so no library can be put before its libc"),
        (image(bits=1), "a 32-bit program"),
        (image(machine=21), "a program of another machine"),
        (image(loader=b"/system/bin/linker64\0"), "is neither glibc's nor musl's"),
        (image(loader=GLIBC)[:70], "its ELF header is cut short"),
        (b"\x7fELF\x02\x01", "its ELF header is cut short"),
        (b"echo hello\n", "neither a program nor a script with #!"),
        (b"", "neither a program nor a script with #!"),
        (b"#! \n", "its first line names no interpreter"),
        (b"#!/nowhere/perl -w\n", "its interpreter /nowhere/perl is not there"),
    ],
)
def test_what_cannot_be_reached_is_refused_in_a_line(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    program = file(tmp_path / "program", data)
    code, line = checked(program)
    assert code == 126
    assert line.startswith(f"urds run: {program}: ")
    assert reason in line


@pytest.mark.parametrize("loader", [GLIBC, b"/lib/ld-musl-x86_64.so.1\0"])
def test_a_dynamic_program_of_either_libc_is_taken(loader: bytes, tmp_path: Path) -> None:
    assert checked(file(tmp_path / "program", image(loader=loader))) == (0, "")


def test_a_script_is_judged_by_its_interpreter(tmp_path: Path) -> None:
    assert checked(file(tmp_path / "good", f"#!{sys.executable} -I\n".encode())) == (0, "")
    static = file(tmp_path / "static", image())
    outer = file(tmp_path / "outer", f"#!{static}\n".encode())
    code, line = checked(outer)
    assert code == 126
    assert line.startswith(f"urds run: {outer}: {static}: static")
    loop = tmp_path / "loop"
    file(loop, f"#!{loop}\n".encode())
    assert "a script of a script" in checked(loop)[1]


@pytest.mark.parametrize(
    ("bit", "word"), [(stat.S_ISUID, "setuid"), (stat.S_ISGID | stat.S_IXGRP, "setgid")]
)
def test_a_program_that_gains_rights_is_refused(bit: int, word: str, tmp_path: Path) -> None:
    """Judged by who runs it: root gains nothing from what is root's."""
    program = file(tmp_path / "program", image(loader=GLIBC))
    if os.getuid() == 0:
        os.chown(program, 12345, 12345)
    else:
        program = Path("/usr/bin/passwd" if word == "setuid" else "/usr/bin/chage")
        if not program.exists() or not program.stat().st_mode & bit:
            pytest.skip(f"no {word} program here")
    if os.getuid() == 0:
        program.chmod(0o755 | bit)
    code, line = checked(program)
    assert code == 126
    assert f"{word}, so the loader takes no library" in line


def test_file_capabilities_are_refused_unless_root_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = file(tmp_path / "program", image(loader=GLIBC))
    owner = os.stat(program)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"\1\0\0\2")
    monkeypatch.setattr(os, "getuid", lambda: owner.st_uid or 1000)
    with pytest.raises(programs.CannotRun, match="has file capabilities"):
        programs.find(str(program))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert programs.find(str(program)).path == program


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("/nowhere/program",), 127, "/nowhere/program: not found"),
        (("no-such-program-anywhere",), 127, "no-such-program-anywhere: not found in PATH"),
        (("/etc/passwd",), 126, "/etc/passwd: may not be executed"),
        (("/tmp",), 126, "/tmp: not a file"),
    ],
)
def test_what_is_not_there_is_127_and_what_may_not_run_126(
    words: tuple[str, ...], code: int, reason: str
) -> None:
    assert checked(*words) == (code, f"urds run: {reason}\n")


def test_a_path_that_the_loader_would_split_is_wrong_usage() -> None:
    done = urds("run", "--library", "/opt/a b/liburds_preload.so", "--", "true")
    assert done.code == 2
    assert "takes no path with a space or a colon" in done.err


def test_a_library_that_is_not_there_is_said_by_us_and_not_by_the_loader(tmp_path: Path) -> None:
    done = urds("run", "--library", str(tmp_path / "absent.so"), "--", "true")
    assert (done.code, done.err) == (126, f"urds run: no library at {tmp_path}/absent.so\n")


@pytest.mark.parametrize("place", ["node.sock", ""])
def test_a_node_is_named_by_an_absolute_path(place: str) -> None:
    """Otherwise that of the host or the user would be taken in silence."""
    done = urds("run", f"--node={place}", "--library", ANY_FILE, "--", "true")
    assert (done.code, done.err) == (2, f"urds run: --node {place}: must be an absolute path\n")


def test_a_node_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    place = tmp_path / "absent" / "node.sock"
    done = urds("run", "--node", str(place), "--library", ANY_FILE, "--", "true")
    assert done.code == 126
    why = (f"{place}: there is no such folder to put it in", "a node needs the compiled data plane")
    assert done.err.startswith(tuple(f"urds run: no node: {one}" for one in why))


def test_a_check_shows_the_node_that_would_be_used(tmp_path: Path) -> None:
    def shown(*words: str, **changes: str) -> str:
        done = urds(
            "run", "--check", "--json", "--library", ANY_FILE, *words, "ls", changes=changes
        )
        node: str = json.loads(done.out)["node"]
        return node

    assert shown("--node", "/a/n.sock", URDS_NODE="/b/n.sock") == "/a/n.sock"
    assert shown(URDS_NODE="/b/n.sock") == "/b/n.sock"
    found = shown(URDS_NODE="inprocess", XDG_RUNTIME_DIR=str(tmp_path))
    assert found == places.SYSTEM_PLACE or found.startswith(f"{tmp_path}/urds/node-")


def test_options_behind_the_program_are_the_programs() -> None:
    done = urds("run", "--check", "--json", "--library", ANY_FILE, "ls", "--help", "-l", "--", "x")
    assert done.code == 0, done.err
    assert f'"library": "{ANY_FILE}"' in done.out
    assert f'"program": "{shutil.which("ls")}"' in done.out


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", LIBRARY),
        ("/a/libjemalloc.so", f"/a/libjemalloc.so:{LIBRARY}"),
        ("/a/one.so /a/two.so", f"/a/one.so:/a/two.so:{LIBRARY}"),
        (f"/old/{programs.LIBRARY}:/a/one.so", f"/a/one.so:{LIBRARY}"),
    ],
)
def test_what_is_preloaded_already_stays_first(before: str, after: str) -> None:
    given = {"HOME": "/root", "LD_PRELOAD": before, "URDS_NODE": "auto"}
    made = variables_of(given, library=Path(LIBRARY), node="/run/urds/node.sock")
    assert made == {"HOME": "/root", "LD_PRELOAD": after, "URDS_NODE": "/run/urds/node.sock"}


def test_a_node_is_started_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be by `urds run` in a shell that `urds run` started."""
    seen: list[str | None] = []

    def ensure(place: str | None) -> str:
        seen.append(os.environ["LD_PRELOAD"])
        return place or "/run/urds/node.sock"

    monkeypatch.setenv("LD_PRELOAD", f"/a/one.so:{LIBRARY}")
    monkeypatch.setattr("urds.rds.node.start.ensure", ensure)
    assert run._node("/nowhere/node.sock") == "/nowhere/node.sock"
    assert seen == ["/a/one.so"]


BECOME = """
import sys
from urds.cli.rds import run
run._node = lambda place: "/nowhere/node.sock"
from urds.cli.main import main
sys.exit(main())
"""


def become(*words: str) -> subprocess.Popen[str]:
    """Start `urds run` without a node; the library is any file, of which the loader complains."""
    return subprocess.Popen(
        [sys.executable, "-c", BECOME, "run", "--library", "/dev/null", "--", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )


def test_the_program_takes_its_place() -> None:
    """The process stays the same; exit code, arguments and variables are the program's."""
    with become("sh", "-c", 'echo $$ "$1" $URDS_NODE; exit 7', "sh", "--x y") as process:
        out, _ = process.communicate(timeout=RUN_S_MAX)
    assert out == f"{process.pid} --x y /nowhere/node.sock\n"
    assert process.returncode == 7


def test_a_signal_ends_the_program_as_without() -> None:
    """SIGPIPE too, which Python ignores and exec would keep ignored."""
    with become("sh", "-c", "kill -PIPE $$; echo still here") as process:
        assert process.communicate(timeout=RUN_S_MAX)[0] == ""
    assert process.returncode == -signal.SIGPIPE


def test_without_a_library_a_line_says_where_to_get_it() -> None:
    done = subprocess.run(
        [*command("without", "run", "true")], capture_output=True, text=True, check=False,
        env=environment(), timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 126
    assert done.stderr.startswith(f"urds run: no {programs.LIBRARY}, urds_native is not installed")
