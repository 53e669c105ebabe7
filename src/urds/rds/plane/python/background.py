"""Work that no call of a program does: the poll set, timed work, and the progress thread.

*Timed work.* Batches and acknowledgements of paths with streams, timers of message transports,
second checks of mailboxes over their buffer, expired lingers. A leader does it between two polls,
else the thread that calls `progress`, or the progress thread.

*The progress thread.* One daemon thread runs `Plane.help`. It flushes batches, sends late
acknowledgements and asks the kernel what a Linux peer's TCP has; and it reads when no other thread
does. It sleeps on a set of its own: a wake descriptor and, nested, the plane's set armed for one
event.

It arms only while no leader exists and no thread has made progress for a tick (`driven`): left a
wait, called `progress`, or taken a message. While a consumer empties a full queue, the progress
thread must not read too, or the queue grows without bound. It sleeps longer than a tick only with
nothing due and either armed or a leader present for 16 ticks. That decision and every change that
matters to it are made under the plane's lock, so none can slip between.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Event, Interest, LingerOver, Ready
from urds.rds.plane.python import stream_writing
from urds.rds.plane.python.waiting import Doing

if TYPE_CHECKING:
    from urds.rds.plane.message_transport import MessageTransport
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane
    from urds.rds.plane.python.stream_path import StreamPath

_READY_MAX = 64
POLL_S_MAX = 86400.0  # epoll counts milliseconds in an int; a longer wait polls again
TICK_NS = 1_000_000
_TICK_MAX_NS = 4_000_000  # while a thread makes progress; a tick costs it the interpreter lock
_LEADER_TICKS = 16
_SILENCE_NS = 50_000_000  # of an event loop, before the progress thread reads in its place


class PollSet:
    """Streams, the kick, and the descriptors that the control plane watches.

    One epoll set for all of them, so that one thread can wait for everything, and so that an event
    loop can wait for the plane by one descriptor. The plane decides which thread serves it. The
    plane's lock guards the tables.
    """

    def __init__(self, plane: Plane) -> None:
        self._lock = plane.lock
        self._set = select.epoll()
        self.paths: dict[int, StreamPath] = {}  # by descriptor
        self._watched: dict[int, Interest] = {}

    def fileno(self) -> int:
        """Return the descriptor of the set itself: readable while a member is ready."""
        return self._set.fileno()

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait for members; return descriptors and masks, at most 64. No lock held."""
        return self._set.poll(-1 if timeout_s is None else min(timeout_s, POLL_S_MAX), _READY_MAX)

    def add_kick(self, descriptor: int) -> None:
        """Watch the kick from now on."""
        self._set.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        """Close the set; its members stay open."""
        self._set.close()

    # -- streams

    def add(self, path: StreamPath) -> None:
        """Watch a path's new stream for reading. Lock held."""
        assert path.stream is not None
        descriptor = path.stream.fileno()
        self.paths[descriptor] = path
        self._set.register(descriptor, select.EPOLLIN)
        path.polled = True

    def remove(self, path: StreamPath) -> None:
        """Remove a path's stream. Lock held."""
        assert path.stream is not None
        descriptor = path.stream.fileno()
        self.paths.pop(descriptor, None)
        path.polled = False
        with suppress(OSError, ValueError):
            self._set.unregister(descriptor)

    def update(self, path: StreamPath) -> None:
        """Watch a path for its present needs. No lock held.

        A path that waits for nothing leaves the set: a member is told of errors whatever it asked
        for, so a connection that is reset while it is not read would keep every poll awake.
        """
        with self._lock, suppress(OSError, ValueError):
            if path.stream is None:
                return
            mask = 0 if path.paused else select.EPOLLIN
            mask |= select.EPOLLOUT if path.blocked else 0
            descriptor = path.stream.fileno()
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
        events.append(event)  # one step (`interrupts`): it is watched or reported
        return True

    def watch_again(self) -> None:
        """Watch all that an interrupt kept from being reported. Lock held."""
        for descriptor, interest in self._watched.items():
            with suppress(OSError):  # normally it is watched
                self._set.register(descriptor, int(interest))


