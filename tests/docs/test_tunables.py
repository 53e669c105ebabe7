"""docs/tunables.md lists every tunable with its default and its range, and nothing else."""

from dataclasses import fields

from tests.docs.pages import ROOT
from urds.rds.settings import ALIASES, Settings

PAGE = (ROOT / "docs" / "tunables.md").read_text(encoding="utf-8")


def test_the_page_has_every_tunable_with_default_and_range() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    listed = [(name.strip("`"), default, allowed) for name, default, allowed, _ in rows]
    known = [
        (one.name, str(one.metadata["default"]), one.metadata["rule"].allowed)
        for one in fields(Settings)
    ]
    assert sorted(listed) == sorted(known)


def test_the_page_has_the_defaults_of_strict_linux() -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith("With `strict_linux`")]
    other = [one for one in fields(Settings) if one.metadata["strict"] != one.metadata["default"]]
    told = [f"`{one.name}` {one.metadata['strict']}" for one in other]
    assert [text for text in told if text not in line] == []


def test_the_page_has_every_other_spelling() -> None:
    assert [name for name in ALIASES if f"`{name}`" not in PAGE] == []
