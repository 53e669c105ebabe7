"""Add up the tests of several runs from their JUnit files and print one plain line.

    python tools/summary.py .reports/test.xml .reports/interop.xml

The last line printed is `N passed, N failed, N skipped`. With `--ran FILE` it fails if the
run in FILE skipped a test or ran none: on a machine that must run them all, a skip is a hole.

A test that was tried twice is in its file twice and counts once, by its last try; a line above the
sum names it.
"""

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Counts:
    """Tests of one run or of several."""

    passed: int = 0
    failed: int = 0  # errors in set-up and clean-up too
    skipped: int = 0
    again: tuple[str, ...] = ()  # names of those tried twice; they are in the numbers above

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.again + other.again,
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read(path: Path) -> Counts:
    """Count the tests in one JUnit file. Raises OSError or ParseError for a broken one."""
    tries: dict[tuple[str, ...], list[set[str]]] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = tuple(case.get(key, "") for key in ("file", "classname", "name"))
        tries.setdefault(name, []).append({child.tag for child in case})
    counts = Counts()
    for name, kinds in tries.items():
        failed = _failed(kinds[-1])
        skipped = not failed and "skipped" in kinds[-1]
        # The first try leaves an entry that looks like success. A test that fails, and then fails
        # to clean up, has two entries as well, but both are failures.
        again = not all(_failed(earlier) for earlier in kinds[:-1])
        names = (".".join(filter(None, name[1:])),) if again else ()
        counts += Counts(not failed and not skipped, failed, skipped, names)
    return counts


def _failed(kinds: set[str]) -> bool:
    return bool(kinds & {"failure", "error"})


def main() -> int:
    """Print the counts of each file and their sum; return 1 where `--ran` does not hold."""
    parser = argparse.ArgumentParser(description="Add up JUnit files.")
    parser.add_argument("--ran", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("files", type=Path, nargs="*")
    options = parser.parse_args()
    total, code = Counts(), 0
    for path in dict.fromkeys([*options.files, *options.ran]):
        try:
            counts = read(path)
        except (OSError, ElementTree.ParseError) as error:
            print(f"{path.stem}: no result ({error})")
            code = 1
            continue
        print(f"{path.stem}: {counts}")
        total += counts
        if path in options.ran and (counts.skipped or not counts.passed + counts.failed):
            print(f"{path.stem}: every test must run here, none may be skipped")
            code = 1
    if total.again:
        print(f"tried twice: {len(total.again)} ({', '.join(total.again)})")
    print(total, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
