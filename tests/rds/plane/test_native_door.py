"""Which plane a node gets: URDS_IMPL, the compiled module and its version."""

import sys
import tomllib
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tests.health.sources import ROOT
from tests.rds.sockets.conftest import backend_with
from urds.common import implementation as native
from urds.common.errors import PlaneError, SettingError
from urds.common.version import VERSION
from urds.rds.plane.choose import NATIVE, PYTHON, VARIABLE, choose, plane_class
from urds.rds.plane.python.plane import Plane
from urds.rds.runtime.process import plane_in_use, process


def install(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Put a module of a version in place, or none."""
    module = None
    if version is not None:
        module = ModuleType("urds_native")
        module.VERSION = version
    monkeypatch.setitem(sys.modules, "urds_native", module)


def test_the_version_is_that_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == VERSION


@pytest.mark.parametrize("given", [None, ""])
@pytest.mark.parametrize(
    ("version", "plane", "reason"),
    [
        (VERSION, NATIVE, f"urds_native {VERSION} is here"),
        (VERSION.replace(".dev", "-dev"), NATIVE, f"urds_native {VERSION} is here"),
        (None, PYTHON, "urds_native is not installed"),
        ("0.0.1", PYTHON, f"urds_native is of version 0.0.1, urds of {VERSION}"),
    ],
)
def test_without_the_variable_the_compiled_one_is_taken_if_it_fits(
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    version: str | None,
    plane: str,
    reason: str,
) -> None:
    monkeypatch.delenv(VARIABLE)
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    install(monkeypatch, version)
    assert choose() == (plane, reason)
    assert native.plane_in_use() == plane


@pytest.mark.parametrize("version", [None, VERSION])
def test_python_is_taken_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setenv(VARIABLE, PYTHON)
    install(monkeypatch, version)
    assert choose() == (PYTHON, "URDS_IMPL=python")
    assert plane_class() is Plane


@pytest.mark.parametrize("version", [None, "0.0.1"])
def test_asking_for_what_is_not_there_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setenv(VARIABLE, NATIVE)
    install(monkeypatch, version)
    with pytest.raises(PlaneError, match=r"URDS_IMPL=native, but .*`make native`.*pip install"):
        plane_class()


def test_a_process_without_the_interpreter_lock_keeps_it_off_unless_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A free-threaded Python turns the lock on for all threads to import a module that needs it."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    monkeypatch.setattr(native, "missing", lambda: pytest.fail("imported"))
    assert choose().plane == PYTHON
    assert choose().reason.endswith("which the compiled plane needs: URDS_IMPL=native turns it on")
    monkeypatch.setattr(native, "missing", lambda: "")
    monkeypatch.setenv(VARIABLE, NATIVE)
    assert choose().plane == NATIVE
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    assert choose().plane == NATIVE


class Refusing(MetaPathFinder):
    """A finder whose `urds_native` refuses, as the real one does with PYTHON_GIL=0."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == "urds_native":
            raise ImportError("urds_native needs the interpreter lock")
        return None


def test_a_module_that_refuses_leaves_the_python_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delitem(sys.modules, "urds_native", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Refusing()])
    reason = "urds_native cannot be imported (urds_native needs the interpreter lock)"
    assert choose() == (PYTHON, reason)
    monkeypatch.setenv(VARIABLE, NATIVE)
    with pytest.raises(PlaneError, match="needs the interpreter lock"):
        choose()


def test_an_unknown_plane_is_refused_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "rust")
    with pytest.raises(SettingError, match=r"URDS_IMPL = 'rust' .*python or native"):
        choose()


def test_a_process_tells_what_it_has_or_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PYTHON)
    with backend_with(transport="ib"):
        monkeypatch.setenv(VARIABLE, "")
        install(monkeypatch, None)
        assert plane_in_use() == (PYTHON, "URDS_IMPL=python")
        before = process.use(None)
        assert plane_in_use() == (PYTHON, "urds_native is not installed")
        process.use(before)
