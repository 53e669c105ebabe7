"""Memory by address: what is there is given as it is, what is not is refused without a crash."""

import ctypes
import errno
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from urds.common import process_memory

PAGE = mmap.PAGESIZE
PROT_NONE, PROT_READ = 0, 1


class OldKernel:
    """A libc whose madvise knows no MADV_POPULATE."""

    def madvise(self, *_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1


@pytest.fixture(params=["populate", "old kernel", "no madvise"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with each way of finding out."""
    libc = {"populate": process_memory._libc, "old kernel": OldKernel(), "no madvise": object()}
    monkeypatch.setattr(process_memory, "_libc", libc[request.param])
    return str(request.param)


@pytest.fixture
def pages() -> Iterator[tuple[mmap.mmap, int]]:
    """Map four pages: two to write, one to read, one without access."""
    memory = mmap.mmap(-1, 4 * PAGE)
    held = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(held)
    libc = ctypes.CDLL(None)
    for page, right in ((2, PROT_READ), (3, PROT_NONE)):
        place = ctypes.c_void_p(address + page * PAGE)
        assert libc.mprotect(place, ctypes.c_size_t(PAGE), right) == 0
    yield memory, address
    del held
    memory.close()


def refused(address: int, byte_count: int, *, writable: bool) -> bool:
    """Tell whether a range is refused with EFAULT."""
    try:
        process_memory.view_at(address, byte_count, writable=writable)
    except OSError as problem:
        return problem.errno == errno.EFAULT
    return False


def test_the_memory_itself_is_given(way: str, pages: tuple[mmap.mmap, int]) -> None:
    memory, address = pages
    view = process_memory.view_at(address + 10, 5, writable=True)
    view[:] = b"hello"
    assert memory[8:16] == b"\0\0hello\0"
    memory[10:11] = b"j"
    assert bytes(view) == b"jello"
    assert (view.format, view.ndim, view.nbytes) == ("B", 1, 5)


def test_what_is_asked_for_reading_cannot_be_written(
    way: str, pages: tuple[mmap.mmap, int]
) -> None:
    assert process_memory.view_at(pages[1], 5, writable=False).readonly


def test_a_range_is_there_or_not_by_its_pages(way: str, pages: tuple[mmap.mmap, int]) -> None:
    address = pages[1]
    assert not refused(address, 2 * PAGE, writable=True)
    assert refused(address, 2 * PAGE + 1, writable=True)
    assert refused(address + 2 * PAGE - 1, 2, writable=True)
    assert not refused(address, 3 * PAGE, writable=False)
    assert refused(address, 3 * PAGE + 1, writable=False)
    assert refused(address + 3 * PAGE, 1, writable=False)
    assert not refused(address + 3 * PAGE - 1, 1, writable=False)


@pytest.mark.parametrize(
    ("address", "byte_count"),
    [(0, 1), (8, 8), ((1 << 64) - 8, 8), ((1 << 64) - 1, 2), (1 << 62, 4096), (4096, 0)],
)
def test_addresses_that_are_none_are_refused(way: str, address: int, byte_count: int) -> None:
    assert refused(address, byte_count, writable=False)
    assert refused(address, byte_count, writable=True)


def test_a_page_behind_the_end_of_its_file_is_refused(tmp_path: Path) -> None:
    """It is mapped, yet touching it would end the process; the list of mappings cannot tell."""
    place = tmp_path / "short"
    place.write_bytes(bytes(2 * PAGE))
    with place.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 2 * PAGE)
        file.truncate(PAGE)
    held = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(held)
    assert not refused(address, PAGE, writable=True)
    assert refused(address, PAGE + 1, writable=True)
    assert refused(address + PAGE, 1, writable=False)
    del held
    memory.close()


def test_without_a_list_of_mappings_nothing_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process_memory, "_libc", OldKernel())
    monkeypatch.setattr(process_memory, "_MAPPINGS", tmp_path / "maps")
    held = ctypes.create_string_buffer(8)
    assert refused(ctypes.addressof(held), 8, writable=False)
