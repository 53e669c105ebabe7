"""What an endpoint posts and how it completes: cookies, flags, dispatchers.

Requests are always signalled below: a suppressed one that succeeds ends here without an event, so
its slot is free as soon as the transport has finished it. Source: dat.md section 10.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from urds.dat.ep_state import wrong_state
from urds.dat.errors import bad_argument, dat_error, from_os_error
from urds.dat.evd_streams import is_signalled
from urds.dat.events import dto_status
from urds.dat.iov import pieces_of
from urds.dat.numbers import CompletionFlag, DtoStatus, EpState
from urds.dat.records import RmrTriplet
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.numbers import SendFlag, WCStatus, WROpcode
from urds.verbs.engine.work import RecvWR, SendWR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urds.dat.ep import Endpoint
    from urds.dat.memory import RemoteMemory
    from urds.dat.records import LmrTriplet
    from urds.verbs.engine.keys import WindowBinding
    from urds.verbs.engine.work import SGE, WC

SEND_FLAGS: Final = (
    CompletionFlag.SUPPRESS
    | CompletionFlag.SOLICITED_WAIT
    | CompletionFlag.UNSIGNALLED
    | CompletionFlag.BARRIER_FENCE
)
RDMA_FLAGS: Final = SEND_FLAGS & ~CompletionFlag.SOLICITED_WAIT
RECV_FLAGS: Final = CompletionFlag.UNSIGNALLED
_HARMLESS: Final = {DtoStatus.SUCCESS, DtoStatus.ERR_FLUSHED}  # all else breaks the connection


@dataclass(frozen=True, slots=True)
class _Posted:
    cookie: Any
    flags: CompletionFlag
    octets: int = 0  # of a request; verbs completions of requests do not tell
    window: RemoteMemory | None = None  # of a bind
    bind: WindowBinding | None = None


class Transfers:
    """The requests and receives of one endpoint that have not completed. Lock held throughout."""

    def __init__(self, ep: Endpoint) -> None:
        self._ep = ep
        self._numbers = itertools.count(1)
        self._requests: dict[int, _Posted] = {}
        self._receives: dict[int, _Posted] = {}
        # The endpoint's dispatcher takes every completion: these queues never hold one.
        self.send_cq = CompletionQueue(1)
        self.send_cq.on_push = self._finish_request
        self.recv_cq = CompletionQueue(1)
        self.recv_cq.on_push = self._finish_receive

    @property
    def requests_outstanding(self) -> int:
        """Return how many requests have not completed."""
        return len(self._requests)

    @property
    def receives_outstanding(self) -> int:
        """Return how many receives posted to the endpoint itself have not completed."""
        return len(self._receives)

    def forget(self) -> None:
        """Forget what was posted: the queue pair did the same."""
        self._requests.clear()
        self._receives.clear()

    def pieces(self, iov: Sequence[LmrTriplet], segments_max: int, *, write: bool) -> list[SGE]:
        """Return segments as the engine takes them. Raises DatInvalidState without a zone."""
        ep = self._ep
        if ep.pz is None:
            subtype = Subtype.INVALID_STATE_EP_NOTREADY
            raise dat_error(ReturnType.INVALID_STATE, subtype, "no protection zone")
        keys = ep.ia.adapter.keys
        return pieces_of(iov, keys, ep.pz, write=write, segments_max=segments_max)

    def demand_request(
        self, flags: int, allowed: CompletionFlag, *, argument: int
    ) -> CompletionFlag:
        """Return the flags of a request. Raises DatInvalidState where none may be posted."""
        ep = self._ep
        ep.demand_live()
        if ep.state not in (EpState.CONNECTED, EpState.DISCONNECTED):
            raise wrong_state(ep.state, "requests need a connection")
        wanted, attribute = CompletionFlag(flags), ep.attr.request_completion_flags
        demand_flags(wanted, allowed, attribute, argument=argument)
        return wanted

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
        wanted = self.demand_request(flags, RDMA_FLAGS, argument=6)
        if not isinstance(remote, RmrTriplet):
            raise bad_argument(5, f"{remote!r} is no piece of a peer's memory")
        attr, is_read = self._ep.attr, opcode is WROpcode.RDMA_READ
        segments_max = attr.max_rdma_read_iov if is_read else attr.max_rdma_write_iov
        sg = self.pieces(iov, segments_max, write=is_read)
        octets = sum(segment.segment_length for segment in iov)
        if octets > min(remote.segment_length, attr.max_rdma_size):
            room = f"the peer's segment has {remote.segment_length}"
            detail = f"{octets} octets, {room}, max_rdma_size is {attr.max_rdma_size}"
            raise dat_error(ReturnType.LENGTH_ERROR, detail=detail)
        request = SendWR(opcode=opcode, sg=sg)
        request.set_wr_rdma(remote.rmr_context, remote.target_address)
        self.post_request(request, cookie, wanted)

    def post_request(
        self,
        request: SendWR,
        cookie: Any,
        flags: CompletionFlag,
        *,
        window: RemoteMemory | None = None,
    ) -> None:
        """Post a request. Raises DatInsufficientResources: `max_request_dtos` are outstanding."""
        _demand_slot("request", len(self._requests), self._ep.attr.max_request_dtos)
        request.wr_id = next(self._numbers)
        request.send_flags = _send_flags(flags)
        self._requests[request.wr_id] = _Posted(
            cookie, flags, sum(piece.length for piece in request.sg), window, request.bind
        )
        adapter = self._ep.ia.adapter
        try:
            self._ep.engine.post_send(request, adapter.now_ns())
        except OSError as error:
            del self._requests[request.wr_id]
            raise from_os_error(error) from error
        adapter.kick(self._ep.engine)

    def post_receive(self, sg: list[SGE], cookie: Any, flags: CompletionFlag) -> None:
        """Post a receive. Raises DatInsufficientResources: `max_recv_dtos` are outstanding."""
        _demand_slot("recv", len(self._receives), self._ep.attr.max_recv_dtos)
        number = next(self._numbers)
        self._receives[number] = _Posted(cookie, flags)
        adapter = self._ep.ia.adapter
        self._ep.engine.post_recv(RecvWR(number, sg), adapter.now_ns())
        adapter.kick(self._ep.engine)

    # -- completions, from the engine

    def _finish_request(self, wc: WC, solicited: bool) -> bool:
        posted = self._requests.pop(wc.wr_id)
        status = dto_status(wc.status)
        self._ep.note_status(status)
        if not self._requests:
            self._ep.note_drained()
        if posted.window is not None and posted.bind is not None:
            posted.window.handle_bound(posted.bind)
        evd = self._ep.request_evd
        suppressed = wc.status is WCStatus.SUCCESS and CompletionFlag.SUPPRESS in posted.flags
        if suppressed or evd is None:
            return True
        signals = is_signalled(self._ep.attr.request_completion_flags, posted.flags)
        if posted.window is not None:
            evd.post_bind(posted.window, posted.cookie, status, signals=signals)
        else:
            evd.post_dto(self._ep, posted.cookie, status, posted.octets, signals=signals)
        return True

    def _finish_receive(self, wc: WC, solicited: bool) -> bool:
        srq = self._ep.srq
        if srq is None:
            posted, on_taken = self._receives.pop(wc.wr_id), None
        else:
            cookie = srq.cookie_of(wc.wr_id)
            posted, on_taken = _Posted(cookie, CompletionFlag.DEFAULT), srq.count_taken
        status = dto_status(wc.status)
        self._ep.note_status(status)
        evd = self._ep.recv_evd
        if evd is None:
            if on_taken is not None:
                on_taken()
            return True
        signals = is_signalled(
            self._ep.attr.recv_completion_flags, posted.flags, solicited=solicited
        )
        evd.post_dto(
            self._ep, posted.cookie, status, wc.byte_len, signals=signals, on_taken=on_taken
        )
        return True


def breaks_connection(status: DtoStatus) -> bool:
    """Return whether a completion with this status ends the connection."""
    return status not in _HARMLESS


def demand_length(iov: Sequence[LmrTriplet], limit: int, *, argument: int) -> None:
    """Raise DatInvalidParameter: a message longer than the endpoint's attribute allows."""
    octets = sum(segment.segment_length for segment in iov)
    if octets > limit:
        raise bad_argument(argument, f"message of {octets} octets, max_message_size is {limit}")


