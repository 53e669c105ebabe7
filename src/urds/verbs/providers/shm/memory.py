"""Shared memory: anonymous files that cannot shrink, and what applications allocate in them.

A process that maps a file gets SIGBUS when another one truncates it. So every memory file here is
sealed against a change of its size before it is shared, and no other file is mapped.
Source: memfd_create(2), fcntl(2), Linux 3.17.

An allocation is one file: a control page, then the application's bytes. One file each and not a
pool, because a mapping of a file covers all of it. The control page holds the *generation*: a peer
may write while it is the one that came with its mapping.
"""

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Final

from urds.common.errors import RemoteProtocolError

CONTROL_BYTES: Final = 4096  # before an allocation's bytes, which begin on a page of their own
MAPPABLE_BYTES_MIN: Final = 4096  # smaller memory is not worth two descriptors
ALLOCATIONS_MAX: Final = 256  # each holds two descriptors; the rest gets plain memory
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS: Final = _SIZE_SEALS | fcntl.F_SEAL_SEAL
_F_SEAL_FUTURE_WRITE: Final = 0x10  # Linux 5.1; without a name in Python
_WRITE_SEALS: Final = fcntl.F_SEAL_WRITE | _F_SEAL_FUTURE_WRITE


def sealed_file(name: str, file_bytes: int) -> int:
    """Make a memory file of zeroes with a fixed size; return its descriptor. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, file_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def map_sealed(descriptor: int, file_bytes: int) -> mmap.mmap:
    """Map a file of a peer, to read and write; the descriptor stays the caller's.

    Raises RemoteProtocolError if it is shorter, may still shrink, or cannot be mapped.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        given_bytes = os.fstat(descriptor).st_size
        if seals & _SIZE_SEALS != _SIZE_SEALS or seals & _WRITE_SEALS:
            raise RemoteProtocolError(f"memory file with seals {seals:#x}")
        if given_bytes < file_bytes:
            raise RemoteProtocolError(f"memory file of {given_bytes} bytes, not {file_bytes}")
        return mmap.mmap(descriptor, file_bytes)
    except OSError as error:
        raise RemoteProtocolError(f"memory file cannot be mapped: {error}") from error


class SharedAllocation:
    """Memory that peers may map. It lives as long as a view of it."""

    def __init__(self, descriptor: int, mapping: mmap.mmap, view_bytes: int) -> None:
        self.descriptor = descriptor
        self.view_bytes = view_bytes
        self.generation = 1
        self.is_mapped = False
        self._mapping = weakref.ref(mapping)
        self._write_generation(mapping)

    def revoke(self) -> None:
        """Revoke every mapping of this memory: honest peers do not write any more."""
        self.generation += 1
        self.is_mapped = False
        if (mapping := self._mapping()) is not None:
            self._write_generation(mapping)

    def _write_generation(self, mapping: mmap.mmap) -> None:
        with memoryview(mapping) as whole, whole[:8] as data, data.cast("Q") as cell:
            cell[0] = self.generation


class Allocations:
    """All memory that one adapter allocated, by the address of its first byte."""

    def __init__(
        self,
        *,
        make_file: Callable[[str, int], int] = sealed_file,
        allocations_max: int = ALLOCATIONS_MAX,
    ) -> None:
        self._make_file = make_file
        self._allocations_max = allocations_max
        self._by_address: dict[int, SharedAllocation] = {}
        self.plain = 0  # allocations that peers cannot map: small ones, beyond the limit, no file

    def __len__(self) -> int:
        return len(self._by_address)

    def allocate(self, view_bytes: int) -> memoryview:
        """Return zeroed memory: mappable if it is large enough, and a file can be had."""
        if view_bytes >= MAPPABLE_BYTES_MIN and len(self) < self._allocations_max:
            try:
                return self._mappable(view_bytes)
            except OSError:
                pass  # no descriptors or no memory for a file: plain memory works as well
        self.plain += 1
        return memoryview(bytearray(view_bytes))

    def find(self, view: memoryview) -> SharedAllocation | None:
        """Return the allocation that a view covers from end to end, however it was wrapped."""
        if view.readonly or not view.nbytes:
            return None
        allocation = self._by_address.get(address_of(view))
        if allocation is None or allocation.view_bytes != view.nbytes:
            return None
        return allocation

    def _mappable(self, view_bytes: int) -> memoryview:
        descriptor = self._make_file("urds-verbs-memory", CONTROL_BYTES + view_bytes)
        try:
            mapping = mmap.mmap(descriptor, CONTROL_BYTES + view_bytes)
        except OSError:
            os.close(descriptor)
            raise
        view = memoryview(mapping)[CONTROL_BYTES:]
        address = address_of(view)
        self._by_address[address] = SharedAllocation(descriptor, mapping, view_bytes)
        # Runs before the memory goes, so the address cannot belong to another one yet.
        weakref.finalize(mapping, _forget, self._by_address, address, descriptor)
        return view


def address_of(view: memoryview) -> int:
    """Return where a writable view's first byte is in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _forget(by_address: dict[int, SharedAllocation], address: int, descriptor: int) -> None:
    del by_address[address]
    os.close(descriptor)
