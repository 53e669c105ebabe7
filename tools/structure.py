"""Print the shape of `src/urds`: lines, arrows between folders, cycles, class names used twice.

    python -m tools.structure
    python -m tools.structure --json

An arrow is an import of one folder's module by another one's. A cycle is a set of files each of
which imports all others, directly or not; imports for types alone are counted apart.
"""

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "urds"


@dataclass(frozen=True, slots=True)
class Structure:
    """What the tool prints."""

    lines: dict[str, int]  # by folder: `rds/control`
    arrows: dict[str, int]  # between what lies at the top: `rds -> verbs`, how many imports
    top_cycles: list[list[str]]
    cycles: list[list[str]]  # of files, the longest first
    cycles_at_run_time: list[list[str]]  # without imports for types
    classes_twice: dict[str, list[str]]  # by name, in which modules


def measured() -> Structure:
    """Read the tree. Takes a second."""
    graph = _graph(types=True)
    arrows = _arrows(graph)
    top = {name: {other for one, other in arrows if one == name} for name, _ in arrows}
    return Structure(
        lines=_lines(),
        arrows={f"{one} -> {other}": count for (one, other), count in sorted(arrows.items())},
        top_cycles=cycles(top),
        cycles=cycles(_files(graph)),
        cycles_at_run_time=cycles(_files(_graph(types=False))),
        classes_twice=_classes_twice(),
    )


def cycles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the sets of names that reach each other, the longest first, each sorted."""
    reached = {name: _reached(arrows, name) for name in arrows}
    found = {
        tuple(sorted(other for other in reached[name] if name in reached.get(other, ())))
        for name in arrows
        if name in reached[name]
    }
    return sorted(map(list, found), key=lambda names: (-len(names), names))


def _reached(arrows: Mapping[str, Iterable[str]], start: str) -> set[str]:
    seen: set[str] = set()
    pending = [start]
    while pending:
        for name in arrows.get(pending.pop(), ()):
            if name not in seen:
                seen.add(name)
                pending.append(name)
    return seen


def _graph(*, types: bool) -> grimp.ImportGraph:
    # No cache: a build takes a second, and a stored one would be stale.
    return grimp.build_graph(PACKAGE, cache_dir=None, exclude_type_checking_imports=not types)


def _files(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def _arrows(graph: grimp.ImportGraph) -> Counter[tuple[str, str]]:
    arrows: Counter[tuple[str, str]] = Counter()
    for name in graph.modules:
        for other in graph.find_modules_directly_imported_by(name):
            pair = _top(name), _top(other)
            if pair[0] != pair[1]:
                arrows[pair] += 1
    return arrows


def _top(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else PACKAGE


def _sources() -> list[Path]:
    return sorted((ROOT / "src" / PACKAGE).rglob("*.py"))


def _lines() -> dict[str, int]:
    lines: Counter[str] = Counter()
    for path in _sources():
        parts = path.relative_to(ROOT / "src" / PACKAGE).parts
        lines["/".join(parts[: min(2, len(parts) - 1)]) or "."] += len(
            path.read_text("utf-8").splitlines()
        )
    return dict(sorted(lines.items()))


def _classes_twice() -> dict[str, list[str]]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in _sources():
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def text(found: Structure) -> str:
    """Return the text for a reader."""
    whole = sum(found.lines.values())
    lines = [f"{count:7,}  {folder}" for folder, count in found.lines.items()]
    arrows = [f"{count:7,}  {arrow}" for arrow, count in found.arrows.items()]
    twice = [f"    {name}: {', '.join(where)}" for name, where in found.classes_twice.items()]
    parts = [
        [f"Lines: {whole:,}", *lines],
        [f"Arrows at the top: {len(arrows)}; imports by each", *arrows],
        _cycle_text("Cycles at the top", found.top_cycles),
        _cycle_text("Cycles of files, imports for types too", found.cycles),
        _cycle_text("Cycles of files at run time", found.cycles_at_run_time),
        [f"Class names of more than one class: {len(twice)}", *twice],
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def _cycle_text(title: str, found: list[list[str]]) -> list[str]:
    files = sum(map(len, found))
    return [f"{title}: {len(found)}, files {files}"] + [
        f"{len(names):7,}  {', '.join(names)}" for names in found
    ]


def main() -> int:
    """Print the structure; return 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one document for programs")
    options = parser.parse_args()
    found = measured()
    print(json.dumps(asdict(found), indent=1) if options.json else text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
