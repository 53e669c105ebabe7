"""The fuzz targets fit the parsers: each takes its seeds, and refuses octets only in our words."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from fuzz import keeping
from fuzz.mutation import mutate
from fuzz.targets import SEEDS, TARGETS
from urds.errors import WireError

RUNS = 500  # of random changes per target: a few seconds for the machines, far less for parsers


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_seeds(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_corpus(name: str) -> None:
    """Runs what long searches found worth keeping: each input reaches code that others do not."""
    for octets in keeping.kept(name):
        with suppress(WireError):
            TARGETS[name](octets)


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


def test_the_corpus_belongs_to_targets_and_is_small() -> None:
    files = list(keeping.CORPUS.glob("*"))
    assert {file.stem for file in files} <= set(TARGETS)
    for file in files:
        assert sum(map(len, keeping.kept(file.stem))) <= keeping.KEPT_OCTETS_MAX


def test_what_is_kept_is_small_and_the_shortest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "CORPUS", tmp_path / "corpus")
    inputs = [bytes([number]) * number for number in range(256)] * 2
    monkeypatch.setattr(keeping, "KEPT_OCTETS_MAX", 100)
    assert keeping.keep("header", inputs) == 14  # 0 to 13 octets are 91 in all
    assert keeping.kept("header") == inputs[:14]
    assert keeping.kept("another") == []
