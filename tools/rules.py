"""The rules of the source documents and the last outcomes of their tests.

Rules are data: `tools/conformance/*.toml`, one file per document. Results are a file of the
working tree, `.reports/rules.json`, which every test run adds to.
"""

import ast
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "tools" / "conformance"
RESULTS = ROOT / ".reports" / "rules.json"
# From good to bad: a test with many cases is as good as its worst.
OUTCOMES = ("passed", "skipped", "failed")
NOT_RUN, NOT_DONE = "not run", "not done"
_STRONGEST_FIRST = ("failed", "passed", "skipped", NOT_RUN)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of one document, in our words."""

    id: str  # as tests name it, `rds7-bind-once`
    section: str  # heading in the document
    text: str
    note: str = ""  # how it differs from "do it": Linux differs, RDMA only


@dataclass(frozen=True, slots=True)
class Document:
    """One source document with all its rules, in the order of the document."""

    order: int  # its place on the page
    key: str  # name of its file and first part of its rules' ids
    title: str
    about: str
    rules: tuple[Rule, ...]


@cache
def documents() -> tuple[Document, ...]:
    """Return all documents. Raises ValueError for a rule that occurs twice."""
    found = tuple(sorted(map(_read, RULES.glob("*.toml")), key=lambda document: document.order))
    ids = [rule.id for document in found for rule in document.rules]
    twice = {name for name in ids if ids.count(name) > 1}
    if twice:
        raise ValueError(f"rules that stand twice: {sorted(twice)}")
    return found


@cache
def known_ids() -> frozenset[str]:
    """Return the ids of all rules."""
    return frozenset(rule.id for document in documents() for rule in document.rules)


@dataclass(slots=True)
class Results:
    """Outcomes by rule and test function; the cases of one function count as one test."""

    tests: dict[str, dict[str, str]] = field(default_factory=dict)  # rule -> test -> outcome

    def add(self, test: str, rules: list[str], outcome: str) -> None:
        """Note one phase of one test: the worst of all its phases and cases stays."""
        function = test.split("[", maxsplit=1)[0]
        for rule in rules:
            outcomes = self.tests.setdefault(rule, {})
            worst = max(outcomes.get(function, "passed"), outcome, key=OUTCOMES.index)
            outcomes[function] = worst

    def save(self) -> None:
        """Write these results over the older ones of the same tests."""
        if not self.tests:
            return
        merged = load()
        seen = {test for outcomes in self.tests.values() for test in outcomes}
        for outcomes in merged.values():
            for test in seen & outcomes.keys():
                del outcomes[test]
        for rule, outcomes in self.tests.items():
            merged.setdefault(rule, {}).update(outcomes)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(merged, indent=1, sort_keys=True), encoding="utf-8")


def load() -> dict[str, dict[str, str]]:
    """Return the results of earlier runs, without tests whose file is gone."""
    if not RESULTS.exists():
        return {}
    stored: dict[str, dict[str, str]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {
        rule: {test: what for test, what in tests.items() if (ROOT / test.split("::")[0]).exists()}
        for rule, tests in stored.items()
    }


def shown() -> dict[str, dict[str, str]]:
    """Return by rule the tests that carry its marker and the last outcome of each, or NOT_RUN."""
    results = load()
    found: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for name, rules in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            for rule in rules:
                test = f"{file}::{name}"
                found.setdefault(rule, {})[test] = results.get(rule, {}).get(test, NOT_RUN)
    return found


def state(rule: Rule, results: dict[str, dict[str, str]]) -> str:
    """Return the last column for one rule."""
    outcomes = results.get(rule.id, {}).values()
    return next((one for one in _STRONGEST_FIRST if one in outcomes), NOT_DONE)


def _marked(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each test function with the rules of its own markers."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _marked(node, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = [
                mark
                for mark in node.decorator_list
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.rule"
            ]
            yield prefix + node.name, [ast.literal_eval(one) for mark in marks for one in mark.args]


def _read(path: Path) -> Document:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    rules = tuple(Rule(**row) for row in data["rule"])
    return Document(data["order"], path.stem, data["title"], data["about"], rules)
