"""Two processes whose timers raise all the time: each number arrives once and in order.

What an interrupted call had just taken may be gone, one message for each. `TEST_RAISES` says how
often the sender's handler raises, at most; `TEST_RAISING_S` for how long.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest

from tests.rds.sockets.hosts import host
from tests.support import planes

RAISES = int(os.environ.get("TEST_RAISES", "1000000"))
SECONDS = float(os.environ.get("TEST_RAISING_S", "4"))


@contextmanager
def peer(role: str, here: str, there: str, *, polled: bool) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rds.sockets.raising_peer", role, here, there,
         str(RAISES), str(SECONDS), str(polled)],
        env={**os.environ, **planes.chosen(), "URDS_DRAIN_S": "0"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.timeout(120 + int(SECONDS))
@pytest.mark.parametrize("polled", [False, True], ids=["waiting", "polled"])
def test_numbers_arrive_once_and_in_order(polled: bool) -> None:
    one, two = host(1), host(2)
    with ExitStack() as stack:
        sender = stack.enter_context(peer("send", one, two, polled=polled))
        receiver = stack.enter_context(peer("receive", two, one, polled=polled))
        for process in (sender, receiver):
            assert hear(process) == "bound\n"
        for process in (receiver, sender):
            say(process)
        received = json.loads(hear(receiver))
        sent = json.loads(hear(sender))
    got = received["got"]
    backwards = [(before, after) for before, after in pairwise(got) if after <= before]
    figures = f"{sent['raised']} and {received['raised']} raises, {sent['sent']} sent"
    print(figures)
    assert not backwards, figures
    lost = set(range(sent["sent"])) - set(got) - set(sent["uncertain"])
    assert len(lost) <= received["raised"], figures
    assert sent["raised"] and received["raised"], figures
