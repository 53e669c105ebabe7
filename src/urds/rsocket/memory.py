"""Memory into which peers write: what `allocate` gives, and the key that a device has for it.

A key stays as long as the memory: a stream that let the peer write to it keeps it alive.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import finalize

from urds.rsocket import devices
from urds.rsocket.stream import Memory

if TYPE_CHECKING:
    from urds.rsocket.opening import Opening

Keys = dict["Opening", Memory]


class _Allocation:
    """One piece of memory, whole, and the registrations it has."""

    __slots__ = ("keys", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.keys: Keys = {}


# By the id of the object under the views that `allocate` gave; views of a part have the same one.
_allocations: Final[dict[int, _Allocation]] = {}


def allocate(byte_count: int) -> memoryview:
    """Return zeroed memory that receives with MSG_WAITALL are written to without a copy.

    So are those into parts of it. Raises ValueError below 1 octet, MemoryError, OSError.
    """
    if byte_count < 1:
        raise ValueError(f"{byte_count} octets cannot be allocated")
    whole = devices.openings()[0].adapter.allocate(byte_count)
    array = (ctypes.c_char * byte_count).from_buffer(whole)
    allocation = _Allocation(whole)
    _allocations[id(array)] = allocation
    finalize(array, _forget, id(array)).atexit = False
    return memoryview(array).cast("B")


def registered(view: memoryview, opening: Opening) -> Memory | None:
    """Return the octets of a view as memory of a device, None if `allocate` did not give them.

    Takes the device's lock.
    """
    allocation = _allocations.get(id(view.obj))
    if allocation is None:
        return None
    whole = allocation.keys.get(opening)
    if whole is None:
        with opening.adapter.lock:
            whole = allocation.keys.get(opening)  # another thread may have been faster
            if whole is None:
                whole = allocation.keys[opening] = opening.register(allocation.view)
    return Memory(view, address_of(view), whole.rkey)


def address_of(view: memoryview) -> int:
    """Return where the first octet of a writable view is."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _forget(array_id: int) -> None:
    """Take the keys back. A finaliser may run inside any call: the devices do it later."""
    for opening, memory in _allocations.pop(array_id).keys.items():
        if not opening.is_abandoned:
            opening.adapter.call_soon(partial(opening.release, memory))
