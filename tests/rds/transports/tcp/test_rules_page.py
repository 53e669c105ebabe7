"""The page of the twelve rules and the tests that show them name each other rightly."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[3] / "docs" / "protocol" / "rds-tcp.md"


def rows() -> list[tuple[int, list[str]]]:
    """Return rule and named tests of each row of the table."""
    section = PAGE.read_text(encoding="utf-8").partition("## Surviving resets")[2]
    lines = [line.split("|") for line in section.partition("\n## ")[0].splitlines()]
    numbered = [cells for cells in lines if len(cells) == 6 and cells[1].strip().isdigit()]
    return [(int(cells[1]), re.findall(r"`(test_\w+)`", cells[4])) for cells in numbered]


def test_each_rule_has_a_test_as_built_and_one_switched_off() -> None:
    assert {rule for rule, _ in rows()} == set(range(1, 13))
    assert all(len(names) == 2 for _, names in rows())


def test_each_named_test_exists() -> None:
    functions = {
        node.name
        for path in FOLDER.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    named = {name for _, names in rows() for name in names}
    assert named - functions == set()
