"""The version of `urds`, which `pyproject.toml` states.

An import of `importlib.metadata` costs as much as all of `import urds`, so the version is read from
what is nearest: the project's file in a checkout, whose environment may hold another version, else
the name of the folder that an installation leaves beside the package.
"""

import os
from typing import Final

_STATED: Final = '\nname = "urds"\nversion = "'
_BEGIN, _END = "urds-", ".dist-info"


def read(package: str | os.PathLike[str]) -> str:
    """Return the version of the `urds` in a folder; `0+unknown` if nothing states it.

    Paths are texts here, not `pathlib`'s, whose import costs as much as this whole module may.
    """
    beside = os.fspath(package).rpartition("/")[0]
    around, _, name = beside.rpartition("/")
    if name == "src" and (stated := _stated(f"{around}/pyproject.toml")):
        return stated
    found = _installed(beside)
    if len(found) == 1:
        return found[0]
    # A package in an archive, or the rest of another installation beside it.
    from importlib import metadata

    try:
        return metadata.version("urds")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def _stated(place: str) -> str:
    """Return the version in a project's file; "" without one of `urds`."""
    try:
        with open(place, encoding="utf-8") as text:  # noqa: PTH123 - see `read`
            after = text.read().partition(_STATED)[2]
    except OSError:
        return ""
    return after.partition('"')[0].strip()


def _installed(beside: str) -> list[str]:
    """Return the versions of `urds` that folders beside the package name."""
    try:
        with os.scandir(beside or ".") as every:
            names = [one.name for one in every]
    except OSError:  # an archive
        return []
    ours = (name for name in names if name.startswith(_BEGIN) and name.endswith(_END))
    return [name[len(_BEGIN) : -len(_END)] for name in ours]


VERSION: Final = read(__file__.rpartition("/")[0].rpartition("/")[0])