def next_ns(plane: Plane) -> int | None:
    """Return the earliest time at which `serve` has work. Lock held."""
    earliest: int | None = None
    for path in list(plane._dirty):
        due_ns = stream_writing.due_ns(path)
        if due_ns is None:
            del plane._dirty[path]
        elif earliest is None or due_ns < earliest:
            earliest = due_ns
    looks = (mailbox.look_again_ns() for mailbox in plane.looks)
    ack_pending = islice(plane.ack_deadlines.values(), 1)
    missing = islice(plane.missing.values(), 1)
    for at_ns in (
        *ack_pending,
        *missing,
        *looks,
        *plane.lingering.values(),
        *plane.message_transport_dues.values(),
    ):
        if at_ns is not None and (earliest is None or at_ns < earliest):
            earliest = at_ns
    return earliest


def note_ack_pending(plane: Plane, path: StreamPath, at_ns: int) -> None:
    """Have a path acknowledge at a time, unless a message carries it before. Lock held."""
    # An earlier time belongs to acknowledgements in a write under way.
    if plane.ack_deadlines.get(path) != at_ns:
        plane.ack_deadlines.pop(path, None)
        plane.ack_deadlines[path] = at_ns
        leader = plane.wait_queue.leader
        if leader is None or leader.doing is Doing.IN_POLL:
            plane.progress_thread.want()


def serve(plane: Plane) -> None:
    """Do the due work. No lock held."""
    with plane.lock:
        now_ns = plane.clock_ns()
        due = [*_due(plane, now_ns), *_take_ack_deadlines(plane, now_ns)]
        _note_absent(plane, now_ns)
        transports = _take_from_transport(plane, now_ns) if plane.message_transport_dues else ()
        looks, plane.looks = plane.looks, set()
        plane.touched |= looks
        for mailbox in tuple(one for one, at_ns in plane.lingering.items() if at_ns <= now_ns):
            del plane.lingering[mailbox]
            for path in mailbox.paths():
                _end_linger(plane, path, mailbox)
    for path in due:
        stream_writing.serve(path, now_ns)
    for other in transports:
        other.serve()
    plane.finish_pass()


def _due(plane: Plane, now_ns: int) -> list[StreamPath]:
    due = ((path, stream_writing.due_ns(path)) for path in plane._dirty)
    return [path for path, at_ns in due if at_ns is not None and at_ns <= now_ns]


def _end_linger(plane: Plane, path: StreamPath | MessageTransport, mailbox: Mailbox) -> None:
    """Cancel a closed mailbox's messages on a path after its linger time; report it."""
    unsent, unacknowledged = path.counts(mailbox)
    count = path.cancel(mailbox, None)
    plane.counters.send_linger_over += count
    if count:
        plane.emit(LingerOver(path, unsent, unacknowledged))


def _take_ack_deadlines(plane: Plane, now_ns: int) -> list[StreamPath]:
    """Take the paths whose acknowledgement is due: one pass over those only."""
    paths: list[StreamPath] = []
    for path, at_ns in plane.ack_deadlines.items():
        if at_ns > now_ns:
            break
        paths.append(path)
    for path in paths:
        del plane.ack_deadlines[path]
    return paths


def _note_absent(plane: Plane, now_ns: int) -> None:
    """Mark peers absent for which messages have waited long. Lock held."""
    while plane.missing:
        path, at_ns = next(iter(plane.missing.items()))
        if at_ns > now_ns:
            break
        del plane.missing[path]
        path.absent = True
        host = plane.hosts[path.local]
        if any(other.peer == path.peer and other.stream is not None for other in host.paths):
            continue  # another connection reaches it
        for mailbox in list(host.inboxes.values()):
            destination = mailbox.accounts.known(path.peer)
            if destination is not None:
                mailbox.note_absent(destination)


def _take_from_transport(plane: Plane, now_ns: int) -> Sequence[MessageTransport]:
    paths = [path for path, at_ns in plane.message_transport_dues.items() if at_ns <= now_ns]
    for path in paths:
        del plane.message_transport_dues[path]
    return paths


