"""Where contexts meet: names of the living and the dead, and who is let in."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.children import Child
from urds.verbs.providers.shm import rendezvous
from urds.verbs.providers.shm.rendezvous import (
    EPHEMERAL_PORTS,
    Rendezvous,
    check_same_user,
    check_user,
    default_directory,
)

TCP = 0x106
GID_A = b"a" * 16
GID_B = b"b" * 16
# Another process that listens, says so, and waits to be killed.
HOLDER = """
import sys
from pathlib import Path
from urds.verbs.providers.shm.rendezvous import Rendezvous
there = Rendezvous(b"c" * 16, Path(sys.argv[1]))
name = there.claim(0x106, "127.0.0.1", 7000)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(place: Path) -> Iterator[Child]:
    child = Child("-c", HOLDER, place)
    assert child.hear() == "ready"
    yield child
    child.kill()


def make_old(place: Path) -> None:
    for path in place.iterdir():
        os.utime(path, (1_000_000, 1_000_000))


def test_two_contexts_meet(place: Path) -> None:
    a, b = Rendezvous(GID_A, place), Rendezvous(GID_B, place)
    assert b.accept() is None
    there = a.connect(GID_B)
    here = b.accept()
    assert here is not None
    there.send(b"hello")
    assert here.recv(10) == b"hello"
    for thing in (there, here, a, b):
        thing.close()
    assert list(place.iterdir()) == []


