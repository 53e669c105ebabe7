"""Base of all verbs objects: one lock, parents and children, closing in any order.

A child holds its parents; a parent knows its children by weak references and closes them before
itself. So any order of closing is safe, and an object without references is closed when it is
collected. Everything runs under the lock of the adapter: each call is safe from any thread. Objects
belong to the process that made them: in a forked child all are closed, and nothing is sent.

The engine below never refers to these objects strongly: an opened device whose objects were all
collected ends, thread included. Source: docs/reference/verbs-and-roce.md 18.
"""

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final, Generic, Self, TypeVar

from urds.common.readiness import EventDescriptor
from urds.verbs.errors import VerbsClosedError, VerbsError, verbs_error

_Event = TypeVar("_Event")

_roots: Final[weakref.WeakSet["Resource"]] = weakref.WeakSet()  # without parents: opened devices


class Resource:
    """Base of the verbs objects: a context manager that closes."""

    # Children close in this order, so that none goes while another of them needs it.
    close_rank: ClassVar[int] = 0
    # Methods that are the engine's own while the object is open: see `_place`.
    _placed: ClassVar[tuple[str, ...]] = ()
    _is_open = False
    _is_inherited = False  # of the parent process, seen in the child of a fork

    def __init__(self, lock: threading.RLock, *parents: "Resource") -> None:
        """Become a child of `parents`, which must be open. Raises VerbsClosedError: one is not."""
        self._lock = lock
        self._weak_children: weakref.WeakSet[Resource] | None = None  # most have none, ever
        self._parents: tuple[Resource, ...] = ()
        with lock:
            for parent in parents:
                parent._demand_open()
            for parent in parents:
                parent._add_child(self)
            self._parents = parents
            self._is_open = True
            if not parents:
                _roots.add(self)

    @property
    def closed(self) -> bool:
        """Return whether the object is closed."""
        return not self._is_open

    def close(self) -> None:
        """Close what depends on this object, then the object. Closing again does nothing."""
        try:
            self._close(forced=False)
        except OSError as error:
            raise verbs_error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Close an object without references.

        A collection may begin anywhere: in the middle of an engine's work, or in a thread that
        holds a lock for which the owner of ours waits. There, another thread closes.
        """
        if not self._is_open or sys.is_finalizing():
            return
        # `threading.Condition` asks a lock the same way; there is no public question.
        is_ours: bool = self._lock._is_owned()  # type: ignore[attr-defined]  # private, see above
        if not is_ours and self._lock.acquire(blocking=False):
            self._lock.release()
            self._close(forced=True)
        else:
            threading.Thread(target=self._close, kwargs={"forced": True}, daemon=True).start()

    def _close(self, *, forced: bool) -> None:
        if self._is_inherited:
            # The lock may be held for ever, by a thread that only the parent process has.
            return
        with self._lock:
            if not self._is_open:
                return
            for child in sorted(self._children(), key=lambda child: child.close_rank):
                child._close(forced=True)
            self._release(forced=forced)
            self._end_calls()
            for parent in self._parents:
                parent._remove_child(self)
            self._announce_end()

    def _place(self, kind: type, engine: object) -> None:
        """Have the engine's own methods in the instance, until it is closed.

        A call of them takes neither a lock nor a frame of Python. `kind` is the class whose methods
        they stand for: what a subclass overrides stays its own.
        """
        for name in self._placed:
            if getattr(type(self), name) is getattr(kind, name):
                self.__dict__[name] = getattr(engine, f"public_{name}")

    def _end_calls(self) -> None:
        self._is_open = False
        for name in self._placed:
            self.__dict__.pop(name, None)

    def _leave_to_parent(self) -> None:
        """Close this copy, and those that depend on it, in the child of a fork. Takes no lock."""
        if not self._is_inherited:
            self._is_inherited = True
            for child in self._children():
                child._leave_to_parent()
            self._end_calls()

    def _announce_end(self) -> None:
        """Wake threads that wait for something of this object, closed by now. Lock held."""

    def _release(self, *, forced: bool) -> None:
        """Release what the object holds; called once, with the lock held, children closed.

        May raise OSError unless `forced`; then the object stays open.
        """

    def _children(self) -> "list[Resource]":
        """Return the open objects that depend on this one. Lock held."""
        return [] if self._weak_children is None else list(self._weak_children)

    def _add_child(self, child: "Resource") -> None:
        if self._weak_children is None:
            self._weak_children = weakref.WeakSet()
        self._weak_children.add(child)

    def _remove_child(self, child: "Resource") -> None:
        if self._weak_children is not None:
            self._weak_children.discard(child)

    def _demand_open(self) -> None:
        if not self._is_open:
            name = type(self).__name__
            raise VerbsClosedError(f"{name} of the parent process" if self._is_inherited else name)

    def _calling(self) -> "_Calling":
        """Hold the lock for a call of an open object; what is raised becomes a `VerbsError`."""
        return _Calling(self)


class EventSource(Resource, Generic[_Event]):
    """Base of objects that have events: in the order in which they came, with a descriptor."""

    def __init__(self, lock: threading.RLock, *parents: Resource) -> None:
        """As `Resource`, without events."""
        self._events: deque[_Event] = deque()
        self._descriptor = EventDescriptor()
        super().__init__(lock, *parents)

    def fileno(self) -> int:
        """Return a descriptor that is readable while an event waits. Raises VerbsError: EMFILE."""
        with self._calling():
            return self._descriptor.fileno()

    # -- lock held

    def _add(self, event: _Event) -> None:
        self._events.append(event)
        self._descriptor.set(True)

    def _take_first(self) -> _Event | None:
        """Take the oldest event, `None` if there is none. Raises VerbsClosedError."""
        self._demand_open()
        event = self._events.popleft() if self._events else None
        self._descriptor.set(bool(self._events))
        return event

    def _keep(self, is_kept: Callable[[_Event], bool]) -> None:
        """Drop the events that are not kept."""
        self._events = deque(event for event in self._events if is_kept(event))
        self._descriptor.set(bool(self._events))

    def _release(self, *, forced: bool) -> None:
        self._events.clear()
        self._descriptor.close()


class _Calling:
    """Context of one call; a generator would take four times as long around each of them."""

    __slots__ = ("_resource",)

    def __init__(self, resource: Resource) -> None:
        self._resource = resource

    def __enter__(self) -> None:
        resource = self._resource
        resource._lock.acquire()
        if not resource._is_open:
            resource._lock.release()
            resource._demand_open()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._resource._lock.release()
        if isinstance(error, OSError) and not isinstance(error, VerbsError):
            raise verbs_error(error) from error


def _leave_all_to_parent() -> None:
    for root in list(_roots):
        root._leave_to_parent()
    _roots.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
