"""Keys: every access to registered memory passes here.

A key is 32 bits: a 24-bit index and an 8-bit variant. Memory regions take their indices from one
range, memory windows from another, and no key is 0. With an `rng` both parts are random, so that a
peer cannot guess keys; without it indices count up, a reused index gets its next variant, and freed
indices wait as long as fresh ones are left. A region may also have a key chosen by its owner, so
that several adapters know the memory by the same one.

An access that is allowed gets a slice of the region's view, and only that: nothing outside a
region can be touched, whatever a peer writes into its packets. The table knows no queue pair and
takes no lock; its adapter's lock guards it. Source: docs/reference/verbs-and-roce.md 11.
"""

import errno
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from urds.common.types import BytesLike
from urds.verbs.engine.numbers import AccessFlag, WCStatus
from urds.verbs.engine.packets import Syndrome
from urds.verbs.engine.work import SGE

if TYPE_CHECKING:
    from random import Random

VARIANT_BITS: Final = 8
REGION_INDEX_FIRST: Final = 1
WINDOW_INDEX_FIRST: Final = 1 << 23
INDEX_END: Final = 1 << 24
# Keys that a region may have, and hence those that may be chosen for one.
REGION_KEYS: Final = range(REGION_INDEX_FIRST << VARIANT_BITS, WINDOW_INDEX_FIRST << VARIANT_BITS)
ADDRESS_END: Final = 1 << 64
REGIONS_MAX: Final = 1 << 20
WINDOWS_MAX: Final = 1 << 20

_KNOWN_ACCESS: Final = 0x1F
_OPTIONAL_ACCESS: Final = 0x3FF0_0000  # hints, RELAXED_ORDERING among them: ignored where unknown
_REMOTE_CHANGE: Final = int(AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_ATOMIC)
_REMOTE: Final = int(_REMOTE_CHANGE | AccessFlag.REMOTE_READ)
_LOCAL_WRITE: Final = int(AccessFlag.LOCAL_WRITE)
_MW_BIND: Final = int(AccessFlag.MW_BIND)
_SYNDROME: Final = {
    WCStatus.LOC_PROT_ERR: Syndrome.NAK_REMOTE_OPERATION,
    WCStatus.REM_ACCESS_ERR: Syndrome.NAK_REMOTE_ACCESS,
}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class NestedDomain:
    """A protection domain within another: its queue pairs reach the memory of both.

    One queue pair serves memory that is for every peer, and memory that is for its peer alone.
    """

    outer: object


def reaches(pd: object, owner: object) -> bool:
    """Return whether queue pairs of the domain `pd` may use what belongs to the domain `owner`."""
    return owner is pd or (type(pd) is NestedDomain and owner is pd.outer)


class AccessError(Exception):
    """An access that its key does not allow.

    `status` is that of a local completion, `syndrome` what a responder answers.
    """

    def __init__(self, message: str, status: WCStatus) -> None:
        super().__init__(message)
        self.status = status
        self.syndrome = _SYNDROME.get(status, Syndrome.NAK_INVALID_REQUEST)


@dataclass(slots=True, eq=False)
class Region:
    """Registered memory: `length` bytes that peers and work requests address from `address` on."""

    pd: object
    view: memoryview  # of bytes; empty once the region is gone
    address: int
    length: int
    access: AccessFlag
    lkey: int
    rkey: int
    windows: int = 0  # bound to this region; it cannot go while there are any
    tag: Any = None  # a provider's own: where peers find the same memory
    # `access` as a plain int: combining flags of an enum costs more than the whole look-up.
    access_bits: int = 0


@dataclass(slots=True, eq=False)
class MemoryWindow:
    """A part of a region with a remote key of its own. Bound while `region` is not `None`."""

    pd: object
    kind: int  # 1: for any queue pair of the domain; 2: for the one that bound it
    rkey: int
    region: Region | None = None
    address: int = 0
    length: int = 0
    access_bits: int = 0
    qpn: int = 0


