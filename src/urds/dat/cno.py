"""Notification points: one place to wait for events of many dispatchers.

A trigger is not counted: it stays until one thread has taken it, and says which dispatcher it came
from, as a hint; that dispatcher may be empty by then, so a program polls all of its dispatchers.
Source: dat.md section 5.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from urds.dat.errors import bad_argument, dat_error
from urds.dat.handles import DatObject
from urds.dat.numbers import HandleType
from urds.dat.records import CnoParam, ProxyAgent
from urds.dat.returns import ReturnType, Subtype
from urds.dat.timeouts import ns_of_s

if TYPE_CHECKING:
    from urds.dat.evd import EventDispatcher
    from urds.dat.ia import InterfaceAdapter


class NotificationPoint(DatObject):
    """A place where threads wait for any of several dispatchers, or a proxy agent is called.

    The agent is called once, in a thread of its own without a lock, with its `instance_data` and
    the dispatcher; then it is no longer attached: set `agent` again for the next time.
    """

    handle_type: ClassVar[HandleType] = HandleType.CNO
    invalid_subtype: ClassVar[Subtype] = Subtype.INVALID_HANDLE_CNO
    in_use_subtype: ClassVar[Subtype] = Subtype.INVALID_STATE_CNO_IN_USE

    def __init__(self, ia: InterfaceAdapter, agent: ProxyAgent | None = None) -> None:
        """Make a notification point of `ia`.

        Raises DatInsufficientResources, DatInvalidParameter: `agent` is none.
        """
        super().__init__(ia)
        self._agent = _checked(agent)
        self._triggered_by: EventDispatcher | None = None
        self._waiting_count = 0
        self._desertions = 0  # how often the last dispatcher went
        self.enlist()

    @property
    def agent(self) -> ProxyAgent | None:
        """The agent that the next trigger calls; may be set."""
        return self._agent

    @agent.setter
    def agent(self, agent: ProxyAgent | None) -> None:
        with self.lock:
            self.demand_live()
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
        try:
            self.ia.adapter.wait(
                lambda: (
                    not self.live
                    or self._triggered_by is not None
                    or self._desertions != desertions
                ),
                timeout_ns,
            )
            with self.lock:
                evd, self._triggered_by = self._triggered_by, None
                is_deserted = not self.live or self._desertions != desertions
        finally:
            # Also after an interrupt, which takes no trigger.
            with self.lock:
                self._waiting_count -= 1
        if evd is None and not is_deserted:
            raise dat_error(ReturnType.QUEUE_EMPTY, detail="nothing triggered it in time")
        return evd

    def query(self) -> CnoParam:
        """Return what the notification point is."""
        with self.lock:
            self.demand_live()
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
            self.ia.adapter.notify()

    def forget_user(self, user: DatObject) -> None:
        """Forget a dispatcher that was freed; wake who waits if it was the last."""
        if self._triggered_by is user:
            self._triggered_by = None
        if self._users.keys() == {user}:
            self._desertions += 1
            self.ia.adapter.notify()

    # -- inside

    def demand_free(self) -> None:
        """Raise DatInvalidState while a dispatcher refers to it or a thread waits."""
        super().demand_free()
        if self._waiting_count:
            raise dat_error(ReturnType.INVALID_STATE, self.in_use_subtype, "a thread waits on it")

    def _dispose(self) -> None:
        self._triggered_by = self._agent = None
        self.ia.adapter.notify()


def _checked(agent: ProxyAgent | None) -> ProxyAgent | None:
    if agent is not None and not isinstance(agent, ProxyAgent):
        raise bad_argument(2, f"{agent!r} is no agent")
    return agent
