"""Memory of this process by address, as C structures name it: checked to be mapped, or refused.

Memory that is not mapped, or not writable where that is wanted, is EFAULT and never a crash. The
pages are requested as the kernel does when it pins them, which also gives a private page of a
forked process its own copy. Unlike pinned pages these can be unmapped afterwards: memory behind a
region or an operation under way has to stay where it is, as for every C library. Linux before 5.14
has no such request, so the list of mappings answers; a page behind the end of its file is in it and
passes. Source: madvise(2), MADV_POPULATE_READ; proc(5); docs/reference/rds.md 4.3.
"""

from __future__ import annotations

import ctypes
import errno
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

from urds.common.errors import ErrorReason, os_error

ADDRESS_END: Final = 1 << 64
_POPULATE_READ: Final = 22  # MADV_POPULATE_READ; mmap names it from Python 3.14 on only
_POPULATE_WRITE: Final = 23

_MAPPINGS: Final = Path("/proc/self/maps")
_libc: Final = ctypes.CDLL(None, use_errno=True)


def view_at(address: int, byte_count: int, *, writable: bool) -> memoryview:
    """Return the memory at an address, which is one byte or more; nothing is copied.

    Raises OSError (EFAULT): some of it is not mapped, or cannot be read, or written if wanted.
    """
    if (
        byte_count < 1
        or address + byte_count > ADDRESS_END
        or not _is_there(address, byte_count, writable)
    ):
        right = "writable" if writable else "readable"
        raise os_error(
            ErrorReason.MEMORY_FAULT, f"{byte_count} bytes at {address:#x} are not {right}"
        )
    view = memoryview((ctypes.c_char * byte_count).from_address(address)).cast("B")
    return view if writable else view.toreadonly()


def _is_there(address: int, byte_count: int, writable: bool) -> bool:
    first = address // PAGESIZE * PAGESIZE
    length = address + byte_count - first
    advice = _POPULATE_WRITE if writable else _POPULATE_READ
    madvise = getattr(_libc, "madvise", None)
    if madvise is not None:
        pointer, size = ctypes.c_void_p(first), ctypes.c_size_t(length)
        if madvise(pointer, size, advice) == 0:
            return True
        # Not mapped, or a page behind the end of its file. Anything else may be an old kernel.
        if ctypes.get_errno() in (errno.ENOMEM, errno.EFAULT):
            return False
    return _is_mapped(first, first + length, b"w" if writable else b"r")


def _is_mapped(first: int, end: int, right: bytes) -> bool:
    """Look a range up in the list of mappings, which is in ascending order."""
    try:
        with _MAPPINGS.open("rb") as lines:
            for line in lines:
                extent, rights, *_ = line.split(None, 2)
                low, high = (int(one, 16) for one in extent.split(b"-"))
                if low <= first < high and right in rights:
                    first = high
                if first >= end:
                    return True
    except OSError:
        pass  # no such list here: no address counts as mapped
    return False
