"""Rules and the tests that name them fit together; the conformance page knows every rule."""

import ast

import pytest

from tests.health.sources import ROOT
from tools.rules import Document, documents, known_ids


@pytest.mark.parametrize("document", documents(), ids=lambda document: document.key)
def test_a_rule_says_something_under_the_key_of_its_document(document: Document) -> None:
    for rule in document.rules:
        assert rule.id.startswith(f"{document.key}-"), rule.id
        assert rule.text.endswith("."), rule.id
        assert "|" not in rule.text + rule.note, f"{rule.id}: would break the table"


def test_each_marker_names_an_existing_rule() -> None:
    """Reads the text of all tests, those too that are not collected here."""
    texts = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}
    unknown = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(argument)}"
        for path, text in texts.items()
        if "mark.rule" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and _is_rule(node.func)
        for argument in node.args
        if isinstance(argument, ast.Constant) and argument.value not in known_ids()
    ]
    assert unknown == []


def _is_rule(called: ast.expr) -> bool:
    # To write each call of the tests as text would take longer than all else here.
    named = isinstance(called, ast.Attribute) and called.attr == "rule"
    return named and ast.unparse(called) == "pytest.mark.rule"


def test_the_conformance_page_lists_every_rule() -> None:
    """A rule that is new or gone needs `make docs`."""
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert listed == known_ids()
