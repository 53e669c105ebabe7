"""Queue pairs of an application, and receive queues that several of them share.

A program takes a queue pair through its states: RESET, INIT (receives may be posted), RTR (it
receives), RTS (it sends). The connection manager does the same for its connections. Each accepted
work request ends in exactly one completion, or without one where it was unsignalled and succeeded.
Source: docs/reference/verbs-and-roce.md 10, 12 and 18.
"""

import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, ClassVar, Final, TypeVar, cast

from urds.common.types import BytesLike
from urds.verbs.context import PD, vector_of
from urds.verbs.cq import CQ
from urds.verbs.engine.attributes import QPAttr, QPCap, step
from urds.verbs.engine.numbers import (
    MESSAGE_BYTES_MAX,
    QPAttrMask,
    QPState,
    QPType,
    ReceiveOrder,
    SendFlag,
    SRQAttrMask,
    UnsupportedQPType,
    WROpcode,
)
from urds.verbs.engine.work import AddressVector
from urds.verbs.errors import (
    VerbsArgumentError,
    VerbsNotSupportedError,
    VerbsPostError,
    demand_integer,
    demand_kind,
)
from urds.verbs.mr import MW, MWBind, MWBindInfo
from urds.verbs.providers.base import DeviceAttributes
from urds.verbs.records import RECEIVES, SENDS, RecvWR, SendWR, demand_pieces
from urds.verbs.resource import Resource

_Request = TypeVar("_Request", SendWR, RecvWR)

REQUESTS_MAX: Final = 1 << 20  # of one call: a chain may lead back to its start
# Which capability of a device an opcode needs; the others every device has.
_CAPABILITY: Final = {
    WROpcode.SEND_WITH_IMM: "send_with_imm",
    WROpcode.RDMA_WRITE_WITH_IMM: "rdma_with_imm",
    WROpcode.ATOMIC_CMP_AND_SWP: "atomics",
    WROpcode.ATOMIC_FETCH_AND_ADD: "atomics",
    WROpcode.MASKED_ATOMIC_CMP_AND_SWP: "masked_atomics",
    WROpcode.MASKED_ATOMIC_FETCH_AND_ADD: "masked_atomics",
    WROpcode.BIND_MW: "memory_windows",
    WROpcode.LOCAL_INV: "memory_windows",
    WROpcode.SEND_WITH_INV: "memory_windows",
}


@dataclass(slots=True)
class SrqAttr:
    """Capacity of a shared receive queue, and the limit below which SRQ_LIMIT_REACHED comes."""

    max_wr: int = 100
    max_sge: int = 1
    srq_limit: int = 0  # 0: none is armed


@dataclass(slots=True)
class SrqInitAttr:
    """Parameters of a new queue. `srq_limit` is ignored: arm it with `modify`."""

    attr: SrqAttr = field(default_factory=SrqAttr)


