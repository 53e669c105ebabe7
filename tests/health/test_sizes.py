"""Sizes of the house style: a file stops at 800 lines, a class at 400, a function at 60.

A file is one theme with the state that it owns, 150 to 500 lines as a rule: it is cut by meaning,
never because of its length. ruff holds the line at 100 columns.
"""

import ast

from tests.health.sources import ROOT, definitions, modules

FILE_LINES_MAX = 800
CLASS_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

# Classes that are longer. The list may lose names, and gets none.
LONG_CLASSES = {
    "CMID", "CmCore", "Mailbox", "ProgressLoop", "RdmaSocket", "SocketBase",
}  # fmt: skip


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring: a long explanation is welcome."""
    last = node.end_lineno or node.lineno
    lines = last - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_functions_end_before_the_stop() -> None:
    long = [
        f"{module.place}:{node.lineno}: {name} has {function_lines(node)} lines"
        for module in modules()
        for name, node in definitions(module.tree.body)
        if not isinstance(node, ast.ClassDef) and function_lines(node) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_classes_end_before_the_stop() -> None:
    long = [
        f"{module.place}:{node.lineno}: {name} has {lines} lines"
        for module in modules()
        for name, node in definitions(module.tree.body)
        if isinstance(node, ast.ClassDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > CLASS_LINES_MAX
        and node.name not in LONG_CLASSES
    ]
    assert long == []


def test_files_end_before_the_stop() -> None:
    """Counts our Python everywhere: source, tests, tools, examples, measurements."""
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for folder in ("src", "tests", "tools", "examples", "benches", "fuzz")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert long == []
