"""The stubs are those of `tools.stubs`; each public name is there, equal and typed as ever.

`names/` lists the names with their kinds and numbers as they were when each was still written by
hand; a line is added with a new name, none is changed.
"""

import enum
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import urds
import urds.dat
from tests.health.sources import ROOT
from tools import stubs

NAMES = Path(__file__).with_name("names")
PACKAGES = ("urds", "urds.dat")


def rows(package: str) -> list[list[str]]:
    """Return name, kind and number or class name of each public name."""
    lines = (NAMES / f"{package}.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]


def row_of(name: str, value: object) -> list[str]:
    """Return what `names/` would say of a value."""
    if isinstance(value, enum.Enum):
        return [name, f"{type(value).__name__}.{value.name}", str(int(value.value))]
    if isinstance(value, type):
        return [name, "class", value.__name__]
    if callable(value):
        return [name, "function", value.__name__]
    if value is None or isinstance(value, bool):
        return [name, type(value).__name__, repr(value)]
    assert isinstance(value, int), name
    return [name, type(value).__name__, str(int(value))]


def type_of(package: str, kind: str, number: str) -> str:
    """Return the type of a constant as an annotation, `Literal[EvdFlag.DTO]`."""
    if kind == "NoneType":
        return "None"
    if kind == "DatReturn":
        return "urds.dat.DatReturn"
    return f"Literal[{number}]" if kind in {"int", "bool"} else f"Literal[{package}.{kind}]"


@pytest.mark.parametrize("path", stubs.stubs(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_stub_is_what_the_tool_makes(path: Path) -> None:
    """Run `python -m tools.stubs` after a change of public names."""
    assert path.read_text(encoding="utf-8") == stubs.stubs()[path]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_has_its_value(package: str) -> None:
    module = import_module(package)
    assert [row_of(name, getattr(module, name)) for name in sorted(module.__all__)] == rows(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_is_listed_once_and_comes_with_a_star(package: str) -> None:
    module = import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))
    brought: dict[str, object] = {}
    exec(f"from {package} import *", brought)
    assert brought.keys() - {"__builtins__"} == set(module.__all__)


def test_the_whole_of_urds_is_its_list_and_its_packages() -> None:
    packages = {"aio", "common", "dask", "dat", "rds", "rsocket", "verbs", "cli"}
    assert {name for name in dir(urds) if name[0] != "_"} - packages == set(urds.__all__)


@pytest.mark.parametrize("member", [urds.RDS_RECVERR, urds.MSG_PEEK, urds.dat.DAT_EVD_DTO_FLAG])
def test_a_flat_name_is_the_member_of_an_enum(member: enum.Enum) -> None:
    assert repr(member) == f"<{type(member).__name__}.{member.name}: {member.value}>"
    assert pickle.loads(pickle.dumps(member)) is member


def test_a_type_checker_knows_each_constant(tmp_path: Path) -> None:
    """Has mypy prove `assert_type` of all; a name more or of another type is an error."""
    pytest.importorskip("mypy", reason="mypy is of the lint environment")
    program = ["from typing import Literal, assert_type", "import urds", "import urds.dat"]
    program += [
        f"assert_type({package}.{name}, {type_of(package, kind, number)})"
        for package in PACKAGES
        for name, kind, number in rows(package)
        if kind not in {"class", "function"}
    ]
    program += ["socket: urds.Socket = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)"]
    program += ["ia: urds.dat.InterfaceAdapter = urds.dat.open('shm0')", "_ = urds.aio"]
    good = len(program)
    program += ["urds.nothing", "assert_type(urds.dat.DAT_EVD_DTO_FLAG, urds.dat.DatReturn)"]
    path = tmp_path / "names.py"
    path.write_text("\n".join(program) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(path)]
    run = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    lines = [int(line.split(":")[1]) for line in run.stdout.splitlines() if ": error:" in line]
    assert lines == [good + 1, good + 2], run.stdout + run.stderr
