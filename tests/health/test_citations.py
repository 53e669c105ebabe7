"""A citation of a page of this tree opens: the page is there, and so is the heading that it names.

The form is one: `docs/reference/rds.md 3.4`, further sections after a comma or "and", a range with
a hyphen.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.health.sources import ROOT

PAGES = ROOT / "docs" / "reference"
SECTION = r"\d+(?:\.\d+)*(?:-\d+(?:\.\d+)*)?"
CITATION = re.compile(rf"docs/reference/([\w-]*)(?:\.md((?:,?(?: and)? {SECTION}(?![\w.]\w))*))?")
HEADING = re.compile(r"^#{2,4} (\d+(?:\.\d+)*)\b", re.MULTILINE)
PAGE = re.compile(r"(?<![\w./-])[\w./-]+\.md\b")
# What a comment is wrapped with: a citation may begin a new line between its parts.
WRAPPED = re.compile(r"\n\s*(?:#|//[!/]?)? ?")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            built = "target" in path.parts or path == Path(__file__)
            if path.suffix in {".py", ".pyi", ".rs", ".toml"} and not built:
                yield path


@cache
def headings(page: str) -> frozenset[str]:
    """Return the numbers of a page's headings; none if there is no such page."""
    path = PAGES / f"{page}.md"
    return frozenset(HEADING.findall(path.read_text("utf-8"))) if path.is_file() else frozenset()


def broken(text: str) -> list[str]:
    """Return the citations of a text that name no page or no heading."""
    found = []
    for match in CITATION.finditer(WRAPPED.sub(" ", text)):
        page, sections = match[1], re.findall(SECTION, match[2] or "")
        wanted = {end for section in sections for end in section.split("-")}
        if not wanted or not wanted <= headings(page):
            found.append(match[0])
    return found


def test_every_citation_names_a_heading() -> None:
    cited = 0
    found = []
    for path in sources("src", "native", "tests", "tools", "benches", "examples"):
        text = path.read_text("utf-8")
        cited += text.count("docs/reference/")
        found += [f"{path.relative_to(ROOT)}: {citation}" for citation in broken(text)]
    assert found == []
    assert cited > 150


def test_every_page_that_the_product_names_is_there() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {page}"
        for path in sources("src", "native")
        for page in PAGE.findall(path.read_text("utf-8"))
        if not (ROOT / page).is_file()
    ]
    assert found == []


@pytest.mark.parametrize(
    "citation",
    [
        "docs/reference/rds.md",
        "docs/reference/no.md 1",
        "docs/reference/rds.md 3.44",
        "docs/reference/rds.md 3.4, 99",
        "docs/reference/rds.md 3.4 and 99",
        "docs/reference/rds.md 3.4-3.99",
    ],
)
def test_a_citation_that_does_not_open_is_found(citation: str) -> None:
    assert broken(f"Source: {citation}; more.\n")
    assert not broken("Source: docs/reference/rds.md 3.4,\n    3.5, 4.1-4.3; 7 more. In 6.1.\n")


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [
        page for page in pages if page not in index and not page.startswith(("adr/", "index"))
    ] == []


def test_the_source_distribution_has_the_pages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "/docs" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


def test_each_change_has_a_kind_of_the_release_notes() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
    kinds = {one["directory"] for one in config["type"]}
    names = [path.name for path in (ROOT / "changes").glob("*.md") if path.name != "README.md"]
    assert [name for name in names if name.split(".")[-2] not in kinds] == []
    readme = (ROOT / "changes" / "README.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE)) == kinds


def test_the_contract_has_as_many_calls_as_its_decision_says() -> None:
    contract = ast.parse((ROOT / "src/urds/rds/plane/contract.py").read_text("utf-8"))
    (path,) = [n for n in contract.body if isinstance(n, ast.ClassDef) and n.name == "Path"]
    calls = [node.name for node in path.body if isinstance(node, ast.FunctionDef)]
    page = (ROOT / "docs/adr/0003-the-contract-as-built.md").read_text("utf-8")
    assert f"{len(calls)} of a path instead of 4" in page


def test_every_file_that_a_page_names_is_there() -> None:
    """In backticks, from the root or, in the glossary, below `src/urds`."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "native" / "README.md"]
    built = ("native/target/", "tools/testing/")  # not in the tree: cargo, the kernel
    named = re.compile(r"`((?:src|native|tests|tools|benches|examples|docs|fuzz)/[\w./-]+)`")
    below = re.compile(r"`((?:rds|verbs|rsocket|dat|common|cli)/[\w/]+\.py)`")
    found = []
    for page in pages:
        text = page.read_text("utf-8")
        files = [ROOT / name for name in named.findall(text) if not name.startswith(built)]
        files += [ROOT / "src" / "urds" / name for name in below.findall(text)]
        found += [f"{page.name}: {path}" for path in files if not path.exists()]
    assert found == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 100