def demand_flags(
    flags: CompletionFlag, allowed: CompletionFlag, attribute: CompletionFlag, *, argument: int
) -> None:
    """Raise DatInvalidParameter: flags that this post does not take.

    UNSIGNALLED needs the endpoint's attribute for the direction to be UNSIGNALLED too.
    """
    if int(flags) & ~int(allowed):
        raise bad_argument(argument, f"completion flags {flags!r}, allowed are {allowed!r}")
    if CompletionFlag.UNSIGNALLED in flags and CompletionFlag.UNSIGNALLED not in attribute:
        raise bad_argument(argument, f"UNSIGNALLED on an endpoint with {attribute!r}")


def _send_flags(flags: CompletionFlag) -> SendFlag:
    found = SendFlag.SIGNALED
    if CompletionFlag.SOLICITED_WAIT in flags:
        found |= SendFlag.SOLICITED
    if CompletionFlag.BARRIER_FENCE in flags:
        found |= SendFlag.FENCE
    return found


def _demand_slot(direction: str, outstanding: int, limit: int) -> None:
    if outstanding >= limit:
        detail = f"{outstanding} outstanding, max_{direction}_dtos is {limit}"
        raise dat_error(ReturnType.INSUFFICIENT_RESOURCES, Subtype.RESOURCE_MEMORY, detail)
