"""The registry: which interface adapters there are by name, and what opens them.

Entries come from two places. The static registry is dat.conf: the file that DAT_OVERRIDE names, or
/etc/dat.conf and behind it the devices of urds itself. It has one adapter a line, in eight fields
that are separated by blanks; one that holds blanks stands in double quotes, with a backslash before
a quote or a backslash inside. `#` begins a comment. The fifth field names a library, here a
Python module; it is imported when an adapter of it is first opened and its `dat_provider_init`
adds the provider. Libraries that are no Python modules, as those of other providers, are passed
over. The dynamic registry holds what programs add: simulated adapters, above all.
Source: docs/reference/dat.md 16.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from urds.common.forks import renewed
from urds.dat.constants import DAT_NAME_MAX_LENGTH, EpRecvInfo, SrqInfo, SrqWatermarks
from urds.dat.errors import dat_error
from urds.dat.records import ProviderInfo
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.engine.numbers import ReceiveOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from urds.verbs.providers.base import Adapter

OVERRIDE_VARIABLE: Final = "DAT_OVERRIDE"
SYSTEM_FILE: Final = Path("/etc/dat.conf")
OWN_LIBRARY: Final = "urds.dat.devices"

# One line per device of urds; the address is the adapter's own, of which it listens and connects.
BUILT_IN: Final = "\n".join(
    f'{device} u1.2 threadsafe default {OWN_LIBRARY} urds.1.2 "{device} 127.0.0.1" ""'
    for device in ("shm0", "tcp0", "udp0")
)

FIELD_COUNT: Final = 8
FILE_BYTES_MAX: Final = 1 << 20

_FIELD: Final = re.compile(r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"(?=\s|$)|(?P<plain>[^\s"]\S*))')
_ESCAPE: Final = re.compile(r"\\(.)")
_VERSION: Final = re.compile(r"(?P<kind>[uk])(?P<major>\d{1,9})\.(?P<minor>\d{1,9})")
_THREAD_SAFETY: Final = {"threadsafe": True, "nonthreadsafe": False}
_DEFAULT: Final = {"default": True, "nondefault": False}
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class ConfError(ValueError):
    """A line of dat.conf is none: says which and why."""


@dataclass(frozen=True, slots=True)
class ConfEntry:
    """One line of dat.conf."""

    info: ProviderInfo
    is_user_level: bool  # `u`; `k` is for the kernel
    is_default: bool
    library: str
    provider_version: str
    ia_params: str
    platform_params: str

    @property
    def is_loaded(self) -> bool:
        """Return whether a registry of programs takes the entry."""
        return self.is_user_level and self.is_default


@dataclass(frozen=True, slots=True)
class Support:
    """What a provider says it supports; less of it lets programs test what they do then.

    Source: docs/reference/dat.md 13.4.
    """

    ep_recv_info: int = EpRecvInfo.NBUFS_ALLOCATED | EpRecvInfo.BUFS_ALLOC_SPAN
    srq_watermarks: int = (
        SrqWatermarks.SRQ_LOW | SrqWatermarks.EP_SOFT_HIGH | SrqWatermarks.EP_HARD_HIGH
    )
    srq_info: int = SrqInfo.AVAILABLE_DTO_COUNT | SrqInfo.OUTSTANDING_DTO_COUNT
    receive_order: ReceiveOrder | None = None  # of messages ahead of others; the device's best


@dataclass(slots=True, eq=False)
class Provider:
    """What opens the adapters of one name.

    `address` is theirs, a numeric IP address; `None` is the one that the adapter has as attribute
    `address`, as simulated ones do, or loopback.
    """

    open_adapter: Callable[[], Adapter]
    address: str | None = None
    support: Support = field(default_factory=Support)
    opened: int = 0  # adapters that are open now


class Registry:
    """All adapters of a process by name. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = renewed(threading.RLock())
        self._providers: dict[ProviderInfo, Provider] = {}

    # -- for providers

    def add(self, provider: Provider, info: ProviderInfo) -> None:
        """Add a provider. Raises DatProviderAlreadyRegistered: of all four parts of `info`."""
        with self._lock:
            if info in self._providers:
                kind = ReturnType.PROVIDER_ALREADY_REGISTERED
                raise dat_error(kind, detail=_text_of(info))
            self._providers[info] = provider

    def remove(self, info: ProviderInfo) -> None:
        """Remove a provider. Raises DatProviderNotFound, DatProviderInUse."""
        with self._lock:
            provider = self._providers.get(info)
            if provider is None:
                subtype = Subtype.NAME_NOT_REGISTERED
                raise dat_error(ReturnType.PROVIDER_NOT_FOUND, subtype, _text_of(info))
            if provider.opened:
                detail = f"{provider.opened} adapters of {info.ia_name} are open"
                raise dat_error(ReturnType.PROVIDER_IN_USE, detail=detail)
            del self._providers[info]

    # -- for programs

    def list_providers(self) -> list[ProviderInfo]:
        """Return what can be asked for, added providers first.

        Raises DatInternalError: the file of the static registry cannot be read.
        """
        static = [entry.info for entry in static_entries()]
        with self._lock:
            added = tuple(info for info in self._providers if info not in static)
        return [*added, *dict.fromkeys(static)]

    def find(
        self, name: str, *, major: int, minor: int, is_thread_safe: bool
    ) -> tuple[ProviderInfo, Provider]:
        """Return the provider of an adapter, loaded if need be.

        Name, major version and thread safety must be equal, the minor version at least the asked
        one. Raises DatProviderNotFound with the most specific subtype.
        """
        wanted = ProviderInfo(name, major, minor, is_thread_safe)
        with self._lock:
            known = list(self._providers)
            static = static_entries() if _closest(known, wanted) is not None else []
            known += (entry.info for entry in static)
            missing = _closest(known, wanted)
            if missing is not None:
                names = dict.fromkeys(info.ia_name for info in known)
                detail = f"{_text_of(wanted)}; there are {', '.join(names) or 'none'}"
                raise dat_error(ReturnType.PROVIDER_NOT_FOUND, missing, detail)
            for entry in static:
                if _closest([entry.info], wanted) is None and _load(entry):
                    break
            for info, provider in self._providers.items():
                if _closest([info], wanted) is None:
                    return info, provider
        detail = f"no library of {name} could be loaded"
        raise dat_error(ReturnType.PROVIDER_NOT_FOUND, Subtype.NAME_NOT_REGISTERED, detail)

    def count_open(self, provider: Provider, change: int) -> None:
        """Count an adapter that was opened (1) or closed (-1)."""
        with self._lock:
            provider.opened += change


