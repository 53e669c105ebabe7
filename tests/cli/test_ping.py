"""`urds ping`: arguments, books, lines and exit codes of rds-ping, and a summary of ours."""

import json
import os
import re
import signal
from dataclasses import replace
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest

import urds as urds_api
from tests.cli.commands import EXTRAS, address, host, interrupt, urds
from tests.support.ports import sole_ipv6_host
from urds.cli.output import UsageError
from urds.cli.rds.ping import (
    SOCKETS,
    Reply,
    Rounds,
    _percentile,
    candidates,
    format_reply,
    parse_interval,
    why,
)
from urds.rds.plane.contract import Carrier

LINE = re.compile(r"^ {1,3}\d{1,3}: \d+ usec$")
NS = 1000  # of a microsecond


@pytest.mark.parametrize(
    ("text", "interval_s"),
    [
        ("1", 1.0),
        ("0.5", 0.5),
        ("20ms", 0.02),
        ("20msec", 0.02),
        ("500us", 0.0005),
        ("500usec", 0.0005),
        ("3600", 3600.0),
    ],
)
def test_an_interval_has_a_unit_or_is_seconds(text: str, interval_s: float) -> None:
    assert parse_interval(text) == pytest.approx(interval_s)


@pytest.mark.parametrize("text", ["", "0", "-1", "ms", "1h", "3601", "nan", "1 2"])
def test_another_interval_is_refused_with_what_it_may_be(text: str) -> None:
    with pytest.raises(UsageError, match="a number with ms, msec, us, usec"):
        parse_interval(text)


def test_sockets_take_turns_and_each_has_one_ping_under_way() -> None:
    rounds = Rounds()
    assert [rounds.begin(0) for _ in range(SOCKETS)] == list(range(SOCKETS))
    assert rounds.begin(0) is None
    rounds.reply(1, 5 * NS)
    assert rounds.begin(9 * NS) == 1
    assert (rounds.sent, rounds.received, rounds.rounds) == (SOCKETS + 1, 1, SOCKETS + 2)


def test_a_reply_tells_the_number_and_the_time_of_its_ping() -> None:
    rounds = Rounds()
    rounds.begin(1000 * NS)
    rounds.begin(2000 * NS)
    assert rounds.reply(1, 2300 * NS) == Reply(number=2, usec=300, duplicate=False)
    assert rounds.reply(0, 2500 * NS) == Reply(number=1, usec=1500, duplicate=False)
    assert list(rounds.round_trips_usec) == [300, 1500]


def test_a_second_reply_is_a_duplicate_and_counts_apart() -> None:
    rounds = Rounds()
    rounds.begin(0)
    rounds.reply(0, NS)
    assert rounds.reply(0, 7 * NS).duplicate
    assert (rounds.received, rounds.duplicates, list(rounds.round_trips_usec)) == (1, 1, [1])


def test_a_refused_ping_is_not_under_way() -> None:
    rounds = Rounds()
    rounds.fail(rounds.begin(0) or 0)
    for _ in range(SOCKETS - 1):
        rounds.begin(0)
    assert rounds.begin(0) == 0


def test_it_ends_when_enough_were_answered_or_had_their_turn_and_the_next_is_due() -> None:
    rounds = Rounds()
    rounds.begin(0)
    rounds.begin(0)
    assert not rounds.is_over(2, due=False)
    assert rounds.is_over(2, due=True)
    assert not rounds.is_over(3, due=True)
    assert not rounds.is_over(None, due=True)
    rounds.reply(0, 1)
    rounds.reply(1, 1)
    assert rounds.is_over(2, due=False)


@pytest.mark.parametrize(
    ("reply", "source", "line"),
    [
        (Reply(1, 150, False), "10.0.0.2", "   1: 150 usec"),
        (Reply(1234, 1, False), "10.0.0.2", " 1234: 1 usec"),
        (Reply(7, 20, True), "10.0.0.2", "   7: 20 usec DUP!"),
        (Reply(7, 20, False), "10.0.0.3", "   7: 20 usec (10.0.0.3)"),
        (Reply(7, 20, True), "10.0.0.3", "   7: 20 usec (10.0.0.3) DUP!"),
    ],
)
def test_a_line_is_that_of_rds_ping(reply: Reply, source: str, line: str) -> None:
    assert format_reply(reply, source, "10.0.0.2") == line


