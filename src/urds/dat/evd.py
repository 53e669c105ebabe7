"""Event dispatchers: bounded queues that event streams feed; and the notification points on them.

How an endpoint, a service point or a shared receive queue feeds one (lock held throughout):
- `evd.attach(Role.RECV, ep, flags)` when it is created or modified, `evd.detach(Role.RECV, ep)`
  when it is freed or modified. `attach` raises what the create call returns: INVALID_HANDLE with
  the role's subtype if the dispatcher lacks the flag, INVALID_PARAMETER if the streams cannot
  share it. An attached dispatcher is in use. The streams that are left detach when the owner ends.
- All queue pairs complete in one engine `CompletionQueue` of the device, whose sink hands the
  completions of a pass to their endpoints, in order: ep_modify may change the dispatcher. The
  endpoint finds the cookie by `wc.wr_id` and queues an event with `DTO_STATUS_OF[wc.status]` and
  `signals=is_signalled(attribute_flags, posted_flags, ...)`.
- `evd.queue(event, signals=..., on_taken=...)` returns whether there was room. `on_taken` is called
  once when the event leaves the dispatcher: dequeued, lost or dropped with it. A shared receive
  queue lowers its outstanding count there.
- Without room the event is lost. ASYNC_EVD_OVERFLOW about the dispatcher is posted here, and
  `owner.handle_evd_overflow(evd)` is called once on every owner that feeds the dispatcher, by
  `adapter.call_soon`, after the other completions of the pass: the endpoint breaks its connection
  there. A service point rejects the request whose event is lost.

A trigger of a notification point is not counted: it stays until one thread has taken it, and says
which dispatcher it came from, as a hint; that dispatcher may be empty by then, so a program polls
all of its dispatchers. Source: docs/reference/dat.md 5, 6, 10, 15.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from urds.dat.arguments import ns_of_s
from urds.dat.constants import CompletionFlag, EvdFlag, EvdState, EventNumber, HandleType
from urds.dat.errors import bad_argument, dat_error
from urds.dat.evd_streams import Role, Streams, demand_flags
from urds.dat.handles import DatObject, live, while_live
from urds.dat.returns import ReturnType, Subtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Event:
    """What all events have."""

    event_number: EventNumber
    evd_handle: EventDispatcher


@dataclass(frozen=True, slots=True)
class AsyncErrorEvent(Event):
    """Something happened to an object; `reason` is an enum of the object's kind."""

    dat_handle: DatObject
    reason: int


@dataclass(frozen=True, slots=True)
class SoftwareEvent(Event):
    """What a program posted itself."""

    pointer: Any


@dataclass(frozen=True, slots=True)
class ProxyAgent:
    """What a notification point calls once, in a thread of its own, when it is triggered."""

    proxy_agent_func: Callable[[Any, EventDispatcher], object]
    instance_data: Any = None


@dataclass(frozen=True, slots=True)
class EvdParam:
    """What an event dispatcher is at this moment. Mask bits: `EvdField`."""

    ia_handle: DatObject
    evd_qlen: int
    evd_state: EvdState
    cno_handle: NotificationPoint | None
    evd_flags: EvdFlag


@dataclass(frozen=True, slots=True)
class CnoParam:
    """What a notification point is at this moment. Mask bits: `CnoField`."""

    ia_handle: DatObject
    agent: ProxyAgent | None


