"""The file dat.conf: one interface adapter a line, eight fields.

Fields are separated by blanks; one that holds blanks stands in double quotes, with a backslash
before a quote or a backslash inside. `#` begins a comment. Source: docs/reference/dat.md 16.
"""

import re
from dataclasses import dataclass
from typing import Final

from urds.dat.constants import DAT_NAME_MAX_LENGTH

FIELD_COUNT: Final = 8
FILE_BYTES_MAX: Final = 1 << 20

_FIELD: Final = re.compile(r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"(?=\s|$)|(?P<plain>[^\s"]\S*))')
_ESCAPE: Final = re.compile(r"\\(.)")
_VERSION: Final = re.compile(r"(?P<kind>[uk])(?P<major>\d{1,9})\.(?P<minor>\d{1,9})")
_THREAD_SAFETY: Final = {"threadsafe": True, "nonthreadsafe": False}
_DEFAULT: Final = {"default": True, "nondefault": False}


class ConfError(ValueError):
    """A line of dat.conf is none: says which and why."""


@dataclass(frozen=True, slots=True)
class ConfEntry:
    """One line of dat.conf."""

    ia_name: str
    is_user_level: bool  # `u`; `k` is for the kernel
    major: int
    minor: int
    is_thread_safe: bool
    is_default: bool
    library: str
    provider_version: str
    ia_params: str
    platform_params: str

    @property
    def is_loaded(self) -> bool:
        """Return whether a registry of programs takes the entry."""
        return self.is_user_level and self.is_default


def parse_conf(text: str) -> list[ConfEntry]:
    """Return the entries of a file. Raises ConfError with the number of the line."""
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            fields = split_fields(line)
            if fields:
                entries.append(_entry(fields))
        except ConfError as error:
            raise ConfError(f"line {number}: {error}") from None
    return entries


def split_fields(line: str) -> list[str]:
    """Return the fields of a line, without quotes and comment. Raises ConfError."""
    fields: list[str] = []
    end = 0
    while (rest := line[end:].strip()) and not rest.startswith("#"):
        found = _FIELD.match(line, end)
        if found is None:
            raise ConfError(f"quotes do not match at column {end + 1}")
        if len(fields) == FIELD_COUNT:
            raise ConfError(f"more than {FIELD_COUNT} fields")  # the others are not read
        end = found.end()
        plain = found["plain"]
        fields.append(_ESCAPE.sub(r"\1", found["quoted"]) if plain is None else plain)
    return fields


def _entry(fields: list[str]) -> ConfEntry:
    if len(fields) != FIELD_COUNT:
        raise ConfError(f"{len(fields)} fields, not {FIELD_COUNT}")
    name, version, thread_safety, default, library, provider_version, ia, platform = fields
    found = _VERSION.fullmatch(version)
    if not 1 <= len(name) < DAT_NAME_MAX_LENGTH:
        raise ConfError(f"a name of {len(name)} characters, 1 to {DAT_NAME_MAX_LENGTH - 1}")
    if found is None:
        raise ConfError(f"API version {version!r}, such as u1.2")
    if thread_safety not in _THREAD_SAFETY or default not in _DEFAULT:
        raise ConfError(f"{thread_safety!r} {default!r}, such as threadsafe default")
    return ConfEntry(
        ia_name=name,
        is_user_level=found["kind"] == "u",
        major=int(found["major"]),
        minor=int(found["minor"]),
        is_thread_safe=_THREAD_SAFETY[thread_safety],
        is_default=_DEFAULT[default],
        library=library,
        provider_version=provider_version,
        ia_params=ia,
        platform_params=platform,
    )
