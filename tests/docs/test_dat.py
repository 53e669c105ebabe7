"""The page of uDAPL names calls, methods and fields that are there."""

import dataclasses
import re

import pytest

from tests.docs.pages import ROOT
from urds import dat

TEXT = (ROOT / "docs/dat.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[tuple[str, str]]:
    """Return the cells of the table below a line that begins with `| heading |`."""
    _, found, after = TEXT.partition(f"\n| {heading} |")
    assert found
    lines = after.split("\n\n", 1)[0].splitlines()[2:]
    return [(cells[1], cells[2]) for line in lines if (cells := line.split("|"))]


@pytest.mark.parametrize("row", rows("call | method or attribute"), ids=lambda row: row[0].strip())
def test_a_call_and_its_method_exist(row: tuple[str, str]) -> None:
    calls, methods = (re.findall(r"`([\w.]+)`", cell) for cell in row)
    assert all(hasattr(dat, call) for call in calls)
    kind = ""
    for method in methods:
        kind, name = (method.split(".")[0] or kind), method.split(".")[1]
        assert hasattr(getattr(dat, kind), name), method


@pytest.mark.parametrize("row", rows("event | and"), ids=lambda row: row[0].strip())
def test_an_event_has_the_fields_that_the_page_names(row: tuple[str, str]) -> None:
    event, named = getattr(dat, row[0].strip(" `")), set(re.findall(r"`(\w+)(?:\(\))?`", row[1]))
    fields = {field.name for field in dataclasses.fields(event)} - {"event_number", "evd_handle"}
    assert fields <= named
    assert all(hasattr(event, name) for name in named)
