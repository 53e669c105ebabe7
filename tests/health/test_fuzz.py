"""The fuzz targets fit the parsers: each takes its seeds, and refuses bytes only in our words."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from fuzz import keeping
from fuzz.mutation import mutate
from fuzz.targets import SEEDS, TARGETS
from urds.common.errors import WireError

RUNS = 500  # of random changes per target: a few seconds for the machines, far less for parsers


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_seeds(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_corpus(name: str) -> None:
    """Runs what long searches found worth keeping: each input reaches code that others do not."""
    for data in keeping.kept(name):
        with suppress(WireError):
            TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_refuses_in_our_words(name: str) -> None:
    """Cuts the first seed at every length up to 64 and flips each of its first 512 bits."""
    seed = SEEDS[name][0]
    cuts = [seed[:data] for data in range(min(len(seed), 64))]
    flips = [
        seed[: bit // 8] + bytes([seed[bit // 8] ^ 1 << bit % 8]) + seed[bit // 8 + 1 :]
        for bit in range(min(len(seed) * 8, 512))
    ]
    for data in [*cuts, *flips]:
        with suppress(WireError):
            TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_withstands_random_changes(name: str) -> None:
    """Changes seeds at random; the name is the random seed, so a finding comes back."""
    rng = random.Random(name)
    for number in range(RUNS):
        data = mutate(rng.choice(SEEDS[name]), SEEDS[name], rng)
        try:
            TARGETS[name](data)
        except WireError:
            continue
        except BaseException as error:
            error.add_note(f"run {number} of target {name}: {data.hex()}")
            raise


def test_the_corpus_belongs_to_targets_and_is_small() -> None:
    files = list(keeping.CORPUS.glob("*"))
    assert {file.stem for file in files} <= set(TARGETS)
    for file in files:
        assert sum(map(len, keeping.kept(file.stem))) <= keeping.KEPT_BYTES_MAX


def test_what_is_kept_is_small_and_the_shortest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "CORPUS", tmp_path / "corpus")
    inputs = [bytes([number]) * number for number in range(256)] * 2
    monkeypatch.setattr(keeping, "KEPT_BYTES_MAX", 100)
    assert keeping.keep("header", inputs) == 14  # 0 to 13 bytes are 91 in all
    assert keeping.kept("header") == inputs[:14]
    assert keeping.kept("another") == []