@dataclass(frozen=True, slots=True)
class WindowBinding:
    """The parameters of a BIND_MW: `SendWR.bind`. Length 0 unbinds a window of kind 1."""

    region: Region
    address: int
    length: int
    access: AccessFlag


@dataclass(slots=True)
class _Indices:
    """Numbers from `first` up to `end`, at most `count_max` in use, as keys."""

    first: int
    end: int
    count_max: int
    rng: "Random | None" = None
    fresh: int = 0  # how many were counted up to, in use or not
    freed: OrderedDict[int, int] = field(default_factory=OrderedDict)  # to the last key it had
    used: set[int] = field(default_factory=set)

    def take(self) -> int:
        self._demand_room()
        key = self._count_on() if self.rng is None else self._draw(self.rng)
        self.used.add(key >> VARIANT_BITS)
        return key

    def choose(self, key: int) -> None:
        """Take the index of this key. Raises OSError: EEXIST if any key has that index."""
        index = key >> VARIANT_BITS
        if index in self.used:
            raise OSError(errno.EEXIST, f"key {key:#x}: its index is in use")
        self._demand_room()
        self.used.add(index)
        self.freed.pop(index, None)

    def give_back(self, key: int) -> None:
        """Free an index, with the last key that it had."""
        index = key >> VARIANT_BITS
        self.used.remove(index)
        # One that was chosen ahead of the count is not remembered: chosen ones have no bound.
        if self.rng is None and index < self.first + self.fresh:
            self.freed[index] = key

    def renew(self, key: int) -> int:
        """Return the key that takes the place of this one: drawn ones say nothing of the next."""
        if self.rng is None:
            return next_variant(key)
        drawn = self._draw(self.rng)
        self.used.add(drawn >> VARIANT_BITS)
        self.give_back(key)
        return drawn

    def _count_on(self) -> int:
        while self.fresh < self.count_max:
            self.fresh += 1
            index = self.first + self.fresh - 1
            if index not in self.used:
                return index << VARIANT_BITS
        return next_variant(self.freed.popitem(last=False)[1])

    def _draw(self, rng: "Random") -> int:
        # At most an eighth of the range is in use, so this ends after few tries.
        while (index := rng.randrange(self.first, self.end)) in self.used:
            pass
        return index << VARIANT_BITS | rng.randrange(1 << VARIANT_BITS)

    def _demand_room(self) -> None:
        if len(self.used) >= self.count_max:
            raise OSError(errno.ENOMEM, f"all {self.count_max} keys are in use")


