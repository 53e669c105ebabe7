"""`urds node`: what it says without a node, of a wrong configuration, and to a running one."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, urds
from tests.rds.node.conftest import WAIT_S, StartNode, start_node  # noqa: F401 - a fixture
from tests.support import planes
from urds.rds.node import commands
from urds.rds.plane.choose import PYTHON
from urds.rds.runtime import node_requests

UNITS = ROOT / "deploy" / "systemd"


def test_without_a_node_there_is_one_line(tmp_path: Path) -> None:
    place = str(tmp_path / "node.sock")
    for action in ("status", "upgrade", "stop"):
        done = urds("node", action, "--socket", place)
        assert (done.code, done.out) == (1, "")
        start = f"`urds node --socket {place}`"
        assert done.err == f"urds node: no node at {place}: start one with {start}\n"


def test_what_an_ended_node_left_is_no_node(tmp_path: Path) -> None:
    place = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ended:
        ended.bind(str(place))
    done = urds("node", "stop", "--socket", str(place))
    assert (done.code, done.err) == (
        1,
        f"urds node: no node at {place}: start one with `urds node --socket {place}`\n",
    )


def test_a_node_that_does_not_answer_is_told_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose worker hangs: only a signal to the supervisor goes past it."""
    place = str(tmp_path / "node.sock")
    monkeypatch.setitem(node_requests.ask.__kwdefaults__, "answer_wait_s", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(place)
        silent.listen()
        for command in (commands.status, commands.upgrade, commands.stop):
            with pytest.raises(TimeoutError) as late:
                command(place)
            assert late.value.strerror == (
                f"no answer from the node at {place}: its worker hangs or is stopped,"
                " SIGHUP to its supervisor replaces it"
            )


def test_what_is_no_socket_is_told(tmp_path: Path) -> None:
    done = urds("node", "status", "--socket", str(tmp_path))
    assert (done.code, done.err) == (
        1,
        f"urds node: {tmp_path} is no socket, so no node is there\n",
    )


@pytest.mark.parametrize(
    "word", ["--config=x.toml", "--check-config", "--idle-exit-s=5", "--log=json", "--verbose"]
)
def test_an_action_refuses_what_only_a_start_obeys(word: str) -> None:
    """A configuration is read where a node starts, so `upgrade --config` would not be obeyed."""
    done = urds("node", "upgrade", word)
    assert done.code == 2
    name = word.partition("=")[0]
    assert done.err == f"urds node: upgrade {name}: that option is for a node that starts here\n"


def test_the_places_that_were_looked_at_are_named(tmp_path: Path) -> None:
    if Path("/run/urds/node.sock").exists():
        pytest.skip("a node of this host is there")
    done = urds("node", "status", changes={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.code == 1
    assert f"no node at /run/urds/node.sock nor at {tmp_path}/urds/node-" in done.err


def test_without_the_compiled_plane_it_ends_with_one_line(tmp_path: Path) -> None:
    place = str(tmp_path / "node.sock")
    done = urds("node", "--socket", place, changes={"URDS_IMPL": PYTHON})
    assert (done.code, done.out) == (2, "")
    assert done.err == "urds node: a node needs the compiled data plane, and URDS_IMPL=python\n"
    assert not Path(place).exists()


@pytest.mark.skipif(planes.in_use() != PYTHON, reason="its environment names the other plane")
def test_without_the_compiled_module_it_says_how_to_get_it(tmp_path: Path) -> None:
    done = urds("node", "--socket", str(tmp_path / "n"), changes={"URDS_IMPL": ""})  # with -S
    assert done.code == 2
    assert "urds_native is not installed" in done.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("begin",), "'begin': there are status, upgrade, stop"),
        (("--log", "xml"), "must be one of logfmt, json"),
        (("--idle-exit-s", "-1"), "must be from 0 to 86400"),
        (("--system", "--socket", "/x"), "--socket and --system: give one of them"),
        (("--socket", "x"), "--socket x: must be an absolute path"),
        (("status", "--socket", "x"), "--socket x: must be an absolute path"),
        (("--json",), "a node that starts here has --log json"),
        (("--check-config",), "give the file with --config"),
    ],
)
def test_wrong_arguments_are_one_line(words: tuple[str, ...], reason: str) -> None:
    done = urds("node", *words)
    assert done.code == 2
    assert reason in done.err


def test_a_configuration_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[quota]\nsockets = 5\n")
    done = urds("node", "--check-config", "--config", str(file))
    assert (done.code, done.out) == (0, f"{file}: valid\n")
    file.write_text("[quota]\nsockets = -5\n")
    for words in (("--check-config",), ("--socket", str(tmp_path / "node.sock"))):
        done = urds("node", *words, "--config", str(file))
        assert done.code == 2
        text = f"urds node: {file}: quota.sockets = -5: must be a whole number from 1 to 1048576\n"
        assert done.err == text


def test_a_place_that_cannot_be_had_is_named(start_node: StartNode, tmp_path: Path) -> None:  # noqa: F811 - a fixture
    for place, reason in (
        ("node.sock", "must be an absolute path"),
        (f"/{'x' * 107}", "longer than the 107 bytes"),
        (str(tmp_path / "absent" / "node.sock"), "there is no such folder to put it in"),
    ):
        node = start_node(waits=False, place=place)
        code = node.process.wait(WAIT_S)
        said = node.log.read_text()
        assert reason in said and place in said
        assert code == (1 if "absent" in place else 2)
        assert said.count("\n") == 1


def test_a_running_node_is_asked(start_node: StartNode) -> None:  # noqa: F811 - a fixture
    node = start_node()
    end = node.open()
    node.bind(end)
    done = urds("node", "status", "--socket", node.place)
    assert done.code == 0
    assert f"node at {node.place}" in done.out
    assert "1 sockets, 1 bound" in done.out
    found = json.loads(urds("node", "status", "--json", "--socket", node.place).out)
    assert (found["sockets"], found["deaths"], found["starts"]) == (1, 0, 1)
    upgraded = json.loads(urds("node", "upgrade", "--json", "--socket", node.place).out)
    assert upgraded["before"] == found["worker"] != upgraded["worker"]
    done = urds("node", "stop", "--socket", node.place)
    assert done.out == f"the node at {node.place} has stopped\n"
    assert node.process.wait(WAIT_S) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_as_closed_as_it_can_be() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(UNITS / "urds-node.service")],
        capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    level = next(line for line in done.stdout.splitlines() if "Overall exposure level" in line)
    assert float(level.rpartition(": ")[2].split()[0]) <= 1.5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_units_have_no_mistake(tmp_path: Path) -> None:
    names = ["urds-node.socket", "urds-node.service"]
    for name in names:  # where the program would be, this interpreter's own command may not be
        text = (UNITS / name).read_text()
        (tmp_path / name).write_text(text.replace("/usr/bin/urds ", "/bin/true "))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in names)],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_info_asks_the_node_of_the_user(
    start_node: StartNode,  # noqa: F811 - a fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from urds.rds.runtime import places

    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    places.make_folder(places.user_place())
    node = start_node(place=places.user_place())
    worker = node.status()["worker"]
    variables = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "URDS_INFO_DIRECTORY": "auto"}
    done = urds("info", "--json", "-p", "--pid", str(worker), changes=variables)
    (process,) = json.loads(done.out)["processes"]
    assert (process["program"], process["pid"]) == ("stand-in", worker)
    variables["URDS_INFO_DIRECTORY"] = str(tmp_path)  # a directory that is named is all
    assert urds("info", "--pid", str(worker), changes=variables).code == 1
