"""`urds send` and `urds recv`: the first test between two hosts, here between two processes."""

import json
import os
import re
import signal
import subprocess

import pytest

from tests.cli.commands import (
    EXTRAS,
    ROOT,
    RUN_S_MAX,
    address,
    command,
    environment,
    started,
    urds,
)
from tests.support.ports import sole_ipv6_host

HERE, THERE = address(1), address(2)
SENT = re.compile(rf"{HERE}:\d+ to {THERE}:4000: (\d+) sent, (\d+) acknowledged\n")


def send(*arguments: str, text: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run `urds send` from HERE to THERE with this standard input."""
    return subprocess.run(
        command("without", "send", "-I", HERE, THERE, "4000", *arguments),
        check=False, input=text, capture_output=True, env=environment(), timeout=RUN_S_MAX,
    )  # fmt: skip


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_argument_is_a_message(extra: str) -> None:
    """The sender may come first: what it sends waits for the host."""
    receiver = started("recv", "-v", "-c", "4", "-w", "20", THERE, "4000", extra=extra)
    with receiver:
        done = urds(
            "send", "-w", "20", "-c", "2", "-I", HERE, THERE, "4000", "one", "t w o", extra=extra
        )
        out, err = receiver.communicate(timeout=RUN_S_MAX)
    assert (done.code, done.err) == (0, "")
    assert SENT.fullmatch(done.out)
    assert (receiver.returncode, err) == (0, "")
    texts = [re.sub(rf"^{HERE}:\d+ ", "", line) for line in out.splitlines()]
    assert texts == ["one", "one", "t w o", "t w o"]


def test_each_line_of_standard_input_is_a_message_and_bytes_stay() -> None:
    with subprocess.Popen(
        command("without", "recv", "-c", "3", "-w", "20", THERE, "4000"),
        stdout=subprocess.PIPE, env=environment(), cwd=ROOT,
    ) as receiver:  # fmt: skip
        done = send("-w", "20", text=b"a\n\n\xff\x1b[2J")
        out, _ = receiver.communicate(timeout=RUN_S_MAX)
    assert done.returncode == 0
    assert (receiver.returncode, out) == (0, b"a\n\n\xff\x1b[2J\n")


def test_json_has_a_line_per_message_and_one_for_the_sender() -> None:
    with started("recv", "-c", "1", "-w", "20", THERE, "4000", "--json") as receiver:
        done = send("-w", "20", "--json", "hello")
        out, _ = receiver.communicate(timeout=RUN_S_MAX)
    sent, received = json.loads(done.stdout), json.loads(out)
    assert (sent["sent"], sent["acknowledged"], sent["target"]) == (1, 1, f"{THERE}:4000")
    assert sent["local"] == f"{HERE}:{received['port']}"
    assert received == {"from": HERE, "port": received["port"], "bytes": 5, "text": "hello"}


def test_a_terminal_gets_no_control_characters() -> None:
    ours, its = os.openpty()
    with subprocess.Popen(
        command("without", "recv", "-c", "1", "-w", "20", THERE, "4000"),
        stdout=its, env=environment(), cwd=ROOT,
    ) as receiver:  # fmt: skip
        os.close(its)
        send("-w", "20", text=b"a\x1b[2Jb\xff\n")
        assert os.read(ours, 1000) == rb"a\x1b[2Jb\xff" + b"\r\n"
        receiver.wait(RUN_S_MAX)
    os.close(ours)


def test_messages_without_an_acknowledgement_are_exit_code_1() -> None:
    done = send("-w", "0.2", "a", "b")
    assert done.returncode == 1
    found = SENT.fullmatch(done.stdout.decode())
    assert found
    assert found.groups() == ("2", "0")
    said = rb"urds send: not acknowledged within 0.2 s: 2 of 2; connecting for .* refused: .*\n"
    assert re.fullmatch(said, done.stderr)


def test_a_v4_mapped_address_is_the_ipv4_one() -> None:
    done = urds("send", "-w", "0.2", "-I", HERE, f"::ffff:{THERE}", "4000", "x")
    assert f" to {THERE}:4000: 1 sent" in done.out
    assert "refused" in done.err


def test_a_refused_message_leaves_those_before_it_on_their_way() -> None:
    with started("recv", "-c", "1", "-w", "20", THERE, "4000") as receiver:
        done = send("-w", "20", text=b"a\n" + bytes(9 << 20) + b"\nc\n")
        out, _ = receiver.communicate(timeout=RUN_S_MAX)
    found = SENT.fullmatch(done.stdout.decode())
    assert found
    assert found.groups() == ("1", "1")
    assert done.returncode == 1
    assert done.stderr.startswith(b"urds send: Message too long")
    assert out == "a\n"


def test_messages_that_a_restart_took_along_are_not_acknowledged() -> None:
    words = command("without", "send", "-I", HERE, "-w", "20", THERE, "4000")
    with (
        started("recv", "-c", "9", THERE, "4000") as old,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(), cwd=ROOT,
        ) as sender,
    ):  # fmt: skip
        assert sender.stdin is not None
        sender.stdin.write(b"a\n")
        sender.stdin.flush()
        assert old.stdout is not None
        assert old.stdout.readline() == "a\n"
        until(sender.pid, unacknowledged=0)
        old.send_signal(signal.SIGSTOP)
        sender.stdin.write(b"b\n")
        sender.stdin.flush()
        until(sender.pid, unacknowledged=1)
        old.kill()
        old.wait()
        with started("recv", "-w", "2", THERE, "4000"):
            out, err = sender.communicate(timeout=RUN_S_MAX)
    found = SENT.fullmatch(out.decode())
    assert found
    assert found.groups() == ("2", "1")
    assert sender.returncode == 1
    assert b"urds send: the peer restarted: 1 of 2 may be lost\n" in err


def until(pid: int, *, unacknowledged: int) -> None:
    """Wait until a process has one connection, and so many messages without an answer on it."""
    for _ in range(100):
        found = json.loads(urds("info", "-n", "--json", "--pid", str(pid)).out)["connections"]
        if [row["unacknowledged_messages"] for row in found] == [unacknowledged]:
            return
    pytest.fail(f"not {unacknowledged} unacknowledged")


@pytest.mark.parametrize(
    ("count", "came"), [((), "no message"), (("-c", "2"), "0 of 2 messages; none")]
)
def test_too_few_messages_are_exit_code_1(count: tuple[str, ...], came: str) -> None:
    done = urds("recv", *count, "-w", "0.2", THERE, "4000")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"urds recv: {came} for 0.2 s\n"


def test_a_receiver_that_does_not_wait_takes_what_is_there() -> None:
    done = urds("recv", "-w", "0", THERE, "4000")
    assert (done.code, done.out) == (1, "")
    assert done.err == "urds recv: no message for 0 s\n"


def test_addresses_of_ipv6_stand_in_brackets() -> None:
    with sole_ipv6_host():
        done = urds("send", "-w", "20", "::1", "4000", "a")  # to itself
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"\[::1\]:\d+ to \[::1\]:4000: 1 sent, 1 acknowledged\n", done.out)


def test_a_receiver_without_a_count_is_content_with_one() -> None:
    with started("recv", "-w", "2", THERE, "4000") as receiver:
        assert send("-w", "20", "a").returncode == 0
        out, _ = receiver.communicate(timeout=RUN_S_MAX)
    assert (receiver.returncode, out) == (0, "a\n")


def test_ctrl_c_ends_a_receiver_with_130() -> None:
    with started("recv", "-v", "-w", "30", THERE, "4000") as receiver:
        assert send("-w", "20", "a").returncode == 0
        assert receiver.stdout is not None
        assert receiver.stdout.readline().endswith(" a\n")
        receiver.send_signal(2)
        out, err = receiver.communicate(timeout=RUN_S_MAX)
    assert (receiver.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("send", THERE, "1", "a"), "urds send: PORT 1: must be from 2 to 65535\n"),
        (("recv", THERE, "0"), "urds recv: PORT 0: must be from 2 to 65535\n"),
        (("send", "-w", "nan", THERE, "4000"), "urds send: --timeout nan: must be from 0 to 3600"),
        (("info", "--watch", "nan"), "urds info: --watch nan: must be from 0.1 to 3600\n"),
        (("send", "-c", "0", THERE, "4000"), "urds send: --count 0: must be 1 or more\n"),
        (("recv", "--allow", "all", THERE, "4000"), "urds recv: allow = ['all'], in Python: must "),
    ],
)
def test_what_cannot_be_is_wrong_usage(words: tuple[str, ...], error: str) -> None:
    done = urds(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(error)