def asked_from(target: str, outgoing: str) -> list[str]:
    return list(candidates(ip_address(target), ip_address(outgoing), Random(1)))


def test_elsewhere_it_asks_from_where_the_routes_say() -> None:
    assert asked_from("10.0.0.2", "10.0.0.1") == ["10.0.0.1"]
    assert asked_from("fd00::2", "fd00::1") == ["fd00::1"]


def test_in_127_it_asks_from_the_first_address_or_another_one() -> None:
    first, *others = asked_from("127.0.0.2", "127.0.0.1")
    assert first == "127.0.0.1"
    assert others
    assert all(ip_address(one).is_loopback for one in others)


@pytest.mark.parametrize("target", ["127.0.0.1", "10.0.0.1"])
def test_an_address_of_this_machine_is_asked_from_another_one(target: str) -> None:
    others = asked_from(target, target)
    assert others
    assert target not in others
    assert all(ip_address(one).is_loopback for one in others)


def test_an_ipv6_address_of_this_machine_answers_itself() -> None:
    assert asked_from("::1", "::1") == ["::1"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_peer_in_another_process_answers(extra: str) -> None:
    peer, local = address(2), address(1)
    with host(peer):
        done = urds("ping", "-c", "3", "-i", "500ms", "-I", local, peer, extra=extra)
    *lines, summary, times = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) == 3
    assert all(LINE.match(line) for line in lines), lines
    assert re.fullmatch(
        rf"{local} to {peer}: 3 sent, 3 received, 0% loss, connected in [\d.]+ ms", summary
    )
    assert re.fullmatch(r"min/avg/max/mdev \d+/\d+/\d+/\d+ usec, p50/p99 \d+/\d+ usec", times)


def test_json_is_a_line_per_reply_and_one_for_the_summary() -> None:
    peer, local = address(2), address(1)
    with host(peer):
        done = urds("ping", "-c", "2", "-i", "500ms", "-I", local, peer, "--json")
    *replies, summary = map(json.loads, done.out.splitlines())
    assert [reply["number"] for reply in replies] == [1, 2]
    assert {reply["from"] for reply in replies} == {peer}
    assert (summary["target"], summary["local"]) == (peer, local)
    assert (summary["sent"], summary["received"], summary["duplicates"]) == (2, 2, 0)
    assert summary["usec_min"] <= summary["usec_average"] <= summary["usec_max"]
    assert summary["usec_p50"] <= summary["usec_p99"] == summary["usec_max"]
    assert (summary["loss_percent"], summary["connected_usec"] > 0) == (0, True)


def test_no_host_there_is_exit_code_1_soon() -> None:
    done = urds("ping", "-c", "10", "-i", "10ms", "-I", address(1), address(9))
    assert done.code == 1
    assert done.out == f"{address(1)} to {address(9)}: 8 sent, 0 received, 100% loss\n"
    start = f"urds ping: no answer from {address(9)}: connecting for "
    assert done.err.startswith(start)
    assert "Connection refused: nothing listens there" in done.err
    assert done.err.count("\n") == 1


def test_a_stopped_process_is_told_from_an_absent_one() -> None:
    with host(address(2)) as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        done = urds("ping", "-c", "2", "-i", "1", "-I", address(1), address(2))
        child.send_signal(signal.SIGCONT)
    assert done.code == 1
    line, summary = done.out.splitlines()
    assert re.fullmatch(
        r" {3}1: no answer yet after 1\.\d s: connected for .*, but silent .*", line
    )
    assert summary.endswith("2 sent, 0 received, 100% loss")
    assert "its process may hang or be stopped" in done.err


