"""Programs that shall run on sockets of a node: where they are, and whether they can be reached.

The dynamic loader puts `liburds_preload.so` before libc. It does so in no program that is static,
of another kind of machine, or gains rights when it starts. Such a program would see the kernel's
RDS, or none, so it is refused before it starts.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from struct import Struct, error
from typing import Final

LIBRARY: Final = "liburds_preload.so"
_SCRIPTS_MAX: Final = 5  # a script of a script; Source: linux v6.12 fs/exec.c (exec_binprm)
_LINE_BYTES_MAX: Final = 256  # of `#!`. Source: linux v6.12 include/uapi/linux/binfmts.h
_HEADER: Final = Struct("<16xHHIQQQIHHHHHH")  # Elf64_Ehdr
_SEGMENT: Final = Struct("<IIQQQQQQ")  # Elf64_Phdr
_LITTLE: Final = 1  # ELFDATA2LSB
_PT_INTERP: Final = 3
_SEGMENTS_MAX: Final = 64
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
_LOADERS: Final = ("ld-linux", "ld-musl")
_CAPABILITIES: Final = "security.capability"


class CannotRun(Exception):
    """The program is there, and cannot run so; the text says why, with its name."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can be preloaded."""

    path: Path  # what is executed
    interpreter: Path  # the program that the loader starts: itself, or that of a script


def library() -> Path:
    """Return the path of the library. Raises CannotRun, in a line that says what to do."""
    spec = find_spec("urds_native")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        path = Path(folder) / LIBRARY
        if path.exists():
            return path.absolute()
    where = f"not in {folders[0]}" if folders else "urds_native is not installed"
    raise CannotRun(f"no {LIBRARY}, {where}: in a checkout, `pip install ./native` builds it")


def find(name: str) -> Program:
    """Return the program that a shell would start for a name.

    Raises FileNotFoundError; CannotRun for what cannot be preloaded, or may not be executed.
    """
    path = at = _path_of(name)
    for _ in range(_SCRIPTS_MAX):
        who = name if at is path else f"{name}: {at}"
        _check_rights(at, who)
        with at.open("rb") as file:
            data = file.read(_LINE_BYTES_MAX)
        if data[:4] == b"\x7fELF":
            _check_image(at, who)
            return Program(path, at)
        if data[:2] != b"#!":
            raise CannotRun(f"{who}: neither a program nor a script with #!")
        words = data[2:].split(b"\n")[0].split()
        if not words:
            raise CannotRun(f"{who}: its first line names no interpreter")
        at = Path(os.fsdecode(words[0]))
        if not at.exists():
            raise CannotRun(f"{who}: its interpreter {at} is not there")
    raise CannotRun(f"{name}: a script of a script, more than {_SCRIPTS_MAX} deep")


def _path_of(name: str) -> Path:
    if "/" in name:
        if not os.path.exists(name):  # noqa: PTH110 - in a folder of another user it is not there
            raise FileNotFoundError(f"{name}: not found")
        return Path(name)
    paths = [Path(folder or ".") / name for folder in os.get_exec_path()]
    found = [path for path in paths if os.path.isfile(path)]  # noqa: PTH113 - the same
    for path in found:
        if os.access(path, os.X_OK):
            return path
    if found:
        raise CannotRun(f"{found[0]}: may not be executed")
    raise FileNotFoundError(f"{name}: not found in PATH")


def _check_rights(path: Path, who: str) -> None:
    """Refuse what may not be executed, and what gains rights: the loader ignores us there."""
    try:
        found = path.stat()
    except OSError as failure:
        raise CannotRun(f"{who}: {failure.strerror}") from failure
    if not stat.S_ISREG(found.st_mode):
        raise CannotRun(f"{who}: not a file")
    if not os.access(path, os.X_OK):
        raise CannotRun(f"{who}: may not be executed")
    if not os.access(path, os.R_OK):
        raise CannotRun(f"{who}: may not be read, so whether it is dynamic is unknown")
    if found.st_mode & stat.S_ISUID and found.st_uid != os.getuid():
        raise CannotRun(f"{who}: setuid, so the loader takes no library from you")
    is_group = found.st_mode & stat.S_ISGID and found.st_mode & stat.S_IXGRP
    if is_group and found.st_gid != os.getgid():
        raise CannotRun(f"{who}: setgid, so the loader takes no library from you")
    if os.getuid() != 0 and _has_capabilities(path):
        raise CannotRun(f"{who}: has file capabilities, so the loader takes no library from you")


def _has_capabilities(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, _CAPABILITIES))
    except OSError:  # none, or a file system without them
        return False


def _check_image(path: Path, who: str) -> None:
    """Refuse an ELF file of another machine, without a loader, or with that of another libc."""
    try:
        loader = _loader_of(path)
    except Mismatch as what:
        raise CannotRun(f"{who}: {what}") from None
    except error:
        raise CannotRun(f"{who}: its ELF header is cut short") from None
    if not loader.name.startswith(_LOADERS):
        raise CannotRun(f"{who}: its loader {loader} is neither glibc's nor musl's")


class Mismatch(ValueError):
    """An ELF file that this machine's loader takes no library for; the text says what it is."""


def _loader_of(path: Path) -> Path:
    """Return the loader that an ELF file names. Raises Mismatch, struct.error for a short one."""
    with path.open("rb") as file:
        data = file.read(_HEADER.size)
        if data[4:5] == b"\x01":
            raise Mismatch("a 32-bit program")
        _, machine, _, _, offset, _, _, _, entry_bytes, count, *_ = _HEADER.unpack(data)
        if data[5] != _LITTLE or machine != _MACHINES.get(os.uname().machine, machine):
            raise Mismatch("a program of another machine")
        for number in range(min(count, _SEGMENTS_MAX)):
            file.seek(offset + number * entry_bytes)
            kind, _, at, _, _, length, *_ = _SEGMENT.unpack(file.read(_SEGMENT.size))
            if kind == _PT_INTERP:
                file.seek(at)
                return Path(os.fsdecode(file.read(min(length, _LINE_BYTES_MAX)).rstrip(b"\0")))
    raise Mismatch("static, so no library can be put before its libc")
