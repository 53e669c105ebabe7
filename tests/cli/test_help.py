"""Help, versions, wrong words and completion: the same commands with and without the extra."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import EXTRAS, RUN_S_MAX, address, command, environment, urds
from urds.cli.main import ABOUT, GROUPS
from urds.cli.parser import build

COMMANDS = [
    " ".join(filter(None, (group.name, name))) for group in GROUPS for name in group.commands
]
PLACES = ["", *(group.name for group in GROUPS if group.name), *COMMANDS]
SNAPSHOTS = Path(__file__).parent / "help"
BOTH = pytest.mark.parametrize("extra", EXTRAS)
OPTION = re.compile(r"^ +(--?[a-zA-Z][\w-]*(?:, --?[a-zA-Z][\w-]*)*)")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def recorded(place: str) -> Path:
    """Return the file with the help of a command, which a test compares with it."""
    return SNAPSHOTS / f"{place.replace(' ', '-') or 'urds'}.txt"


def options(text: str) -> list[str]:
    """Return the flags that a help text lists, in order."""
    return [found[1] for line in text.splitlines() if (found := OPTION.match(line))]


def help_on_a_terminal(*words: str) -> str:
    """Return what `--help` prints to a terminal, with the extra."""
    ours, its = os.openpty()
    env = {key: value for key, value in environment().items() if key != "NO_COLOR"}
    with subprocess.Popen(
        command("with", *words, "--help"), stdout=its, env={**env, "TERM": "xterm"}
    ) as child:
        os.close(its)
        printed = b""
        try:
            while piece := os.read(ours, 1 << 16):
                printed += piece
        except OSError:  # EIO: the child has closed its side
            pass
        assert child.wait(RUN_S_MAX) == 0
    os.close(ours)
    return printed.decode().replace("\r\n", "\n")


def words_of(text: str) -> list[str]:
    """Return the words of a help text; plain lines end behind a hyphen too."""
    return re.sub(r"-\n +", "-", text).split()


@pytest.mark.parametrize("place", PLACES)
def test_the_help_is_the_one_on_record(place: str) -> None:
    """Write it anew: `TEST_WRITE_HELP=1 make test`, or this file alone with pytest."""
    done = urds(*place.split(), "--help", changes={"COLUMNS": "80"})
    assert (done.code, done.err) == (0, "")
    snapshot = recorded(place)
    if os.environ.get("TEST_WRITE_HELP"):
        snapshot.write_text(done.out, encoding="utf-8")
    assert done.out == snapshot.read_text(encoding="utf-8")


def test_each_snapshot_belongs_to_a_command() -> None:
    assert set(SNAPSHOTS.iterdir()) == set(map(recorded, PLACES))


@pytest.mark.parametrize("place", PLACES)
def test_the_options_are_the_same_with_and_without_the_extra(place: str) -> None:
    """A terminal gets the same flags, words and examples in colours."""
    words = place.split()
    plain = recorded(place).read_text(encoding="utf-8")  # as it is without the extra
    piped = urds(*words, "--help", extra="with", changes={"COLUMNS": "80"})
    more = "\n\nColours and completion: in a checkout, pip install '.[cli]'"
    assert piped.out == plain.replace(more, "")
    coloured = help_on_a_terminal(*words)
    assert ESCAPE.search(coloured)
    assert options(ESCAPE.sub("", coloured)) == options(plain)
    assert words_of(ESCAPE.sub("", coloured)) == words_of(piped.out)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_of_the_command(name: str) -> None:
    out = recorded(name).read_text(encoding="utf-8")
    assert len(re.findall(rf"^ +urds {name}\b", out, re.MULTILINE)) >= 2
    assert "--json" in options(out)


def test_every_line_of_help_fits_80_columns() -> None:
    long = {
        path.name: line
        for path in SNAPSHOTS.iterdir()
        for line in path.read_text(encoding="utf-8").splitlines()
        if len(line) > 80 and "urds " not in line  # an example is one line, to be copied
    }
    assert long == {}


@BOTH
@pytest.mark.parametrize("place", ["", "dask", "dat", "rsocket", "verbs"])
def test_without_a_command_the_help_is_printed(extra: str, place: str) -> None:
    """With exit code 0, as cargo does."""
    done = urds(*place.split(), extra=extra)
    assert (done.code, done.err) == (0, "")
    assert done.out == urds(*place.split(), "--help", extra=extra).out


def test_only_the_module_of_the_command_is_loaded() -> None:
    program = (
        "import sys; sys.argv[1:] = ['info', '--pid', '0']; from urds.cli import main;"
        " main.main(); print(*sys.modules)"
    )
    done = subprocess.run(
        [*command("without")[:2], "-c", program], check=True, capture_output=True, text=True,
        env=environment(), timeout=RUN_S_MAX,
    )  # fmt: skip
    modules = set(done.stdout.split())
    assert "urds.cli.rds.info" in modules
    assert not modules & {"urds.cli.rds.ping", "urds.verbs", "urds.dat", "rich", "argcomplete"}


def test_all_commands_can_be_built_at_once() -> None:
    """Names are unique, and each module has its command."""
    parser = build(ABOUT, GROUPS)
    assert parser.parse_args(["ping", "10.0.0.2"]).target == "10.0.0.2"
    assert parser.parse_args(["rsocket", "rcopy", "a", "--serve"]).is_server is True


@BOTH
@pytest.mark.parametrize("arguments", [("--version",), ("info", "--version")])
def test_the_version_is_one_line(extra: str, arguments: tuple[str, ...]) -> None:
    done = urds(*arguments, extra=extra)
    assert done.code == 0
    plane = r"\((python plane: [^()]+|native plane)\)"
    assert re.fullmatch(rf"urds \S+.* {plane}, Python 3\.\d+\.\d+\S*, Linux \S+\n", done.out)


@BOTH
def test_the_version_tells_the_plane(extra: str) -> None:
    out = urds("--version", extra=extra, changes={"URDS_IMPL": "python"}).out
    assert "(python plane: URDS_IMPL=python)" in out
    done = urds("--version", extra=extra, changes={"URDS_IMPL": "rusty"})
    assert (done.code, done.err) == (0, "")
    assert "(no plane: URDS_IMPL = 'rusty'" in done.out


@pytest.mark.parametrize("plane", ["rusty", "native"])
@pytest.mark.parametrize("arguments", [("demo",), ("ping", "-c", "1", "127.9.9.9")])
def test_a_plane_that_is_not_here_is_one_line(arguments: tuple[str, ...], plane: str) -> None:
    """Without the extra no installed module is seen."""
    done = urds(*arguments, changes={"URDS_IMPL": plane})
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"urds {arguments[0]}: URDS_IMPL")
    assert done.err.count("\n") == 1


@BOTH
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("nothing",),
            "urds: error: no command 'nothing'; there are demo, ping, send, recv, in",
        ),
        (("pong",), "urds: error: no command 'pong'; did you mean 'ping'?"),
        (("rsocket", "rcoppy"), "urds rsocket: error: no command 'rcoppy'; did you mean 'rcopy'?"),
        (("demo", "--nothing"), "urds demo: error: unrecognized arguments: --nothing"),
        (("demo", "--hosts", "many"), "urds demo: error: argument --hosts: invalid int value"),
        (("ping",), "urds ping: error: the following arguments are required: HOST"),
        (("ping", "-i", "x", "::1"), "error: argument -i/--interval: interval 'x': a number with"),
    ],
)
def test_wrong_usage_is_exit_code_2(extra: str, arguments: tuple[str, ...], words: str) -> None:
    done = urds(*arguments, extra=extra)
    assert (done.code, done.out) == (2, "")
    usage, error = done.err.splitlines()
    assert usage.startswith("usage: urds")
    assert words in error


@BOTH
def test_a_bad_setting_is_wrong_usage(extra: str) -> None:
    done = urds("ping", "-c", "1", "127.0.0.9", extra=extra, changes={"URDS_NPATHS": "3"})
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "urds ping: npaths = '3', in variable URDS_NPATHS: must be one of 1, 2, 4, 8\n"
    )


# An example of each command that would begin its work; the first that can say no wins.
WORK = {
    "ping": "127.9.9.9", "send": "127.9.9.9 4000 a", "recv": "127.9.9.9 4000",
    "rsocket rcopy": "README.md --into /tmp", "run": "true",
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_judges_the_settings_before_it_begins(name: str) -> None:
    """Before a child or a socket is there: one line, no traceback."""
    words = [*name.split(), *WORK.get(name, "").split()]
    done = urds(*words, changes={"URDS_WMEM_MAX": "5X"})
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"urds {name}: wmem_max = '5X', in variable URDS_WMEM_MAX: must be")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [("demo", "--hosts", "2", "--seconds", "0.2", "--first", address(50)), ("config",)],
)
def test_an_unknown_variable_is_named_once(arguments: tuple[str, ...]) -> None:
    """Not by each child again; those that set no tunable and are ours are known."""
    changes = {"URDS_SNDBUF": "1", "URDS_RSOCKET_DEVICES": "shm0", "URDS_IMPL": "python"}
    done = urds(*arguments, changes=changes)
    assert done.code == 0
    assert done.err == f"urds {arguments[0]}: variable URDS_SNDBUF: no such setting, ignored\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("urds p", ["ping "]),
        ("urds rsocket r", ["rstream", "riostream", "rcopy"]),
        ("urds stress --rdma-use-f", ["--rdma-use-fence "]),
        ("urds dat load --j", ["--json "]),
    ],
)
def test_a_shell_completes_words(line: str, words: list[str], tmp_path: Path) -> None:
    """As the line that `register-python-argcomplete` prints asks for them."""
    found = tmp_path / "words"
    asked = {
        "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
        "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
    }  # fmt: skip
    done = urds(extra="with", changes=asked)
    assert done.code == 0, done.err
    assert sorted(found.read_text().split("\n")) == sorted(words)


def test_without_the_extra_the_help_says_how_to_get_more() -> None:
    assert "in a checkout, pip install '.[cli]'" in urds("--help").out
    assert "in a checkout, pip install '.[cli]'" not in urds("--help", extra="with").out


def test_help_comes_on_the_narrowest_terminal() -> None:
    done = subprocess.run(
        command("without", "ping", "--help"), check=False, capture_output=True, text=True,
        env={**environment(), "COLUMNS": "1"}, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: urds ping")
