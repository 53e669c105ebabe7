"""What makes a release: one version, licences of crates, a page for an index, wheels."""

import json
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import native_backend
import pytest

from tools import hatch_readme, licences, wheels
from tools.cargo import Cargo, Unavailable, fetch, find
from tools.wheels import Broken, Place, Row, System
from urds.common import version

ROOT = Path(__file__).resolve().parents[2]
STATED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


# -- version


def test_a_checkout_tells_the_version_of_its_project() -> None:
    """Whatever is installed beside it: the environment of a test may hold another one."""
    assert version.read(ROOT / "src" / "urds") == version.VERSION == STATED


def test_an_installed_package_tells_the_version_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "urds").mkdir()
    (tmp_path / "urds-9.8.7rc1.dist-info").mkdir()
    (tmp_path / "urds_native-1.0.dist-info").mkdir()
    assert version.read(tmp_path / "urds") == "9.8.7rc1"


def test_the_file_of_another_project_is_none_of_ours(tmp_path: Path) -> None:
    """The `src` of another project, with a copy of the package in it."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "7"\n')
    (tmp_path / "src" / "urds-9.8.7.dist-info").mkdir(parents=True)
    assert version.read(tmp_path / "src" / "urds") == "9.8.7"


def test_the_version_costs_no_import_of_metadata() -> None:
    program = "import sys, urds; urds.__version__; sys.exit('importlib.metadata' in sys.modules)"
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path[:0] = {[str(ROOT / 'src')]}\n{program}",
    ]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_the_extra_is_of_the_same_version() -> None:
    """The version stands in one file of Python's; cargo's are held by test_native_sources."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert extras["native"] == [f"urds-native=={STATED}"]


# -- licences


def package(name: str, **fields: Any) -> dict[str, Any]:
    """Return a package as cargo's metadata has it."""
    ordinary = {"id": name, "name": name, "version": "1.0", "license": "MIT", "source": "registry"}
    place = {"targets": [{"kind": ["lib"]}], "manifest_path": "/nonexistent/Cargo.toml"}
    return {**ordinary, **place, **fields}


def test_only_what_is_linked_is_listed() -> None:
    """Not what builds or tests need, not macros nor what these need, not our own crates."""
    packages = [
        package("urds-native", source=None),
        package("urds-path", source=None),
        *map(package, ("linked", "below", "for-build", "for-tests", "of-macro")),
        package("macro", targets=[{"kind": ["proc-macro"]}]),
    ]
    arrows: dict[str, list[tuple[str, str | None]]] = {
        "urds-native": [("urds-path", None), ("for-build", "build"), ("macro", None)],
        "urds-path": [("linked", None), ("for-tests", "dev")],
        "linked": [("below", None)],
        "macro": [("of-macro", None)],
    }
    nodes = [
        {"id": one["id"], "deps": [{"pkg": to, "dep_kinds": [{"kind": kind}]}
                                   for to, kind in arrows.get(one["id"], [])]}
        for one in packages
    ]  # fmt: skip
    found = licences.linked({"packages": packages, "resolve": {"nodes": nodes}})
    assert [one["name"] for one in found] == ["below", "linked"]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT/Apache-2.0", True),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", True),
        ("GPL-2.0-only", False),
        ("Apache-2.0 AND MPL-2.0", False),
        ("", False),
    ],
)
def test_a_licence_has_to_be_in_the_list(expression: str, wanted: bool) -> None:
    assert licences.permitted(expression) == wanted


@pytest.mark.parametrize("fields", [{"license": "AGPL-3.0-only"}, {"license": None}, {}])
def test_a_crate_without_a_clear_licence_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    """The last one states MIT and comes without its text."""
    with pytest.raises(licences.Unclear, match=r"^odd 1\.0 "):
        licences.crate_of(package("odd", manifest_path=str(tmp_path / "Cargo.toml"), **fields))


def test_equal_texts_stand_once_with_all_names() -> None:
    crates = [licences.Crate(name, "1.0", "MIT", ("the same\n",)) for name in ("one", "two")]
    text = licences.page([*crates, licences.Crate("three", "2.0", "Zlib", ("another\n",))])
    assert text.count("the same") == 1
    assert "one, two\n" in text
    assert licences.listed(text) == {("one", "1.0"), ("two", "1.0"), ("three", "2.0")}


def test_the_file_is_that_of_the_lock() -> None:
    """Each crate of the file stands in Cargo.lock in that version; cargo tells the rest."""
    listed = licences.listed(licences.PAGE.read_text())
    lock = tomllib.loads((ROOT / "native" / "Cargo.lock").read_text())["package"]
    assert listed
    assert listed <= {(one["name"], one["version"]) for one in lock}
    try:
        cargo = find()
        fetch(cargo, ROOT / ".venv")
        found = licences.packages(cargo)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert licences.differences(found) == []


