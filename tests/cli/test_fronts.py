"""Two fronts, one command: the same tools, options, exit codes and versions."""

import re

import pytest

from tests.cli.commands import urds

TOOLS = (
    *("demo", "ping", "info", "stress", "dat demo", "dat test", "dat load", "verbs bench"),
    *("rsocket rstream", "rsocket riostream", "rsocket udpong", "rsocket rcopy", "rsocket bench"),
)
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
BOTH = pytest.mark.parametrize("front", ["typer", "plain"])


def options(text: str) -> set[str]:
    """Return the options that a help text lists, without its examples and prose."""
    lines = [line.strip(" │") for line in text.splitlines()]
    return {found for line in lines if line[:1] == "-" for found in OPTION.findall(line)}


@pytest.mark.parametrize("tool", TOOLS)
def test_both_fronts_know_the_same_options(tool: str) -> None:
    typer, plain = (urds(*tool.split(), "--help", front=front) for front in ("typer", "plain"))
    assert (typer.code, plain.code) == (0, 0)
    assert options(typer.out) == options(plain.out)


@BOTH
@pytest.mark.parametrize("tool", TOOLS)
def test_help_shows_examples(tool: str, front: str) -> None:
    done = urds(*tool.split(), "--help", front=front)
    assert (done.code, done.err) == (0, "")
    assert len(re.findall(rf"^ +urds {tool}\b", done.out, re.MULTILINE)) >= 2
    assert not re.search(r"\x1b", done.out)


@BOTH
def test_help_lists_the_tools(front: str) -> None:
    for *group, name in map(str.split, TOOLS):
        out = urds(*group, "--help", front=front).out
        assert re.search(rf"^[ │]+{name}( |$)", out, re.MULTILINE), out


@BOTH
@pytest.mark.parametrize("arguments", [("--version",), ("info", "--version")])
def test_the_version_is_one_line(front: str, arguments: tuple[str, ...]) -> None:
    done = urds(*arguments, front=front)
    assert done.code == 0
    plane = r"\((python plane: [^()]+|native plane)\)"
    assert re.fullmatch(rf"urds \S+.* {plane}, Python 3\.\d+\.\d+\S*, Linux \S+\n", done.out)


@BOTH
def test_the_version_tells_the_plane(front: str) -> None:
    out = urds("--version", front=front, changes={"URDS_IMPL": "python"}).out
    assert "(python plane: URDS_IMPL=python)" in out
    done = urds("--version", front=front, changes={"URDS_IMPL": "rusty"})
    assert (done.code, done.err) == (0, "")
    assert "(no plane: URDS_IMPL = 'rusty'" in done.out


@pytest.mark.parametrize("plane", ["rusty", "native"])
@pytest.mark.parametrize("arguments", [("demo",), ("ping", "-c", "1", "127.9.9.9")])
def test_a_plane_that_is_not_here_is_one_line(arguments: tuple[str, ...], plane: str) -> None:
    """The plain front sees no installed module."""
    done = urds(*arguments, changes={"URDS_IMPL": plane})
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"urds {arguments[0]}: URDS_IMPL")
    assert done.err.count("\n") == 1


@BOTH
@pytest.mark.parametrize(
    "arguments", [("nothing",), ("demo", "--nothing"), ("demo", "--hosts", "many"), ("ping",), ()]
)
def test_wrong_usage_is_exit_code_2(front: str, arguments: tuple[str, ...]) -> None:
    done = urds(*arguments, front=front)
    assert done.code == 2
    assert "Traceback" not in done.err
    if arguments[:1] == ("demo",):
        assert "usage: urds demo" in done.err.lower()


@BOTH
def test_a_bad_setting_is_wrong_usage(front: str) -> None:
    done = urds("ping", "-c", "1", "127.0.0.9", front=front, changes={"URDS_NPATHS": "3"})
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "urds ping: npaths = '3', in variable URDS_NPATHS: must be one of 1, 2, 4, 8\n"
    )


def test_typer_completes() -> None:
    done = urds(front="typer", changes={"_URDS_COMPLETE": "complete_bash", "COMP_WORDS": "urds p",
                                        "COMP_CWORD": "1"})  # fmt: skip
    assert done.out.split() == ["ping"]


def test_without_typer_the_help_says_how_to_get_more() -> None:
    assert "pip install 'urds[cli]'" in urds("--help").out
