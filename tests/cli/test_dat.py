"""`urds dat demo` and `urds dat test`, run as a user runs them."""

import json
import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.commands import EXTRAS, RUN_S_MAX, interrupt, started, urds
from tests.support.ports import free_port
from urds import dat
from urds.cli.dat import load as dat_load
from urds.cli.dat import test as dat_test
from urds.cli.output import Exit


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_demo_prints_the_example_of_the_page_for_both_strategies(extra: str) -> None:
    done = urds("dat", "demo", extra=extra)
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
    done = urds("dat", "test", "-P", ia_name, "-t", "--port", str(free_port()), *more)
    assert (done.code, done.err) == (0, ""), done.out
    lines = done.out.splitlines()
    assert lines[-1] == "PASSED"
    made = ["PZ", "LMR", "EVD", "EP", *(["CNO"] if "-c" in more else [])]
    calls = [f"{kind} {call}" for kind in made for call in ("create", "free")]
    for name in ("open", *calls, "connect", "close", "TOTAL"):
        assert any(line.startswith(name) for line in lines), name
    for name in ("RDMA write", "RDMA read", "ping-pong"):
        assert any(line.startswith(name) for line in lines), name


@pytest.mark.parametrize("more", [("-w",), ("-w", "-u"), ("-W", "-D")], ids=" ".join)
def test_writes_alone_pass(more: tuple[str, ...]) -> None:
    done = urds("dat", "test", "--json", "--port", str(free_port()), *more)
    found = json.loads(done.out)
    assert (done.code, found["passed"], found["failure"]) == (0, True, "")
    assert [one["count"] for one in found["transfers"]] == [10]


@pytest.mark.parametrize(
    ("more", "sizes"),
    [
        (("-a", "-b", "100"), [1, 2, 4, 8, 16, 32, 64]),
        (("-i", "24"), [24, 48]),
        (("-a", "-i", "32"), [32, 64]),
    ],
)
def test_answered_writes_grow_up_to_the_size(more: tuple[str, ...], sizes: list[int]) -> None:
    done = urds("dat", "test", "--json", "--port", str(free_port()), "-W", "-D", *more)
    found = json.loads(done.out)
    assert (done.code, found["failure"]) == (0, "")
    assert [one["size_bytes"] for one in found["transfers"]] == sizes


def test_a_server_and_its_client_both_say_how_it_went() -> None:
    """The host may be a name; `-v` tells the addresses that both endpoints have."""
    port = str(free_port())
    arguments = ("dat", "test", "-P", "tcp0", "-v", "--port", port)
    with started(*arguments, "-s") as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"server: tcp0 at 127.0.0.1, qualifier {port}\n"
        client = urds(*arguments, "-h", "localhost")
        served, _ = server.communicate(timeout=RUN_S_MAX)
    assert (server.returncode, client.code, client.err) == (0, 0, "")
    assert served.endswith("\nPASSED\n")
    assert client.out.endswith("\nPASSED\n")
    ports = {out: re.findall(r"127\.0\.0\.1 port (\d+)", out) for out in (served, client.out)}
    assert ports[served] == ports[client.out][::-1]
    assert port in ports[served]


def test_a_client_that_fails_takes_its_server_along(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server would wait for the client two minutes."""
    monkeypatch.setattr(dat_test, "_run_side", lambda _options: Exit.FAILED)
    monkeypatch.setattr(dat_test, "_LAST_WORD_S", 0.1)
    begin_s = time.monotonic()
    assert dat_test.run(dat_test.DatTestOptions(conn_qual=free_port())) is Exit.FAILED
    assert capsys.readouterr().err == "", "the server did start"
    assert time.monotonic() - begin_s < RUN_S_MAX


def test_a_server_without_clients_ends_by_ctrl_c() -> None:
    done = interrupt("dat", "test", "-s", "--port", str(free_port()), after="server:")
    assert (done.code, done.err) == (130, "")


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_letter_of_dtest_for_help(extra: str) -> None:
    letter, word = (urds("dat", "test", flag, extra=extra) for flag in ("-U", "--help"))
    assert (letter.code, letter.out) == (0, word.out)


@pytest.mark.parametrize("tool", ["test", "load"])
def test_a_registry_that_cannot_be_read_is_wrong_usage(tool: str) -> None:
    done = urds("dat", tool, changes={"DAT_OVERRIDE": "/nothing/here"})
    assert (done.code, done.out) == (2, "")
    assert done.err == f"urds dat {tool}: /nothing/here: No such file or directory\n"


@pytest.mark.parametrize("ia_name", ["shm0", "tcp0", "udp0"])
def test_e3_transactions_move_what_they_say(ia_name: str) -> None:
    done = urds("dat", "load", "-T", "T", "-P", ia_name, "-i", "5", "-w", "3", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    counts = {one["operation"]: (one["count"], one["bytes"]) for one in found["counters"]}
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


def test_the_last_port_is_no_limit_of_service_points(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Qualifiers behind it are folded: the next one that is taken is refused."""
    monkeypatch.setattr(dat_load, "_QUALS", range(65_530, 1 << 16))
    options = dat_load.DatLoadOptions(kind="L", attempts=20, json_wanted=True)
    assert dat_load.run(options) == 0
    assert json.loads(capsys.readouterr().out)["limits"]["rsp"] == 20


def test_qualifiers_that_others_have_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of another run at the same time."""
    with ExitStack() as others:
        taken = [others.enter_context(dat.open("shm0")) for _ in range(2)]
        points = [
            others.enter_context(ia.listen(evd=ia.create_evd(4, dat.EvdFlag.CR))) for ia in taken
        ]
        first = min(point.conn_qual for point in points)
        monkeypatch.setattr(dat_load, "_QUALS", range(first, 1 << 16))
        options = dat_load.DatLoadOptions(kind="L", attempts=20, json_wanted=True)
        assert dat_load.run(options) == 0
        assert json.loads(capsys.readouterr().out)["limits"]["rsp"] == 20


@pytest.mark.parametrize("tool", ["test", "load"])
def test_a_device_that_is_not_there_is_named(tool: str, tmp_path: Path) -> None:
    file = tmp_path / "dat.conf"
    file.write_text('near u1.2 threadsafe default urds.dat.devices urds.1.2 "gone0" ""\n')
    done = urds("dat", tool, "-P", "near", changes={"DAT_OVERRIDE": str(file)})
    assert done.code == 1
    assert "no device 'gone0'" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-b", "0"), 2, "-b 0: must be from 1 to"),
        (("-s", "-h", "127.0.0.1"), 2, "either -s, or -h"),
        (("-P", "nosuch"), 2, "-P nosuch: there are "),
        (("-h", "no such host"), 2, "no such host: "),
        (("-u",), 2, "-u is for -w alone"),
        (("-a",), 2, "-a and -i are for -W alone"),
        (("-w", "-W"), 2, "either -w or -W"),
        (("-W", "-i", "65"), 2, "-i 65: must be from 0 to 64"),
        (("-W", "-i", "1", "-b", "1025"), 2, "-i 1: 1025 sizes, at most 1024"),
        (("-q", "7"), 2, "-q 7: no ucm addresses here"),
        (("-l", "7"), 2, "-l 7: no ucm addresses here"),
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
    [
        (("-T", "X"), "-T X: must be one of"),
        (("-o", "SR"), "-o SR: must be one of"),
        (("-w", "0"), "-w 0: must be from 1"),
    ],
)
def test_a_load_that_cannot_be_is_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = urds("dat", "load", *arguments)
    assert (done.code, words in done.err) == (2, True)
