"""Read the project's pages: README and docs, their code blocks and links."""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)$")
LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)]*))?\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
NAMED = re.compile(r'<a id="([\w-]+)">')


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int  # of the opening fence
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page that the project shows, sorted."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(*languages: str) -> list[Block]:
    """Return all blocks of these languages, in the order of the pages."""
    return [block for page in pages() for block in _read(page) if block.language in languages]


def all_blocks() -> list[Block]:
    """Return all blocks of all pages."""
    return [block for page in pages() for block in _read(page)]


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield target and anchor of each link of a page; a link within the page has no target."""
    for found in LINK.finditer(page.read_text(encoding="utf-8")):
        yield found["target"], found["anchor"] or ""


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: what it names, and its headings as GitHub spells them."""
    text = page.read_text(encoding="utf-8")
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {*NAMED.findall(text), *(heading.strip().replace(" ", "-") for heading in headings)}


def environment() -> dict[str, str]:
    """Return the environment in which a block runs: the checkout, and this interpreter first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    certificate = str(ROOT / "tests" / "support" / "localhost.pem")
    ours = {"PYTHONPATH": str(ROOT / "src"), "PATH": path, "CERTIFICATE": certificate}
    return {**os.environ, **ours}


def _read(page: Path) -> Iterator[Block]:
    name = page.relative_to(ROOT).as_posix()
    opened: tuple[int, str, str] | None = None
    text: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, text = (number, fence["language"], fence["indent"]), []
        elif opened is not None and line.strip() == "```":
            yield Block(name, opened[0], opened[1], "\n".join(text) + "\n")
            opened = None
        elif opened is not None:
            text.append(line.removeprefix(opened[2]))
    assert opened is None, f"{name}:{opened}: a block without an end"
