"""The fuzz targets fit the parsers: each takes its seeds, and refuses octets only in our words."""

import random
from contextlib import suppress

import pytest

from fuzz.mutation import mutate
from fuzz.targets import SEEDS, TARGETS
from urds.errors import WireError

RUNS = 500  # of random changes per target: a few seconds for the machines, far less for parsers


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_seeds(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_refuses_in_our_words(name: str) -> None:
    """Cuts the first seed at every length up to 64 and flips each of its first 512 bits."""
    seed = SEEDS[name][0]
    cuts = [seed[:octets] for octets in range(min(len(seed), 64))]
    flips = [
        seed[: bit // 8] + bytes([seed[bit // 8] ^ 1 << bit % 8]) + seed[bit // 8 + 1 :]
        for bit in range(min(len(seed) * 8, 512))
    ]
    for octets in [*cuts, *flips]:
        with suppress(WireError):
            TARGETS[name](octets)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_withstands_random_changes(name: str) -> None:
    """Changes seeds at random; the name is the random seed, so a finding comes back."""
    chance = random.Random(name)
    for number in range(RUNS):
        octets = mutate(chance.choice(SEEDS[name]), SEEDS[name], chance)
        try:
            TARGETS[name](octets)
        except WireError:
            continue
        except BaseException as error:
            error.add_note(f"run {number} of target {name}: {octets.hex()}")
            raise
