"""Read the package's source as data: which modules exist, their syntax trees, what they import.

The health tests judge the text of `src/urds`, never the imported modules, so that a broken
module still gets a clear answer.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "urds"


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of the package."""

    name: str  # dotted, `urds.rds.wire.header`; a package has no `.__init__`
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        """Tell whether relative imports start at the module itself."""
        return self.path.name == "__init__.py"

    @property
    def place(self) -> str:
        """Return the path as a reader types it, `src/urds/rds/wire/header.py`."""
        return self.path.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, absolute, with the line it stands on."""

    target: str
    line: int
    for_types_only: bool  # inside `if TYPE_CHECKING:`, so absent at run time


@cache
def modules() -> tuple[Module, ...]:
    """Return every module of `src/urds`, sorted by name."""
    return tuple(sorted(map(read, PACKAGE.rglob("*.py")), key=lambda module: module.name))


def read(path: Path) -> Module:
    """Parse one file below `src`."""
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    text = path.read_text(encoding="utf-8")
    return Module(".".join(parts), path, text, ast.parse(text, filename=str(path)))


def imports(module: Module) -> Iterator[Import]:
    """Yield all imports of a module, at any depth, relative ones made absolute.

    `from urds.rds.wire import header` yields `urds.rds.wire.header` where that is a module and
    `urds.rds.wire` where the name is an attribute.
    """
    typed = _type_checking_lines(module.tree)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node.lineno in typed)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                yield Import(_module_of(base, alias.name), node.lineno, node.lineno in typed)


def is_public(name: str) -> bool:
    """Tell whether a name is meant for others: no leading underscore."""
    return not name.startswith("_")


def definitions(
    body: list[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Yield functions and classes with their dotted names, those inside classes too."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If):
            yield from definitions(node.body + node.orelse, prefix)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    up = node.level - 1 if module.is_package else node.level
    base = parts[: len(parts) - up] if up else parts
    return ".".join([*base, node.module] if node.module else base)


def _module_of(base: str, name: str) -> str:
    if not base.startswith("urds"):
        return base
    path = PACKAGE.joinpath(*base.split(".")[1:], name)
    return f"{base}.{name}" if path.with_suffix(".py").exists() or path.is_dir() else base


def _type_checking_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                lines.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    return lines
