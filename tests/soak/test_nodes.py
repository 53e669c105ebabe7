"""Workers killed and upgraded under traffic; `python -m tests.soak.nodes` has it in full."""

from random import SystemRandom

import pytest

from tests.soak.nodes import Count, Found, Judge, Terms, bodies, run
from tests.support import planes
from urds.rds.plane.choose import NATIVE

ENDS = 6
SEED = 3


def messages(*numbers: int) -> list[bytes]:
    """Return messages as a sender makes them."""
    parts = bodies(SEED)
    return [number.to_bytes(8, "big") + parts[number % len(parts)] for number in numbers]


@pytest.mark.slow
@pytest.mark.skipif(planes.in_use() != NATIVE, reason="a node needs the compiled plane")
@pytest.mark.parametrize(
    ("nodes", "victims", "trouble"),
    [
        (2, "receiver", "kills"),
        (2, "both", "kills"),
        (1, "both", "kills"),
        (2, "both", "upgrades"),
    ],
)
def test_every_message_comes_once_and_in_order(nodes: int, victims: str, trouble: str) -> None:
    seed = SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    terms = Terms(messages=2000, nodes=nodes, victims=victims, seed=seed, **{trouble: ENDS})
    found = run(terms)
    assert found.is_good, found
    assert len(found.ends) == ENDS
    assert sum(way.received for way in found.ways) == found.messages


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([0, 1, 2, 3], {}),
        ([0, 1, 3], {"lost": 1}),
        ([0, 1, 2], {"lost": 1}),
        ([0, 1, 1, 2, 3], {"doubled": 1}),
        ([0, 2, 1, 3], {"reordered": 1}),
        ([0, 2, 1, 1, 3], {"reordered": 1, "doubled": 1}),
    ],
)
def test_what_is_wrong_is_counted(numbers: list[int], wrong: dict[str, int]) -> None:
    judge = Judge(SEED)
    for message in messages(*numbers):
        judge.take(message)
    count = judge.finish(4)
    assert count == Count(received=len(numbers), **wrong)
    assert count.is_good is not bool(wrong)


def test_a_message_that_was_changed_is_seen() -> None:
    judge = Judge(SEED)
    whole = messages(0)[0]
    for message in (whole[:-1] + b"?", b"short"):
        judge.take(message)
    assert judge.count.damaged == 2


def test_pauses_over_several_ends_are_told_apart() -> None:
    way = Count(pauses=[(1.0, 1.5), (2.0, 2.25), (3.0, 3.125)])
    found = Found(
        nodes=2, messages=0, kills=3, upgrades=0, seconds=4, ways=[way], ends=[1.1, 1.2, 2.1]
    )
    assert found.pauses_ms(way) == [125, 250, 500]
    assert [found.pauses_ms(way, ends) for ends in range(3)] == [[125], [250], [500]]
