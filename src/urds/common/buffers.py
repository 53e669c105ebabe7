"""Where a writable buffer lies in this process, and its bytes whatever its items are."""

from __future__ import annotations

import ctypes
from typing import Any


def address_of(view: memoryview) -> int:
    """Return the address of the first byte of a writable view."""
    return ctypes.addressof((ctypes.c_char * 0).from_buffer(view))


def bytes_of(view: memoryview) -> memoryview:
    """Return a view of bytes on the same memory, which is contiguous and writable."""
    try:
        return view.cast("B")
    except (ValueError, TypeError):
        # Items that memoryview cannot cast: records, complex numbers, the other byte order.
        whole: Any = (ctypes.c_char * view.nbytes).from_buffer(view)
        return memoryview(whole).cast("B")
