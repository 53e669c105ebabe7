"""The package as a user has it: its version, its commands, messages on the plane that is chosen.

`make wheels` runs these in a fresh environment with the wheels alone (`TEST_INSTALLED` is its
folder), from the unpacked source distribution; elsewhere they judge the checkout. They need pytest
and nothing else of ours.
"""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import urds

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = os.environ.get("TEST_INSTALLED", "")
PLANE = os.environ.get("URDS_IMPL", "") or "python"
needs_wheels = pytest.mark.skipif(not INSTALLED, reason="judges installed wheels: make wheels")
RECEIVER = """
import sys, urds
sock = urds.socket()
sock.bind((sys.argv[1], 4000))
print("ready", flush=True)
for number in range(100):
    payload, source = sock.recvfrom(100_000)
    sock.sendto(payload, source)
urds.drain(10)
"""
# An unmodified program: it knows the numbers of AF_RDS and SOCK_SEQPACKET, and nothing of urds.
UNMODIFIED = """
import socket, sys
sock = socket.socket(21, 5, 0)
sock.bind((sys.argv[1], 4000))
sock.settimeout(30)
sock.sendto(b"from myself", sock.getsockname())
print(sock.recv(100).decode(), "urds" in sys.modules)
"""
THREADS = """
import sys, threading, time, urds
a, b = urds.socket(), urds.socket()
a.bind((sys.argv[1] + ".4", 4000))
b.bind((sys.argv[1] + ".5", 4000))
def receive(sock):
    while True:
        sock.recvfrom(100)
def send(sock, target):
    while True:
        sock.sendto(b"x" * 50, target)
for call, *given in (receive, a), (receive, a), (receive, b), (send, a, b.getsockname()):
    threading.Thread(target=call, args=given, daemon=True).start()
time.sleep(0.3)
"""


def test_the_version_is_the_projects() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert urds.__version__ == stated


def test_the_command_tells_version_and_plane() -> None:
    command = [sys.executable, "-m", "urds", "--version"]
    places = {} if INSTALLED else {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **places},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"urds {urds.__version__} ({PLANE}")


@pytest.mark.parametrize("shared_memory", ["0", "1"])
def test_two_processes_exchange_messages(shared_memory: str) -> None:
    """Over TCP, and over shared memory where the plane has it; the second has no receiver yet."""
    network = f"127.92.{os.getpid() % 250}"
    places = {} if INSTALLED else {"PYTHONPATH": str(ROOT / "src")}
    environment = {**os.environ, **places, "URDS_SHARED_MEMORY": shared_memory}
    with subprocess.Popen(
        [sys.executable, "-c", RECEIVER, f"{network}.2"], stdout=subprocess.PIPE, env=environment
    ) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == b"ready\n"
        with urds.socket() as sock:
            sock.bind((f"{network}.3", 4000))
            sock.settimeout(30)
            for number in range(100):
                payload = number.to_bytes(2, "big") * (1 + number * 300)
                sock.sendto(payload, (f"{network}.2", 4000))
                assert sock.recvfrom(100_000)[0] == payload
        assert receiver.wait(30) == 0


def test_an_end_with_threads_in_calls_is_a_clean_one() -> None:
    """Python ends them by pthread_exit before 3.14, whose unwinding meets frames of the module."""
    places = {} if INSTALLED else {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", THREADS, f"127.92.{os.getpid() % 250}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **places, "URDS_DRAIN_S": "0"},
    )
    assert done.returncode == 0, done.stderr


@needs_wheels
def test_nothing_is_imported_from_elsewhere() -> None:
    assert Path(urds.__file__).is_relative_to(INSTALLED)
    if PLANE == "native":
        import urds_native

        assert Path(urds_native.__file__).is_relative_to(INSTALLED)


@needs_wheels
@pytest.mark.skipif(PLANE != "native", reason="of the compiled plane")
def test_an_unmodified_program_answers_with_the_library_of_the_wheel(tmp_path: Path) -> None:
    node, urds_command = str(tmp_path / "node.sock"), [sys.executable, "-m", "urds"]
    command = [*urds_command, "run", "--node", node, "--", sys.executable, "-I", "-c", UNMODIFIED]
    try:
        done = subprocess.run(
            [*command, f"127.92.{os.getpid() % 250}.6"],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        stop = [*urds_command, "node", "stop", "--socket", node]
        subprocess.run(stop, check=False, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("from myself False\n", "", 0)


@needs_wheels
@pytest.mark.skipif(PLANE != "native", reason="of the compiled plane")
def test_programs_in_c_find_header_and_library() -> None:
    files = {Path(str(file)).name: file for file in metadata.files("urds-native") or ()}
    for name in ("liburds_preload.so", "liburds.so", "urds.h"):
        assert Path(str(files[name].locate())).stat().st_size > 0, name


@needs_wheels
@pytest.mark.skipif(PLANE != "native", reason="of the compiled plane")
def test_the_compiled_plane_has_the_licences_of_its_crates() -> None:
    found = metadata.distribution("urds-native")
    assert found.version == urds.__version__
    files = {Path(str(file)).name: file for file in found.files or ()}
    for name in ("LICENSE", "THIRD-PARTY-LICENSES"):
        assert Path(str(found.locate_file(files[name]))).stat().st_size > 10_000
    text = files["THIRD-PARTY-LICENSES"].read_text()
    assert re.search(r"^\* pyo3 [\d.]+ \(", text, re.MULTILINE)


@needs_wheels
def test_an_index_shows_no_link_into_the_tree() -> None:
    for name in ("urds", "urds-native"):
        try:
            text = metadata.metadata(name).get_payload()
        except metadata.PackageNotFoundError:
            assert name != "urds" and PLANE == "python"
            continue
        targets = re.findall(r"\]\(([^)]+)\)", str(text))
        assert [target for target in targets if "://" not in target] == []
