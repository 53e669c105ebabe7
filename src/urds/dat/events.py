"""What verbs statuses and events mean in DAT. Source: docs/reference/dat.md 6."""

from typing import Final

from urds.dat.constants import DtoStatus, EventNumber, HandleType
from urds.dat.errors import DatCompletionError
from urds.verbs.engine.numbers import AsyncEventType, WCStatus

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

# What is not listed is no event of DAT: the endpoint deals with it, or there is no need.
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


def raise_for(status: DtoStatus, what: str) -> None:
    """Raise DatCompletionError for a status that is not SUCCESS; `what` has completed."""
    if status is not DtoStatus.SUCCESS:
        raise DatCompletionError(status, f"{what}: {status.name}")
