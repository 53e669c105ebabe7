"""`urds run` where no node is: one node for each user and network namespace, or one clear line."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.conftest import ROOT, Apart

PROGRAM = """
import os, socket, sys
host, own, other = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sock = socket.socket(21, 5, 0)
sock.bind((host, own))
sock.settimeout(1)
got = b""
for _ in range(60):
    sock.sendto(b"hello", (host, other))
    try:
        got = sock.recv(10)
        break
    except TimeoutError:
        pass
sock.sendto(b"hello", (host, other))
os.write(1, got + b"\\n")  # in one piece, beside another program
"""
UIDS = (65532, 65533)  # a node refuses 65534, which stands for those without a name
PACKAGES = f"{ROOT / 'src'}:{sysconfig.get_path('purelib')}"
NODES = "ls $XDG_RUNTIME_DIR/urds | grep -c 'node-.*sock$'"


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Return a command: send from one port of a host to another one, until a message comes."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    tmp_path.chmod(0o755)  # other users read it
    return f"{sys.executable} {path}"


def test_two_programs_at_once_have_one_node(program: str, apart: Apart) -> None:
    """Each finds the other by the address that both are at."""
    first, second = (f"$run {program} 127.0.0.1 {ports}" for ports in ("4000 4001", "4001 4000"))
    done = apart(f"{first} & {second} || exit 1; wait $! || exit 1; {NODES}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "hello\nhello\n1\n"


def test_two_namespaces_have_a_node_each(program: str, apart: Apart) -> None:
    """They share the folder, and have the same addresses."""
    one = f"$run {program} 127.0.0.1 4000 4000"
    inner = f"ip link set lo up; {one}"
    done = apart(f"export run; {one} || exit 1; unshare -n sh -c '{inner}' || exit 1; {NODES}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "hello\nhello\n2\n"


@pytest.fixture
def folder_of_all() -> Iterator[Path]:
    """Return a folder that every user can read."""
    path = Path(tempfile.mkdtemp())  # those of pytest are of one user
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def as_user(uid: int) -> tuple[str, ...]:
    """Return the words that have a command run as a user."""
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")


def interpreter_of_all() -> str:
    """Return a Python that other users can run, with the packages of this one; skip without."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becomes other users: needs root and setpriv")
    for python in (sys.executable, "/usr/bin/python3"):
        command = ["env", f"PYTHONPATH={PACKAGES}", python, "-c", "import urds, urds_native"]
        done = subprocess.run([*as_user(UIDS[0]), *command], capture_output=True, check=False)
        if not done.returncode:
            return f"env PYTHONPATH={PACKAGES} {python}"
    pytest.skip("other users have no Python that can load the compiled plane")


def test_two_users_have_a_node_each(apart: Apart, folder_of_all: Path) -> None:
    """The host's addresses are for both; the second node has others than the first."""
    python = interpreter_of_all()
    (folder_of_all / "program.py").write_text(PROGRAM)
    runs = []
    for number, uid in enumerate(UIDS):
        folder = folder_of_all / str(uid)
        folder.mkdir(mode=0o700)
        os.chown(folder, uid, uid)
        words = f"{python} -m urds run -- {python} {folder_of_all}/program.py"
        # Each stops its own: by itself a node ends ten seconds after its last socket.
        script = (
            f"{words} 127.0.0.{1 + number} 4000 4000; cd {folder}/urds; ls | grep -c ^node.*sock$;"
            f" {python} -m urds node stop --socket {folder}/urds/node-*.sock >/dev/null"
        )
        variables = f"XDG_RUNTIME_DIR={folder} HOME=/"
        user = " ".join(as_user(uid))
        runs.append(f"env {variables} {user} sh -c '{script}' >{folder}.out 2>&1 & ")
    outputs = " ".join(f"{folder_of_all}/{uid}.out" for uid in UIDS)
    done = apart(f"{''.join(runs)} wait; cat {outputs}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n1\nhello\n1\n", "")


def mounted(script: str, *, over: str) -> str:
    """Return a script that runs with an empty read-only filesystem in the place of a folder."""
    return f"unshare -m sh -c 'mount -t tmpfs -o ro none {over} && {script}'"


def test_a_home_that_is_read_only_changes_nothing(
    program: str, apart: Apart, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    inner = f"HOME={home} $run {program} 127.0.0.1 4000 4000"
    done = apart("export run; " + mounted(inner, over=str(home)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_a_runtime_folder_that_is_read_only_is_named(
    program: str, apart: Apart, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    inner = f"XDG_RUNTIME_DIR={folder} $run {program} 127.0.0.1 4000 4000"
    done = apart("export run; " + mounted(inner, over=str(folder)))
    assert (done.returncode, done.stdout) == (126, "")
    assert done.stderr == f"urds run: no node: {folder}/urds: Read-only file system\n"


def test_without_proc_there_is_one_line(program: str, apart: Apart) -> None:
    inner = f"$run {program} 127.0.0.1 4000 4000"
    done = apart("export run; " + mounted(inner, over="/proc"))
    assert (done.returncode, done.stdout) == (126, "")
    assert done.stderr == "urds run: no node: a node needs /proc, which is not mounted here\n"


def test_without_proc_a_node_that_is_there_is_used(program: str, apart: Apart) -> None:
    inner = f"$run {program} 127.0.0.1 4001 4001"
    done = apart(f"export run; $run {program} 127.0.0.1 4000 4000; " + mounted(inner, over="/proc"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\nhello\n", "")
