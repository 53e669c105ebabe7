"""How much those who mean harm can have a node log: a few lines of each text in five seconds."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.siege import ATTACKS, under_way

pytestmark = pytest.mark.loopback_only("the attackers have hundreds of addresses of 127/8")

NODE = 250
ATTACK_S = 0.7
LINES_MAX = 20  # of a text: ten in each of the two windows that the time of an attack touches
_VALUES = re.compile(r"127\.\S+|\d+")


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_costs_a_few_lines(lab: Lab, name: str) -> None:
    node = lab.process(NODE)
    node.ask("log_from", level="INFO")
    with under_way(name, node.address, 300):
        time.sleep(ATTACK_S)
        lines = node.ask("logged")
    texts = Counter(_VALUES.sub("*", line.partition(" (")[0]) for line in lines)
    print(texts)
    assert not texts or max(texts.values()) <= LINES_MAX
    assert not node.ask("counters")["control_faults"]


def test_lives_are_told_a_few_times(lab: Lab) -> None:
    """The attack `lives` is one that would be a line for each of its frames."""
    node = lab.process(NODE)
    node.ask("log_from", level="INFO")
    with under_way("lives", node.address, 1):
        time.sleep(ATTACK_S)
        lines = [line for line in node.ask("logged") if "restart" in line]
        restarts = node.ask("counters")["peer_restarts"]
    assert 0 < len(lines) <= LINES_MAX < restarts
