"""Add up the tests of several runs from their JUnit files and print one plain line.

    python tools/summary.py .reports/test.xml .reports/interop.xml

The last line printed is `N passed, N failed, N skipped`. With `--ran FILE` it fails if the
run in FILE skipped a test or ran none: on a machine that must run them all, a skip is a hole.
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

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read(path: Path) -> Counts:
    """Count the tests in one JUnit file. Raises OSError or ParseError for a broken one."""
    counts = Counts()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        failed = bool(kinds & {"failure", "error"})
        skipped = not failed and "skipped" in kinds
        counts += Counts(not failed and not skipped, failed, skipped)
    return counts


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
    print(total, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
