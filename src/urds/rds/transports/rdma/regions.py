"""Memory regions of sockets: a buffer under one key, on every device that peers may come by.

A cookie is what a peer is given: its lower half holds the key, its upper half where the region
begins. A peer adds that half to the address that it asks for; in Linux it is the offset within a
page. The device names the first byte by it, and nothing follows a real address. So the page may be
drawn at random, as the key is: 31 and 20 bits that a peer must have been told. A region for one
destination is in the protection domain of that peer alone.

Locks. `_lock` guards the table and is a leaf: nothing is taken with it held. The lock of an
adapter is taken for one device after the other, by callers that hold none; `handle_key_used` is
called with the locks of an adapter and of the cores held and leaves the rest to `later`.
Source: linux v6.12 net/rds/rdma.c; docs/reference/rds.md 4.3.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from urds.common.errors import ErrorReason, os_error
from urds.common.reentry import new_lock
from urds.common.types import IPAddress
from urds.rds.numbers import RDMA_PAGE_BYTES
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.verbs.engine.keys import REGION_INDEX_FIRST, VARIANT_BITS, WINDOW_INDEX_FIRST, Region
from urds.verbs.engine.numbers import AccessFlag

if TYPE_CHECKING:
    from urds.verbs.providers.base import Adapter

REGIONS_MAX: Final = 65_536  # of a process
_KEY_MASK: Final = (1 << 32) - 1
_KEY_FIRST: Final = REGION_INDEX_FIRST << VARIANT_BITS
_KEY_END: Final = WINDOW_INDEX_FIRST << VARIANT_BITS
_PAGES: Final = (1 << 32) // RDMA_PAGE_BYTES  # at which a region may seem to begin
_DRAWS_MAX: Final = 64  # one key in 32,768 is taken at most
# Linux has a pool for regions of up to so many pages, and one for longer ones; here both are one
# table, and only the counters differ. Source: linux v6.12 net/rds/ib_mr.h.
_SMALL_PAGES_MAX: Final = 2
_READABLE: Final = AccessFlag.REMOTE_READ
_WRITABLE: Final = (
    AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_ATOMIC
    | AccessFlag.LOCAL_WRITE
)


class RegionDevice(Protocol):
    """An open device that connections use."""

    @property
    def adapter(self) -> Adapter:
        """The adapter."""

    @property
    def domain(self) -> object:
        """The protection domain that the queue pairs of every peer reach."""

    def domain_of(self, peer: IPAddress) -> object:
        """Return the protection domain that the queue pairs of one peer reach. Lock held."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """One region, as each device knows it."""

    owner: object
    use_once: bool
    is_small: bool
    placed: tuple[tuple[Adapter, Region], ...]


class RegionTable:
    """All memory regions of a process; any thread may call, holding no lock of the stack.

    devices: those that are open now; a region is registered on each of them.
    later: runs a function soon, in a thread that holds no lock; returns at once.
    rng: where keys are drawn from; a test gives a seeded one.
    counters: where regions are counted, as small or large ones; under the lock of the table.
    """

    def __init__(
        self,
        devices: Callable[[], Sequence[RegionDevice]],
        later: Callable[[Callable[[], None]], None],
        *,
        rng: random.Random | None = None,
        counters: RdmaCounters | None = None,
    ) -> None:
        self._devices = devices
        self._later = later
        self._rng = rng or random.SystemRandom()
        self._counters = counters or RdmaCounters()
        self._lock, self.is_inside = new_lock()
        self._entries: dict[int, _Entry] = {}
        self._reserved: set[int] = set()  # keys that a registration under way has drawn
        self._is_abandoned = False  # by a fork: the parent's

    def register(
        self,
        owner: object,
        view: memoryview,
        *,
        address: int,
        writable: bool,
        use_once: bool,
        peer: IPAddress | None = None,
    ) -> int:
        """Make a region of a view's bytes and return its cookie; the view is kept until freed.

        `address` is the program's address of its first byte; only its place in a page counts.
        `peer` may use the region; None admits any peer that was told the cookie.
        `writable` lets peers write and do atomic operations, and needs a writable view; `use_once`
        frees the region once a peer's message shows that it was used. Raises OSError: ENOMEM at
        65,536 regions of the process, or at the limit of a device; EBADF in a forked child.
        """
        if self._is_abandoned:
            raise os_error(ErrorReason.AFTER_FORK)
        in_page = address % RDMA_PAGE_BYTES
        access = _WRITABLE if writable else _READABLE
        is_small = in_page + len(view) <= _SMALL_PAGES_MAX * RDMA_PAGE_BYTES
        for _ in range(_DRAWS_MAX):
            key = self._draw(is_small=is_small)
            try:
                start = self._rng.randrange(_PAGES) * RDMA_PAGE_BYTES + in_page
                placed = self._place(key, view, start, access, peer)
                if placed is None:
                    continue  # a device has this key in use, for memory that is not a socket's
                with self._lock:
                    self._entries[key] = _Entry(owner, use_once, is_small, placed)
                    self._count_made(is_small=is_small)
                return start << 32 | key
            finally:
                with self._lock:
                    self._reserved.discard(key)
        raise os_error(ErrorReason.TOO_MANY_REGIONS, f"no free key in {_DRAWS_MAX} draws")

    def free(self, owner: object, cookie: int) -> None:
        """Forget a region: from here on its key is refused. Only its key counts in `cookie`.

        Waits for a peer that is copying at this moment. Raises OSError (EINVAL): the key names no
        region of `owner`.
        """
        key = cookie & _KEY_MASK
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.owner is not owner:
                raise os_error(ErrorReason.NO_SUCH_REGION, f"key {key:#x}")
            self._pop(key)
        _displace(entry.placed)

    def free_all(self, owner: object) -> int:
        """Forget every region of an owner, which is closing; return how many there were."""
        with self._lock:
            keys = tuple(key for key, entry in self._entries.items() if entry.owner is owner)
            entries = [self._pop(key) for key in keys]
        for entry in entries:
            _displace(entry.placed)
        return len(entries)

    def owns(self, owner: object, cookie: int) -> bool:
        """Tell whether the key of a cookie names a region of `owner`."""
        with self._lock:
            entry = self._entries.get(cookie & _KEY_MASK)
            return entry is not None and entry.owner is owner

    def handle_key_used(self, owner: object, key: int) -> None:
        """React to a message for `owner` whose sender used a key: a use-once region is over.

        Called with the locks of an adapter and of the cores held. A key of another owner, or of
        none, is ignored.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.owner is not owner or not entry.use_once:
                return
            self._pop(key)
        self._later(lambda: _displace(entry.placed))

    def abandon_in_child(self) -> None:
        """Forget everything, in the child of a fork: devices and peers are the parent's.

        Takes no lock: the thread that held one does not exist in the child.
        """
        self._is_abandoned = True
        self._lock, self.is_inside = new_lock()
        self._entries, self._reserved = {}, set()

    def __len__(self) -> int:
        return len(self._entries)

    def _pop(self, key: int) -> _Entry:
        """Take an entry out and count it. Lock held."""
        entry = self._entries.pop(key)
        if entry.is_small:
            self._counters.ib_rdma_mr_8k_free += 1
        else:
            self._counters.ib_rdma_mr_1m_free += 1
        return entry

    def _count_made(self, *, is_small: bool) -> None:
        """Count a region, which is always a new one: nothing is pooled. Lock held."""
        counters = self._counters
        if is_small:
            counters.ib_rdma_mr_8k_alloc += 1
            counters.ib_rdma_mr_8k_used += 1
        else:
            counters.ib_rdma_mr_1m_alloc += 1
            counters.ib_rdma_mr_1m_used += 1

    def _draw(self, *, is_small: bool) -> int:
        with self._lock:
            if len(self._entries) + len(self._reserved) >= REGIONS_MAX:
                if is_small:
                    self._counters.ib_rdma_mr_8k_pool_depleted += 1
                else:
                    self._counters.ib_rdma_mr_1m_pool_depleted += 1
                detail = f"{REGIONS_MAX} are the most"
                raise os_error(ErrorReason.TOO_MANY_REGIONS, detail, limit=REGIONS_MAX)
            while True:  # ends soon: at most one key in 32,768 is taken
                key = self._rng.randrange(_KEY_FIRST, _KEY_END)
                if key not in self._entries and key not in self._reserved:
                    self._reserved.add(key)
                    return key

    def _place(
        self, key: int, view: memoryview, start: int, access: AccessFlag, peer: IPAddress | None
    ) -> tuple[tuple[Adapter, Region], ...] | None:
        """Register under a key on all devices, or on none: None if one has the key in use."""
        placed: list[tuple[Adapter, Region]] = []
        try:
            for device in self._devices():
                adapter = device.adapter
                with adapter.lock:
                    domain = device.domain if peer is None else device.domain_of(peer)
                    region = adapter.register(domain, view, start, access, key=key)
                placed.append((adapter, region))
        except OSError as refused:
            _displace(placed)
            if refused.errno == errno.EEXIST:
                return None
            raise
        return tuple(placed)


def _displace(placed: Sequence[tuple[Adapter, Region]]) -> None:
    for adapter, region in placed:
        with adapter.lock:
            adapter.deregister(region)