class EventDispatcher(DatObject, kind=HandleType.EVD):
    """A queue of at least `min_qlen` events, made enabled and waitable.

    Safe from any thread; at most one thread waits at a time. Iterating takes what is queued.
    """

    def __init__(
        self,
        ia: DatObject,
        min_qlen: int,
        flags: EvdFlag,
        cno: NotificationPoint | None = None,
    ) -> None:
        """Make a dispatcher of `ia`. Raises DatInvalidParameter, DatInsufficientResources."""
        demand_flags(flags)
        super().__init__(ia)
        _demand_qlen(min_qlen, ia.device.attr.max_evd_qlen)
        self.evd_flags = EvdFlag(flags)
        self.qlen = min_qlen
        self.enabled = True
        self.nmore = 0  # events left when the last `wait` ended
        self.lost_count = 0
        self._cno: NotificationPoint | None = None
        # Each event, and what is called when it leaves.
        self._queue: deque[tuple[Event, Callable[[], None] | None]] = deque()
        self._streams = Streams()
        self._waitable = True
        self._is_dead = False  # an asynchronous dispatcher that overflowed
        self._overflowed = False
        self._threshold = 0  # of the thread that waits; 0: none does
        self._signalled = False  # since it began to wait
        if cno is not None:
            self._set_cno(cno)
        self.device.add(self)

    def __len__(self) -> int:
        """Return how many events are queued."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return True  # an empty dispatcher is one all the same

    def __iter__(self) -> Iterator[Event]:
        while (event := self.dequeue()) is not None:
            yield event

    # -- taking events

    def dequeue(self) -> Event | None:
        """Take the oldest event, `None` if there is none. Never blocks.

        Raises DatInvalidState while a thread waits on the dispatcher.
        """
        if not self._queue and self.live:
            self.device.adapter.look(self.device.completions)
        with self.lock:
            self.demand_live()
            self._demand_no_waiter()
            return self._take() if self._queue else None

    def wait(self, timeout_s: float | None = None, threshold: int = 1) -> Event:
        """Wait until `threshold` events are queued and take the first; `nmore` tells what is left.

        `None` waits without end, 0 polls. Raises DatTimeoutExpired (nothing is taken, `nmore` is
        true), DatInvalidParameter, DatInvalidState (unwaitable, another thread waits, a threshold
        that the streams do not allow), DatAbort if the dispatcher goes.
        """
        return self.wait_ns(ns_of_s(timeout_s, argument=2), threshold)

    def wait_ns(self, timeout_ns: int | None, threshold: int) -> Event:
        """Wait as `wait` does, for nanoseconds."""
        with self.lock:
            self.demand_live()
            if not self._may_wait:
                raise self._unwaitable()
            self._demand_no_waiter()
            self._demand_threshold(threshold)
            if len(self._queue) >= threshold:
                self.nmore = len(self._queue) - 1
                return self._take()
            self._threshold, self._signalled = threshold, False
        try:
            self.device.wait(self._is_over, timeout_ns)
            with self.lock:
                has_events = self._signalled and len(self._queue) >= threshold
                self.nmore = len(self._queue) - has_events
                event = self._take() if has_events and self._may_wait else None
        finally:
            # Also after an interrupt, which takes nothing.
            with self.lock:
                self._threshold = 0
        if event is not None:
            return event
        raise self._reason_of_no_event()

    # -- software events

    @while_live
    def post(self, pointer: Any) -> None:
        """Queue a software event. Raises DatQueueFull, DatInvalidParameter without SOFTWARE."""
        if EvdFlag.SOFTWARE not in self.evd_flags:
            raise bad_argument(1, f"{self!r} takes no software events")
        if len(self._queue) >= self.qlen:
            raise dat_error(ReturnType.QUEUE_FULL, detail=f"{self.qlen} events are queued")
        self.queue(SoftwareEvent(EventNumber.SOFTWARE, self, pointer))

    # -- settings

    @property
    def waitable(self) -> bool:
        """Whether `wait` is allowed. Set to False it wakes the waiter with DatInvalidState."""
        return self._waitable

    @waitable.setter
    @while_live
    def waitable(self, waitable: bool) -> None:
        self._waitable = waitable
        self.device.adapter.notify()

    @property
    def cno(self) -> NotificationPoint | None:
        """The notification point that is triggered by events; may be set, `None` detaches."""
        return self._cno

    @cno.setter
    @while_live
    def cno(self, cno: NotificationPoint | None) -> None:
        self._set_cno(cno)

    @while_live
    def enable(self) -> None:
        """Let events trigger the notification point."""
        self.enabled = True

    @while_live
    def disable(self) -> None:
        """Let events not trigger the notification point; they are queued and may be waited for."""
        self.enabled = False

    @while_live
    def resize(self, min_qlen: int) -> None:
        """Change the length. Raises DatInvalidState below what is queued; nothing is lost."""
        _demand_qlen(min_qlen, self.device.attr.max_evd_qlen)
        if min_qlen < len(self._queue):
            detail = f"length {min_qlen}, {len(self._queue)} events are queued"
            raise dat_error(ReturnType.INVALID_STATE, detail=detail)
        self.qlen = min_qlen

    @property
    def state(self) -> EvdState:
        """Return the three bands: enabled, waitable, how completions notify."""
        enabled = EvdState.ENABLED if self.enabled else EvdState.DISABLED
        waitable = EvdState.WAITABLE if self._waitable else EvdState.UNWAITABLE
        return enabled | waitable | self._streams.notification

    @while_live
    def query(self) -> EvdParam:
        """Return what the dispatcher is at this moment."""
        return EvdParam(self.ia, self.qlen, self.state, self._cno, self.evd_flags)

    # -- streams; lock held

    def attach(
        self, role: Role, owner: DatObject, flags: CompletionFlag = CompletionFlag.DEFAULT
    ) -> None:
        """Add an event stream to the dispatcher; for transfers `flags` is the endpoint's attribute.

        Raises DatInvalidHandle: the flag of the role is missing. DatInvalidParameter: the streams
        cannot share a dispatcher (docs/reference/dat.md 4.1, sharing rules).
        """
        if role.flag not in self.evd_flags:
            detail = f"{self!r} has {self.evd_flags!r}, not {role.flag!r}"
            raise dat_error(ReturnType.INVALID_HANDLE, role.subtype, detail)
        self._streams.add(role, owner, CompletionFlag(flags))
        owner.hold(self)

    def detach(self, role: Role, owner: DatObject) -> None:
        """Remove an event stream from the dispatcher; its queued events stay."""
        self._streams.remove(role, owner)
        owner.drop(self)

    def forget_user(self, user: DatObject) -> None:
        """Detach all streams of an owner that ends."""
        self._streams.forget(user)

    def queue(
        self,
        event: Event,
        *,
        signals: bool = True,
        on_taken: Callable[[], None] | None = None,
    ) -> bool:
        """Queue an event of a stream; False if it was lost."""
        if len(self._queue) >= self.qlen or not self.live:
            if on_taken is not None:
                on_taken()
            if self.live:
                self._lose()
            return False
        self._queue.append((event, on_taken))
        if not signals:
            return True
        if self._threshold:
            # A thread that waits here comes before the notification point.
            self._signalled = True
            if len(self._queue) >= self._threshold:
                self.device.adapter.notify()
        elif self.enabled and self._cno is not None:
            self._cno.trigger(self)
        return True

    # -- inside

    def demand_free(self) -> None:
        """Raise DatInvalidState while a stream feeds the dispatcher or a thread waits."""
        super().demand_free()
        if self._threshold:
            raise dat_error(ReturnType.INVALID_STATE, self.in_use_subtype, "a thread waits on it")

    def _dispose(self) -> None:
        self._cno = None
        for _, on_taken in self._queue:
            if on_taken is not None:
                on_taken()
        self._queue.clear()
        self._streams = Streams()
        self.device.adapter.notify()

    def _take(self) -> Event:
        event, on_taken = self._queue.popleft()
        self._overflowed = False
        if on_taken is not None:
            on_taken()
        return event

    def _lose(self) -> None:
        """Count a lost event; the first one since there was room breaks what feeds this queue."""
        self.lost_count += 1
        if self._overflowed:
            return
        self._overflowed = True
        if EvdFlag.ASYNC in self.evd_flags:
            self._is_dead = True
            self.device.adapter.notify()
            return
        self.device.post_async(EventNumber.ASYNC_EVD_OVERFLOW, self)
        owners = self._streams.owners
        self.device.adapter.call_soon(lambda: self._break(owners))

    def _break(self, owners: list[DatObject]) -> None:
        for owner in owners:
            if owner.live:
                owner.handle_evd_overflow(self)

    @property
    def _may_wait(self) -> bool:
        return self.live and self._waitable and not self._is_dead

    def _is_over(self) -> bool:
        return not self._may_wait or (self._signalled and len(self._queue) >= self._threshold)

    def _reason_of_no_event(self) -> Exception:
        if not self.live:
            return dat_error(ReturnType.ABORT, detail=f"{self!r}")
        if not self._may_wait:
            return self._unwaitable()
        detail = f"{self.nmore} events are queued"
        return dat_error(ReturnType.TIMEOUT_EXPIRED, detail=detail)

    def _unwaitable(self) -> Exception:
        if self._is_dead:
            subtype, detail = Subtype.INVALID_STATE_EVD_ASYNC, f"lost {self.lost_count} events"
        else:
            subtype, detail = Subtype.INVALID_STATE_EVD_UNWAITABLE, f"{self!r}"
        return dat_error(ReturnType.INVALID_STATE, subtype, detail)

    def _demand_no_waiter(self) -> None:
        if self._threshold:
            subtype = Subtype.INVALID_STATE_EVD_WAITER
            raise dat_error(ReturnType.INVALID_STATE, subtype, "another thread waits")

    def _demand_threshold(self, threshold: int) -> None:
        if not 1 <= threshold <= self.qlen:
            raise bad_argument(3, f"threshold {threshold}, from 1 to {self.qlen}")
        if threshold > 1 and (band := self._streams.notification) is not EvdState.CONFIG_THRESHOLD:
            subtype = Subtype.INVALID_STATE_EVD_CONFIG_NOTIFY
            if band is EvdState.CONFIG_SOLICITED:
                subtype = Subtype.INVALID_STATE_EVD_CONFIG_SOLICITED
            raise dat_error(ReturnType.INVALID_STATE, subtype, f"threshold {threshold}, not 1")

    def _set_cno(self, cno: NotificationPoint | None) -> None:
        if cno is not None:
            live(cno, NotificationPoint)
            self.device.demand_own(cno)
        self.hold(cno)
        self.drop(self._cno)
        self._cno = cno


class NotificationPoint(DatObject, kind=HandleType.CNO):
    """A place where threads wait for any of several dispatchers, or a proxy agent is called.

    The agent is called once, in a thread of its own without a lock, with its `instance_data` and
    the dispatcher; then it is no longer attached: set `agent` again for the next time.
    """

    def __init__(self, ia: DatObject, agent: ProxyAgent | None = None) -> None:
        """Make a notification point of `ia`.

        Raises DatInsufficientResources, DatInvalidParameter: `agent` is none.
        """
        super().__init__(ia)
        self._agent = _checked(agent)
        self._triggered_by: EventDispatcher | None = None
        self._waiting_count = 0
        self._desertions = 0  # how often the last dispatcher went
        self.device.add(self)

    @property
    def agent(self) -> ProxyAgent | None:
        """The agent that the next trigger calls; may be set."""
        return self._agent

    @agent.setter
    @while_live
    def agent(self, agent: ProxyAgent | None) -> None:
        self._agent = _checked(agent)

    def wait(self, timeout_s: float | None = None) -> EventDispatcher | None:
        """Wait for a trigger and return the dispatcher that it came from.

        Returns `None` if the last dispatcher was freed or the adapter closed meanwhile. `None`
        waits without end, 0 polls. Raises DatQueueEmpty if nothing came in time.
        """
        return self.wait_ns(ns_of_s(timeout_s, argument=2))

    def wait_ns(self, timeout_ns: int | None) -> EventDispatcher | None:
        """Wait as `wait` does, for nanoseconds."""
        with self.lock:
            self.demand_live()
            desertions = self._desertions
            self._waiting_count += 1

        def is_deserted() -> bool:
            return not self.live or self._desertions != desertions

        try:
            self.device.wait(lambda: self._triggered_by is not None or is_deserted(), timeout_ns)
            with self.lock:
                evd, self._triggered_by = self._triggered_by, None
                ends_empty = is_deserted()
        finally:
            # Also after an interrupt, which takes no trigger.
            with self.lock:
                self._waiting_count -= 1
        if evd is None and not ends_empty:
            raise dat_error(ReturnType.QUEUE_EMPTY, detail="nothing triggered it in time")
        return evd

    @while_live
    def query(self) -> CnoParam:
        """Return what the notification point is."""
        return CnoParam(self.ia, self._agent)

    # -- for dispatchers; lock held

    def trigger(self, evd: EventDispatcher) -> None:
        """Note that events wait in `evd`: wake one thread, call the agent."""
        if self._triggered_by is None:
            self._triggered_by = evd
        agent, self._agent = self._agent, None
        if agent is not None:
            # The agent is the program's: it may take its time and its locks, and may fail.
            threading.Thread(
                target=agent.proxy_agent_func,
                args=(agent.instance_data, evd),
                name="urds-dat-agent",
                daemon=True,
            ).start()
        if self._waiting_count:
            self.device.adapter.notify()

    def forget_user(self, user: DatObject) -> None:
        """Forget a dispatcher that was freed; wake the waiting threads if it was the last."""
        if self._triggered_by is user:
            self._triggered_by = None
        if self._users.keys() == {user}:
            self._desertions += 1
            self.device.adapter.notify()

    # -- inside

    def demand_free(self) -> None:
        """Raise DatInvalidState while a dispatcher refers to it or a thread waits."""
        super().demand_free()
        if self._waiting_count:
            raise dat_error(ReturnType.INVALID_STATE, self.in_use_subtype, "a thread waits on it")

    def _dispose(self) -> None:
        self._triggered_by = self._agent = None
        self.device.adapter.notify()


def _demand_qlen(min_qlen: int, limit: int) -> None:
    if min_qlen < 1:
        raise bad_argument(2, f"queue of {min_qlen} events, at least 1")
    if min_qlen > limit:
        detail = f"queue of {min_qlen} events, at most {limit}"
        raise dat_error(ReturnType.INSUFFICIENT_RESOURCES, Subtype.RESOURCE_TEVD, detail)


def _checked(agent: ProxyAgent | None) -> ProxyAgent | None:
    if agent is not None and not isinstance(agent, ProxyAgent):
        raise bad_argument(2, f"{agent!r} is no agent")
    return agent


__all__ = [
    "AsyncErrorEvent", "CnoParam", "EvdParam", "Event", "EventDispatcher", "NotificationPoint",
    "ProxyAgent", "SoftwareEvent",
]  # fmt: skip
