"""What an endpoint posts and how it completes: cookies, flags, dispatchers.

Requests are always signalled below: a suppressed one that succeeds ends here without an event, so
its slot is free as soon as the transport has finished it. Source: docs/reference/dat.md 10.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from urds.dat.constants import CompletionFlag, DtoStatus, EpState
from urds.dat.ep_state import wrong_state
from urds.dat.errors import bad_argument, dat_error, from_os_error
from urds.dat.evd_streams import is_signalled
from urds.dat.records import RmrTriplet
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.engine.numbers import QPState, SendFlag, WCStatus, WROpcode
from urds.verbs.records import RecvWR, SendWR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urds.dat.ep_config import EpConfig, EpOwner
    from urds.dat.ep_connection import EpConnection
    from urds.dat.evd import Event, EventDispatcher
    from urds.dat.records import LmrTriplet
    from urds.verbs.engine.work import SGE, WC

    # Makes the event of dispatcher, cookie, status and bytes.
    EventMaker = Callable[[EventDispatcher, Any, DtoStatus, int], Event]

_SEND_FLAGS: Final = (
    CompletionFlag.SUPPRESS
    | CompletionFlag.SOLICITED_WAIT
    | CompletionFlag.UNSIGNALLED
    | CompletionFlag.BARRIER_FENCE
)
_RDMA_FLAGS: Final = _SEND_FLAGS & ~CompletionFlag.SOLICITED_WAIT
DTO_STATUS_OF: Final[dict[WCStatus, DtoStatus]] = {
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
assert DTO_STATUS_OF.keys() == set(WCStatus), "each verbs status has its DAT status"
_SEND: Final = WROpcode.SEND
_HARMLESS: Final = {DtoStatus.SUCCESS, DtoStatus.ERR_FLUSHED}  # all else breaks the connection


class _Wanted(NamedTuple):
    """What the flags of a post mean."""

    flags: CompletionFlag
    send_flags: SendFlag = SendFlag.SIGNALED
    is_suppressed: bool = False


_DEFAULT: Final = _Wanted(CompletionFlag.DEFAULT)


@dataclass(slots=True)
class _Posted:
    cookie: Any
    wanted: _Wanted
    byte_count: int = 0  # of a request; verbs completions of requests do not tell
    make_event: EventMaker | None = None  # of a bind
    on_done: Callable[[], None] | None = None  # of a bind


class Transfers:
    """The requests and receives of one endpoint that have not completed. Lock held throughout."""

    def __init__(
        self, ep: EpOwner, config: EpConfig, connection: EpConnection, make_event: EventMaker
    ) -> None:
        self._ep = ep
        self._adapter = ep.device.adapter
        self._config = config
        self._connection = connection
        self._make_event = make_event
        # A completion that failed tells no more than its number: odd ones are receives.
        self._request_numbers = itertools.count(2, 2)
        self._receive_numbers = itertools.count(1, 2)
        self._requests: dict[int, _Posted] = {}
        self._receives: dict[int, _Posted] = {}

    @property
    def requests_outstanding(self) -> int:
        """Return how many requests have not completed."""
        return len(self._requests)

    def forget(self) -> None:
        """Forget what was posted: the queue pair did the same."""
        self._requests.clear()
        self._receives.clear()

    def post_send(self, iov: Sequence[LmrTriplet], cookie: Any, flags: int) -> None:
        """Post a message. Raises DatInvalidParameter: longer than the attribute allows."""
        wanted = self._demand_request(flags, _SEND_FLAGS, argument=5)
        attr = self._config.attr
        sg, byte_count = self._pieces(iov, attr.max_request_iov, write=False)
        if byte_count > (limit := attr.max_message_size):
            raise bad_argument(3, f"message of {byte_count} bytes, max_message_size is {limit}")
        request = SendWR(next(self._request_numbers), _SEND, sg, wanted.send_flags)
        self._post_request(request, _Posted(cookie, wanted, byte_count))

    def post_bind(
        self,
        request: SendWR,
        cookie: Any,
        flags: int,
        make_event: EventMaker,
        on_done: Callable[[], None],
    ) -> None:
        """Post the bind of a window, whose event `make_event` makes after `on_done` was called.

        Raises as `post_send`.
        """
        wanted = self._demand_request(flags, _RDMA_FLAGS, argument=6)
        request.wr_id, request.send_flags = next(self._request_numbers), wanted.send_flags
        self._post_request(request, _Posted(cookie, wanted, 0, make_event, on_done))

    def post_rdma(
        self,
        opcode: WROpcode,
        iov: Sequence[LmrTriplet],
        remote: RmrTriplet,
        cookie: Any,
        flags: int,
    ) -> None:
        """Post a read or write.

        Raises DatLengthError: too long for the peer's segment or the limit.
        """
        wanted = self._demand_request(flags, _RDMA_FLAGS, argument=6)
        if not isinstance(remote, RmrTriplet):
            raise bad_argument(5, f"{remote!r} is no piece of a peer's memory")
        attr, is_read = self._config.attr, opcode is WROpcode.RDMA_READ
        segments_max = attr.max_rdma_read_iov if is_read else attr.max_rdma_write_iov
        sg, byte_count = self._pieces(iov, segments_max, write=is_read)
        if byte_count > min(remote.segment_length, attr.max_rdma_size):
            room = f"the peer's segment has {remote.segment_length}"
            detail = f"{byte_count} bytes, {room}, max_rdma_size is {attr.max_rdma_size}"
            raise dat_error(ReturnType.LENGTH_ERROR, detail=detail)
        request = SendWR(
            next(self._request_numbers),
            opcode,
            sg,
            wanted.send_flags,
            remote_addr=remote.target_address,
            rkey=remote.rmr_context,
        )
        self._post_request(request, _Posted(cookie, wanted, byte_count))

    def post_receive(self, iov: Sequence[LmrTriplet], cookie: Any, flags: int) -> None:
        """Post a receive. Raises DatInsufficientResources: `max_recv_dtos` are outstanding."""
        attr = self._config.attr
        wanted = _checked_flags(flags, CompletionFlag.UNSIGNALLED, attr.recv_completion_flags, 5)
        sg, _ = self._pieces(iov, attr.max_recv_iov, write=True)
        _demand_slot("recv", len(self._receives), attr.max_recv_dtos)
        number = next(self._receive_numbers)
        self._receives[number] = _Posted(cookie, wanted)
        engine = self._ep.engine
        engine.post_recv(RecvWR(number, sg), self._adapter.now_ns())
        if engine.state is QPState.ERR:  # else it gives nothing to tell before a message comes
            self._adapter.progress_qp(engine)

    def _pieces(
        self, iov: Sequence[LmrTriplet], segments_max: int, *, write: bool
    ) -> tuple[list[SGE], int]:
        """Return segments as the engine takes them, and their bytes.

        Raises DatInvalidState without a zone, and as `OpenDevice.pieces`.
        """
        zone = self._config.pz
        if zone is None:
            subtype = Subtype.INVALID_STATE_EP_NOTREADY
            raise dat_error(ReturnType.INVALID_STATE, subtype, "no protection zone")
        return self._ep.device.pieces(iov, zone, write=write, segments_max=segments_max)

    def _demand_request(self, flags: int, allowed: CompletionFlag, *, argument: int) -> _Wanted:
        """Return what its flags ask for. Raises DatInvalidState where none may be posted."""
        ep = self._ep
        ep.demand_live()
        if ep.state is not EpState.CONNECTED and ep.state is not EpState.DISCONNECTED:
            raise wrong_state(ep.state, "requests need a connection")
        attribute = self._config.attr.request_completion_flags
        return _checked_flags(flags, allowed, attribute, argument)

    def _post_request(self, request: SendWR, posted: _Posted) -> None:
        """Post a request. Raises DatInsufficientResources: `max_request_dtos` are outstanding."""
        requests, device = self._requests, self._ep.device
        _demand_slot("request", len(requests), self._config.attr.max_request_dtos)
        number, engine = request.wr_id, self._ep.engine
        requests[number] = posted
        try:
            engine.post_send(request, self._adapter.now_ns())
        except OSError as error:
            del requests[number]
            raise from_os_error(error) from error
        self._adapter.finish_post(engine, device.completions)

    # -- completions, at the end of a pass

    def finish(self, wc: WC) -> None:
        """Queue the event of a transfer that has completed."""
        if wc.wr_id % 2:
            self._finish_receive(wc)
        else:
            self._finish_request(wc)

    def _status_of(self, wc: WC) -> DtoStatus:
        """Return how a transfer ended; one that failed by itself breaks the connection."""
        status = DTO_STATUS_OF[wc.status]
        if status not in _HARMLESS:
            self._connection.break_soon()
        return status

    def _finish_request(self, wc: WC) -> None:
        posted = self._requests.pop(wc.wr_id)
        status = self._status_of(wc)
        if not self._requests:
            self._connection.drain()
        if posted.on_done is not None:
            posted.on_done()
        evd = self._config.request_evd
        if evd is None or (posted.wanted.is_suppressed and status is DtoStatus.SUCCESS):
            return
        attribute = self._config.attr.request_completion_flags
        signals = is_signalled(attribute, posted.wanted.flags, False)
        make_event = posted.make_event or self._make_event
        evd.queue(make_event(evd, posted.cookie, status, posted.byte_count), signals=signals)

    def _finish_receive(self, wc: WC) -> None:
        srq = self._config.srq
        if srq is None:
            posted, on_taken = self._receives.pop(wc.wr_id), None
        else:
            cookie = srq.cookie_of(wc.wr_id)
            posted, on_taken = _Posted(cookie, _DEFAULT), srq.count_taken
        status = self._status_of(wc)
        evd = self._config.recv_evd
        if evd is None:
            if on_taken is not None:
                on_taken()
            return
        solicited = wc.solicited or status is not DtoStatus.SUCCESS
        attribute = self._config.attr.recv_completion_flags
        signals = is_signalled(attribute, posted.wanted.flags, solicited)
        event = self._make_event(evd, posted.cookie, status, wc.byte_len)
        evd.queue(event, signals=signals, on_taken=on_taken)


@lru_cache(maxsize=256)  # arithmetic of flags costs more than the rest of a post
def _checked_flags(
    flags: int, allowed: CompletionFlag, attribute: CompletionFlag, argument: int
) -> _Wanted:
    """Return what the flags of a post mean. Raises DatInvalidParameter: not for this post.

    UNSIGNALLED needs the endpoint's attribute for the direction to be UNSIGNALLED too.
    """
    wanted = CompletionFlag(flags)
    if flags & ~int(allowed):
        raise bad_argument(argument, f"completion flags {wanted!r}, allowed are {allowed!r}")
    if CompletionFlag.UNSIGNALLED in wanted and CompletionFlag.UNSIGNALLED not in attribute:
        raise bad_argument(argument, f"UNSIGNALLED on an endpoint with {attribute!r}")
    send_flags = SendFlag.SIGNALED
    if CompletionFlag.SOLICITED_WAIT in wanted:
        send_flags |= SendFlag.SOLICITED
    if CompletionFlag.BARRIER_FENCE in wanted:
        send_flags |= SendFlag.FENCE
    return _Wanted(wanted, send_flags, CompletionFlag.SUPPRESS in wanted)


def _demand_slot(direction: str, outstanding: int, limit: int) -> None:
    if outstanding >= limit:
        detail = f"{outstanding} outstanding, max_{direction}_dtos is {limit}"
        raise dat_error(ReturnType.INSUFFICIENT_RESOURCES, Subtype.RESOURCE_MEMORY, detail)
