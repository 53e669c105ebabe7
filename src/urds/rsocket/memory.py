"""Memory into which peers write: what `allocate` gives, and the key that a device has for it.

A key stays as long as the memory: a stream that let the peer write to it keeps it alive.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Final
from weakref import finalize

from urds.rsocket.core.stream import Memory
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DeviceContext

Keys = dict["DeviceContext", Memory]


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

    So are those into parts of it. Raises ValueError below 1 byte, MemoryError, OSError.
    """
    if byte_count < 1:
        raise ValueError(f"{byte_count} bytes cannot be allocated")
    whole = devices.contexts()[0].adapter.allocate(byte_count)
    array = (ctypes.c_char * byte_count).from_buffer(whole)
    allocation = _Allocation(whole)
    _allocations[id(array)] = allocation
    finalize(array, _forget, id(array)).atexit = False
    return memoryview(array).cast("B")


def registered(view: memoryview, context: DeviceContext) -> Memory | None:
    """Return the bytes of a view as memory of a device, None if `allocate` did not give them.

    Takes the device's lock.
    """
    allocation = _allocations.get(id(view.obj))
    if allocation is None:
        return None
    whole = allocation.keys.get(context)
    if whole is None:
        with context.adapter.lock:
            whole = allocation.keys.get(context)  # another thread may have been faster
            if whole is None:
                whole = allocation.keys[context] = context.register(allocation.view)
    return Memory(view, address_of(view), whole.rkey)


def address_of(view: memoryview) -> int:
    """Return where the first byte of a writable view is."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _forget(array_id: int) -> None:
    """Take the keys back. A finaliser may run inside any call: the devices do it later."""
    for context, memory in _allocations.pop(array_id).keys.items():
        if not context.is_abandoned:
            context.adapter.call_soon(partial(context.release, memory))