class ProgressThread:
    """State of the progress thread; only that thread calls `run` and what `run` calls."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self.wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with ExitStack() as undo:
            undo.callback(os.close, self.wake_descriptor)
            self._set = select.epoll()
            undo.callback(self._set.close)
            self._set.register(self.wake_descriptor, select.EPOLLIN)
            self._set.register(plane.poll_set.fileno(), 0)
            undo.pop_all()
        self._armed = False
        self._leader_ticks = 0
        self._tick_ns = TICK_NS
        self._loop_was_silent = False
        self.asleep = False  # in a sleep of more than a tick; plane's lock
        self.in_any_sleep = False  # in any sleep; plane's lock
        self.interrupted = False  # `Plane.wake`: end `run` even without an event
        self.wake_due = False

    def want(self, *, now: bool = False) -> None:
        """End a long sleep, since there is work; with `now` any sleep. Plane's lock held."""
        if self.asleep or (now and self.in_any_sleep):
            self.asleep = self.in_any_sleep = False
            self.wake_due = True

    def leader_left(self) -> None:
        """End an unarmed long sleep: without a leader the streams would stay unread. Lock held."""
        if self.asleep and not self._armed:
            self.want()

    def ring(self) -> None:
        """End any sleep, to decide again which thread reads; takes no lock."""
        os.eventfd_write(self.wake_descriptor, 1)

    def deliver(self) -> None:
        """Write the wake that `want` found due; called without the lock."""
        if self.wake_due:
            self.wake_due = False  # one step with the write
            os.eventfd_write(self.wake_descriptor, 1)

    def run(self, deadline_ns: int | None) -> list[Event]:
        """Work and sleep until there are events or the deadline passes."""
        plane = self._plane
        while True:
            plane.catch_up()
            plane.interrupts.finish_pass()
            plane.serve_due()
            with plane.lock:
                events = plane.take_events()
                now_ns = plane.clock_ns()
                late = deadline_ns is not None and now_ns >= deadline_ns
                if events or late or plane.closed or self.interrupted:
                    self.interrupted = False
                    return events
                timeout_ns = self._decide(now_ns)
                if deadline_ns is not None:
                    remaining_ns = deadline_ns - now_ns
                    timeout_ns = (
                        remaining_ns if timeout_ns is None else min(timeout_ns, remaining_ns)
                    )
                self.in_any_sleep = True
            if self._sleep(timeout_ns):
                plane.counters.progress_thread_passes += 1
                plane.serve_ready(0.0)

    def _decide(self, now_ns: int) -> int | None:
        """Arm if no thread reads; return how long to sleep, None until woken. Plane's lock held."""
        plane = self._plane
        driven, plane.driven = plane.driven, False
        led = plane.wait_queue.leader is not None
        self._tick_ns = min(2 * self._tick_ns, _TICK_MAX_NS) if driven or led else TICK_NS
        self._leader_ticks = self._leader_ticks + 1 if led else 0
        # An event loop that has not called `progress` for a while may be blocked by its own code.
        looping = bool(plane.loops)
        absent = not looping or self._loop_was_silent
        self._loop_was_silent = looping and not driven
        if not led and not driven and absent and not self._armed:
            self._set.modify(plane.poll_set.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
            self._armed = True
        due_ns = plane.next_due_ns(now_ns)
        # Never sooner than a tick: in a burst a batch is always nearly due, and gone by then.
        left_ns = None if due_ns is None else max(TICK_NS, due_ns - now_ns)
        if self._loop_was_silent and not self._armed:
            left_ns = _SILENCE_NS if left_ns is None else min(_SILENCE_NS, left_ns)
        # An active event loop calls again soon: a tick costs it less than a wake-up per message.
        elif not self._armed and self._leader_ticks < _LEADER_TICKS:
            return self._tick_ns if left_ns is None else min(self._tick_ns, left_ns)
        # Work due later than a tick must not hide work that comes before it.
        self.asleep = left_ns is None or left_ns > TICK_NS
        return left_ns

    def _sleep(self, timeout_ns: int | None) -> bool:
        """Sleep; return whether the plane's set is ready and there is no leader."""
        timeout_s = -1 if timeout_ns is None else min(timeout_ns / 1e9, POLL_S_MAX)
        ready = self._set.poll(timeout_s)
        plane = self._plane
        with plane.lock:
            self.asleep = self.in_any_sleep = False
            read = False
            for descriptor, _ in ready:
                if descriptor == self.wake_descriptor:
                    os.eventfd_read(self.wake_descriptor)
                else:
                    self._armed = False  # the one event is spent
                    read = plane.wait_queue.leader is None
        return read

    def abandon_in_child(self) -> None:
        """Forget sleepers after a fork: the doorbell is closed, its number may be reused."""
        self.asleep = self.in_any_sleep = self.wake_due = False
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        self._set.close()
        os.close(self.wake_descriptor)
