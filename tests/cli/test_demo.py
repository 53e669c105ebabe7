"""`urds demo`: plans, verdict, summary, and the real thing with resets."""

import json
import re
import socket
from pathlib import Path

import pytest

from tests.cli.commands import EXTRAS, address, interrupt, urds
from urds.cli.output import UsageError
from urds.cli.rds.demo import DemoOptions, Result, compare, make_plans, summary


def verdict(**changes: object) -> dict[str, object]:
    perfect = {"duplicated": 0, "reordered": 0, "damaged": 0, "missing": {}}
    return {**perfect, "resets": 3, "seconds": 2.0, **changes}


SENT = {"a": {"b": 10}, "b": {"a": 20}}


def result(**changes: object) -> Result:
    """Return the verdict on `a` and `b`, where `a` counted something else."""
    of_a: dict[str, object] = {"delivered": {"b": 20}, **changes}
    verdicts = {"a": verdict(**of_a), "b": verdict(delivered={"a": 10})}
    return compare(verdicts, SENT, DemoOptions(), seed=1)


def test_every_host_sends_to_every_other() -> None:
    plans = make_plans(DemoOptions(hosts=3, first_address="127.0.0.254", seed=7))
    assert [plan.address for plan in plans] == ["127.0.0.254", "127.0.0.255", "127.0.1.0"]
    assert plans[1].peers == ["127.0.0.254", "127.0.1.0"]
    assert {plan.seed for plan in plans} == {7}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DemoOptions(hosts=1), "--hosts 1: must be from 2 to 16"),
        (DemoOptions(hosts=17), "--hosts 17: must be from 2 to 16"),
        (DemoOptions(seconds=0), "--seconds 0: must be from 0.1 to 3600"),
        (DemoOptions(payload_bytes=23), "--size 23: must be from 24 to 65536"),
        (DemoOptions(reset_every_s=-1), "--reset-every -1: must be from 0 to 3600"),
        (DemoOptions(first_address="10.0.0.1"), "--first 10.0.0.1: all 4 hosts must be"),
        (DemoOptions(first_address="127.255.255.254"), "all 4 hosts must be in 127.0.0.0/8"),
        (DemoOptions(first_address="::1"), "--first ::1: must be an IPv4 address of 127.0.0.0/8"),
    ],
)
def test_options_that_cannot_be_are_named(options: DemoOptions, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        make_plans(options)


def test_what_was_sent_and_counted_is_perfect() -> None:
    good = result()
    assert good.is_perfect
    assert (good.sent, good.delivered, good.lost, good.resets_survived) == (30, 30, 0, 6)
    assert good.messages_per_second == 15


@pytest.mark.parametrize("wrong", ["duplicated", "reordered", "damaged"])
def test_one_wrong_message_is_not_perfect(wrong: str) -> None:
    assert not result(**{wrong: 1}).is_perfect


def test_a_message_less_is_lost_and_told_with_its_number() -> None:
    bad = result(delivered={"b": 19}, missing={"b": [4]})
    assert (bad.lost, bad.is_perfect) == (1, False)
    assert summary(bad)[-1] == ("b to a: missing 4 (the first few) of 20", False)


def test_the_summary_says_it_in_these_words() -> None:
    assert [line for line, _ in summary(result())] == [
        "sent 30, delivered 30",
        "lost 0, duplicated 0, reordered 0, damaged 0",
        "resets survived 6",
        "messages per second 15 of 1024 bytes, 0.0 MiB/s",
    ]


@pytest.mark.parametrize("extra", EXTRAS)
def test_nothing_is_lost_while_connections_are_reset(extra: str) -> None:
    arguments = ("--hosts", "3", "--seconds", "3", "--reset-every", "0.1", "--first", address(20))
    done = urds("demo", *arguments, extra=extra)
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, ""), done.out + done.err
    assert lines[0].startswith(f"3 RDS hosts, {address(20)} to {address(22)}, each a process")
    assert any(re.match(r" +\d\.\d s  delivered \d+  resets \d+$", line) for line in lines)
    counts = re.fullmatch(r"sent (\d+), delivered (\d+)", lines[-4])
    assert counts
    assert counts[1] == counts[2]
    assert int(counts[1]) > 1000
    assert lines[-3] == "lost 0, duplicated 0, reordered 0, damaged 0"
    survived = re.fullmatch(r"resets survived (\d+)", lines[-2])
    assert survived
    assert int(survived[1]) > 10
    assert lines[-1].startswith("messages per second ")


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    arguments = ("--hosts", "2", "--seconds", "0.5", "--seed", "5", "--first", address(24))
    done = urds("demo", *arguments, "--json", changes={"XDG_RUNTIME_DIR": str(tmp_path)})
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert (found["lost"], found["hosts"], found["seed"], found["missing"]) == (0, 2, 5, [])
    assert found["sent"] == found["delivered"] > 0
    assert list((tmp_path / "urds").iterdir()) == [], "a host did not end in order"


def test_a_taken_address_is_named_and_no_process_stays_behind() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((address(31), 16385))
        taken.listen()
        done = urds("demo", "--hosts", "3", "--seconds", "1", "--first", address(30))
    assert done.code == 1
    assert f"{address(31)} is held by another process (TCP port 16385)" in done.err
    assert done.err.count("\n") == 1
    # The other hosts have ended: their addresses are free again.
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((address(30), 16385))


@pytest.mark.parametrize("extra", EXTRAS)
def test_ctrl_c_ends_all_hosts_with_the_summary_and_130(extra: str) -> None:
    arguments = ("--hosts", "2", "--seconds", "30", "--first", address(40))
    done = interrupt("demo", *arguments, after="delivered", extra=extra)
    assert (done.code, done.err) == (130, "")
    sent, delivered = re.findall(r"^sent (\d+), delivered (\d+)$", done.out, re.MULTILINE)[0]
    assert sent == delivered != "0"
    assert "lost 0, duplicated 0, reordered 0, damaged 0\n" in done.out
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((address(40), 16385))
