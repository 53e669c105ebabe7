"""The drawings of docs/architecture name files that are there, and every folder of their system."""

import re
from pathlib import Path

import pytest

from tests.health.sources import PACKAGE, ROOT

PAGES = sorted((ROOT / "docs" / "architecture").glob("*.md"))
DRAWING = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"(?<![\w/.-])(\w+(?:/\w+)*)(\.py|/)(?![\w/])")


def named(drawing: str) -> list[str]:
    """Return the paths of a drawing; a folder at the head of a row holds the names beside it."""
    found = []
    folder = ""
    for line in drawing.splitlines():
        if line.startswith(" ") and not line.startswith("  ") and line.strip():
            head = NAME.match(line[1:])
            folder = f"{head[1]}/" if head and head[2] == "/" else ""
            line = line[1 + len(folder) :] if folder else line
            found += [folder] * bool(folder)
        found += [f"{folder}{match[1]}{match[2]}" for match in NAME.finditer(line)]
    return found


def wrong(drawing: str, base: Path) -> list[str]:
    """Return names that lead nowhere, and folders with modules that are not drawn."""
    names = named(drawing)
    lost = [f"{name} is not in {base.name}" for name in names if not _exists(base / name)]
    folders = [path.parent.relative_to(base) for path in base.rglob("__init__.py")]
    shown = {Path(name).parts[: i + 1] for name in names for i in range(len(Path(name).parts))}
    missing = [f"{folder} is not drawn" for folder in folders if _hidden(folder, shown)]
    return lost + missing


def _exists(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _hidden(folder: Path, shown: set[tuple[str, ...]]) -> bool:
    return bool(folder.parts) and folder.parts not in shown


def test_each_system_has_a_page() -> None:
    assert [page.stem for page in PAGES] == ["dat", "rds", "rsocket", "verbs"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_drawing_agrees_with_the_tree(page: Path) -> None:
    drawings = DRAWING.findall(page.read_text("utf-8"))
    assert len(drawings) == 1
    assert wrong(drawings[0], PACKAGE / page.stem) == []
    assert len(named(drawings[0])) > 10


def test_the_drawing_of_all_shows_every_system() -> None:
    (drawing,) = DRAWING.findall((ROOT / "docs" / "architecture.md").read_text("utf-8"))
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {match[1] for match in NAME.finditer(drawing)} == folders


def test_a_wrong_drawing_is_found() -> None:
    base = PACKAGE / "verbs"
    assert "no_such.py is not in verbs" in wrong(" objects  no_such.py\n", base)
    assert "engine is not drawn" in wrong(" objects  qp.py\n", base)
