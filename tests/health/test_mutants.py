"""Faults that `tools/mutants.toml` can make still have their places, and their tests are there."""

import re

import pytest

from tests.health.sources import ROOT
from tools.mutants import KINDS, Mutant, mutants

ALL = mutants()


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.rule)
def test_a_fault_can_be_made_and_is_looked_for(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text("utf-8")
    assert mutant.apply(text) != text
    assert sum(bool(getattr(mutant, kind)) for kind in KINDS) == 1
    if mutant.package:
        crate = ROOT / "native" / "crates" / mutant.package.removeprefix("urds-").replace("-", "_")
        sources = [*crate.rglob("*.rs")]
        pattern = rf"fn {mutant.test}\b|mod {mutant.test}\b"
    elif mutant.loom:
        sources = [ROOT / "native" / "loom" / "tests" / f"{mutant.loom}.rs"]
        pattern = rf"fn {mutant.test}\("
    elif mutant.fuzz:
        sources = [ROOT / "native" / "fuzz" / "tests" / "made_up.rs"]
        pattern = rf"fn {mutant.test}\("
    else:
        file, _, name = mutant.test.partition("::")
        sources, pattern = [ROOT / file], rf"def {name}\("
    assert any(re.search(pattern, source.read_text("utf-8")) for source in sources)


def test_each_fault_is_another_one() -> None:
    assert len({mutant.rule for mutant in ALL}) == len(ALL)
    assert len({(mutant.file, mutant.find, mutant.replace) for mutant in ALL}) == len(ALL)
