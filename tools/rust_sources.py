"""Read the Rust below `native/` as text: functions, `unsafe`, and which parts are tests.

A light reader, no parser: it blanks comments, strings and characters and counts braces, which is
enough for sizes. Macros that write functions are beyond it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CRATES = ROOT / "native" / "crates"

_QUIET = re.compile(
    r"""//[^\n]*                                    # a comment up to the end of its line
    | \b(?:b|c|br|cr|r)?(?P<hashes>\#+)".*?"(?P=hashes)   # a raw string with hashes
    | \b(?:r|br|cr)".*?"                          # one without
    | "(?:\\.|[^"\\])*"                           # a string
    | '(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])'       # a character, no lifetime""",
    re.VERBOSE | re.DOTALL,
)
_FUNCTION = re.compile(r"\bfn\s+(\w+)")
_FILE = re.compile(r'(?:^\#\[path = "(?P<path>[^"]+)"\]\s*)?^mod (?P<name>\w+);', re.MULTILINE)
_TEST_FILE = re.compile(r"^#\[cfg\(test\)\]\s*" + _FILE.pattern, re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """One Rust file."""

    path: Path
    text: str
    code: str  # the same with comments and literals blanked, line by line

    @property
    def place(self) -> str:
        """Return the path as a reader types it, `native/crates/path/src/header.rs`."""
        return self.path.relative_to(ROOT).as_posix()


@cache
def sources() -> tuple[Source, ...]:
    """Return every Rust file of the crates, sorted."""
    return tuple(read(path) for path in sorted(CRATES.rglob("*.rs")) if "target" not in path.parts)


def read(path: Path) -> Source:
    """Read one file."""
    text = path.read_text(encoding="utf-8")
    return Source(path, text, blanked(text))


def blanked(text: str) -> str:
    """Return Rust without comments, strings and characters, every line kept in its place."""
    text = _without_block_comments(text)
    return _QUIET.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _without_block_comments(text: str) -> str:
    # They nest, which no expression can follow. One inside a string is not told apart: the sources
    # have none.
    parts, depth, end = [], 0, 0
    for found in re.finditer(r"/\*|\*/|\n", text):
        parts.append(text[end : found.start()] if depth == 0 else "")
        end = found.end()
        if found[0] == "\n":
            parts.append("\n")
        elif found[0] == "/*" or depth:
            depth += 1 if found[0] == "/*" else -1
        else:
            parts.append(found[0])
    return "".join([*parts, text[end:]])


def functions(source: Source) -> Iterator[tuple[str, int, int]]:
    """Yield name, first line and number of lines of each function with a body."""
    for found in _FUNCTION.finditer(source.code):
        if (end := _end_of_block(source.code, found.end())) is not None:
            first = source.code.count("\n", 0, found.start()) + 1
            yield found[1], first, source.code.count("\n", found.start(), end) + 1


def unsafe_lines(source: Source) -> list[int]:
    """Return the lines, from 1, on which code has the word `unsafe`."""
    lines = source.code.splitlines()
    return [number for number, line in enumerate(lines, 1) if re.search(r"\bunsafe\b", line)]


def has_reason(source: Source, line: int) -> bool:
    """Tell whether the paragraph above a line says why the `unsafe` on it is sound.

    A function that is declared unsafe does nothing yet; its callers and the blocks in it need one.
    """
    if re.search(r"\bunsafe\s+(extern\b.*)?fn\b", source.code.splitlines()[line - 1]):
        return True
    for text in reversed(source.text.splitlines()[:line]):
        if "SAFETY:" in text or "# Safety" in text:
            return True
        if not text.strip():
            return False
    return False


def test_modules(several: Sequence[Source]) -> set[str]:
    """Return the stems of the files that only tests compile, modules of test modules too."""
    known = set()
    for expression in (_TEST_FILE, _FILE):
        inside = [one for one in several if expression is _TEST_FILE or one.path.stem in known]
        for found in (found for one in inside for found in expression.finditer(one.text)):
            known.add(Path(found["path"] or found["name"]).stem)
    return known


def _end_of_block(code: str, start: int) -> int | None:
    """Return where the block that opens after `start` closes; None if a `;` comes before it."""
    depth = brackets = 0
    for found in re.finditer(r"[{}();\[\]]", code[start:]):
        mark = found[0]
        if mark in "([":
            brackets += 1
        elif mark in ")]":
            brackets -= 1
        elif mark == "{":
            depth += 1
        elif mark == "}":
            depth -= 1
            if depth <= 0:
                return start + found.end()
        elif depth == 0 and brackets == 0:
            return None
    return None