def test_our_own_licence_goes_with_both() -> None:
    assert (ROOT / "native" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


# -- README


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[cli](docs/cli.md)", "cli (`docs/cli.md`)"),
        ("over TCP ([interop](docs/interop.md#x)).", "over TCP (interop: `docs/interop.md`)."),
        ("[LICENSE](LICENSE)", "`LICENSE`"),
        ("[rustup](https://rustup.rs)", "[rustup](https://rustup.rs)"),
    ],
)
def test_links_into_the_tree_become_names_of_files(text: str, wanted: str) -> None:
    assert hatch_readme.for_index(text) == wanted


def test_the_page_of_the_compiled_plane_has_no_link_into_the_tree() -> None:
    text = (ROOT / "native" / "README.md").read_text()
    assert [
        one["target"] for one in hatch_readme.LINK.finditer(text) if "://" not in one["target"]
    ] == []


# -- wheels


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "venv", tmp_path / "dist", tmp_path / "log")


def test_a_failed_command_is_told_and_its_output_kept(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Broken, match=r"exit code 3$"):
        place.run([sys.executable, "-c", "print('why'); raise SystemExit(3)"])
    assert "why" in capsys.readouterr().out
    assert "why" in place.log.read_text()


def test_a_command_that_hangs_is_ended(place: Place) -> None:
    with pytest.raises(Broken, match=r"ended after 1 s$"):
        place.run([sys.executable, "-c", "import time; time.sleep(60)"], limit_s=1)


