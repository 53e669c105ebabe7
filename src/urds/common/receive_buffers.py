"""Sizes and buffers of a receive: checked before a message is taken, or it would be lost.

Types and words of the errors are CPython's. Source: cpython v3.13 Modules/socketmodule.c
(sock_recv_into, sock_recvfrom_into, sock_recvmsg, sock_recvmsg_into).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Final

_TOO_SMALL: Final = {
    "recv_into": "buffer too small for requested bytes",
    "recvfrom_into": "nbytes is greater than the length of the buffer",
}


def checked_size(count: Any, call: str) -> int:
    """Return a number of bytes. Raises ValueError if it is negative, TypeError for no integer."""
    number = index(count)
    if number < 0:
        raise ValueError(f"negative buffersize in {call}")
    return number


def checked_ancillary_size(count: Any) -> int:
    """Return the room for control messages. Raises as `checked_size`."""
    number = index(count)
    if number < 0:
        raise ValueError("invalid ancillary data buffer length")
    return number


def writable(buffer: Any, bytes_max: Any, call: str) -> memoryview:
    """Return the bytes of `buffer` to fill, at most `bytes_max`; 0 is the whole buffer.

    Raises TypeError unless it is in one piece and can be written, ValueError if it is too small.
    """
    view = _bytes_of(buffer)
    if view is None:
        kind = type(buffer).__name__
        raise TypeError(f"{call}() argument 1 must be read-write bytes-like object, not {kind}")
    count = checked_size(bytes_max, call)
    if count > len(view):
        raise ValueError(f"{_TOO_SMALL[call]}: {count} > {len(view)}")
    return view[:count] if count else view


def all_writable(buffers: Iterable[Any]) -> list[memoryview]:
    """Return the bytes of each buffer. Raises TypeError as `writable`."""
    views = [_bytes_of(one) for one in buffers]
    given = [view for view in views if view is not None]
    if len(given) < len(views):
        raise TypeError(
            "recvmsg_into() argument 1 must be an iterable of single-segment read-write buffers"
        )
    return given


def fill(views: Sequence[memoryview], payload: bytes) -> int:
    """Copy a payload into buffers, one after the other; return how many bytes they took."""
    copied = 0
    for view in views:
        piece = payload[copied : copied + len(view)]
        view[: len(piece)] = piece
        copied += len(piece)
    return copied


def _bytes_of(buffer: Any) -> memoryview | None:
    try:
        view = memoryview(buffer)
    except TypeError:
        return None
    if view.readonly or not view.c_contiguous:
        return None
    return view.cast("B") if view.nbytes else memoryview(bytearray())  # no cast of an empty one
