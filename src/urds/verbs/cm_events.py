"""Events of connections, and the channels where they arrive.

A channel's descriptor is readable while an event waits. Source of names and numbers:
docs/reference/verbs-and-roce.md 14.3.
"""

import errno
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from urds.verbs.cm_parameters import ConnParam
from urds.verbs.context import Context
from urds.verbs.cq import EventChannel
from urds.verbs.engine.work import AddressVector
from urds.verbs.errors import VerbsError, VerbsTimeoutError, demand_kind, demand_waiting_time
from urds.verbs.providers.base import ConnectionEventKind, VerbsConnection, VerbsConnectionEvent

if TYPE_CHECKING:
    import asyncio

    from urds.verbs.cmid import CMID

EVENTS_MAX: Final = 65_536
# In virtual time an event comes in so much of it, or not at all.
_VIRTUAL_STEP_NS: Final = 1_000_000
_VIRTUAL_STEPS_MAX: Final = 200_000


class CMEventType(IntEnum):
    """Types of connection events.

    Some never occur here: `AddrInfo` resolves names, and raises; a queue pair goes through its
    states without a CONNECT_RESPONSE; there are no multicasts and there is no TIMEWAIT.
    """

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15


# A provider's event, as rdma_cm's event and status. REFUSED has InfiniBand's reason for an invalid
# service, REJECTED the one for a rejection by the application.
TYPES: Final = {
    ConnectionEventKind.REQUEST: (CMEventType.CONNECT_REQUEST, 0),
    ConnectionEventKind.ESTABLISHED: (CMEventType.ESTABLISHED, 0),
    ConnectionEventKind.REJECTED: (CMEventType.REJECTED, 28),
    ConnectionEventKind.REFUSED: (CMEventType.REJECTED, 8),
    ConnectionEventKind.UNREACHABLE: (CMEventType.UNREACHABLE, -errno.ETIMEDOUT),
    ConnectionEventKind.ERROR: (CMEventType.CONNECT_ERROR, -errno.ECONNABORTED),
    ConnectionEventKind.DISCONNECTED: (CMEventType.DISCONNECTED, 0),
    ConnectionEventKind.BROKEN: (CMEventType.DISCONNECTED, -errno.ECONNRESET),
}
_ERRNO: Final = {
    CMEventType.ADDR_ERROR: errno.EADDRNOTAVAIL,
    CMEventType.CONNECT_ERROR: errno.ECONNABORTED,
    CMEventType.UNREACHABLE: errno.ETIMEDOUT,
    CMEventType.REJECTED: errno.ECONNREFUSED,
    CMEventType.DISCONNECTED: errno.ECONNRESET,
}


@dataclass(slots=True)
class EventRecord:
    """One event as it waits in its channel."""

    event_type: CMEventType
    cmid: "CMID"
    status: int = 0
    told: VerbsConnectionEvent | None = None  # by the provider


class CMEvent:
    """One event, taken from its channel.

    `id` is the identifier it happened to, for a CONNECT_REQUEST the listening one; make the new
    identifier with `CMID(creator=event)`. `status`: 0, a negative errno, or of a REJECTED the
    reason (8: no listener, or its backlog is full; 28: rejected by the application).
    """

    def __init__(self, channel: "CMEventChannel", timeout_s: float | None = None) -> None:
        """Wait for the next event. Raises VerbsTimeoutError; VerbsClosedError."""
        demand_kind(channel, CMEventChannel, "CMEvent(): channel")
        self._take(channel.wait(timeout_s))

    @classmethod
    def of(cls, record: EventRecord) -> "CMEvent":
        """Return the event of a record that was taken."""
        event = cls.__new__(cls)
        event._take(record)
        return event

    def _take(self, record: EventRecord) -> None:
        told = record.told
        self.event_type = record.event_type
        self.status = record.status
        self.id = record.cmid
        self.param = ConnParam() if told is None else ConnParam.of(told.parameters)
        self.connection: VerbsConnection | None = None if told is None else told.connection
        # Datagrams: the queue pair that was looked up, and where it is.
        self.qp_num = 0 if told is None else told.qpn
        self.vector: AddressVector | None = None if told is None else told.vector
        self.reason = "" if told is None else told.reason
        self.is_acked = False

    @property
    def private_data(self) -> bytes:
        """Return the peer's private data."""
        return self.param.private_data

    def event_str(self) -> str:
        """Return the name that librdmacm prints."""
        return f"RDMA_CM_EVENT_{self.event_type.name}"

    def ack_cm_event(self) -> None:
        """Mark the event as acknowledged; nothing waits for it here."""
        self.is_acked = True

    def __repr__(self) -> str:
        words = f", {self.reason}" if self.reason else ""
        return f"<CMEvent {self.event_type.name} status {self.status}{words}>"


