"""The house style for Rust: sizes, where `unsafe` may stand, versions that belong together."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.health.sources import ROOT
from tests.health.test_sizes import FILE_LINES_MAX, FUNCTION_LINES_MAX
from tools import cargo, rust_sources
from tools.rust_sources import Source, sources

BINDINGS = {"pymodule", "shim", "preload", "liburds"}  # to Python, to C


def source(text: str) -> Source:
    """Return a file that holds `text`."""
    return Source(ROOT / "native" / "crates" / "it.rs", text, rust_sources.blanked(text))


def test_files_end_before_the_stop() -> None:
    long = [
        f"{one.place}: {lines} lines"
        for one in sources()
        if (lines := len(one.text.splitlines())) > FILE_LINES_MAX
    ]
    assert long == []


def test_functions_end_before_the_stop() -> None:
    long = [
        f"{one.place}:{line}: {name} has {lines} lines"
        for one in sources()
        for name, line, lines in rust_sources.functions(one)
        if lines > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_unsafe_stands_in_its_places_with_its_reason() -> None:
    """System calls and the bindings to Python and to C need it; nothing else does."""
    wrong = [
        f"{one.place}:{line}"
        for one in sources()
        for line in rust_sources.unsafe_lines(one)
        if not _may_be_unsafe(one.path) or not rust_sources.has_reason(one, line)
    ]
    assert wrong == []


def _may_be_unsafe(path: Path) -> bool:
    inside = path.relative_to(rust_sources.CRATES).parts
    return inside[0] in BINDINGS or "sys" in inside or path.name == "sys.rs"


def test_models_test_the_sources_of_the_plane() -> None:
    """No build of the plane compiles `native/loom` and `native/fuzz`, workspaces of their own."""
    shared = re.compile(r'#\[path = "([^"]+)"\][^;]*?\bmod (\w+);')
    used = re.compile(r"\buse urds_(?:loom|fuzz)::(\w+)::(?:\{([^}]*)\}|(\w+));")
    wrong = []
    for workspace in ("loom", "fuzz"):
        folder = ROOT / "native" / workspace
        modules = {
            name: folder / "src" / path
            for path, name in shared.findall((folder / "src" / "lib.rs").read_text("utf-8"))
        }
        wrong += [f"{path} of {workspace}" for path in modules.values() if not path.is_file()]
        for test in sorted((folder / "tests").rglob("*.rs")):
            for module, several, one in used.findall(test.read_text("utf-8")):
                path = modules.get(module, folder / "src" / f"{module}.rs")
                source = path.read_text("utf-8") if path.is_file() else ""
                wrong += [
                    f"{test.name}: {module}::{name}"
                    for name in re.findall(r"\w+", several or one)
                    if not re.search(rf"\bpub \w+ {name}\b", source)
                ]
    assert wrong == []


@pytest.mark.parametrize("crate", ["path", "verbs"])
def test_value_machines_forbid_unsafe_altogether(crate: str) -> None:
    assert "#![forbid(unsafe_code)]" in (rust_sources.CRATES / crate / "src/lib.rs").read_text()


def test_versions_belong_together() -> None:
    """`urds` takes a compiled plane of its own version only, so the three move at once."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    module = tomllib.loads((ROOT / "native/pyproject.toml").read_text())["project"]["version"]
    package = tomllib.loads((ROOT / "native/Cargo.toml").read_text())["workspace"]["package"]
    assert module == own
    # What Cargo writes 0.1.0-dev0, Python writes 0.1.0.dev0.
    assert package["version"].replace("-", ".") == own
    assert package["rust-version"] == ".".join(map(str, cargo.OLDEST))


def test_a_function_is_measured_from_its_name_to_its_brace() -> None:
    text = """
/// fn in_a_comment() {}
fn short<'a>(it: &'a [u8; 4]) -> char { let _ = "} fn no() {"; '}' }

trait Trait {
    fn without_body(&self, four: [u8; 4]);
}
/* fn { /* nested } */ { */
fn long(
    it: u8,
) {
    if it > 0 {
        r#"}"#;
    }
}
"""
    found = list(rust_sources.functions(source(text)))
    assert found == [("short", 3, 1), ("long", 9, 7)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('// unsafe\nlet it = "unsafe"; // unsafe_code', []),
        ("a();\n\n// SAFETY: it is.\nunsafe { a() }", [(4, True)]),
        ("// SAFETY: it is.\n\nunsafe { a() }", [(3, False)]),
        ("unsafe { a() }", [(1, False)]),
        ('unsafe extern "C" fn a() {\n    unsafe { b() }\n}', [(1, True), (2, False)]),
    ],
)
def test_unsafe_wants_its_reason_above_it(text: str, wanted: list[tuple[int, bool]]) -> None:
    one = source(text)
    lines = rust_sources.unsafe_lines(one)
    assert [(line, rust_sources.has_reason(one, line)) for line in lines] == wanted
