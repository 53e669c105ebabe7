"""What others see is listed, described and typed: `__all__`, docstrings, reasons of ignores."""

import ast
import re
from importlib import import_module

import pytest

from tests.health.sources import PACKAGE, ROOT, definitions, is_public, modules

# Modules that may catch `Exception`: they keep other people's code, or one mistake of ours, from
# ending everything.
# Each calls code of others in a thread that many need.
MAY_CATCH_EXCEPTION = {
    "urds.cli.dask.demo_job",  # of any job that Dask lost
    "urds.common.progress",
    "urds.rds.node.connections",
    "urds.rds.runtime.guard",
    "urds.rds.runtime.peer_events",
}
IGNORE = re.compile(r"#\s*(type:\s*ignore|noqa)(?P<rest>.*)$")
CODES = r"(\[[\w, -]+\]|: ?[A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)*)"
IGNORE_WITH_REASON = re.compile(rf"^{CODES}\s+[-#]\s*[\w`]+")


def test_public_things_have_a_docstring() -> None:
    """A module, class or function that others may use says what it is for."""
    missing = [f"{one.place}:1: module" for one in modules() if not ast.get_docstring(one.tree)]
    missing += [
        f"{module.place}:{node.lineno}: {name}"
        for module in modules()
        for name, node in definitions(module.tree.body)
        if all(map(is_public, name.split(".")))
        and not _speaks_elsewhere(node)
        and not ast.get_docstring(node)
    ]
    assert missing == []


def test_exceptions_are_caught_by_name() -> None:
    """No bare `except`, and `except Exception` only where the table allows it."""
    broad = [
        f"{module.place}:{node.lineno}"
        for module in modules()
        if module.name not in MAY_CATCH_EXCEPTION
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"})
        and not _reraises(node)
    ]
    assert broad == []


def test_an_ignored_finding_carries_its_code_and_reason() -> None:
    """Accepts `# type: ignore[code]  # why` and `# noqa: X000  # why`."""
    bare = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("src", "tests", "tools", "examples", "benches", "fuzz")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "test_public.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (found := IGNORE.search(line)) and not IGNORE_WITH_REASON.match(found["rest"])
    ]
    assert bare == []


@pytest.mark.parametrize("line", ["x  # type: ignore", "x  # noqa", "x  # noqa: E501"])
def test_a_bare_ignore_is_found(line: str) -> None:
    found = IGNORE.search(line)
    assert found
    assert not IGNORE_WITH_REASON.match(found["rest"])


@pytest.mark.parametrize("line", ["x  # type: ignore[arg-type]  # why", "x  # noqa: E501 - why"])
def test_an_ignore_with_a_reason_passes(line: str) -> None:
    found = IGNORE.search(line)
    assert found
    assert IGNORE_WITH_REASON.match(found["rest"])


@pytest.mark.parametrize("name", ["urds", "urds.dat"])
def test_the_public_list_is_complete(name: str) -> None:
    """`__all__` names exactly what the package's stub brings in or defines, nothing twice."""
    package = import_module(name)
    stub = PACKAGE.joinpath(*name.split(".")[1:], "__init__.pyi")
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    listed = _listed(tree)
    assert listed is not None, f"{name} has no literal __all__"
    assert len(listed) == len(set(listed)), "a name stands twice in __all__"
    assert set(listed) == set(package.__all__)
    assert len(package.__all__) == len(listed)
    assert set(filter(is_public, _bound(tree))) == set(listed)


def test_every_name_of_the_public_list_is_there() -> None:
    """Asks for each, since some are imported only when first asked for."""
    import urds

    assert [name for name in urds.__all__ if not hasattr(urds, name)] == []


def _listed(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(name, ast.Name) and name.id == "__all__" for name in targets):
            assert isinstance(node, ast.Assign)
            value = ast.literal_eval(node.value)
            return [str(name) for name in value]
    return None


def _bound(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("urds."):
            if node.names[0].name == "*":
                names.update(import_module(str(node.module)).__all__)
            else:
                names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def _speaks_elsewhere(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Tell an overload, and the setter of a property, from what needs a docstring of its own."""
    decorators = map(ast.unparse, node.decorator_list)
    return any(decorator.endswith(("overload", ".setter")) for decorator in decorators)


def _reraises(node: ast.ExceptHandler) -> bool:
    return any(isinstance(child, ast.Raise) and child.exc is None for child in ast.walk(node))
