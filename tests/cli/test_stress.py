"""`urds stress`: two sides over TCP and RDMA, a scripted peer in both roles, faults, the ends."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli import stress_peer
from tests.cli.commands import RUN_S_MAX, Done, address, command, environment, started, urds
from urds.cli.output import UsageError
from urds.cli.rds.stress.command import StressOptions, parse_number
from urds.cli.rds.stress.run import HEADING

AT_ONCE = ("--start-up", "0")
# A line of the table, and what `(average)` follows.
LINE = re.compile(
    r"^ {3}\d +\d+ +\d+ +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d -1\.00"
)
RULE = "-" * 45
# The scripted peer over our sockets; what it found comes as a literal on its last line.
PEER = """
import sys, urds
from tests.cli import stress_peer
urds.configure(wmem_max=1 << 24, rmem_max=1 << 24, drain_s=0, linger_s=0)
stress_peer.new_socket = urds.Socket
role, *arguments = eval(sys.argv[1])
ready = {"ready": lambda: print("ready", flush=True)} if role == "passive" else {}
print(getattr(stress_peer, role)(*arguments, **ready))
"""


@contextmanager
def waiting(*arguments: str, extra: str = "without") -> Iterator[subprocess.Popen[str]]:
    """Run a passive side that listens already; end it by force if a test does not."""
    with started("stress", *arguments, *AT_ONCE, extra=extra) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().startswith("waiting for incoming connection on ")
            yield child
        finally:
            child.kill()


def ended(child: subprocess.Popen[str]) -> Done:
    out, err = child.communicate(timeout=RUN_S_MAX)
    return Done(child.returncode, out, err)


def peer(role: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PEER, repr((role, *arguments))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "PYTHONPATH": f"{stress_peer.__file__.rpartition('/tests/')[0]}/src:"
             f"{stress_peer.__file__.rpartition('/tests/')[0]}"},
    )  # fmt: skip


def found(child: subprocess.Popen[str]) -> dict[str, object]:
    """Return what the scripted peer found; its AssertionError is the test's."""
    out, err = child.communicate(timeout=RUN_S_MAX)
    assert child.returncode == 0, err
    return dict(eval(out.splitlines()[-1]))


def judge_table(out: str) -> list[str]:
    """Check heading, lines, rule and average; return the numbers of the average."""
    lines = out.splitlines()
    begin = lines.index(HEADING)
    *rows, rule, average = lines[begin + 1 :]
    assert rows
    assert all(LINE.match(row) for row in rows), rows
    assert rule == RULE
    assert LINE.match(average)
    assert average.endswith("  (average)")
    numbers = average.split()[:-1]
    assert int(numbers[1]) > 10, "requests were sent"
    return numbers


