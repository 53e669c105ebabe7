"""Endpoints: reliable connections that transfer data, and `recv_query` that counts their buffers.

An endpoint stands on one queue pair, which numbers the messages of its peer and knows which of
them hold a receive buffer. Source: docs/reference/dat.md 4, 9, 10, 13, 14.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from urds.dat.arguments import IaAddress, ns_of_s, numeric_address, port_of
from urds.dat.constants import (
    DAT_HW_DEFAULT,
    CompletionFlag,
    ConnectFlag,
    DtoStatus,
    EpRecvInfo,
    EpState,
    EventNumber,
    HandleType,
    Qos,
    SrqWatermarks,
)
from urds.dat.ep_config import EpConfig, creation_attr, high_watermark
from urds.dat.ep_connection import EpConnection
from urds.dat.ep_state import UNDECIDED, Input, next_state, wrong_state
from urds.dat.ep_transfers import Transfers
from urds.dat.errors import bad_argument, dat_error, from_os_error, raise_for
from urds.dat.evd import Event, EventDispatcher
from urds.dat.handles import DatObject, OpenDevice, live, live_zone, while_live
from urds.dat.records import EpAttr, EpStatus, RecvInfo
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.engine.numbers import AsyncEventType, QPType, ReceiveOrder, WROpcode
from urds.verbs.engine.queue_pair import QPCap, QueuePair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urds.dat.records import LmrTriplet, RmrTriplet
    from urds.dat.srq import SharedReceiveQueue

_BREAKING_EVENTS: Final = {
    AsyncEventType.QP_FATAL,
    AsyncEventType.QP_REQ_ERR,
    AsyncEventType.QP_ACCESS_ERR,
    AsyncEventType.QP_RECV_HARD_WATERMARK,
}
_RECV_INFO_ALL: Final = EpRecvInfo.NBUFS_ALLOCATED | EpRecvInfo.BUFS_ALLOC_SPAN


@dataclass(frozen=True, slots=True)
class EpParam:
    """What an endpoint is at this moment. Mask bits: `EpField`."""

    ia_handle: DatObject | None = None
    ep_state: EpState = EpState.UNCONNECTED
    local_ia_address_ptr: str | None = None
    local_port_qual: int = 0
    remote_ia_address_ptr: str | None = None
    remote_port_qual: int = 0
    pz_handle: DatObject | None = None
    recv_evd_handle: EventDispatcher | None = None
    request_evd_handle: EventDispatcher | None = None
    connect_evd_handle: EventDispatcher | None = None
    srq_handle: SharedReceiveQueue | None = None
    ep_attr: EpAttr = field(default_factory=EpAttr)


@dataclass(frozen=True, slots=True)
class DtoCompletionEvent(Event):
    """A data transfer is over. `transfered_length` is bytes and means something on success.

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
        raise_for(self.status, f"transfer of cookie {self.user_cookie!r}")


@dataclass(frozen=True, slots=True)
class ConnectionEvent(Event):
    """A connection is established, was rejected, or ended; `event_number` says which."""

    ep_handle: Endpoint
    private_data: bytes = b""

    @property
    def private_data_size(self) -> int:
        """Return how many bytes of private data came."""
        return len(self.private_data)

    @property
    def ep(self) -> Endpoint:
        """Return the endpoint of the connection."""
        return self.ep_handle


