"""Write the stubs of names that are made at import, so that type checkers know each one.

    python -m tools.stubs

`rds/constants.pyi` has the flat Linux names, `dat/__init__.pyi` the flat names of uDAPL,
`verbs/enums.pyi` the C names of verbs,
`rds/setting_values.pyi` what `urds.configure` takes, `urds/__init__.pyi` and `dat/__init__.pyi`
list what a program may import. Run it after a change of an enum, of a tunable or of a list of
public names; a test fails when it was forgotten.
"""

import enum
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "urds"
LINE_MAX = 100
# Modules all of whose names are public; type checkers know which those are.
WHOLE = {"urds.rds.constants", "urds.dat.evd", "urds.dat.records"}
MODULES = (
    "urds", "urds.rds.constants", "urds.rds.numbers", "urds.dat", "urds.dat.constants",
    "urds.dat.returns", "urds.verbs.enums",
)  # fmt: skip
HEAD = """\
# Made by `python -m tools.stubs`.
# ruff: noqa: {codes} - packed, in the order of the source
# fmt: off
"""
# What the rule of a tunable reads from Python, by the type of the value that it makes.
VALUE_TYPES = {
    "int": "int | str", "float": "float | str", "bool": "bool | str", "str": "str",
    "tuple[str, ...]": "str | list[str] | tuple[str, ...]",
}  # fmt: skip


def stubs() -> dict[Path, str]:
    """Return the text of each stub by its path."""
    urds, constants, numbers, dat, dat_numbers, returns, verbs = map(import_module, MODULES)
    dat_names = dat_numbers.FLAT | returns.FLAT
    rds_stub = "from typing import Final\n" + _exported(numbers) + _flat_lines(numbers.FLAT)
    urds_stub = _imports(urds, urds.__all__, home=constants)
    urds_stub += "from urds import aio as aio\n"
    urds_stub += "__version__: str\n" + _list_of_all(urds)
    dat_stub = "from typing import Final\n"
    dat_stub += _imports(dat, set(dat.__all__) - dat_names.keys(), home=dat_numbers)
    dat_stub += "open = open_ia\n" + _list_of_all(dat) + _flat_lines(dat_names)
    families = {type(one).__name__ for one in verbs.FLAT.values() if isinstance(one, enum.Enum)}
    verbs_stub = "from typing import Final\n" + _imports(verbs, families)
    verbs_stub += _flat_lines(verbs.FLAT)
    return {
        PACKAGE / "verbs" / "enums.pyi": HEAD.format(codes="I001") + verbs_stub,
        PACKAGE / "rds" / "constants.pyi": HEAD.format(codes="I001") + rds_stub,
        PACKAGE / "rds" / "setting_values.pyi": HEAD.format(codes="I001") + _setting_values(),
        PACKAGE / "__init__.pyi": HEAD.format(codes="F403, F405, I001, RUF022") + urds_stub,
        PACKAGE / "dat" / "__init__.pyi": HEAD.format(codes="E501, F403, F405, I001, RUF022")
        + dat_stub,
    }


def _setting_values() -> str:
    """Return the TypedDict of all tunables and of their other spellings."""
    settings = import_module("urds.rds.settings")
    types = {one.name: VALUE_TYPES[str(one.type)] for one in fields(settings.Settings)}
    types |= {alias: types[name] for alias, name in settings.ALIASES.items()}
    lines = [f"    {name}: {allowed}" for name, allowed in types.items()]
    head = "from typing import TypedDict\nclass SettingValues(TypedDict, total=False):\n"
    return head + "\n".join(lines) + "\n"


def _exported(module: ModuleType) -> str:
    """Import all that a module exports, and export it as well."""
    names = [f"{name} as {name}" for name in module.__all__]
    return f"from {module.__name__} import (\n{_packed(names)})\n"


def _flat_lines(names: Mapping[str, object]) -> str:
    return "".join(f"{name}: {_final(value)}\n" for name, value in names.items())


def _final(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"Final = {type(value).__name__}.{value.name}"
    return f"Final = {value!r}" if type(value) is int else f"Final[{type(value).__name__}]"


def _imports(package: ModuleType, names: Iterable[str], home: ModuleType | None = None) -> str:
    """Import names from `home` if they are there, else from the module that defines them.

    Those of a module in WHOLE come by a star: `__all__` of the stub lists them all.
    """
    by_module: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        value = getattr(package, name)
        module = home.__name__ if home and name in vars(home) else value.__module__
        by_module[module].append(name)
    text = ""
    for module, found in sorted(by_module.items()):
        if module in WHOLE:
            text += f"from {module} import *\n"
            continue
        one_line = f"from {module} import {', '.join(found)}"
        if len(one_line) <= LINE_MAX:
            text += one_line + "\n"
        else:
            text += f"from {module} import (\n{_packed(found)})\n"
    return text


def _list_of_all(package: ModuleType) -> str:
    return "__all__ = [\n" + _packed([f'"{name}"' for name in sorted(package.__all__)]) + "]\n"


def _packed(items: list[str]) -> str:
    lines = textwrap.wrap(
        ", ".join(items) + ",", LINE_MAX - 4, break_long_words=False, break_on_hyphens=False
    )
    return "".join(f"    {line}\n" for line in lines)


def main() -> int:
    """Write the stubs; return 0."""
    for path, text in stubs().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