@pytest.mark.parametrize(
    ("extra", "more"),
    [
        ("with", ("-t", "2", "-d", "3", "-q", "20k", "-a", "1k")),
        ("without", ("-D", "4k", "-d", "4")),
        ("without", ("-D", "5000", "-I", "3", "-t", "2", "-d", "2", "--rdma-alignment", "9",
                   "--rdma-cache-mrs", "1")),
        ("without", ("-D", "3000", "-M", "1", "--rdma-use-fence", "0", "--rdma-use-once", "1",
                   "--rdma-key-o-meter", "-d", "4")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_two_sides_load_each_other_and_check_each_byte(extra: str, more: tuple[str, ...]) -> None:
    a, b = address(1), address(2)
    with waiting("-r", b, extra=extra) as passive:
        active = urds(*("stress", "-s", b, "-r", a, "-T", "1", "-v", *more, *AT_ONCE), extra=extra)
        other = ended(passive)
    assert (active.code, active.err, other.code, other.err) == (0, "", 0, "")
    assert active.out.startswith(f"connecting to {b}:4000\nnegotiated options, tasks will start")
    assert other.out.startswith(f"accepted connection from {a}:")
    numbers = judge_table(active.out)
    moved = [float(number) for number in numbers[4:6]]
    is_read_only = "-M" in more
    if "-D" in more:
        assert min(moved) > 0, "bytes came and went by RDMA"
    else:
        assert moved == [0.0, 0.0]
    assert not is_read_only or "R_Keys" not in active.err


def test_a_congested_side_loses_nothing() -> None:
    """Its receive buffer holds less than one request of the sixteen under way."""
    a, b = address(1), address(2)
    with waiting("-r", b) as passive:
        active = urds(
            *("stress", "-s", b, "-r", a, "-T", "2", "-q", "60k", "-d", "16", "-v", "--json"),
            *("--show-perfdata", *AT_ONCE),
            changes={"URDS_RMEM_MAX": "30000", "URDS_RMEM_DEFAULT": "30000"},
        )
        other = ended(passive)
    assert (active.code, other.code, other.err) == (0, 0, "")
    assert "getsockopt(RCVBUF) returned 60000, we wanted" in active.err
    titles, *rows = [line.split(",") for line in other.out.splitlines() if line[:2] == "::"]
    refused = [float(row[titles.index("cong_send_error:count")]) for row in rows]
    assert json.loads(active.out.splitlines()[-1])["requests_received_per_s"] > 10
    assert max(refused) > 0, "nothing was congested"


def test_an_active_side_tells_a_scripted_peer_all_and_counts_as_it_does() -> None:
    a, b = address(1), address(2)
    scripted = peer("passive", b, 4100)
    assert scripted.stdout is not None
    assert scripted.stdout.readline() == "ready\n"
    active = urds(
        *("stress", "-s", b, "-r", a, "-p", "4100", "-T", "1", "-q", "2k", "-a", "100", "-d", "3"),
        *("-t", "2", "-v", "--json", "--show-histogram", "-Q", "7", *AT_ONCE),
    )
    seen = found(scripted)
    wanted = stress_peer.options(
        req_depth=3, req_size=2048, ack_size=100, send_addr=stress_peer.number_of(b),
        receive_addr=stress_peer.number_of(a), starting_port=4100, nr_tasks=2, run_time=1,
        verify=1,
    )  # fmt: skip
    assert seen["options"] == b"2.0.7".ljust(16, b"\0") + wanted + bytes([7, 0])
    assert (active.code, active.err) == (0, "")
    second, average = map(json.loads, active.out.splitlines())
    assert second["requests_sent_per_s"] == average["requests_sent_per_s"] > 10
    assert average["average"] is True
    assert sum(average["round_trips_by_power_of_2_usec"]) > 10
    assert min(int(str(seen["sent"])), int(str(seen["received"]))) > 10


def test_a_passive_side_obeys_a_scripted_peer() -> None:
    """One way: it sends acks only. The options are of 59 bytes, what shows is the peer's."""
    a, b = address(1), address(2)
    told = stress_peer.options(
        req_depth=4, ack_size=70, send_addr=stress_peer.number_of(b), starting_port=4000,
        receive_addr=stress_peer.number_of(a), simplex=1, show_perfdata=1, verify=1, run_time=1,
    )  # fmt: skip
    with waiting("-c") as passive:
        seen = found(peer("active", a, b, told, 1.5))
        other = ended(passive)
    assert (other.code, other.err) == (0, "")
    assert int(str(seen["sent"])) > 10
    assert seen["received"] == 0
    titles, row, rule, average = other.out.splitlines()[-4:]
    assert titles.startswith("::nr_tasks:count,req_size:bytes,")
    assert row.startswith("::1,1024,70,0,0,")
    assert rule == RULE
    assert average.split()[1] == "0"
    assert int(average.split()[2]) > 10


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("damage", "payload damaged from byte 480 on, 1 of 961 are wrong"),
        ("loss", "sequence 21, expected 20"),
    ],
)
def test_what_a_peer_spoils_ends_the_run_and_is_named(fault: str, words: str) -> None:
    a, b = address(1), address(2)
    told = stress_peer.options(
        send_addr=stress_peer.number_of(b), receive_addr=stress_peer.number_of(a), verify=1,
        req_depth=40, ack_size=1024, simplex=1, run_time=9,
    )  # fmt: skip
    with waiting("-r", b) as passive:
        seen = found(peer("active", a, b, told, 9.0, fault))
        other = ended(passive)
    assert (other.code, seen["early"]) == (1, True)
    assert other.err == f"urds stress: message from {a}:4001: {words}\n"


@pytest.mark.parametrize("which", ["active", "passive"])
def test_ctrl_c_ends_both_sides_with_their_averages(which: str) -> None:
    a, b = address(1), address(2)
    with waiting("-r", b) as passive, started("stress", "-s", b, "-r", a, *AT_ONCE) as active:
        pressed, other = (active, passive) if which == "active" else (passive, active)
        assert pressed.stdout is not None
        seen = ""
        while not LINE.match(seen):
            seen = pressed.stdout.readline()
            assert seen, "it ended before"
        pressed.send_signal(signal.SIGINT)
        ends = [ended(pressed), ended(other)]
    assert [(end.code, end.err) for end in ends] == [(130, ""), (0, "")]
    assert all(end.out.endswith("  (average)\n") for end in ends)


def test_an_active_side_whose_time_is_not_up_says_that_the_other_ended() -> None:
    a, b = address(1), address(2)
    shown = ("--show-outliers", "1")
    with (
        waiting("-r", b) as passive,
        started("stress", "-s", b, "-r", a, "-T", "9", *shown, *AT_ONCE) as active,
    ):
        assert active.stdout is not None
        while not LINE.match(active.stdout.readline()):
            pass
        passive.kill()
        end = ended(active)
    assert end.code == 1
    *outliers, last = end.err.splitlines()
    assert re.fullmatch(r"urds stress: the other side ended after \d of 9 s", last)
    assert outliers
    assert all(re.search(r"round trip of \d+ us to port 4001$", one) for one in outliers)


def test_unknown_peers_at_the_control_port_are_turned_away_and_named() -> None:
    a, b, c = address(1), address(2), address(3)
    good = {"send_addr": stress_peer.number_of(b), "receive_addr": stress_peer.number_of(a)}
    with waiting("-r", b) as passive:
        for told in (
            stress_peer.options(**good, req_size=3),
            stress_peer.options(**{**good, "receive_addr": stress_peer.number_of(c)}),
            b"GET / HTTP/1.1\r\n\r\n".ljust(59, b"\0"),
        ):
            with socket.create_connection((b, 4000), 10, source_address=(a, 0)) as unknown_peer:
                unknown_peer.sendall(told)
                assert not unknown_peer.recv(1), "closed"
        passive.send_signal(signal.SIGINT)
        other = ended(passive)
    assert other.code == 130
    first, second, third = other.err.splitlines()
    assert re.search(r"turned 127\S+ away: -q 3: must be from 63 to 1048576$", first)
    assert second.endswith(f"away: its options name {c} as its address")
    assert re.search(r"away: -\w \d+: must be from ", third)


def test_no_listener_to_connect_to_is_exit_code_1_with_what_to_do() -> None:
    done = urds("stress", "-s", address(9), "--connect-retries", "1")
    assert (done.code, done.out.count("\n")) == (1, 2)
    assert done.out.endswith(" - retrying\n")
    assert done.err == (
        f"urds stress: {address(9)}:4000: Connection refused;"
        " there, start `urds stress -p 4000`, or use --connect-retries\n"
    )


def test_one_address_for_both_sides_is_refused_with_what_to_do() -> None:
    b = address(2)
    with waiting("-r", b):
        done = urds("stress", "-s", b, "-r", b, *AT_ONCE)
    assert done.code == 2
    assert done.err == (
        f"urds stress: {b} is the peer's address: choose one for this side with -r\n"
    )


@pytest.mark.parametrize(
    ("text", "number"), [("10", 10), ("0x10", 16), ("3k", 3072), ("2M", 2 << 20), ("1g", 1 << 30)]
)
def test_numbers_are_those_of_c_with_a_suffix(text: str, number: int) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["many", "4g", "-1", ""])
def test_what_is_no_number_is_rejected_with_the_limits(text: str) -> None:
    with pytest.raises(UsageError, match=f"^{text!r}: must be a number from 0 to 4294967295; k, m"):
        parse_number(text)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"request_bytes": 62}, "-q 62: must be from 63"),
        ({"rdma_bytes": 2 << 20}, "-D times -I 2097152"),
        ({"rdma_cache_mrs": True, "rdma_use_get_mr": False}, "needs --rdma-use-get-mr 1"),
        ({"reset": True}, "need the RDS of UEK"),
        ({"is_async": True}, "need the RDS of UEK"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_named(given: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        StressOptions(**given).parameters()
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-s", "::1"), "::1: rds-stress knows IPv4 only"),
        (("-t", "300"), "-t 300: must be from 1 to 256"),
        (("--start-up", "-1"), "--start-up -1.0: must be from 0"),
        (("-q", "many"), "-q/--req-bytes: 'many': must be a number from 0 to"),
        (("-t", ""), "-t/--tasks: '': must be a number"),
        (("--rdma-use-fence", "2"), "--rdma-use-fence: '2': must be a number from 0 to 1;"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = urds("stress", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert command("without")[-1] == "urds"