def test_nothing_of_the_checkout_reaches_a_command(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("URDS_IMPL", "python")
    names = "[one for one in os.environ if one == 'PYTHONPATH' or one[:5] == 'URDS_']"
    assert place.run([sys.executable, "-c", f"import os; print({names})"]).strip() == "[]"


def test_a_target_without_a_standard_library_is_skipped_with_its_reason(tmp_path: Path) -> None:
    rustc = tmp_path / "rustc"
    rustc.write_text(f"#!/bin/sh\necho {tmp_path}/lib\n")
    rustc.chmod(0o755)
    cargo, system = (
        Cargo(tmp_path / "cargo", "1.95.0"),
        System("musllinux_1_2", "x-unknown-linux-musl"),
    )
    # It runs in the folder of the workspace, which an unpacked source has as well.
    reason = wheels.why_not(cargo, system)
    assert reason == (
        "this Rust has no standard library for x-unknown-linux-musl "
        "(rustup target add x-unknown-linux-musl)"
    )
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libstd-1.rlib").touch()
    assert wheels.why_not(cargo, system) == ""


def test_the_table_tells_each_file_and_each_reason(tmp_path: Path) -> None:
    file = tmp_path / "it.whl"
    file.write_bytes(bytes(2048))
    rows = [
        Row("one", [file], works=["3.11 demo"]),
        Row("two", skipped="no cargo"),
        Row("three", broken="exit code 1"),
        Row("four", [file]),
    ]
    assert wheels.table(rows).splitlines() == [
        "file     size  result",
        "it.whl  2 KiB  built, works: 3.11 demo",
        "two            skipped: no cargo",
        "three          BROKEN: exit code 1",
        "it.whl  2 KiB  built, not run here",
    ]


@pytest.mark.parametrize(("broken", "code"), [("", 0), ("exit code 1", 1)])
def test_only_something_broken_is_a_failure(
    broken: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"one": Row("one", skipped="no cargo"), "two": Row("two", broken=broken)}
    monkeypatch.setattr(wheels, "build_all", lambda *_: rows)
    monkeypatch.setattr(wheels, "try_all", lambda *_: None)
    monkeypatch.setattr(wheels, "LOG", ROOT / ".reports" / "wheels-test.log")
    monkeypatch.setattr("sys.argv", ["wheels", "--dist", str(tmp_path)])
    assert wheels.main() == code


def test_pytest_comes_with_hashes_from_the_locks() -> None:
    lock = wheels.pytest_lock()
    assert [line.partition("==")[0] for line in lock.splitlines() if "==" in line] == [
        *wheels.TOOLS
    ]
    assert lock.count("--hash=sha256:") >= len(wheels.TOOLS)


def test_the_interpreter_of_this_test_is_among_those_that_are_tried() -> None:
    found = dict(wheels.interpreters([]))
    assert f"3.{sys.version_info.minor}" in found
    assert wheels.interpreters(["/nonexistent/python3"]) == list(found.items())


def test_a_source_distribution_is_unpacked_into_one_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with tarfile.open(tmp_path / "it-1.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "file", "it-1/file")
    assert (wheels.unpacked(tmp_path / "it-1.tar.gz", tmp_path / "work") / "file").exists()


# -- the wheel from the source distribution of the compiled plane


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the libraries put into a folder of this test; there are old ones. Return it."""
    folder = tmp_path / "urds_native.data"
    monkeypatch.setattr(native_backend, "DATA", folder)
    monkeypatch.setattr(native_backend, "PACKAGE", folder / "platlib" / "urds_native")
    (folder / "platlib").mkdir(parents=True)
    (folder / "platlib" / "old").touch()
    return folder


def put_cargo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, made: Sequence[str], code: int = 0
) -> None:
    """Have a cargo that says it made these files."""
    files = [str(tmp_path / "elsewhere" / name) for name in made]
    (tmp_path / "elsewhere").mkdir()
    for file in files:
        Path(file).write_text(Path(file).name)
    lines = [{"reason": "compiler-artifact", "filenames": files}, {"reason": "build-finished"}]
    (tmp_path / "said").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cargo = tmp_path / "cargo"
    calls, said = tmp_path / "calls", tmp_path / "said"
    cargo.write_text(f'#!/bin/sh\necho "$@" >> {calls}\ncat {said}\nexit {code}\n')
    cargo.chmod(0o755)
    monkeypatch.setenv("CARGO", str(cargo))


def test_the_libraries_are_taken_from_where_cargo_puts_them(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a target, or in a folder that the user's settings name; what was there before is gone."""
    put_cargo(tmp_path, monkeypatch, made=["liburds_preload.so", "liburds.a", "liburds.so"])
    native_backend.build_libraries(["--offline"])
    found = {path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file()}
    names = ("liburds_preload.so", "liburds.so", "urds.h")
    assert found == {f"platlib/urds_native/{name}" for name in names}
    assert (native_backend.PACKAGE / "liburds.so").read_text() == "liburds.so"
    assert "--profile shim --offline -p urds-preload" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("made", "code", "reason"),
    [(["liburds.a"], 0, "makes no shared library"), ([], 101, "exit code 101$")],
)
def test_a_wheel_without_libraries_is_no_wheel(
    made: Sequence[str],
    code: int,
    reason: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_cargo(tmp_path, monkeypatch, made=made, code=code)
    with pytest.raises(SystemExit, match=reason):
        native_backend.build_libraries()


@pytest.mark.parametrize("options", [["--target", "x"], ["--target=x"], []])
@pytest.mark.parametrize("hook", ["build_wheel", "build_editable"])
def test_pip_has_libraries_built_before_the_module(
    hook: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def build(*given: object) -> str:
        calls.append(given)
        return "it.whl"

    settings = {"build-args": "what maturin reads"}
    maturin = {hook: build, "get_maturin_pep517_args": lambda given: options if given else []}
    monkeypatch.setitem(sys.modules, "maturin", SimpleNamespace(**maturin))
    monkeypatch.setattr(native_backend, "build_libraries", calls.append)
    assert getattr(native_backend, hook)("folder", settings, "metadata") == "it.whl"
    assert calls == [options, ("folder", settings, "metadata")]


def test_all_other_hooks_are_those_of_maturin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "maturin", SimpleNamespace(build_sdist=len))
    assert native_backend.build_sdist is len
    assert not hasattr(native_backend, "get_requires_for_build_wheel")


@pytest.mark.parametrize(
    ("soabi", "wanted"),
    [
        ("cpython-311-x86_64-linux-gnu", {}),
        (None, {}),
        ("cpython-312-x86_64-linux-musl", {"RUSTFLAGS": "-C a -C target-feature=-crt-static"}),
    ],
)
def test_musl_has_shared_libraries_too(
    soabi: str | None, wanted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUSTFLAGS", "-C a")
    monkeypatch.setattr("sysconfig.get_config_var", {"SOABI": soabi}.get)
    assert native_backend._variables() == wanted


def test_the_source_distribution_has_what_the_libraries_are_made_of(tmp_path: Path) -> None:
    """It has the crates that the module's names, and the backend."""
    maturin = Path(sys.executable).with_name("maturin")
    try:
        cargo = find()
        fetch(cargo, ROOT / ".venv")
    except Unavailable as reason:
        pytest.skip(str(reason))
    if not maturin.exists():
        pytest.skip("no maturin in this environment: make native")
    subprocess.run(
        [maturin, "sdist", "--out", tmp_path],
        cwd=ROOT / "native",
        env=cargo.environment(ROOT / ".venv"),
        check=True,
        capture_output=True,
        timeout=60,
    )
    (made,) = tmp_path.glob("*.tar.gz")
    source = wheels.unpacked(made, tmp_path)
    project = tomllib.loads((source / "pyproject.toml").read_text())["build-system"]
    (folder,) = project["backend-path"]
    assert (source / folder / f"{project['build-backend']}.py").exists()
    assert (source / native_backend.HEADER.relative_to(native_backend.WORKSPACE)).exists()
    command = [str(cargo.path), "metadata", "--locked", "--offline", "--format-version", "1", "-q"]
    said = subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60).stdout
    members = {one["name"] for one in json.loads(said)["packages"] if one["source"] is None}
    assert members.issuperset(native_backend.CRATES)
