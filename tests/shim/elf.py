"""Read what an ELF library of 64 bits, little-endian, needs and offers: no tool has to be there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, unpack_from

_HEADER = Struct("<16xHHIQQQIHHHHHH")
_SECTION = Struct("<IIQQQQIIQQ")
_SYMBOL = Struct("<IBBHQQ")
_DYNAMIC, _DYNSYM = 6, 11
_VERSIONS = 0x6FFFFFFE  # SHT_GNU_verneed
_NEEDED = 1
_WEAK = 2
_TLS_SEGMENT = 7


@dataclass(frozen=True, slots=True)
class Library:
    """The dynamic symbols of a file."""

    needed: tuple[str, ...]  # names of other libraries
    defined: frozenset[str]
    undefined: frozenset[str]  # weak ones left out: they may be absent
    versions: frozenset[str]  # of other libraries' symbols, as GLIBC_2.17
    has_thread_storage: bool


def read(path: Path) -> Library:
    """Read a library. Raises ValueError for a file that is none."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path}: no ELF library of 64 bits")
    header = _HEADER.unpack_from(data)
    program_at, section_at = header[4], header[5]
    program_bytes, program_count, section_bytes, section_count = header[8:12]
    places = [program_at + number * program_bytes for number in range(program_count)]
    kinds = [unpack_from("<I", data, place)[0] for place in places]
    places = [section_at + number * section_bytes for number in range(section_count)]
    sections = [_SECTION.unpack_from(data, place) for place in places]
    needed: list[str] = []
    defined: set[str] = set()
    undefined: set[str] = set()
    versions: set[str] = set()
    for _, kind, _, _, at, length, link, *_ in sections:
        if kind not in (_DYNAMIC, _DYNSYM, _VERSIONS):
            continue
        texts = sections[link][4]
        if kind == _VERSIONS:
            versions |= set(_versions(data, at, texts))
            continue
        if kind == _DYNAMIC:
            pairs = [unpack_from("<QQ", data, at + n) for n in range(0, length, 16)]
            needed += [_text(data, texts + value) for tag, value in pairs if tag == _NEEDED]
            continue
        for n in range(_SYMBOL.size, length, _SYMBOL.size):
            name_at, info, _, section, *_ = _SYMBOL.unpack_from(data, at + n)
            name = _text(data, texts + name_at)
            if section:
                defined.add(name)
            elif info >> 4 != _WEAK:
                undefined.add(name)
    return Library(
        needed=tuple(needed),
        defined=frozenset(defined),
        undefined=frozenset(undefined),
        versions=frozenset(versions),
        has_thread_storage=_TLS_SEGMENT in kinds,
    )


def _versions(data: bytes, at: int, texts: int) -> Iterator[str]:
    """Yield the versions that a library asks of others: Elf64_Verneed, each with Elf64_Vernaux."""
    while True:
        _, count, _, each, step = unpack_from("<HHIII", data, at)
        each += at
        for _ in range(count):
            *_, name, following = unpack_from("<IHHII", data, each)
            yield _text(data, texts + name)
            each += following
        if not step:
            return
        at += step


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
