"""The fuzz targets fit the parsers: each takes its seed, and refuses octets only in our words."""

from contextlib import suppress

import pytest

from fuzz.targets import SEEDS, TARGETS
from urds.errors import WireError


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_seed(name: str) -> None:
    TARGETS[name](SEEDS[name])


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_refuses_in_our_words(name: str) -> None:
    """Cuts the seed at every length up to 64 and flips each of its first 512 bits."""
    seed = SEEDS[name]
    cuts = [seed[:octets] for octets in range(min(len(seed), 64))]
    flips = [
        seed[: bit // 8] + bytes([seed[bit // 8] ^ 1 << bit % 8]) + seed[bit // 8 + 1 :]
        for bit in range(min(len(seed) * 8, 512))
    ]
    for octets in [*cuts, *flips]:
        with suppress(WireError):
            TARGETS[name](octets)
