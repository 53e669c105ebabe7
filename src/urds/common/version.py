"""The version of `urds`, which `pyproject.toml` states.

An import of `importlib.metadata` costs as much as all of `import urds`, so the version is read from
what is nearest: the project's file in a checkout, whose environment may hold another version, else
the name of the folder that an installation leaves beside the package.
"""

import re
from pathlib import Path
from typing import Final

_STATED: Final = re.compile(r'^name = "urds"\nversion = "([^"\n]+)"', re.MULTILINE)
_FOLDER: Final = re.compile(r"urds-(.+)\.dist-info")


def read(package: Path) -> str:
    """Return the version of the `urds` in a folder; `0+unknown` if nothing states it."""
    beside = package.parent
    if beside.name == "src":
        try:
            stated = _STATED.search((beside.parent / "pyproject.toml").read_text(encoding="utf-8"))
        except OSError:
            stated = None
        if stated:
            return stated[1]
    found = sorted(folder.name for folder in beside.glob("urds-*.dist-info"))
    if len(found) == 1 and (installed := _FOLDER.fullmatch(found[0])):
        return installed[1]
    # A package in an archive, or the rest of another installation beside it.
    from importlib import metadata

    try:
        return metadata.version("urds")
    except metadata.PackageNotFoundError:
        return "0+unknown"


VERSION: Final = read(Path(__file__).parents[1])