class KeyTable:
    """All regions and windows of one adapter, by key.

    rng: draws the keys; an adapter that peers of other users reach passes an unpredictable one.
    Without it keys count up.
    """

    def __init__(
        self,
        *,
        regions_max: int = REGIONS_MAX,
        windows_max: int = WINDOWS_MAX,
        rng: "Random | None" = None,
    ) -> None:
        self._regions: dict[int, Region] = {}
        self._windows: dict[int, MemoryWindow] = {}
        self._region_indices = _Indices(REGION_INDEX_FIRST, WINDOW_INDEX_FIRST, regions_max, rng)
        self._window_indices = _Indices(WINDOW_INDEX_FIRST, INDEX_END, windows_max, rng)

    @property
    def region_count(self) -> int:
        """Return how many regions are registered."""
        return len(self._regions)

    # -- regions

    def region(self, lkey: int) -> Region | None:
        """Return the region of a local key, `None` if there is none."""
        return self._regions.get(lkey)

    def register(
        self,
        pd: object,
        view: memoryview,
        address: int,
        access: AccessFlag,
        *,
        key: int | None = None,
    ) -> Region:
        """Register a C-contiguous view; `address` names its first byte.

        key: one of REGION_KEYS, which becomes both keys; without it the region gets a fresh one.
        Raises OSError: EINVAL for invalid access flags, address or key, EEXIST while the index of
        the chosen key is in use, ENOMEM at the limit.
        """
        data, bits = _checked(view, address, access)
        if key is None:
            key = self._region_indices.take()
        elif key in REGION_KEYS:
            self._region_indices.choose(key)
        else:
            raise OSError(errno.EINVAL, f"key {key:#x} is not one that a region may have")
        region = Region(
            pd, data, address, data.nbytes, AccessFlag(bits), key, key, access_bits=bits
        )
        self._regions[key] = region
        self.note_new(region)
        return region

    def reregister(
        self,
        region: Region,
        *,
        pd: object | None = None,
        view: memoryview | None = None,
        address: int | None = None,
        access: AccessFlag | None = None,
    ) -> None:
        """Change what is given. For other memory, or another address, the region gets new keys.

        The old ones become invalid then. Without, the keys stay: a peer goes on with the one that
        it has. Raises OSError: EBUSY while windows are bound, EINVAL as `register`. Then nothing
        changes.
        """
        self._demand_free_of_windows(region)
        keeps_keys = view is None and address is None
        address = region.address if address is None else address
        data, bits = _checked(
            region.view if view is None else view,
            address,
            region.access if access is None else access,
        )
        old_rkey = region.rkey
        region.pd = region.pd if pd is None else pd
        region.view, region.address, region.length = data, address, data.nbytes
        region.access, region.access_bits = AccessFlag(bits), bits
        if not keeps_keys:
            del self._regions[region.lkey]
            region.lkey = region.rkey = self._region_indices.renew(region.lkey)
            self._regions[region.lkey] = region
        self.note_gone(old_rkey)
        self.note_new(region)

    def deregister(self, region: Region) -> None:
        """Remove a region; its view becomes empty.

        Raises OSError: EBUSY while windows are bound, EINVAL if it was removed before.
        """
        self._demand_free_of_windows(region)
        del self._regions[region.lkey]
        self._region_indices.give_back(region.lkey)
        region.view, region.length = memoryview(b""), 0
        self.note_gone(region.rkey)

    def note_new(self, region: Region) -> None:
        """React to a region that can be named from now on, or is another one now."""

    def note_gone(self, rkey: int) -> None:
        """React to the end of what a remote key named."""

    def local(self, lkey: int, address: int, length: int, *, pd: object, write: bool) -> memoryview:
        """Return the bytes that a local work request names. Zero bytes need no key.

        Raises AccessError (LOC_PROT_ERR): key, protection domain, right to write, range.
        """
        region = self._regions.get(lkey)
        if (
            region is not None
            and (region.pd is pd or reaches(pd, region.pd))
            and (start := _offset(region, address, length)) >= 0
            and (not write or region.access_bits & _LOCAL_WRITE)
        ):
            return region.view[start : start + length]
        if length == 0:
            return memoryview(bytearray())
        reason = _reason(region, pd, address, length, _LOCAL_WRITE if write else 0)
        raise AccessError(f"local key {lkey:#x}: {reason}", WCStatus.LOC_PROT_ERR)

    def remote(
        self,
        rkey: int,
        address: int,
        length: int,
        *,
        pd: object,
        access: AccessFlag,
        qpn: int,
    ) -> memoryview:
        """Return the bytes that the peer of queue pair `qpn` names. Zero bytes need no key.

        Raises AccessError (NAK_REMOTE_ACCESS): key, protection domain, rights, range.
        """
        if length == 0:
            return memoryview(bytearray())
        bits = int(access)
        region = self._regions.get(rkey)
        if (
            region is not None
            and (region.pd is pd or reaches(pd, region.pd))
            and region.access_bits & bits == bits
            and (start := _offset(region, address, length)) >= 0
        ):
            return region.view[start : start + length]
        window = self._windows.get(rkey)
        if (
            window is not None
            and window.region is not None
            and reaches(pd, window.pd)
            and (window.kind == 1 or window.qpn == qpn)
            and window.access_bits & bits == bits
            and _offset(window, address, length) >= 0
        ):
            start = address - window.region.address
            return window.region.view[start : start + length]
        reason = _reason(window or region, pd, address, length, bits)
        raise AccessError(f"remote key {rkey:#x}: {reason}", WCStatus.REM_ACCESS_ERR)

    # -- scatter/gather: a message in the pieces of memory that a work request names. Each access
    # looks the key up again, so memory that was deregistered in between is not touched.

    def gather(self, pd: object, sg: Sequence[SGE], offset: int, length: int) -> BytesLike:
        """Return `length` bytes of the message from `offset`: a view, or a copy over two pieces.

        Raises AccessError (LOC_PROT_ERR) where a key does not allow it.
        """
        if length == 0:
            return b""
        found: list[memoryview] = []
        for piece in sg:
            if offset >= piece.length:
                offset -= piece.length
                continue
            count = min(length, piece.length - offset)
            found.append(self.local(piece.lkey, piece.addr + offset, count, pd=pd, write=False))
            offset, length = 0, length - count
            if not length:
                break
        assert not length, "more bytes than the pieces have"
        return found[0] if len(found) == 1 else b"".join(found)

    def scatter(self, pd: object, sg: Sequence[SGE], offset: int, data: BytesLike) -> None:
        """Copy bytes into the pieces, from `offset` bytes after their start. Copies once.

        Raises AccessError: LOC_PROT_ERR where a key does not allow it, LOC_LEN_ERR when the pieces
        end before the data. What lies before the fault has been written.
        """
        source = memoryview(data)
        for piece in sg:
            if not source:
                return
            if offset >= piece.length:
                offset -= piece.length
                continue
            count = min(len(source), piece.length - offset)
            target = self.local(piece.lkey, piece.addr + offset, count, pd=pd, write=True)
            target[:] = source[:count]
            offset, source = 0, source[count:]
        if source:
            raise AccessError(
                f"{len(source)} bytes more than the pieces hold", WCStatus.LOC_LEN_ERR
            )

    # -- windows

    def new_window(self, pd: object, *, kind: int = 1) -> MemoryWindow:
        """Make an unbound window of kind 1 or 2. Raises OSError: EINVAL, ENOMEM at the limit."""
        if kind not in (1, 2):
            raise OSError(errno.EINVAL, f"memory window of kind {kind}, known are 1 and 2")
        window = MemoryWindow(pd, kind, self._window_indices.take())
        self._windows[window.rkey] = window
        return window

    def bind(
        self,
        window: MemoryWindow,
        region: Region,
        address: int,
        length: int,
        access: AccessFlag,
        *,
        qpn: int,
    ) -> int:
        """Point a window at a part of a region and return its new remote key.

        A window of kind 1 may be bound again, and length 0 unbinds it; one of kind 2 has to be
        invalidated first. Raises AccessError (MW_BIND_ERR); then nothing changes.
        """
        if (problem := self._bind_error(window, region, address, length, int(access))) is not None:
            raise AccessError(f"memory window {window.rkey:#x}: {problem}", WCStatus.MW_BIND_ERR)
        self._unbind(window)
        if length:
            window.region, window.address, window.length = region, address, length
            window.access_bits, window.qpn = int(access) & _KNOWN_ACCESS, qpn
            region.windows += 1
        del self._windows[window.rkey]
        window.rkey = next_variant(window.rkey)
        self._windows[window.rkey] = window
        return window.rkey

    def free(self, window: MemoryWindow) -> None:
        """Remove a window, bound or not."""
        self._unbind(window)
        del self._windows[window.rkey]
        self._window_indices.give_back(window.rkey)

    def invalidate(self, rkey: int, *, pd: object, qpn: int) -> None:
        """Unbind the window of kind 2 that `rkey` names; the key becomes invalid.

        Regions of applications and windows of kind 1 cannot be invalidated by key. Raises
        AccessError: LOC_QP_OP_ERR for a local user, NAK_INVALID_REQUEST for a responder.
        """
        window = self._windows.get(rkey)
        if (
            window is not None
            and window.region is not None
            and window.pd is pd
            and window.kind == 2
            and window.qpn == qpn
        ):
            self._unbind(window)
            return
        raise AccessError(
            f"key {rkey:#x} is not a window of kind 2 bound by queue pair {qpn:#x}",
            WCStatus.LOC_QP_OP_ERR,
        )

    def unbind_all(self, region: Region) -> None:
        """Unbind every window of a region, so that it can be deregistered."""
        if region.windows:
            for window in self._windows.values():
                if window.region is region:
                    self._unbind(window)

    # -- private

    def _bind_error(
        self, window: MemoryWindow, region: Region, address: int, length: int, bits: int
    ) -> str | None:
        if window.kind == 2 and window.region is not None:
            return "bound already: invalidate it first"
        if window.kind == 2 and length == 0:
            return "length 0: a window of kind 2 is unbound by invalidation"
        if self._windows.get(window.rkey) is not window:
            return "it was freed"
        if self._regions.get(region.lkey) is not region:
            return f"region {region.lkey:#x} was deregistered"
        if window.pd is not region.pd:
            return "its protection domain is not the region's"
        if length and not region.access_bits & _MW_BIND:
            return f"region {region.lkey:#x} was registered without MW_BIND"
        if bits & ~_KNOWN_ACCESS & ~_OPTIONAL_ACCESS:
            return f"unknown access flags {bits:#x}"
        if bits & _REMOTE_CHANGE and not region.access_bits & _LOCAL_WRITE:
            return f"remote writing, but region {region.lkey:#x} has no LOCAL_WRITE"
        if _offset(region, address, length) < 0:
            return f"{_extent(address, length)} outside {_extent(region.address, region.length)}"
        return None

    def _unbind(self, window: MemoryWindow) -> None:
        if window.region is not None:
            window.region.windows -= 1
            window.region, window.length, window.access_bits = None, 0, 0

    def _demand_free_of_windows(self, region: Region) -> None:
        if self._regions.get(region.lkey) is not region:
            raise OSError(errno.EINVAL, f"region {region.lkey:#x} was deregistered before")
        if region.windows:
            raise OSError(
                errno.EBUSY, f"{region.windows} memory windows are bound to region {region.lkey:#x}"
            )