class CMError(VerbsError):
    """A connection failed, or ended. `event` has the reason, private data included."""

    def __init__(self, event: CMEvent) -> None:
        number = _ERRNO.get(event.event_type, errno.EPROTO)
        words = f": {event.reason}" if event.reason else ""
        super().__init__(number, f"connection {event.event_type.name.lower()}{words}")
        self.event = event


class CMEventChannel(EventChannel[EventRecord]):
    """Receives the events of identifiers of one device. Closing it closes the identifiers."""

    close_rank: ClassVar[int] = -1
    _owned: Context | None = None

    def __init__(self, context: Context | None = None) -> None:
        """Make a channel. Without a context it opens the default device, and closes it too."""
        if context is None:
            context = self._owned = Context()
        self.events_lost = 0
        super().__init__(context)

    def get_event(self, timeout_s: float | None = None) -> CMEvent:
        """Wait for the next event; `timeout_s` 0 does not wait, `None` waits for ever.

        Raises VerbsTimeoutError; VerbsClosedError if the channel is closed meanwhile; TypeError
        and VerbsArgumentError for what is no time.
        """
        return CMEvent(self, timeout_s)

    async def event(self) -> CMEvent:
        """Wait in asyncio for the next event. A cancelled wait takes none.

        Raises VerbsClosedError; VerbsTimeoutError in virtual time, when none can come any more.
        """
        return CMEvent.of(await self._wait_to_take(self._take_first))

    # -- for identifiers

    def wait(self, timeout_s: float | None) -> EventRecord:
        """Wait for the next event and take it. Several threads may; each event goes to one."""
        timeout_s = demand_waiting_time(timeout_s)
        record = self.context.wait_to_take(
            lambda: self.closed or bool(self._events), self._take_first, timeout_s
        )
        if record is None:
            raise VerbsTimeoutError(f"no connection event in {timeout_s} s")
        return record

    def post(self, record: EventRecord) -> None:
        """Queue an event. Lock held. Beyond EVENTS_MAX events are lost and counted."""
        if len(self._events) >= EVENTS_MAX:
            self.events_lost += 1
            return
        super().post(record)

    def forget(self, cmid: object) -> list[EventRecord]:
        """Drop the events of an identifier that is closed, and return them. Lock held."""
        dropped = [record for record in self._events if record.cmid is cmid]
        self._keep(lambda record: record.cmid is not cmid)
        return dropped

    def wake(self) -> None:
        """Wake every waiting task and thread. Lock held."""
        super().wake()
        self.context.adapter.notify()

    # -- inside

    async def _run_until(self, woken: "asyncio.Future[None]") -> None:
        from asyncio import sleep

        adapter = self.context.adapter
        # This loop alone runs the virtual clock; other tasks run between the steps.
        for _ in range(_VIRTUAL_STEPS_MAX):
            await sleep(0)
            if adapter.wait(lambda: not self._is_open or bool(self._events), _VIRTUAL_STEP_NS):
                return
        raise VerbsTimeoutError("no connection event in virtual time")

    def _close(self, *, forced: bool) -> None:
        super()._close(forced=forced)
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close()
