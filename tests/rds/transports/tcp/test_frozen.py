"""A client that asks and reads nothing, and is killed, is nothing to the others: on one socket.

The sizes are small enough for every run; `python -m tests.rds.transports.tcp.frozen` measures
rates, and with
`--dead 1000` what is left after a thousand deaths. An answer that is missing ends a client there.
"""

import pytest

from tests.rds.transports.tcp.frozen import run

ROUNDS = 20
SPINNING = 0.8  # of a core, with nothing to do


@pytest.mark.parametrize(("way", "dead"), [("poll", 3), ("tasks", 0)])
def test_each_of_the_others_gets_every_answer(way: str, dead: int) -> None:
    """Few die, so that something is left before they count as absent."""
    figures = run(way, ROUNDS, dead=dead, wait_s=0)
    assert len(figures) == (4 if dead else 3)
    assert all(idle < SPINNING for _, _, idle in figures), figures