INFO = urds_api.ConnectionInfo(
    local=ip_address("10.0.0.1"),
    peer=ip_address("10.0.0.2"),
    path=0,
    transport=Carrier.TCP,
    tos=0,
    state=urds_api.ConnectionState.CONNECTING,
    state_s=12.0,
    attempts=38,
    next_attempt_s=0.8,
    last_error="Connection refused",
    last_error_s=0.2,
    last_received_s=None,
    unsent_messages=1,
    unacknowledged_messages=0,
    oldest_unacknowledged_s=None,
)
STATE = urds_api.ConnectionState


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "connecting for 12.0 s, attempts: 38; Connection refused"),
        ({"last_error": ""}, "connecting for 12.0 s, attempts: 38"),
        ({"state": STATE.DOWN}, "not connected; Connection refused"),
        ({"state": STATE.DOWN, "last_error": ""}, "not connected"),
        (
            {"state": STATE.SILENT},
            "connected for 12.0 s, but silent for 12.0 s: its process may hang or be stopped",
        ),
        (
            {"state": STATE.UP, "last_received_s": 7.0},
            "connected for 12.0 s, but silent for 7.0 s: its process may hang or be stopped",
        ),
        (
            {"state": STATE.UP, "last_received_s": 1.0},
            "connected for 12.0 s, and it sends; it may answer no pings (its ping_enable)",
        ),
    ],
)
def test_why_there_is_no_answer(changes: dict[str, Any], text: str) -> None:
    others = [replace(INFO, path=1, state=STATE.UP), replace(INFO, peer=ip_address("10.0.0.3"))]
    assert why([*others, replace(INFO, **changes)], "10.0.0.2", 5.0) == text


def test_without_a_connection_there_is_nothing_to_say() -> None:
    assert why([], "10.0.0.2", 1.0) == "no connection was begun"


def test_loss_and_the_oldest_ping_under_way() -> None:
    rounds = Rounds()
    assert (rounds.loss_percent, rounds.waiting_ns(0)) == (0, None)
    for now_ns in (0, 10, 20, 30):
        rounds.begin(now_ns)
    rounds.reply(0, 40)
    assert rounds.loss_percent == 75
    assert rounds.waiting_ns(50) == (2, 40)


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = list(range(1, 201))
    assert (_percentile(values, 50), _percentile(values, 99)) == (100, 198)
    assert (_percentile([7], 50), _percentile([7], 99)) == (7, 7)


def test_without_a_local_address_one_is_found() -> None:
    with host(address(2)):
        done = urds("ping", "-c", "1", address(2))
    assert done.code == 0
    assert " to " + address(2) in done.out


def test_ipv6_answers_too() -> None:
    """There is one IPv6 loopback address, so the answer comes from this process itself."""
    with sole_ipv6_host():
        done = urds("ping", "-c", "1", "::1")
    assert done.code == 0, done.err
    assert done.out.splitlines()[1].startswith("::1 to ::1: 1 sent, 1 received")


def test_a_local_address_of_another_process_is_named() -> None:
    with host(address(1)):
        done = urds("ping", "-c", "1", "-I", address(1), address(2))
    assert (done.code, done.out) == (1, "")
    assert f"{address(1)} is held by another process (TCP port 16385)" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "0", "127.0.0.9"], "--count 0: must be 1 or more"),
        (["-Q", "256", "127.0.0.9"], "--tos 256: must be from 0 to 255"),
        (["-i", "soon", "127.0.0.9"], "interval 'soon'"),
        (["no such host"], "no such host: Name or service not known"),
        (["-I", "no such host", "127.0.0.9"], "no such host: Name or service not known"),
        ([], "arguments are required: HOST"),
        (["127.0.0.9", "extra"], "unrecognized arguments: extra"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], words: str) -> None:
    done = urds("ping", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err


def test_an_address_without_a_route_is_named() -> None:
    """Link-local, and no interface is named."""
    done = urds("ping", "-c", "1", "fe80::9")
    assert (done.code, done.out) == (1, "")
    assert "no route to fe80::9" in done.err


@pytest.mark.parametrize("extra", EXTRAS)
def test_ctrl_c_prints_the_summary_and_ends_with_130(extra: str) -> None:
    with host(address(2)):
        done = interrupt(
            "ping", "-i", "20ms", "-I", address(1), address(2), after="   3:", extra=extra
        )
    assert (done.code, done.err) == (130, "")
    *_, summary, times = done.out.splitlines()
    assert re.search(r"\d+ sent, \d+ received, ", summary)
    assert times.startswith("min/avg/max/mdev ")