REGISTRY: Final = Registry()


def static_entries() -> list[ConfEntry]:
    """Return the entries of dat.conf that a program can load, and behind them our own devices.

    With DAT_OVERRIDE set its file stands alone. Raises DatInternalError: it cannot be read.
    """
    named = os.environ.get(OVERRIDE_VARIABLE)
    try:
        if named:
            entries = _read(Path(named))
        else:
            entries = (_read(SYSTEM_FILE) if SYSTEM_FILE.is_file() else []) + parse_conf(BUILT_IN)
    except (OSError, ConfError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        detail = f"{named or SYSTEM_FILE}: {reason}"
        raise dat_error(ReturnType.INTERNAL_ERROR, detail=detail) from error
    return [entry for entry in entries if entry.is_loaded and _MODULE.fullmatch(entry.library)]


def parse_params(ia_params: str) -> tuple[str, str | None, Support]:
    """Return device, address if it has one, and support from the seventh field of dat.conf.

    Its form is `DEVICE [ADDRESS] [NAME=VALUE ...]` with the fields of `Support` as names: numbers,
    such as `shm0 127.0.0.1 ep_recv_info=0x01`, and `receive_order=fill_gaps` or another name of
    `ReceiveOrder`. Raises ValueError: not of that form.
    """
    words = ia_params.split()
    plain = [word for word in words if "=" not in word]
    if not 1 <= len(plain) <= 2:
        raise ValueError(f"adapter parameters {ia_params!r}, such as 'shm0 127.0.0.1'")
    given: dict[str, Any] = {}
    for name, _, value in (word.partition("=") for word in words if "=" in word):
        if name in {"ep_recv_info", "srq_watermarks", "srq_info"}:
            given[name] = int(value, 0)
        elif name == "receive_order" and value.upper() in ReceiveOrder.__members__:
            given[name] = ReceiveOrder[value.upper()]
        else:
            raise ValueError(f"unknown parameter {name}={value}")
    return plain[0], plain[1] if len(plain) > 1 else None, Support(**given)


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
        info=ProviderInfo(
            name, int(found["major"]), int(found["minor"]), _THREAD_SAFETY[thread_safety]
        ),
        is_user_level=found["kind"] == "u",
        is_default=_DEFAULT[default],
        library=library,
        provider_version=provider_version,
        ia_params=ia,
        platform_params=platform,
    )


def _read(path: Path) -> list[ConfEntry]:
    with path.open(encoding="utf-8") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise ConfError(f"more than {FILE_BYTES_MAX} characters")
    return parse_conf(text)


def _text_of(info: ProviderInfo) -> str:
    safety = "thread-safe" if info.is_thread_safe else "not thread-safe"
    version = f"{info.dapl_version_major}.{info.dapl_version_minor}"
    return f"adapter {info.ia_name!r} of version {version}, {safety}"


def _load(entry: ConfEntry) -> bool:
    """Import an entry's module and let it add its provider; return whether it did."""
    try:
        init = import_module(entry.library).dat_provider_init
    except (ImportError, AttributeError):
        return False
    try:
        init(entry.info, entry.ia_params)
    except ValueError as error:
        detail = f"{entry.info.ia_name}: {error}"
        raise dat_error(ReturnType.INTERNAL_ERROR, detail=detail) from error
    return True


def _closest(known: Iterable[ProviderInfo], wanted: ProviderInfo) -> Subtype | None:
    """Return why none of the known ones will do, as specific as can be; `None` if one does."""
    misses = [_miss(info, wanted) for info in known]
    if None in misses:
        return None
    # The higher the subtype, the more of the four parts were right.
    return max(filter(None, misses), default=Subtype.NAME_NOT_REGISTERED)


def _miss(info: ProviderInfo, wanted: ProviderInfo) -> Subtype | None:
    if info.ia_name != wanted.ia_name:
        return Subtype.NAME_NOT_REGISTERED
    if info.dapl_version_major != wanted.dapl_version_major:
        return Subtype.MAJOR_NOT_FOUND
    if info.dapl_version_minor < wanted.dapl_version_minor:
        return Subtype.MINOR_NOT_FOUND
    if info.is_thread_safe != wanted.is_thread_safe:
        return Subtype.THREAD_SAFETY_NOT_FOUND
    return None
