"""Two processes whose timers raise all the time: each number arrives once and in order.

What an interrupted call had just taken may be gone, one message for each. `TEST_RAISES` says how
often the sender's handler raises, at most; `TEST_RAISING_S` for how long.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest

from tests.rds.sockets.hosts import host
from tests.support import planes
from tests.support.children import Child

RAISES = int(os.environ.get("TEST_RAISES", "1000000"))
SECONDS = float(os.environ.get("TEST_RAISING_S", "4"))


@contextmanager
def peer(role: str, here: str, there: str, *, polled: bool) -> Iterator[Child]:
    child = Child(
        *("-m", "tests.rds.sockets.raising_peer", role, here, there, RAISES, SECONDS, polled),
        environ={**planes.chosen(), "URDS_DRAIN_S": "0"},
    )
    try:
        yield child
    finally:
        child.kill()


@pytest.mark.timeout(120 + int(SECONDS))
@pytest.mark.parametrize("polled", [False, True], ids=["waiting", "polled"])
def test_numbers_arrive_once_and_in_order(polled: bool) -> None:
    one, two = host(1), host(2)
    with ExitStack() as stack:
        sender = stack.enter_context(peer("send", one, two, polled=polled))
        receiver = stack.enter_context(peer("receive", two, one, polled=polled))
        for process in (sender, receiver):
            assert process.hear() == "bound"
        for process in (receiver, sender):
            process.say()
        received = json.loads(receiver.hear())
        sent = json.loads(sender.hear())
    got = received["got"]
    backwards = [(before, after) for before, after in pairwise(got) if after <= before]
    figures = f"{sent['raised']} and {received['raised']} raises, {sent['sent']} sent"
    print(figures)
    assert not backwards, figures
    lost = set(range(sent["sent"])) - set(got) - set(sent["uncertain"])
    assert len(lost) <= received["raised"], figures
    assert sent["raised"] and received["raised"], figures