class SRQ(Resource):
    """A shared receive queue. Closing it closes the queue pairs that take from it first."""

    close_rank: ClassVar[int] = 2

    def __init__(self, pd: PD, init_attr: SrqInitAttr | SrqAttr | None = None) -> None:
        """Make a queue.

        Raises VerbsArgumentError: beyond `max_srq_wr` or `max_srq_sge`; TypeError: no domain, or
        attributes of another kind.
        """
        demand_kind(pd, PD, "SRQ(): pd")
        attr = init_attr.attr if isinstance(init_attr, SrqInitAttr) else init_attr or SrqAttr()
        demand_kind(attr, SrqAttr, "SRQ(): init_attr")
        self.pd = pd
        self._demand_capacity(attr.max_wr)
        sge_max = pd.context.attributes.max_srq_sge
        if not 1 <= attr.max_sge <= sge_max:
            raise VerbsArgumentError(f"max_sge {attr.max_sge}, from 1 to {sge_max}")
        adapter = pd.context.adapter
        self.engine = adapter.shared_receive_queue(attr.max_wr, attr.max_sge, pd=pd.engine)
        super().__init__(pd.context.adapter.lock, pd)
        with self._lock:
            pd.context.adopt(self.engine, self)

    def __len__(self) -> int:
        """Return how many receives wait to be taken."""
        return len(self.engine)

    def __bool__(self) -> bool:
        """Return true: a queue is there even while nothing waits in it."""
        return True

    def post_recv(self, wr: RecvWR | Iterable[RecvWR]) -> None:
        """Post a receive, a list of them, or a chain by `next_wr`.

        Raises VerbsPostError: ENOMEM when the queue is full, EINVAL for too many SGEs; `bad_wr`
        is the index of the rejected one, those before it are posted.
        """
        with self._lock:
            self._demand_open()
            for index, one in enumerate(_requests_of(wr, RECEIVES)):
                try:
                    self.engine.post(one)
                except OSError as error:
                    raise VerbsPostError.of(error, index) from error

    def modify(self, attr: SrqAttr, attr_mask: int) -> None:
        """Set the capacity (MAX_WR), or arm the limit (LIMIT), or both.

        SRQ_LIMIT_REACHED comes once per arming, when fewer receives than the limit wait; at once
        if that is so already. Raises VerbsArgumentError: a capacity below what waits or below the
        limit, a limit above the capacity, no known bit in the mask. Then nothing changes.
        """
        demand_kind(attr, SrqAttr, "modify(): attr")
        mask = SRQAttrMask(attr_mask)
        known = SRQAttrMask.MAX_WR | SRQAttrMask.LIMIT
        if not mask or int(mask) & ~int(known):
            raise VerbsArgumentError(f"mask {attr_mask:#x}, known are {int(known):#x}")
        with self._calling():
            capacity = self.engine.capacity
            if SRQAttrMask.MAX_WR in mask:
                self._demand_capacity(attr.max_wr)
                self.engine.resize(attr.max_wr)
            if SRQAttrMask.LIMIT in mask:
                try:
                    self.engine.arm_limit(attr.srq_limit)
                except OSError:
                    self.engine.capacity = capacity
                    raise
                self.pd.context.adapter.finish_pass()

    def query(self) -> SrqAttr:
        """Return the capacity, and the limit while it is armed."""
        with self._calling():
            return SrqAttr(self.engine.capacity, self.engine.max_sge, self.engine.limit)

    def _demand_capacity(self, max_wr: int) -> None:
        demand_integer(max_wr, "max_wr")
        limit = self.pd.context.attributes.max_srq_wr
        if not 1 <= max_wr <= limit:
            raise VerbsArgumentError(f"max_wr {max_wr}, from 1 to {limit}")

    def _release(self, *, forced: bool) -> None:
        self.pd.context.forget(self.engine, self)


@dataclass(slots=True, kw_only=True)
class QPInitAttr:
    """Parameters of a new queue pair.

    scq, rcq: where its sends and receives complete; one queue may be both.  srq: takes receives
    from there; it has no receive queue of its own then.  sq_sig_all: each send completes, whatever
    its flags.  receive_order: ours; what it does with a message that arrives ahead of others.
    """

    qp_type: QPType = QPType.RC
    scq: CQ | None = None
    rcq: CQ | None = None
    srq: SRQ | None = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: bool = True
    qp_context: Any = None
    receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER


