"""`urds dat demo` and `urds dat test`, run as a user runs them."""

import json

import pytest

from tests.cli.commands import urds


@pytest.mark.parametrize("front", ["typer", "plain"])
def test_the_demo_prints_the_example_of_the_page_for_both_strategies(front: str) -> None:
    done = urds("dat", "demo", front=front)
    assert (done.code, done.err) == (0, "")
    starts_23 = [line.split()[-5:] for line in done.out.splitlines() if line.startswith("23 st")]
    assert starts_23 == [["3", "5", "2", "9", "12"], ["5", "5", "0", "7", "12"]]
    assert "Every count is the one of the manual page's example." in done.out


def test_the_demo_as_json_says_what_was_expected() -> None:
    rows = json.loads(urds("dat", "demo", "--json").out)
    assert len(rows) == 18
    assert all(row["as_expected"] for row in rows)


@pytest.mark.parametrize("ia_name", ["shm0", "tcp0", "udp0"])
@pytest.mark.parametrize("more", [(), ("-c", "-D"), ("-p", "-b", "5000")], ids=" ".join)
def test_e1_two_processes_pass_dtests_steps(ia_name: str, more: tuple[str, ...]) -> None:
    done = urds("dat", "test", "-P", ia_name, "-t", "--port", "21301", *more)
    assert (done.code, done.err) == (0, ""), done.out
    lines = done.out.splitlines()
    assert lines[-1] == "PASSED"
    for name in ("open", "PZ create", "LMR create", "EVD create", "EP create", "connect", "close"):
        assert any(line.startswith(name) for line in lines), name
    for name in ("RDMA write", "RDMA read", "ping-pong"):
        assert any(line.startswith(name) for line in lines), name


@pytest.mark.parametrize("more", [("-w",), ("-w", "-u"), ("-W", "-D")], ids=" ".join)
def test_writes_alone_pass(more: tuple[str, ...]) -> None:
    done = urds("dat", "test", "--json", "--port", "21302", *more)
    found = json.loads(done.out)
    assert (done.code, found["passed"], found["failure"]) == (0, True, "")
    assert [one["count"] for one in found["transfers"]] == [10]


@pytest.mark.parametrize("ia_name", ["shm0", "tcp0", "udp0"])
def test_e3_transactions_move_what_they_say(ia_name: str) -> None:
    done = urds("dat", "load", "-T", "T", "-P", ia_name, "-i", "5", "-w", "3", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    counts = {one["operation"]: (one["count"], one["octets"]) for one in found["tallies"]}
    assert counts == {"SR": (30, 30 * 4096), "RR": (15, 15 * 4096), "RW": (15, 15 * 4096)}


@pytest.mark.parametrize("more", [(), ("-o", "RR", "-q")], ids=" ".join)
def test_e3_performance_prints_its_figures(more: tuple[str, ...]) -> None:
    done = urds("dat", "load", "-T", "P", "-i", "5", *more)
    assert (done.code, done.err) == (0, "")
    assert "with a full pipeline" in done.out
    assert [line.split()[0] for line in done.out.splitlines()[-3:]] == ["latency", "post", "reap"]


def test_e3_limits_are_reached_and_released() -> None:
    done = urds("dat", "load", "-T", "L", "-m", "70", "--json")
    found = json.loads(done.out)
    assert (done.code, found["all_released"]) == (0, True)
    assert set(found["limits"].values()) == {70}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-b", "0"), 2, "-b 0, from 1 to"),
        (("-s", "-h", "127.0.0.1"), 2, "either -s, or -h"),
        (("-P", "nosuch"), 2, "-P nosuch, there are "),
        (("-P", "tcp0", "-h", "127.0.0.1", "--port", "21303"), 1, "NON_PEER_REJECTED"),
    ],
)
def test_what_a_test_cannot_do_is_said(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = urds("dat", "test", *arguments)
    assert done.code == code
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("-T", "X"), "-T X, one of"), (("-o", "SR"), "-o SR, one of"), (("-w", "0"), "-w 0, from 1")],
)
def test_a_load_that_cannot_be_is_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = urds("dat", "load", *arguments)
    assert (done.code, words in done.err) == (2, True)