class Endpoint(DatObject, kind=HandleType.EP):
    """One endpoint, UNCONNECTED when it is made. Every call is safe from any thread."""

    def __init__(
        self,
        ia: DatObject,
        pz: DatObject | None,
        recv_evd: EventDispatcher | None = None,
        request_evd: EventDispatcher | None = None,
        connect_evd: EventDispatcher | None = None,
        attr: EpAttr | None = None,
        srq: SharedReceiveQueue | None = None,
    ) -> None:
        """Make an endpoint of `ia` in `pz`; one without a zone cannot connect until it has one.

        Without `attr` the provider's defaults count. With `srq` receives always come from there,
        `attr` is required, its max_recv_dtos is the hard high watermark and srq_soft_hw the soft
        one. Raises DatInvalidHandle, DatInvalidParameter, DatModelNotSupported,
        DatInsufficientResources.
        """
        with ia.lock:
            ia.demand_live()
            if pz is not None:
                live_zone(pz)
            ia.device.demand_own(pz, recv_evd, request_evd, connect_evd, srq)
            limits = ia.device.attr
            checked = creation_attr(limits, attr, recv_evd, request_evd, srq)
            super().__init__(ia)
            self.state = EpState.UNCONNECTED
            self._config = EpConfig(self, checked, srq)
            self.connection = EpConnection(self, self._config)
            self.transfers = Transfers(self, self._config, self.connection, self._dto_event)
            self._config.feed(recv_evd, request_evd, connect_evd, checked)
            self.engine = self._make_engine(pz)
            # What the provider supports does not change: both counts are one read of the engine's.
            self.recv_counts: Callable[[], tuple[int | None, int | None]] = (
                self.engine.recv_query
                if self.device.provider_attr.ep_recv_info_supported == _RECV_INFO_ALL
                else self._supported_counts
            )
            self.connection.prepare()
            if srq is not None:
                self._set_watermarks()
            self._config.set_zone(pz)
            self.hold(srq)
            self.device.add(self)

    # -- what it is

    @property
    def attr(self) -> EpAttr:
        """Return its attributes."""
        return self._config.attr

    @property
    def pz(self) -> DatObject | None:
        """Return its protection zone."""
        return self._config.pz

    @property
    def srq(self) -> SharedReceiveQueue | None:
        """Return the shared queue that it receives from."""
        return self._config.srq

    @property
    def recv_evd(self) -> EventDispatcher | None:
        """Return the dispatcher of completed receives."""
        return self._config.recv_evd

    @property
    def request_evd(self) -> EventDispatcher | None:
        """Return the dispatcher of completed requests."""
        return self._config.request_evd

    @property
    def connect_evd(self) -> EventDispatcher | None:
        """Return the dispatcher of connection events."""
        return self._config.connect_evd

    @property
    def recv_idle(self) -> bool:
        """Return whether no receive buffer is allocated to the endpoint."""
        with self.lock:
            return self.engine.recv_query()[0] == 0

    @property
    def request_idle(self) -> bool:
        """Return whether no request is outstanding."""
        with self.lock:
            return self.transfers.requests_outstanding == 0

    @while_live
    def get_status(self) -> EpStatus:
        """Return the state and whether either direction is idle, of one moment."""
        return EpStatus(self.state, self.recv_idle, self.request_idle)

    @while_live
    def query(self) -> EpParam:
        """Return what the endpoint is, its attributes and watermarks as they are now."""
        local, remote = self.connection.local, self.connection.remote
        return EpParam(
            ia_handle=self.ia,
            ep_state=self.state,
            local_ia_address_ptr=local[0] if local else self.device.address,
            local_port_qual=local[1] if local else 0,
            remote_ia_address_ptr=remote[0] if remote else None,
            remote_port_qual=remote[1] if remote else 0,
            pz_handle=self.pz,
            recv_evd_handle=self.recv_evd,
            request_evd_handle=self.request_evd,
            connect_evd_handle=self.connect_evd,
            srq_handle=self.srq,
            ep_attr=self.attr,
        )

    @while_live
    def modify(self, /, **changes: Any) -> None:
        """Change fields of EpParam or EpAttr by name; all of them or none.

        Raises DatInvalidParameter: a field that never changes. DatInvalidState: one that may
        not change in this state; see `urds.dat.ep_config`.
        """
        self._config.modify(changes, self.state)
        if "pz_handle" in changes:
            self.engine.pd = self.pz
        if self.srq is not None and changes.keys() & {"srq_soft_hw", "max_recv_dtos"}:
            self._set_watermarks()

    # -- receive buffers

    def recv_query(self) -> RecvInfo:
        """Return how many receive buffers the endpoint holds and over how many messages they reach.

        With a shared receive queue these are the buffers taken from it for this endpoint, without
        one those posted here; `verbs.engine.receives.ReceiveTracker` counts both. They are of one
        moment and one set of buffers, whatever completes meanwhile. The span is never below the
        count. A value that the provider does not support is `None`; without both,
        DatModelNotSupported is raised. Allowed in every state. Takes no lock.
        Source: docs/reference/dat.md 13.
        """
        self.demand_live()
        return RecvInfo(*self.recv_counts())

    def _supported_counts(self) -> tuple[int | None, int | None]:
        """Return the counts that the provider supports, where these are not both."""
        info = self.device.provider_attr.ep_recv_info_supported
        if not info:
            detail = "neither count: see ep_recv_info_supported"
            raise dat_error(ReturnType.MODEL_NOT_SUPPORTED, detail=detail)
        count, span = self.engine.recv_query()
        return (
            count if info & EpRecvInfo.NBUFS_ALLOCATED else None,
            span if info & EpRecvInfo.BUFS_ALLOC_SPAN else None,
        )

    @while_live
    def set_watermark(self, soft: int | None = None, hard: int | None = None) -> None:
        """Set the soft and the hard high watermark, and arm both; `None` is none.

        More held buffers than the soft one: one event, handle the endpoint, reason 2. More than
        the hard one: the connection breaks. Either may happen in this call. Raises
        DatInvalidParameter: below 0. DatModelNotSupported: the provider is degraded.
        """
        marks = SrqWatermarks(self.device.provider_attr.srq_watermarks_supported)
        for number, value, bit in (
            (2, soft, SrqWatermarks.EP_SOFT_HIGH),
            (3, hard, SrqWatermarks.EP_HARD_HIGH),
        ):
            if value is not None and value < 0:
                raise bad_argument(number, f"watermark {value}, at least 0, or none")
            if bit not in marks:
                raise dat_error(ReturnType.MODEL_NOT_SUPPORTED, detail=f"{bit.name} watermark")
        self._config.attr = replace(
            self.attr,
            srq_soft_hw=_mark(soft),
            max_recv_dtos=self.attr.max_recv_dtos if self.srq is None else _mark(hard),
        )
        self.engine.set_recv_watermarks(soft, hard)
        self.device.adapter.progress_qp(self.engine)

    # -- transfers

    def post_recv(
        self, iov: Sequence[LmrTriplet], cookie: Any = None, flags: int = CompletionFlag.DEFAULT
    ) -> None:
        """Post a receive, in any state; a disconnected endpoint flushes it at once.

        Raises DatInvalidState on an endpoint with a shared receive queue.
        """
        with self.lock:
            self.demand_live()
            if self.srq is not None:
                raise wrong_state(self.state, f"receives come from {self.srq!r}")
            self.transfers.post_receive(iov, cookie, flags)

    def post_send(
        self, iov: Sequence[LmrTriplet], cookie: Any = None, flags: int = CompletionFlag.DEFAULT
    ) -> None:
        """Send a message; no segments are an empty one.

        Raises DatInvalidState unless connected, or disconnected: then it is flushed at once.
        """
        with self.lock:
            self.transfers.post_send(iov, cookie, flags)

    def post_rdma_write(
        self,
        iov: Sequence[LmrTriplet],
        remote: RmrTriplet,
        cookie: Any = None,
        flags: int = CompletionFlag.DEFAULT,
    ) -> None:
        """Write local segments to a peer's memory. Raises as `post_send`, and DatLengthError."""
        with self.lock:
            self.transfers.post_rdma(WROpcode.RDMA_WRITE, iov, remote, cookie, flags)

    def post_rdma_read(
        self,
        iov: Sequence[LmrTriplet],
        remote: RmrTriplet,
        cookie: Any = None,
        flags: int = CompletionFlag.DEFAULT,
    ) -> None:
        """Read a peer's memory into local segments. Raises as `post_send`, and DatLengthError."""
        with self.lock:
            self.transfers.post_rdma(WROpcode.RDMA_READ, iov, remote, cookie, flags)

    # -- connection

    @while_live
    def connect(
        self,
        address: IaAddress,
        conn_qual: int,
        *,
        timeout_s: float | None = None,
        private_data: bytes = b"",
        qos: int = Qos.BEST_EFFORT,
        flags: int = ConnectFlag.DEFAULT,
    ) -> None:
        """Ask for a connection; one event on the connect dispatcher tells how it went.

        Raises DatInvalidState: not UNCONNECTED. DatInvalidHandle: no connect dispatcher.
        DatInvalidParameter: timeout 0, a qualifier or private data that cannot be.
        DatInvalidAddress. DatModelNotSupported: quality or multipath.
        """
        peer = (numeric_address(address), port_of(conn_qual, argument=3))
        timeout_ns = _timeout_ns(timeout_s, argument=4)
        self.device.demand_private_data(private_data, argument=5)
        if qos != Qos.BEST_EFFORT or flags != ConnectFlag.DEFAULT:
            detail = f"quality {qos}, flags {flags}: only best effort on one path"
            raise dat_error(ReturnType.MODEL_NOT_SUPPORTED, detail=detail)
        after = next_state(self.state, Input.CONNECT)
        if self.connect_evd is None:
            detail = "no connect dispatcher"
            raise dat_error(ReturnType.INVALID_HANDLE, Subtype.INVALID_HANDLE_EVD_CONN, detail)
        if self.pz is None:
            subtype = Subtype.INVALID_STATE_EP_NOTREADY
            raise dat_error(ReturnType.INVALID_STATE, subtype, "no protection zone")
        try:
            self.connection.connect(peer, bytes(private_data), timeout_ns)
        except OSError as error:
            raise from_os_error(error) from error
        self.state = after

    def dup_connect(
        self,
        connected: Endpoint,
        *,
        timeout_s: float | None = None,
        private_data: bytes = b"",
        qos: int = Qos.BEST_EFFORT,
    ) -> None:
        """Connect to where another endpoint is connected. Raises as `connect`."""
        with self.lock:
            live(connected, Endpoint)
            remote = connected.connection.remote
            if connected.state is not EpState.CONNECTED or remote is None:
                raise wrong_state(connected.state, "the endpoint to follow is not connected")
            _timeout_ns(timeout_s, argument=3)
            self.device.demand_private_data(private_data, argument=4)
            self.connect(*remote[:2], timeout_s=timeout_s, private_data=private_data, qos=qos)

    @while_live
    def disconnect(self, *, graceful: bool = False) -> None:
        """End the connection; gracefully it ends when the requests under way are over.

        Does nothing when it is over already. Raises DatInvalidState where there is none yet.
        """
        if self.state in UNDECIDED or self.state is EpState.UNCONNECTED:
            raise wrong_state(self.state, "there is no connection")
        if self.state is EpState.DISCONNECTED:
            return
        if not graceful or self.state not in (EpState.CONNECTED, EpState.DISCONNECT_PENDING):
            self.connection.end(EventNumber.CONNECTION_DISCONNECTED)
        elif self.state is EpState.CONNECTED:
            self.move(Input.DRAIN)
            if self.request_idle:
                self.connection.drain()

    @while_live
    def reset(self) -> None:
        """Make a disconnected endpoint unconnected; an unconnected one keeps its receives.

        Raises DatInvalidState in any other state.
        """
        was_over = self.state is EpState.DISCONNECTED
        self.move(Input.RESET)
        if was_over:
            self.transfers.forget()
            self.connection.reset()

    # -- for the parts and the service points; lock held

    def move(self, event: Input) -> None:
        """Change the state. Raises DatInvalidState if it cannot be left so."""
        self.state = next_state(self.state, event)

    def undo_accept(self, state: EpState) -> None:
        """Go back to the state before an accept: the request could not be answered."""
        self.state = state
        if state is EpState.UNCONNECTED:
            self.connection.forget_addresses()

    def post_connection(self, number: EventNumber, private_data: bytes) -> None:
        """Queue an event of the connection, where there is a dispatcher."""
        evd = self.connect_evd
        if self.live and evd is not None:
            evd.queue(ConnectionEvent(number, evd, self, private_data))

    def handle_async(self, kind: AsyncEventType) -> None:
        """Break the connection where the engine says that it cannot go on."""
        if kind in _BREAKING_EVENTS:
            self.connection.break_soon()

    def handle_evd_overflow(self, evd: DatObject) -> None:
        """Break the connection: a completion or an event of it was lost."""
        self.connection.break_soon()

    def demand_free(self) -> None:
        """Raise DatInvalidState while a service point or a request owns the endpoint."""
        if self.state in UNDECIDED:
            raise wrong_state(self.state, "the endpoint belongs to a service point or a request")
        super().demand_free()

    def _dispose(self) -> None:
        self.connection.dispose()
        self.device.adapter.remove(self.engine)
        del self.device.finishers[self.engine.qpn]
        self.device.disown(self.engine)

    # -- inside

    def _dto_event(
        self, evd: EventDispatcher, cookie: Any, status: DtoStatus, byte_count: int
    ) -> DtoCompletionEvent:
        """Return the event of a transfer that has completed."""
        return DtoCompletionEvent(EventNumber.DTO_COMPLETION, evd, self, cookie, status, byte_count)

    def _set_watermarks(self) -> None:
        soft, hard = self.attr.srq_soft_hw, self.attr.max_recv_dtos
        self.engine.set_recv_watermarks(high_watermark(soft), high_watermark(hard))

    def _make_engine(self, pz: DatObject | None) -> QueuePair:
        limits, device = self.device.attr, self.device
        # Depths are this object's to watch: they may change while the queue pair exists.
        cap = QPCap(
            max_send_wr=limits.max_dto_per_ep,
            max_recv_wr=limits.max_dto_per_ep,
            max_send_sge=limits.max_iov_segments_per_dto,
            max_recv_sge=limits.max_iov_segments_per_dto,
        )
        engine = device.adapter.queue_pair(
            kind=QPType.RC,
            pd=pz,
            send_cq=device.completions,
            recv_cq=device.completions,
            srq=None if self.srq is None else self.srq.engine,
            cap=cap,
            receive_order=_receive_order(device),
        )
        device.finishers[engine.qpn] = self.transfers.finish
        device.adopt(engine, self)
        return engine


def _receive_order(device: OpenDevice) -> ReceiveOrder:
    """Return what the adapter was opened with, else by arrival where messages can overtake."""
    if device.support.receive_order is not None:
        return device.support.receive_order
    offered = device.adapter.attributes.receive_order
    best = ReceiveOrder.ARRIVAL_ORDER
    return best if best in offered else ReceiveOrder.IN_ORDER


def _timeout_ns(timeout_s: float | None, *, argument: int) -> int | None:
    timeout_ns = ns_of_s(timeout_s, argument=argument)
    if timeout_ns == 0:
        raise bad_argument(argument, "timeout 0: at least one microsecond")
    return timeout_ns


def _mark(value: int | None) -> int:
    return DAT_HW_DEFAULT if value is None else value
