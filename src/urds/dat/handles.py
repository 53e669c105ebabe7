"""What all DAT objects share: kind, liveness, who uses them, the consumer's context.

A handle is the object itself. Once freed it is refused with INVALID_HANDLE for ever; its number
(`handle`, for people and logs) is never used again in this process. Source: dat.md section 3.

For those who write an object (Endpoint, SharedReceiveQueue, service points):
- Everything is touched with `self.lock` held, the lock of the adapter below the interface adapter.
  Public methods begin with `with self.lock: self.demand_live()`.
- `live(other, Class)` checks a handle that a consumer gave, `self.ia.demand_own(other)` that it
  is of the same adapter.
- `self.hold(other)` says "I use it" and `self.drop(other)` takes that back, once for each `hold`;
  an object that is used refuses `free`. What is still held is dropped when the holder ends.
- Override `_dispose` to end what stands below (queue pair, listener); it runs once, lock held, and
  must not refuse: an abrupt close calls it in any state. Override `demand_free` for refusals,
  `handle_async` and `handle_evd_overflow` for what the layers below tell.
- `self.ia.adopt(engine, self)` makes the adapter hand on asynchronous events about an engine object
  (queue pair, shared queue); `self.ia.disown(engine)` ends it.
- `__init__` ends with `self.enlist()`: then the adapter knows the object and closes it with itself.
- How events are fed is at the top of `urds.dat.evd`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from urds.dat.errors import dat_error
from urds.dat.numbers import HandleType
from urds.dat.returns import ReturnType, Subtype

if TYPE_CHECKING:
    import threading

    from urds.dat.evd import EventDispatcher
    from urds.dat.ia import InterfaceAdapter
    from urds.verbs.engine.numbers import AsyncEventType

_HANDLES: Final = itertools.count(0x1000)  # above AsyncEvdHandle


class DatObject:
    """One object of an interface adapter. A context manager: leaving it frees it.

    `context` is the consumer's own: a 64-bit number or any object.
    """

    handle_type: ClassVar[HandleType]
    invalid_subtype: ClassVar[Subtype]  # of INVALID_HANDLE when something else was given
    in_use_subtype: ClassVar[Subtype] = Subtype.NO_SUBTYPE  # of INVALID_STATE when it is used

    def __init__(self, ia: InterfaceAdapter) -> None:
        ia.demand_room(self.handle_type)
        self.ia = ia
        self.lock: threading.RLock = ia.lock
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

    def free(self) -> None:
        """Free the object. Raises DatInvalidState while it is in use, DatInvalidHandle if freed."""
        with self.lock:
            self.demand_live()
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

    def enlist(self) -> None:
        """Make the object known to its adapter, which closes it with itself."""
        self.ia.admit(self)

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
        self.ia.dismiss(self)
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

    def handle_evd_overflow(self, evd: EventDispatcher) -> None:
        """React to the loss of an event in a dispatcher that this object feeds."""

    def _dispose(self) -> None:
        """End what stands below; a subclass says what."""


ObjectT = TypeVar("ObjectT", bound=DatObject)


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
