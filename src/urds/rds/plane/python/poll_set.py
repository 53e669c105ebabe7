"""The poll set: streams, the kick, and the descriptors that the control plane watches.

One epoll set for all of them, so that one thread can wait for everything, and so that an event loop
can wait for the plane by one descriptor. The plane decides which thread serves it. The state's lock
guards the tables.
"""

from __future__ import annotations

import select
import threading
from contextlib import suppress
from typing import Final, Protocol

from urds.rds.plane.contract import Event, Interest, Ready, Stream

READY_MAX: Final = 64
POLL_S_MAX: Final = 86400.0  # epoll counts milliseconds in an int; a longer wait polls again


class Polled(Protocol):
    """A path with a stream."""

    stream: Stream | None
    polled: bool  # the stream is in the set

    def poll_mask(self) -> int:
        """Return what the path waits for now. Lock held."""

    def serve(self, mask: int, *, others: bool) -> None:
        """Read and write what epoll found ready; `others` are ready, too. No lock held."""


class PollSet:
    """See above. "Lock held" and "no lock held" speak of the state's lock."""

    def __init__(self, lock: threading.RLock, kick: int) -> None:
        self._lock = lock
        self._set = select.epoll()
        self._set.register(kick, select.EPOLLIN)
        self.paths: dict[int, Polled] = {}  # by descriptor
        self._watched: dict[int, Interest] = {}

    def fileno(self) -> int:
        """Return the descriptor of the set itself: readable while a member is ready."""
        return self._set.fileno()

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait for members; return descriptors and masks, at most 64. No lock held."""
        return self._set.poll(-1 if timeout_s is None else min(timeout_s, POLL_S_MAX), READY_MAX)

    def close(self) -> None:
        """Close the set; its members stay open."""
        self._set.close()

    # -- streams

    def add(self, path: Polled) -> None:
        """Watch a path's new stream for reading. Lock held."""
        assert path.stream is not None
        descriptor = path.stream.fileno()
        self.paths[descriptor] = path
        self._set.register(descriptor, select.EPOLLIN)
        path.polled = True

    def remove(self, path: Polled) -> None:
        """Remove a path's stream. Lock held."""
        assert path.stream is not None
        descriptor = path.stream.fileno()
        self.paths.pop(descriptor, None)
        path.polled = False
        with suppress(OSError, ValueError):
            self._set.unregister(descriptor)

    def update(self, path: Polled) -> None:
        """Watch a path for its present needs. No lock held.

        A path that waits for nothing leaves the set: a member is told of errors whatever it asked
        for, so a connection that is reset while it is not read would keep every poll awake.
        """
        with self._lock, suppress(OSError, ValueError):
            if path.stream is None:
                return
            mask, descriptor = path.poll_mask(), path.stream.fileno()
            if mask and path.polled:
                self._set.modify(descriptor, mask)
            elif mask:
                self._set.register(descriptor, mask)
            elif path.polled:
                self._set.unregister(descriptor)
            path.polled = bool(mask)

    # -- descriptors of the control plane

    def watch(self, descriptor: int, interest: Interest) -> None:
        """Watch a descriptor until it is ready once. No lock held."""
        with self._lock:
            self._watched[descriptor] = interest
        mask = select.EPOLLIN if interest & Interest.READ else 0
        mask |= select.EPOLLOUT if interest & Interest.WRITE else 0
        try:
            self._set.register(descriptor, mask)
        except BaseException:
            self._watched.pop(descriptor, None)
            raise

    def unwatch(self, descriptor: int) -> None:
        """Stop watching. No lock held."""
        with self._lock:
            known = self._watched.pop(descriptor, None)
        if known is not None:
            with suppress(OSError):
                self._set.unregister(descriptor)

    def take_watched(self, descriptor: int, events: list[Event]) -> bool:
        """End the watch of a ready descriptor, report it; return whether there was one. Lock held.

        It is checked again: since the poll its number may have come to mean another file.
        """
        interest = self._watched.get(descriptor)
        if interest is None:
            return False
        look = select.poll()
        look.register(descriptor, int(interest))
        ready = look.poll(0)
        if not ready:
            return False
        with suppress(OSError):
            self._set.unregister(descriptor)
        readable = ready[0][1] & ~select.POLLOUT
        event = Ready(descriptor, Interest.READ if readable else Interest.WRITE)
        del self._watched[descriptor]
        events.append(event)  # one step (`progress`): it is watched or reported
        return True

    def watch_again(self) -> None:
        """Watch all that an interrupt kept from being reported. Lock held."""
        for descriptor, interest in self._watched.items():
            with suppress(OSError):  # normally it is watched
                self._set.register(descriptor, int(interest))
