"""The tree belongs to no machine: no home directory, no index host; locks carry hashes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.health.sources import ROOT

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
FOLDERS = ("src", "tests", "tools", "docs", "examples", "benches", "requirements", ".ci", "changes")
SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ""}
# Folders of one person or one machine. A guest's /root and a socket in /run belong to none.
OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(home|Users)/\w+|(?<![\w.])/(work|tmp)/(?!urds)\w+/\w+")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")
PIN = re.compile(r"^[a-z0-9._-]+==[\w.+!-]+( ; [^\\]+)? \\$")


def texts() -> Iterator[Path]:
    """Yield the text files of the tree, without what the tools leave behind."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.suffix in SUFFIXES)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            hidden = "__pycache__" in path.parts or ".cache" in path.parts
            if path.is_file() and path.suffix in SUFFIXES and not hidden:
                yield path


def test_no_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in texts()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1)
        if OF_ONE_MACHINE.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_has_pins_and_hashes_only(lock: Path) -> None:
    """Refuses an index, a local file and a package without hashes."""
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    odd = [line for line in lines if line and not HASH.match(line) and not PIN.match(line)]
    assert odd == []
    pins = [number for number, line in enumerate(lines) if PIN.match(line)]
    assert pins
    assert all(HASH.match(lines[number + 1]) for number in pins)
