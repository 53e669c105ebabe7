"""Shared receive queues: receives for several queue pairs.

Source: docs/reference/verbs-and-roce.md 12 and 18.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from urds.verbs.context import PD, weak_call
from urds.verbs.engine.numbers import AsyncEventType, SRQAttrMask
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.work import RecvWR
from urds.verbs.errors import VerbsArgumentError, VerbsPostError
from urds.verbs.resource import Resource
from urds.verbs.wr import requests_of


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
        """Make a queue. Raises VerbsArgumentError: beyond `max_srq_wr` or `max_srq_sge`."""
        attr = init_attr.attr if isinstance(init_attr, SrqInitAttr) else init_attr or SrqAttr()
        self.pd = pd
        self._demand_capacity(attr.max_wr)
        sge_max = pd.context.attributes.max_srq_sge
        if not 1 <= attr.max_sge <= sge_max:
            raise VerbsArgumentError(f"max_sge {attr.max_sge}, from 1 to {sge_max}")
        self.engine = SharedReceiveQueue(attr.max_wr, attr.max_sge, pd=pd.engine)
        self.engine.on_limit = weak_call(self, SRQ._handle_limit)
        super().__init__(pd.context.adapter.lock, pd)
        with self._lock:
            pd.context.adopt(self.engine, self)

    def __len__(self) -> int:
        """Return how many receives wait to be taken."""
        return len(self.engine)

    def post_recv(self, wr: RecvWR | Iterable[RecvWR]) -> None:
        """Post a receive, a list of them, or a chain by `next_wr`.

        Raises VerbsPostError: ENOMEM when the queue is full, EINVAL for too many SGEs; `bad_wr`
        is the index of the rejected one, those before it are posted.
        """
        with self._lock:
            self._demand_open()
            for index, one in enumerate(requests_of(wr)):
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

    def query(self) -> SrqAttr:
        """Return the capacity, and the limit while it is armed."""
        with self._calling():
            return SrqAttr(self.engine.capacity, self.engine.max_sge, self.engine.limit)

    def _demand_capacity(self, max_wr: int) -> None:
        limit = self.pd.context.attributes.max_srq_wr
        if not 1 <= max_wr <= limit:
            raise VerbsArgumentError(f"max_wr {max_wr}, from 1 to {limit}")

    def _handle_limit(self) -> None:
        self.pd.context.report(AsyncEventType.SRQ_LIMIT_REACHED, self)

    def _release(self, *, forced: bool) -> None:
        self.pd.context.forget(self.engine, self)
        self.engine.on_limit = None
