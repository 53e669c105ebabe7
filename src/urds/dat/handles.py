"""What all DAT objects share: kind, liveness, users, the consumer's context, the open device.

A handle is the object itself. Once freed it gives INVALID_HANDLE for ever; its number
(`handle`, for people and logs) is never used again in this process.
Source: docs/reference/dat.md 3.

Rules for a class of objects (Endpoint, SharedReceiveQueue, service points):
- Everything is touched with `self.lock` held, the lock of the adapter below the interface adapter,
  and public methods are `while_live`. One that waits takes the lock itself, for shorter times;
  `Endpoint.recv_query` reads one published value without it.
- `live(other, Class)` checks a handle that a consumer gave, `self.device.demand_own(other)` that it
  is of the same adapter.
- `self.hold(other)` says "I use it" and `self.drop(other)` takes that back, once for each `hold`;
  an object that is used cannot be freed. What is still held is dropped when the holder ends.
- Override `_dispose` to end what stands below (queue pair, listener); it runs once, lock held, and
  must not fail: an abrupt close calls it in any state. Override `demand_free` to forbid a free,
  `handle_async` and `handle_evd_overflow` for what the layers below tell.
- `self.device.adopt(engine, self)` makes the adapter hand on asynchronous events about an engine
  object (queue pair, shared queue); `disown(engine)` ends it.
- `__init__` ends with `self.device.add(self)`: then the adapter closes the object with itself.
- How events are fed is at the top of `urds.dat.evd`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
)

from urds.dat.constants import HandleType
from urds.dat.errors import bad_argument, dat_error
from urds.dat.records import LmrTriplet
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.records import SGE

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from urds.dat.constants import EventNumber
    from urds.dat.records import IaAttr, ProviderAttr
    from urds.dat.registry import Support
    from urds.verbs.engine.keys import Region
    from urds.verbs.engine.numbers import AsyncEventType
    from urds.verbs.engine.work import WC
    from urds.verbs.providers.base import Adapter, VerbsConnection

_HANDLES: Final = itertools.count(0x1000)  # above AsyncEvdHandle

# Kind of object to the attribute with its limit, and the subtype of INSUFFICIENT_RESOURCES.
_LIMIT_OF: Final[dict[HandleType, tuple[str, Subtype]]] = {
    HandleType.EP: ("max_eps", Subtype.RESOURCE_TEP),
    HandleType.EVD: ("max_evds", Subtype.RESOURCE_TEVD),
    HandleType.CNO: ("max_evds", Subtype.RESOURCE_MEMORY),
    HandleType.LMR: ("max_lmrs", Subtype.RESOURCE_MEMORY_REGION),
    HandleType.RMR: ("max_rmrs", Subtype.RESOURCE_MEMORY_REGION),
    HandleType.PZ: ("max_pzs", Subtype.RESOURCE_PROTECTION_DOMAIN),
    HandleType.SRQ: ("max_srqs", Subtype.RESOURCE_SRQ),
}


class Memory(Protocol):
    """What a post asks of a local memory region."""

    pz: DatObject
    address: int
    size: int
    is_writable: bool


@dataclass(eq=False)
class OpenDevice:
    """What the objects of one interface adapter share: the device below, its lock and limits.

    It also keeps the list of those objects, and posts asynchronous events. Its lock is held
    throughout.
    """

    adapter: Adapter
    address: str
    attr: IaAttr
    provider_attr: ProviderAttr
    support: Support
    # By handle; the interface adapter is none of them.
    objects: dict[int, DatObject] = field(default_factory=dict)
    # What takes a request that is handed off, by connection qualifier.
    takers: dict[int, Callable[[VerbsConnection, bytes], bool]] = field(default_factory=dict)
    post_async: Callable[[EventNumber, DatObject], None] = lambda _number, _subject: None
    _counts: Counter[HandleType] = field(default_factory=Counter)
    _owners: dict[int, DatObject] = field(default_factory=dict)  # of engine objects, by identity
    # By their contexts: each piece of each post is looked up.
    memories: dict[int, Memory] = field(default_factory=dict)
    _unbinding: dict[DatObject, Region] = field(default_factory=dict)  # by zone
    # What takes a completed transfer, by queue pair.
    finishers: dict[int, Callable[[WC], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock: threading.RLock = self.adapter.lock
        self.completions = self.adapter.completion_queue(1, sink=self._finish)

    def _finish(self, completions: list[WC]) -> None:
        """Hand the completions of a pass to the endpoints."""
        for wc in completions:
            finish = self.finishers.get(wc.qp_num)
            if finish is not None:
                finish(wc)

    def wait(self, is_over: Callable[[], bool], timeout_ns: int | None) -> None:
        """Wait for what completions or other calls bring about, without the lock."""
        self.adapter.wait_fed(self.completions, is_over, timeout_ns)

    def demand_own(self, *others: DatObject | None) -> None:
        """Raise DatInvalidHandle if one belongs to another adapter."""
        for other in others:
            if other is not None and other.device is not self:
                detail = f"{other!r} belongs to another adapter"
                raise dat_error(ReturnType.INVALID_HANDLE, other.invalid_subtype, detail)

    def demand_private_data(self, private_data: bytes, *, argument: int) -> None:
        """Raise DatInvalidParameter if it is longer than a connection takes."""
        limit = self.provider_attr.max_private_data_size
        if len(private_data) > limit:
            detail = f"private data of {len(private_data)} bytes, limit {limit}"
            raise bad_argument(argument, detail)

    def demand_room(self, kind: HandleType) -> None:
        """Raise DatInsufficientResources if there can be no more objects of this kind."""
        if kind in _LIMIT_OF:
            name, subtype = _LIMIT_OF[kind]
            limit = getattr(self.attr, name)
            if self._counts[kind] >= limit:
                detail = f"{limit} objects ({name})"
                raise dat_error(ReturnType.INSUFFICIENT_RESOURCES, subtype, detail)

    def add(self, child: DatObject) -> None:
        """Add an object, which closes with the adapter."""
        self.objects[child.handle] = child
        self._counts[child.handle_type] += 1

    def remove(self, child: DatObject) -> None:
        """Remove an object that ends."""
        if self.objects.pop(child.handle, None) is not None:
            self._counts[child.handle_type] -= 1

    def adopt(self, engine: object, owner: DatObject) -> None:
        """Remember whose engine object this is: asynchronous events about it name the owner."""
        self._owners[id(engine)] = owner

    def disown(self, engine: object) -> None:
        """Forget an engine object."""
        self._owners.pop(id(engine), None)

    def owner_of(self, engine: object) -> DatObject | None:
        """Return whose engine object this is, `None` if it is no object's."""
        return self._owners.get(id(engine))

    def pieces(
        self, iov: Sequence[LmrTriplet], pz: object, *, write: bool, segments_max: int
    ) -> tuple[list[SGE], int]:
        """Return segments as the engine takes them, and their bytes; those of length 0 go.

        `write`: the memory will be written. Raises DatInvalidParameter: too many segments, one
        that is none or outside its region. DatProtectionViolation: a region of another zone.
        DatPrivilegesViolation: a context that is not valid, or a region that may not be written.
        Source: docs/reference/dat.md 10, 11, post-time checks.
        """
        if len(iov) > segments_max:
            raise bad_argument(2, f"{len(iov)} segments, limit {segments_max}")
        found, byte_count = [], 0
        for segment in iov:
            if not isinstance(segment, LmrTriplet):
                raise bad_argument(3, f"{segment!r} is no piece of local memory")
            if length := segment.segment_length:
                context, address = segment.lmr_context, segment.virtual_address
                _check_piece(segment, self.memories.get(context), pz, write=write)
                found.append(SGE(address, length, context))
                byte_count += length
        return found, byte_count

    def unbinding_region(self, zone: DatObject) -> Region:
        """Return the region that a bind of no bytes in a zone names: it must name one."""
        if zone not in self._unbinding:
            view = memoryview(bytearray(1))
            region = self.adapter.register(zone, view, 0, AccessFlag.MW_BIND)
            self._unbinding[zone] = region
        return self._unbinding[zone]

    def forget_zone(self, zone: DatObject) -> None:
        """Deregister what `unbinding_region` made for a zone that ends."""
        region = self._unbinding.pop(zone, None)
        if region is not None:
            self.adapter.deregister(region)