class QP(Resource):
    """A queue pair. Closing it, or RESET, drops what is posted, and completions not yet polled.

    With `qp_attr` it goes to RTS (UD) or to INIT (RC) at once.
    """

    close_rank: ClassVar[int] = 0
    _placed: ClassVar[tuple[str, ...]] = ("post_send", "post_recv", "send", "write")

    def __init__(self, pd: PD, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None:
        """Make a queue pair.

        Raises VerbsArgumentError: no completion queues, objects of another device, capacities
        beyond the device's. VerbsNotSupportedError: datagrams or a receive order that the device
        lacks, a type that none has (UC, raw, XRC). VerbsError: ENOMEM.
        TypeError: an argument, or a field of `init_attr`, of another kind.
        """
        scq, rcq = _checked(pd, init_attr)
        srq = init_attr.srq
        parents: list[Resource] = [pd, scq, rcq, *([] if srq is None else [srq])]
        self.pd, self.context = pd, pd.context
        # A copy: the caller may reuse its own for the next one, changed.
        self.init_attr = init_attr = replace(init_attr, cap=replace(init_attr.cap))
        adapter, attributes = pd.context.adapter, pd.context.attributes
        self._message_bytes_max = attributes.max_msg_sz
        self._is_datagram = init_attr.qp_type == QPType.UD
        self._refused = {
            opcode: capability
            for opcode, capability in _CAPABILITY.items()
            if not getattr(attributes, capability)
        }
        with pd._calling():
            for parent in parents:
                parent._demand_open()
            self.engine = adapter.queue_pair(
                kind=QPType(init_attr.qp_type),
                pd=pd.engine,
                send_cq=scq.engine,
                recv_cq=rcq.engine,
                srq=None if srq is None else srq.engine,
                cap=replace(init_attr.cap),
                sq_sig_all=init_attr.sq_sig_all,
                receive_order=init_attr.receive_order,
            )
            super().__init__(adapter.lock, *parents)
            self.context.adopt(self.engine, self)
            if srq is not None:
                srq.engine.attached += 1
            is_limited = self._message_bytes_max < MESSAGE_BYTES_MAX
            if adapter.has_public_calls and not (self._refused or is_limited):
                self._place(QP, self.engine)
        if qp_attr is not None:
            (self.to_rts if self.qp_type is QPType.UD else self.to_init)(qp_attr)

    # -- what it is

    @property
    def qp_num(self) -> int:
        """Return the number of the queue pair, 24 bits."""
        return self.engine.qpn

    @property
    def qp_type(self) -> QPType:
        """Return the kind of the queue pair."""
        return self.engine.qp_type

    @property
    def qp_state(self) -> QPState:
        """Return the state of the queue pair now."""
        return self.engine.state

    def query(self, attr_mask: int = 0) -> tuple[QPAttr, QPInitAttr]:
        """Return the attributes now, all of them whatever the mask, and those of the creation."""
        with self._calling():
            attr = replace(self.engine.attr, qp_state=self.engine.state)
            attr.cur_qp_state, attr.cap = attr.qp_state, replace(attr.cap)
            return attr, self.init_attr

    # -- states

    def modify(self, qp_attr: QPAttr, attr_mask: int) -> None:
        """Change state and attributes; the mask says which fields count.

        Raises VerbsArgumentError: no such transition, bits missing or superfluous, an invalid
        value; then nothing changes. VerbsNotSupportedError: a modify to RTR or RTS where only the
        connection manager connects; a drained queue pair goes back to RTS everywhere.
        """
        demand_kind(qp_attr, QPAttr, "modify(): qp_attr")
        mask = QPAttrMask(attr_mask)
        attributes = self.context.attributes
        connects = QPAttrMask.STATE in mask and qp_attr.qp_state in (QPState.RTR, QPState.RTS)
        is_connected = self.engine.state in (QPState.RTS, QPState.SQD)
        is_refused = connects and not is_connected and not attributes.raw_connect
        if is_refused and self.qp_type is QPType.RC:
            raise VerbsNotSupportedError(attributes.name, "raw_connect")
        if QPAttrMask.AV in mask and not isinstance(qp_attr.ah_attr, AddressVector):
            qp_attr = replace(qp_attr, ah_attr=vector_of(qp_attr.ah_attr))
        adapter = self.context.adapter
        with self._calling():
            self.engine.modify(qp_attr, mask, adapter.now_ns())
            adapter.progress_qp(self.engine)

    def to_init(self, qp_attr: QPAttr) -> None:
        """Take the queue pair from RESET to INIT, with the attributes that this needs."""
        self._lead(qp_attr, QPState.INIT)

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """Take the queue pair to RTR, through INIT if it is in RESET."""
        if self.qp_state is QPState.RESET:
            self.to_init(qp_attr)
        self._lead(qp_attr, QPState.RTR)

    def to_rts(self, qp_attr: QPAttr) -> None:
        """Take the queue pair to RTS, through INIT and RTR where it has not been there."""
        if self.qp_state in (QPState.RESET, QPState.INIT):
            self.to_rtr(qp_attr)
        self._lead(qp_attr, QPState.RTS)

    # -- work

    def post_send(self, wr: SendWR | Iterable[SendWR]) -> None:
        """Post a request, a list of them, or a chain by `next_wr`.

        The memory of a request is the device's until it completes; with INLINE the data is copied
        here. Raises VerbsPostError: EINVAL (state, opcode, sizes, keys of inline data), ENOMEM
        (the queue is full), EOPNOTSUPP (naming the capability); `bad_wr` is the index of the
        rejected one, those before it are posted. From any thread; a list is posted in one piece
        where the compiled engine carries it.
        """
        with self._lock:
            self._post(wr, SENDS, self._send, may_speak=True)

    def post_recv(self, wr: RecvWR | Iterable[RecvWR]) -> None:
        """Post a receive, a list of them, or a chain by `next_wr`.

        Raises VerbsPostError as `post_send`; EINVAL for a queue pair with a shared receive queue.
        """
        with self._lock:
            may_speak = self.engine.state is QPState.ERR
            self._post(wr, RECEIVES, self.engine.post_recv, may_speak=may_speak)

    def send(self, data: BytesLike, wr_id: int = 0, flags: SendFlag = SendFlag.SIGNALED) -> None:
        """Post a SEND of bytes without a work request and without a key: the short form.

        `data` is `bytes`, or anything whose bytes lie in one piece; they must not change until
        the request completes. For connected queue pairs. Raises VerbsPostError as `post_send`.
        """
        self.post_send(SendWR(wr_id, WROpcode.SEND, send_flags=flags, data=_own_bytes(data)))

    def write(
        self,
        data: BytesLike,
        address: int,
        rkey: int,
        wr_id: int = 0,
        flags: SendFlag = SendFlag.SIGNALED,
    ) -> None:
        """Post an RDMA WRITE of bytes to `address` under the peer's `rkey`: as `send`.

        Raises OverflowError too: an address of more than 64 bits.
        """
        if index(address) >> 64:
            raise OverflowError(f"address {address}, from 0 to {(1 << 64) - 1}")
        self.post_send(
            SendWR(
                wr_id,
                WROpcode.RDMA_WRITE,
                send_flags=flags,
                remote_addr=address,
                rkey=rkey,
                data=_own_bytes(data),
            )
        )

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Post the binding of a memory window; `mw.rkey` is new once it has completed.

        Raises VerbsPostError as `post_send`. A binding that cannot be completes with MW_BIND_ERR.
        """
        demand_kind(mw, MW, "bind_mw(): mw")
        demand_kind(mw_bind, MWBind, "bind_mw(): mw_bind")
        demand_kind(mw_bind.info, MWBindInfo, "MWBind(): info")
        self.post_send(
            SendWR(
                wr_id=mw_bind.wr_id,
                opcode=WROpcode.BIND_MW,
                send_flags=mw_bind.send_flags,
                window=mw,
                bind=mw_bind.info,
            )
        )

    # -- inside

    def _lead(self, qp_attr: QPAttr, state: QPState) -> None:
        demand_kind(qp_attr, QPAttr, "qp_attr")
        needs = step(self.qp_type, self.qp_state, state)
        required = QPAttrMask(0) if needs is None else needs.required
        self.modify(replace(qp_attr, qp_state=state), required | QPAttrMask.STATE)

    def _post(
        self,
        wr: _Request | Iterable[_Request],
        kinds: tuple[type[_Request], ...],
        post: Callable[[_Request, int], None],
        *,
        may_speak: bool,
    ) -> None:
        """Post each request; those posted before a rejected one are sent all the same.

        A receive gives nothing to send, unless it completes at once (`may_speak`).
        """
        self._demand_open()
        adapter = self.context.adapter
        now_ns = adapter.now_ns()
        posted = 0
        try:
            for one in _requests_of(wr, kinds):
                self._demand_open()  # the program may close it while it gives requests
                post(one, now_ns)
                posted += 1
        except OSError as error:
            self._demand_open()  # not VerbsPostError: it is about no request
            raise VerbsPostError.of(error, posted) from error
        finally:
            if may_speak:
                adapter.progress_qp(self.engine)

    def _send(self, wr: SendWR, now_ns: int) -> None:
        """Post a request in the engine's form: without our objects."""
        if self._refused and wr.opcode in self._refused:
            raise VerbsNotSupportedError(self.context.name, self._refused[wr.opcode])
        if self._message_bytes_max < MESSAGE_BYTES_MAX:
            length = wr.message_bytes
            if length > self._message_bytes_max:
                raise VerbsArgumentError(
                    f"message of {length} bytes, limit {self._message_bytes_max}"
                )
        self.engine.post_send(engine_form(wr, self._is_datagram), now_ns)

    def _release(self, *, forced: bool) -> None:
        self.context.adapter.remove(self.engine)
        self.engine.discard_completions()
        self.context.forget(self.engine, self)
        if self.init_attr.srq is not None:
            self.init_attr.srq.engine.attached -= 1


def engine_form(wr: SendWR, is_datagram: bool) -> SendWR:
    """Return a request without objects of this package, for a queue pair of datagrams or another.

    Raises VerbsArgumentError: no parameters of a binding, no address; VerbsClosedError.
    """
    if wr.opcode is WROpcode.BIND_MW and isinstance(wr.window, MW):
        if not isinstance(wr.bind, MWBindInfo):
            raise VerbsArgumentError("BIND_MW without an MWBindInfo in `bind`")
        wr.window._demand_open()
        wr.bind.mr._demand_open()
        wr.window.bound_mr = wr.bind.mr
        return replace(wr, window=wr.window.engine, bind=wr.bind.binding())
    if is_datagram and not isinstance(wr.ah, AddressVector):
        return replace(wr, ah=vector_of(wr.ah))
    return wr if is_datagram or wr.ah is None else replace(wr, ah=None)


def _own_bytes(data: BytesLike) -> bytes | memoryview:
    """Return bytes as a request brings them. Raises VerbsPostError: not in one piece."""
    if isinstance(data, bytes):
        return data
    view = memoryview(data)
    if not view.c_contiguous:
        raise VerbsPostError(errno.EINVAL, "memory that is not in one piece", 0)
    return view.cast("B") if view.format != "B" or view.ndim != 1 else view


def _checked(pd: PD, init_attr: QPInitAttr) -> tuple[CQ, CQ]:
    """Return the completion queues, or raise VerbsError for what cannot be."""
    demand_kind(pd, PD, "QP(): pd")
    demand_kind(init_attr, QPInitAttr, "QP(): init_attr")
    attributes = pd.context.attributes
    if init_attr.scq is None or init_attr.rcq is None:
        raise VerbsArgumentError("a queue pair needs two completion queues: scq and rcq")
    demand_kind(init_attr.scq, CQ, "QPInitAttr(): scq")
    demand_kind(init_attr.rcq, CQ, "QPInitAttr(): rcq")
    if init_attr.srq is not None:
        demand_kind(init_attr.srq, SRQ, "QPInitAttr(): srq")
    demand_kind(init_attr.cap, QPCap, "QPInitAttr(): cap")
    demand_kind(init_attr.receive_order, ReceiveOrder, "QPInitAttr(): receive_order")
    for other in (init_attr.scq, init_attr.rcq, init_attr.srq):
        context = other.pd.context if isinstance(other, SRQ) else getattr(other, "context", None)
        if context is not None and context is not pd.context:
            raise VerbsArgumentError(f"the {type(other).__name__} is another device's")
    for kind in UnsupportedQPType:
        if init_attr.qp_type == int(kind):
            raise VerbsNotSupportedError(attributes.name, f"qp_type {kind.name}")
    if init_attr.qp_type not in list(QPType):
        known = ", ".join(one.name for one in QPType)
        raise VerbsArgumentError(f"queue pair of kind {init_attr.qp_type}, known are {known}")
    if init_attr.qp_type == QPType.UD and not attributes.datagrams:
        raise VerbsNotSupportedError(attributes.name, "datagrams")
    if init_attr.receive_order not in attributes.receive_order:
        raise VerbsNotSupportedError(
            attributes.name, f"receive_order {init_attr.receive_order.name}"
        )
    _check_capacities(init_attr.cap, attributes)
    return init_attr.scq, init_attr.rcq


def _check_capacities(cap: QPCap, attributes: DeviceAttributes) -> None:
    limits = (
        ("max_send_wr", cap.max_send_wr, attributes.max_qp_wr),
        ("max_recv_wr", cap.max_recv_wr, attributes.max_qp_wr),
        ("max_send_sge", cap.max_send_sge, attributes.max_sge),
        ("max_recv_sge", cap.max_recv_sge, attributes.max_sge),
        ("max_inline_data", cap.max_inline_data, attributes.max_inline_data),
    )
    for name, value, limit in limits:
        demand_integer(value, name)
        if not 0 <= value <= limit:
            raise VerbsArgumentError(f"{name} {value}, from 0 to {limit}")


def _requests_of(
    given: _Request | Iterable[_Request], kinds: tuple[type[_Request], ...]
) -> Iterable[_Request]:
    """Return the work requests that were given, each followed by what is chained to it.

    Raises TypeError: neither one of `kinds` nor iterable. Iterating raises TypeError for what is
    none of them or has no pieces in `sg`, VerbsArgumentError beyond REQUESTS_MAX.
    """
    if isinstance(given, kinds):
        if given.next_wr is not None:
            return _unchained((given,), kinds)
        demand_pieces(given.sg)
        return (given,)
    if not isinstance(given, Iterable):
        demand_kind(given, kinds, "what is posted")
    return _unchained(cast("Iterable[_Request]", given), kinds)


def _unchained(heads: Iterable[_Request], kinds: tuple[type[_Request], ...]) -> Iterator[_Request]:
    room = REQUESTS_MAX
    for head in heads:
        request = head
        while True:
            if room == 0:
                raise VerbsArgumentError(f"more than {REQUESTS_MAX} work requests in one call")
            demand_kind(request, kinds, "a work request of the list")
            demand_pieces(request.sg)
            room -= 1
            yield request
            after = request.next_wr
            if after is None:
                break
            request = after
