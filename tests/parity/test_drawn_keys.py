"""Keys that are drawn say nothing of each other, whichever engine draws them.

Bounds are five standard deviations and more from what is expected: one run of a million fails.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import SystemRandom
from typing import Any, Final

import pytest

from urds.verbs.engine.attributes import LinkTraits
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import AccessFlag

native: Any = pytest.importorskip("urds_native", reason="the compiled engine is not built")

COUNT: Final = 4096
LEAST, MOST = 0.45 * COUNT, 0.55 * COUNT  # of them with a bit set; the deviation is 32
DRAWN_BITS: Final = 31  # the uppermost tells a window from a region
NEXT: Final = 250  # registrations after which a key counts as forgotten
ACCESS: Final = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE


class Keys:
    """What gives keys: regions, and windows of kind 1."""

    def __init__(self, engine: Any, make_window: Callable[[object], Any]) -> None:
        self._engine, self._make_window = engine, make_window
        self._pd, self._view = object(), memoryview(bytearray(8))

    def region(self) -> Any:
        """Return registered memory."""
        return self._engine.register(self._pd, self._view, 0, ACCESS)

    def window(self) -> int:
        """Return the key of a new window."""
        key: int = self._make_window(self._pd).rkey
        return key

    def renew(self, region: Any) -> None:
        """Register other memory in its place."""
        self._engine.reregister(region, view=memoryview(bytearray(8)))

    def forget(self, region: Any) -> None:
        """Take a registration back."""
        self._engine.deregister(region)


def of_python() -> Keys:
    table = KeyTable(rng=SystemRandom())
    return Keys(table, table.new_window)


def compiled() -> Keys:
    link = LinkTraits(64, lossless=True)
    engine = native.Engine(link, gid=bytes(16), has_random_keys=True)
    return Keys(engine, lambda pd: engine.window(pd, 1))


MAKERS = pytest.mark.parametrize("make", [of_python, compiled])


def is_balanced(numbers: list[int]) -> bool:
    """Tell whether each bit is set in half of the numbers or so."""
    counts = [sum(number >> bit & 1 for number in numbers) for bit in range(DRAWN_BITS)]
    return min(counts) > LEAST and max(counts) < MOST


@MAKERS
@pytest.mark.parametrize("kind", ["regions", "windows"])
def test_no_bit_of_a_key_is_likely_nor_follows_from_the_key_before(
    make: Callable[[], Keys], kind: str
) -> None:
    keys = make()
    if kind == "windows":
        drawn = [keys.window() for _ in range(COUNT + 1)]
    else:
        regions = [keys.region() for _ in range(COUNT + 1)]
        assert all(one.lkey == one.rkey for one in regions)
        drawn = [one.rkey for one in regions]
    assert len(set(drawn)) == COUNT + 1
    assert is_balanced(drawn[1:])
    assert is_balanced([one ^ other for one, other in pairwise(drawn)])
    steps = [other - one for one, other in pairwise(drawn)]
    assert len(set(steps)) > COUNT - 10
    for apart in range(1, DRAWN_BITS):  # no two bits of a key go together
        turned = [one >> apart | one << (DRAWN_BITS - apart) for one in drawn[1:]]
        assert is_balanced([one ^ other for one, other in zip(drawn[1:], turned, strict=True)])


@MAKERS
def test_a_key_that_was_given_back_is_not_among_the_next(make: Callable[[], Keys]) -> None:
    keys, drawn = make(), []
    for _ in range(COUNT):
        region = keys.region()
        drawn.append(region.rkey)
        keys.forget(region)
    repeated = sum(key in drawn[at + 1 : at + 1 + NEXT] for at, key in enumerate(drawn))
    assert repeated <= 1  # chance has one in two thousand runs
    assert is_balanced(drawn)


@MAKERS
def test_a_new_key_of_a_region_does_not_follow_from_its_old_one(make: Callable[[], Keys]) -> None:
    keys = make()
    region, drawn = keys.region(), []
    for _ in range(COUNT + 1):
        keys.renew(region)
        assert region.lkey == region.rkey
        drawn.append(region.rkey)
    assert len(set(drawn)) > COUNT - 10
    assert is_balanced(drawn[1:])
    assert is_balanced([one ^ other for one, other in pairwise(drawn)])


@MAKERS
@pytest.mark.parametrize("other", [of_python, compiled])
def test_openings_share_no_sequence(make: Callable[[], Keys], other: Callable[[], Keys]) -> None:
    ones, others = ([keys.region().rkey for _ in range(COUNT)] for keys in (make(), other()))
    assert len(set(ones) & set(others)) <= 2
    assert is_balanced([one ^ another for one, another in zip(ones, others, strict=True)])
