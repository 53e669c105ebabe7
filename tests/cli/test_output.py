"""Tables align, JSON is JSON, ends become exit codes."""

import errno
import json
import os
import resource
import subprocess
import sys

import pytest

from tests.cli.commands import RUN_S_MAX, address, command, environment
from urds.cli.output import Column, Exit, Output, UsageError, align, guarded, reason_of
from urds.common.errors import SettingError


def test_a_column_is_as_wide_as_its_longest_cell() -> None:
    columns = [Column("Name", left=True), Column("Value", 8), Column("X")]
    assert align(columns, [("a", 1, "yes"), ("longest", 123456789, "no")]) == [
        "Name        Value   X",
        "a               1 yes",
        "longest 123456789  no",
    ]


def test_a_line_has_no_blanks_at_its_end() -> None:
    assert align([Column("A", 10, left=True)], [("b",)]) == ["A", "b"]


def test_no_cell_steers_the_terminal() -> None:
    assert align([Column("A")], [("a\x1b[2Jb\n",), ("é",)])[1:] == [" a?[2Jb?".strip(), "      é"]


def test_a_table_has_a_title_and_an_empty_line_before(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table("Things", [Column("A", 3)], [(1,), (22,)])
    assert capsys.readouterr().out == "\nThings:\n  A\n  1\n 22\n"


def test_there_is_no_escape_sequence_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    Output().line("text", "bold red")
    assert capsys.readouterr().out == "text\n"


def test_a_record_is_one_line_and_a_document_one_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Output(json_wanted=True)
    output.record({"a": 1})
    output.document({"b": [1, 2]})
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert json.loads(first) == {"a": 1}
    assert json.loads(rest) == {"b": [1, 2]}


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (KeyboardInterrupt(), Exit.INTERRUPTED, ""),
        (UsageError("count 0: must be 1 or more"), Exit.USAGE, "urds x: count 0: must be"),
        (SettingError("npaths = 3"), Exit.USAGE, "urds x: npaths = 3"),
        (OSError(98, "in use"), Exit.FAILED, "urds x: in use"),
        (TimeoutError("no answer"), Exit.FAILED, "urds x: no answer"),
    ],
)
def test_an_end_becomes_an_exit_code_and_a_line(
    failure: BaseException, code: Exit, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> Exit:
        raise failure

    assert guarded("urds x", run) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err[: len(words)]) == ("", words)
    assert printed.err.count("\n") == bool(words)


def test_our_own_mistake_is_not_hidden() -> None:
    def run() -> Exit:
        raise AssertionError

    with pytest.raises(AssertionError):
        guarded("urds x", run)


PRINTS = "from urds.cli.output import GOOD, Output; Output().line('lost 0', GOOD)"


def printed_on_a_terminal(**changes: str) -> bytes:
    """Return what a program prints to a terminal of its own."""
    ours, its = os.openpty()
    env = {key: value for key, value in environment().items() if key != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-c", PRINTS],
        check=True,
        stdout=its,
        env={**env, "TERM": "xterm", **changes},
        timeout=RUN_S_MAX,
    )
    os.close(its)
    printed = os.read(ours, 1000)
    os.close(ours)
    return printed


def test_a_terminal_gets_colours() -> None:
    assert printed_on_a_terminal() == b"\x1b[32mlost 0\x1b[0m\r\n"


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_gets_no_colours_where_they_are_not_wanted(changes: dict[str, str]) -> None:
    assert printed_on_a_terminal(**changes) == b"lost 0\r\n"


def test_a_reader_that_leaves_ends_the_tool_without_noise() -> None:
    ours, its = os.pipe()
    os.close(ours)
    done = subprocess.run(
        command("without", "ping", "-c", "1", "-i", "10ms", "-I", address(1), address(9)),
        check=False,
        stdout=its,
        stderr=subprocess.PIPE,
        env=environment(),
        timeout=RUN_S_MAX,
    )
    os.close(its)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("argument", "name"),
    [("--version", b"urds"), ("--help", b"urds"), ("", b"urds"), ("config", b"urds config")],
)
def test_a_full_disk_is_said_on_one_line(argument: str, name: bytes, unbuffered: str) -> None:
    environ = environment({"PYTHONUNBUFFERED": unbuffered})
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("without", *argument.split()),
            check=False, stdout=full, stderr=subprocess.PIPE, env=environ, timeout=RUN_S_MAX,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, name + b": No space left on device\n")


@pytest.mark.parametrize(
    "arguments", ["config", "send -w 0 {peer} 4000 x", "ping -c 1 -i 1ms {peer}"]
)
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_closed_is_no_traceback(arguments: str, closed: str) -> None:
    """The exit code is what it would be; the stream that is open has no word of Python's."""
    words = arguments.format(peer=address(9)).split()
    line = f'exec "$@" {closed}'
    done = subprocess.run(
        ["bash", "-c", line, "bash", *command("without", *words)],
        check=False, capture_output=True, text=True, env=environment(), timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == (0 if words[0] == "config" else 1)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_the_reason_of_a_failure_has_its_file_and_what_to_do_without_descriptors() -> None:
    absent = FileNotFoundError(errno.ENOENT, "No such file or directory", "/absent/urds-verbs")
    assert reason_of(absent) == "/absent/urds-verbs: No such file or directory"
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = f"Too many open files, at most {limit}: raise the limit by `ulimit -n`"
    assert reason_of(OSError(errno.EMFILE, os.strerror(errno.EMFILE))) == said
    assert reason_of(OSError(errno.EMFILE, "user 7 has 9 sockets")) == "user 7 has 9 sockets"
