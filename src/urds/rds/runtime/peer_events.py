"""Callbacks of the program for what happens to its connections.

A callback is called in a thread of urds that holds no lock, one event after the other, in their
order. It may use sockets; while it blocks, later events wait, up to a bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from urds.common.deferred import DeferredCalls
from urds.common.logs import LogQueue
from urds.rds.transports.peer_history import PeerEvent, PeerEventKind

__all__ = ["PeerEvent", "PeerEventKind", "PeerEvents", "events", "on_peer_event"]

_EVENTS_MAX: Final = 1024  # that wait for a callback that blocks; further ones are dropped

Callback = Callable[[PeerEvent], object]


class PeerEvents:
    """The callbacks of one process. Any thread may call, with any lock held."""

    def __init__(self) -> None:
        self._callbacks: dict[object, Callback] = {}  # by a token: one may be there twice
        self._calls = DeferredCalls("urds-events", calls_max=_EVENTS_MAX)
        self._log = LogQueue().part("events")

    def add(self, callback: Callback) -> Callable[[], None]:
        """Have a callback called with each event; return what ends that. Raises TypeError."""
        if not callable(callback):
            raise TypeError(f"a callback must be callable, not {callback!r}")
        token = object()
        with self._calls.lock:
            # A new table each time: a thread that goes through one goes on with that.
            self._callbacks = {**self._callbacks, token: callback}

        def remove() -> None:
            with self._calls.lock:
                left = dict(self._callbacks)
                left.pop(token, None)
                self._callbacks = left

        return remove

    def emit(self, event: PeerEvent) -> None:
        """Have every callback called with an event, soon."""
        for token in self._callbacks:
            if not self._calls.put(partial(self._call, token, event)):
                text = "a callback of on_peer_event blocks: an event was dropped (%s of %s)"
                self._log.warning(text, event.kind, event.peer)

    def flush(self) -> None:
        """Wait until every callback has returned, for at most a second; hold no lock."""
        self._calls.flush()
        self._log.flush()

    def abandon_in_child(self) -> None:
        """Leave what waits to the parent; the callbacks stay."""
        self._calls.abandon_in_child()
        self._log.abandon_in_child()

    def _call(self, token: object, event: PeerEvent) -> None:
        callback = self._callbacks.get(token)
        if callback is None:
            return
        try:
            callback(event)
        except Exception as problem:  # noqa: BLE001 - of the program's own code
            text = "a callback of on_peer_event failed on %s of %s"
            self._log.error(text, event.kind, event.peer, problem=problem)


events = PeerEvents()
os.register_at_fork(after_in_child=events.abandon_in_child)


def on_peer_event(callback: Callback) -> Callable[[], None]:
    """Have a callback called with a `PeerEvent` for each that happens in this process.

    It is called in a thread of urds, never in that of a socket call and never with a lock of urds
    held; so it may send, bind and close. One event follows the other: while a callback runs, later
    events wait, and beyond 1024 they are dropped with a warning. What it raises is logged
    (`urds.events`). Callbacks outlive sockets and a fork. The connections of sockets at a node are
    the node's: their events are in its log, and come to no callback.

    Returns a call that unregisters the callback. Events that wait are not passed on to it any more;
    a call that has begun in the thread of urds may still run.
    """
    return events.add(callback)
