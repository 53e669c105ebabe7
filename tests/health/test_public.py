"""What others see is listed, described and typed: `__all__`, docstrings, reasons of ignores."""

import ast
import re

import pytest

from tests.health.sources import ROOT, Module, definitions, is_public, modules

# Modules that may catch `Exception`: they keep other people's code, or one mistake of ours, from
# ending everything.
MAY_CATCH_EXCEPTION = {"urds.node.supervisor", "urds.driver.guard"}
IGNORE = re.compile(r"#\s*(type:\s*ignore|noqa)(?P<rest>.*)$")
CODES = r"(\[[\w, -]+\]|: ?[A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)*)"
IGNORE_WITH_REASON = re.compile(rf"^{CODES}\s+[-#]\s*[\w`]+")


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_public_things_have_a_docstring(module: Module) -> None:
    """A module, class or function that others may use says what it is for."""
    missing = [] if ast.get_docstring(module.tree) else [f"{module.place}:1: module"]
    missing += [
        f"{module.place}:{node.lineno}: {name}"
        for name, node in definitions(module.tree.body)
        if all(map(is_public, name.split(".")))
        and not _speaks_elsewhere(node)
        and not ast.get_docstring(node)
    ]
    assert missing == []


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_exceptions_are_caught_by_name(module: Module) -> None:
    """No bare `except`, and `except Exception` only where the table allows it."""
    broad = [
        f"{module.place}:{node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"})
        and not _reraises(node)
    ]
    assert broad == [] or module.name in MAY_CATCH_EXCEPTION


@pytest.mark.parametrize("folder", ["src", "tests", "tools", "examples", "benches", "fuzz"])
def test_an_ignored_finding_carries_its_code_and_reason(folder: str) -> None:
    """Accepts `# type: ignore[code]  # why` and `# noqa: X000  # why`."""
    bare = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
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


def test_the_public_list_is_complete() -> None:
    """`urds.__all__` names exactly what `urds/__init__.py` brings in, and nothing twice."""
    root = next((module for module in modules() if module.name == "urds"), None)
    assert root is not None, "src/urds/__init__.py does not exist"
    listed = _listed(root.tree)
    assert listed is not None, "urds has no literal __all__"
    assert len(listed) == len(set(listed)), "a name stands twice in __all__"
    assert set(filter(is_public, _bound(root.tree))) - set(listed) == set()


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
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("urds"):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def _speaks_elsewhere(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Tell an overload, and the setter of a property, from what needs a docstring of its own."""
    decorators = map(ast.unparse, node.decorator_list)
    return any(decorator.endswith(("overload", ".setter")) for decorator in decorators)


def _reraises(node: ast.ExceptHandler) -> bool:
    return any(isinstance(child, ast.Raise) and child.exc is None for child in ast.walk(node))
