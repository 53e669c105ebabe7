"""Where nodes are, and which place a program keeps its addresses at."""

import os
import socket
from pathlib import Path

import pytest

from urds.rds.node import commands
from urds.rds.plane import choose as planes
from urds.rds.plane.choose import Choice
from urds.rds.runtime import attached, inprocess, places
from urds.rds.runtime.process import Process
from urds.rds.settings import Settings


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have this user's and the host's places below the test's folder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(places, "SYSTEM_PLACE", str(tmp_path / "host.sock"))
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path


def listening(place: str) -> socket.socket:
    """Listen as a node does."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(place)
    made.listen(1)
    return made


def test_a_users_place_names_its_namespace(tmp_path: Path) -> None:
    assert places.user_place() == f"{tmp_path}/run/urds/node-{places.namespace()}.sock"
    assert int(places.namespace(), 16) > 0


def test_without_a_runtime_directory_it_is_in_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert places.user_folder() == f"/tmp/urds-{os.getuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "run")  # relative: as without
    assert places.user_folder() == f"/tmp/urds-{os.getuid()}"


def test_the_hosts_node_comes_first(tmp_path: Path) -> None:
    assert places.find() is None
    places.make_folder(places.user_place())
    with listening(places.user_place()):
        assert places.find() == places.user_place()
        with listening(places.SYSTEM_PLACE):
            assert places.find() == places.SYSTEM_PLACE
        assert places.find() == places.user_place()  # what an ended node left is no node
    assert places.find() is None


def test_a_place_whose_queue_is_full_is_served(tmp_path: Path) -> None:
    with listening(places.SYSTEM_PLACE), socket.socket(socket.AF_UNIX, 5) as first:
        first.connect(places.SYSTEM_PLACE)
        assert places.is_served(places.SYSTEM_PLACE)
        assert places.is_served(places.SYSTEM_PLACE)


def test_a_folder_that_others_can_enter_is_none_of_ours(tmp_path: Path) -> None:
    place = places.user_place()
    places.make_folder(place)
    Path(place).parent.chmod(0o755)
    with listening(place):
        assert places.find() is None
        assert not list(places.served())  # nor does `urds info` ask there
        with pytest.raises(FileNotFoundError, match="is not asked: its folder is not of this user"):
            commands.find(None)
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        places.make_folder(place)


def chosen(monkeypatch: pytest.MonkeyPatch, plane: str, *, attaches: bool, node: str) -> str:
    """Return which backend a process makes."""
    monkeypatch.setattr(planes, "choose", lambda: Choice(plane, "a test"))
    monkeypatch.setattr(planes, "attaches", lambda: attaches)
    made: list[str] = []

    class Made:
        def __init__(self, _: Settings, second: object = None) -> None:
            made.append(second if isinstance(second, str) else "inprocess")

        def warn_of(self, _: object) -> None:
            pass

    monkeypatch.setattr(attached, "Attached", Made)
    monkeypatch.setattr(inprocess, "InProcess", Made)
    process = Process()
    process.configure({"node": node})
    process.backend()
    return made[0]


@pytest.mark.parametrize(
    ("plane", "attaches", "node", "expected"),
    [
        ("native", True, "auto", "host"),
        ("native", True, "inprocess", "inprocess"),
        ("native", False, "auto", "inprocess"),  # of an older build
        ("python", False, "auto", "inprocess"),
        ("native", True, "/somewhere/else", "/somewhere/else"),
    ],
)
def test_which_place_a_process_takes(
    monkeypatch: pytest.MonkeyPatch, plane: str, attaches: bool, node: str, expected: str
) -> None:
    with listening(places.SYSTEM_PLACE):
        found = chosen(monkeypatch, plane, attaches=attaches, node=node)
    assert found == (places.SYSTEM_PLACE if expected == "host" else expected)


def test_without_a_node_addresses_are_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, "native", attaches=True, node="auto") == "inprocess"


@pytest.mark.parametrize(("plane", "reason"), [("python", "a test"), ("native", "cannot attach")])
def test_a_node_that_is_named_needs_the_compiled_plane(
    monkeypatch: pytest.MonkeyPatch, plane: str, reason: str
) -> None:
    with pytest.raises(OSError, match=reason) as refused:
        chosen(monkeypatch, plane, attaches=False, node="/x")
    assert "node = '/x'" in str(refused.value)
