"""Events, one record per family, and what verbs statuses and events mean in DAT.

Every event names its number and the dispatcher that it came from; the other fields have the names
of the C structures, with short names beside those that programs touch most. Private data are
copies, so no question of their life-time arises. Source: dat.md section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from urds.dat.errors import DatCompletionError
from urds.dat.numbers import DtoStatus, EventNumber, HandleType
from urds.verbs.engine.numbers import AsyncEventType, WCStatus

if TYPE_CHECKING:
    from urds.dat.cr import ConnectionRequest
    from urds.dat.ep import Endpoint
    from urds.dat.evd import EventDispatcher
    from urds.dat.handles import DatObject
    from urds.dat.memory import RemoteMemory


@dataclass(frozen=True, slots=True)
class Event:
    """What all events have."""

    event_number: EventNumber
    evd_handle: EventDispatcher


@dataclass(frozen=True, slots=True)
class DtoCompletionEvent(Event):
    """A data transfer is over. `transfered_length` is octets and means something on success.

    The spelling is that of the C structure.
    """

    ep_handle: Endpoint
    user_cookie: Any
    status: DtoStatus
    transfered_length: int

    @property
    def ep(self) -> Endpoint:
        """Return the endpoint of the transfer."""
        return self.ep_handle

    def raise_for_status(self) -> None:
        """Raise DatCompletionError if the transfer did not succeed."""
        _raise_for(self.status, f"transfer of cookie {self.user_cookie!r}")


@dataclass(frozen=True, slots=True)
class RmrBindCompletionEvent(Event):
    """A bind is over."""

    rmr_handle: RemoteMemory
    user_cookie: Any
    status: DtoStatus

    def raise_for_status(self) -> None:
        """Raise DatCompletionError if the bind did not succeed."""
        _raise_for(self.status, f"bind of cookie {self.user_cookie!r}")


@dataclass(frozen=True, slots=True)
class ConnectionRequestEvent(Event):
    """Somebody asks for a connection. `sp_handle` is `None` if a reserved service point was met."""

    sp_handle: DatObject | None
    local_ia_address_ptr: str
    conn_qual: int
    cr_handle: ConnectionRequest

    @property
    def cr(self) -> ConnectionRequest:
        """Return the request: query it, then accept or reject it."""
        return self.cr_handle


@dataclass(frozen=True, slots=True)
class ConnectionEvent(Event):
    """A connection is there, was refused, or ended; which of them is `event_number`."""

    ep_handle: Endpoint
    private_data: bytes = b""

    @property
    def private_data_size(self) -> int:
        """Return how many octets of private data came."""
        return len(self.private_data)

    @property
    def ep(self) -> Endpoint:
        """Return the endpoint of the connection."""
        return self.ep_handle


@dataclass(frozen=True, slots=True)
class AsyncErrorEvent(Event):
    """Something happened to an object; `reason` is an enum of the object's kind."""

    dat_handle: DatObject
    reason: int


@dataclass(frozen=True, slots=True)
class SoftwareEvent(Event):
    """What a program posted itself."""

    pointer: Any


_DTO_STATUS_OF: Final[dict[WCStatus, DtoStatus]] = {
    WCStatus.SUCCESS: DtoStatus.SUCCESS,
    WCStatus.LOC_LEN_ERR: DtoStatus.ERR_LOCAL_LENGTH,
    WCStatus.LOC_QP_OP_ERR: DtoStatus.ERR_LOCAL_EP,
    WCStatus.LOC_PROT_ERR: DtoStatus.ERR_LOCAL_PROTECTION,
    WCStatus.WR_FLUSH_ERR: DtoStatus.ERR_FLUSHED,
    WCStatus.MW_BIND_ERR: DtoStatus.RMR_OPERATION_FAILED,
    WCStatus.BAD_RESP_ERR: DtoStatus.ERR_BAD_RESPONSE,
    WCStatus.LOC_ACCESS_ERR: DtoStatus.ERR_LOCAL_PROTECTION,
    WCStatus.REM_INV_REQ_ERR: DtoStatus.ERR_REMOTE_RESPONDER,
    WCStatus.REM_ACCESS_ERR: DtoStatus.ERR_REMOTE_ACCESS,
    WCStatus.REM_OP_ERR: DtoStatus.ERR_REMOTE_RESPONDER,
    WCStatus.RETRY_EXC_ERR: DtoStatus.ERR_TRANSPORT,
    WCStatus.RNR_RETRY_EXC_ERR: DtoStatus.ERR_RECEIVER_NOT_READY,
    WCStatus.LOC_RDD_VIOL_ERR: DtoStatus.ERR_LOCAL_PROTECTION,
    WCStatus.REM_INV_RD_REQ_ERR: DtoStatus.ERR_REMOTE_RESPONDER,
    WCStatus.REM_ABORT_ERR: DtoStatus.ERR_REMOTE_RESPONDER,
    WCStatus.FATAL_ERR: DtoStatus.ERR_TRANSPORT,
    WCStatus.RESP_TIMEOUT_ERR: DtoStatus.ERR_RECEIVER_NOT_READY,
    WCStatus.GENERAL_ERR: DtoStatus.ERR_TRANSPORT,
}
assert _DTO_STATUS_OF.keys() == set(WCStatus), "each verbs status has its DAT status"

# What is not listed is no event of DAT: the endpoint deals with it, or nobody needs to.
_ASYNC_NUMBER_OF: Final[dict[AsyncEventType, EventNumber]] = {
    AsyncEventType.CQ_ERR: EventNumber.ASYNC_EVD_OVERFLOW,
    AsyncEventType.DEVICE_FATAL: EventNumber.ASYNC_PROVIDER_INTERNAL_ERROR,
    AsyncEventType.PORT_ERR: EventNumber.ASYNC_IA_CATASTROPHIC,
    AsyncEventType.QP_FATAL: EventNumber.ASYNC_EP_BROKEN,
    AsyncEventType.QP_REQ_ERR: EventNumber.ASYNC_EP_BROKEN,
    AsyncEventType.QP_ACCESS_ERR: EventNumber.ASYNC_EP_BROKEN,
    AsyncEventType.SQ_DRAINED: EventNumber.ASYNC_EP_BROKEN,
    AsyncEventType.SRQ_ERR: EventNumber.ASYNC_PROVIDER_INTERNAL_ERROR,
    AsyncEventType.SRQ_LIMIT_REACHED: EventNumber.ASYNC_WATERMARK,
    AsyncEventType.QP_RECV_SOFT_WATERMARK: EventNumber.ASYNC_WATERMARK,
}

# Reasons by the number of the event; other events have reason 0 of their handle's kind.
_WATERMARK_REASON: Final = 2  # of an endpoint as of a shared receive queue


def dto_status(status: WCStatus) -> DtoStatus:
    """Return the DAT status of a verbs completion."""
    return _DTO_STATUS_OF[status]


def async_number(kind: AsyncEventType) -> EventNumber | None:
    """Return the number of the DAT event that a verbs event becomes, `None` if it becomes none."""
    return _ASYNC_NUMBER_OF.get(kind)


def async_reason(number: EventNumber, kind: HandleType) -> int:
    """Return the reason of an asynchronous event about an object of this kind."""
    if number is EventNumber.ASYNC_WATERMARK:
        assert kind in (HandleType.EP, HandleType.SRQ), f"watermark of {kind!r}"
        return _WATERMARK_REASON
    return 0


def _raise_for(status: DtoStatus, what: str) -> None:
    if status is not DtoStatus.SUCCESS:
        raise DatCompletionError(status, f"{what}: {status.name}")
