"""A type checker knows what sockets take and return, and refuses what fails at run time."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import urds
from tests.health.sources import ROOT

HEAD = """
import ssl
from typing import assert_type
import urds
from urds import rsocket
from urds.rsocket import tls

Address = tuple[str, int] | tuple[str, int, int, int]
sock = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
peer = ("127.0.0.1", 4000)
"""
GOOD = """
sock.bind(("127.0.0.1", 4000))
sock.bind(("fd00::1", 4000, 0, 0))
sock.connect(b"a sockaddr_in in C")
assert_type(sock.connect_ex(peer), int)
assert_type(sock.sendto(b"x", peer), int)
assert_type(sock.sendto(bytearray(1), urds.MSG_DONTWAIT, peer), int)
assert_type(sock.send(memoryview(b"x")), int)
assert_type(sock.sendmsg([b"x", bytearray(1)], [(1, 2, b"3")], 0, peer, copy=False), int)
assert_type(sock.send_many([(b"x", None), (b"y", peer)]), int)
assert_type(sock.recv(1), bytes)
assert_type(sock.recvfrom(1, urds.MSG_PEEK), tuple[bytes, Address])
assert_type(sock.recvmsg(1, 100)[3], Address | None)
assert_type(sock.recv_into(bytearray(1), nbytes=1), int)
assert_type(sock.recvfrom_into(bytearray(1), 1), tuple[int, Address])
assert_type(sock.recv_many(10), list[tuple[bytes, Address]])
assert_type(sock.getsockname(), Address)
assert_type(sock.getpeername(), Address)
assert_type(sock.getsockopt(urds.SOL_RDS, urds.RDS_RECVERR), int)
assert_type(sock.getsockopt(urds.SOL_RDS, urds.RDS_RECVERR, 4), bytes)
sock.setsockopt(urds.SOL_RDS, urds.RDS_RECVERR, 1)
sock.setsockopt(urds.SOL_RDS, urds.RDS_RECVERR, b"1234")
sock.settimeout(None)
assert_type(urds.configure(npaths=4, wmem_max="5M", allow=["10.0.0.0/8"]), urds.Settings)
urds.configure(rds_tcp_sndbuf="64KiB", linger_s=1, shared_memory=False)
assert_type(urds.stats(), dict[str, int])
assert_type(urds.ErrorReason(1), urds.ErrorReason)
listener = rsocket.create_server(peer)
stream = rsocket.create_connection(peer, timeout=1)
assert_type(listener.accept()[0], rsocket.StreamSocket)
assert_type(tls.wrap_socket(ssl.create_default_context(), stream), tls.TlsSocket)
assert_type(tls.wrap_socket(ssl.create_default_context(), listener).accept()[0], tls.TlsSocket)
"""
# Each line is an error of the type checker, and, where it can be tried, raises at run time.
BAD = """
sock.bind("nonsense")
sock.bind(("127.0.0.1", "4000"))
sock.bind(("127.0.0.1",))
sock.bind(4000)
sock.connect("127.0.0.1")
sock.connect_ex(("127.0.0.1", None))
sock.sendto(b"x", 5)
sock.sendto("text", peer)
sock.sendto(b"x")
sock.send("text")
sock.sendmsg(b"x", address=peer)
sock.recvfrom("1")
sock.recvfrom()
sock.recv_into(5)
sock.setsockopt(urds.SOL_RDS, urds.RDS_RECVERR, "1")
sock.settimeout("1")
urds.configure(nonsense=1)
urds.configure(npaths=None)
urds.configure(allow=5)
"""


def lines_of(text: str) -> list[str]:
    return text.strip().splitlines()


def test_mypy_refuses_what_fails_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is of the lint environment")
    program = [*lines_of(HEAD), *lines_of(GOOD), *lines_of(BAD)]
    path = tmp_path / "program.py"
    path.write_text("\n".join(program) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(path)]
    run = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    refused = {int(line.split(":")[1]) for line in run.stdout.splitlines() if ": error:" in line}
    assert [program[number - 1] for number in sorted(refused)] == lines_of(BAD), run.stdout


def test_pyright_refuses_the_same(tmp_path: Path) -> None:
    """With pyright as a program of its own, where there is one: it needs Node.js."""
    checker = shutil.which("pyright")
    if checker is None:
        pytest.skip("pyright is not installed")
    program = [*lines_of(HEAD), *lines_of(GOOD), *lines_of(BAD)]
    (tmp_path / "program.py").write_text("\n".join(program) + "\n", encoding="utf-8")
    settings = {
        "include": ["program.py"],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    run = subprocess.run(
        [checker, "--outputjson", "-p", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    findings = json.loads(run.stdout)["generalDiagnostics"]
    refused = {one["range"]["start"]["line"] for one in findings}
    assert [program[number] for number in sorted(refused)] == lines_of(BAD), run.stdout


@pytest.mark.parametrize("line", lines_of(BAD))
def test_what_is_refused_fails_at_run_time(line: str) -> None:
    with urds.socket() as sock:
        with pytest.raises((TypeError, ValueError, OSError)):
            exec(line, {"urds": urds, "sock": sock, "peer": ("127.0.0.1", 4000)})
        assert sock.getsockname()[0] == 0, "not bound"
