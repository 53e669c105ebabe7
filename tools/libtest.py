"""Turn what `cargo test` prints into a JUnit file, so that Rust's tests count with the others.

Rust's own test programs write no JUnit. Their lines are stable since Rust 1.0:
`test module::name ... ok`, `FAILED` or `ignored, reason`; what a failed one had to say follows
between `---- module::name stdout ----` and the next such line.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_PROGRAM = re.compile(r"^\s*(?:Running .*\(.*?(\w+)-[0-9a-f]+\)|Doc-tests (\S+))$")
_RESULT = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)(?:, (.*))?$")
_SAID = re.compile(r"^---- (.+) stdout ----$")
_END = re.compile(r"^(failures:|test result: .*)$")
SAID_LINES_MAX = 60


@dataclass(slots=True)
class Case:
    """One test of one program."""

    program: str  # the crate, `urds_path`
    name: str
    outcome: str  # ok, FAILED, ignored
    said: list[str] = field(default_factory=list)  # of a failed one; or why it is ignored


def parse(lines: Iterable[str]) -> list[Case]:
    """Return the tests in the order of their results."""
    cases: dict[tuple[str, str], Case] = {}
    program, speaker = "", None
    for line in map(str.rstrip, lines):
        if found := _PROGRAM.match(line):
            program, speaker = found[1] or found[2], None
        elif found := _RESULT.match(line):
            reason = [found[3]] if found[3] else []
            cases[program, found[1]] = Case(program, found[1], found[2], reason)
        elif found := _SAID.match(line):
            speaker = cases.get((program, found[1]))
        elif _END.match(line):
            speaker = None
        elif speaker is not None and len(speaker.said) < SAID_LINES_MAX:
            speaker.said.append(line)
    return list(cases.values())


def write(path: Path, cases: Iterable[Case]) -> None:
    """Write the JUnit file."""
    suite = ElementTree.Element("testsuite", name="rust")
    for case in cases:
        module, _, name = case.name.rpartition("::")
        place = ".".join(filter(None, [case.program, module.replace("::", ".")]))
        element = ElementTree.SubElement(suite, "testcase", classname=place, name=name)
        if case.outcome != "ok":
            tag = "skipped" if case.outcome == "ignored" else "failure"
            said = "\n".join(case.said)
            ElementTree.SubElement(element, tag, message=said[:200]).text = _printable(said)
    path.parent.mkdir(parents=True, exist_ok=True)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    # XML knows no control characters; a test may print any.
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "?", text)
