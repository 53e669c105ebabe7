"""Locks that a fork leaves free in the child.

A fork copies a lock as it is. A lock that another thread of the parent holds at that moment is held
in the child for ever, for that thread does not exist there. So every lock that a call may take is
listed here, and the child begins with all of them free. What a lock guards may be half changed
then: it is the parent's, and the child's calls refuse or close without reading it.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar
from weakref import WeakSet

_Lock = TypeVar("_Lock")  # Lock, RLock or a Condition over its own lock, of `threading`

_locks: WeakSet[Any] = WeakSet()


def renewed(lock: _Lock) -> _Lock:
    """Return the lock; in the child of a fork it is free, unless the thread that forked has it."""
    _locks.add(lock)
    return lock


def _renew() -> None:
    for lock in list(_locks):
        holds = getattr(lock, "_is_owned", None)  # a plain lock does not know
        if holds is None or not holds():
            lock._at_fork_reinit()  # as the standard library resets its own


os.register_at_fork(after_in_child=_renew)
