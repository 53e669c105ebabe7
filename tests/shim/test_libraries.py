"""The libraries for programs in C: what they export, what they need, and what libc has beyond."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.shim import elf
from tests.shim.libraries import HEADER, ROOT, found

LISTED: dict[str, Any] = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))
INTERPOSED = {name for group in LISTED["interposed"].values() for name in group}
LEFT_ALONE: dict[str, str] = LISTED["left_alone"]
LIBCS = tuple(
    path
    for name in (
        "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6",
        "/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1",
    )
    if (path := Path(name)).exists()
)  # fmt: skip
OLDEST = (2, 17)  # as the wheels of the compiled plane: tools.wheels
# Calls of sockets and descriptors, under every name that a libc gave one of them.
CALL = re.compile(
    r"_{0,2}(libc_|res_i)?("
    r"socket(pair)?|bind|connect|accept4?|listen|shutdown|[gs]etsockopt|get(sock|peer)name"
    r"|(send|recv)(to|from|msg|mmsg)?|p?(read|write)(v|v2|64|v64|v64v2)?|sendfile(64)?"
    r"|(vm)?splice|tee|copy_file_range|close(_range|from|dir)?|posix_close|fclose|fcloseall|pclose"
    r"|dup[23]?|fcntl(64)?|ioctl|p?poll(64)?|p?select|epoll_\w+|sockatmark|isfdtype|v?fork|clone"
    r"|eventfd_(read|write)"
    r")(_chk|_nocancel)?"
)


def number(version: str) -> tuple[int, ...]:
    """Return the number of a version of glibc's symbols."""
    return tuple(map(int, version.removeprefix("GLIBC_").split(".")))


@pytest.mark.parametrize("name", ["liburds_preload.so", "liburds.so"])
def test_a_library_needs_libc_alone(name: str) -> None:
    library = elf.read(found(name))
    assert library.needed == ("libc.so.6",)
    assert library.undefined - set(LISTED["needed"]["symbols"]) == set()
    newer = {one for one in library.versions if one.startswith("GLIBC_") and number(one) > OLDEST}
    assert newer == set()
    assert not library.has_thread_storage  # its destructors would run in threads of the program


def test_the_hooks_are_those_listed() -> None:
    assert elf.read(found()).defined == INTERPOSED


@pytest.mark.parametrize("libc", LIBCS, ids=str)
def test_libc_has_no_call_that_is_neither_interposed_nor_left_alone(libc: Path) -> None:
    calls = {name for name in elf.read(libc).defined if CALL.fullmatch(name)}
    assert len(calls) > 40
    assert calls - INTERPOSED - set(LEFT_ALONE) == set()


@pytest.mark.parametrize("libc", LIBCS, ids=str)
def test_both_libcs_have_what_the_libraries_need(libc: Path) -> None:
    assert set(LISTED["needed"]["symbols"]) - elf.read(libc).defined == set()


def test_a_name_is_interposed_or_left_alone_never_both() -> None:
    assert INTERPOSED & set(LEFT_ALONE) == set()
    assert all(LEFT_ALONE.values())
    assert [name for name in INTERPOSED | set(LEFT_ALONE) if not CALL.fullmatch(name)] == []


def test_header_and_exports_agree() -> None:
    text = (HEADER / "urds.h").read_text("utf-8")
    declared = set(re.findall(r"\b(urds_\w+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))
    assert elf.read(found("liburds.so")).defined == declared


def test_the_page_shows_every_hook() -> None:
    page = (ROOT / "docs" / "run.md").read_text("utf-8")
    assert [name for name in sorted(INTERPOSED) if f"`{name}`" not in page] == []