def test_a_listener_of_another_version_is_none(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither finds the other's, so both go on to their next device; both may have the port."""
    a, b = Rendezvous(GID_A, place), Rendezvous(GID_B, place)
    mine = a.claim(TCP, "127.0.0.1", 7000)
    monkeypatch.setattr(rendezvous, "VERSION", 3)
    assert b.find(TCP, "127.0.0.1", 7000) is None
    other = b.claim(TCP, "127.0.0.1", 7000)
    assert b.find(TCP, "127.0.0.1", 7000) == GID_B
    monkeypatch.undo()
    assert a.find(TCP, "127.0.0.1", 7000) == GID_A
    for thing in (mine, other, a, b):
        thing.close()


def test_no_peer_is_met_where_none_is(place: Path) -> None:
    a = Rendezvous(GID_A, place)
    with pytest.raises(FileNotFoundError):
        a.connect(GID_B)
    a.close()


def test_a_long_path_is_no_hindrance(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100)
    a, b = Rendezvous(GID_A, place), Rendezvous(GID_B, place)
    a.connect(GID_B).close()
    a.close()
    b.close()


def test_a_name_leads_to_the_one_who_has_it(place: Path) -> None:
    a, b = Rendezvous(GID_A, place), Rendezvous(GID_B, place)
    name = a.claim(TCP, "127.0.0.1", 7000)
    assert b.find(TCP, "127.0.0.1", 7000) == GID_A
    assert a.find(TCP, "127.0.0.1", 7000) == GID_A
    assert b.find(TCP, "127.0.0.1", 7001) is None
    assert b.find(TCP + 1, "127.0.0.1", 7000) is None
    with pytest.raises(OSError) as caught:
        b.claim(TCP, "127.0.0.1", 7000)
    assert caught.value.errno == errno.EADDRINUSE
    name.close()
    name.close()
    assert b.find(TCP, "127.0.0.1", 7000) is None
    b.claim(TCP, "127.0.0.1", 7000).close()
    a.close()
    b.close()


def test_one_context_has_a_name_once(place: Path) -> None:
    a = Rendezvous(GID_A, place)
    name = a.claim(TCP, "::1", 7000)
    with pytest.raises(OSError) as caught:
        a.claim(TCP, "::1", 7000)
    assert caught.value.errno == errno.EADDRINUSE
    name.close()
    a.close()


@pytest.mark.parametrize(("wildcard", "host"), [("0.0.0.0", "127.0.0.1"), ("::", "::1")])
def test_who_listens_everywhere_is_found(place: Path, wildcard: str, host: str) -> None:
    a, b = Rendezvous(GID_A, place), Rendezvous(GID_B, place)
    name = a.claim(TCP, wildcard, 7000)
    assert b.find(TCP, host, 7000) == GID_A
    own = b.claim(TCP, host, 7000)
    assert a.find(TCP, host, 7000) == GID_B  # the closer name wins
    for thing in (name, own, a, b):
        thing.close()


def test_port_zero_takes_a_free_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = Rendezvous(GID_A, place)
    names = [a.claim(TCP, "127.0.0.1", 0) for _ in range(20)]
    assert len({name.port for name in names}) == 20
    assert all(name.port in EPHEMERAL_PORTS for name in names)
    monkeypatch.setattr(rendezvous, "EPHEMERAL_PORTS", [names[0].port])
    monkeypatch.setattr(rendezvous, "_PORT_TRIES", 1)
    with pytest.raises(OSError) as caught:
        a.claim(TCP, "127.0.0.1", 0)
    assert caught.value.errno == errno.EADDRINUSE
    for name in names:
        name.close()
    a.close()


def test_the_living_keep_their_names(place: Path, holder: Child) -> None:
    make_old(place)
    a = Rendezvous(GID_A, place)
    assert a.swept == 0
    assert a.find(TCP, "127.0.0.1", 7000) == b"c" * 16
    with pytest.raises(OSError) as caught:
        a.claim(TCP, "127.0.0.1", 7000)
    assert caught.value.errno == errno.EADDRINUSE
    a.connect(b"c" * 16).close()
    a.close()


def test_the_names_of_the_killed_are_free(place: Path, holder: Child) -> None:
    a = Rendezvous(GID_A, place)
    holder.kill()
    assert len(list(place.glob("*.listener"))) == 1
    assert a.find(TCP, "127.0.0.1", 7000) is None
    with pytest.raises(ConnectionRefusedError):
        a.connect(b"c" * 16)
    name = a.claim(TCP, "127.0.0.1", 7000)
    assert a.find(TCP, "127.0.0.1", 7000) == GID_A
    name.close()
    a.close()


def test_what_the_killed_left_is_swept(place: Path, holder: Child) -> None:
    holder.kill()
    young = Rendezvous(GID_A, place)
    assert young.swept == 0  # it may still be in the making
    young.close()
    make_old(place)
    a = Rendezvous(GID_A, place)
    assert a.swept == 2
    a.close()
    assert list(place.iterdir()) == []


def test_the_directory_is_private(place: Path) -> None:
    old = os.umask(0)
    try:
        Rendezvous(GID_A, place).close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_directory_with_rights_for_others_is_refused(place: Path, mode: int) -> None:
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(PermissionError, match="expected"):
        Rendezvous(GID_A, place)


def test_a_link_or_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(PermissionError):
            Rendezvous(GID_A, tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_the_directory_of_another_user_is_refused(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, 1234, 1234)
    with pytest.raises(PermissionError, match="owner 1234"):
        Rendezvous(GID_A, place)


def test_another_user_is_refused_root_too() -> None:
    check_user(1, 1000, own_uid=1000)
    for uid in (0, 1001, 65534):
        with pytest.raises(PermissionError):
            check_user(1, uid, own_uid=1000)


def test_the_kernel_says_who_is_there() -> None:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    check_same_user(a)
    a.close()
    b.close()


def test_both_ends_refuse_another_user(place: Path) -> None:
    def refuse(connection: socket.socket) -> None:
        check_user(1, 4321, own_uid=os.geteuid())

    a, b = Rendezvous(GID_A, place), Rendezvous(GID_B, place, check_peer=refuse)
    there = a.connect(GID_B)
    assert b.accept() is None and b.refused == 1
    assert there.recv(1) == b""
    with pytest.raises(PermissionError, match="4321"):
        b.connect(GID_A)
    for thing in (there, a, b):
        thing.close()


def test_a_backlog_that_is_full_says_try_again(place: Path) -> None:
    a, b = Rendezvous(GID_A, place), Rendezvous(GID_B, place)
    waiting: list[socket.socket] = []

    def connect_again_and_again() -> None:
        for _ in range(1000):
            waiting.append(a.connect(GID_B))

    with pytest.raises(BlockingIOError):
        connect_again_and_again()
    assert len(waiting) >= rendezvous.BACKLOG
    for thing in (*waiting, a, b):
        thing.close()


def test_the_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/5")
    assert default_directory() == Path("/run/user/5/urds-verbs")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert default_directory() == Path(f"/tmp/urds-{os.geteuid()}")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_directory() == Path(f"/tmp/urds-{os.geteuid()}")


def test_a_folder_that_cannot_be_had_is_told_with_what_chose_it(place: Path) -> None:
    """As after `su`, where the variable names the session of another user."""
    with pytest.raises(FileNotFoundError, match="have XDG_RUNTIME_DIR name a folder") as refused:
        Rendezvous(GID_A, place / "absent" / "urds-verbs")
    assert refused.value.filename == str(place / "absent" / "urds-verbs")
