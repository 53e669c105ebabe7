"""Calls for notification points and event dispatchers. Source: dat.md sections 5, 8 and 20.1."""

from urds.dat.calling import no_output, one_output, queried, queue_is_empty
from urds.dat.cno import NotificationPoint
from urds.dat.errors import bad_argument
from urds.dat.evd import EventDispatcher
from urds.dat.events import Event, SoftwareEvent
from urds.dat.handles import live
from urds.dat.ia import InterfaceAdapter
from urds.dat.masks import CnoField, EvdField
from urds.dat.records import CnoParam, EvdParam, ProxyAgent
from urds.dat.returns import DatReturn, ReturnType
from urds.dat.timeouts import ns_of_us

__all__ = [
    "dat_cno_create", "dat_cno_free", "dat_cno_modify_agent", "dat_cno_query", "dat_cno_wait",
    "dat_evd_clear_unwaitable", "dat_evd_create", "dat_evd_dequeue", "dat_evd_disable",
    "dat_evd_enable", "dat_evd_free", "dat_evd_modify_cno", "dat_evd_post_se", "dat_evd_query",
    "dat_evd_resize", "dat_evd_set_unwaitable", "dat_evd_wait",
]  # fmt: skip


def dat_cno_create(
    ia: object, agent: ProxyAgent | None
) -> tuple[DatReturn, NotificationPoint | None]:
    """Make a notification point; `ret, cno`."""
    return one_output(lambda: live(ia, InterfaceAdapter).create_cno(agent))


def dat_cno_modify_agent(cno: object, agent: ProxyAgent | None) -> DatReturn:
    """Set the agent that the next trigger calls; `None` is none."""

    def call() -> None:
        live(cno, NotificationPoint).agent = agent

    return no_output(call)


def dat_cno_query(cno: object, mask: int) -> tuple[DatReturn, CnoParam | None]:
    """Ask what a notification point is; `ret, param`."""
    return queried(cno, NotificationPoint, NotificationPoint.query, mask, CnoField.ALL)


def dat_cno_wait(cno: object, timeout_us: int) -> tuple[DatReturn, EventDispatcher | None]:
    """Wait for a trigger; `ret, evd`. Nothing in time is QUEUE_EMPTY, not TIMEOUT_EXPIRED."""
    return one_output(
        lambda: live(cno, NotificationPoint).wait_ns(ns_of_us(timeout_us, argument=2))
    )


def dat_cno_free(cno: object) -> DatReturn:
    """Free a notification point."""
    return no_output(lambda: live(cno, NotificationPoint).free())


def dat_evd_create(
    ia: object, evd_min_qlen: int, cno: NotificationPoint | None, evd_flags: int
) -> tuple[DatReturn, EventDispatcher | None]:
    """Make an event dispatcher; `ret, evd`."""
    return one_output(lambda: live(ia, InterfaceAdapter).create_evd(evd_min_qlen, evd_flags, cno))


def dat_evd_query(evd: object, mask: int) -> tuple[DatReturn, EvdParam | None]:
    """Ask what a dispatcher is; `ret, param`."""
    return queried(evd, EventDispatcher, EventDispatcher.query, mask, EvdField.ALL)


def dat_evd_modify_cno(evd: object, cno: NotificationPoint | None) -> DatReturn:
    """Attach another notification point; `None` detaches."""

    def call() -> None:
        live(evd, EventDispatcher).cno = cno

    return no_output(call)


def dat_evd_enable(evd: object) -> DatReturn:
    """Let events trigger the notification point."""
    return no_output(lambda: live(evd, EventDispatcher).enable())


def dat_evd_disable(evd: object) -> DatReturn:
    """Let events not trigger the notification point."""
    return no_output(lambda: live(evd, EventDispatcher).disable())


def dat_evd_set_unwaitable(evd: object) -> DatReturn:
    """Forbid to wait; who waits gets INVALID_STATE."""

    def call() -> None:
        live(evd, EventDispatcher).waitable = False

    return no_output(call)


def dat_evd_clear_unwaitable(evd: object) -> DatReturn:
    """Allow to wait again."""

    def call() -> None:
        live(evd, EventDispatcher).waitable = True

    return no_output(call)


def dat_evd_wait(
    evd: object, timeout_us: int, threshold: int
) -> tuple[DatReturn, Event | None, int | None]:
    """Wait for `threshold` events; `ret, event, nmore`. The last is true on TIMEOUT_EXPIRED too."""
    ret, event = one_output(
        lambda: live(evd, EventDispatcher).wait_ns(ns_of_us(timeout_us, argument=2), threshold)
    )
    is_counted = ret.is_success or ret.type == ReturnType.TIMEOUT_EXPIRED
    nmore = evd.nmore if is_counted and isinstance(evd, EventDispatcher) else None
    return ret, event, nmore


def dat_evd_dequeue(evd: object) -> tuple[DatReturn, Event | None]:
    """Take the oldest event; `ret, event`."""

    def call() -> Event:
        event = live(evd, EventDispatcher).dequeue()
        if event is None:
            raise queue_is_empty()
        return event

    return one_output(call)


def dat_evd_post_se(evd: object, event: object) -> DatReturn:
    """Post a software event: a `SoftwareEvent`, of which only the pointer is taken."""

    def call() -> None:
        found = live(evd, EventDispatcher)
        if not isinstance(event, SoftwareEvent):
            raise bad_argument(2, f"{event!r} is no software event")
        found.post(event.pointer)

    return no_output(call)


def dat_evd_resize(evd: object, evd_min_qlen: int) -> DatReturn:
    """Change the length of a dispatcher."""
    return no_output(lambda: live(evd, EventDispatcher).resize(evd_min_qlen))


def dat_evd_free(evd: object) -> DatReturn:
    """Free a dispatcher; its queued events are lost."""
    return no_output(lambda: live(evd, EventDispatcher).free())
