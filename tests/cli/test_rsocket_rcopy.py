"""`urds rsocket rcopy` and its kernel baseline: what arrives, and what must never be seen."""

import errno
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.commands import EXTRAS, command, environment, urds
from urds.cli.rsocket import rcopy as rsocket_rcopy
from urds.cli.rsocket.rcopy import RcopyOptions, _Server, placed, split

KERNEL = ("--kernel",)
WAYS = {"kernel": KERNEL, "shm0": ("--device", "shm"), "tcp0": ("--device", "tcp")}
REPLY = struct.Struct(">4s2xHQ")


def request(name: str, size_bytes: int) -> bytes:
    return struct.pack(">4s2xHQ", b"urc1", len(name), size_bytes) + name.encode()


@contextmanager
def server(
    into: Path,
    *options: str,
    file_kib_max: int | None = None,
    way: tuple[str, ...] = KERNEL,
    host: str = "127.0.0.1",
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run a server on a free port; yield the port and the process."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    words = command("without", "rsocket", "rcopy", *way, "--serve", "--into", str(into), *options)
    limit = f"ulimit -f {file_kib_max};" if file_kib_max else ""
    with subprocess.Popen(
        ["bash", "-c", f'{limit} exec "$@"', "server", *words, "-p", str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on port {port}\n"
        yield port, process
        process.terminate()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(os.urandom(2_500_003))
    return path


@pytest.fixture
def into(tmp_path: Path) -> Path:
    path = tmp_path / "into"
    path.mkdir()
    return path


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("way", WAYS)
def test_a_file_arrives_whole(source: Path, into: Path, way: str, extra: str) -> None:
    done = urds("rsocket", "rcopy", *WAYS[way], str(source), "--into", str(into), extra=extra)
    assert (done.code, done.err) == (0, "")
    figures, verdict = done.out.splitlines()[-2:]
    assert figures.startswith("2500003 bytes in ")
    assert figures.endswith(" Gb/sec")
    assert verdict == f"source.bin: size and SHA-256 are those of {source}"
    assert [path.name for path in into.iterdir()] == ["source.bin"]
    assert (into / "source.bin").read_bytes() == source.read_bytes()


def test_json_tells_size_and_digest(source: Path, into: Path) -> None:
    done = urds("rsocket", "rcopy", *KERNEL, str(source), "--into", str(into), "--json")
    found = json.loads(done.out)
    assert (found["size_bytes"], found["name"]) == (2_500_003, "source.bin")
    assert found["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()


def test_a_server_takes_one_client_after_another_and_their_names(
    source: Path, into: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with server(into, "--overwrite") as (port, _):
        for path, target in (
            (source, "127.0.0.1:new.bin"),
            (empty, "localhost"),
            (empty, "127.0.0.1:new.bin"),
        ):
            done = urds("rsocket", "rcopy", *KERNEL, str(path), target, "-p", str(port))
            assert (done.code, done.err) == (0, "")
    assert {path.name: path.stat().st_size for path in into.iterdir()} == {"new.bin": 0, "empty": 0}


@pytest.mark.parametrize(
    ("data", "known"),
    [(b"wrong digest" + bytes(88) + bytes(32), errno.EBADMSG), (b"half", None)],
    ids=["digest", "half"],
)
def test_what_is_not_whole_and_right_leaves_the_old_file(
    into: Path, data: bytes, known: int | None
) -> None:
    (into / "name").write_bytes(b"old")
    with server(into, "--overwrite") as (port, process):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request("name", 100))
            assert REPLY.unpack(client.recv(REPLY.size, socket.MSG_WAITALL))[1] == 0
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            assert REPLY.unpack(client.recv(REPLY.size, socket.MSG_WAITALL))[1] == (
                known or errno.EIO
            )
            assert client.recv(1) == b""
        assert process.stderr is not None
        assert "name: " in process.stderr.readline()
    assert {path.name: path.read_bytes() for path in into.iterdir()} == {"name": b"old"}


def test_a_file_that_is_there_is_kept(source: Path, into: Path) -> None:
    (into / "name").write_bytes(b"old")
    (into / "link").symlink_to("nowhere")
    with server(into) as (port, process):
        for name in ("name", "link"):
            words = (str(source), f"127.0.0.1:{name}", "-p", str(port))
            done = urds("rsocket", "rcopy", *KERNEL, *words)
            assert done.code == 1
            assert done.err.endswith(f"{name} at the server: File exists\n")
            assert process.stderr is not None
            assert "--overwrite" in process.stderr.readline()
    assert (into / "name").read_bytes() == b"old"
    assert sorted(path.name for path in into.iterdir()) == ["link", "name"]


def test_a_file_made_meanwhile_is_kept(into: Path) -> None:
    content = b"x" * 100
    with server(into) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request("name", 100))
        assert REPLY.unpack(client.recv(REPLY.size, socket.MSG_WAITALL))[1] == 0
        (into / "name").write_bytes(b"of another")
        client.sendall(content + hashlib.sha256(content).digest())
        assert REPLY.unpack(client.recv(REPLY.size, socket.MSG_WAITALL))[1] == errno.EEXIST
    assert {path.name: path.read_bytes() for path in into.iterdir()} == {"name": b"of another"}


def test_a_file_beyond_the_limit_is_refused_before_it_is_sent(source: Path, into: Path) -> None:
    with server(into, "--max-bytes", "2500002") as (port, process):
        done = urds("rsocket", "rcopy", *KERNEL, str(source), "127.0.0.1", "-p", str(port))
        assert done.code == 1 and "File too large" in done.err
        assert process.stderr is not None
        told = "source.bin: 2500003 bytes, limit 2500002 (--max-bytes)\n"
        assert process.stderr.readline().endswith(told)
    with server(into) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request("name", (1 << 30) + 1))
        assert REPLY.unpack(client.recv(REPLY.size, socket.MSG_WAITALL))[1] == errno.EFBIG
    assert list(into.iterdir()) == []


def test_hosts_that_are_not_allowed_are_cut_off() -> None:
    """This host is, whatever the address; the loopback is all that a test has."""
    made = _Server(RcopyOptions(is_server=True, into="/", allow=["10.1.0.0/16", "fd00::/8"]))
    for peer, is_allowed in {
        "127.0.0.5": True, "::1": True, "192.0.2.1": True, "192.0.2.2": False, "10.1.2.3": True,
        "10.2.0.1": False, "fd00::7": True, "fe80::1%lo": False, "::ffff:10.1.2.3": True,
    }.items():  # fmt: skip
        assert made.allows(peer, "192.0.2.1") is is_allowed, peer


@pytest.mark.parametrize("extra", EXTRAS)
def test_networks_are_given_with_and_without_the_extra(into: Path, extra: str) -> None:
    words = ("--serve", "--into", str(into), "--allow", "10.0.0.0/8", "--allow", "x")
    done = urds("rsocket", "rcopy", *KERNEL, *words, extra=extra)
    assert done.code == 2 and "--allow: 'x' does not appear to be" in done.err


@pytest.mark.parametrize("after", ["nothing", "request", "content"])
def test_a_client_that_drips_is_cut_off(
    into: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """A byte now and then does not hold the server: each part has a time of its own."""
    monkeypatch.setattr(rsocket_rcopy, "_PACE_S", 0.5)
    content = b"x" * 40
    data = {
        "nothing": request("name", 40),
        "request": content,
        "content": hashlib.sha256(content).digest(),
    }[after]
    made = _Server(RcopyOptions(is_server=True, into=str(into)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        if after != "nothing":
            near.sendall(request("name", 40) + (content if after == "content" else b""))

        def drip() -> None:
            with suppress(OSError):
                for byte in data:
                    near.sendall(bytes([byte]))
                    time.sleep(0.1)

        dripping = threading.Thread(target=drip)
        dripping.start()
        began_s = time.monotonic()
        monkeypatch.setattr(rsocket_rcopy, "_LEAVING_S", 0.1)
        made.serve_one(far, "127.0.0.1", memoryview(bytearray(1 << 20)))
        assert time.monotonic() - began_s < 2.0
        far.close()
        dripping.join()
    assert list(into.iterdir()) == []


def test_a_server_that_dies_in_the_middle_leaves_no_file_of_that_name(into: Path) -> None:
    with (
        server(into) as (port, process),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(request("name", 1 << 20))
        client.recv(REPLY.size, socket.MSG_WAITALL)
        client.sendall(bytes(1 << 19))
        process.kill()
        process.wait()
    assert not (into / "name").exists()


def test_ctrl_c_in_the_middle_leaves_nothing(into: Path) -> None:
    with (
        server(into) as (port, process),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(request("name", 1 << 20))
        client.recv(REPLY.size, socket.MSG_WAITALL)
        client.sendall(bytes(1 << 19))
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("way", ["shm0", "tcp0"])
def test_a_full_disk_is_told_over_rsockets(tmp_path: Path, into: Path, way: str) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(8_000_000))
    with server(into, file_kib_max=1024, way=WAYS[way]) as (port, _):
        done = urds("rsocket", "rcopy", *WAYS[way], str(big), "127.0.0.1", "-p", str(port))
    assert done.code == 1
    assert "File too large" in done.err
    assert list(into.iterdir()) == []


def test_a_full_disk_is_told_before_everything_was_sent(tmp_path: Path, into: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(20_000_000))
    with server(into, file_kib_max=1024) as (port, _):
        done = urds("rsocket", "rcopy", *KERNEL, str(big), "127.0.0.1", "-p", str(port))
    assert done.code == 1
    assert "File too large" in done.err
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "link/x", ".", "..", "a\0b"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(OSError) as refused:
        placed(name, root)
    assert refused.value.errno in (errno.EACCES, errno.EISDIR)


def test_a_name_that_leads_in_circles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError) as refused:
        placed("circle/x", tmp_path.resolve())
    assert refused.value.errno == errno.ELOOP


def test_names_below_the_folder_are_taken(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert placed("sub/x", tmp_path.resolve()) == tmp_path.resolve() / "sub" / "x"
    with pytest.raises(FileNotFoundError):
        placed("absent/x", tmp_path)


def test_an_error_names_the_file(source: Path, into: Path) -> None:
    with server(into) as (port, process):
        done = urds("rsocket", "rcopy", *KERNEL, str(source), "127.0.0.1:../x", "-p", str(port))
        assert process.stderr is not None
        assert "a name that leads out of the folder" in process.stderr.readline()
    assert done.code == 1
    assert done.err == "urds rsocket rcopy: ../x at the server: Permission denied\n"


def test_an_unknown_peer_hurts_no_other(source: Path, into: Path) -> None:
    with server(into) as (port, _):
        for data in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            request("x", 5)[:-1],
            b"urc1" + b"\xff" * 12,
        ):
            with socket.create_connection(("127.0.0.1", port)) as unknown_peer:
                unknown_peer.sendall(data)
        done = urds("rsocket", "rcopy", *KERNEL, str(source), "127.0.0.1", "-p", str(port))
    assert done.code == 0
    assert [path.name for path in into.iterdir()] == ["source.bin"]


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("host", ("host", "")),
        ("10.0.0.2:name", ("10.0.0.2", "name")),
        ("fd00::2", ("fd00::2", "")),
        ("[fd00::2]:name", ("fd00::2", "name")),
        ("[fd00::2]", ("fd00::2", "")),
    ],
)
def test_a_target_is_a_host_and_maybe_a_name(target: str, parts: tuple[str, str]) -> None:
    assert split(target) == parts


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "which file?"),
        (("x",), 2, "either HOST[:NAME] to copy to, or --into"),
        (("x", "127.0.0.1", "--into", "/"), 2, "either HOST[:NAME] to copy to, or --into"),
        (("--serve",), 2, "--serve needs --into"),
        (("--serve", "--into", "/", "--max-bytes", "-1"), 2, "--max-bytes -1: must be 0 or more"),
        (("x", "127.0.0.1", "--overwrite"), 2, "are for --serve"),
        (("x", "--into", "/nosuch"), 2, "--into /nosuch: no such folder"),
        (("/", "127.0.0.1"), 2, "is a directory"),
        (("/nosuch", "127.0.0.1"), 1, "/nosuch: No such file"),
        (("/dev/null", "127.0.0.1", "-p", "9"), 1, "Connection refused"),
    ],
)
def test_what_cannot_be_is_said(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = urds("rsocket", "rcopy", *KERNEL, *arguments)
    assert done.code == code
    assert words in done.err
    assert "Traceback" not in done.err