def next_variant(key: int) -> int:
    """Return the key of the same index with the next variant; 0 follows 255."""
    variant = (key + 1) & ((1 << VARIANT_BITS) - 1)
    return key >> VARIANT_BITS << VARIANT_BITS | variant


def _checked(view: memoryview, address: int, access: AccessFlag) -> tuple[memoryview, int]:
    """Return the view as bytes and the access bits that count."""
    bits = int(access) & ~_OPTIONAL_ACCESS
    if bits & ~_KNOWN_ACCESS:
        raise OSError(errno.EINVAL, f"access flags {int(access):#x}, known are {_KNOWN_ACCESS:#x}")
    if bits & _REMOTE_CHANGE and not bits & _LOCAL_WRITE:
        raise OSError(errno.EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")
    if view.readonly and bits & _LOCAL_WRITE:
        raise OSError(errno.EINVAL, "LOCAL_WRITE for a buffer that cannot be written")
    data = view.cast("B") if view.ndim != 1 or view.format != "B" else view
    if not 0 <= address <= ADDRESS_END - data.nbytes:
        raise OSError(errno.EINVAL, f"{_extent(address, data.nbytes)} outside 64 bits")
    return data, bits


def _offset(found: Region | MemoryWindow, address: int, length: int) -> int:
    """Return where `length` bytes at `address` begin in what was found, -1 if not inside.

    Integers have no width here, so a sum cannot wrap to a valid one.
    """
    start = address - found.address
    return start if start >= 0 and 0 <= length <= found.length - start else -1


def _reason(
    found: Region | MemoryWindow | None, pd: object, address: int, length: int, bits: int
) -> str:
    """Return why an access is rejected."""
    if found is None or (isinstance(found, MemoryWindow) and found.region is None):
        return "not valid"
    if not reaches(pd, found.pd):
        return "of another protection domain"
    if bits & ~found.access_bits:
        missing = AccessFlag(bits & ~found.access_bits)
        return f"without the right {missing!r}"
    if _offset(found, address, length) < 0:
        return f"{_extent(address, length)} outside {_extent(found.address, found.length)}"
    return "bound by another queue pair"


def _extent(address: int, length: int) -> str:
    return f"{length} bytes at {address:#x}"