P = ParamSpec("P")
Result = TypeVar("Result")
ObjectT = TypeVar("ObjectT", bound="DatObject")


def while_live(
    method: Callable[Concatenate[ObjectT, P], Result],
) -> Callable[Concatenate[ObjectT, P], Result]:
    """Run a method of a live object, its lock held. It raises DatInvalidHandle for a freed one."""

    @wraps(method)
    def run(self: ObjectT, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        with self.lock:
            self.demand_live()
            return method(self, *args, **kwargs)

    return run


class DatObject:
    """One object of an interface adapter. A context manager: leaving it frees it.

    `context` is the consumer's own: a 64-bit number or any object.
    """

    handle_type: ClassVar[HandleType]
    invalid_subtype: ClassVar[Subtype]  # of INVALID_HANDLE when something else was given
    in_use_subtype: ClassVar[Subtype] = Subtype.NO_SUBTYPE  # of INVALID_STATE when it is used

    def __init_subclass__(cls, *, kind: HandleType | None = None) -> None:
        """Let a class be the objects of a kind; the subtypes of errors about them bear its name."""
        super().__init_subclass__()
        if kind is not None:
            cls.handle_type = kind
            # A dispatcher has a subtype per role only; as itself it is the first handle of a call.
            invalid, in_use = f"INVALID_HANDLE_{kind.name}", f"INVALID_STATE_{kind.name}_IN_USE"
            cls.invalid_subtype = Subtype.__members__.get(invalid, Subtype.INVALID_HANDLE1)
            cls.in_use_subtype = Subtype.__members__.get(in_use, Subtype.NO_SUBTYPE)

    def __init__(self, ia: DatObject) -> None:
        self.ia: DatObject = ia
        self.device: OpenDevice = ia.device
        self.device.demand_room(self.handle_type)
        self.lock = self.device.lock
        self.handle = next(_HANDLES)
        self.context: Any = None
        self.live = True
        self._users: Counter[DatObject] = Counter()
        self._holds: Counter[DatObject] = Counter()

    def __repr__(self) -> str:
        state = "" if self.live else " freed"
        return f"<{type(self).__name__} {self.handle:#x}{state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            if self.live:
                self.free()

    # -- for consumers

    @property
    def in_use(self) -> bool:
        """Return whether other objects use this one."""
        return bool(self._users)

    @while_live
    def free(self) -> None:
        """Free the object. Raises DatInvalidState while it is in use, DatInvalidHandle if freed."""
        self.demand_free()
        self.end()

    # -- for the other objects; lock held

    def demand_live(self) -> None:
        """Raise DatInvalidHandle if the object was freed."""
        if not self.live:
            raise dat_error(ReturnType.INVALID_HANDLE, self.invalid_subtype, f"{self!r}")

    def demand_free(self) -> None:
        """Raise DatInvalidState if the object cannot be freed now."""
        if self._users:
            users = ", ".join(repr(user) for user in itertools.islice(self._users, 3))
            raise dat_error(ReturnType.INVALID_STATE, self.in_use_subtype, f"used by {users}")

    def hold(self, other: DatObject | None) -> None:
        """Use another object until `drop`, or until this one ends."""
        if other is not None:
            self._holds[other] += 1
            other._users[self] += 1

    def drop(self, other: DatObject | None) -> None:
        """Stop using another object."""
        if other is not None:
            _take_one(self._holds, other)
            _take_one(other._users, self)

    def end(self) -> None:
        """Free the object whatever uses it; safe twice."""
        if not self.live:
            return
        self.live = False
        self.device.remove(self)
        self._dispose()
        for other in list(self._holds):
            with other.lock:  # another adapter's, if asynchronous events go to its dispatcher
                other.forget_user(self)
                while self._holds[other]:
                    self.drop(other)

    def forget_user(self, user: DatObject) -> None:
        """Forget what else is known of a user that ends."""

    def handle_async(self, kind: AsyncEventType) -> None:
        """React to an asynchronous event about the engine object; the DAT event is queued."""

    def handle_evd_overflow(self, evd: DatObject) -> None:
        """React to the loss of an event in a dispatcher that this object feeds."""

    def _dispose(self) -> None:
        """End what stands below; a subclass says what."""


def live_zone(candidate: object) -> DatObject:
    """Return a live protection zone. Raises DatInvalidHandle for anything else."""
    found = live(candidate, DatObject, Subtype.INVALID_HANDLE_PZ)
    if found.handle_type is not HandleType.PZ:
        raise dat_error(ReturnType.INVALID_HANDLE, Subtype.INVALID_HANDLE_PZ, f"PZ is {found!r}")
    return found


def live(candidate: object, kind: type[ObjectT], subtype: Subtype | None = None) -> ObjectT:
    """Return `candidate` if it is a live object of this kind.

    Raises DatInvalidHandle with the subtype of the kind, or the one that its role has.
    """
    if not isinstance(candidate, kind) or not candidate.live:
        role = kind.invalid_subtype if subtype is None else subtype
        raise dat_error(ReturnType.INVALID_HANDLE, role, f"{kind.__name__} is {candidate!r}")
    return candidate


def _take_one(counts: Counter[DatObject], item: DatObject) -> None:
    assert counts[item] > 0, f"{item!r} was not held"
    counts[item] -= 1
    if not counts[item]:
        del counts[item]


def _check_piece(segment: LmrTriplet, lmr: Memory | None, pz: object, *, write: bool) -> None:
    length = segment.segment_length
    if lmr is not None and lmr.pz is pz and (lmr.is_writable or not write):
        if 0 <= segment.virtual_address - lmr.address <= lmr.size - length and length > 0:
            return
        raise bad_argument(
            3,
            f"{length} bytes at {segment.virtual_address:#x}, lmr_context "
            f"{segment.lmr_context:#x} has {lmr.size} at {lmr.address:#x}",
        )
    context = f"lmr_context {segment.lmr_context:#x}"
    wanted = Subtype.PRIVILEGES_WRITE if write else Subtype.PRIVILEGES_READ
    if lmr is None:
        raise dat_error(ReturnType.PRIVILEGES_VIOLATION, wanted, f"{context} is not valid")
    if lmr.pz is not pz:
        subtype = Subtype.PROTECTION_WRITE if write else Subtype.PROTECTION_READ
        raise dat_error(
            ReturnType.PROTECTION_VIOLATION, subtype, f"{context} is of another protection zone"
        )
    raise dat_error(ReturnType.PRIVILEGES_VIOLATION, wanted, f"{context} may not be written")
